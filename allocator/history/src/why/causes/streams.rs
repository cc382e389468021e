//! C: memory that was freed, and that work of other streams holds.

use std::collections::BTreeMap;

use crate::read::EventAction;
use crate::{FenceState, PendingWait, StackId};

use super::advice;
use crate::state::failures;
use crate::state::pending::stream_name;
use crate::state::sites;
use crate::state::space::Space;
use crate::why::evidence::Evidence;
use crate::why::pending;
use crate::why::verdict::{Cause, Finding, Moment, size};

const AGAIN: &str = "try once more when it fails; a later version searches again by itself";

/// Ages of the pending blocks in microseconds, ascending.
fn ages(e: &Evidence) -> Vec<u64> {
    let times = e.device().trace.times_us();
    let Some(&now) = times.get(e.incident.row.min(times.len().saturating_sub(1))) else { return Vec::new() };
    let of = |held: &crate::state::memory::Held| Some(now.saturating_sub(times[held.freed? as usize]));
    let mut ages: Vec<u64> = e.memory.blocks.values().filter(|held| held.pending).filter_map(of).collect();
    ages.sort_unstable();
    ages
}

/// C1: what is pending is as much as was missing.
pub(super) fn held(e: &Evidence) -> Option<Finding> {
    let pending = e.counterfactuals.pending.gained_bytes;
    if pending == 0 || !e.matters(pending) || e.deficit == Some(0) {
        return None;
    }
    let fits = e.counterfactuals.pending.fits == Some(true);
    let finding = e.found(Cause::C1, pending, fits, "nothing, or little, is pending at that moment");
    let blocks = e.memory.blocks.values().filter(|held| held.pending).count();
    let mut finding = finding.says(format!(
        "{} in {blocks} blocks are freed by the program, and held by work on other streams",
        size(pending)
    ));
    for stream in pending::by_stream(e).iter().take(3) {
        let which = if stream.waited_for { "waits for" } else { "belongs to" };
        let fence = stream.fence.as_ref().map_or(String::new(), |fence| format!(", {fence}"));
        finding = finding.says(format!("{} of it {which} {}{fence}", size(stream.bytes), stream.stream));
    }
    if let [youngest, .., oldest] = ages(e)[..] {
        finding = finding.says(format!("it was freed {} to {} before", time(youngest), time(oldest)));
    }
    if let Some(site) = sites::top(e.loaded, &e.memory, 1, |held| held.pending && held.stack != StackId::EMPTY).first()
    {
        finding = finding.says(format!("most of it was allocated at {}", site.site));
    }
    let waits = e.incidents.waits.len();
    if e.incident.moment == Moment::Stall {
        let waited: u64 = e.incidents.waits.iter().map(|wait| wait.waited_us).sum();
        finding = finding
            .says(format!("the host waited for it {waits} times, {} in all; then requests went on", time(waited)));
    }
    let noted = e.device().notes.as_ref().is_some_and(|notes| !notes.stream_uses.is_empty());
    if fits && (noted || pending::is_exact(e)) {
        finding = finding.with_confidence(1.0);
    }
    Some(finding.advises(pending, advice::HELD))
}

/// C2: pending blocks complete in bursts: their own work was long over, and they stood behind one that was not.
pub(super) fn behind_one(e: &Evidence) -> Option<Finding> {
    let pending = e.counterfactuals.pending.gained_bytes;
    if pending == 0 || e.deficit == Some(0) || e.counterfactuals.pending.fits != Some(true) {
        return None;
    }
    let finding = e.found(Cause::C2, pending, true, "the blocks complete one by one, as their work ends (C1)");
    let finding = match (held_up_by(e), burst_after(e)) {
        (Some(holder), _) => finding.with_confidence(1.0).says(format!(
            "{} are pending; all of it comes after work of open {} that is not complete, though other streams used it",
            size(pending),
            stream_name(e.device(), holder)
        )),
        (None, Some(burst)) => finding.says(format!(
            "{} are pending; {} blocks of it completed within {}, though they were freed over {}",
            size(pending),
            burst.blocks,
            time(burst.took_us),
            time(burst.freed_over_us)
        )),
        (None, None) => return None,
    };
    Some(finding.advises(pending, "bound what runs ahead of the one long operation (collectives in flight)"))
}

/// The one open stream that holds up all that is waited for, if what is waited for is work of others.
fn held_up_by(e: &Evidence) -> Option<u64> {
    if !pending::is_exact(e) {
        return None;
    }
    let open = || {
        let waits = pending::blocks(e).flat_map(|(address, _)| e.waits.exact(*address));
        waits.filter(|wait| wait.fence != Some(FenceState::Complete))
    };
    let holder = open().next()?.held_by?;
    let behind = open().any(|wait| wait.stream != holder);
    (open().all(|wait| wait.held_by == Some(holder)) && behind).then_some(holder)
}

struct Burst {
    blocks: u64,
    took_us: u64,
    freed_over_us: u64,
}

/// Whether what is pending completes all at once after that moment, without the host having waited for it.
fn burst_after(e: &Evidence) -> Option<Burst> {
    let trace = &e.device().trace;
    if !trace.is_timed() || e.incident.moment == Moment::Stall {
        return None;
    }
    let pending = |address: u64| e.memory.blocks.get(&address).filter(|held| held.pending);
    let (mut ends, mut frees) = (Vec::new(), Vec::new());
    for row in e.incident.row..trace.len() {
        match trace.action(row) {
            EventAction::SegmentFree | EventAction::SegmentUnmap => break,
            EventAction::FreeCompleted => {
                let Some(freed) = pending(trace.addresses()[row]).and_then(|held| held.freed) else { continue };
                ends.push(trace.times_us()[row]);
                frees.push(trace.times_us()[freed as usize]);
            }
            _ => {}
        }
    }
    let span = |times: &[u64]| times.iter().max().copied().unwrap_or(0) - times.iter().min().copied().unwrap_or(0);
    let (took_us, freed_over_us) = (span(&ends), span(&frees));
    let all = ends.len() >= 4 && took_us.saturating_mul(10) <= freed_over_us;
    all.then_some(Burst { blocks: ends.len() as u64, took_us, freed_over_us })
}

/// C3: what was pending was over when the request failed; or right after the failure the same request succeeded, with
/// memory that had been pending.
pub(super) fn spurious(e: &Evidence) -> Option<Finding> {
    use EventAction::*;
    let request = e.incident.request?;
    if let Some(over) = over(e) {
        let refuted = "the fences that were waited for were not complete then";
        let finding = e.found(Cause::C3, over, true, refuted).with_confidence(1.0);
        let told =
            format!("{} were pending, and all that they waited for was complete when the request failed", size(over));
        return Some(finding.says(told).advises(request.bytes, AGAIN));
    }
    // Where it is known how far the fences were, nothing is concluded from what came later.
    let known = pending::is_exact(e) && e.ledger.pending_bytes > 0;
    if known || e.incident.moment != Moment::OutOfMemory || e.counterfactuals.pending.fits != Some(true) {
        return None;
    }
    let trace = &e.device().trace;
    let again = failures::again(trace, e.incident.row)?;
    let between = || e.incident.row + 1..again;
    let changed = |row: usize| {
        matches!(trace.action(row), FreeRequested | Free | SegmentAlloc | SegmentMap | SegmentFree | SegmentUnmap)
    };
    let completed = between().filter(|&row| trace.action(row) == FreeCompleted);
    let completed: u64 = completed.map(|row| trace.bytes()[row]).sum();
    if between().any(changed) || completed == 0 {
        return None;
    }
    let finding =
        e.found(Cause::C3, completed.max(request.bytes), true, "the program freed memory before it tried again");
    Some(
        finding
            .says(format!(
                "{} came free right after the failure, and {} were then allocated without a new segment",
                size(completed),
                size(request.bytes)
            ))
            .advises(request.bytes, AGAIN),
    )
}

/// Bytes of pending blocks all of whose fences were complete at the failure, if the request would have fitted with them.
fn over(e: &Evidence) -> Option<u64> {
    let complete = |wait: &PendingWait| wait.fence == Some(FenceState::Complete);
    let is_over = |address: u64| {
        let waits = e.waits.exact(address);
        !waits.is_empty() && waits.iter().all(complete)
    };
    let over: BTreeMap<u64, u64> = pending::blocks(e)
        .filter(|(address, _)| is_over(**address))
        .map(|(&address, held)| (address, held.bytes))
        .collect();
    let request = e.incident.request.filter(|_| !over.is_empty() && e.incident.moment == Moment::OutOfMemory)?;
    let space = Space::without(&e.memory, |address| over.contains_key(&address));
    let fits = |space: &Space| space.fits(&e.rules, &request, e.usable);
    (fits(&space) && !fits(&e.space)).then(|| over.values().sum())
}

/// Microseconds for people.
pub(in crate::why) fn time(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        1_000_000..600_000_000 => format!("{:.2} s", us as f64 / 1e6),
        _ => format!("{} min", us / 60_000_000),
    }
}
