//! Everything that causes are judged by, worked out once.

use crate::{
    DeviceMemory, Noted, SegmentKind,
    read::{Loaded, LoadedDevice},
};

use super::counterfactuals::Counterfactuals;
use super::growth::Trend;
use super::incident::{Incident, Incidents};
use super::iterations::Iterations;
use super::message::Message;
use super::sharing::Sharing;
use super::verdict::{Cause, Finding, Ledger, Moment, Timeline};
use super::{Look, Options};
use crate::state::curves::{Curves, Frees};
use crate::state::memory::Memory;
use crate::state::pending::Waits;
use crate::state::rules::{MOST_BYTES, Rules};
use crate::state::sites;
use crate::state::space::{Domain, Request, Run, Space};

/// One device at the moment that is explained.
#[derive(Debug)]
pub(super) struct Evidence<'a> {
    pub(super) loaded: &'a Loaded,
    pub(super) index: usize,
    pub(super) rules: Rules,
    pub(super) frees: Frees,
    pub(super) curves: Curves,
    pub(super) incidents: Incidents,
    pub(super) incident: Incident,
    pub(super) memory: Memory,
    pub(super) waits: Waits<'a>,
    /// What is free.
    pub(super) space: Space,
    /// What would be free if nothing was pending.
    pub(super) completed: Space,
    pub(super) ledger: Ledger,
    /// Whether the request was refused while the device had enough free for it.
    pub(super) refused: bool,
    /// Bytes that may be reserved at most, about, if it looks as if there was such a limit.
    pub(super) limit: Option<u64>,
    /// How memory outside of the allocator went up, as the recorder measured it.
    pub(super) rise: Option<Rise>,
    /// Who has memory of the device, as far as that is known.
    pub(super) sharing: Sharing,
    /// Bytes of the device that the request could have had.
    pub(super) usable: u64,
    /// What was missing; `None` if there was no request.
    pub(super) deficit: Option<u64>,
    pub(super) trend: Option<Trend>,
    pub(super) counterfactuals: Counterfactuals,
    pub(super) message: Option<&'a Message>,
}

impl<'a> Evidence<'a> {
    pub(super) fn of(loaded: &'a Loaded, index: usize, options: &'a Options) -> Self {
        let device = &loaded.devices[index];
        let rules = Rules::of(loaded);
        let frees = Frees::of(device);
        let curves = Curves::of(device, frees);
        let incidents = Incidents::of(device, &rules);
        let incident = match options.look {
            Look::Failure => incidents.choose(device, &rules, &curves),
            Look::Growth => incidents.end(device),
        };
        let memory = Memory::before(device, &rules, frees, incident.row);
        let space = Space::of(&memory, |_| true);
        let completed = Space::of(&memory, |held| !held.pending);
        let samples = Samples::before(device, &incident);
        let known = Known::of(device, &incident, samples, options);
        let ledger = ledger(&memory, &space, incident.request.as_ref(), known);
        let refused = incident.request.is_some_and(|request| known.free.is_some_and(|free| free >= request.driver));
        let free = ledger.free_bytes.unwrap_or(0);
        let below = noted_limit(device).map(|limit| limit.saturating_sub(ledger.reserved_bytes()));
        let usable = match (below, incident.request) {
            (Some(below), Some(request)) if below < request.driver => free.min(below),
            _ if refused => 0,
            _ => free,
        };
        let iterations = Iterations::before(loaded, index, incident.row);
        let trend = iterations.map(|iterations| Trend::of(iterations, &device.trace, &curves, incident.row));
        let mut evidence = Self {
            loaded,
            index,
            rules,
            frees,
            curves,
            incidents,
            incident,
            waits: Waits::before(device, incident.row),
            memory,
            space,
            completed,
            ledger,
            refused,
            limit: None,
            rise: samples.rise(),
            sharing: Sharing::of(device, &incident, options.message.as_ref()),
            usable,
            deficit: None,
            trend,
            counterfactuals: Counterfactuals::default(),
            message: options.message.as_ref(),
        };
        evidence.limit = evidence.find_limit();
        evidence.deficit = incident.request.map(|request| {
            let run = request.block.saturating_sub(evidence.ledger.largest_run_bytes);
            run.min(request.driver.saturating_sub(usable))
        });
        evidence.counterfactuals = Counterfactuals::of(&evidence);
        evidence
    }

    pub(super) fn device(&self) -> &'a LoadedDevice {
        &self.loaded.devices[self.index]
    }

    pub(super) fn reserved(&self) -> u64 {
        self.ledger.reserved_bytes()
    }

    /// A limit is likely where a request is refused beside free memory, and never before more was reserved than the
    /// request would have led to; or where memory stopped at the same bytes whenever the host waited.
    fn find_limit(&self) -> Option<u64> {
        if let Some(bytes) = self.message.and_then(|message| message.allowed_bytes) {
            return Some(bytes);
        }
        let request = self.incident.request?;
        let reserved = self.reserved();
        if let Some(limit) = noted_limit(self.device()) {
            let is_below = self.ledger.capacity_bytes.is_none_or(|capacity| limit < capacity);
            return (is_below && reserved.saturating_add(request.driver) > limit).then_some(limit);
        }
        let most = self.curves.reserved[..=self.incident.row].iter().copied().max().unwrap_or(0);
        match self.incident.moment {
            Moment::OutOfMemory if self.refused && most < reserved.saturating_add(request.driver) => Some(reserved),
            Moment::Stall if self.incidents.waits.len() >= 2 => {
                let stopped = self.incidents.waits.iter().map(|wait| self.curves.reserved[wait.row]);
                let (low, high) = (stopped.clone().min()?, stopped.max()?);
                (high - low < request.driver).then_some(high)
            }
            _ => None,
        }
    }

    /// A finding; its confidence is the part of what was missing that it explains.
    pub(super) fn found(&self, cause: Cause, explained_bytes: u64, sufficient: bool, refuted_by: &str) -> Finding {
        let whole = self.deficit.filter(|&deficit| deficit > 0).unwrap_or(match self.deficit {
            Some(_) => 1,
            None => self.reserved(),
        });
        let share = (explained_bytes as f64 / whole.max(1) as f64).min(1.0);
        let doubt = if self.memory.faults > 0 || self.curves.negative > 0 { 0.8 } else { 1.0 };
        let refuted_by = refuted_by.to_owned();
        // Where nothing failed the program needs no more than there is.
        let failed = self.deficit.is_some();
        let title = match cause {
            Cause::A1 if !failed => "what the program holds",
            Cause::B1 if !failed => "fragmentation: segments are held for parts of them",
            _ => cause.title(),
        };
        let confidence = share * doubt;
        let (evidence, advice) = (Vec::new(), Vec::new());
        Finding { cause, title, explained_bytes, sufficient, confidence, evidence, refuted_by, advice }
    }

    /// Whether bytes matter where no request failed: at least a part in twenty of what is reserved.
    pub(super) fn matters(&self, bytes: u64) -> bool {
        self.deficit.is_some() || bytes >= (self.reserved() / 20).max(1)
    }

    /// Whether a run may serve the request; where there is none, whether it is in the common pool.
    pub(super) fn own(&self, run: &Run) -> bool {
        self.incident.request.map_or(run.segment.pool == (0, 0), |request| request.domain.has(&run.segment))
    }

    /// Bytes that there still is room for, if that is known and the end has not come.
    pub(super) fn headroom(&self) -> Option<u64> {
        if self.incident.moment == Moment::OutOfMemory {
            return None;
        }
        self.ledger.free_bytes.map(|free| {
            let inside = self.reserved() - self.ledger.live_bytes - self.ledger.rounding_bytes;
            inside.saturating_add(free)
        })
    }

    /// When there was last room enough, and what came since.
    pub(super) fn timeline(&self) -> Option<Timeline> {
        let request = self.incident.request?;
        let row = self.incident.row;
        let room = self.reserved().saturating_add(self.usable).saturating_sub(self.ledger.rounding_bytes);
        let enough = |row: &usize| room.saturating_sub(self.curves.active(*row)) >= request.block;
        let last = (0..=row).rev().find(enough);
        let times = self.device().trace.times_us();
        let since = last.unwrap_or(0);
        let since_us = times.get(row).zip(times.get(since)).map(|(end, start)| end.saturating_sub(*start));
        let came = |held: &crate::state::memory::Held| held.born.is_some_and(|born| born as usize >= since);
        Some(Timeline {
            last_enough: last.map(|row| row as u64),
            events_since: (row - since) as u64,
            since_us: since_us.filter(|_| self.device().trace.is_timed()),
            gained_bytes: self.curves.active(row).saturating_sub(self.curves.active(since)),
            sites: sites::top(self.loaded, &self.memory, 3, came),
        })
    }
}

/// What is known of the device beside the allocator's memory, bytes.
#[derive(Clone, Copy)]
struct Known {
    capacity: Option<u64>,
    /// Free at the moment.
    free: Option<u64>,
    /// Neither free nor the allocator's, about then or at the end.
    other: Option<u64>,
}

impl Known {
    /// What the caller says counts most, then the event, then the text of the error, then what the recorder noted
    /// nearest to the moment, then at the end.
    fn of(device: &LoadedDevice, incident: &Incident, samples: Samples, options: &Options) -> Self {
        let (message, notes) = (options.message.as_ref(), device.notes.as_ref());
        let capacity = options.capacity_bytes.or(message.and_then(|message| message.capacity_bytes));
        let capacity = capacity.or(notes.and_then(|notes| notes.capacity_bytes));
        let free = incident.device_free.or(message.and_then(|message| message.free_bytes));
        let other = samples.last.map(|sample| sample.fact.other_bytes()).or(notes.and_then(|notes| notes.other_bytes));
        // No device has more.
        let [capacity, free, other] = [capacity, free, other].map(|bytes| bytes.map(|bytes| bytes.min(MOST_BYTES)));
        Self { capacity, free, other }
    }
}

/// The most that the allocator may hold, if the recorder noted it; without a limit it is what the device has.
fn noted_limit(device: &LoadedDevice) -> Option<u64> {
    device.notes.as_ref()?.limit_bytes
}

/// How memory outside of the allocator went up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rise {
    pub(super) from_bytes: u64,
    pub(super) to_bytes: u64,
    pub(super) took_us: u64,
}

impl Rise {
    pub(super) fn bytes(self) -> u64 {
        self.to_bytes - self.from_bytes
    }
}

/// What the device said of its memory: the first time, and the last time up to the moment, or the first time behind it.
#[derive(Clone, Copy)]
struct Samples<'a> {
    first: Option<&'a Noted<DeviceMemory>>,
    last: Option<&'a Noted<DeviceMemory>>,
}

impl<'a> Samples<'a> {
    fn before(device: &'a LoadedDevice, incident: &Incident) -> Self {
        let Some(notes) = &device.notes else { return Self { first: None, last: None } };
        let until = device.trace.times_us().get(incident.row).copied().unwrap_or(u64::MAX);
        let up_to = notes.device_memory.partition_point(|sample| sample.time_us <= until);
        let last = notes.device_memory[..up_to].last().or(notes.device_memory.get(up_to));
        Self { first: notes.device_memory.first(), last }
    }

    fn rise(self) -> Option<Rise> {
        let (first, last) = (self.first?, self.last?);
        let (from_bytes, to_bytes) = (first.fact.other_bytes(), last.fact.other_bytes());
        let took_us = last.time_us.saturating_sub(first.time_us);
        (to_bytes > from_bytes).then_some(Rise { from_bytes, to_bytes, took_us })
    }
}

fn ledger(memory: &Memory, space: &Space, request: Option<&Request>, known: Known) -> Ledger {
    let common = Domain { pool: (0, 0), stream: 0, kind: SegmentKind::Large };
    let domain = request.map_or(common, |request| request.domain);
    let mut ledger = Ledger { capacity_bytes: known.capacity, ..Ledger::default() };
    for held in memory.blocks.values() {
        if held.pending {
            ledger.pending_bytes += held.bytes;
        } else {
            ledger.live_bytes += held.requested;
            ledger.rounding_bytes += held.bytes - held.requested;
        }
    }
    for run in &space.runs {
        let segment = &run.segment;
        let part = if request.is_none() && segment.pool == (0, 0) || domain.has(segment) {
            &mut ledger.cached_bytes
        } else if segment.pool != domain.pool {
            &mut ledger.private_bytes
        } else if segment.kind == domain.kind {
            &mut ledger.other_streams_bytes
        } else {
            &mut ledger.other_sizes_bytes
        };
        *part += run.bytes;
        if !run.whole && !segment.expandable && segment.kind == SegmentKind::Large && run.bytes <= 1 << 20 {
            ledger.uncertain_bytes += run.bytes;
        }
    }
    ledger.largest_run_bytes = space.largest(|run| domain.has(&run.segment));
    let reserved = ledger.reserved_bytes();
    // What the device says of the moment counts; what the recorder noted is of the end.
    (ledger.free_bytes, ledger.other_bytes) = match (known.capacity, known.free, known.other) {
        (Some(capacity), Some(free), _) => {
            let free = free.min(capacity.saturating_sub(reserved));
            (Some(free), Some(capacity.saturating_sub(reserved).saturating_sub(free)))
        }
        (Some(capacity), None, Some(other)) => {
            let other = other.min(capacity.saturating_sub(reserved));
            (Some(capacity.saturating_sub(reserved).saturating_sub(other)), Some(other))
        }
        (_, free, _) => (free, None),
    };
    ledger
}
