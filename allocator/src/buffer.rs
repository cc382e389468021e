//! Typed device memory.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

use bytemuck::Pod;
use highwater_core::Until;
use highwater_device::{Address, ByteRange};
use highwater_history::Context;

use crate::allocation::Allocation;
use crate::error::StreamError;
use crate::{Fence, Stream};

/// `len` elements of device memory. Dropping it gives the memory back: at once to its own stream, and after the recorded
/// uses of other streams to everyone else.
///
/// What the device does with the bytes is not checked by the borrow checker: views may be written through a shared
/// reference, and the order of the work on them is a matter of streams and fences.
pub struct Buffer<T> {
    allocation: Allocation,
    len: usize,
    element: PhantomData<fn() -> T>,
}

impl<T: Pod> Buffer<T> {
    pub(crate) fn new(allocation: Allocation, len: usize) -> Self {
        Buffer { allocation, len, element: PhantomData }
    }

    /// Elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Length, bytes, as asked for.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.allocation.bytes()
    }

    /// The stream that it was allocated on.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        self.allocation.owner()
    }

    /// All elements.
    #[must_use]
    pub fn view(&self) -> View<'_, T> {
        View { allocation: &self.allocation, first: 0, len: self.len, element: PhantomData }
    }

    /// Some elements.
    ///
    /// # Panics
    /// When the range does not lie in the buffer.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> View<'_, T> {
        self.view().slice(range)
    }

    /// The address of the first element (0 when there is none), for calls past this crate. From now on every use of the
    /// buffer by another stream counts until the free.
    #[must_use]
    pub fn device_address(&self) -> Address {
        self.allocation.escape();
        Address(self.allocation.address())
    }

    /// Everything that `stream` is given until this buffer is dropped may use it.
    ///
    /// # Panics
    /// When the stream belongs to another allocator.
    #[track_caller]
    pub fn record_stream(&self, stream: &Stream) {
        assert!(Arc::ptr_eq(stream.shared(), self.stream().shared()), "the stream belongs to another allocator");
        self.allocation.note_use(stream.slot(), Until::Free, Context::here());
    }

    /// `stream` uses the buffer until `fence`, which was recorded on it after its last use. Earlier than
    /// [`record_stream`](Buffer::record_stream) where unrelated work follows.
    ///
    /// # Errors
    /// When the fence was recorded on another stream, or belongs to another allocator.
    #[track_caller]
    pub fn record_use(&self, stream: &Stream, fence: &Fence) -> Result<(), StreamError> {
        if !Arc::ptr_eq(self.stream().shared(), &fence.shared) {
            return Err(StreamError::OtherAllocator { what: "the fence" });
        }
        let stamp = &fence.recorded.stamp;
        if stamp.stream != stream.slot().index {
            return Err(StreamError::OtherStream { stream: stream.name().to_owned() });
        }
        self.allocation.note_use(stream.slot(), Until::Position(stamp.covered), Context::here());
        Ok(())
    }
}

impl<T: Pod> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes at {:#x} on {:?})", self.bytes(), self.allocation.address(), self.stream().name())
    }
}

/// Some elements of a [`Buffer`].
pub struct View<'a, T> {
    pub(crate) allocation: &'a Allocation,
    /// Index of the first element in the buffer.
    first: usize,
    len: usize,
    element: PhantomData<fn() -> T>,
}

impl<T> Clone for View<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for View<'_, T> {}

impl<'a, T: Pod> View<'a, T> {
    /// Elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fewer elements.
    ///
    /// # Panics
    /// When the range does not lie in the view.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> View<'a, T> {
        let Range { start, end } = resolve(range, self.len);
        assert!(start <= end && end <= self.len, "{start}..{end} does not lie in a view of {} elements", self.len);
        View { first: self.first + start, len: end - start, ..*self }
    }
}

impl<T> View<'_, T> {
    /// The stream that the buffer was allocated on.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        self.allocation.owner()
    }

    /// The bytes.
    pub(crate) fn byte_range(&self) -> ByteRange {
        let element = size_of::<T>() as u64;
        let address = Address(self.allocation.address() + self.first as u64 * element);
        ByteRange::new(address, self.len as u64 * element)
    }
}

impl<'a, T: Pod> From<&'a Buffer<T>> for View<'a, T> {
    fn from(buffer: &'a Buffer<T>) -> Self {
        buffer.view()
    }
}

impl<T> fmt::Debug for View<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({} elements at {})", self.len, self.byte_range().address)
    }
}

fn resolve(range: impl RangeBounds<usize>, len: usize) -> Range<usize> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => len,
    };
    start..end
}
