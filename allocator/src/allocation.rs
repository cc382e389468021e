//! One allocation: a block, its owner, and who else uses it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use highwater_core::{Placement, Position, Until, Uses};
use highwater_history::{Action, Context, SpanPath};
use parking_lot::Mutex;

use crate::capture::GraphPool;
use crate::error::AllocError;
#[cfg(feature = "cuda")]
use crate::fence::Point;
use crate::shared::Shared;
use crate::slot::Slot;
use crate::stream::Stream;

/// Memory that is given out; dropping it gives it back.
pub(crate) struct Allocation {
    pub(crate) owner: Stream,
    /// `None` for zero bytes.
    placement: Option<Placement>,
    bytes: u64,
    uses: Mutex<Uses>,
    /// Ends of uses by streams that the allocator does not know.
    #[cfg(feature = "cuda")]
    pub(crate) outside: crate::cuda::Events,
    /// Whether somebody outside knows the address: exact ends of uses are not believed then.
    escaped: AtomicBool,
    /// The graph that the memory belongs to, when it was allocated inside a capture.
    graph: Option<Arc<GraphPool>>,
    pub(crate) context: Context,
}

impl Allocation {
    pub(crate) fn new(owner: &Stream, bytes: u64, context: Context) -> Result<Self, AllocError> {
        let shared = owner.shared();
        let placement = match bytes {
            0 => None,
            _ => Some(shared.place(owner.slot(), bytes, context)?),
        };
        let graph = owner.slot().graph.get();
        let allocation = Allocation {
            owner: owner.clone(),
            placement,
            bytes,
            uses: Mutex::new(Uses::default()),
            #[cfg(feature = "cuda")]
            outside: crate::cuda::Events::default(),
            escaped: AtomicBool::new(false),
            graph,
            context,
        };
        #[cfg(feature = "sanitizer")]
        allocation.tell_birth();
        Ok(allocation)
    }

    /// First address; 0 for an allocation of zero bytes.
    pub(crate) fn address(&self) -> u64 {
        self.placement.map_or(0, |placed| placed.address)
    }

    /// Length as asked for, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Another stream may touch the memory only after this position of the owner.
    pub(crate) fn since(&self) -> Position {
        self.placement.map_or(Position(0), |placed| placed.since)
    }

    /// Whether that position is over: any stream may touch the memory.
    pub(crate) fn is_settled(&self) -> bool {
        let since = self.since();
        since == Position(0) || self.owner.slot().clock.completed() >= since
    }

    /// Somebody outside gets to know the address.
    pub(crate) fn escape(&self) {
        self.escaped.store(true, Ordering::Release);
    }

    /// What is believed of the end of a use.
    fn believed(&self, until: Until) -> Until {
        if self.escaped.load(Ordering::Acquire) { Until::Free } else { until }
    }

    /// Whether uses by a stream need a note; the owner's own do not.
    fn counts(&self, user: &Slot) -> bool {
        self.placement.is_some() && user.index != self.owner.slot().index
    }

    /// Notes a use by a stream.
    pub(crate) fn note_use(&self, user: &Slot, until: Until, context: Context) {
        if self.counts(user) {
            let until = self.believed(until);
            let exact = matches!(until, Until::Position(_));
            self.add_use(user, exact, context, |uses| uses.note(user.index, until));
        }
    }

    /// A use by a stream begins: it lasts until the free unless it is closed.
    pub(crate) fn open_use(&self, user: &Slot, context: Context) {
        if self.counts(user) {
            self.add_use(user, true, context, |uses| uses.open(user.index));
        }
    }

    /// A use that was opened is over in the order of submission: everything that belongs to it was submitted before this
    /// call.
    pub(crate) fn close_use(&self, user: &Slot) {
        if self.counts(user) {
            let until = self.believed(Until::Position(user.clock.mark()));
            self.uses.lock().close(user.index, until);
        }
    }

    fn add_use(&self, user: &Slot, exact: bool, context: Context, add: impl FnOnce(&mut Uses)) {
        let first = {
            let mut uses = self.uses.lock();
            let known = uses.knows(user.index);
            add(&mut uses);
            !known
        };
        if first {
            let action = Action::StreamUse { address: self.address(), stream: u64::from(user.index.0), exact };
            let slot = self.owner.slot();
            let mut inside = slot.station.enter();
            inside.note(slot.stamp.read(), action, context);
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let Some(placement) = self.placement else { return };
        #[cfg(feature = "cuda")]
        let elsewhere = self.graph.is_some() || !self.outside.is_empty();
        #[cfg(not(feature = "cuda"))]
        let elsewhere = self.graph.is_some();
        // A drop has no caller's line: the line that allocated, in the span that frees.
        let context = Context { span: SpanPath::current(), ..self.context };
        let shared = self.owner.shared();
        if !elsewhere && !shared.process.is_forked() {
            #[cfg(feature = "sanitizer")]
            shared.tell_free(placement.address);
            return shared.give_back(
                self.owner.slot(),
                (placement.block, self.bytes),
                self.uses.get_mut(),
                Vec::new(),
                context,
            );
        }
        let freed = Leftover {
            owner: self.owner.clone(),
            placement,
            bytes: self.bytes,
            uses: std::mem::take(self.uses.get_mut()),
            #[cfg(feature = "cuda")]
            outside: self.outside.take(),
            context,
        };
        match &self.graph {
            Some(graph) => graph.keep(freed),
            None => freed.give_back(),
        }
    }
}

/// What is left of an allocation that was dropped. It is live as long as a graph keeps it.
pub(crate) struct Leftover {
    owner: Stream,
    placement: Placement,
    /// Length as asked for.
    bytes: u64,
    uses: Uses,
    #[cfg(feature = "cuda")]
    outside: Vec<cudarc::driver::CudaEvent>,
    context: Context,
}

impl Leftover {
    /// Gives the block back to its heap.
    pub(crate) fn give_back(self) {
        let shared: &Shared = self.owner.shared();
        if shared.process.is_forked() {
            #[cfg(feature = "cuda")]
            std::mem::forget(self.outside);
            return;
        }
        #[cfg(feature = "cuda")]
        let outside = self.outside.into_iter().map(|event| shared.await_outside(Point::Event(event))).collect();
        #[cfg(not(feature = "cuda"))]
        let outside = Vec::new();
        #[cfg(feature = "sanitizer")]
        shared.tell_free(self.placement.address);
        shared.give_back(self.owner.slot(), (self.placement.block, self.bytes), &self.uses, outside, self.context);
    }
}
