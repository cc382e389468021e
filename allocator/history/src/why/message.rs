//! The text of an out-of-memory error, in all spellings: what it says of memory, and what follows from that alone.
//!
//! Known are PyTorch's messages of today, those of 2.1 ("capacty"), those before ("already allocated … reserved in
//! total"), the oldest ("cached"), this project's own, and those of drivers and compilers, which tell no more than that
//! memory ran out. Numbers in messages are rounded to two decimals.

use super::causes::advice::{HELD, LIMIT, OUTSIDE, POOL, PROCESS};
use super::counterfactuals::CONTEXT_BYTES;
use super::verdict::{Advice, Cause, Counterfactual, Finding, Ledger, Moment, Verdict, size};

/// Memory of a process, as a message tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process {
    /// Its number.
    pub pid: u64,
    /// Its memory on the device, bytes.
    pub bytes: u64,
}

/// What an error's text says, all in bytes; what it does not say is `None`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Message {
    /// Asked for.
    pub request_bytes: Option<u64>,
    /// Memory of the device.
    pub capacity_bytes: Option<u64>,
    /// Free on the device.
    pub free_bytes: Option<u64>,
    /// In blocks of the program; with private pools.
    pub allocated_bytes: Option<u64>,
    /// Of that, in private pools.
    pub private_bytes: Option<u64>,
    /// Reserved, and in no block.
    pub unallocated_bytes: Option<u64>,
    /// Freed, and waiting (this project's messages).
    pub pending_bytes: Option<u64>,
    /// The largest free piece (this project's messages).
    pub largest_run_bytes: Option<u64>,
    /// Lost by rounding (this project's messages).
    pub rounding_bytes: Option<u64>,
    /// A limit that was set.
    pub allowed_bytes: Option<u64>,
    /// What this process has, with what is not the allocator's.
    pub own_process_bytes: Option<u64>,
    /// Other processes.
    pub processes: Vec<Process>,
    /// The cause that the message tells (this project's messages).
    pub cause: Option<Told>,
}

/// A cause that an error tells.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Told {
    /// Which.
    pub cause: Cause,
    /// Whether the request would have fitted without it.
    pub sufficient: bool,
    /// Bytes that it accounts for.
    pub bytes: u64,
    /// What was measured.
    pub evidence: String,
    /// What to do about it.
    pub advice: Option<String>,
}

impl Told {
    /// The cause in the text of this project's error: `cause F1, a leak: … (sufficient, explains 3.00 MiB): what was
    /// measured; to do: what`.
    fn parse(text: &str) -> Option<Self> {
        let text = &text[text.find("; cause ")? + "; cause ".len()..];
        let cause = Cause::of_id(text.split(',').next()?)?;
        let (head, rest) = text.split_once("): ")?;
        let (_, measure) = head.rsplit_once('(')?;
        let rest = rest.split("; highwater why ").next().unwrap_or(rest);
        let rest = rest.split("; no snapshot of it could be written").next().unwrap_or(rest);
        let (evidence, advice) = match rest.split_once("; to do: ") {
            Some((evidence, advice)) => (evidence, Some(advice)),
            None => (rest, None),
        };
        // A log goes on behind it.
        let most = |text: &str| text.chars().take(MOST_TOLD).collect::<String>();
        Some(Self {
            cause,
            sufficient: measure.starts_with("sufficient, "),
            bytes: size_after(measure, "explains ")?,
            evidence: most(evidence),
            advice: advice.map(most),
        })
    }
}

/// Most characters of an error's text that are told again.
const MOST_TOLD: usize = 500;

/// A text that is no message of a known form.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// Nothing in it says that memory ran out.
    #[error("there is no out-of-memory message in this text")]
    NoMessage,
}

/// Texts that tell nothing but that memory ran out.
const BARE: &[&str] = &[
    "CUDA error: out of memory",
    "cuda runtime error (2) : out of memory",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "cudaErrorMemoryAllocation",
    "RESOURCE_EXHAUSTED: Out of memory",
    "HIP error: out of memory",
    "CUDA out of memory",
    "HIP out of memory",
    "XPU out of memory",
];

impl Message {
    /// Reads a text, which may be a whole log: the last message in it counts.
    ///
    /// # Errors
    /// If no message is in it.
    pub fn parse(text: &str) -> Result<Self, MessageError> {
        let whole = text;
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        if let Some(start) = text.rfind("Tried to allocate ") {
            return Ok(Self::pytorch(&text[start..]));
        }
        if let Some(end) = text.rfind(" requested on stream ") {
            let start = text[..end].rfind("out of memory: ").ok_or(MessageError::NoMessage)?;
            // The cause ends with its line, if the message was not broken into several.
            let line = whole.lines().rfind(|line| line.contains(" requested on stream "));
            let cause = line.and_then(Told::parse).or_else(|| Told::parse(&text[start..]));
            return Ok(Self { cause, ..Self::own(&text[start..]) });
        }
        let bare = BARE.iter().find_map(|known| text.rfind(known));
        let start = bare.ok_or(MessageError::NoMessage)?;
        let request_bytes = size_after(&text[start..], "trying to allocate ");
        Ok(Self { request_bytes, ..Self::default() })
    }

    fn pytorch(text: &str) -> Self {
        let allocated_bytes =
            size_before(text, " is allocated by PyTorch").or_else(|| size_before(text, " already allocated"));
        let reserved = size_before(text, " reserved in total by PyTorch");
        let unallocated = size_before(text, " is reserved by PyTorch but unallocated")
            .or_else(|| Some(reserved?.saturating_sub(allocated_bytes?)))
            .or_else(|| size_before(text, " cached"));
        Self {
            request_bytes: size_after(text, "Tried to allocate "),
            capacity_bytes: ["total capacity of ", "total capacty of "]
                .iter()
                .find_map(|marker| size_after(text, marker))
                .or_else(|| size_before(text, " total capacity")),
            free_bytes: size_before(text, " is free").or_else(|| size_before(text, " free")),
            allocated_bytes,
            private_bytes: size_before(text, " allocated in private pools"),
            unallocated_bytes: unallocated,
            allowed_bytes: size_before(text, " allowed"),
            own_process_bytes: size_after(text, "this process has "),
            processes: processes(text),
            ..Self::default()
        }
    }

    fn own(text: &str) -> Self {
        Self {
            request_bytes: size_after(text, "out of memory: "),
            capacity_bytes: size_before(text, " capacity"),
            free_bytes: size_before(text, " free on the device"),
            allocated_bytes: size_before(text, " are live"),
            rounding_bytes: size_before(text, " rounding"),
            pending_bytes: size_before(text, " pending"),
            unallocated_bytes: size_before(text, " cached"),
            largest_run_bytes: size_after(text, "largest free piece of the stream "),
            allowed_bytes: size_before(text, " allowed,"),
            ..Self::default()
        }
    }

    /// Where each byte is.
    fn ledger(&self) -> Ledger {
        let private = self.private_bytes.unwrap_or(0);
        let mut ledger = Ledger {
            capacity_bytes: self.capacity_bytes,
            live_bytes: self.allocated_bytes.unwrap_or(0).saturating_sub(private),
            private_bytes: private,
            pending_bytes: self.pending_bytes.unwrap_or(0),
            rounding_bytes: self.rounding_bytes.unwrap_or(0),
            unallocated_bytes: self.unallocated_bytes.unwrap_or(0),
            largest_run_bytes: self.largest_run_bytes.unwrap_or(0),
            free_bytes: self.free_bytes,
            ..Ledger::default()
        };
        if let (Some(capacity), Some(free), Some(_)) = (self.capacity_bytes, self.free_bytes, self.allocated_bytes) {
            ledger.other_bytes = Some(capacity.saturating_sub(free).saturating_sub(ledger.reserved_bytes()));
        }
        ledger
    }

    /// What the message alone says of the cause.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let ledger = self.ledger();
        let free = self.free_bytes.unwrap_or(0);
        let request = self.request_bytes;
        let usable = free.max(ledger.largest_run_bytes);
        let deficit = request.map(|request| request.saturating_sub(usable));
        let judge = Judge { message: self, ledger, request: request.unwrap_or(0), free, deficit: deficit.unwrap_or(0) };
        let findings = judge.findings();
        Verdict {
            device: 0,
            device_name: None,
            moment: Moment::OutOfMemory,
            event: None,
            out_of_memory_events: 1,
            caught: 0,
            stalls: 0,
            stalled_us: 0,
            request_bytes: request,
            request_site: None,
            deficit_bytes: deficit,
            limit_bytes: self.allowed_bytes,
            ledger,
            counterfactuals: judge.counterfactuals(),
            findings,
            together: Vec::new(),
            top_stacks: Vec::new(),
            pending_by_stream: Vec::new(),
            growth: None,
            timeline: None,
            warnings: vec!["this is from the text of the error alone; a snapshot says more".to_owned()],
        }
    }
}

struct Judge<'a> {
    message: &'a Message,
    ledger: Ledger,
    request: u64,
    free: u64,
    deficit: u64,
}

impl Judge<'_> {
    fn outside(&self) -> u64 {
        self.ledger.other_bytes.unwrap_or(0)
    }

    fn counterfactuals(&self) -> Vec<Counterfactual> {
        let fits = |gained: u64| Some(self.free.saturating_add(gained) >= self.request && gained > 0);
        let outside = self.outside().saturating_sub(CONTEXT_BYTES);
        let all = [
            ("nothing but this allocator used the device", outside, fits(outside)),
            ("private pools had been released", self.ledger.private_bytes, fits(self.ledger.private_bytes)),
            ("all pending frees had completed", self.ledger.pending_bytes, None),
            ("the free memory of its segments were one piece", self.ledger.unallocated_bytes, None),
        ];
        let told = all.into_iter().filter(|&(_, gained, _)| gained > 0 && self.request > 0);
        told.map(|(what, gained_bytes, fits)| Counterfactual { what, gained_bytes, fits }).collect()
    }

    fn found(&self, cause: Cause, bytes: u64, evidence: String, refuted_by: &str, advice: &str) -> Finding {
        let share = (bytes as f64 / self.deficit.max(1) as f64).min(1.0);
        let advice =
            if bytes > 0 && !advice.is_empty() { vec![Advice { bytes, text: advice.to_owned() }] } else { Vec::new() };
        Finding {
            cause,
            title: cause.title(),
            explained_bytes: bytes,
            sufficient: cause != Cause::X && bytes >= self.deficit,
            // Text leaves out how free memory is cut up, and what is pending.
            confidence: if cause == Cause::X { 0.0 } else { 0.8 * share },
            evidence: vec![evidence],
            refuted_by: refuted_by.to_owned(),
            advice,
        }
    }

    fn findings(&self) -> Vec<Finding> {
        if self.message.capacity_bytes.is_none() && self.message.allocated_bytes.is_none() {
            let text = "the message does not say where memory is: it comes from outside of the caching allocator, or \
                        from another program; record a snapshot, and give it with --capacity (E3 shows there)";
            return vec![self.found(Cause::X, 0, text.to_owned(), "a snapshot", "")];
        }
        let checks =
            [self.refused(), self.outside_finding(), self.private_finding(), self.pending_finding(), self.undecided()];
        let mut findings: Vec<_> = checks.into_iter().flatten().collect();
        if findings.is_empty() {
            findings.push(self.demand());
        }
        if let Some(told) = self.told() {
            // What the library measured at the failure comes before what its books leave to conclude.
            findings.retain(|finding| finding.cause != told.cause);
            findings.insert(0, told);
        }
        findings
    }

    /// What the error itself says of the cause.
    fn told(&self) -> Option<Finding> {
        let told = self.message.cause.as_ref()?;
        let advice = told.advice.as_ref().filter(|_| told.bytes > 0);
        Some(Finding {
            sufficient: told.sufficient,
            confidence: if told.sufficient { 1.0 } else { 0.0 },
            advice: advice.map(|text| Advice { bytes: told.bytes, text: text.clone() }).into_iter().collect(),
            ..self.found(told.cause, told.bytes, told.evidence.clone(), "its snapshot (black_box) tells the rest", "")
        })
    }

    /// H1, H2: the device has enough.
    fn refused(&self) -> Option<Finding> {
        if self.request == 0 || self.free < self.request {
            return None;
        }
        let free = size(self.free);
        let reserved = self.ledger.reserved_bytes();
        Some(match self.message.allowed_bytes {
            Some(allowed) => self.found(
                Cause::H1,
                self.free,
                format!("{free} are free on the device; {} reserved, {} allowed", size(reserved), size(allowed)),
                "no limit is set",
                LIMIT,
            ),
            None => self.found(
                Cause::H2,
                self.free,
                format!("{free} are free on the device, {} were asked for, and no limit is told", size(self.request)),
                "a limit (H1), or a graph capture during which cached memory is not returned (D3)",
                "see whether a graph was being captured; else allocate as much with nothing else running",
            ),
        })
    }

    /// E1, E2: more than a part in ten is neither the allocator's nor free.
    fn outside_finding(&self) -> Option<Finding> {
        let (other, capacity) = (self.outside(), self.message.capacity_bytes?);
        if other <= capacity / 10 || other <= 1 << 30 || self.free >= self.request {
            return None;
        }
        let others: u64 = self.message.processes.iter().map(|process| process.bytes).sum();
        let told = format!("{} of {} are neither this allocator's nor free", size(other), size(capacity));
        Some(if 2 * others >= other {
            let list = self
                .message
                .processes
                .iter()
                .map(|process| format!("process {} has {}", process.pid, size(process.bytes)));
            let evidence = format!("{told}: {}", list.collect::<Vec<_>>().join(", "));
            let refuted = "those processes were there before, too";
            self.found(Cause::E1, others.min(other), evidence, refuted, PROCESS)
        } else {
            let own = other.saturating_sub(others).saturating_sub(CONTEXT_BYTES);
            let whole = self.message.own_process_bytes;
            let whole = whole.map_or(String::new(), |bytes| format!("; this process has {} in all", size(bytes)));
            self.found(Cause::E2, own, told + &whole, "nvidia-smi shows that another process has it (E1)", OUTSIDE)
        })
    }

    /// D2: private pools have much.
    fn private_finding(&self) -> Option<Finding> {
        let (private, allocated) = (self.message.private_bytes?, self.message.allocated_bytes?);
        (10 * private > 3 * allocated).then(|| {
            let evidence = format!("{} of {} allocated are in private pools", size(private), size(allocated));
            self.found(Cause::D2, private, evidence, "the pools are in use at the time", POOL)
        })
    }

    /// C1 by this project's own words: pending bytes are told apart.
    fn pending_finding(&self) -> Option<Finding> {
        let pending = self.message.pending_bytes.filter(|&pending| pending > 0 && pending >= self.deficit)?;
        let evidence = format!("{} are freed, and held by work on other streams", size(pending));
        Some(self.found(Cause::C1, pending, evidence, "the pending memory is in pieces that are too small", HELD))
    }

    /// Enough is reserved and in no block: the text does not say why it could not be had.
    fn undecided(&self) -> Option<Finding> {
        let unallocated = self.ledger.unallocated_bytes;
        if self.request == 0 || unallocated < self.request || self.free >= self.request {
            return None;
        }
        let largest = self.message.largest_run_bytes;
        if let Some(largest) = largest.filter(|&largest| largest < self.request) {
            let evidence =
                format!("{} are cached, and the largest free piece has {}", size(unallocated), size(largest));
            return Some(self.found(
                Cause::B1,
                unallocated,
                evidence,
                "the free pieces are of other streams (D1)",
                "allocate what lives long first, and fewer sizes",
            ));
        }
        let evidence = format!(
            "{} are reserved and not allocated, more than the {} asked for: in pieces (B1, B2), pending (C1) or of \
             another stream (D1); a snapshot decides",
            size(unallocated),
            size(self.request)
        );
        Some(self.found(Cause::X, 0, evidence, "a snapshot", ""))
    }

    fn demand(&self) -> Finding {
        let allocated = self.message.allocated_bytes.unwrap_or(0);
        let evidence = format!(
            "{} are allocated, and of {} asked for {} are missing; little is reserved in vain ({}) or others' ({})",
            size(allocated),
            size(self.request),
            size(self.deficit),
            size(self.ledger.unallocated_bytes),
            size(self.outside())
        );
        let advice = "a smaller batch or sequence, recomputation, sharding or offloading; a snapshot names the lines";
        self.found(Cause::A1, self.deficit.max(1), evidence, "live memory grows with each iteration (F1)", advice)
    }
}

/// Other processes: `Process 12 has 3.00 GiB memory in use`.
fn processes(text: &str) -> Vec<Process> {
    let parts = text.match_indices("Process ").filter_map(|(start, found)| {
        let rest = &text[start + found.len()..];
        let (pid, rest) = rest.split_once(' ')?;
        let bytes = size_after(rest.strip_prefix("has ").map(|_| rest)?, "has ")?;
        Some(Process { pid: pid.parse().ok()?, bytes })
    });
    parts.collect()
}

/// The size that stands right behind a text.
fn size_after(text: &str, marker: &str) -> Option<u64> {
    let rest = &text[text.find(marker)? + marker.len()..];
    let mut words = rest.split([' ', ';', ',', ')']).filter(|word| !word.is_empty());
    bytes_of(words.next()?, words.next()?)
}

/// The size that stands right before a text, if one does.
fn size_before(text: &str, marker: &str) -> Option<u64> {
    text.match_indices(marker).find_map(|(end, _)| {
        let mut words = text[..end].rsplit([' ', ';', ',', '(']).filter(|word| !word.is_empty());
        let (unit, number) = (words.next()?, words.next()?);
        bytes_of(number, unit)
    })
}

fn bytes_of(number: &str, unit: &str) -> Option<u64> {
    let number: f64 = number.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)?;
    let scale: f64 = match unit.trim_end_matches(['.', ':', ')', ';', ',']) {
        "bytes" | "byte" | "B" => 1.0,
        "KiB" | "KB" | "kB" => f64::from(1 << 10),
        "MiB" | "MB" => f64::from(1 << 20),
        "GiB" | "GB" => f64::from(1 << 30),
        "TiB" | "TB" => (1_u64 << 40) as f64,
        _ => return None,
    };
    // No device has a pebibyte.
    Some((number * scale).round().min((1_u64 << 50) as f64) as u64)
}
