//! How often the program's calls came here, and where they went.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters; each only grows.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Requests met by the allocator.
    pub(crate) allocations: AtomicU64,
    /// Blocks of the allocator freed.
    pub(crate) frees: AtomicU64,
    /// Requests and frees that the driver was left to serve.
    pub(crate) forwarded: AtomicU64,
    /// Those of them made in a context that is not a primary one.
    pub(crate) in_other_contexts: AtomicU64,
    /// Requests that found no memory.
    pub(crate) out_of_memory: AtomicU64,
    /// Frees that waited for the whole context, because of streams that nobody told of.
    pub(crate) context_synchronizations: AtomicU64,
    /// Functions that the program got by asking the driver for their addresses.
    pub(crate) looked_up: AtomicU64,
}

impl Counts {
    /// All of them by name.
    pub(crate) fn pairs(&self) -> [(&'static str, u64); 7] {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("allocations", read(&self.allocations)),
            ("frees", read(&self.frees)),
            ("forwarded", read(&self.forwarded)),
            ("in_other_contexts", read(&self.in_other_contexts)),
            ("out_of_memory", read(&self.out_of_memory)),
            ("context_synchronizations", read(&self.context_synchronizations)),
            ("looked_up", read(&self.looked_up)),
        ]
    }
}

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
