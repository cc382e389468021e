//! Streams: where memory is asked for and work is submitted.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::Pod;
use highwater_core::Position;
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
#[derive(Clone)]
pub struct Stream {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    driver: Driver,
    /// Whether the driver's stream goes away with this.
    owned: bool,
    tag: AtomicU64,
}

impl Stream {
    /// The device's default stream.
    pub(crate) fn default_of(shared: &Arc<Shared>) -> Self {
        let driver = Driver { id: shared.device.default_stream(), name: "default".into() };
        let slot = shared.add_slot(driver.clone());
        Stream { inner: Arc::new(Inner { shared: shared.clone(), slot, driver, owned: false, tag: AtomicU64::new(0) }) }
    }

    /// A new stream, in an idle place whose former work is complete, or in a new one.
    pub(crate) fn create(shared: &Arc<Shared>, name: &str) -> Result<Self, StreamError> {
        let id = shared.device.create_stream(name).doing(|| format!("creating stream {name:?}"))?;
        let driver = Driver { id, name: name.into() };
        let slot = match shared.gate().and_then(|gate| shared.adopt(&gate, &driver)) {
            Some(slot) => slot,
            None => shared.add_slot(driver.clone()),
        };
        Ok(Stream {
            inner: Arc::new(Inner { shared: shared.clone(), slot, driver, owned: true, tag: AtomicU64::new(0) }),
        })
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
        &self.inner.shared.device
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.driver.name
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
    pub fn record(&self) -> Result<Fence, StreamError> {
        let shared = self.shared();
        let gate = shared.gate().ok_or_else(|| capturing("recording a fence"))?;
        // A position of its own: work that this crate has not seen may have come since the last mark, and an older fence
        // must not stand for this one.
        self.slot().clock.mark();
        let recorded = shared.record(&gate, self.slot()).doing(|| format!("recording a fence on {:?}", self.name()))?;
        let recorded = recorded.expect("a stream that somebody holds is not idle");
        Ok(Fence { shared: shared.clone(), recorded })
    }

    /// Whatever this stream is given from now on executes after `fence`. Never blocks the host.
    ///
    /// # Errors
    /// When the fence belongs to another allocator, while a stream of the device captures, or when the device fails.
    pub fn wait(&self, fence: &Fence) -> Result<(), StreamError> {
        let shared = self.shared();
        if !Arc::ptr_eq(shared, &fence.shared) {
            return Err(StreamError::OtherAllocator { what: "the fence" });
        }
        let gate = shared.gate().ok_or_else(|| capturing("waiting on a stream"))?;
        self.wait_recorded(&gate, &fence.recorded).doing(|| format!("a wait on {:?}", self.name()))
    }

    fn wait_recorded(&self, _gate: &Gate<'_>, recorded: &Recorded) -> DeviceResult<()> {
        self.shared().device.wait(self.id(), recorded.handle)?;
        // Published after the wait is in the queue: whoever reads it submits behind the wait.
        self.slot().clock.waited(&recorded.stamp);
        Ok(())
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
        let (owner, since) = (allocation.owner.slot(), allocation.since());
        let clock = &self.slot().clock;
        if clock.is_after(owner.index, since) || owner.clock.completed() >= since || since == Position(0) {
            return Ok(());
        }
        let doing = || format!("ordering {:?} after {:?}", self.name(), owner.name());
        let shared = self.shared();
        let gate = shared.gate().ok_or_else(|| StreamError::Capturing { doing: doing() })?;
        let Some(recorded) = shared.fence_covering(&gate, owner, since).doing(doing)? else { return Ok(()) };
        self.wait_recorded(&gate, &recorded).doing(doing)?;
        count(&shared.counts.waits_inserted);
        let action =
            Action::WaitInserted { stream: u64::from(self.slot().index.0), for_stream: u64::from(owner.index.0) };
        self.slot().station.enter().note(shared.device.now_ns(), action, context);
        Ok(())
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

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.owned || self.shared.process.is_forked() {
            return;
        }
        if let Some(gate) = self.shared.gate() {
            self.shared.close(&gate, &self.slot);
        }
        self.shared.idle.lock().push(self.slot.clone());
    }
}

impl Shared {
    /// Records the last fence of a stream that nobody holds any more, and destroys it. On failure the place stays open:
    /// it is tried again when somebody looks for a place.
    pub(crate) fn close(&self, _gate: &Gate<'_>, slot: &Slot) {
        // Held from the fence to the end, so that no mark comes in between: nothing would ever cover it.
        let mut driver = slot.driver.write();
        let Some(open) = driver.as_ref() else { return };
        // A position of its own, as in `record`: the last fence comes after work that nobody saw, and after waits. A new
        // stream must not inherit an order whose waits are not complete.
        slot.clock.mark();
        let closed = self.record_on(slot, open).and_then(|_| self.device.destroy_stream(open.id));
        if let Err(error) = closed {
            tracing::warn!(%error, stream = &*open.name, "a stream could not be closed; trying again later");
            return;
        }
        *driver = None;
    }

    /// An idle place whose former stream has completed everything, taken over by `driver`.
    fn adopt(&self, gate: &Gate<'_>, driver: &Driver) -> Option<Arc<Slot>> {
        let mut idle = self.idle.lock();
        let found = idle.iter().position(|slot| {
            if slot.driver.read().is_some() {
                self.close(gate, slot);
            }
            slot.driver.read().is_none() && self.poll(gate, slot).is_ok() && slot.clock.completed() >= slot.clock.now()
        })?;
        let slot = idle.remove(found);
        *slot.name.lock() = driver.name.clone();
        *slot.driver.write() = Some(driver.clone());
        Some(slot)
    }
}
