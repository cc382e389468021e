//! E: memory that is not the allocator's.

use super::advice;
use super::streams::time;
use crate::why::counterfactuals::CONTEXT_BYTES;
use crate::why::evidence::{Evidence, Rise};
use crate::why::verdict::{Cause, Finding, Moment, size};

/// From which part of the device, and from how many bytes, memory outside of the allocator is worth a word.
fn stands_out(other: u64, capacity: u64) -> bool {
    other > capacity / 10 && other > 1 << 30
}

/// Bytes outside of the allocator, if they are known and many.
fn outside(e: &Evidence) -> Option<u64> {
    let (other, capacity) = (e.ledger.other_bytes?, e.ledger.capacity_bytes?);
    stands_out(other, capacity).then_some(other)
}

fn sufficient(e: &Evidence) -> bool {
    e.counterfactuals.outside.fits == Some(true) && !e.refused && e.deficit != Some(0)
}

/// E1: other processes, which only a message names.
pub(super) fn other_process(e: &Evidence) -> Option<Finding> {
    let outside = outside(e)?;
    let message = e.message?;
    let others: u64 = message.processes.iter().map(|process| process.bytes).sum();
    if others == 0 {
        return None;
    }
    let explained = others.min(outside);
    let fits = sufficient(e) && 2 * explained >= outside;
    let mut finding = e.found(Cause::E1, explained, fits, "no other process uses the device, or always as much");
    for process in message.processes.iter().take(4) {
        finding = finding.says(format!("process {} has {}", process.pid, size(process.bytes)));
    }
    Some(finding.advises(explained, advice::PROCESS))
}

/// E2: libraries, contexts and mappings of this process.
pub(super) fn own_process(e: &Evidence) -> Option<Finding> {
    let whole = e.ledger.capacity_bytes?;
    let rise = e.rise.filter(|rise| rise.bytes() > whole / 50 && e.matters(rise.bytes()));
    if rise.is_none() && e.incident.moment == Moment::End {
        // Growth is asked for.
        return None;
    }
    let outside = outside(e).or(rise.map(|rise| rise.to_bytes))?;
    let others: u64 = e.message.map_or(0, |message| message.processes.iter().map(|process| process.bytes).sum());
    let rest = outside.saturating_sub(others).saturating_sub(CONTEXT_BYTES);
    let own = rest.max(rise.map_or(0, Rise::bytes));
    if own == 0 || e.incident.moment == Moment::OutOfMemory && rise.is_none() && 2 * own < outside {
        return None;
    }
    let fits = sufficient(e);
    let finding = e.found(Cause::E2, own, fits, "the device's tools show that another process has it (E1)");
    let finding = finding
        .says(format!(
            "{} of {} are neither the allocator's nor free; a context takes about {}",
            size(outside),
            size(whole),
            size(CONTEXT_BYTES)
        ))
        .says_if(rise.map(|rise| {
            format!(
                "it was {} when recording began, and has grown by {} in {}",
                size(rise.from_bytes),
                size(rise.bytes()),
                time(rise.took_us)
            )
        }))
        .says_if(rise.and_then(|rise| ends(e, rise)));
    // Both ends were measured.
    let finding = if rise.is_some() && fits { finding.with_confidence(1.0) } else { finding };
    Some(finding.advises(own, advice::OUTSIDE))
}

/// When there will be no memory left, if it goes on so.
fn ends(e: &Evidence, rise: Rise) -> Option<String> {
    let left = e.headroom().filter(|_| e.incident.moment == Moment::End)?;
    let us = (left as f64 / rise.bytes() as f64 * rise.took_us as f64) as u64;
    Some(format!("{} are left: at this rate for {}", size(left), time(us)))
}

/// E3: a library found nothing left, because so much is cached.
pub(super) fn nothing_left(e: &Evidence) -> Option<Finding> {
    let capacity = e.ledger.capacity_bytes?;
    // What failed was outside of the trace, and the snapshot was taken then.
    let end = e.device().trace.len();
    let cached = e.curves.reserved[end].saturating_sub(e.curves.active(end));
    let most = capacity.saturating_sub(e.curves.reserved[end]).saturating_sub(CONTEXT_BYTES);
    let samples = e.device().notes.as_ref().map_or(&[][..], |notes| &notes.device_memory);
    let (free, measured) = match samples.last() {
        Some(sample) => (sample.fact.free_bytes, true),
        None => (e.ledger.free_bytes.unwrap_or(most).min(most), false),
    };
    // A failure inside of the allocator is explained by other causes.
    if e.incident.moment == Moment::OutOfMemory || free > capacity / 50 || cached < capacity / 10 {
        return None;
    }
    let finding = e.found(Cause::E3, cached, true, "much is free on the device");
    let finding = if measured { finding.with_confidence(1.0) } else { finding };
    Some(
        finding
            .says(format!(
                "{}{} of {} are free on the device, while {} lie free in segments at the end",
                if measured { "" } else { "at most " },
                size(free),
                size(capacity),
                size(cached)
            ))
            .says("no request to the allocator failed: what failed was outside of it".into())
            .advises(
                cached,
                "empty_cache before the library needs memory, or leave room by a limit or garbage_collection_threshold",
            ),
    )
}
