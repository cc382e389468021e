//! One allocation: a block, its owner, and who else uses it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use highwater_core::{BlockId, Placement, Position, Until, Uses};
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
    /// `None` once it is dropped.
    owner: Option<Stream>,
    address: u64,
    since: Position,
    /// Of no meaning for zero bytes, as the address.
    block: BlockId,
    /// Whether somebody outside knows the address: exact ends of uses are not believed then.
    escaped: AtomicBool,
    bytes: u64,
    /// Set when there is something of it, which is rare: memory that its stream alone uses is small and soon made.
    others: OnceLock<Box<Others>>,
    pub(crate) context: Context,
}

/// What is of concern for others than the owner.
#[derive(Default)]
struct Others {
    uses: Mutex<Uses>,
    /// Ends of uses by streams that the allocator does not know.
    #[cfg(feature = "cuda")]
    outside: crate::cuda::Events,
    /// The graph that the memory belongs to, when it was allocated inside a capture.
    graph: Option<Arc<GraphPool>>,
}

impl Others {
    /// The allocation of a graph.
    #[cold]
    fn of(graph: Arc<GraphPool>) -> Box<Self> {
        Box::new(Others { graph: Some(graph), ..Others::default() })
    }

    /// Whether there is more to a free than the ends of uses.
    fn is_special(&self) -> bool {
        #[cfg(feature = "cuda")]
        if !self.outside.is_empty() {
            return true;
        }
        self.graph.is_some()
    }
}

impl Allocation {
    #[inline]
    pub(crate) fn new(owner: &Stream, bytes: u64, context: Context) -> Result<Self, AllocError> {
        if bytes == 0 {
            return Ok(Self::empty(owner, context));
        }
        let (Placement { address, since, block, .. }, holder) = owner.place(bytes, context)?;
        let others = owner.slot().graph.get().map_or_else(OnceLock::new, |graph| OnceLock::from(Others::of(graph)));
        let escaped = AtomicBool::new(false);
        let allocation = Allocation { owner: Some(holder), address, since, block, escaped, bytes, others, context };
        #[cfg(feature = "sanitizer")]
        allocation.tell_birth();
        Ok(allocation)
    }

    #[cold]
    fn empty(owner: &Stream, context: Context) -> Self {
        Allocation {
            owner: Some(owner.hold_for_memory(false)),
            address: 0,
            since: Position(0),
            block: BlockId(0),
            escaped: AtomicBool::new(false),
            bytes: 0,
            others: OnceLock::new(),
            context,
        }
    }

    /// The stream that it was allocated on.
    #[inline]
    pub(crate) fn owner(&self) -> &Stream {
        self.owner.as_ref().expect("memory holds its stream until it is dropped")
    }

    /// First address; 0 for an allocation of zero bytes.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// Length as asked for, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Another stream may touch the memory only after this position of the owner.
    pub(crate) fn since(&self) -> Position {
        self.since
    }

    fn others(&self) -> &Others {
        self.others.get_or_init(Box::default)
    }

    /// The events that end the uses of streams that the allocator does not know.
    #[cfg(feature = "cuda")]
    pub(crate) fn outside(&self) -> &crate::cuda::Events {
        &self.others().outside
    }

    /// Whether that position is over: any stream may touch the memory.
    pub(crate) fn is_settled(&self) -> bool {
        let since = self.since();
        since == Position(0) || self.owner().slot().clock.completed() >= since
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
        self.bytes > 0 && user.index != self.owner().slot().index
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
            self.others().uses.lock().close(user.index, until);
        }
    }

    fn add_use(&self, user: &Slot, exact: bool, context: Context, add: impl FnOnce(&mut Uses)) {
        let first = {
            let mut uses = self.others().uses.lock();
            let known = uses.knows(user.index);
            add(&mut uses);
            !known
        };
        if first {
            let action = Action::StreamUse { address: self.address(), stream: u64::from(user.index.0), exact };
            let slot = self.owner().slot();
            let mut inside = slot.station.enter();
            inside.note(slot.stamp.read(), action, context);
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let Some(owner) = self.owner.take() else { return };
        if self.bytes == 0 {
            return;
        }
        // A drop has no caller's line: the line that allocated, in the span that frees.
        let context = Context { span: SpanPath::current(), ..self.context };
        let mut others = self.others.take();
        let uses = others.as_mut().map(|others| std::mem::take(others.uses.get_mut())).unwrap_or_default();
        if !others.as_ref().is_some_and(|others| others.is_special()) && !owner.shared().process.is_forked() {
            #[cfg(feature = "sanitizer")]
            owner.shared().tell_free(self.address);
            return owner.give_back((self.block, self.bytes), &uses, Vec::new(), context);
        }
        let Others {
            #[cfg(feature = "cuda")]
            mut outside,
            graph,
            ..
        } = *others.unwrap_or_default();
        let freed = Leftover {
            owner,
            #[cfg(feature = "sanitizer")]
            address: self.address,
            block: self.block,
            bytes: self.bytes,
            uses,
            #[cfg(feature = "cuda")]
            outside: outside.take(),
            context,
        };
        match &graph {
            Some(graph) => graph.keep(freed),
            None => freed.give_back(),
        }
    }
}

/// What is left of an allocation that was dropped. It is live as long as a graph keeps it.
pub(crate) struct Leftover {
    owner: Stream,
    #[cfg(feature = "sanitizer")]
    address: u64,
    block: BlockId,
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
        shared.tell_free(self.address);
        self.owner.give_back((self.block, self.bytes), &self.uses, outside, self.context);
    }
}
