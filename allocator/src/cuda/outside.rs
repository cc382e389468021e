//! Uses by streams that the allocator does not know.
//!
//! Such a stream cannot be kept alive, and nothing may be put on it later. So each use ends with an event of the buffer
//! that cudarc records behind the work, and a free waits for the events as it waits for fences.
//!
//! Invariants: an event belongs to one buffer and one stream, so a later record covers what an earlier one did. A place
//! here has one event at a time, because events of several streams complete in any order; it is used again when its event
//! is complete. No stream is ever made to wait for one of these events.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cudarc::driver::CudaEvent;
use highwater_core::Wait;
use highwater_device::cuda::check_answer;
use highwater_device::{DeviceCall, DeviceResult, Waited};

use crate::fence::{Point, Recorded};
use crate::shared::Shared;

/// The longest pause between two looks at an event.
const PAUSE: Duration = Duration::from_micros(50);

/// The name of all places for streams that are not known.
const NAME: &str = "unknown streams";

/// Which stream: its context, as a number, and the driver's id.
pub(super) type Key = (usize, u64);

/// The events of one buffer, one for each stream that is not known. It only grows, so references live as long as it.
pub(crate) struct Events<E = CudaEvent> {
    first: OnceLock<Box<Link<E>>>,
}

struct Link<E> {
    stream: Key,
    event: E,
    next: OnceLock<Box<Link<E>>>,
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        Events { first: OnceLock::new() }
    }
}

impl<E> Events<E> {
    /// The event of a stream, made when there is none yet.
    pub(super) fn of<R>(&self, stream: Key, make: impl FnOnce() -> Result<E, R>) -> Result<&E, R> {
        let mut links = std::iter::successors(self.first.get(), |link| link.next.get());
        if let Some(link) = links.find(|link| link.stream == stream) {
            return Ok(&link.event);
        }
        Ok(self.append(Box::new(Link { stream, event: make()?, next: OnceLock::new() })))
    }

    /// Appends a link, unless another thread has appended one for the same stream meanwhile.
    fn append(&self, mut made: Box<Link<E>>) -> &E {
        let mut end = &self.first;
        let stream = made.stream;
        loop {
            if let Err(kept) = end.set(made) {
                let link = end.get().expect("it was found taken");
                if link.stream == stream {
                    return &link.event;
                }
                (end, made) = (&link.next, kept);
                continue;
            }
            return &end.get().expect("it was set just now").event;
        }
    }

    /// All events.
    pub(crate) fn take(&mut self) -> Vec<E> {
        let mut events = Vec::new();
        let mut next = self.first.take();
        while let Some(link) = next {
            let Link { event, next: mut rest, .. } = *link;
            events.push(event);
            next = rest.take();
        }
        events
    }
}

impl Shared {
    /// The wait for work of a stream that is not known, which is over when `point` is complete.
    pub(crate) fn await_outside(&self, point: Point) -> Wait {
        let mut places = self.outside.lock();
        let unused = places.iter().find(|place| place.clock.completed() >= place.clock.now()).cloned();
        let place = unused.unwrap_or_else(|| {
            let place = self.add_place(NAME.into(), None);
            places.push(place.clone());
            place
        });
        let position = place.clock.mark();
        let stamp = place.clock.stamp();
        place.clock.recorded(&stamp, Arc::new(Recorded::new(self.device.clone(), point, stamp.clone())));
        Wait { stream: place.index, position }
    }
}

/// Whether an event is complete.
pub(crate) fn is_complete(event: &CudaEvent) -> DeviceResult<bool> {
    match event.try_is_complete() {
        Ok(complete) => Ok(complete),
        Err(error) => check_answer(DeviceCall::Query, error.0).map(|()| true),
    }
}

/// Blocks the host until an event is complete, or `timeout_ns` is over.
pub(crate) fn wait_for(event: &CudaEvent, timeout_ns: u64) -> DeviceResult<Waited> {
    let (start, timeout) = (Instant::now(), Duration::from_nanos(timeout_ns));
    while !is_complete(event)? {
        let left = timeout.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Ok(Waited::TimedOut);
        }
        std::thread::sleep(left.min(PAUSE));
    }
    Ok(Waited::Complete)
}
