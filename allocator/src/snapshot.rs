//! Snapshots: what the heaps hold now, with the history that led to it.
//!
//! Each heap is looked at under its own lock, one after the other. That is consistent: heaps never share an address.

use highwater_core::{TileInfo, TileKind};
use highwater_device::{MemoryInfo, ProcessMemory};
use highwater_history::{
    Action, Block, BlockState, Context, DeviceMemory, MappedRange, Noted, PendingWait, Record, Ring, Segment, Snapshot,
    StackId, StreamName, merge,
};

use crate::Allocator;
use crate::heap_state::HeapState;
use crate::shared::Shared;
use crate::slot::Slot;

/// What one heap gives to a snapshot.
#[derive(Default)]
struct Parts {
    mapped: Vec<MappedRange>,
    blocks: Vec<Block>,
    rings: Vec<Ring>,
    streams: Vec<StreamName>,
    pending_waits: Vec<PendingWait>,
}

impl Allocator {
    /// A snapshot of this device alone, as device 0.
    #[track_caller]
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = Snapshot::new();
        self.add_to_snapshot(&mut snapshot, 0);
        snapshot
    }

    /// Adds this device to a snapshot of several, as device number `index`.
    #[track_caller]
    pub fn add_to_snapshot(&self, snapshot: &mut Snapshot, index: usize) {
        let device = &self.shared().device;
        let (info, processes) = (device.memory_info().ok(), device.processes());
        self.shared().add_to_snapshot(snapshot, index, info);
        let notes = &mut snapshot.devices[index].notes;
        let Some(&Noted { time_us, stack, span, .. }) = notes.device_memory.last() else { return };
        let noted = |&ProcessMemory { pid, bytes, is_own }| {
            let fact = highwater_history::ProcessMemory { pid, bytes, is_own };
            Noted { time_us, stack, span, fact }
        };
        notes.processes.extend(processes.iter().map(noted));
    }
}

impl Shared {
    /// See [`Allocator::add_to_snapshot`]; `info` is what the device says of its memory. Enters every heap; none is held on
    /// entry.
    #[track_caller]
    pub(crate) fn add_to_snapshot(&self, snapshot: &mut Snapshot, index: usize, info: Option<MemoryInfo>) {
        let shared = self;
        let device = &shared.device;
        let context = Context::here();
        let mut parts = Parts::default();
        for slot in shared.slots() {
            let inside = slot.station.enter();
            parts.add(shared, slot, &inside, snapshot);
        }
        let mark = Record { time_ns: device.now_ns(), action: Action::Snapshot, context };
        let mut records = merge(&parts.rings.iter().collect::<Vec<_>>());
        // A heap that was looked at early may lack what a later one has; the mark still comes last.
        records.push(mark);
        snapshot.add_records(index, records);

        let segments = Segment::runs(parts.mapped, parts.blocks);
        let segments = segments.expect("tiles of heaps neither overlap nor leave what is mapped");
        let held_bytes = shared.ledger.physical().now;
        let sample = info.map(|info| DeviceMemory { total_bytes: info.total, free_bytes: info.free, held_bytes });
        let (stack, time_us) = (snapshot.stack_of(context), mark.time_ns / 1000);
        let history = &mut snapshot.devices[index];
        history.segments = segments;
        let notes = &mut history.notes;
        notes.name = device.properties().name.clone();
        notes.capacity_bytes = Some(device.properties().total_bytes);
        notes.other_bytes = sample.map(DeviceMemory::other_bytes);
        notes.limit_bytes = Some(shared.ledger.limit());
        notes.granularity_bytes = Some(device.properties().granularity_bytes);
        notes.device_memory.extend(sample.map(|fact| Noted { time_us, stack, span: 0, fact }));
        notes.history_capacity_bytes = parts.rings.iter().map(|ring| ring.capacity_bytes() as u64).sum();
        notes.history_dropped = parts.rings.iter().map(Ring::dropped).sum();
        notes.streams = parts.streams;
        notes.pending_waits = parts.pending_waits;
        snapshot.settings = shared.settings.pairs();
    }
}

impl Parts {
    fn add(&mut self, shared: &Shared, slot: &Slot, state: &HeapState, snapshot: &mut Snapshot) {
        let stream = u64::from(slot.index.0);
        for run in state.heap.mapped_runs() {
            let (first, last) = (run[0], run[run.len() - 1]);
            let bytes = last.address + last.bytes - first.address;
            self.mapped.push(MappedRange { address: first.address, bytes, stream, stack: StackId::EMPTY });
            self.blocks.extend(run.iter().filter_map(|tile| block(tile, state, snapshot)));
        }
        for (address, wait) in state.heap.pending_waits() {
            let (fence, open) = shared.outlook_of(wait);
            let (stream, position) = (u64::from(wait.stream.0), wait.position.0);
            let (fence, held_by) = (Some(fence), open.map(|open| u64::from(open.0)));
            self.pending_waits.push(PendingWait { address, stream, position, fence, held_by });
        }
        self.streams.push(StreamName { stream, name: slot.name().to_string(), open: slot.openness.is_open() });
        self.rings.push(state.ring.clone());
    }
}

fn block(tile: &TileInfo, state: &HeapState, snapshot: &mut Snapshot) -> Option<Block> {
    let state_of = match tile.kind {
        TileKind::Free => return None,
        TileKind::Pending => BlockState::PendingFree,
        TileKind::Live => BlockState::Allocated,
    };
    let stack = tile.block.map_or(StackId::EMPTY, |block| snapshot.stack_of(state.birth(block)));
    let TileInfo { address, bytes, requested, .. } = *tile;
    Some(Block { address, bytes, requested_bytes: requested, state: state_of, stack })
}
