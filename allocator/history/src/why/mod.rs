//! Why memory ran out: the causes, each with its bytes, what speaks for it, and what would refute it.
//!
//! The way: choose the request that failed (else the one that made the host wait, else the peak); undo the trace from
//! its end to that moment; account for each byte; ask of each thing that could have been otherwise whether the request
//! would have fitted then; and rank the causes by the answers. A cause is *sufficient* if the request would have fitted
//! without it. Nothing is guessed: what measured bytes do not explain is said to be undecided.
//!
//! [`explain`] takes a snapshot, [`Message`] the text of an error alone, and [`odd_one_out`] the verdicts of several
//! ranks.

mod causes;
mod counterfactuals;
mod evidence;
mod growth;
mod incident;
mod iterations;
mod message;
mod pending;
mod ranks;
mod sharing;
mod verdict;

use crate::StackId;
use crate::read::{EventAction, Loaded};
use crate::state::{curves, sites};

use evidence::Evidence;

pub use crate::state::pending::stream_name;
pub use message::{Message, MessageError, Process, Told};
pub use ranks::{OddOne, odd_one_out};
pub use verdict::{
    Advice, Cause, Counterfactual, Finding, Growth, Ledger, Moment, PendingStream, SiteBytes, Timeline, Verdict, size,
};

/// What to look at.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub enum Look {
    /// The failure, else the host wait, else the peak.
    #[default]
    Failure,
    /// The end of the trace, for growth.
    Growth,
}

/// What to look at, and what is known beside the snapshot.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Options {
    /// What to look at.
    pub look: Look,
    /// Memory of the device, bytes.
    pub capacity_bytes: Option<u64>,
    /// The text of the error.
    pub message: Option<Message>,
    /// Most lines of the program that are listed.
    pub top: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { look: Look::Failure, capacity_bytes: None, message: None, top: 5 }
    }
}

/// Explains each device of a snapshot that has segments or events; those whose requests failed come first.
#[must_use]
pub fn explain(loaded: &Loaded, options: &Options) -> Vec<Verdict> {
    let used = |&index: &usize| {
        let device = &loaded.devices[index];
        !device.trace.is_empty() || !device.segments.is_empty()
    };
    let mut verdicts: Vec<_> = (0..loaded.devices.len())
        .filter(used)
        .map(|index| verdict(&Evidence::of(loaded, index, options), options))
        .collect();
    let weight = |verdict: &Verdict| match verdict.moment {
        Moment::OutOfMemory => 0,
        Moment::Stall => 1,
        _ => 2,
    };
    verdicts
        .sort_by_key(|verdict| (weight(verdict), std::cmp::Reverse(verdict.ledger.reserved_bytes()), verdict.device));
    verdicts
}

/// The line that a stack is told by: the place among its frames of the innermost one that is not a library's, and its
/// text, e.g. `train.py:31 in step`. `None` for the empty stack.
#[must_use]
pub fn site(loaded: &Loaded, stack: StackId) -> Option<(usize, String)> {
    sites::told(loaded, stack)
}

fn verdict(e: &Evidence, options: &Options) -> Verdict {
    let findings = causes::all(e);
    let together = causes::together(e, &findings);
    let device = e.device();
    let trace = &device.trace;
    let request_site = e.incident.request.map(|request| {
        let row = match e.incident.moment {
            Moment::OutOfMemory => Some(e.incident.row),
            _ => (e.incident.row..trace.len()).find(|&row| trace.action(row) == EventAction::Alloc),
        };
        let stack = row.and_then(|row| trace.stacks().get(row)).copied().unwrap_or_default();
        sites::site(e.loaded, (stack, request.bytes), request.bytes, 1)
    });
    Verdict {
        device: e.index,
        device_name: device.notes.as_ref().map(|notes| notes.name.clone()),
        moment: e.incident.moment,
        event: (!trace.is_empty()).then_some(e.incident.row as u64),
        out_of_memory_events: e.incidents.failures.len() as u64,
        caught: e.incidents.failures.iter().filter(|failure| failure.1).count() as u64,
        stalls: e.incidents.waits.len() as u64,
        stalled_us: e.incidents.waits.iter().map(|wait| wait.waited_us).sum(),
        request_bytes: e.incident.request.map(|request| request.bytes),
        request_site,
        deficit_bytes: e.deficit,
        limit_bytes: e.limit,
        ledger: e.ledger,
        counterfactuals: e.counterfactuals.list(),
        findings,
        together,
        top_stacks: sites::top(e.loaded, &e.memory, options.top, |held| !held.pending),
        pending_by_stream: pending::by_stream(e),
        growth: e.trend.as_ref().map(|trend| trend.told(e.loaded, e.index, &e.memory, e.incident.row, e.headroom())),
        timeline: e.timeline(),
        warnings: warnings(e),
    }
}

/// What is wrong with the evidence.
fn warnings(e: &Evidence) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(damage) = &e.loaded.damage {
        lines.push(format!("the file is damaged, and was read as far as it goes: {damage}"));
    }
    if e.memory.faults > 0 {
        lines.push(format!(
            "{} events or blocks fit nothing that was there; sums may be off by theirs",
            e.memory.faults
        ));
    }
    if e.curves.negative > 0 {
        lines.push("more memory comes free than was ever taken: events are missing".to_owned());
    }
    let trace = &e.device().trace;
    if !trace.is_empty() && !trace.is_timed() {
        lines.push("events have no time: ages and durations are not known".to_owned());
    }
    if e.frees != curves::Frees::Both {
        lines.push("frees have one event instead of two: what was pending is not known".to_owned());
    }
    lines
}
