//! Memory before an event: segments and blocks, found by undoing the trace from its end.
//!
//! A snapshot taken after an out-of-memory error shows what was left when the program had unwound. What counts is what
//! was there before. Traces come from anywhere, so what cannot be undone is left out and counted, never fatal.
//!
//! [`Timeline`](crate::timeline::Timeline) undoes a trace too, and keeps all moments; this keeps one, so that a verdict pays
//! for no more. They share no code but the rules, and a test holds them against each other.
//!
//! Invariants: segments do not overlap; each block lies within one segment and overlaps no other block.

use std::collections::BTreeMap;

use crate::{
    BlockState, SegmentKind, StackId,
    read::{EventAction, LoadedDevice},
};

use super::curves::Frees;
use super::rules::{MOST_BYTES, PAGE_BYTES, Rules};

/// A segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mapped {
    pub(crate) bytes: u64,
    pub(crate) stream: u64,
    pub(crate) pool: (u64, u64),
    pub(crate) kind: SegmentKind,
    pub(crate) expandable: bool,
}

/// A block that is not free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    /// As asked for.
    pub(crate) requested: u64,
    /// As taken.
    pub(crate) bytes: u64,
    /// Freed, and waiting.
    pub(crate) pending: bool,
    pub(crate) stack: StackId,
    /// Row at which it was allocated, if that is in the trace.
    pub(crate) born: Option<u32>,
    /// Row at which its free was requested, if it is pending and that is in the trace.
    pub(crate) freed: Option<u32>,
}

/// Segments and blocks at a moment.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Memory {
    pub(crate) segments: BTreeMap<u64, Mapped>,
    pub(crate) blocks: BTreeMap<u64, Held>,
    /// Events and blocks that fit nothing.
    pub(crate) faults: u64,
}

impl Memory {
    /// Memory before an event; at the end if the row is the number of events.
    pub(crate) fn before(device: &LoadedDevice, rules: &Rules, frees: Frees, row: usize) -> Self {
        let mut memory = Self::at_the_end(device);
        for row in (row..device.trace.len()).rev() {
            memory.undo(device, rules, frees, row);
        }
        memory.find_births(device, rules, row);
        memory.fit_blocks();
        memory
    }

    fn at_the_end(device: &LoadedDevice) -> Self {
        let mut memory = Self::default();
        for segment in &device.segments {
            let mapped = Mapped {
                bytes: segment.total_bytes,
                stream: segment.stream,
                pool: segment.pool,
                kind: segment.kind,
                expandable: segment.expandable,
            };
            if !memory.add_segment(segment.address, mapped) {
                continue;
            }
            for block in segment.blocks.iter().filter(|block| block.state != BlockState::Inactive) {
                let pending = block.state == BlockState::PendingFree;
                let (requested, bytes) = (block.requested_bytes.min(block.bytes), block.bytes);
                let held = Held { requested, bytes, pending, stack: block.stack, born: None, freed: None };
                memory.add_block(block.address, held);
            }
        }
        memory
    }

    fn add_segment(&mut self, address: u64, mapped: Mapped) -> bool {
        let end = address.checked_add(mapped.bytes);
        let free = end.is_some_and(|end| {
            let before = self.segments.range(..end).next_back();
            (1..=MOST_BYTES).contains(&mapped.bytes)
                && before.is_none_or(|(&start, before)| start + before.bytes <= address)
        });
        if free {
            self.segments.insert(address, mapped);
        } else {
            self.faults += 1;
        }
        free
    }

    /// The segment that holds an address, and where it begins.
    pub(crate) fn segment_at(&self, address: u64) -> Option<(u64, Mapped)> {
        let (&start, &mapped) = self.segments.range(..=address).next_back()?;
        (address - start < mapped.bytes).then_some((start, mapped))
    }

    /// The last segment that shares a byte with a range.
    #[cfg(feature = "inspect")]
    pub(crate) fn overlapping(&self, start: u64, end: u64) -> Option<(u64, Mapped)> {
        let (&address, &mapped) = self.segments.range(..end).next_back()?;
        (address + mapped.bytes > start && start < end).then_some((address, mapped))
    }

    fn add_block(&mut self, address: u64, held: Held) {
        let inside = self.segment_at(address).is_some_and(|(start, mapped)| {
            address.checked_add(held.bytes).is_some_and(|end| end <= start + mapped.bytes)
        });
        if inside && held.bytes > 0 {
            self.blocks.insert(address, held);
        } else {
            self.faults += 1;
        }
    }

    fn undo(&mut self, device: &LoadedDevice, rules: &Rules, frees: Frees, row: usize) {
        let trace = &device.trace;
        let (action, address, bytes) = (trace.action(row), trace.addresses()[row], trace.bytes()[row].min(MOST_BYTES));
        let held = |pending| {
            let stack = trace.stacks()[row];
            Held { requested: bytes, bytes: rules.block_bytes(bytes), pending, stack, born: None, freed: None }
        };
        match (action, frees) {
            (EventAction::Alloc, _) => self.faults += u64::from(self.blocks.remove(&address).is_none()),
            (EventAction::FreeCompleted, Frees::Both) => self.add_block(address, held(true)),
            (EventAction::FreeRequested, Frees::Both) => match self.blocks.get_mut(&address) {
                Some(block) => block.pending = false,
                None => self.faults += 1,
            },
            (EventAction::FreeRequested | EventAction::FreeCompleted | EventAction::Free, _) => {
                self.add_block(address, held(false));
            }
            (EventAction::SegmentAlloc | EventAction::SegmentMap, _) => self.take_range(address, bytes),
            (EventAction::SegmentFree | EventAction::SegmentUnmap, _) => {
                let kind = if bytes == PAGE_BYTES { SegmentKind::Small } else { SegmentKind::Large };
                let expandable = action == EventAction::SegmentUnmap;
                let (stream, pool) = (trace.streams()[row], trace.pool(row));
                self.give_range(address, Mapped { bytes, stream, pool, kind, expandable });
            }
            _ => {}
        }
    }

    /// Takes a range away from the segments. Blocks in it are lost: nothing can be there.
    pub(crate) fn take_range(&mut self, address: u64, bytes: u64) {
        let Some((start, mapped)) = self.segment_at(address) else {
            self.faults += 1;
            return;
        };
        let (end, segment_end) = (address.saturating_add(bytes), start + mapped.bytes);
        self.faults += u64::from(end > segment_end);
        self.segments.remove(&start);
        if start < address {
            self.segments.insert(start, Mapped { bytes: address - start, ..mapped });
        }
        if end < segment_end {
            self.segments.insert(end, Mapped { bytes: segment_end - end, ..mapped });
        }
        let lost: Vec<u64> = self.blocks.range(address..end.min(segment_end)).map(|(&block, _)| block).collect();
        self.faults += lost.len() as u64;
        for block in lost {
            self.blocks.remove(&block);
        }
    }

    /// Gives a range to the segments; a mapped one joins its neighbours.
    pub(crate) fn give_range(&mut self, address: u64, mut mapped: Mapped) {
        let before = self.segments.range(..address).next_back().map(|(&start, &before)| (start, before));
        let before = before.filter(|(start, before)| start + before.bytes == address);
        let after = address.checked_add(mapped.bytes).and_then(|end| Some((end, *self.segments.get(&end)?)));
        let joins = |other: &Mapped| {
            let expandable = mapped.expandable && other.expandable;
            expandable && other.stream == mapped.stream && other.pool == mapped.pool
        };
        let (before, after) = (before.filter(|(_, b)| joins(b)), after.filter(|(_, a)| joins(a)));
        if mapped.expandable {
            mapped.kind = before.or(after).map_or(SegmentKind::Large, |(_, neighbour)| neighbour.kind);
        }
        if !self.add_segment(address, mapped) {
            return;
        }
        let (mut start, mut bytes) = (address, mapped.bytes);
        if let Some((end, after)) = after.filter(|(_, after)| after.kind == mapped.kind) {
            self.segments.remove(&end);
            bytes += after.bytes;
        }
        if let Some((before_start, before)) = before {
            self.segments.remove(&address);
            (start, bytes) = (before_start, bytes + before.bytes);
        }
        self.segments.insert(start, Mapped { bytes, ..mapped });
    }

    /// Finds where the blocks come from, in the events before.
    fn find_births(&mut self, device: &LoadedDevice, rules: &Rules, row: usize) {
        let trace = &device.trace;
        let mut sought = self.blocks.len();
        for row in (0..row).rev() {
            if sought == 0 {
                break;
            }
            let action = trace.action(row);
            if !matches!(action, EventAction::Alloc | EventAction::FreeRequested) {
                continue;
            }
            let Some(block) = self.blocks.get_mut(&trace.addresses()[row]).filter(|block| block.born.is_none()) else {
                continue;
            };
            if action == EventAction::FreeRequested {
                block.freed = block.freed.or(block.pending.then_some(row as u32));
                continue;
            }
            block.born = Some(row as u32);
            sought -= 1;
            if trace.stacks()[row] != StackId::EMPTY {
                block.stack = trace.stacks()[row];
            }
            if let Some(bytes) = trace.rounded_bytes(row).filter(|_| rules.own) {
                block.bytes = bytes.clamp(block.requested.max(1), MOST_BYTES);
            }
        }
    }

    /// Cuts blocks that would overlap the next one or the end of their segment: rounding is a rule, not a fact.
    pub(crate) fn fit_blocks(&mut self) {
        let mut cut = Vec::new();
        let mut next: Option<u64> = None;
        for (&address, block) in self.blocks.iter().rev() {
            match self.segment_at(address) {
                None => cut.push((address, 0)),
                Some((start, mapped)) => {
                    let end = next.unwrap_or(u64::MAX).min(start + mapped.bytes);
                    if address + block.bytes > end {
                        cut.push((address, end - address));
                    }
                    next = Some(address);
                }
            }
        }
        self.faults += cut.len() as u64;
        for (address, bytes) in cut {
            match self.blocks.get_mut(&address) {
                Some(block) if bytes > 0 => {
                    block.bytes = bytes;
                    block.requested = block.requested.min(bytes);
                }
                _ => drop(self.blocks.remove(&address)),
            }
        }
    }
}
