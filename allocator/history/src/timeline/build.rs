//! Undoing a trace, from its end to its beginning, and keeping what is met.
//!
//! Invariant: what is open is there at the moment that was reached. Open ranges do not overlap; open blocks have different
//! first addresses, and lie within open ranges that join.

use std::collections::BTreeMap;

use super::{BlockLife, Holder, Lane, MappedLife, Source, Timeline};
use crate::{
    BlockState, SegmentKind, StackId,
    read::{EventAction, Loaded, LoadedDevice},
    state::{
        curves::Frees,
        rules::{MOST_BYTES, PAGE_BYTES, Rules},
    },
};

/// A block whose beginning was not reached yet.
struct Block {
    requested: u64,
    bytes: u64,
    stack: StackId,
    lane: usize,
    /// First moment at which it waits, if that was reached.
    freed: Option<u32>,
    gone: u32,
}

/// A mapped range whose beginning was not reached yet.
#[derive(Clone, Copy)]
struct Range {
    bytes: u64,
    lane: usize,
    kind: SegmentKind,
    expandable: bool,
    gone: u32,
}

impl Range {
    /// Whether two ranges that touch are of one segment.
    fn joins(&self, other: &Self) -> bool {
        self.expandable && other.expandable && self.lane == other.lane && self.kind == other.kind
    }
}

struct Undo<'a> {
    device: &'a LoadedDevice,
    rules: Rules,
    frees: Frees,
    lanes: BTreeMap<Lane, usize>,
    sources: BTreeMap<Source, usize>,
    blocks: BTreeMap<u64, Block>,
    ranges: BTreeMap<u64, Range>,
    done: Timeline,
}

impl Timeline {
    /// The timeline of a device. It panics if there is none with that index.
    #[must_use]
    pub fn of(loaded: &Loaded, device: usize) -> Self {
        let device = &loaded.devices[device];
        let events = u32::try_from(device.trace.len()).expect("the reader takes less than four billion events");
        let mut undo = Undo {
            device,
            rules: Rules::of(loaded),
            frees: Frees::of(device),
            lanes: BTreeMap::new(),
            sources: BTreeMap::new(),
            blocks: BTreeMap::new(),
            ranges: BTreeMap::new(),
            done: Timeline { events, ..Timeline::default() },
        };
        undo.open_what_is_there();
        for row in (0..events).rev() {
            undo.event(row);
        }
        undo.finish()
    }
}

impl Undo<'_> {
    /// One past the last moment.
    fn never(&self) -> u32 {
        self.done.events + 1
    }

    fn open_what_is_there(&mut self) {
        let device = self.device;
        for segment in &device.segments {
            let lane = self.lane(segment.stream, segment.pool);
            let (kind, expandable, gone) = (segment.kind, segment.expandable, self.never());
            let range = Range { bytes: segment.total_bytes, lane, kind, expandable, gone };
            if !self.open_range(segment.address, range) {
                continue;
            }
            for block in segment.blocks.iter().filter(|block| block.state != BlockState::Inactive) {
                let waits = block.state == BlockState::PendingFree;
                let bytes = (block.requested_bytes.min(block.bytes), block.bytes);
                self.open_block(block.address, bytes, block.stack, gone);
                // From when on it waits is not known unless the request is in the trace.
                if let Some(open) = self.blocks.get_mut(&block.address).filter(|_| !waits) {
                    open.freed = Some(open.gone);
                }
            }
        }
    }

    fn lane(&mut self, stream: u64, pool: (u64, u64)) -> usize {
        let next = self.lanes.len();
        *self.lanes.entry(Lane { stream, pool }).or_insert(next)
    }

    fn open_range(&mut self, address: u64, range: Range) -> bool {
        let end = address.checked_add(range.bytes);
        let free = (1..=MOST_BYTES).contains(&range.bytes)
            && end.is_some_and(|end| {
                let before = self.ranges.range(..end).next_back();
                before.is_none_or(|(&start, before)| start + before.bytes <= address)
            });
        if free {
            self.ranges.insert(address, range);
        }
        self.done.faults += u64::from(!free);
        free
    }

    /// The range that holds an address, and where it begins.
    fn range_at(&self, address: u64) -> Option<(u64, Range)> {
        let (&start, &range) = self.ranges.range(..=address).next_back()?;
        (address - start < range.bytes).then_some((start, range))
    }

    /// Where the mapped memory ends that begins in a range and goes on in those that join it.
    fn joined_end(&self, start: u64, range: Range) -> u64 {
        let mut end = start + range.bytes;
        while let Some(next) = self.ranges.get(&end).filter(|next| next.joins(&range)) {
            end += next.bytes;
        }
        end
    }

    /// Opens a block, which is said to wait until its request is found. One that is there already began only behind it.
    fn open_block(&mut self, address: u64, (requested, bytes): (u64, u64), stack: StackId, gone: u32) {
        let range = self.range_at(address).filter(|&(start, range)| {
            let end = address.checked_add(bytes);
            bytes > 0 && end.is_some_and(|end| end <= self.joined_end(start, range))
        });
        let Some((_, range)) = range else {
            self.done.faults += 1;
            return;
        };
        let block = Block { requested, bytes, stack, lane: range.lane, freed: None, gone };
        if let Some(other) = self.blocks.insert(address, block) {
            self.done.faults += 1;
            self.close_block(address, &other, gone);
        }
    }

    /// Keeps a block that began at a moment.
    fn close_block(&mut self, address: u64, block: &Block, first: u32) {
        let source = Source { holder: Holder::of(block.stack, block.requested), lane: block.lane };
        let next = self.sources.len();
        let source = *self.sources.entry(source).or_insert(next);
        self.done.blocks.push(BlockLife {
            address,
            requested_bytes: block.requested,
            bytes: block.bytes,
            source,
            first,
            freed: block.freed.unwrap_or(first),
            gone: block.gone,
        });
    }

    fn close_range(&mut self, address: u64, range: Range, first: u32) {
        let Range { bytes, lane, kind, expandable, gone } = range;
        self.done.mapped.push(MappedLife { address, bytes, lane, kind, expandable, first, gone });
    }

    fn event(&mut self, row: u32) {
        use EventAction::*;
        let trace = &self.device.trace;
        let at = row as usize;
        let (address, bytes) = (trace.addresses()[at], trace.bytes()[at].min(MOST_BYTES));
        match (trace.action(at), self.frees) {
            (Alloc, _) => self.alloc(row, address),
            (FreeCompleted, Frees::Both) => self.freed(row, address, bytes),
            (FreeRequested, Frees::Both) => match self.blocks.get_mut(&address) {
                Some(block) => block.freed = block.freed.or(Some(row + 1)),
                None => self.done.faults += 1,
            },
            (FreeRequested | FreeCompleted | Free, _) => {
                self.freed(row, address, bytes);
                if let Some(block) = self.blocks.get_mut(&address) {
                    block.freed = block.freed.or(Some(block.gone));
                }
            }
            (SegmentAlloc | SegmentMap, _) => self.mapped(row, address, bytes),
            (SegmentFree, _) => self.unmapped(row, address, bytes, false),
            (SegmentUnmap, _) => self.unmapped(row, address, bytes, true),
            _ => {}
        }
    }

    /// A block came free at a row: it was there before.
    fn freed(&mut self, row: u32, address: u64, bytes: u64) {
        let stack = self.device.trace.stacks()[row as usize];
        self.open_block(address, (bytes, self.rules.block_bytes(bytes)), stack, row + 1);
    }

    fn alloc(&mut self, row: u32, address: u64) {
        let Some(mut block) = self.blocks.remove(&address) else {
            self.done.faults += 1;
            return;
        };
        let trace = &self.device.trace;
        if trace.stacks()[row as usize] != StackId::EMPTY {
            block.stack = trace.stacks()[row as usize];
        }
        if let Some(bytes) = trace.rounded_bytes(row as usize).filter(|_| self.rules.own) {
            block.bytes = bytes.clamp(block.requested.max(1), MOST_BYTES);
        }
        self.close_block(address, &block, row + 1);
    }

    /// Memory was mapped at a row: it was not there before, and nor was any block in it.
    fn mapped(&mut self, row: u32, address: u64, bytes: u64) {
        let Some((start, range)) = self.range_at(address) else {
            self.done.faults += 1;
            return;
        };
        let whole_end = self.joined_end(start, range);
        let end = address.saturating_add(bytes).min(whole_end);
        self.done.faults += u64::from(address.saturating_add(bytes) > whole_end);
        let mut at = start;
        while at < end {
            let range = self.ranges.remove(&at).expect("ranges join up to the end");
            let (range_start, range_end) = (at, at + range.bytes);
            at = range_end;
            let (cut_start, cut_end) = (address.max(range_start), end.min(range_end));
            if range_start < cut_start {
                self.ranges.insert(range_start, Range { bytes: cut_start - range_start, ..range });
            }
            if cut_end < range_end {
                self.ranges.insert(cut_end, Range { bytes: range_end - cut_end, ..range });
            }
            self.close_range(cut_start, Range { bytes: cut_end - cut_start, ..range }, row + 1);
        }
        let lost: Vec<u64> = self.blocks.range(address..end).map(|(&block, _)| block).collect();
        for block in lost {
            let open = self.blocks.remove(&block).expect("it was listed");
            self.done.faults += 1;
            self.close_block(block, &open, row + 1);
        }
    }

    /// Memory was unmapped at a row: it was there before.
    fn unmapped(&mut self, row: u32, address: u64, bytes: u64, expandable: bool) {
        let trace = &self.device.trace;
        let lane = self.lane(trace.streams()[row as usize], trace.pool(row as usize));
        let kind = if bytes == PAGE_BYTES { SegmentKind::Small } else { SegmentKind::Large };
        let mut range = Range { bytes, lane, kind, expandable, gone: row + 1 };
        if expandable {
            // A page does not say what it serves; its neighbours do.
            let before = self.ranges.range(..address).next_back().filter(|(start, b)| *start + b.bytes == address);
            let after = address.checked_add(bytes).and_then(|end| self.ranges.get(&end));
            let of_lane = |other: &&Range| other.expandable && other.lane == lane;
            let neighbour = before.map(|(_, before)| before).filter(of_lane).or(after.filter(of_lane));
            range.kind = neighbour.map_or(SegmentKind::Large, |neighbour| neighbour.kind);
        }
        self.open_range(address, range);
    }

    /// Closes what is older than the trace, and puts all in order.
    fn finish(mut self) -> Timeline {
        for (address, block) in std::mem::take(&mut self.blocks) {
            self.close_block(address, &block, 0);
        }
        for (address, range) in std::mem::take(&mut self.ranges) {
            self.close_range(address, range, 0);
        }
        let mut done = self.done;
        // Lanes were numbered as they came; their order is that of their streams and pools.
        let mut place = vec![0; self.lanes.len()];
        for (index, (lane, number)) in self.lanes.into_iter().enumerate() {
            done.lanes.push(lane);
            place[number] = index;
        }
        let mut sources: Vec<_> = self.sources.into_iter().map(|(source, number)| (number, source)).collect();
        sources.sort_unstable();
        done.sources =
            sources.into_iter().map(|(_, Source { holder, lane })| Source { holder, lane: place[lane] }).collect();
        done.mapped.iter_mut().for_each(|mapped| mapped.lane = place[mapped.lane]);
        // A block whose place another one took as it came is there at no moment.
        done.blocks.retain(|block| block.first < block.gone);
        done.blocks.sort_by_key(|block| (block.first, block.address));
        done.mapped.sort_by_key(|mapped| (mapped.first, mapped.address));
        done
    }
}
