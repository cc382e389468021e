//! A part of a snapshot as a snapshot of its own.
//!
//! A viewer goes back from the segments of a file, so these have to be those of the part's end. Then memory is right at
//! its start too, and everywhere in between.

use std::{collections::BTreeMap, ops::Range};

use crate::{
    Block, BlockState, DeviceNotes, Noted, Segment, StackId,
    read::{Loaded, LoadedDevice},
    state::{
        curves::Frees,
        memory::{Held, Mapped, Memory},
        rules::Rules,
    },
};

use super::{
    At,
    moment::{self, When, WhenError},
};

/// Which part of a trace, and the times that belong to it.
struct Part {
    rows: Range<usize>,
    /// Times of notes and marks: not before, 0 for no bound.
    from_us: u64,
    /// Before this time, the largest for no bound.
    to_us: u64,
}

/// The events of a device from one moment to another, with memory as it was then. Events of other devices are those of
/// the same time; where there are no times they stay as they are.
///
/// # Errors
/// If the trace has no such moments. What begins after its end has no events.
pub fn slice(loaded: &Loaded, device: usize, from: &When, to: &When) -> Result<Loaded, WhenError> {
    let start = moment::row(loaded, device, from)?;
    let end = moment::row(loaded, device, to)?.max(start);
    let trace = &loaded.devices[device].trace;
    let time = |row: usize| trace.times_us().get(row).copied().filter(|_| trace.is_timed());
    let from_us = if start == 0 { 0 } else { time(start).or(time(trace.len().saturating_sub(1))).unwrap_or(0) };
    let to_us = time(end).unwrap_or(u64::MAX);
    let rules = Rules::of(loaded);
    let of = |index: usize, source: &LoadedDevice, chosen: bool| {
        let rows = if chosen {
            start..end
        } else {
            let row = |time_us| moment::row_at(source, index, time_us).ok();
            let start = row(from_us).unwrap_or(0);
            start..row(to_us).unwrap_or(source.trace.len()).max(start)
        };
        part(source, &rules, &Part { rows, from_us, to_us })
    };
    let annotations = loaded.annotations.iter().filter(|mark| (from_us..to_us).contains(&mark.time_us));
    Ok(Loaded {
        devices: (0..).zip(&loaded.devices).map(|(index, source)| of(index, source, index == device)).collect(),
        host: (0..).zip(&loaded.host).map(|(index, source)| of(index, source, false)).collect(),
        annotations: annotations.copied().collect(),
        compression: None,
        ..loaded.clone()
    })
}

fn part(source: &LoadedDevice, rules: &Rules, part: &Part) -> LoadedDevice {
    let (trace, frees) = (&source.trace, Frees::of(source));
    let segments = if part.rows.end == trace.len() {
        source.segments.clone()
    } else {
        segments(&Memory::before(source, rules, frees, part.rows.end), source)
    };
    let notes = source.notes.as_ref().map(|notes| {
        let uses_are_noted = part.rows.start > 0 && !notes.stream_uses.is_empty();
        let before = uses_are_noted.then(|| Memory::before(source, rules, frees, part.rows.start));
        notes_of(notes, part, part.rows.end == trace.len(), before.as_ref())
    });
    LoadedDevice { segments, trace: trace.part(part.rows.clone()), notes }
}

/// The notes of a part. Uses of blocks that are there at its start are kept: a free in the part may wait for them.
fn notes_of(notes: &DeviceNotes, part: &Part, is_to_the_end: bool, start: Option<&Memory>) -> DeviceNotes {
    fn within<T: Clone>(notes: &[Noted<T>], part: &Part, also: impl Fn(&T) -> bool) -> Vec<Noted<T>> {
        let wanted =
            notes.iter().filter(|note| note.time_us < part.to_us && (note.time_us >= part.from_us || also(&note.fact)));
        wanted.cloned().collect()
    }
    let is_there = |address: u64| start.is_some_and(|memory| memory.blocks.contains_key(&address));
    DeviceNotes {
        history_dropped: notes.history_dropped.saturating_add(part.rows.start as u64),
        // They are known of the end alone.
        pending_waits: if is_to_the_end { notes.pending_waits.clone() } else { Vec::new() },
        stream_uses: within(&notes.stream_uses, part, |used| is_there(used.address)),
        pending_frees: within(&notes.pending_frees, part, |freed| is_there(freed.address)),
        rungs: within(&notes.rungs, part, |_| false),
        stalls: within(&notes.stalls, part, |_| false),
        waits_inserted: within(&notes.waits_inserted, part, |_| false),
        awaited: within(&notes.awaited, part, |_| false),
        device_memory: within(&notes.device_memory, part, |_| false),
        processes: within(&notes.processes, part, |_| false),
        ..notes.clone()
    }
}

impl At<'_> {
    /// The segments at the moment, with their blocks, by address.
    #[must_use]
    pub fn segments(&self) -> Vec<Segment> {
        segments(&self.memory, self.source())
    }
}

/// Segments as files have them. Where a segment was made is known of those that are still there at the end.
pub(super) fn segments(memory: &Memory, device: &LoadedDevice) -> Vec<Segment> {
    let made: BTreeMap<u64, StackId> = device.segments.iter().map(|segment| (segment.address, segment.stack)).collect();
    let stack = |address: &u64| made.get(address).copied().unwrap_or_default();
    memory.segments.iter().map(|(address, mapped)| segment(memory, *address, mapped, stack(address))).collect()
}

fn segment(memory: &Memory, address: u64, mapped: &Mapped, stack: StackId) -> Segment {
    let (mut at, end) = (address, address + mapped.bytes);
    let mut blocks = Vec::new();
    let (mut allocated_bytes, mut active_bytes, mut requested_bytes) = (0, 0, 0);
    for (&start, held) in memory.blocks.range(address..end) {
        blocks.extend(gap(at, start));
        blocks.push(block(start, held));
        allocated_bytes += if held.pending { 0 } else { held.bytes };
        active_bytes += held.bytes;
        requested_bytes += held.requested;
        at = start + held.bytes;
    }
    blocks.extend(gap(at, end));
    Segment {
        address,
        total_bytes: mapped.bytes,
        allocated_bytes,
        active_bytes,
        requested_bytes,
        stream: mapped.stream,
        kind: mapped.kind,
        pool: mapped.pool,
        expandable: mapped.expandable,
        stack,
        blocks,
    }
}

fn block(address: u64, held: &Held) -> Block {
    let state = if held.pending { BlockState::PendingFree } else { BlockState::Allocated };
    Block { address, bytes: held.bytes, requested_bytes: held.requested, state, stack: held.stack }
}

fn gap(start: u64, end: u64) -> Option<Block> {
    let (state, stack) = (BlockState::Inactive, StackId::EMPTY);
    (start < end).then(|| Block { address: start, bytes: end - start, requested_bytes: 0, state, stack })
}
