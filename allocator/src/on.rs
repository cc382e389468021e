//! Uses that begin before their work is submitted: a guard over calls past this crate.
//!
//! The rule: a guard opens a use of its stream when it is made, and closes it, with a mark of the stream, when it is
//! dropped. As long as one guard of a stream is open the stream uses the memory until the free; so a guard that is
//! forgotten is safe, and one that is dropped early shortens no other.

use std::fmt;
use std::sync::Arc;

use bytemuck::Pod;
use highwater_device::Address;
use highwater_history::Context;

use crate::error::StreamError;
use crate::{Buffer, Stream, View};

/// What names a stream: a [`Stream`], or with the feature `cuda` an `Arc<CudaStream>`, which is adopted if it is not
/// known.
pub trait UsesStream: sealed::Sealed {
    /// The stream, for memory of `like`'s allocator.
    ///
    /// # Errors
    /// When it cannot be a stream of that allocator.
    fn stream_like(&self, like: &Stream) -> Result<Stream, StreamError>;
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

impl sealed::Sealed for Stream {}

impl UsesStream for Stream {
    fn stream_like(&self, like: &Stream) -> Result<Stream, StreamError> {
        if Arc::ptr_eq(self.shared(), like.shared()) {
            return Ok(self.clone());
        }
        Err(StreamError::OtherAllocator { what: "the stream" })
    }
}

/// Elements of a [`Buffer`] in use on one stream, by calls past this crate: work that is submitted to that stream as long
/// as this lives may read and write them. Drop it right after the submission, so that the use ends there; when it is
/// forgotten, the use lasts for everything that the stream is given until the buffer is dropped, and the stream and the
/// allocator live on.
///
/// With the feature `cuda` it is what a kernel launch and every other call of cudarc takes.
pub struct On<'a, T> {
    view: View<'a, T>,
    /// The address of the first element; a launch of cudarc refers to it here.
    pub(crate) address: u64,
    stream: Stream,
    /// What is compared with other work when the guard is dropped.
    #[cfg(feature = "sanitizer")]
    open: Option<highwater_sanitizer::OpenUse>,
}

impl<T: Pod> Buffer<T> {
    /// All elements, for work that is submitted to `stream` past this crate: the stream is ordered after what was done
    /// with the memory before, and uses it until the guard is dropped. Work of two streams with one buffer is ordered by
    /// the program.
    ///
    /// # Errors
    /// When the stream belongs to another allocator or cannot be adopted, when an order would have to be made while a
    /// stream of the device captures, or when the device fails.
    #[track_caller]
    pub fn on(&self, stream: &impl UsesStream) -> Result<On<'_, T>, StreamError> {
        self.view().on(stream)
    }

    /// As [`on`](Buffer::on), for work that only reads. It is kept in use in the same way; the sanitizer takes it for a
    /// read, and a guard of `on` for a read and a write.
    ///
    /// # Errors
    /// As [`on`](Buffer::on).
    #[track_caller]
    pub fn read_on(&self, stream: &impl UsesStream) -> Result<On<'_, T>, StreamError> {
        self.view().read_on(stream)
    }
}

impl<'a, T: Pod> View<'a, T> {
    /// These elements, for work that is submitted to `stream` past this crate; see [`Buffer::on`]. The use counts for the
    /// whole buffer.
    ///
    /// # Errors
    /// As [`Buffer::on`].
    #[track_caller]
    pub fn on(self, stream: &impl UsesStream) -> Result<On<'a, T>, StreamError> {
        let on = self.used_on(stream, Context::here())?;
        #[cfg(feature = "sanitizer")]
        let on = on.seen(highwater_device::Access::ReadWrite, Context::here());
        Ok(on)
    }

    /// These elements, for work that only reads them; see [`Buffer::read_on`].
    ///
    /// # Errors
    /// As [`Buffer::on`].
    #[track_caller]
    pub fn read_on(self, stream: &impl UsesStream) -> Result<On<'a, T>, StreamError> {
        let on = self.used_on(stream, Context::here())?;
        #[cfg(feature = "sanitizer")]
        let on = on.seen(highwater_device::Access::Read, Context::here());
        Ok(on)
    }

    fn used_on(self, stream: &impl UsesStream, context: Context) -> Result<On<'a, T>, StreamError> {
        let stream = stream.stream_like(self.stream())?;
        #[cfg(feature = "sanitizer")]
        let _here = stream.shared().here(context);
        stream.come_after(self.allocation, context)?;
        self.allocation.open_use(stream.slot(), context);
        Ok(On {
            address: self.byte_range().address.0,
            view: self,
            stream,
            #[cfg(feature = "sanitizer")]
            open: None,
        })
    }
}

impl<'a, T: Pod> On<'a, T> {
    /// The elements.
    #[must_use]
    pub fn view(&self) -> View<'a, T> {
        self.view
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.view.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.view.is_empty()
    }

    /// The stream that uses them.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The address of the first, for work on the stream as long as this lives.
    #[must_use]
    pub fn address(&self) -> Address {
        Address(self.address)
    }
}

#[cfg(feature = "sanitizer")]
impl<T> On<'_, T> {
    /// The sanitizer takes the work for this.
    fn seen(mut self, access: highwater_device::Access, context: Context) -> Self {
        self.open = self.stream.open_use(self.view.byte_range(), access, context);
        self
    }
}

impl<T> Drop for On<'_, T> {
    fn drop(&mut self) {
        #[cfg(feature = "sanitizer")]
        self.stream.close_use(self.open.take());
        self.view.allocation.close_use(self.stream.slot());
    }
}

impl<T> fmt::Debug for On<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("On").field(&self.view).field(&self.stream.name()).finish()
    }
}
