//! D: free memory that belongs to somebody else inside the allocator.

use std::collections::BTreeMap;

use crate::read::EventAction;

use super::advice;
use crate::state::pending::stream_name;
use crate::why::evidence::Evidence;
use crate::why::verdict::{Cause, Finding, Moment, size};

/// D1: another stream's segments have a run that is large enough.
pub(super) fn other_stream(e: &Evidence) -> Option<Finding> {
    let request = e.incident.request?;
    let cf = &e.counterfactuals.other_streams;
    if cf.fits != Some(true) || e.deficit == Some(0) {
        return None;
    }
    let mut streams: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for run in &e.space.runs {
        let (segment, domain) = (run.segment, request.domain);
        if segment.pool == domain.pool && segment.kind == domain.kind && segment.stream != domain.stream {
            let entry = streams.entry(segment.stream).or_default();
            (entry.0, entry.1) = (entry.0 + run.bytes, entry.1.max(run.bytes));
        }
    }
    let mut list: Vec<_> = streams.into_iter().collect();
    list.sort_by_key(|&(_, (_, largest))| std::cmp::Reverse(largest));
    let mut finding =
        e.found(Cause::D1, cf.gained_bytes, true, "no other stream has a free piece that is large enough");
    for &(stream, (bytes, largest)) in list.iter().take(3) {
        let name = stream_name(e.device(), stream);
        finding = finding.says(format!("{name} has {} free, the largest piece {}", size(bytes), size(largest)));
    }
    let asked = stream_name(e.device(), request.domain.stream);
    let finding = finding.says(format!("the request is {asked}'s, which may not have it"));
    let open =
        |stream| e.device().notes.iter().flat_map(|notes| &notes.streams).any(|one| one.stream == stream && one.open);
    let open = list.iter().find(|&&(stream, (_, largest))| largest >= request.block && open(stream));
    Some(match (open, lending(e)) {
        (Some(&(stream, _)), Some(_)) => finding
            .says(format!(
                "{} is open: its work may wait for other ranks, so no wait is put behind it",
                stream_name(e.device(), stream)
            ))
            .with_confidence(1.0)
            .advises(
                cf.gained_bytes,
                "let the request come after that stream by a fence of the program, or free earlier",
            ),
        (None, Some(false)) => finding
            .says(
                "lending is off (lending:False): free memory stays with its stream until its last uses are over".into(),
            )
            .with_confidence(1.0)
            .advises(cf.gained_bytes, "set lending:True, which is the default"),
        (None, Some(true)) => finding
            .says("free memory is lent between streams: its last uses were not over, or a graph was captured".into())
            .advises(cf.gained_bytes, "let the stream that has it come before the request, by a fence of the program"),
        (_, None) => finding.advises(
            cf.gained_bytes,
            "allocate on one stream and use the memory on others; or empty_cache where the phase changes",
        ),
    })
}

/// Whether this project's allocator lends free memory of a stream to others; `None` if another one wrote the snapshot.
fn lending(e: &Evidence) -> Option<bool> {
    let settings = &e.loaded.recorder.as_ref()?.settings;
    let text = |id| e.loaded.symbols.text(id);
    let value = settings.iter().find(|(name, _)| text(*name) == "lending").map(|&(_, value)| text(value))?;
    Some(value == "True")
}

/// D2: private pools, such as those of graphs.
pub(super) fn private(e: &Evidence) -> Option<Finding> {
    let own = e.incident.request.map_or((0, 0), |request| request.domain.pool);
    let mut pools: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for segment in e.memory.segments.values().filter(|segment| ![(0, 0), own].contains(&segment.pool)) {
        *pools.entry(segment.pool).or_default() += segment.bytes;
    }
    let reserved: u64 = pools.values().sum();
    let free = e.space.sum(|run| ![(0, 0), own].contains(&run.segment.pool));
    if reserved == 0 || !e.matters(reserved) || e.deficit == Some(0) {
        return None;
    }
    let much = reserved / 3 >= e.reserved() / 10;
    let fits =
        e.counterfactuals.private.fits == Some(true) && (e.deficit.is_some_and(|deficit| free >= deficit) || much);
    let finding = e.found(Cause::D2, reserved, fits, "private pools hold little");
    let trace = &e.device().trace;
    let contexts = (0..e.incident.row.min(trace.len())).filter(|&row| trace.pool(row) != (0, 0));
    let context = contexts.filter_map(|row| trace.compile_context(row)).next();
    Some(
        finding
            .says(format!("{} private pools hold {}, {} of it free", pools.len(), size(reserved), size(free)))
            .says_if(context.map(|text| format!("made in {}", e.loaded.symbols.text(text))))
            .advises(reserved, advice::POOL),
    )
}

/// D3: whole segments are free, and were not returned before the failure.
pub(super) fn not_returned(e: &Evidence) -> Option<Finding> {
    let cf = &e.counterfactuals.returned;
    // This project's allocator returns what is over before it fails; what is left belongs to other streams (D1).
    if e.incident.moment != Moment::OutOfMemory || cf.fits != Some(true) || e.rules.own {
        return None;
    }
    let trace = &e.device().trace;
    let before = e.incident.row.checked_sub(1)?;
    if matches!(trace.action(before), EventAction::SegmentFree | EventAction::SegmentUnmap) {
        return None;
    }
    let segments = e.space.runs.iter().filter(|run| run.whole && run.segment.pool == (0, 0)).count();
    let finding = e.found(Cause::D3, cf.gained_bytes, true, "segments were returned right before the failure");
    Some(
        finding
            .says(format!(
                "{segments} segments with {} were wholly free, and none was returned before the failure",
                size(cf.gained_bytes)
            ))
            .says("segments are not returned while a graph is captured, nor for a pool that does not allow it".into())
            .advises(
                cf.gained_bytes,
                "empty_cache before the capture; for a pool of its own, let it be used when memory is short",
            ),
    )
}
