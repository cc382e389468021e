//! The calls of the driver, one function or type each, with what makes them sound. No other file of the device but `nvml`
//! holds unsafe code.
//!
//! Two invariants carry all of it:
//!
//! - **present**: nothing here runs before [`present`] has answered yes; a symbol that a driver lacks is looked up by
//!   name at its first call, and every symbol used here exists since CUDA 12.
//! - **owned**: a handle is made by a constructor here and destroyed by its owner's drop, so a reference to its owner
//!   proves that it is alive. Device addresses are numbers: a wrong one faults the device, and never touches the host.
#![allow(unsafe_code)]

use std::any::Any;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, sys};

use crate::error::invalid;
use crate::{Address, DeviceCall, DeviceError, DeviceResult, DriverStream, HostMemory};

/// Whether the driver's library is there. Asked before any other call: a missing library is a panic inside cudarc.
pub(super) fn present() -> bool {
    // SAFETY: present: it opens the library and closes it again, which runs no code of ours.
    unsafe { sys::is_culib_present() }
}

/// Turns the answer of a call into a result.
pub(super) fn check(call: DeviceCall, answer: sys::CUresult) -> DeviceResult<()> {
    match answer {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        sys::CUresult::CUDA_ERROR_INVALID_VALUE => Err(invalid(call, "the driver refuses an argument")),
        _ => Err(error(call, answer)),
    }
}

/// The driver's error, in its own words.
pub(super) fn error(call: DeviceCall, answer: sys::CUresult) -> DeviceError {
    let text = |ask: unsafe fn(sys::CUresult, *mut *const c_char) -> sys::CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: present; the driver stores a pointer to a static string, or null for an error that it does not know.
        let known = unsafe { ask(answer, &mut text) };
        if known != sys::CUresult::CUDA_SUCCESS || text.is_null() {
            return format!("CUDA error {}", answer as u32);
        }
        // SAFETY: a static string that ends with zero.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    DeviceError::Driver { call, name: text(sys::cuGetErrorName), text: text(sys::cuGetErrorString) }
}

/// The driver's version, 1000 · major + 10 · minor.
pub(super) fn version() -> DeviceResult<u32> {
    let mut version = 0;
    // SAFETY: present; the driver stores one number.
    check(DeviceCall::MemoryInfo, unsafe { sys::cuDriverGetVersion(&mut version) })?;
    Ok(u32::try_from(version).unwrap_or(0))
}

/// An event.
pub(super) struct Event(sys::CUevent);

// SAFETY: the driver's events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above; the driver locks.
unsafe impl Sync for Event {}

impl Event {
    pub(super) fn new(call: DeviceCall, timing: bool) -> DeviceResult<Self> {
        let flags = match timing {
            true => sys::CUevent_flags::CU_EVENT_DEFAULT,
            false => sys::CUevent_flags::CU_EVENT_DISABLE_TIMING,
        };
        let mut event = std::ptr::null_mut();
        // SAFETY: present; the driver stores one handle.
        check(call, unsafe { sys::cuEventCreate(&mut event, flags as u32) })?;
        Ok(Event(event))
    }

    pub(super) fn record(&self, call: DeviceCall, stream: &CudaStream) -> DeviceResult<()> {
        // SAFETY: owned, both.
        check(call, unsafe { sys::cuEventRecord(self.0, stream.cu_stream()) })
    }

    pub(super) fn query(&self, call: DeviceCall) -> DeviceResult<bool> {
        // SAFETY: owned.
        match unsafe { sys::cuEventQuery(self.0) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            answer => check(call, answer).map(|()| true),
        }
    }

    pub(super) fn synchronize(&self, call: DeviceCall) -> DeviceResult<()> {
        // SAFETY: owned.
        check(call, unsafe { sys::cuEventSynchronize(self.0) })
    }

    /// Device time from this event to `end`, ns; both are complete and take the time. Negative when `end` came first.
    pub(super) fn elapsed_ns(&self, call: DeviceCall, end: &Event) -> DeviceResult<i64> {
        let mut milliseconds = 0.0f32;
        // SAFETY: owned, both; the driver stores one number.
        check(call, unsafe { sys::cuEventElapsedTime_v2(&mut milliseconds, self.0, end.0) })?;
        Ok((f64::from(milliseconds) * 1e6).round() as i64)
    }

    pub(super) fn hold_back(&self, call: DeviceCall, stream: &CudaStream) -> DeviceResult<()> {
        // SAFETY: owned, both.
        check(call, unsafe { sys::cuStreamWaitEvent(stream.cu_stream(), self.0, 0) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: owned, and gone now. The driver keeps what queued waits need. An answer here helps nobody.
        let _ = unsafe { sys::cuEventDestroy_v2(self.0) };
    }
}

/// The driver's id of a stream.
pub(super) fn stream_id(call: DeviceCall, stream: &CudaStream) -> DeviceResult<u64> {
    let mut id = 0;
    // SAFETY: owned; the driver stores one number.
    check(call, unsafe { sys::cuStreamGetId(stream.cu_stream(), &mut id) })?;
    Ok(id)
}

/// The handle of a stream, as a number.
pub(super) fn handle(stream: &CudaStream) -> DriverStream {
    DriverStream(stream.cu_stream() as u64)
}

/// Whether a stream captures. Harmless during a capture.
pub(super) fn is_capturing(stream: &CudaStream) -> bool {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: owned; the driver stores one number.
    let answer = unsafe { sys::cuStreamIsCapturing(stream.cu_stream(), &mut status) };
    match answer {
        sys::CUresult::CUDA_SUCCESS => status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE,
        // The legacy stream, while another one captures. Any other error is told by the call that comes next.
        answer => answer == sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
    }
}

/// Makes a call that may be forbidden to a thread while any stream captures, its own or not. It touches no stream that
/// captures, so the capture does not mind.
pub(super) fn beside_captures<R>(call: DeviceCall, act: impl FnOnce() -> DeviceResult<R>) -> DeviceResult<R> {
    let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: present; the driver exchanges one value of the thread.
    check(call, unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) })?;
    let done = act();
    // SAFETY: as above; it gets back what it gave.
    check(call, unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) })?;
    done
}

pub(super) fn begin_capture(stream: &CudaStream) -> DeviceResult<()> {
    // Relaxed: calls that other threads make on other streams, and page-locking, are none of this capture's business.
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: owned.
    check(DeviceCall::BeginCapture, unsafe { sys::cuStreamBeginCapture_v2(stream.cu_stream(), mode) })
}

/// Ends a capture and drops the graph.
pub(super) fn end_capture(stream: &CudaStream) -> DeviceResult<()> {
    let mut graph = std::ptr::null_mut();
    // SAFETY: owned; the driver stores one handle, null when the capture is invalid.
    let ended = check(DeviceCall::EndCapture, unsafe { sys::cuStreamEndCapture(stream.cu_stream(), &mut graph) });
    if !graph.is_null() {
        // SAFETY: it was made just now, and nobody else knows it.
        check(DeviceCall::EndCapture, unsafe { sys::cuGraphDestroy(graph) })?;
    }
    ended
}

/// What a page is made of: pinned memory of one device.
fn page_properties(ordinal: u32) -> sys::CUmemAllocationProp {
    // SAFETY: plain data, for which zeros are "no" and "none".
    let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location(ordinal);
    properties
}

fn location(ordinal: u32) -> sys::CUmemLocation {
    let id = i32::try_from(ordinal).expect("the driver counts devices by i32");
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id }
}

/// Sizes of handles and alignment of mappings are multiples of this, bytes.
pub(super) fn granularity_bytes(ordinal: u32) -> DeviceResult<u64> {
    let properties = page_properties(ordinal);
    let option = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    let mut bytes = 0;
    // SAFETY: present; both pointers live through the call.
    let answer = unsafe { sys::cuMemGetAllocationGranularity(&mut bytes, &properties, option) };
    check(DeviceCall::MemoryInfo, answer)?;
    Ok(bytes as u64)
}

/// Free and total memory, bytes.
pub(super) fn memory_info() -> DeviceResult<(u64, u64)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: present; the driver stores two numbers.
    check(DeviceCall::MemoryInfo, unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
    Ok((free as u64, total as u64))
}

pub(super) fn reserve(bytes: u64) -> DeviceResult<Address> {
    let mut address = 0;
    // SAFETY: present; the driver stores one address.
    let answer = unsafe { sys::cuMemAddressReserve(&mut address, bytes as usize, 0, 0, 0) };
    check(DeviceCall::Reserve, answer)?;
    Ok(Address(address))
}

pub(super) fn unreserve(address: Address, bytes: u64) -> DeviceResult<()> {
    // SAFETY: numbers only; the driver checks them.
    check(DeviceCall::Unreserve, unsafe { sys::cuMemAddressFree(address.0, bytes as usize) })
}

/// Physical memory, the driver's handle of it.
#[derive(Clone, Copy)]
pub(super) struct Page(sys::CUmemGenericAllocationHandle);

/// # Errors
/// [`DeviceError::OutOfMemory`] says 0 bytes free: who asks knows better.
pub(super) fn create(ordinal: u32, bytes: u64) -> DeviceResult<Page> {
    let properties = page_properties(ordinal);
    let mut page = 0;
    // SAFETY: present; both pointers live through the call.
    match unsafe { sys::cuMemCreate(&mut page, bytes as usize, &properties, 0) } {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(DeviceError::OutOfMemory { requested: bytes, free: 0 }),
        answer => check(DeviceCall::Create, answer).map(|()| Page(page)),
    }
}

pub(super) fn map(page: Page, address: Address, bytes: u64) -> DeviceResult<()> {
    // SAFETY: numbers only; the driver checks them.
    check(DeviceCall::Map, unsafe { sys::cuMemMap(address.0, bytes as usize, 0, page.0, 0) })
}

/// Whether access is set; the driver may not be ready for it while others submit.
pub(super) fn set_access(ordinal: u32, address: Address, bytes: u64) -> DeviceResult<bool> {
    let access = sys::CUmemAccessDesc {
        location: location(ordinal),
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: one description, alive through the call; the driver checks the addresses.
    match unsafe { sys::cuMemSetAccess(address.0, bytes as usize, &access, 1) } {
        sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        answer => check(DeviceCall::SetAccess, answer).map(|()| true),
    }
}

pub(super) fn unmap(address: Address, bytes: u64) -> DeviceResult<()> {
    // SAFETY: numbers only; the driver checks them. Work that still uses the addresses would fault the device.
    check(DeviceCall::Unmap, unsafe { sys::cuMemUnmap(address.0, bytes as usize) })
}

pub(super) fn release(page: Page) -> DeviceResult<()> {
    // SAFETY: the caller's books hold the page once, and forget it now.
    check(DeviceCall::Release, unsafe { sys::cuMemRelease(page.0) })
}

/// Host memory that the driver has page-locked.
struct HostLock {
    start: *mut c_void,
    context: Arc<CudaContext>,
}

// SAFETY: an address that is only handed back to the driver, which locks.
unsafe impl Send for HostLock {}
// SAFETY: as above.
unsafe impl Sync for HostLock {}

impl Drop for HostLock {
    fn drop(&mut self) {
        // An error that waits there for the program neither gets lost nor keeps the memory locked.
        let waiting = self.context.check_err();
        if self.context.bind_to_thread().is_ok() {
            let call = DeviceCall::CopyToHost;
            // SAFETY: it was registered when this was made, and the memory is alive: it owns this.
            let _ = beside_captures(call, || check(call, unsafe { sys::cuMemHostUnregister(self.start) }));
        }
        self.context.record_err(waiting);
    }
}

/// The address of `bytes` bytes of `memory` from `offset` on, page-locked if the memory is to be.
fn host_address(
    call: DeviceCall,
    context: &Arc<CudaContext>,
    memory: &HostMemory,
    offset: u64,
    bytes: u64,
) -> DeviceResult<*mut u8> {
    let inside = offset.checked_add(bytes).is_some_and(|end| end <= memory.len());
    if !inside {
        return Err(invalid(call, format!("{bytes} bytes from byte {offset} on leave {} bytes", memory.len())));
    }
    let start = memory.locked_address(|start, bytes| {
        // SAFETY: the memory is alive and does not move; it is unregistered before it is freed.
        let answer = unsafe { sys::cuMemHostRegister_v2(start.cast(), bytes, sys::CU_MEMHOSTREGISTER_PORTABLE) };
        check(call, answer)?;
        Ok(Box::new(HostLock { start: start.cast(), context: context.clone() }) as Box<dyn Any + Send + Sync>)
    })?;
    Ok(start.wrapping_add(usize::try_from(offset).expect("host memory fits the host")))
}

/// The caller keeps a clone of `source` until the copy is complete.
pub(super) fn copy_to_device(
    stream: &CudaStream,
    destination: Address,
    source: &HostMemory,
    offset: u64,
    bytes: u64,
) -> DeviceResult<()> {
    let call = DeviceCall::CopyToDevice;
    let source = host_address(call, stream.context(), source, offset, bytes)?;
    // SAFETY: the range was checked, and the caller keeps the memory and keeps away from it.
    let answer = unsafe {
        sys::cuMemcpyHtoDAsync_v2(destination.0, source.cast_const().cast(), bytes as usize, stream.cu_stream())
    };
    check(call, answer)
}

/// The caller keeps a clone of `destination` until the copy is complete.
pub(super) fn copy_to_host(
    stream: &CudaStream,
    destination: &HostMemory,
    offset: u64,
    source: Address,
    bytes: u64,
) -> DeviceResult<()> {
    let call = DeviceCall::CopyToHost;
    let destination = host_address(call, stream.context(), destination, offset, bytes)?;
    // SAFETY: the range was checked, and the caller keeps the memory and keeps away from it.
    let answer = unsafe { sys::cuMemcpyDtoHAsync_v2(destination.cast(), source.0, bytes as usize, stream.cu_stream()) };
    check(call, answer)
}

type HostTask = Box<dyn FnOnce() + Send>;

/// Runs `task` on a thread of the driver, in the stream's order. It must not call the driver.
pub(super) fn run_on_host(stream: &CudaStream, task: HostTask) -> DeviceResult<()> {
    unsafe extern "C" fn run(task: *mut c_void) {
        // SAFETY: it was boxed below for this one call.
        let task = unsafe { Box::from_raw(task.cast::<HostTask>()) };
        // A panic must not go through the driver; the task has told of it itself.
        let _ = catch_unwind(AssertUnwindSafe(task));
    }
    let task = Box::into_raw(Box::new(task));
    // SAFETY: owned; `run` gets the box once, when the stream comes to it.
    let answer = unsafe { sys::cuLaunchHostFunc(stream.cu_stream(), Some(run), task.cast()) };
    check(DeviceCall::Launch, answer).inspect_err(|_| {
        // SAFETY: it was refused, so nobody else has the box.
        drop(unsafe { Box::from_raw(task) });
    })
}
