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
        let event = self.spare.pop().map_or_else(|| Event::new(call, false), Ok);
        match event.and_then(|event| event.record(call, stream).map(|()| event)) {
            Ok(event) => self.by_stream.entry(id).or_default().push_back((event, memory.clone())),
            Err(error) => {
                // Nobody knows when the copy ends.
                self.captured.push(memory.clone());
                return Err(error);
            }
        }
        Ok(())
    }

    /// Keeps `memory` as long as the device lives.
    pub(super) fn keep_for_good(&mut self, memory: &HostMemory) {
        self.captured.push(memory.clone());
    }

    /// Lets go of what is complete, on streams that are destroyed too. The memory is returned: it is freed outside of
    /// locks.
    #[must_use]
    pub(super) fn complete(&mut self) -> Vec<HostMemory> {
        let (spare, mut done) = (&mut self.spare, Vec::new());
        self.by_stream.retain(|_, queue| {
            while queue.front().is_some_and(|(event, _)| event.query(DeviceCall::Query) == Ok(true)) {
                let (event, memory) = queue.pop_front().expect("it was looked at");
                spare.push(event);
                done.push(memory);
            }
            !queue.is_empty()
        });
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
