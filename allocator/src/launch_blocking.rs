//! Launch-blocking mode: a submission waits for its own work, so that an error is returned where it was made.
//!
//! The wait comes after the uses of the operands were noted, so an error of the work leaves nothing unrecorded. Everything
//! that was submitted before has been waited for by the call that did, so a fault that shows up here is the work's own,
//! unless the device says that another stream's work failed (work of a guard, or past this crate).

use highwater_core::Position;
use highwater_device::{DeviceError, Waited};
use highwater_history::Context;

use crate::Stream;
use crate::error::{Doing, StreamError};

impl Stream {
    /// Blocks the host until `operation`, which was submitted to this stream before `position`, is complete. Nothing is
    /// waited for while a stream of the device captures.
    pub(crate) fn wait_for_launch(
        &self,
        operation: &str,
        position: Position,
        context: Context,
    ) -> Result<(), StreamError> {
        let (shared, slot) = (self.shared(), self.slot());
        let Some(gate) = shared.gate() else { return Ok(()) };
        let (start_ns, timeout) = (shared.device.now_ns(), shared.settings.host_wait_timeout());
        let fence = shared.fence_covering(&gate, slot, position);
        let waited = fence.and_then(|fence| match fence {
            Some(fence) => shared.wait_for(&gate, &fence, timeout),
            None => Ok(Waited::Complete),
        });
        shared.note_host_wait(&mut slot.station.enter(), slot, start_ns, context);
        let doing = || format!("{operation} on {:?}, in launch-blocking mode", self.name());
        match waited {
            Ok(Waited::Complete) => Ok(()),
            Ok(Waited::TimedOut) => Err(StreamError::TimedOut { doing: doing(), waited: timeout }),
            Err(source) if self.is_own_failure(&source) => Err(StreamError::Failed {
                operation: operation.to_owned(),
                stream: self.name().to_owned(),
                source: Box::new(source.failed_work().expect("it was just found").clone()),
            }),
            Err(source) => Err(source).doing(doing),
        }
    }

    /// Whether an error tells of work that failed, and not of work of another stream.
    fn is_own_failure(&self, error: &DeviceError) -> bool {
        let own = error.failed_operation().is_none_or(|(_, stream)| stream == self.name());
        error.failed_work().is_some() && own
    }
}
