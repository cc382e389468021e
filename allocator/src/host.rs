//! Host memory that copies read and write.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use bytemuck::Pod;
use highwater_core::{Wait, join_waits};
use highwater_device::{Access, HostMemory};
use highwater_history::Context;
use parking_lot::{Mutex, MutexGuard};

use crate::error::{Doing, StreamError};
use crate::fence::capturing;
use crate::launch::Operands;
use crate::shared::Shared;
use crate::{Stream, View};

/// `len` elements of host memory for copies. It can be looked at and changed only while no copy is under way.
pub struct HostBuffer<T> {
    shared: Arc<Shared>,
    memory: HostMemory,
    len: usize,
    /// Copies that may still be under way: for each stream the position after the last one.
    copies: Mutex<Vec<Wait>>,
    element: PhantomData<fn() -> T>,
}

impl<T: Pod> HostBuffer<T> {
    pub(crate) fn new(shared: &Arc<Shared>, memory: HostMemory, len: usize) -> Self {
        HostBuffer { shared: shared.clone(), memory, len, copies: Mutex::new(Vec::new()), element: PhantomData }
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

    /// Whether no copy is under way. Never blocks.
    ///
    /// # Errors
    /// While a stream of the device captures and a copy may be under way, or when the device fails.
    pub fn is_ready(&self) -> Result<bool, StreamError> {
        self.are_over(&mut self.copies.lock())
    }

    fn are_over(&self, copies: &mut Vec<Wait>) -> Result<bool, StreamError> {
        let shared = &self.shared;
        while let Some(&last) = copies.last() {
            let doing = || "asking for the copies of a host buffer".to_owned();
            let gate = shared.gate().ok_or_else(|| capturing(&doing()))?;
            let fence = shared.fence_covering(&gate, shared.slot(last.stream), last.position).doing(doing)?;
            if let Some(fence) = fence
                && !shared.ask(&gate, &fence).doing(doing)?
            {
                return Ok(false);
            }
            copies.pop();
        }
        Ok(true)
    }

    /// Blocks the host until no copy is under way.
    ///
    /// # Errors
    /// After `timeout` for one copy, while a stream of the device captures, or when the device fails.
    pub fn wait(&self, timeout: Duration) -> Result<(), StreamError> {
        let mut copies = self.copies.lock();
        while let Some(&last) = copies.last() {
            let doing = || "waiting for the copies of a host buffer".to_owned();
            let gate = self.shared.gate().ok_or_else(|| capturing(&doing()))?;
            if !self.shared.wait_out(&gate, &[last], timeout).doing(doing)? {
                return Err(StreamError::TimedOut { doing: doing(), waited: timeout });
            }
            copies.pop();
        }
        Ok(())
    }

    /// Looks at the elements. No copy begins meanwhile: `look` must not ask for one, nor for this buffer again.
    ///
    /// # Errors
    /// [`StreamError::HostBufferBusy`] while a copy is under way.
    #[cfg_attr(feature = "sanitizer", track_caller)]
    pub fn read<R>(&self, look: impl FnOnce(&[T]) -> R) -> Result<R, StreamError> {
        let _copies = self.ready()?;
        #[cfg(feature = "sanitizer")]
        self.shared.tell_host_access(&self.memory, Access::Read);
        Ok(self.memory.read(look))
    }

    /// Changes the elements. No copy begins meanwhile, as with [`read`](HostBuffer::read).
    ///
    /// # Errors
    /// [`StreamError::HostBufferBusy`] while a copy is under way.
    #[cfg_attr(feature = "sanitizer", track_caller)]
    pub fn write<R>(&self, change: impl FnOnce(&mut [T]) -> R) -> Result<R, StreamError> {
        let _copies = self.ready()?;
        #[cfg(feature = "sanitizer")]
        self.shared.tell_host_access(&self.memory, Access::ReadWrite);
        Ok(self.memory.write(change))
    }

    /// The list of copies, which is empty. No copy begins as long as it is held.
    fn ready(&self) -> Result<MutexGuard<'_, Vec<Wait>>, StreamError> {
        let mut copies = self.copies.lock();
        if self.are_over(&mut copies)? { Ok(copies) } else { Err(StreamError::HostBufferBusy) }
    }

    /// Submits a copy and notes it, before anybody looks at the elements.
    fn copy(&self, stream: &Stream, submit: impl FnOnce() -> Result<(), StreamError>) -> Result<(), StreamError> {
        let mut copies = self.copies.lock();
        let submitted = submit();
        // In launch-blocking mode an error may come after the submission, with the copy under way.
        if submitted.is_ok() || self.shared.settings.launch_blocking() {
            self.note_copy(stream, &mut copies);
        }
        submitted
    }

    /// Notes a copy on `stream` that was just submitted. Its fence is recorded here, where it covers nothing later; if
    /// that cannot be done, whoever asks for the copy records it.
    fn note_copy(&self, stream: &Stream, copies: &mut Vec<Wait>) {
        if !self.memory.is_pinned() {
            return;
        }
        let slot = stream.slot();
        let copy = Wait { stream: slot.index, position: slot.clock.mark() };
        if let Some(gate) = self.shared.gate() {
            let recorded = self.shared.fence_covering(&gate, slot, copy.position);
            // Asked too, so that the fences of copies that nobody waits for do not pile up.
            if let Err(error) = recorded.and_then(|_| self.shared.poll(&gate, slot)) {
                tracing::warn!(%error, "the fence after a copy could not be recorded");
            }
        }
        *copies = join_waits(copies.drain(..).chain([copy]));
    }
}

impl<T: Pod> fmt::Debug for HostBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBuffer({} elements)", self.len)
    }
}

impl Stream {
    /// Copies host memory to the device. From pinned memory the copy is asynchronous; pageable memory blocks the host
    /// until the copy is complete. Copies of two streams with one host buffer are ordered by the program, as all work of
    /// two streams is.
    ///
    /// # Errors
    /// When the lengths differ, or the device fails.
    #[track_caller]
    pub fn copy_to_device<'a, T: Pod>(
        &self,
        source: &HostBuffer<T>,
        destination: impl Into<View<'a, T>>,
    ) -> Result<(), StreamError> {
        let destination = destination.into();
        same_length(source.len, destination.len())?;
        let mut operands = Operands::default();
        let range = operands.add(destination, Access::Write);
        let device = &self.shared().device;
        let context = Context::here();
        source.copy(self, || {
            self.submit("copy to the device", &operands, context, |id| {
                device.copy_to_device(id, range.address, &source.memory, 0, range.bytes)
            })
        })
    }

    /// Copies device memory to the host, as [`copy_to_device`](Stream::copy_to_device) does the other way.
    ///
    /// # Errors
    /// When the lengths differ, or the device fails.
    #[track_caller]
    pub fn copy_to_host<'a, T: Pod>(
        &self,
        source: impl Into<View<'a, T>>,
        destination: &HostBuffer<T>,
    ) -> Result<(), StreamError> {
        let source = source.into();
        same_length(source.len(), destination.len)?;
        let mut operands = Operands::default();
        let range = operands.add(source, Access::Read);
        let device = &self.shared().device;
        let context = Context::here();
        destination.copy(self, || {
            self.submit("copy to the host", &operands, context, |id| {
                device.copy_to_host(id, &destination.memory, 0, range.address, range.bytes)
            })
        })
    }
}

fn same_length(left: usize, right: usize) -> Result<(), StreamError> {
    if left == right {
        return Ok(());
    }
    Err(StreamError::LengthMismatch { what: "source and destination of a copy", left, right })
}
