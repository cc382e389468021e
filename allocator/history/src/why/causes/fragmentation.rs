//! B: enough is free, but not in one piece.

use std::collections::BTreeMap;

use crate::state::rules::{LARGE_SEGMENT_BYTES, MID_BYTES, PAGE_BYTES};
use crate::state::sites;
use crate::state::space::Run;
use crate::why::evidence::Evidence;
use crate::why::verdict::{Cause, Finding, size};

/// What lies in the way: the bytes of free memory around the smallest live blocks, by the lines that hold them.
fn pinners(e: &Evidence) -> Vec<(String, u64, u64)> {
    let mut pinned: BTreeMap<sites::Key, (u64, u64)> = BTreeMap::new();
    for (&address, segment) in &e.memory.segments {
        let blocks = e.memory.blocks.range(address..address + segment.bytes);
        let held: u64 = blocks.clone().map(|(_, held)| held.bytes).sum();
        let Some((_, smallest)) = blocks.filter(|(_, held)| !held.pending).min_by_key(|(_, held)| held.bytes) else {
            continue;
        };
        let entry = pinned.entry(sites::key(smallest)).or_default();
        (entry.0, entry.1) = (entry.0 + segment.bytes.saturating_sub(held), entry.1 + 1);
    }
    let mut lines: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for (key, (bytes, segments)) in pinned {
        let entry = lines.entry(sites::site(e.loaded, key, 0, 0).site).or_default();
        (entry.0, entry.1) = (entry.0 + bytes, entry.1 + segments);
    }
    let mut list: Vec<_> = lines.into_iter().map(|(site, (bytes, segments))| (site, bytes, segments)).collect();
    list.retain(|&(_, bytes, _)| bytes > 0);
    list.sort_by_key(|&(_, bytes, _)| std::cmp::Reverse(bytes));
    list.truncate(3);
    list
}

fn describe(e: &Evidence, finding: Finding, free: u64, action: &str) -> Finding {
    // Where no request failed there is none that they could serve.
    let which = if e.deficit.is_some() { " that it could be served from" } else { "" };
    let mut finding = finding.says(format!(
        "{} are free in segments{which}; the largest piece has {}",
        size(free),
        size(e.ledger.largest_run_bytes)
    ));
    for (site, bytes, segments) in pinners(e) {
        finding = finding
            .says(format!("{site}: its blocks keep {} from being returned, in {segments} segments", size(bytes)));
    }
    if e.ledger.uncertain_bytes > 0 {
        let uncertain = size(e.ledger.uncertain_bytes);
        finding = finding.says(format!("up to {uncertain} of it may be tails of blocks that were not split"));
    }
    finding.advises(free, action)
}

/// B1: mapping page by page would cure it.
pub(super) fn pieces(e: &Evidence) -> Option<Finding> {
    let cf = &e.counterfactuals;
    let free = cf.contiguous.gained_bytes;
    let refuted = "the free memory lies in pages that are partly live (B2), or is pending (C1)";
    if e.deficit.is_none() {
        let gained = e.space.page_bytes(e.rules.page_bytes).min(free);
        let finding = e.found(Cause::B1, free, false, refuted);
        return (e.matters(free) && gained >= free / 2)
            .then(|| describe(e, finding, free, "expandable_segments:True gives whole free pages to other sizes"));
    }
    let request = e.incident.request?;
    let split = e.ledger.largest_run_bytes < request.block;
    if !split || cf.contiguous.fits != Some(true) || cf.pages.fits != Some(true) || e.rules.expandable {
        return None;
    }
    let finding = e.found(Cause::B1, free, true, refuted);
    let finding =
        describe(e, finding, free, "expandable_segments:True; or allocate what lives long first, and fewer sizes");
    Some(
        finding.says(format!(
            "{} of whole pages are free, which mapping page by page could use",
            size(cf.pages.gained_bytes)
        )),
    )
}

/// B2: small blocks in most of the pages.
pub(super) fn inside_pages(e: &Evidence) -> Option<Finding> {
    let cf = &e.counterfactuals;
    let request = e.incident.request?;
    let split = e.ledger.largest_run_bytes < request.block;
    if !split || cf.contiguous.fits != Some(true) || cf.pages.fits == Some(true) {
        return None;
    }
    let free = cf.contiguous.gained_bytes;
    let finding = e.found(Cause::B2, free, true, "whole pages are free (B1)");
    let finding = describe(e, finding, free, "give small tensors that live long a pool of their own, or pack them");
    Some(finding.says(format!("only {} of it are whole pages", size(cf.pages.gained_bytes))))
}

/// B3: a piece is large enough, and a rule keeps it for other requests.
pub(super) fn kept_by_a_setting(e: &Evidence) -> Option<Finding> {
    let limit = e.rules.max_split_bytes?;
    let request = e.incident.request?;
    let run = e.ledger.largest_run_bytes;
    if run < request.block || e.rules.may_serve(run, request.block) {
        return None;
    }
    let kept =
        e.space.sum(|run| e.own(run) && run.bytes >= request.block && !e.rules.may_serve(run.bytes, request.block));
    let finding = e.found(Cause::B3, kept, true, "no free piece is large enough, whatever the setting");
    let pages = if e.rules.expandable { "; with expandable segments the rule only does harm" } else { "" };
    Some(
        finding
            .says(format!(
                "a piece of {} is free, and max_split_size of {} keeps it from a request of {}",
                size(run),
                size(limit),
                size(request.block)
            ))
            .says(format!("{} are kept so, while {} are live{pages}", size(kept), size(e.ledger.live_bytes)))
            .advises(kept, "leave max_split_size_mb out, or set it above what is asked for"),
    )
}

/// B3 without a setting: blocks of 1 to 10 MiB come from segments of 20 MiB. The device may have no room for one more, or
/// what is left at their ends is too small for the next block.
pub(super) fn shared_segments(e: &Evidence) -> Option<Finding> {
    let request = e.incident.request?;
    let shares =
        request.driver == LARGE_SEGMENT_BYTES && request.block < MID_BYTES && e.rules.max_split_bytes.is_none();
    if !shares || e.deficit == Some(0) || e.ledger.largest_run_bytes >= request.block {
        return None;
    }
    let is_tail = |run: &&Run| {
        let segment = e.memory.segment_at(run.start).filter(|(_, segment)| segment.bytes == LARGE_SEGMENT_BYTES);
        let at_the_end = segment.is_some_and(|(start, segment)| start + segment.bytes == run.start + run.bytes);
        at_the_end && e.own(run) && !run.segment.expandable
    };
    let tails: Vec<u64> = e.space.runs.iter().filter(is_tail).map(|run| run.page_bytes(PAGE_BYTES)).collect();
    let (count, kept) = (tails.iter().filter(|&&bytes| bytes > 0).count(), tails.iter().sum::<u64>());
    let wanted = request.block.next_multiple_of(PAGE_BYTES);
    let has_room = e.usable >= wanted;
    // Where most of what is free lies between blocks, pieces are the cause (B1).
    let mostly_tails = 2 * kept >= e.space.sum(|run| e.own(run));
    if !has_room && (e.usable.saturating_add(kept) < wanted || !mostly_tails) {
        return None;
    }
    let bytes = if has_room { e.usable } else { kept };
    let finding = e.found(Cause::B3, bytes, true, "a piece of that size is free, or blocks have segments of their own");
    Some(
        finding
            .says(format!(
                "a block of {} comes from a segment of {}, and {} are free on the device",
                size(request.block),
                size(LARGE_SEGMENT_BYTES),
                size(e.usable)
            ))
            .says(format!(
                "{count} such segments have tails of {} in whole pages that no block of that size fits",
                size(kept)
            ))
            .advises(bytes, "expandable_segments:True maps what a block takes; or ask for 10 MiB and more at a time"),
    )
}
