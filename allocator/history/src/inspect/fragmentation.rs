//! What keeps free memory in pieces: the runs, by pool and stream, and the blocks in between.
//!
//! A block *pins* what would come back to the device if it went: its whole segment, or the pages around it where memory
//! is mapped page by page. What it pins beyond its own bytes is the price of its place; only a block that keeps at least
//! as much as it has is told. A stack is told for whatever all of its blocks keep.

use std::{cmp::Reverse, collections::BTreeMap};

use crate::{
    SegmentKind, StackId,
    state::{
        memory::{Held, Mapped},
        pending::stream_name,
        rules::PAGE_BYTES,
        sites::{self, Key},
        space::{Run, Space},
    },
};

use super::{At, SiteBytes, site_text};

/// Segments of one pool, stream and kind: what a request is served from.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Domain {
    /// Private pool; (0, 0) is the common one.
    pub pool: (u64, u64),
    /// The stream, by its name if it has one.
    pub stream: String,
    /// Whether it serves large or small requests.
    pub kind: SegmentKind,
    /// Number of segments.
    pub segments: u64,
    /// Bytes of segments.
    pub reserved_bytes: u64,
    /// Bytes of blocks in use, as taken.
    pub used_bytes: u64,
    /// Bytes of blocks that were freed and wait, as taken.
    pub pending_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// Number of runs that the free bytes are in.
    pub runs: u64,
    /// The largest run, bytes: the largest request that fits.
    pub largest_run_bytes: u64,
    /// Free bytes in segments in which nothing is left.
    pub empty_bytes: u64,
    /// Free bytes that are whole pages.
    pub page_bytes: u64,
}

/// A run of free memory.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FreeRun {
    /// Its first address.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The stream that owns it, by its name if it has one.
    pub stream: String,
    /// Private pool; (0, 0) is the common one.
    pub pool: (u64, u64),
    /// Bytes of the segment that it lies in.
    pub segment_bytes: u64,
    /// The line that holds the block before it; `None` at the start of the segment.
    pub before: Option<String>,
    /// The line that holds the block after it; `None` at the end of the segment.
    pub after: Option<String>,
}

/// A block that keeps memory from coming back.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Pin {
    /// Its address.
    pub address: u64,
    /// Where it was allocated, with its bytes as taken.
    pub site: SiteBytes,
    /// Whether it was freed and waits.
    pub is_pending: bool,
    /// The stream that owns it, by its name if it has one.
    pub stream: String,
    /// Private pool; (0, 0) is the common one.
    pub pool: (u64, u64),
    /// Address of its segment.
    pub segment_address: u64,
    /// Bytes of its segment.
    pub segment_bytes: u64,
    /// What could be returned to the device if it went, and cannot now, bytes.
    pub freed_bytes: u64,
    /// The part of that which is free already, and kept by it, bytes.
    pub kept_bytes: u64,
    /// The run that there would be in its place, bytes.
    pub run_bytes: u64,
}

/// The blocks of a stack, and what they keep together.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PinnedBy {
    /// The stack, with bytes and blocks of all that it has, bytes as taken.
    pub site: SiteBytes,
    /// What could be returned to the device if all of them went, and cannot now, bytes.
    pub freed_bytes: u64,
    /// The part of that which is free already, bytes.
    pub kept_bytes: u64,
}

/// The pieces of a device's memory at a moment.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Fragmentation {
    /// By pool, stream and kind; the most reserved first.
    pub domains: Vec<Domain>,
    /// The largest runs, the largest first.
    pub largest_runs: Vec<FreeRun>,
    /// The blocks that keep the most, of those that keep at least as much as they have; beginning with the most.
    pub pins: Vec<Pin>,
    /// The stacks whose blocks keep the most together.
    pub pinned_by: Vec<PinnedBy>,
}

impl At<'_> {
    /// What is free, in which pieces, and why; with at most `top` runs, blocks and stacks each.
    #[must_use]
    pub fn fragmentation(&self, top: usize) -> Fragmentation {
        let space = Space::of(&self.memory, |_| true);
        let mut pins = Vec::new();
        let mut stacks: BTreeMap<Key, Stack> = BTreeMap::new();
        for (&address, segment) in &self.memory.segments {
            let blocks: Vec<_> = self.memory.blocks.range(address..address + segment.bytes).collect();
            let by_pages = segment.expandable || self.rules.own;
            let segment = Place { address, segment, by_pages };
            pins.extend(segment.pins(&blocks));
            segment.add_stacks(&blocks, &mut stacks);
        }
        pins.sort_by_key(|pin| (Reverse(pin.kept), pin.address));
        pins.truncate(top);
        let mut runs: Vec<&Run> = space.runs.iter().collect();
        runs.sort_by_key(|run| (Reverse(run.bytes), run.start));
        runs.truncate(top);
        Fragmentation {
            domains: self.domains(&space),
            largest_runs: runs.into_iter().map(|run| self.run(run)).collect(),
            pins: pins.iter().map(|pin| self.pin(pin)).collect(),
            pinned_by: self.pinned_by(stacks, top),
        }
    }

    fn stream(&self, stream: u64) -> String {
        stream_name(self.source(), stream)
    }

    fn domains(&self, space: &Space) -> Vec<Domain> {
        let key = |segment: &Mapped| (segment.pool, segment.stream, segment.kind == SegmentKind::Small);
        let mut domains: BTreeMap<_, Domain> = BTreeMap::new();
        for segment in self.memory.segments.values() {
            let domain = domains.entry(key(segment)).or_insert_with(|| Domain {
                pool: segment.pool,
                stream: self.stream(segment.stream),
                kind: segment.kind,
                segments: 0,
                reserved_bytes: 0,
                used_bytes: 0,
                pending_bytes: 0,
                free_bytes: 0,
                runs: 0,
                largest_run_bytes: 0,
                empty_bytes: 0,
                page_bytes: 0,
            });
            domain.segments += 1;
            domain.reserved_bytes = domain.reserved_bytes.saturating_add(segment.bytes);
        }
        for (&address, held) in &self.memory.blocks {
            let (_, segment) = self.memory.segment_at(address).expect("each block lies within a segment");
            let domain = domains.get_mut(&key(&segment)).expect("each segment has its domain");
            *(if held.pending { &mut domain.pending_bytes } else { &mut domain.used_bytes }) += held.bytes;
        }
        for run in &space.runs {
            let domain = domains.get_mut(&key(&run.segment)).expect("each segment has its domain");
            domain.free_bytes = domain.free_bytes.saturating_add(run.bytes);
            domain.runs += 1;
            domain.largest_run_bytes = domain.largest_run_bytes.max(run.bytes);
            domain.empty_bytes = domain.empty_bytes.saturating_add(if run.whole { run.bytes } else { 0 });
            domain.page_bytes = domain.page_bytes.saturating_add(run.page_bytes(PAGE_BYTES));
        }
        let mut domains: Vec<_> = domains.into_values().collect();
        domains.sort_by_key(|domain| Reverse(domain.reserved_bytes));
        domains
    }

    fn run(&self, run: &Run) -> FreeRun {
        let blocks = &self.memory.blocks;
        let (start, segment) = self.memory.segment_at(run.start).expect("each run lies within a segment");
        let site = |held: &Held| site_text(self.loaded, held.stack, held.requested);
        let end = run.start + run.bytes;
        FreeRun {
            address: run.start,
            bytes: run.bytes,
            stream: self.stream(segment.stream),
            pool: segment.pool,
            segment_bytes: segment.bytes,
            before: blocks.range(start..run.start).next_back().map(|(_, held)| site(held)),
            after: blocks.get(&end).filter(|_| end < start + segment.bytes).map(site),
        }
    }

    fn pin(&self, pin: &Pinned) -> Pin {
        let Pinned { held, place, .. } = *pin;
        Pin {
            address: pin.address,
            site: sites::site(self.loaded, (held.stack, held.requested), held.bytes, 1),
            is_pending: held.pending,
            stream: self.stream(place.segment.stream),
            pool: place.segment.pool,
            segment_address: place.address,
            segment_bytes: place.segment.bytes,
            freed_bytes: pin.freed,
            kept_bytes: pin.kept,
            run_bytes: pin.run,
        }
    }

    fn pinned_by(&self, stacks: BTreeMap<Key, Stack>, top: usize) -> Vec<PinnedBy> {
        let mut stacks: Vec<(Key, Stack)> = stacks.into_iter().filter(|(_, stack)| stack.kept > 0).collect();
        stacks.sort_by_key(|(key, stack)| (Reverse(stack.kept), *key));
        stacks.truncate(top);
        let told = stacks.into_iter().map(|(key, stack)| PinnedBy {
            site: sites::site(self.loaded, key, stack.bytes, stack.blocks),
            freed_bytes: stack.freed,
            kept_bytes: stack.kept,
        });
        told.collect()
    }
}

/// A segment and how memory comes back from it.
#[derive(Clone, Copy)]
struct Place<'a> {
    address: u64,
    segment: &'a Mapped,
    by_pages: bool,
}

/// A block and what it keeps, bytes.
struct Pinned<'a> {
    address: u64,
    held: &'a Held,
    place: Place<'a>,
    freed: u64,
    kept: u64,
    run: u64,
}

/// The blocks of a stack and what they keep, bytes.
#[derive(Default)]
struct Stack {
    bytes: u64,
    blocks: u64,
    freed: u64,
    kept: u64,
}

/// Who holds a page.
enum Holder {
    One(Key),
    Several,
}

impl<'a> Place<'a> {
    fn end(&self) -> u64 {
        self.address + self.segment.bytes
    }

    /// Bytes of a range that can be returned when nothing lies in it.
    fn returnable(&self, start: u64, end: u64) -> u64 {
        if self.by_pages {
            (end / PAGE_BYTES * PAGE_BYTES).saturating_sub(start.next_multiple_of(PAGE_BYTES))
        } else if (start, end) == (self.address, self.end()) {
            self.segment.bytes
        } else {
            0
        }
    }

    fn pins(self, blocks: &[(&u64, &'a Held)]) -> impl Iterator<Item = Pinned<'a>> {
        (0..blocks.len()).filter_map(move |index| {
            let (&address, held) = blocks[index];
            let block_end = address + held.bytes;
            let start = if index == 0 { self.address } else { blocks[index - 1].0 + blocks[index - 1].1.bytes };
            let end = blocks.get(index + 1).map_or(self.end(), |next| *next.0);
            let now = self.returnable(start, address) + self.returnable(block_end, end);
            let freed = self.returnable(start, end) - now;
            // A block that keeps less than it has is large, and not in the way.
            let kept = freed.checked_sub(held.bytes).filter(|&kept| kept >= held.bytes)?;
            Some(Pinned { address, held, place: self, freed, kept, run: end - start })
        })
    }

    fn add_stacks(self, blocks: &[(&u64, &Held)], stacks: &mut BTreeMap<Key, Stack>) {
        let key = |held: &Held| (held.stack, if held.stack == StackId::EMPTY { held.requested } else { 0 });
        for (_, held) in blocks {
            let stack = stacks.entry(key(held)).or_default();
            (stack.bytes, stack.blocks) = (stack.bytes + held.bytes, stack.blocks + 1);
        }
        // What one stack alone holds, and the bytes of its blocks there.
        let mut held_by: BTreeMap<u64, (Holder, u64)> = BTreeMap::new();
        let mut hold = |unit: u64, of: Key, bytes: u64| {
            let (holder, sum) = held_by.entry(unit).or_insert((Holder::One(of), 0));
            *sum += bytes;
            if !matches!(holder, Holder::One(known) if *known == of) {
                *holder = Holder::Several;
            }
        };
        for &(&address, held) in blocks {
            if !self.by_pages {
                hold(0, key(held), held.bytes);
                continue;
            }
            let end = address + held.bytes;
            // The pages in the middle are the block's own: nothing is kept there.
            let (first, last) = (address / PAGE_BYTES, (end - 1) / PAGE_BYTES);
            for page in [Some(first), (last > first).then_some(last)].into_iter().flatten() {
                let bytes = end.min((page + 1) * PAGE_BYTES) - address.max(page * PAGE_BYTES);
                hold(page, key(held), bytes);
            }
            let middle = (last.saturating_sub(first + 1)) * PAGE_BYTES;
            stacks.entry(key(held)).or_default().freed += middle;
        }
        for (unit, (holder, bytes)) in held_by {
            let unit_bytes = match self.by_pages {
                true => self.returnable(self.address.max(unit * PAGE_BYTES), self.end().min((unit + 1) * PAGE_BYTES)),
                false => self.segment.bytes,
            };
            if let Holder::One(key) = holder
                && unit_bytes > 0
            {
                let stack = stacks.entry(key).or_default();
                stack.freed += unit_bytes;
                stack.kept += unit_bytes - bytes;
            }
        }
    }
}
