//! What this crate has for GPUs alone: buffers that cudarc takes as its own.
//!
//! # Streams
//!
//! [`Allocator::adopt_stream`] makes a stream of cudarc one of the allocator: it gets a heap of its own, and is kept alive
//! as long as memory needs it. A stream that captures has to be adopted before the capture begins, so that the allocator
//! knows to leave fences alone meanwhile.
//!
//! An adopted stream is open from the beginning, for nobody here knows what it is given: see [`Stream::mark_open`]. A stream
//! of the allocator that cudarc is given for work that waits for another rank or the host (NCCL, host functions, waits for
//! values in memory, events of streams that do such things) has to be marked open before.
//!
//! # Buffers
//!
//! [`Buffer::on`](crate::Buffer::on) is the way to launch: `builder.arg(&buffer.on(&stream)?)`. The guard is held over
//! the launch and dropped behind it; a launch on another stream than the guard's is seen by nobody. Calls of cudarc
//! that are given their stream (copies, cuBLASLt, NCCL) take a [`Buffer`](crate::Buffer) or [`View`](crate::View)
//! itself:
//!
//! - On the buffer's own stream nothing has to be noted.
//! - Another stream of the allocator is ordered after what was done with the memory before, and uses it until the free.
//! - A stream that the allocator does not know is ordered too, and an event ends the use; while it captures nothing is
//!   noted, as the graph's memory is the program's. If cudarc does not record events (its event tracking is off, so the
//!   program has promised to order its streams itself), the call blocks the host until the stream has done its work,
//!   unless an error waits in the context.
//!
//! These calls have no way to return an error of the allocator. It is left in the context
//! ([`CudaContext::record_err`](cudarc::driver::CudaContext::record_err)), where the next call of cudarc returns it, and
//! told to `tracing`.
//!
//! # Panics
//!
//! The traits of cudarc ask for a stream of cudarc, so what implements them panics on another device than a GPU.

mod outside;
mod pointers;

use std::any::Any;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use highwater_device::Device;
use highwater_device::cuda::CudaDevice;

use crate::on::{UsesStream, sealed::Sealed};
use crate::{Allocator, Stream, StreamError};

pub(crate) use outside::{Events, is_complete, wait_for};

/// The driver's handle of whatever stream is the calling thread's default.
const PER_THREAD: usize = 2;

/// The device as a GPU, if it is one.
#[must_use]
pub fn cuda_device(device: &dyn Device) -> Option<&CudaDevice> {
    let any: &dyn Any = device;
    any.downcast_ref()
}

impl Allocator {
    /// A stream that was made by cudarc, as a stream of this allocator. Adopted again it is the same [`Stream`], as long as
    /// one lives; so is a stream that this allocator made. The driver's stream is kept alive until the last handle and
    /// the last buffer of the [`Stream`] are gone: then its last fence is recorded and it is let go. It is open
    /// ([`Stream::mark_open`]) unless this allocator made it.
    ///
    /// # Errors
    /// When the device is no GPU; when the stream belongs to another context, or is the per-thread default stream; or when
    /// the driver fails.
    pub fn adopt_stream(&self, stream: &Arc<CudaStream>, name: &str) -> Result<Stream, StreamError> {
        self.default_stream().adopt(stream, name)
    }
}

impl Stream {
    /// The GPU, if the device is one.
    #[must_use]
    pub fn cuda_device(&self) -> Option<&CudaDevice> {
        cuda_device(&**self.device())
    }

    /// Whether the stream captures, and not by [`begin_capture`](Stream::begin_capture): then nothing here knows the graph
    /// that comes of it, and memory that is freed meanwhile is not kept for the graph.
    #[must_use]
    pub fn is_captured_elsewhere(&self) -> bool {
        self.slot().graph.get().is_none() && self.cuda_device().is_some_and(|device| device.captures(self.id()))
    }

    /// The stream for calls of cudarc; `None` when the device is no GPU.
    #[must_use]
    pub fn cuda_stream(&self) -> Option<Arc<CudaStream>> {
        self.cudarc().cloned()
    }

    /// The stream for cudarc, which lives as long as a handle.
    pub(crate) fn cudarc(&self) -> Option<&Arc<CudaStream>> {
        let device = self.cuda_device()?;
        let known = || device.cuda_stream(self.id()).expect("the device knows a stream as long as somebody holds it");
        Some(self.inner().cuda.get_or_init(known))
    }

    fn adopt(&self, stream: &Arc<CudaStream>, name: &str) -> Result<Stream, StreamError> {
        let device = self.cuda_device().ok_or_else(|| StreamError::NotCuda {
            doing: format!("adopting stream {name:?}"),
            device: self.device().properties().name.clone(),
        })?;
        if stream.context().cu_ctx() != device.context().cu_ctx() {
            return Err(StreamError::OtherContext { stream: name.to_owned() });
        }
        if stream.cu_stream() as usize == PER_THREAD {
            return Err(StreamError::PerThreadStream { stream: name.to_owned() });
        }
        let doing = |source| StreamError::Device { doing: format!("asking for the id of stream {name:?}"), source };
        let id = device.id_of(stream).map_err(doing)?;
        Stream::with_id(self.shared(), id, name, || device.adopt_stream(stream, name))
    }
}

/// Tells the sanitizer of a call of cudarc that is about to be submitted. It sees the streams of the allocator alone.
#[cfg(feature = "sanitizer")]
fn seen<T: bytemuck::Pod>(view: crate::View<'_, T>, stream: &CudaStream, access: highwater_device::Access) {
    let owner = view.stream();
    let Some(sanitizer) = &owner.shared().sanitizer else { return };
    // A stream that is known is alive, so its handle does not lie.
    let id = owner.cuda_device().and_then(|device| device.known_id_of(stream));
    let id = id.filter(|&id| owner.id() == id || owner.shared().known_stream(id).is_some());
    if let Some(id) = id {
        let operand = highwater_device::Operand { range: view.byte_range(), access };
        sanitizer.submitted(id, "call of cudarc", &[operand], highwater_sanitizer::Here::current());
    }
}

impl Sealed for Arc<CudaStream> {}

impl UsesStream for Arc<CudaStream> {
    fn stream_like(&self, like: &Stream) -> Result<Stream, StreamError> {
        like.adopt(self, "adopted")
    }
}
