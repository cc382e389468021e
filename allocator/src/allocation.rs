//! One allocation: a block, its owner, and who else uses it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use highwater_core::{Placement, Position, Until, Uses};
use highwater_history::{Action, Context, SpanPath};
use parking_lot::Mutex;

use crate::capture::GraphPool;
use crate::error::AllocError;
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
    /// Whether somebody outside knows the address: exact ends of uses are not believed then.
    escaped: AtomicBool,
    /// The graph that the memory belongs to, when it was allocated inside a capture.
    graph: Option<Arc<GraphPool>>,
    context: Context,
}

impl Allocation {
    pub(crate) fn new(owner: &Stream, bytes: u64, context: Context) -> Result<Self, AllocError> {
        let shared = owner.shared();
        let placement = match bytes {
            0 => None,
            _ => Some(shared.place(owner.slot(), bytes, context)?),
        };
        let graph = owner.slot().graph.lock().clone();
        Ok(Allocation {
            owner: owner.clone(),
            placement,
            bytes,
            uses: Mutex::new(Uses::default()),
            escaped: AtomicBool::new(false),
            graph,
            context,
        })
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

    /// Somebody outside gets to know the address.
    pub(crate) fn escape(&self) {
        self.escaped.store(true, Ordering::Release);
    }

    /// Notes a use by a stream; the owner's own uses need no note.
    pub(crate) fn note_use(&self, user: &Slot, until: Until, context: Context) {
        if self.placement.is_none() || user.index == self.owner.slot().index {
            return;
        }
        let until = if self.escaped.load(Ordering::Acquire) { Until::Free } else { until };
        let first = {
            let mut uses = self.uses.lock();
            let known = uses.iter().any(|(stream, _)| stream == user.index);
            uses.note(user.index, until);
            !known
        };
        if first {
            let action = Action::StreamUse {
                address: self.address(),
                stream: u64::from(user.index.0),
                exact: matches!(until, Until::Position(_)),
            };
            let time_ns = self.owner.shared().device.now_ns();
            self.owner.slot().station.enter().note(time_ns, action, context);
        }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let Some(placement) = self.placement else { return };
        let freed = Leftover {
            owner: self.owner.clone(),
            placement,
            bytes: self.bytes,
            uses: std::mem::take(self.uses.get_mut()),
            // A drop has no caller's line: the line that allocated, in the span that frees.
            context: Context { span: SpanPath::current(), ..self.context },
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
    context: Context,
}

impl Leftover {
    /// Gives the block back to its heap.
    pub(crate) fn give_back(self) {
        let shared: &Shared = self.owner.shared();
        if shared.process.is_forked() {
            return;
        }
        shared.ledger.died(self.bytes);
        shared.give_back(self.owner.slot(), self.placement.block, &self.uses, self.context);
    }
}
