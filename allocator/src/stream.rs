//! Streams: where memory is asked for and work is submitted.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::Pod;
use highwater_core::Handles;
use highwater_device::{Device, DeviceResult, StreamId};
use highwater_history::{Action, Context};

use crate::allocation::Allocation;
use crate::error::{AllocError, Doing, StreamError};
use crate::fence::{Fence, Recorded, capturing};
use crate::shared::{Gate, Shared, count};
use crate::slot::{Driver, Slot};
use crate::{Buffer, Capture};

/// A stream of the device with its own heap. Clones are the same stream; when the last one is gone, and the last buffer
/// that was allocated on it, the stream is destroyed and its memory goes to a stream that comes later.
pub struct Stream {
    inner: Arc<Inner>,
    /// Whether it counts as a handle of the program; what memory holds does not.
    pub(crate) is_handle: bool,
}

/// It shares no cache line with another one: each buffer counts in it.
#[repr(align(128))]
pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) slot: Arc<Slot>,
    pub(crate) driver: Driver,
    /// Whether the driver's stream goes away with this.
    pub(crate) owned: bool,
    pub(crate) handles: Handles,
    tag: AtomicU64,
    /// The stream for cudarc, once somebody has asked for it.
    #[cfg(feature = "cuda")]
    pub(crate) cuda: std::sync::OnceLock<Arc<cudarc::driver::CudaStream>>,
}

impl Stream {
    pub(crate) fn new(shared: &Arc<Shared>, slot: Arc<Slot>, driver: Driver, owned: bool) -> Self {
        Self::from_inner(Arc::new(Inner {
            shared: shared.clone(),
            slot,
            driver,
            owned,
            handles: Handles::new(),
            tag: AtomicU64::new(0),
            #[cfg(feature = "cuda")]
            cuda: std::sync::OnceLock::new(),
        }))
    }

    /// A handle for the program.
    pub(crate) fn from_inner(inner: Arc<Inner>) -> Self {
        inner.handles.add();
        Stream { inner, is_handle: true }
    }

    /// One that memory holds.
    pub(crate) fn hold(inner: Arc<Inner>) -> Self {
        Stream { inner, is_handle: false }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    pub(crate) fn slot(&self) -> &Arc<Slot> {
        &self.inner.slot
    }

    /// The driver's stream, for calls past this crate. What they do with buffers has to be recorded by hand.
    #[must_use]
    pub fn id(&self) -> StreamId {
        self.inner.driver.id
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn Device> {
        self.inner.shared.real_device()
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.driver.name
    }

    /// Says that the stream may be given work that waits for more than this GPU: for another rank (a collective) or for
    /// the host. Call it before the first such work; it cannot be taken back. A stream that this allocator made is
    /// *closed* until then; one that was adopted is open from the beginning, and one that was given
    /// [`submit_external`](Stream::submit_external) is open from then on.
    ///
    /// The allocator never puts a wait behind work of an open stream that is not complete, nor behind anything that comes
    /// after such work: one that only some ranks put can make all of them wait for each other. Where memory would need such
    /// a wait, the host waits for a bounded time, and then the call fails with [`StreamError::HeldUp`]. That never happens
    /// to memory that is used first on the stream that it was allocated on, and on others after fences of the program.
    pub fn mark_open(&self) {
        self.slot().openness.open();
    }

    /// Whether the stream may wait for more than this GPU; see [`mark_open`](Stream::mark_open).
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.slot().openness.is_open()
    }

    /// A mark that operations submitted from now on carry in the device's timeline.
    pub fn set_tag(&self, tag: u64) {
        self.inner.tag.store(tag, Ordering::Relaxed);
    }

    /// The mark set by [`set_tag`](Stream::set_tag).
    #[must_use]
    pub fn tag(&self) -> u64 {
        self.inner.tag.load(Ordering::Relaxed)
    }

    /// Memory for `len` elements, usable on this stream at once; its content is undefined. Aligned to 512 bytes. Zero
    /// elements are valid and take no memory.
    ///
    /// # Errors
    /// [`AllocError::OutOfMemory`] when every rung of the ladder failed; [`AllocError::Device`] when the device did.
    #[track_caller]
    pub fn alloc<T: Pod>(&self, len: usize) -> Result<Buffer<T>, AllocError> {
        let element_bytes = size_of::<T>();
        let bytes = u64::try_from(len).ok().and_then(|len| len.checked_mul(element_bytes as u64));
        let bytes = bytes.ok_or(AllocError::TooLarge { elements: len, element_bytes })?;
        Ok(Buffer::new(Allocation::new(self, bytes, Context::here())?, len))
    }

    /// A fence after everything that the stream was given so far.
    ///
    /// # Errors
    /// While a stream of the device captures, or when the device fails.
    #[cfg_attr(feature = "sanitizer", track_caller)]
    pub fn record(&self) -> Result<Fence, StreamError> {
        let shared = self.shared();
        #[cfg(feature = "sanitizer")]
        let _here = shared.here(Context::here());
        let gate = shared.gate().ok_or_else(|| capturing("recording a fence"))?;
        let recorded = shared.record(&gate, self.slot()).doing(|| format!("recording a fence on {:?}", self.name()))?;
        let recorded = recorded.expect("a stream that somebody holds is not idle");
        Ok(Fence { shared: shared.clone(), recorded })
    }

    /// Whatever this stream is given from now on executes after `fence`. Never blocks the host.
    ///
    /// # Errors
    /// When the fence belongs to another allocator, while a stream of the device captures, or when the device fails.
    #[cfg_attr(feature = "sanitizer", track_caller)]
    pub fn wait(&self, fence: &Fence) -> Result<(), StreamError> {
        let shared = self.shared();
        #[cfg(feature = "sanitizer")]
        let _here = shared.here(Context::here());
        if !Arc::ptr_eq(shared, &fence.shared) {
            return Err(StreamError::OtherAllocator { what: "the fence" });
        }
        let gate = shared.gate().ok_or_else(|| capturing("waiting on a stream"))?;
        self.wait_recorded(&gate, &fence.recorded).doing(|| format!("a wait on {:?}", self.name()))
    }

    /// Whatever this stream is given from now on executes after everything that `other` was given so far. Never blocks
    /// the host. A stream comes after itself anyway.
    ///
    /// # Errors
    /// As [`record`](Stream::record) and [`wait`](Stream::wait).
    pub fn wait_stream(&self, other: &Stream) -> Result<(), StreamError> {
        if self == other {
            return Ok(());
        }
        if !Arc::ptr_eq(self.shared(), other.shared()) {
            return Err(StreamError::OtherAllocator { what: "the stream" });
        }
        self.wait(&other.record()?)
    }

    fn wait_recorded(&self, gate: &Gate<'_>, recorded: &Arc<Recorded>) -> DeviceResult<()> {
        self.shared().put_wait(gate, self.slot(), self.id(), recorded)
    }

    /// Starts to record this stream's work into a graph instead of executing it.
    ///
    /// # Errors
    /// When the stream captures already, or the device fails.
    pub fn begin_capture(&self) -> Result<Capture, StreamError> {
        Capture::begin(self)
    }

    /// Makes sure that what is submitted next comes after everything that was done with the memory of `allocation`
    /// before it was given out: nothing to do on its own stream, or when it is proven.
    pub(crate) fn come_after(&self, allocation: &Allocation, context: Context) -> Result<(), StreamError> {
        let (owner, since) = (allocation.owner().slot(), allocation.since());
        if allocation.is_settled() || self.slot().clock.is_after(owner.index, since) {
            return Ok(());
        }
        let doing = || format!("ordering {:?} after {:?}", self.name(), owner.name());
        let shared = self.shared();
        let gate = shared.gate().ok_or_else(|| StreamError::Capturing { doing: doing() })?;
        let found =
            shared.fence_to_come_after(&gate, (owner, since), Some(self.slot()), (self.slot(), context), doing)?;
        let Some(recorded) = found else { return Ok(()) };
        self.wait_recorded(&gate, &recorded).doing(doing)?;
        count(&shared.counts.waits_inserted);
        let action =
            Action::WaitInserted { stream: u64::from(self.slot().index.0), for_stream: u64::from(owner.index.0) };
        self.slot().station.enter().note(shared.device.now_ns(), action, context);
        Ok(())
    }
}

impl Clone for Stream {
    fn clone(&self) -> Self {
        Self::from_inner(self.inner.clone())
    }
}

impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Stream {}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stream").field(&self.name()).finish()
    }
}
