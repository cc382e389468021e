//! What keeps a stream alive: the handles of the program, and the memory that was allocated on it.
//!
//! Memory counts as well, but a free leaves its count in the heap for the next allocation, and an allocation that finds none
//! there counts for the next ones as well ([`Prepaid`](highwater_core::Prepaid)).
#![allow(unsafe_code)]

use std::sync::Arc;

use crate::heap_state::HeapState;
use crate::stream::Stream;

/// Counts that are prepaid at once.
const NEXT: usize = 64;

impl Stream {
    /// What memory holds that was allocated on this stream; `prepaid` if a count was taken from the heap for it.
    #[inline]
    pub(crate) fn hold_for_memory(&self, prepaid: bool) -> Stream {
        if !prepaid {
            return Stream::hold(self.inner().clone());
        }
        // SAFETY: a count of the stream of this place was left in it, a place has one stream at a time, and the count was
        // taken for this.
        Stream::hold(unsafe { Arc::from_raw(Arc::as_ptr(self.inner())) })
    }

    /// Counts for what is allocated next as well: where another thread frees, the counter is fetched from there once for
    /// all of them.
    #[cold]
    pub(crate) fn prepay_next(&self, state: &mut HeapState) {
        if state.prepaid.leave_many(NEXT, &self.inner().handles) {
            (0..NEXT).for_each(|_| std::mem::forget(self.inner().clone()));
        }
    }

    /// Leaves the count that memory held. Whether it does: [`forget`](std::mem::forget) this then.
    #[inline]
    #[must_use]
    pub(crate) fn prepay(&self, state: &mut HeapState) -> bool {
        state.prepaid.leave(&self.inner().handles)
    }

    /// Takes all prepaid counts away.
    #[cold]
    fn take_prepaid(&self) {
        let prepaid = self.slot().station.enter().prepaid.take_all();
        for _ in 0..prepaid {
            // SAFETY: it was left, and is taken once. It is not the last one: this holds another.
            unsafe { Arc::decrement_strong_count(Arc::as_ptr(self.inner())) };
        }
    }
}

impl Drop for Stream {
    #[inline]
    fn drop(&mut self) {
        // In a forked child somebody may be inside for good.
        if self.is_handle && self.inner().handles.remove() && !self.shared().process.is_forked() {
            self.take_prepaid();
        }
    }
}
