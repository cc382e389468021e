//! G: memory that is in use, or mapped, for nothing.

use std::collections::BTreeMap;

use crate::state::space::Run;
use crate::why::evidence::Evidence;
use crate::why::verdict::{Cause, Finding, size};

/// G1: rounding.
pub(super) fn rounding(e: &Evidence) -> Option<Finding> {
    let waste = e.ledger.rounding_bytes;
    let blocks = e.ledger.live_bytes + waste;
    let much = waste.saturating_mul(100) > blocks.saturating_mul(8);
    let fits = e.counterfactuals.rounding.fits == Some(true) && e.deficit != Some(0);
    if waste == 0 || !e.matters(waste) || !(much || fits && waste > 1 << 20) {
        return None;
    }
    let mut classes: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for held in e.memory.blocks.values().filter(|held| !held.pending) {
        let class = classes.entry(held.bytes).or_default();
        (class.0, class.1) = (class.0 + held.bytes - held.requested, class.1 + 1);
    }
    let worst = classes.into_iter().max_by_key(|&(_, (waste, _))| waste);
    let percent = 100.0 * waste as f64 / blocks.max(1) as f64;
    let finding = e.found(Cause::G1, waste, fits && much, "blocks are about as large as what was asked for");
    Some(
        finding
            .says(format!("{} ({percent:.1} %) of the blocks in use were not asked for", size(waste)))
            .says_if(worst.map(|(bytes, (waste, count))| {
                format!("{count} blocks of {} waste {} of it", size(bytes), size(waste))
            }))
            .advises(
                waste,
                "ask for sizes just below a step of the rounding, join small tensors, or tune roundup_power2_divisions",
            ),
    )
}

/// G2: pages that are mapped and free, in expandable segments of others.
pub(super) fn ragged(e: &Evidence) -> Option<Finding> {
    let request = e.incident.request?;
    let elsewhere = |run: &Run| run.segment.expandable && !e.own(run) && run.segment.pool == request.domain.pool;
    let free = e.space.sum(elsewhere);
    let segments = e.memory.segments.values().filter(|segment| segment.expandable).count();
    let fits = free >= e.deficit? && e.deficit != Some(0);
    if free == 0 || !fits || segments < 2 {
        return None;
    }
    let pages = e.space.runs.iter().filter(|run| elsewhere(run)).map(|run| run.page_bytes(e.rules.page_bytes)).sum();
    let finding = e.found(Cause::G2, free, true, "the free pages are in the segment that was asked for");
    Some(
        finding
            .says(format!(
                "{segments} runs of expandable segments; {} mapped and free in those of other streams or sizes",
                size(free)
            ))
            .says(format!("{} of it in whole pages", size(pages)))
            .advises(free, "allocate on one stream, or empty_cache where the phase changes"),
    )
}
