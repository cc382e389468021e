//! A small world of heaps, to make histories of any length that are true: it records what it does, and knows what is
//! mapped and live in the end.

use std::collections::BTreeMap;

use highwater_history::{
    Action, Block, BlockState, Context, MappedRange, Record, Ring, Rung, Segment, Snapshot, StackId, merge,
};
use proptest::prelude::*;

pub(crate) const PAGE: u64 = 2 << 20;
const SLOT: u64 = PAGE / 8;
const PAGES_OF_STREAM: u64 = 8;
const BASE: u64 = 0x7f00_0000_0000;

/// Something to try. Numbers are taken modulo what there is, and what is impossible is left out.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Map { stream: u64, page: u64 },
    Unmap { stream: u64, page: u64 },
    Alloc { stream: u64, slot: u64, bytes: u64 },
    Free { which: usize, at_once: bool },
    Complete { which: usize },
    Other { kind: u8 },
}

pub(crate) fn steps(length: usize) -> impl Strategy<Value = Vec<Step>> {
    let (stream, page) = (0u64..3, 0..PAGES_OF_STREAM);
    let step = prop_oneof![
        3 => (stream.clone(), page.clone()).prop_map(|(stream, page)| Step::Map { stream, page }),
        1 => (stream.clone(), page).prop_map(|(stream, page)| Step::Unmap { stream, page }),
        6 => (stream, 0..PAGES_OF_STREAM * 8, 0..3 * SLOT)
            .prop_map(|(stream, slot, bytes)| Step::Alloc { stream, slot, bytes }),
        3 => (any::<usize>(), any::<bool>()).prop_map(|(which, at_once)| Step::Free { which, at_once }),
        2 => any::<usize>().prop_map(|which| Step::Complete { which }),
        1 => any::<u8>().prop_map(|kind| Step::Other { kind }),
    ];
    prop::collection::vec(step, 0..length)
}

#[derive(Clone, Copy)]
struct Live {
    bytes: u64,
    rounded_bytes: u64,
    stream: u64,
    pending: bool,
}

pub(crate) struct World {
    /// One for each stream.
    rings: Vec<Ring>,
    time_ns: u64,
    mapped: BTreeMap<u64, u64>,
    live: BTreeMap<u64, Live>,
    pub(crate) live_bytes: u64,
    pub(crate) peak_bytes: u64,
}

impl World {
    pub(crate) fn new(ring_bytes: usize) -> Self {
        let rings = (0..3).map(|_| Ring::new(ring_bytes)).collect();
        Self { rings, time_ns: 0, mapped: BTreeMap::new(), live: BTreeMap::new(), live_bytes: 0, peak_bytes: 0 }
    }

    pub(crate) fn run(steps: &[Step], ring_bytes: usize) -> Self {
        let mut world = Self::new(ring_bytes);
        steps.iter().for_each(|&step| world.step(step));
        world
    }

    #[track_caller]
    fn record(&mut self, stream: u64, action: Action) {
        self.time_ns += 700;
        self.rings[stream as usize].push(Record { time_ns: self.time_ns, action, context: Context::here() });
    }

    pub(crate) fn step(&mut self, step: Step) {
        match step {
            Step::Map { stream, page } => {
                let address = page_address(stream, page);
                if self.mapped.insert(address, stream).is_none() {
                    self.record(stream, Action::SegmentMap { address, bytes: PAGE, stream });
                }
            }
            Step::Unmap { stream, page } => {
                let address = page_address(stream, page);
                if self.is_free(address, PAGE) && self.mapped.remove(&address).is_some() {
                    self.record(stream, Action::SegmentUnmap { address, bytes: PAGE, stream });
                }
            }
            Step::Alloc { stream, slot, bytes } => self.alloc(stream, page_address(stream, 0) + slot * SLOT, bytes),
            Step::Free { which, at_once } => self.free(which, at_once),
            Step::Complete { which } => {
                let Some((address, block)) = self.pick(which, true) else { return };
                self.live.remove(&address);
                self.live_bytes -= block.bytes;
                let Live { bytes, stream, .. } = block;
                self.record(stream, Action::FreeCompleted { address, bytes, stream });
            }
            Step::Other { kind } => self.other(kind),
        }
    }

    fn alloc(&mut self, stream: u64, address: u64, bytes: u64) {
        let rounded_bytes = bytes.max(1).next_multiple_of(512);
        let end = address + rounded_bytes;
        let pages = (address / PAGE..=(end - 1) / PAGE).map(|page| page * PAGE);
        if !self.is_free(address, rounded_bytes)
            || pages.into_iter().any(|page| self.mapped.get(&page) != Some(&stream))
        {
            return;
        }
        self.record(stream, Action::Alloc { address, bytes, rounded_bytes, stream });
        self.live.insert(address, Live { bytes, rounded_bytes, stream, pending: false });
        self.live_bytes += bytes;
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
    }

    fn free(&mut self, which: usize, at_once: bool) {
        let Some((address, Live { bytes, stream, .. })) = self.pick(which, false) else { return };
        if at_once {
            self.record(stream, Action::Freed { address, bytes, stream });
            self.live.remove(&address);
            self.live_bytes -= bytes;
        } else {
            self.record(stream, Action::StreamUse { address, stream: stream + 1, exact: bytes % 2 == 0 });
            self.record(stream, Action::FreeRequested { address, bytes, stream });
            self.record(stream, Action::Pending { address, stream, waits: 2 });
            self.live.get_mut(&address).expect("picked from it").pending = true;
        }
    }

    fn other(&mut self, kind: u8) {
        let action = match kind % 5 {
            0 => Action::OutOfMemory { bytes: 1 << 40, stream: 0, device_free_bytes: 12345 },
            1 => Action::Rung { rung: Rung::ALL[usize::from(kind) % Rung::ALL.len()], bytes: 512, stream: 0 },
            2 => Action::Stall { stream: 0, stall_ns: 1_000_000 },
            3 => Action::WaitInserted { stream: 0, for_stream: 1 },
            _ => Action::Snapshot,
        };
        self.record(0, action);
    }

    fn pick(&self, which: usize, pending: bool) -> Option<(u64, Live)> {
        let candidates: Vec<_> = self.live.iter().filter(|(_, block)| block.pending == pending).collect();
        let &(&address, &block) = candidates.get(which % candidates.len().max(1))?;
        Some((address, block))
    }

    fn is_free(&self, address: u64, bytes: u64) -> bool {
        let before = self.live.range(..address + bytes).next_back();
        before.is_none_or(|(&start, block)| start + block.rounded_bytes <= address)
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.rings.iter().map(Ring::dropped).sum()
    }

    /// Bytes requested of blocks in use, and of pending ones.
    pub(crate) fn live_blocks(&self) -> usize {
        self.live.len()
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::new();
        snapshot.add_records(0, merge(&self.rings.iter().collect::<Vec<_>>()));
        let stack = StackId::EMPTY;
        let mapped = |(&address, &stream)| MappedRange { address, bytes: PAGE, stream, stack };
        let block = |(&address, live): (&u64, &Live)| Block {
            address,
            bytes: live.rounded_bytes,
            requested_bytes: live.bytes,
            state: if live.pending { BlockState::PendingFree } else { BlockState::Allocated },
            stack,
        };
        let mapped = self.mapped.iter().map(mapped).collect();
        let segments = Segment::runs(mapped, self.live.iter().map(block).collect());
        let device = snapshot.device_mut(0);
        device.segments = segments.expect("the world is consistent");
        device.notes.history_dropped = self.dropped();
        snapshot
    }
}

fn page_address(stream: u64, page: u64) -> u64 {
    // Streams lie next to each other, so that neighbours of different streams must not be joined.
    BASE + (stream * PAGES_OF_STREAM + page) * PAGE
}

/// A world with a bit of everything.
pub(crate) fn small() -> World {
    let mut world = World::new(1 << 20);
    for page in 0..3 {
        world.step(Step::Map { stream: 0, page });
    }
    world.step(Step::Map { stream: 1, page: 0 });
    for slot in 0..4 {
        world.step(Step::Alloc { stream: 0, slot, bytes: 1000 + slot });
    }
    world.step(Step::Alloc { stream: 1, slot: 0, bytes: 77 });
    world.step(Step::Free { which: 0, at_once: true });
    world.step(Step::Free { which: 0, at_once: false });
    world.step(Step::Free { which: 0, at_once: false });
    world.step(Step::Complete { which: 0 });
    world.step(Step::Unmap { stream: 0, page: 2 });
    for kind in 0..5 {
        world.step(Step::Other { kind });
    }
    world
}

pub(crate) fn written(snapshot: &Snapshot) -> Vec<u8> {
    let mut bytes = Vec::new();
    snapshot.write_to(&mut bytes).expect("within limits, and memory does not fail");
    bytes
}
