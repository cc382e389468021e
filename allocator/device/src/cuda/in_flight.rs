//! Host memory that copies under way still need.
//!
//! A clone of the memory is kept with an event behind the copy, until the event is complete. Copies inside a capture
//! keep theirs for good: a graph may be launched at any time.

use std::collections::{BTreeMap, VecDeque};

use cudarc::driver::CudaStream;

use super::driver::Event;
use crate::{DeviceCall, DeviceResult, HostMemory, StreamId};

/// The copies of a device.
#[derive(Default)]
pub(super) struct InFlight {
    by_stream: BTreeMap<StreamId, VecDeque<(Event, HostMemory)>>,
    spare: Vec<Event>,
    captured: Vec<HostMemory>,
}

impl InFlight {
    /// Keeps `memory` until what was submitted to `stream` so far is complete.
    pub(super) fn keep(&mut self, id: StreamId, stream: &CudaStream, memory: &HostMemory) -> DeviceResult<()> {
        let call = DeviceCall::CopyToDevice;
        let event = match self.spare.pop() {
            Some(event) => event,
            None => Event::new(call, false)?,
        };
        if let Err(error) = event.record(call, stream) {
            // Nobody knows when the copy ends.
            self.captured.push(memory.clone());
            return Err(error);
        }
        self.by_stream.entry(id).or_default().push_back((event, memory.clone()));
        Ok(())
    }

    /// Keeps `memory` as long as the device lives.
    pub(super) fn keep_for_good(&mut self, memory: &HostMemory) {
        self.captured.push(memory.clone());
    }

    /// Lets go of what is complete on one stream. The memory is returned: it is freed outside of locks.
    #[must_use]
    pub(super) fn complete(&mut self, id: StreamId) -> Vec<HostMemory> {
        let mut done = Vec::new();
        let Some(queue) = self.by_stream.get_mut(&id) else { return done };
        while let Some((event, _)) = queue.front()
            && event.query(DeviceCall::Query) == Ok(true)
        {
            let (event, memory) = queue.pop_front().expect("it was looked at");
            self.spare.push(event);
            done.push(memory);
        }
        if queue.is_empty() {
            self.by_stream.remove(&id);
        }
        done
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        // A graph may outlive the device.
        std::mem::forget(std::mem::take(&mut self.captured));
        for (event, memory) in std::mem::take(&mut self.by_stream).into_values().flatten() {
            if event.query(DeviceCall::Query) != Ok(true) {
                // The driver may still write there: better lost than freed.
                std::mem::forget(memory);
            }
        }
    }
}
