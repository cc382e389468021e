//! One GPU of the program: the allocator of its primary context, and the program's streams in it.
//!
//! Memory that was asked for without a stream may be used on any stream at once. It comes from a heap of its own, on a
//! stream that is given no work, so a block is free there only when its uses are known to be over. When such a block is
//! freed, everything that any stream was given so far may use it: each known stream, the destroyed ones, and through the
//! legacy default stream those that nobody has told of, unless they are non-blocking. If one of those may exist, the
//! free waits for the whole context, as the driver's own does.
//!
//! Memory that was asked for on a stream is that stream's. Freed on another one, it comes back after both.
//!
//! All these streams are open: nobody here knows what the program's work waits for, and memory that is asked for without
//! a stream is used on streams that no wait of ours orders.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use highwater::device::cuda::{CudaConfig, CudaDevice};
use highwater::device::{Address, DeviceError};
use highwater::{AllocError, Allocator, Error, PointerError, Stream};
use parking_lot::RwLock;

use crate::counts::{Counts, count};
use crate::device::{ProgramDevice, naming};
use crate::ffi;

/// Why a GPU is left to the driver.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenError {
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The allocator.
    #[error(transparent)]
    Allocator(#[from] Error),
    /// The primary context.
    #[error("the driver does not give its primary context (CUDA error {answer})")]
    Context {
        /// The driver's answer.
        answer: u32,
    },
    /// The context that is current is not the one that the device opens.
    #[error("the context is not the primary one")]
    OtherContext,
}

/// See the module.
pub(crate) struct Gpu {
    pub(crate) ordinal: u32,
    pub(crate) allocator: Allocator,
    device: Arc<ProgramDevice>,
    destroyed: Stream,
    /// By the driver's id, which is never used again.
    streams: RwLock<BTreeMap<u64, Stream>>,
    /// Whether work may be queued that no known stream stands for.
    untracked: AtomicBool,
}

impl Gpu {
    /// Opens the GPU whose primary context is current.
    pub(crate) fn open(ordinal: u32, context: usize) -> Result<Self, OpenError> {
        let primary = ffi::primary_context(ordinal).map_err(|answer| OpenError::Context { answer })?;
        if ffi::context_handle(&primary) != context {
            return Err(OpenError::OtherContext);
        }
        let device = CudaDevice::with_context(primary, CudaConfig { ordinal, timing: false })?;
        let device = Arc::new(ProgramDevice::new(device));
        let allocator = Allocator::new(device.clone())?;
        let destroyed = allocator.create_stream("destroyed streams").map_err(Error::from)?;
        destroyed.mark_open();
        device.set_grave(destroyed.id());
        let streams = RwLock::default();
        let gpu = Gpu { ordinal, allocator, device, destroyed, streams, untracked: AtomicBool::new(false) };
        // A fence on it stands for all streams that are not non-blocking, known or not.
        gpu.adopt(ffi::LEGACY, "legacy default stream").map_err(Error::from)?;
        Ok(gpu)
    }

    fn adopt(&self, stream: usize, name: &str) -> Result<Stream, highwater::StreamError> {
        let mut streams = self.streams.write();
        let id = ffi::stream_id(stream);
        if let Some(known) = id.and_then(|id| streams.get(&id)) {
            return Ok(known.clone());
        }
        let adopted = naming(stream, || self.allocator.create_stream(name))?;
        adopted.mark_open();
        streams.insert(adopted.id().0, adopted.clone());
        Ok(adopted)
    }

    /// The program's stream, known from now on. `None` when it cannot be: it is then one that nobody stands for.
    pub(crate) fn stream(&self, stream: usize) -> Option<Stream> {
        let id = ffi::stream_id(stream);
        let known = id.and_then(|id| self.streams.read().get(&id).cloned());
        if known.is_some() {
            return known;
        }
        let own = matches!(stream, ffi::LEGACY | ffi::PER_THREAD)
            || ffi::stream_context(stream) == Some(self.device.context());
        let adopted = match (own, id) {
            (true, Some(id)) => self.adopt(stream, &format!("stream {id}")).ok(),
            _ => None,
        };
        if adopted.is_none() {
            self.untracked.store(true, Ordering::Release);
        }
        adopted
    }

    /// The program is about to destroy a stream.
    pub(crate) fn end_stream(&self, stream: usize) {
        let Some(id) = ffi::stream_id(stream) else { return };
        let Some(known) = self.streams.read().get(&id).cloned() else { return };
        if self.device.bury(known.id(), stream).is_err() {
            self.untracked.store(true, Ordering::Release);
        }
        // Afterwards, so that at each moment a free finds it either here or among the destroyed ones.
        self.streams.write().remove(&id);
    }

    /// Memory for any stream.
    pub(crate) fn alloc(&self, bytes: u64) -> Result<u64, AllocError> {
        self.alloc_on(&self.allocator.default_stream(), bytes)
    }

    /// Memory in the order of a stream.
    pub(crate) fn alloc_on(&self, stream: &Stream, bytes: u64) -> Result<u64, AllocError> {
        self.allocator.alloc_raw(stream, bytes).map(|address| address.0)
    }

    /// Frees a block that any stream may use up to now. May change the current context.
    pub(crate) fn free(&self, address: u64, counts: &Counts) -> Result<(), PointerError> {
        if self.untracked.load(Ordering::Acquire) {
            count(&counts.context_synchronizations);
            ffi::set_current_context(self.device.context());
            // An error is the program's, which meets it at its next call.
            let _ = ffi::synchronize();
        }
        let address = Address(address);
        for stream in self.streams.read().values() {
            self.allocator.record_stream_raw(address, stream)?;
        }
        self.allocator.record_stream_raw(address, &self.destroyed)?;
        self.allocator.free_raw(address)
    }

    /// Frees a block that is used no more after what `stream` was given so far.
    pub(crate) fn free_on(&self, address: u64, stream: &Stream) -> Result<(), PointerError> {
        self.allocator.record_stream_raw(Address(address), stream)?;
        self.allocator.free_raw(Address(address))
    }
}
