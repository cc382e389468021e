//! What keeps a stream alive: the handles of the program, and the memory that was allocated on it.
//!
//! Memory counts as well, but a free leaves its count in the heap for the next allocation
//! ([`Prepaid`](highwater_core::Prepaid)).
#![allow(unsafe_code)]

use std::sync::Arc;

use crate::heap_state::HeapState;
use crate::stream::Stream;

impl Stream {
    /// What memory holds that was allocated on this stream; `prepaid` if a count was taken from the heap for it.
    #[inline]
    pub(crate) fn hold_for_memory(&self, prepaid: bool) -> Stream {
        if !prepaid {
            return Stream::hold(self.inner().clone());
        }
        // SAFETY: a free has left a count of the stream of this place, which has one stream at a time, and it was taken
        // for this.
        Stream::hold(unsafe { Arc::from_raw(Arc::as_ptr(self.inner())) })
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
            // SAFETY: a free has left it, and it is taken once. It is not the last one: this holds another.
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
