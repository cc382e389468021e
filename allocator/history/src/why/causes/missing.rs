//! X: what the evidence does not show, and what to record next time.

use crate::StackId;

use crate::why::evidence::Evidence;
use crate::why::verdict::{Cause, Finding, Moment};

/// Adds X: in front if no other finding suffices, else behind, and only if something is missing.
pub(super) fn add(e: &Evidence, findings: &mut Vec<Finding>) {
    let missing = missing(e);
    let undecided = match e.deficit {
        Some(_) => findings.iter().all(|finding| !finding.sufficient),
        None => findings.is_empty(),
    };
    if missing.is_empty() && !undecided {
        return;
    }
    let mut finding = e.found(Cause::X, 0, false, "a snapshot that has what is missing here");
    finding.evidence = missing;
    if undecided {
        finding = finding.says("no cause that is known explains what was missing by itself".into());
    }
    match undecided && super::together(e, findings).is_empty() {
        true => findings.insert(0, finding),
        false => findings.push(finding),
    }
}

/// What is not there, and what to do about it.
pub(in crate::why) fn missing(e: &Evidence) -> Vec<String> {
    let device = e.device();
    let mut lines = Vec::new();
    if device.trace.is_empty() {
        lines.push("there are no events: record the history before the memory is used".to_owned());
        return lines;
    }
    let overwritten = device.notes.as_ref().is_some_and(|notes| notes.history_dropped > 0);
    let unborn = e.memory.blocks.values().filter(|held| held.born.is_none()).count();
    let grows_before = 2 * e.curves.live[0] > e.curves.live[e.incident.row] && e.curves.live[0] > 0;
    if overwritten || unborn > 0 && grows_before {
        lines.push(format!(
            "the trace begins late: {unborn} blocks were there before it; record from the start, or more (max_entries)"
        ));
    }
    if device.trace.stacks().iter().all(|&stack| stack == StackId::EMPTY) {
        lines.push("no event has a stack: record them (context=\"all\")".to_owned());
    }
    if e.incident.moment == Moment::OutOfMemory && e.ledger.capacity_bytes.is_none() && !e.refused {
        lines.push("the memory of the device is not known: give --capacity, or the text of the error".to_owned());
    }
    lines
}
