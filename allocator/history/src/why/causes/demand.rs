//! A: the program asks for more than there is.

use std::collections::BTreeSet;

use crate::read::EventAction;

use crate::state::sites::{self, makes_state};
use crate::why::evidence::Evidence;
use crate::why::verdict::{Cause, Finding, Moment, size};

/// A1: even with no fragmentation, rounding or pending memory there would not be enough.
pub(super) fn demand(e: &Evidence) -> Option<Finding> {
    let live = e.ledger.live_bytes;
    let top = sites::top(e.loaded, &e.memory, 3, |held| !held.pending);
    let refuted = "live memory that is only a few iterations old was smaller before (a leak)";
    let Some(request) = e.incident.request else {
        let gained = e.trend.as_ref().map_or(0, |trend| trend.gained());
        let steady = live.saturating_sub(gained);
        let finding = e.found(Cause::A1, steady, false, refuted);
        let finding = finding.says(format!("{} of {} reserved are live", size(live), size(e.reserved())));
        return (steady > 0).then(|| advise(finding, &top));
    };
    let room = e.reserved().saturating_add(e.usable);
    let wanted = live.saturating_add(request.bytes);
    if e.incident.moment != Moment::OutOfMemory || wanted <= room || e.counterfactuals.earlier.fits == Some(true) {
        return None;
    }
    let missing = wanted - room;
    let finding = e.found(Cause::A1, missing.max(e.deficit.unwrap_or(0)), true, refuted).says(format!(
        "{} live and the request of {} are {} more than the {} that there are for both",
        size(live),
        size(request.bytes),
        size(missing),
        size(room)
    ));
    Some(advise(finding, &top))
}

fn advise(finding: Finding, top: &[crate::why::verdict::SiteBytes]) -> Finding {
    top.iter().fold(finding, |finding, site| {
        finding.advises(
            site.bytes,
            format!("{} ({} blocks): recompute, shard or offload it, or a smaller batch", site.site, site.blocks),
        )
    })
}

/// How much larger than all before a request is that stands out.
const TIMES: u64 = 4;
/// Below this no request is large.
const LARGE_BYTES: u64 = 16 << 20;

/// A2: the request is far larger than any before.
pub(super) fn oversized(e: &Evidence) -> Option<Finding> {
    let request = e.incident.request?;
    let trace = &e.device().trace;
    let before = (0..e.incident.row).filter(|&row| trace.action(row) == EventAction::Alloc);
    let (mut count, mut most) = (0_u64, 0);
    for row in before {
        (count, most) = (count + 1, most.max(trace.bytes()[row]));
    }
    most = most.max(e.memory.blocks.values().map(|held| held.requested).max().unwrap_or(0));
    let more_than_all = e.ledger.capacity_bytes.is_some_and(|capacity| request.bytes > capacity);
    if !more_than_all
        && (count < 8 || most == 0 || request.bytes < LARGE_BYTES || request.bytes < most.saturating_mul(TIMES))
    {
        return None;
    }
    let typical = crate::state::space::Request::new(&e.rules, most.max(1), request.domain.stream, request.domain.pool);
    let fits = e.space.fits(&e.rules, &typical, e.usable) || more_than_all;
    let (floats, halves) = (request.bytes / 4, request.bytes / 2);
    let finding =
        e.found(Cause::A2, request.bytes - most.min(request.bytes), fits, "requests of this size are usual here");
    Some(
        finding
            .says(format!(
                "{} are asked for; the largest of {count} requests before was {}",
                size(request.bytes),
                size(most)
            ))
            .says(format!(
                "that is {floats} elements of 4 bytes, or {halves} of 2: a mask, logits, a one-hot or a gather"
            ))
            .advises(
                request.bytes - most.min(request.bytes),
                "work in chunks there, each as large as the other requests",
            ),
    )
}

const STATE_ADVICE: &str = "plan for it: it stays. A smaller state (foreach=False, 8-bit, sharded), or no step before \
                            there is memory for it";

/// A3: state that is made at its first use, by an optimizer or a library.
pub(super) fn first_state(e: &Evidence) -> Option<Finding> {
    let request = e.incident.request?;
    let trace = &e.device().trace;
    let stack = trace.stacks().get(e.incident.row).copied().unwrap_or_default();
    let asked = sites::site(e.loaded, (stack, request.bytes), request.bytes, 1);
    if !makes_state(&asked) {
        return None;
    }
    let mut state = sites::by_stack(&e.memory, |held| !held.pending);
    state.retain(|&(key, bytes, blocks)| makes_state(&sites::site(e.loaded, key, bytes, blocks)));
    let keys: BTreeSet<_> = state.iter().map(|&((stack, _), ..)| stack).collect();
    let bytes: u64 = state.iter().map(|&(_, bytes, _)| bytes).sum();
    let blocks: u64 = state.iter().map(|&(.., blocks)| blocks).sum();
    let first = e.memory.blocks.values().filter(|held| keys.contains(&held.stack));
    let first = first.map(|held| held.born.unwrap_or(0)).min().unwrap_or(0) as usize;
    // Of these stacks nothing was ever given back: what comes again is no first use.
    let made = (0..e.incident.row.min(trace.len()))
        .filter(|&row| trace.action(row) == EventAction::Alloc && keys.contains(&trace.stacks()[row]));
    let again = (made.count() as u64).saturating_sub(blocks) > blocks / 4;
    let grown = e.curves.live[e.incident.row].saturating_sub(e.curves.live[first.min(e.incident.row)]);
    // While it is being made, it is most of what comes.
    if again || blocks < 2 || bytes < e.deficit? || bytes < grown / 2 {
        return None;
    }
    let site = sites::site(e.loaded, state[0].0, state[0].1, state[0].2);
    let finding = e.found(Cause::A3, bytes, true, "such memory was there in earlier iterations too");
    Some(
        finding
            .says(format!(
                "{} in {blocks} blocks were made by {}, none of it freed, none there before",
                size(bytes),
                site.site
            ))
            .says(format!("the request that failed comes from there too: {}", asked.site))
            .advises(bytes, STATE_ADVICE),
    )
}
