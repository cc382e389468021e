//! cudarc's traits for device memory.
//!
//! What a use takes is decided by the stream that uses: see the module above. cudarc calls `device_ptr` before it submits
//! and drops the [`SyncOnDrop`] behind the submission.
#![allow(unsafe_code)]

use std::sync::Arc;

use bytemuck::Pod;
use cudarc::driver::sys::{CUdeviceptr, CUresult, CUstreamCaptureStatus};
use cudarc::driver::{
    CudaContext, CudaEvent, CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, DriverError, LaunchArgs, PushKernelArg,
    SyncOnDrop,
};
use highwater_core::Until;
use highwater_device::cuda::CudaDevice;
use highwater_device::{DeviceError, StreamId};
use highwater_history::Context;

use super::outside::Key;
use crate::allocation::Allocation;
use crate::error::Doing;
use crate::fence::capturing;
use crate::{Buffer, On, Stream, StreamError, View};

/// Why the traits panic.
const NO_GPU: &str = "cudarc takes memory of a GPU alone, and this buffer's device is none";

/// An error of the allocator as one of the driver, for a context to keep.
fn driver_error(error: &StreamError) -> DriverError {
    DriverError(match error {
        StreamError::Capturing { .. } => CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        StreamError::Device { source: DeviceError::CaptureViolation { .. }, .. } => {
            CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        }
        StreamError::Device { source: DeviceError::OutOfMemory { .. }, .. } => CUresult::CUDA_ERROR_OUT_OF_MEMORY,
        StreamError::Device { source: DeviceError::InvalidValue { .. }, .. } => CUresult::CUDA_ERROR_INVALID_VALUE,
        StreamError::HeldUp { .. } => CUresult::CUDA_ERROR_NOT_READY,
        _ => CUresult::CUDA_ERROR_UNKNOWN,
    })
}

/// The context of one call, which must neither lose an error that waits there for the program, nor return it as its own.
struct Errors<'a> {
    context: &'a Arc<CudaContext>,
    waiting: Result<(), DriverError>,
}

impl<'a> Errors<'a> {
    fn of(context: &'a Arc<CudaContext>) -> Self {
        Errors { context, waiting: context.check_err() }
    }

    /// Leaves an error for the program; the first one stays.
    fn keep(&mut self, error: DriverError) {
        if self.waiting.is_ok() {
            self.waiting = Err(error);
        }
    }

    fn keep_ours(&mut self, error: &StreamError) {
        tracing::warn!(%error, "a buffer is used through cudarc, and could not be made ready");
        self.keep(driver_error(error));
    }
}

impl Drop for Errors<'_> {
    fn drop(&mut self) {
        self.context.record_err(std::mem::replace(&mut self.waiting, Ok(())));
    }
}

/// Makes memory ready for work of `stream`, and says what has to be done behind that work.
fn begin_use<'a>(allocation: &'a Allocation, stream: &'a CudaStream) -> SyncOnDrop<'a> {
    let owner = allocation.owner();
    let device = owner.cuda_device().expect(NO_GPU);
    if allocation.bytes() == 0 {
        return SyncOnDrop::Record(None);
    }
    let mut errors = Errors::of(stream.context());
    // The driver is asked for no id while the stream captures: that would spoil the capture. What is known is alive, so
    // its handle does not lie.
    if captures(stream) {
        return match device.known_id_of(stream).and_then(|id| Known::of(owner, id)) {
            Some(known) => known.begin(allocation, &mut errors),
            None => begin_captured(allocation, &mut errors),
        };
    }
    let id = match device.id_of(stream).doing(|| "asking for the id of a stream".into()) {
        Ok(id) => id,
        Err(error) => {
            errors.keep_ours(&error);
            return SyncOnDrop::Sync(Some(stream));
        }
    };
    let same_context = stream.context().cu_ctx() == device.context().cu_ctx();
    if let Some(known) = Known::of(owner, id).filter(|_| same_context) {
        return known.begin(allocation, &mut errors);
    }
    begin_outside(device, allocation, (stream, id), &mut errors)
}

fn captures(stream: &CudaStream) -> bool {
    !matches!(stream.capture_status(), Ok(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE))
}

/// A stream that the allocator knows.
enum Known {
    /// The stream that the memory was allocated on.
    Owner,
    /// Another one.
    Other(Stream),
}

impl Known {
    fn of(owner: &Stream, id: StreamId) -> Option<Known> {
        if id == owner.id() {
            return Some(Known::Owner);
        }
        owner.shared().known_stream(id).map(Known::Other)
    }

    /// The owner's use needs no note, another's lasts until the free.
    fn begin<'a>(self, allocation: &'a Allocation, errors: &mut Errors<'_>) -> SyncOnDrop<'a> {
        if let Known::Other(user) = self {
            let context = Context::here();
            if let Err(error) = user.come_after(allocation, context) {
                errors.keep_ours(&error);
            }
            allocation.note_use(user.slot(), Until::Free, context);
        }
        SyncOnDrop::Record(None)
    }
}

/// Work that a stream captures runs when the graph is launched: the program keeps the memory for that. No order can be
/// put before it now.
fn begin_captured<'a>(allocation: &'a Allocation, errors: &mut Errors<'_>) -> SyncOnDrop<'a> {
    if !allocation.is_settled() {
        errors.keep_ours(&capturing("ordering a stream after the former uses of a buffer"));
    }
    SyncOnDrop::Record(None)
}

/// The same for a stream that the allocator does not know.
fn begin_outside<'a>(
    device: &CudaDevice,
    allocation: &'a Allocation,
    (stream, id): (&'a CudaStream, StreamId),
    errors: &mut Errors<'_>,
) -> SyncOnDrop<'a> {
    if let Err(error) = come_after_outside(device, allocation, stream) {
        errors.keep_ours(&error);
    }
    let context = stream.context();
    if !context.is_managing_stream_synchronization() {
        return SyncOnDrop::Sync(Some(stream));
    }
    let key: Key = (context.cu_ctx() as usize, id.0);
    match allocation.outside().of(key, || new_event(device, context)) {
        Ok(event) => SyncOnDrop::Record(Some((event, stream))),
        Err(error) => {
            errors.keep(error);
            SyncOnDrop::Sync(Some(stream))
        }
    }
}

/// An event for a stream of `context`. Cudarc does not record an event as long as an error waits in the event's context,
/// and whatever the program has left there must not leave a use without its end: so events are made in a context that
/// nobody else has, another name of the same primary one. For other contexts there is no second name.
fn new_event(device: &CudaDevice, context: &Arc<CudaContext>) -> Result<CudaEvent, DriverError> {
    if !context.is_primary() || context != device.context() {
        return context.new_event(None);
    }
    let quiet = device.extension(|| CudaContext::new(context.ordinal()).map(Quiet))?;
    quiet.0.new_event(None)
}

/// The device's primary context, with no errors of the program in it.
struct Quiet(Arc<CudaContext>);

/// Orders a stream that is not known after what was done with the memory before.
fn come_after_outside(device: &CudaDevice, allocation: &Allocation, stream: &CudaStream) -> Result<(), StreamError> {
    if allocation.is_settled() {
        return Ok(());
    }
    let owner = allocation.owner();
    let doing = || format!("ordering a stream after {:?}", owner.name());
    let shared = owner.shared();
    let gate = shared.gate().ok_or_else(|| capturing(&doing()))?;
    let stalled = (&**owner.slot(), Context::here());
    match shared.fence_to_come_after(&gate, (owner.slot(), allocation.since()), None, stalled, doing)? {
        Some(fence) => device.hold_back(stream, fence.handle()).doing(doing),
        None => Ok(()),
    }
}

/// The owner's stream, for cudarc.
fn cudarc_of(stream: &Stream) -> &Arc<CudaStream> {
    stream.cudarc().expect(NO_GPU)
}

impl<'a, T: Pod> View<'a, T> {
    /// The address of the first element, when the memory is ready for work of `stream`.
    fn ready(self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        let sync = begin_use(self.allocation, stream);
        #[cfg(feature = "sanitizer")]
        super::seen(self, stream, highwater_device::Access::Read);
        (self.byte_range().address.0, sync)
    }
}

impl<T: Pod> DeviceSlice<T> for Buffer<T> {
    fn len(&self) -> usize {
        self.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        cudarc_of(self.stream())
    }
}

impl<T: Pod> DevicePtr<T> for Buffer<T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.view().ready(stream)
    }
}

impl<T: Pod> DevicePtrMut<T> for Buffer<T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        #[cfg(feature = "sanitizer")]
        let view = self.view();
        let ready = self.device_ptr(stream);
        #[cfg(feature = "sanitizer")]
        super::seen(view, stream, highwater_device::Access::Write);
        ready
    }
}

impl<T: Pod> DeviceSlice<T> for View<'_, T> {
    fn len(&self) -> usize {
        self.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        cudarc_of(self.stream())
    }
}

impl<T: Pod> DevicePtr<T> for View<'_, T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.ready(stream)
    }
}

impl<T: Pod> DevicePtrMut<T> for View<'_, T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        #[cfg(feature = "sanitizer")]
        let view = *self;
        let ready = self.device_ptr(stream);
        #[cfg(feature = "sanitizer")]
        super::seen(view, stream, highwater_device::Access::Write);
        ready
    }
}

impl<T: Pod> DeviceSlice<T> for On<'_, T> {
    fn len(&self) -> usize {
        self.len()
    }

    /// The stream that uses the elements, not the one that they were allocated on.
    fn stream(&self) -> &Arc<CudaStream> {
        cudarc_of(self.stream())
    }
}

impl<T: Pod> DevicePtr<T> for On<'_, T> {
    /// On the guard's stream the guard itself ends the use; on another one this is what a [`View`] does.
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        let own = cudarc_of(self.stream());
        // Both streams are alive, so handles do not lie; an alias of the same stream is found by its id further down.
        if **own == *stream { (self.address, SyncOnDrop::Record(None)) } else { self.view().ready(stream) }
    }
}

impl<T: Pod> DevicePtrMut<T> for On<'_, T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        #[cfg(feature = "sanitizer")]
        let view = self.view();
        let ready = self.device_ptr(stream);
        #[cfg(feature = "sanitizer")]
        super::seen(view, stream, highwater_device::Access::Write);
        ready
    }
}

// SAFETY: the kernel gets the address of the elements, read from the guard when the launch is submitted; the guard is
// borrowed for as long as the arguments live, so the reference stays good, and the memory stays in use.
unsafe impl<'a, 'b: 'a, T: Pod> PushKernelArg<&'b On<'_, T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b On<'_, T>) -> &mut Self {
        self.arg(&arg.address)
    }
}

// SAFETY: as above.
unsafe impl<'a, 'b: 'a, T: Pod> PushKernelArg<&'b mut On<'_, T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b mut On<'_, T>) -> &mut Self {
        self.arg(&arg.address)
    }
}
