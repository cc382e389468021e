//! Points in a stream's queue.

use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use highwater_core::{Hold, Outlook, Stamp};
use highwater_device::{Device, DeviceResult, FenceHandle, Waited};

use crate::StreamError;
use crate::error::Doing;
use crate::process::Process;
use crate::shared::Shared;

/// What is asked whether a point has been passed.
pub(crate) enum Point {
    /// A fence of the device.
    Fence(FenceHandle),
    /// An event that cudarc recorded on a stream that the device does not know.
    #[cfg(feature = "cuda")]
    Event(cudarc::driver::CudaEvent),
}

/// A recorded fence of the driver, with what it proves. Given back when nobody refers to it any more.
pub(crate) struct Recorded {
    process: Process,
    device: Arc<dyn Device>,
    /// `None` only while it is dropped.
    point: Option<Point>,
    pub(crate) stamp: Stamp,
    outlook: Outlook<Arc<Recorded>>,
    over: AtomicBool,
}

impl Recorded {
    /// `stamp` was taken before the record, `outlook` after it.
    pub(crate) fn new(device: Arc<dyn Device>, point: Point, stamp: Stamp, outlook: Outlook<Arc<Recorded>>) -> Self {
        let (process, over) = (Process::current(), AtomicBool::new(false));
        Recorded { process, device, point: Some(point), stamp, outlook, over }
    }

    /// Whether it is known to be complete.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// What holds it up, as far as it is not known to be complete.
    pub(crate) fn holds(self: &Arc<Self>) -> Vec<Hold<Arc<Recorded>>> {
        let mut holds = self.outlook.holds(self.stamp.stream, self.stamp.covered, self);
        holds.retain(|hold| !hold.fence.is_over());
        holds
    }

    fn point(&self) -> &Point {
        self.point.as_ref().expect("taken only by the drop")
    }

    /// The device's fence.
    ///
    /// # Panics
    /// For an event of a stream that the device does not know: no stream is ever made to wait for one.
    pub(crate) fn handle(&self) -> FenceHandle {
        match self.point() {
            Point::Fence(handle) => *handle,
            #[cfg(feature = "cuda")]
            Point::Event(_) => panic!("only fences of the device are waited for by streams"),
        }
    }

    /// Whether it is complete.
    pub(crate) fn query(&self) -> DeviceResult<bool> {
        let complete = match self.point() {
            Point::Fence(handle) => self.device.query(*handle),
            #[cfg(feature = "cuda")]
            Point::Event(event) => crate::cuda::is_complete(event),
        }?;
        self.over.fetch_or(complete, Ordering::AcqRel);
        Ok(complete)
    }

    /// Blocks the host until it is complete, or `timeout_ns` is over.
    pub(crate) fn synchronize(&self, timeout_ns: u64) -> DeviceResult<Waited> {
        let waited = match self.point() {
            Point::Fence(handle) => self.device.synchronize(*handle, Some(timeout_ns)),
            #[cfg(feature = "cuda")]
            Point::Event(event) => crate::cuda::wait_for(event, timeout_ns),
        }?;
        self.over.fetch_or(waited == Waited::Complete, Ordering::AcqRel);
        Ok(waited)
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        let point = self.point.take();
        if self.process.is_forked() {
            let _left_alone = ManuallyDrop::new(point);
        } else if let Some(Point::Fence(handle)) = point {
            self.device.release_fence(handle);
        }
    }
}

impl fmt::Debug for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorded").field("stamp", &self.stamp).finish()
    }
}

/// A point in a stream's queue: everything that was given to the stream before. Clones are the same fence.
#[derive(Clone)]
pub struct Fence {
    pub(crate) shared: Arc<Shared>,
    pub(crate) recorded: Arc<Recorded>,
}

impl Fence {
    /// Whether everything before is complete. Never blocks.
    ///
    /// # Errors
    /// While a stream of the device captures; or the device's error: a fence whose work failed is never complete.
    pub fn is_complete(&self) -> Result<bool, StreamError> {
        let gate = self.shared.gate().ok_or_else(|| capturing("asking a fence"))?;
        self.shared.ask(&gate, &self.recorded).doing(|| "asking a fence".into())
    }

    /// Blocks the host until everything before is complete.
    ///
    /// # Errors
    /// After `timeout`, while a stream of the device captures, or when the device fails.
    pub fn wait(&self, timeout: Duration) -> Result<(), StreamError> {
        let gate = self.shared.gate().ok_or_else(|| capturing("waiting for a fence"))?;
        let doing = || "waiting for a fence".to_owned();
        match self.shared.wait_for(&gate, &self.recorded, timeout).doing(doing)? {
            Waited::Complete => Ok(()),
            Waited::TimedOut => Err(StreamError::TimedOut { doing: doing(), waited: timeout }),
        }
    }

    /// Device time from `start` to this fence, ns; 0 when `start` came later.
    ///
    /// # Errors
    /// When one of the two is not complete, or the device fails.
    pub fn elapsed_ns_since(&self, start: &Fence) -> Result<u64, StreamError> {
        let device = &self.shared.device;
        device.elapsed_ns(start.recorded.handle(), self.recorded.handle()).doing(|| "measuring between fences".into())
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.recorded.fmt(f)
    }
}

pub(crate) fn capturing(doing: &str) -> StreamError {
    StreamError::Capturing { doing: doing.to_owned() }
}
