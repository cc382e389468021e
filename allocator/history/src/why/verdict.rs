//! What is said about a snapshot: the causes with their bytes, and what they rest on.

use std::fmt;

pub use crate::state::{SiteBytes, size};

/// Why memory ran out, or is as full as it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names are those of the table that `title` gives")]
pub enum Cause {
    A1,
    A2,
    A3,
    B1,
    B2,
    B3,
    C1,
    C2,
    C3,
    D1,
    D2,
    D3,
    E1,
    E2,
    E3,
    F1,
    F2,
    F3,
    G1,
    G2,
    H1,
    H2,
    X,
}

impl Cause {
    /// What it is called: a letter for the family, and a number.
    #[must_use]
    pub fn id(self) -> String {
        format!("{self:?}")
    }

    /// The cause that is called so.
    #[must_use]
    pub fn of_id(id: &str) -> Option<Self> {
        use Cause::*;
        const ALL: [Cause; 23] =
            [A1, A2, A3, B1, B2, B3, C1, C2, C3, D1, D2, D3, E1, E2, E3, F1, F2, F3, G1, G2, H1, H2, X];
        ALL.into_iter().find(|cause| cause.id() == id)
    }

    /// What it means, in a few words.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::A1 => "the program needs more memory than there is",
            Self::A2 => "one request is far larger than all others",
            Self::A3 => "state that is made at its first use",
            Self::B1 => "fragmentation: enough is free, in pieces that are too small",
            Self::B2 => "fragmentation inside of pages",
            Self::B3 => "a rule or a setting keeps the allocator from using what is free",
            Self::C1 => "freed memory that other streams still hold",
            Self::C2 => "freed memory that waits behind one long operation",
            Self::C3 => "a spurious failure: the memory came free as the request failed",
            Self::D1 => "free memory that belongs to another stream",
            Self::D2 => "memory of private pools (graphs)",
            Self::D3 => "cached memory that was not returned",
            Self::E1 => "another process on the device",
            Self::E2 => "memory of this process outside of the allocator",
            Self::E3 => "the allocator left nothing for others",
            Self::F1 => "a leak: live memory grows with each iteration",
            Self::F2 => "objects that live until the garbage collector runs",
            Self::F3 => "live memory rose once, and stayed",
            Self::G1 => "rounding of requests",
            Self::G2 => "mapped pages that cannot move to where they are needed",
            Self::H1 => "a limit below what the device has",
            Self::H2 => "the driver refused although memory was free",
            Self::X => "the evidence does not decide",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// What to do, and the bytes that it is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Advice {
    /// What it would bring, bytes.
    pub bytes: u64,
    /// What to do.
    pub text: String,
}

/// One cause, with what speaks for it.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// Which.
    pub cause: Cause,
    /// What it means here, in a few words.
    pub title: &'static str,
    /// Bytes that it accounts for.
    pub explained_bytes: u64,
    /// Whether the request would have fitted without it.
    pub sufficient: bool,
    /// From 0 to 1: the part of what was missing that measured bytes explain, less where the evidence is weak.
    pub confidence: f64,
    /// What was measured, a line each.
    pub evidence: Vec<String>,
    /// What would show that it is not the cause.
    pub refuted_by: String,
    /// What to do about it.
    pub advice: Vec<Advice>,
}

/// The moment that is explained.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Moment {
    /// A request failed.
    OutOfMemory,
    /// A request made the host wait until memory came free. No error was raised.
    Stall,
    /// The most memory that was held at once; no request failed.
    Peak,
    /// The end of the trace.
    End,
}

/// Where each byte of the device is. What is not known is `None`, and `total_bytes` is the sum of the rest.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Ledger {
    /// Memory of the device, if it is known.
    pub capacity_bytes: Option<u64>,
    /// The program's, as it asked for it.
    pub live_bytes: u64,
    /// What blocks in use take beyond that.
    pub rounding_bytes: u64,
    /// Freed, and waiting for other streams.
    pub pending_bytes: u64,
    /// Free in segments that the request could be served from.
    pub cached_bytes: u64,
    /// Free in segments of other streams, of the same pool and kind.
    pub other_streams_bytes: u64,
    /// Free in segments for requests of the other size.
    pub other_sizes_bytes: u64,
    /// Free in private pools.
    pub private_bytes: u64,
    /// Neither the allocator's nor free: other processes, contexts, libraries.
    pub other_bytes: Option<u64>,
    /// Free on the device.
    pub free_bytes: Option<u64>,
    /// Part of the free bytes in segments that may belong to blocks which were not split.
    pub uncertain_bytes: u64,
    /// The largest run that the request could be served from.
    pub largest_run_bytes: u64,
    /// What could not be told apart: known to the allocator, but not to the reader (messages alone).
    pub unallocated_bytes: u64,
}

impl Ledger {
    /// Bytes of segments.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        let parts = [
            self.live_bytes,
            self.rounding_bytes,
            self.pending_bytes,
            self.cached_bytes,
            self.other_streams_bytes,
            self.other_sizes_bytes,
            self.private_bytes,
            self.unallocated_bytes,
        ];
        parts.into_iter().fold(0, u64::saturating_add)
    }

    /// The entries by name, that are not 0. Their sum is the capacity, where all of them are known.
    #[must_use]
    pub fn entries(&self) -> Vec<(&'static str, u64)> {
        let all = [
            ("live", Some(self.live_bytes)),
            ("rounding", Some(self.rounding_bytes)),
            ("pending", Some(self.pending_bytes)),
            ("free in its segments", Some(self.cached_bytes)),
            ("free in other streams' segments", Some(self.other_streams_bytes)),
            ("free in segments of other sizes", Some(self.other_sizes_bytes)),
            ("free in private pools", Some(self.private_bytes)),
            ("reserved, not allocated", Some(self.unallocated_bytes)),
            ("outside of the allocator", self.other_bytes),
            ("free on the device", self.free_bytes),
        ];
        all.into_iter().filter_map(|(name, bytes)| Some((name, bytes.filter(|&bytes| bytes > 0)?))).collect()
    }

    /// Sum of the entries, bytes.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        let outside = self.other_bytes.unwrap_or(0).saturating_add(self.free_bytes.unwrap_or(0));
        self.reserved_bytes().saturating_add(outside)
    }
}

/// What would have happened if one thing had been otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counterfactual {
    /// What, e.g. `all pending frees had completed`.
    pub what: &'static str,
    /// Bytes that there would have been more.
    pub gained_bytes: u64,
    /// Whether the request would have fitted; `None` where there was none.
    pub fits: Option<bool>,
}

/// Bytes by stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PendingStream {
    /// The stream's number, with its name where it has one.
    pub stream: String,
    /// Whether it is the one that is waited for; otherwise the one that owns the memory, as PyTorch does not say more.
    pub waited_for: bool,
    /// Bytes.
    pub bytes: u64,
    /// Blocks.
    pub blocks: u64,
    /// What of the stream is waited for, and how far it is, if the recorder noted it: `up to position 12, behind open
    /// stream 3 (nccl)`.
    pub fence: Option<String>,
}

/// How live memory went up, from iteration to iteration.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Growth {
    /// What an iteration is, e.g. `from Optimizer.step to the next`.
    pub iteration: String,
    /// Iterations that were looked at.
    pub iterations: u64,
    /// Bytes more with each, by a line through the least that each one held.
    pub bytes_per_iteration: i64,
    /// How well the line fits, 0 to 1.
    pub fit: f64,
    /// What came in all, bytes.
    pub gained_bytes: u64,
    /// Which lines keep it, most first; `blocks` of each are those kept.
    pub sites: Vec<SiteBytes>,
    /// Allocations of the first site in these iterations that were given back.
    pub freed_again: u64,
    /// Iterations until there is no more memory, if that is known.
    pub iterations_left: Option<u64>,
    /// The same in microseconds.
    pub time_left_us: Option<u64>,
}

/// When the request would last have fitted, and what has come since.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Timeline {
    /// Index of the last event before which there was room enough; `None` if there never was in the trace.
    pub last_enough: Option<u64>,
    /// Events from there to the failure.
    pub events_since: u64,
    /// Microseconds from there to the failure, if times are known.
    pub since_us: Option<u64>,
    /// Bytes that live and pending memory have grown by since.
    pub gained_bytes: u64,
    /// The lines whose memory came since and was there in the end.
    pub sites: Vec<SiteBytes>,
}

/// The answer for one device.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Verdict {
    /// Index of the device.
    pub device: usize,
    /// Its name, if the recorder told it.
    pub device_name: Option<String>,
    /// What is explained.
    pub moment: Moment,
    /// Index of the event, if there are events.
    pub event: Option<u64>,
    /// Requests that failed, all in all.
    pub out_of_memory_events: u64,
    /// Of those, how many were tried again and succeeded.
    pub caught: u64,
    /// Times that the host waited for memory, without an error.
    pub stalls: u64,
    /// How long it waited, microseconds, if times are known.
    pub stalled_us: u64,
    /// What was asked for, bytes.
    pub request_bytes: Option<u64>,
    /// Where it was asked for.
    pub request_site: Option<SiteBytes>,
    /// What was missing to it, bytes.
    pub deficit_bytes: Option<u64>,
    /// About where a limit lies that is below what the device has, bytes that the allocator may reserve.
    pub limit_bytes: Option<u64>,
    /// The ledger.
    pub ledger: Ledger,
    /// What would have helped.
    pub counterfactuals: Vec<Counterfactual>,
    /// Causes, the one to look at first.
    pub findings: Vec<Finding>,
    /// If no cause alone suffices: the fewest that do together.
    pub together: Vec<Cause>,
    /// The lines that hold the most live memory.
    pub top_stacks: Vec<SiteBytes>,
    /// Freed memory that waits.
    pub pending_by_stream: Vec<PendingStream>,
    /// Growth over iterations, if iterations were found.
    pub growth: Option<Growth>,
    /// The way to the failure.
    pub timeline: Option<Timeline>,
    /// What is wrong or missing in the evidence.
    pub warnings: Vec<String>,
}

impl Verdict {
    /// The cause to look at first.
    #[must_use]
    pub fn cause(&self) -> Cause {
        self.findings.first().map_or(Cause::X, |finding| finding.cause)
    }

    /// The finding of a cause.
    #[must_use]
    pub fn finding(&self, cause: Cause) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.cause == cause)
    }
}
