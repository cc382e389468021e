//! The allocator of one device.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::Pod;
use highwater_device::{Device, HostMemory};
use highwater_history::{Action, Context};

use crate::error::{Error, SettingsError, StreamError};
use crate::shared::Shared;
use crate::{HostBuffer, Settings, Stream};

/// The allocator of one device. Clones are the same allocator.
///
/// When it is gone, with everything that was made by it (streams, buffers, fences, host buffers, graphs), its memory goes
/// back to the device. That blocks the host until the work that uses the memory is complete, for
/// [`host_wait_timeout_ms`](Settings) at most; what is in use then, or while a stream of the device captures, is left to
/// the device.
#[derive(Clone, Debug)]
pub struct Allocator {
    shared: Arc<Shared>,
    default_stream: Stream,
}

impl Allocator {
    /// An allocator with the default settings, changed by the environment variable `HIGHWATER_ALLOC_CONF` if it is set
    /// (see [`Settings`]).
    ///
    /// # Errors
    /// When the variable holds something that is not valid, or the device does not tell its memory.
    #[track_caller]
    pub fn new(device: Arc<dyn Device>) -> Result<Self, Error> {
        Ok(Self::with_settings(device, Settings::from_environment()?)?)
    }

    /// An allocator with these settings; the environment is not looked at.
    ///
    /// # Errors
    /// When the device does not tell its memory.
    #[track_caller]
    pub fn with_settings(device: Arc<dyn Device>, settings: Settings) -> Result<Self, SettingsError> {
        let info = device.memory_info().map_err(|source| SettingsError::Device { source })?;
        let limit = settings.limit_bytes(info.total);
        let shared = Arc::new(Shared::new(device, settings, limit));
        let default_stream = Stream::default_of(&shared);
        // What others take later is told beside it.
        let action = Action::DeviceMemory { total_bytes: info.total, free_bytes: info.free, held_bytes: 0 };
        default_stream.slot().station.enter().note(shared.device.now_ns(), action, Context::here());
        Ok(Allocator { shared, default_stream })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn own(&self, stream: &Stream) {
        assert!(Arc::ptr_eq(stream.shared(), &self.shared), "the stream belongs to another allocator");
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn Device> {
        self.shared.real_device()
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// The stream that exists without being created.
    #[must_use]
    pub fn default_stream(&self) -> Stream {
        self.default_stream.clone()
    }

    /// A new stream; `name` is for people.
    ///
    /// # Errors
    /// When the device fails.
    pub fn create_stream(&self, name: &str) -> Result<Stream, StreamError> {
        Stream::create(&self.shared, name)
    }

    /// `len` zeroed elements of page-locked host memory: copies are asynchronous.
    #[must_use]
    pub fn pinned<T: Pod>(&self, len: usize) -> HostBuffer<T> {
        HostBuffer::new(&self.shared, HostMemory::pinned(host_bytes::<T>(len)), len)
    }

    /// `len` zeroed elements of ordinary host memory: copies block the host.
    #[must_use]
    pub fn pageable<T: Pod>(&self, len: usize) -> HostBuffer<T> {
        HostBuffer::new(&self.shared, HostMemory::pageable(host_bytes::<T>(len)), len)
    }

    /// Calls `callback` with the bytes needed whenever the device has no more memory, before cached memory is returned
    /// and before the host waits. It may free and allocate; what it allocates calls no callback again. It is called until
    /// the guard is dropped. A panic in it goes on in the request, which has changed nothing.
    pub fn on_pressure(&self, callback: impl Fn(u64) + Send + Sync + 'static) -> PressureGuard {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        self.shared.callbacks.lock().push((id, Arc::new(callback)));
        PressureGuard { shared: self.shared.clone(), id }
    }

    /// Returns free memory to the device until at most `target` bytes are held, or nothing more can be returned without
    /// waiting. Returns the bytes still held. Never blocks; does nothing while a stream of the device captures.
    #[track_caller]
    pub fn trim(&self, target: u64) -> u64 {
        let context = Context::here();
        if let Some(gate) = self.shared.gate() {
            self.shared.retry_strays();
            for slot in self.shared.slots() {
                let excess = self.shared.ledger.physical().now.saturating_sub(target);
                if excess > 0 {
                    self.shared.return_cached(&gate, slot, &mut slot.station.enter(), excess, context);
                }
            }
        }
        self.shared.ledger.physical().now
    }

    /// Sweeps every heap: tiles, blocks, pending frees, and the sum of all books against the device's.
    ///
    /// # Errors
    /// The first rule that is broken, in words.
    pub fn check(&self) -> Result<(), String> {
        let mut physical = self.shared.stray_bytes();
        for slot in self.shared.slots() {
            let inside = slot.station.enter();
            inside.heap.check().map_err(|error| format!("heap of {:?}: {error}", slot.name()))?;
            physical += inside.heap.books().physical;
        }
        let held = self.shared.ledger.physical().now;
        if physical == held { Ok(()) } else { Err(format!("the heaps hold {physical} bytes, the ledger says {held}")) }
    }
}

fn host_bytes<T>(len: usize) -> u64 {
    (len as u64).checked_mul(size_of::<T>() as u64).expect("host memory fits the host")
}

/// Keeps a pressure callback registered.
#[derive(Debug)]
#[must_use = "dropping the guard unregisters the callback"]
pub struct PressureGuard {
    shared: Arc<Shared>,
    id: u64,
}

impl Drop for PressureGuard {
    fn drop(&mut self) {
        let mut callbacks = self.shared.callbacks.lock();
        let found = callbacks.iter().position(|(id, _)| *id == self.id);
        let callback = found.map(|index| callbacks.remove(index));
        // Dropped after the lock: it may own anything of this allocator.
        drop(callbacks);
        drop(callback);
    }
}
