//! E: memory that is not the allocator's.

use super::advice;
use super::streams::time;
use crate::why::counterfactuals::CONTEXT_BYTES;
use crate::why::evidence::{Evidence, Rise};
use crate::why::sharing::Sharing;
use crate::why::verdict::{Cause, Finding, Moment, size};

/// Most processes that are named.
const MOST_NAMED: usize = 4;

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

/// E1: other processes, which a message names, or the recorder where the driver told it.
pub(super) fn other_process(e: &Evidence) -> Option<Finding> {
    let (other, whole) = (e.ledger.other_bytes?, e.ledger.capacity_bytes?);
    let Sharing { others, own_bytes, measured } = &e.sharing;
    let bytes = e.sharing.others_bytes().min(other);
    let counts = if *measured { bytes > whole / 50 && e.matters(bytes) } else { bytes > 0 && stands_out(other, whole) };
    if !counts || e.incident.moment == Moment::End {
        return None;
    }
    let enough = if *measured { e.deficit.is_some_and(|deficit| bytes >= deficit) } else { 2 * bytes >= other };
    let fits = sufficient(e) && enough;
    let mut finding = e.found(Cause::E1, bytes, fits, "the other processes always have as much, and there was room");
    for process in others.iter().take(MOST_NAMED) {
        finding = finding.says(format!("process {} has {}", process.pid, size(process.bytes)));
    }
    if let Some(more) = others.len().checked_sub(MOST_NAMED).filter(|&more| more > 0) {
        finding = finding.says(format!("{more} more processes have less each"));
    }
    let own = own_bytes.filter(|_| *measured);
    let finding =
        finding.says_if(own.map(|own| format!("this process has {}; the driver told both at the time", size(own))));
    let finding = if *measured && fits { finding.with_confidence(1.0) } else { finding };
    Some(finding.advises(bytes, advice::PROCESS))
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
    // What others have is no part of it, whenever they took it.
    let own = match e.sharing.own_bytes {
        Some(bytes) => bytes.saturating_sub(e.reserved()).min(outside),
        None => outside.saturating_sub(e.sharing.others_bytes()),
    };
    let own = own.saturating_sub(CONTEXT_BYTES).max(rise.map_or(0, Rise::bytes).min(own));
    let little = if e.sharing.measured { own <= whole / 50 } else { 2 * own < outside };
    if own == 0 || e.incident.moment == Moment::OutOfMemory && rise.is_none() && little {
        return None;
    }
    let fits = sufficient(e) && e.deficit.is_none_or(|deficit| own >= deficit);
    let finding = e.found(Cause::E2, own, fits, "nvidia-smi shows that another process has it (E1)");
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
    Some(whose(e, finding).advises(own, advice::OUTSIDE))
}

/// Says of memory outside of the allocator whose it is, as far as that is known.
fn whose(e: &Evidence, finding: Finding) -> Finding {
    let Sharing { others, own_bytes, measured } = &e.sharing;
    match own_bytes {
        Some(bytes) if *measured => {
            let confidence = if finding.sufficient { 1.0 } else { finding.confidence };
            let line = format!(
                "this process has {}, the {} others {}: the driver told it at the time",
                size(*bytes),
                others.len(),
                size(e.sharing.others_bytes())
            );
            finding.says(line).with_confidence(confidence)
        }
        Some(_) => finding,
        None if !others.is_empty() => finding,
        None => {
            // The bytes are measured; whose they are is not.
            let confidence = finding.confidence / 2.0;
            let line = "whether this process has it (E2) or another one (E1) is not recorded; nvidia-smi tells";
            finding.says(line.into()).with_confidence(confidence)
        }
    }
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
