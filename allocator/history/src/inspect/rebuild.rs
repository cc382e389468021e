//! The segments at the end of a trace, found by going forwards: for a trace that is cut, whose file says the segments of
//! a later moment.
//!
//! What the trace says counts: what it maps and unmaps, hands out and takes back. Where it speaks of memory that it has
//! not mapped, that was there before, and it is put where the file has it later, as far as nothing speaks against it. Only
//! if there was such memory the trace does not begin at the beginning; then blocks of the file that the trace says
//! nothing of are taken to have been there all the time.
//!
//! Invariant: no assumed segment reaches into a range that the trace maps or unmaps.

use std::collections::BTreeMap;

use crate::{
    Block, BlockState, Segment, SegmentKind,
    read::{Event, EventAction, LoadedDevice},
    state::{
        curves::Frees,
        memory::{Held, Mapped, Memory},
        rules::{MOST_BYTES, PAGE_BYTES, Rules},
    },
};

/// Memory after the last event of a trace.
pub(super) fn at_the_end(device: &LoadedDevice, rules: &Rules) -> Memory {
    let trace = &device.trace;
    let frees = frees_of(device);
    let by_pages = (0..trace.len()).any(|row| trace.action(row) == EventAction::SegmentMap);
    let mut rebuild = Rebuild { device, rules, by_pages, ..Rebuild::new(device, rules) };
    for row in 0..trace.len() {
        rebuild.step(row, frees);
    }
    if rebuild.had_a_past {
        rebuild.add_the_untouched();
    }
    rebuild.memory.fit_blocks();
    rebuild.memory
}

/// Which events the trace has of a free. Where requests alone are told, because completions are left out or because none
/// has come yet, memory that is handed out again decides.
fn frees_of(device: &LoadedDevice) -> Frees {
    if Frees::of(device) != Frees::Requested {
        return Frees::of(device);
    }
    let mut requested = Ranges::default();
    let is_used_again = device.trace.events().any(|event| {
        let end = event.address.saturating_add(event.bytes.max(1));
        if event.action == EventAction::FreeRequested {
            requested.add(event.address, end);
        }
        event.action == EventAction::Alloc && requested.overlaps(event.address, end)
    });
    if is_used_again { Frees::Requested } else { Frees::Both }
}

struct Rebuild<'a> {
    device: &'a LoadedDevice,
    rules: &'a Rules,
    by_pages: bool,
    memory: Memory,
    /// Segments of the file by address.
    later: BTreeMap<u64, &'a Segment>,
    /// Ranges that the trace maps or unmaps.
    explained: Ranges,
    /// Ranges of the blocks that the trace speaks of.
    touched: Ranges,
    /// Whether the trace speaks of something that was there before it.
    had_a_past: bool,
}

impl<'a> Rebuild<'a> {
    fn new(device: &'a LoadedDevice, rules: &'a Rules) -> Self {
        Self {
            device,
            rules,
            by_pages: false,
            memory: Memory::default(),
            later: device.segments.iter().map(|segment| (segment.address, segment)).collect(),
            explained: Ranges::default(),
            touched: Ranges::default(),
            had_a_past: false,
        }
    }

    fn step(&mut self, row: usize, frees: Frees) {
        let event = self.device.trace.event(row);
        let bytes = event.bytes.min(MOST_BYTES);
        match (event.action, frees) {
            (EventAction::SegmentAlloc | EventAction::SegmentMap, _) => self.map(row, &event, bytes),
            (EventAction::SegmentFree | EventAction::SegmentUnmap, _) => {
                self.had_a_past |= self.memory.segment_at(event.address).is_none();
                self.clear(event.address, bytes);
            }
            (EventAction::Alloc, _) => self.hold(row, &event, bytes, false),
            (EventAction::FreeRequested, Frees::Both) => self.hold(row, &event, bytes, true),
            (EventAction::FreeRequested | EventAction::FreeCompleted | EventAction::Free, _) => {
                // The block was there until now, so its memory has to be.
                self.hold(row, &event, bytes, true);
                self.memory.blocks.remove(&event.address);
            }
            _ => {}
        }
    }

    fn map(&mut self, row: usize, event: &Event, bytes: u64) {
        self.clear(event.address, bytes);
        let small = !self.by_pages && bytes == PAGE_BYTES;
        let known = self.later_at(event.address).map(|segment| segment.kind);
        let kind = known.unwrap_or(if small { SegmentKind::Small } else { SegmentKind::Large });
        let (stream, pool) = (event.stream, self.device.trace.pool(row));
        let expandable = event.action == EventAction::SegmentMap;
        self.memory.give_range(event.address, Mapped { bytes, stream, pool, kind, expandable });
    }

    /// Takes what there is of a range that the trace explains.
    fn clear(&mut self, address: u64, bytes: u64) {
        let end = address.saturating_add(bytes);
        while let Some((start, mapped)) = self.memory.overlapping(address, end) {
            let (from, to) = (start.max(address), end.min(start + mapped.bytes));
            self.memory.take_range(from, to - from);
        }
        self.explained.add(address, end);
    }

    /// A block is there, allocated or pending.
    fn hold(&mut self, row: usize, event: &Event, requested: u64, pending: bool) {
        let rounded = self.device.trace.rounded_bytes(row).map(|bytes| bytes.clamp(requested.max(1), MOST_BYTES));
        let bytes = rounded.unwrap_or_else(|| self.rules.block_bytes(requested));
        let address = event.address;
        let is_new = event.action == EventAction::Alloc;
        self.touched.add(address, address.saturating_add(bytes));
        if let Some(known) = self.memory.blocks.get_mut(&address).filter(|_| !is_new) {
            known.pending = pending;
            return;
        }
        self.had_a_past |= !is_new;
        self.cover(row, event, bytes);
        if let Some((start, segment)) = self.memory.segment_at(address) {
            if is_new && self.later_at(address).is_none() {
                // A segment serves requests of one kind.
                self.memory.segments.insert(start, Mapped { kind: self.rules.kind(bytes), ..segment });
            }
            let held = Held { requested, bytes, pending, stack: event.stack, born: None, freed: None };
            self.memory.blocks.insert(address, held);
        }
    }

    /// Assumes a segment where the trace has a block and no segment.
    fn cover(&mut self, row: usize, event: &Event, bytes: u64) {
        let mut at = event.address;
        let end = at.saturating_add(bytes);
        while at < end {
            if let Some((start, mapped)) = self.memory.segment_at(at) {
                at = start + mapped.bytes;
                continue;
            }
            self.had_a_past = true;
            let later = self.later_at(at);
            let wanted = match later {
                Some(segment) => segment.address..segment.address.saturating_add(segment.total_bytes),
                None => at / PAGE_BYTES * PAGE_BYTES..end.checked_next_multiple_of(PAGE_BYTES).unwrap_or(end),
            };
            let Some((low, high)) = self.free_around(at) else { return };
            let (low, high) = (low.max(wanted.start), high.min(wanted.end));
            let small = self.rules.kind(bytes);
            let mapped = Mapped {
                bytes: (high - low).min(MOST_BYTES),
                stream: later.map_or(event.stream, |segment| segment.stream),
                pool: later.map_or(self.device.trace.pool(row), |segment| segment.pool),
                kind: later.map_or(small, |segment| segment.kind),
                expandable: later.map_or(self.by_pages, |segment| segment.expandable),
            };
            let faults = self.memory.faults;
            self.memory.give_range(low, mapped);
            if self.memory.faults > faults {
                return;
            }
        }
    }

    /// The range around an address that is neither a segment nor explained; `None` if the address is.
    fn free_around(&self, address: u64) -> Option<(u64, u64)> {
        let (low, high) = self.explained.gap_around(address)?;
        let before = self.memory.segments.range(..=address).next_back();
        let after = self.memory.segments.range(address..).next();
        let low = before.map_or(low, |(&start, mapped)| low.max(start + mapped.bytes));
        Some((low, after.map_or(high, |(&start, _)| high.min(start))))
    }

    fn later_at(&self, address: u64) -> Option<&'a Segment> {
        let (&start, &segment) = self.later.range(..=address).next_back()?;
        (address - start < segment.total_bytes).then_some(segment)
    }

    /// Adds what the file has and the trace says nothing of.
    fn add_the_untouched(&mut self) {
        let segments: Vec<&Segment> = self.later.values().copied().collect();
        for segment in segments {
            let end = segment.address.saturating_add(segment.total_bytes);
            let mut at = segment.address;
            while at < end {
                at = self.add_part(segment, at, end);
            }
            for block in segment.blocks.iter().filter(|block| block.state != BlockState::Inactive) {
                self.add_block(block);
            }
        }
    }

    /// Adds the part of a segment that begins at an address, if nothing speaks against it. The end of that part.
    fn add_part(&mut self, segment: &Segment, at: u64, end: u64) -> u64 {
        if let Some((start, mapped)) = self.memory.segment_at(at) {
            return start + mapped.bytes;
        }
        let Some((_, high)) = self.free_around(at) else { return self.explained.end_at(at) };
        let mapped = Mapped {
            bytes: high.min(end) - at,
            stream: segment.stream,
            pool: segment.pool,
            kind: segment.kind,
            expandable: segment.expandable,
        };
        self.memory.give_range(at, mapped);
        high
    }

    fn add_block(&mut self, block: &Block) {
        let Some(end) = block.address.checked_add(block.bytes) else { return };
        let inside = self.memory.segment_at(block.address).is_some_and(|(start, mapped)| end <= start + mapped.bytes);
        // What lies in memory that the trace maps came with the trace, or after it.
        let is_told = self.touched.overlaps(block.address, end) || self.explained.overlaps(block.address, end);
        if inside && block.bytes > 0 && !is_told {
            let pending = block.state == BlockState::PendingFree;
            let requested = block.requested_bytes.min(block.bytes);
            let held = Held { requested, bytes: block.bytes, pending, stack: block.stack, born: None, freed: None };
            self.memory.blocks.insert(block.address, held);
        }
    }
}

/// Ranges of addresses that neither overlap nor touch: ends by starts.
#[derive(Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn add(&mut self, mut start: u64, mut end: u64) {
        if start >= end {
            return;
        }
        while let Some((&known, &known_end)) = self.0.range(..=end).next_back() {
            if known_end < start {
                break;
            }
            self.0.remove(&known);
            (start, end) = (start.min(known), end.max(known_end));
        }
        self.0.insert(start, end);
    }

    fn overlaps(&self, start: u64, end: u64) -> bool {
        self.0.range(..end).next_back().is_some_and(|(_, &known_end)| known_end > start)
    }

    /// The range around an address that is in none of these; `None` if the address is in one.
    fn gap_around(&self, address: u64) -> Option<(u64, u64)> {
        let low = self.0.range(..=address).next_back().map_or(0, |(_, &end)| end);
        let high = self.0.range(address..).next().map_or(u64::MAX, |(&start, _)| start);
        (low <= address && address < high).then_some((low, high))
    }

    /// The end of the range that an address is in; behind it, the address itself and one.
    fn end_at(&self, address: u64) -> u64 {
        let end = self.0.range(..=address).next_back().map_or(0, |(_, &end)| end);
        end.max(address.saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_where_they_touch() {
        let mut ranges = Ranges::default();
        for (start, end) in [(10, 20), (40, 50), (20, 30), (5, 5), (60, 70), (45, 60)] {
            ranges.add(start, end);
        }
        assert_eq!(ranges.0, BTreeMap::from([(10, 30), (40, 70)]));
        assert!(ranges.overlaps(29, 31) && !ranges.overlaps(30, 40) && ranges.overlaps(0, 100));
        assert_eq!(ranges.gap_around(35), Some((30, 40)));
        assert_eq!((ranges.gap_around(10), ranges.gap_around(69)), (None, None));
        assert_eq!((ranges.gap_around(3), ranges.gap_around(70)), (Some((0, 10)), Some((70, u64::MAX))));
        assert_eq!((ranges.end_at(12), ranges.end_at(33)), (30, 34));
    }
}
