//! Counts of a shared value that wait in a heap for the next block.
//!
//! Each block holds its stream, and to count for each would be the most expensive part of an allocation. So a free leaves
//! its count in the heap, and the next allocation takes it from there: both are inside the heap anyway. Such counts are
//! *prepaid*. They must not keep a stream alive that nobody needs:
//!
//! 1. A count is left only while the program has a handle of the stream, and **inside** the heap.
//! 2. Whoever drops the last handle goes inside **after** that, and takes all prepaid counts away.
//!
//! A free that comes inside after rule 2 sees that there is no handle. `tests/loom.rs` checks it, and finds a count that is
//! left for good when a rule is left out.

use crate::sync::{AtomicUsize, Ordering};

/// How many handles of a stream the program has.
#[derive(Debug)]
pub struct Handles(AtomicUsize);

impl Handles {
    /// None.
    #[must_use]
    pub fn new() -> Self {
        Handles(AtomicUsize::new(0))
    }

    /// One more.
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether there is one. Inside the heap it is never said of a handle whose drop has been inside.
    fn any(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }

    /// One less. Whether it was the last one: [take all](Prepaid::take_all) prepaid counts away then, inside the heap.
    #[must_use]
    pub fn remove(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

impl Default for Handles {
    fn default() -> Self {
        Self::new()
    }
}

/// Counts that nobody holds at the moment. It lies behind the heap's lock.
#[derive(Debug, Default)]
pub struct Prepaid(usize);

impl Prepaid {
    /// Leaves one, unless there is no handle. Whether it was left.
    #[inline]
    #[must_use]
    pub fn leave(&mut self, handles: &Handles) -> bool {
        self.leave_many(1, handles)
    }

    /// Leaves so many that were counted for this, unless there is no handle. Whether they were left.
    #[must_use]
    pub fn leave_many(&mut self, counts: usize, handles: &Handles) -> bool {
        let left = handles.any();
        self.0 += counts * usize::from(left);
        left
    }

    /// Takes one, if there is one.
    #[inline]
    #[must_use]
    pub fn take(&mut self) -> bool {
        let any = self.0 > 0;
        self.0 -= usize::from(any);
        any
    }

    /// Takes all; how many.
    #[must_use]
    pub fn take_all(&mut self) -> usize {
        std::mem::take(&mut self.0)
    }
}
