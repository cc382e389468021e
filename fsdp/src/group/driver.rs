//! The few calls of the driver that a group makes itself, with what makes them sound.
//!
//! - **inside**: they are called inside the body of a launch alone, so the driver is there and its context is bound; a
//!   stream is the one that a body got, and the body has not returned.
//! - **numbers**: device addresses are numbers to the host. A wrong one faults the device.
#![allow(unsafe_code)]

use std::sync::Arc;

use cudarc::driver::{CudaContext, sys};
use highwater::device::cuda::check_answer;
use highwater::device::{Address, DeviceCall, DeviceResult, DriverStream};

/// An event without time.
pub(super) struct Event {
    event: sys::CUevent,
    context: Arc<CudaContext>,
}

// SAFETY: the driver's events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above; the driver locks.
unsafe impl Sync for Event {}

impl Event {
    pub(super) fn new(context: &Arc<CudaContext>) -> DeviceResult<Self> {
        let mut event = std::ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: inside; the driver stores one handle.
        check_answer(DeviceCall::Record, unsafe { sys::cuEventCreate(&mut event, flags) })?;
        Ok(Event { event, context: context.clone() })
    }

    /// The event stands for everything that the stream got so far.
    pub(super) fn record(&self, stream: DriverStream) -> DeviceResult<()> {
        // SAFETY: inside; the event is alive, for this owns it.
        check_answer(DeviceCall::Record, unsafe { sys::cuEventRecord(self.event, handle(stream)) })
    }

    /// What the stream gets from now on comes after what the event stands for now.
    pub(super) fn hold_back(&self, stream: DriverStream) -> DeviceResult<()> {
        // SAFETY: as above.
        check_answer(DeviceCall::Wait, unsafe { sys::cuStreamWaitEvent(handle(stream), self.event, 0) })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // An error that waits in the context is the program's: it is put back.
        let waiting = self.context.check_err();
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: this owns the event, and its context is alive. The driver keeps what queued waits need.
            let _ = unsafe { sys::cuEventDestroy_v2(self.event) };
        }
        self.context.record_err(waiting);
    }
}

/// Copies device memory.
pub(super) fn copy(stream: DriverStream, source: Address, target: Address, bytes: u64) -> DeviceResult<()> {
    if bytes == 0 {
        return Ok(());
    }
    // SAFETY: inside, and numbers.
    let answer = unsafe { sys::cuMemcpyDtoDAsync_v2(target.0, source.0, bytes as usize, handle(stream)) };
    check_answer(DeviceCall::Launch, answer)
}

/// Waits on the host for everything that the stream got so far.
pub(super) fn synchronize(stream: DriverStream) -> DeviceResult<()> {
    // SAFETY: inside.
    check_answer(DeviceCall::Synchronize, unsafe { sys::cuStreamSynchronize(handle(stream)) })
}

fn handle(stream: DriverStream) -> sys::CUstream {
    stream.0 as sys::CUstream
}
