//! What stands behind a heap's lock: the heap itself, its part of the history, and who asked for its blocks.

use std::ops::AddAssign;
use std::sync::Arc;

use highwater_core::{
    BlockId, BlockInfo, Freed, Heap, Placement, Position, Prepaid, Receive, Retired, SMALL_BYTES, Satisfied,
    StreamIndex, Wait, Window,
};
use highwater_history::{Action, Context, Record, Ring};

use crate::peak::Share;
use crate::stamp::Stamp;

/// A free on its way to a heap.
pub(crate) struct FreeMessage {
    pub(crate) freed: Freed,
    pub(crate) context: Context,
}

/// What a heap has been asked for.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Tally {
    /// Requests that were met.
    pub(crate) allocations: u64,
    pub(crate) frees: u64,
    /// Requests that free memory of the heap met.
    pub(crate) own_free: u64,
    /// Bytes asked for, of all requests together.
    pub(crate) requested: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.allocations += other.allocations;
        self.frees += other.frees;
        self.own_free += other.own_free;
        self.requested += other.requested;
    }
}

/// While large blocks are freed, a fence is recorded behind one of them this often, ns of the stamps that records have.
///
/// It tells other streams early which handles are free for them. Without it a stream that looks for some learns nothing: it
/// records the first fence that covers them then, behind everything that their owner was given meanwhile.
const FENCE_EVERY_NS: u64 = 1_000_000;

/// A heap with its history.
pub(crate) struct HeapState {
    pub(crate) heap: Heap,
    pub(crate) ring: Ring,
    pub(crate) tally: Tally,
    pub(crate) prepaid: Prepaid,
    /// From when on the free of a large block asks for a fence.
    next_fence_ns: u64,
    clock: Arc<Stamp>,
    share: Arc<Share>,
    stream: StreamIndex,
    /// Where blocks were asked for, by their numbers: those given out, and freed ones that wait. The others are of no use.
    births: Vec<Context>,
}

impl HeapState {
    pub(crate) fn new(
        stream: StreamIndex,
        granularity: u64,
        history_bytes: usize,
        clock: Arc<Stamp>,
        share: Arc<Share>,
    ) -> Self {
        HeapState {
            heap: Heap::new(granularity),
            ring: Ring::new(history_bytes),
            tally: Tally::default(),
            prepaid: Prepaid::default(),
            next_fence_ns: 0,
            clock,
            share,
            stream,
            births: Vec::new(),
        }
    }

    /// The number of its stream.
    pub(crate) fn index(&self) -> StreamIndex {
        self.stream
    }

    /// The same as records have it.
    fn number(&self) -> u64 {
        u64::from(self.stream.0)
    }

    /// Places a request in free memory.
    #[inline(always)]
    pub(crate) fn place(&mut self, requested: u64, context: Context) -> Option<Placement> {
        let placed = self.heap.place(requested)?;
        self.born(placed, requested, context);
        Some(placed)
    }

    /// Places the request that a window was made for.
    pub(crate) fn settle(&mut self, window: &Window, requested: u64, context: Context) -> Placement {
        let placed = self.heap.settle(window, requested);
        self.born(placed, requested, context);
        placed
    }

    #[inline(always)]
    fn born(&mut self, placed: Placement, requested: u64, context: Context) {
        self.tally.allocations += 1;
        self.tally.requested += requested;
        self.share.set_live(self.heap.books().live);
        let index = placed.block.0 as usize;
        if index >= self.births.len() {
            self.births.resize(index + 1, context);
        }
        self.births[index] = context;
        let action = Action::Alloc {
            address: placed.address,
            bytes: requested,
            rounded_bytes: placed.bytes,
            stream: self.number(),
        };
        self.ring.push(Record { time_ns: self.clock.read(), action, context });
    }

    /// Takes a block back. The bytes that had been asked for.
    #[inline(always)]
    pub(crate) fn take_back(&mut self, freed: Freed, context: Context) -> u64 {
        self.tally.frees += 1;
        let (time_ns, stream, waits) = (self.clock.read(), self.number(), freed.waits.len());
        let BlockInfo { address, requested: bytes, .. } = self.heap.free(freed);
        self.share.set_live(self.heap.books().live);
        if waits == 0 {
            self.ring.push(Record { time_ns, action: Action::Freed { address, bytes, stream }, context });
        } else {
            let waits = u32::try_from(waits).expect("one wait for each stream");
            self.note(time_ns, Action::FreeRequested { address, bytes, stream }, context);
            self.note(time_ns, Action::Pending { address, stream, waits }, context);
        }
        bytes
    }

    /// Whether a fence is to be recorded behind a free of so many bytes that was just taken back.
    #[inline]
    pub(crate) fn asks_for_fence(&mut self, freed: u64) -> bool {
        let now_ns = self.clock.last();
        if freed <= SMALL_BYTES || now_ns < self.next_fence_ns {
            return false;
        }
        self.next_fence_ns = now_ns + FENCE_EVERY_NS;
        true
    }

    /// Ends the pending frees that are over; see [`Heap::retire`].
    pub(crate) fn retire(
        &mut self,
        now: Position,
        time_ns: u64,
        context: Context,
        satisfied: impl Fn(Wait) -> Satisfied,
    ) -> usize {
        let retired = self.heap.retire(now, satisfied);
        for Retired { address, requested } in &retired {
            let action = Action::FreeCompleted { address: *address, bytes: *requested, stream: self.number() };
            self.note(time_ns, action, context);
        }
        retired.len()
    }

    /// Adds a record to the history.
    #[inline(never)]
    pub(crate) fn note(&mut self, time_ns: u64, action: Action, context: Context) {
        self.ring.push(Record { time_ns, action, context });
    }

    /// Where a block was asked for that is given out, or whose free is pending.
    pub(crate) fn birth(&self, block: BlockId) -> Context {
        self.births[block.0 as usize]
    }
}

impl Receive<FreeMessage> for HeapState {
    fn receive(&mut self, message: FreeMessage) {
        let requested = self.take_back(message.freed, message.context);
        self.share.arrive(requested);
    }
}
