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
use highwater_core::{Outlook, Wait};
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
    pub(crate) fn is_empty(&self) -> bool {
        self.first.get().is_none()
    }

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
        let recorded = Recorded::new(self.device.clone(), point, stamp.clone(), Outlook::Open);
        place.clock.recorded(&stamp, Arc::new(recorded));
        Wait { stream: place.index, position }
    }
}

/// Whether an event is complete.
pub(crate) fn is_complete(event: &CudaEvent) -> DeviceResult<bool> {
    let asked = event.context().bind_to_thread().and_then(|()| event.try_is_complete());
    asked.or_else(|error| check_answer(DeviceCall::Query, error.0).map(|()| true))
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use highwater_core::Uses;
    use highwater_device::sim::{SimConfig, SimDevice};
    use highwater_device::{Body, Cost, CostModel, Device, Operation, StreamId};
    use highwater_history::Context;

    use super::*;
    use crate::{Allocator, Settings, Stream};

    fn made<E>(events: &Events<E>, stream: u64, event: E) -> &E {
        let Ok(event) = events.of((1, stream), || Ok::<_, Infallible>(event));
        event
    }

    #[test]
    fn each_stream_has_one_event_and_references_to_it_stay_good() {
        let mut events = Events::default();
        let first = made(&events, 1, "one".to_owned());
        let second = made(&events, 2, "two".to_owned());
        assert!(std::ptr::eq(first, made(&events, 1, "another".to_owned())));
        assert!(std::ptr::eq(second, made(&events, 2, "another".to_owned())));
        let Ok(elsewhere) = events.of((2, 1), || Ok::<_, Infallible>("three".to_owned()));
        assert_eq!((&**first, &**second, &**elsewhere), ("one", "two", "three"));
        assert_eq!(events.take(), ["one", "two", "three"]);
        assert!(events.take().is_empty());
    }

    #[test]
    fn an_event_that_cannot_be_made_is_asked_for_again() {
        let events = Events::default();
        assert_eq!(events.of((1, 1), || Err::<u8, _>("no memory")), Err("no memory"));
        assert_eq!(events.of((1, 1), || Ok::<_, &str>(3)), Ok(&3));
    }

    #[test]
    fn two_threads_that_append_for_one_stream_get_one_event() {
        let events = Events::default();
        let other = || *made(&events, 1, 5);
        // The other one is first, while this one makes its event.
        let got = events.of((1, 1), || {
            other();
            Ok::<_, Infallible>(6)
        });
        assert_eq!(got, Ok(&5));
    }

    /// A device whose calls take no time, and two of its streams that the allocator does not know.
    struct Stage {
        device: Arc<SimDevice>,
        allocator: Allocator,
        unknown: [StreamId; 2],
    }

    impl Stage {
        fn new() -> Self {
            let cost = CostModel::free();
            let device = SimDevice::new(SimConfig {
                cost,
                workers: 0,
                memory_bytes: 1 << 20,
                granularity_bytes: 1 << 16,
                ..SimConfig::default()
            });
            let allocator = Allocator::with_settings(device.clone(), Settings::builder().build().unwrap()).unwrap();
            let unknown = ["a", "b"].map(|name| device.create_stream(name).unwrap());
            Stage { device, allocator, unknown }
        }

        /// The end of work of `ns` on a stream that the allocator does not know.
        fn work(&self, stream: StreamId, ns: u64) -> Point {
            let operation = Operation {
                name: "work".into(),
                tag: 0,
                cost: Cost::exact(ns),
                operands: Vec::new(),
                body: Body::Nothing,
            };
            self.device.launch(stream, operation).unwrap();
            Point::Fence(self.device.record(stream).unwrap())
        }

        /// Allocates on a stream and frees, with work outside that has to end first. The address.
        fn used_outside(&self, stream: &Stream, bytes: u64, points: Vec<Point>) -> u64 {
            let shared = self.allocator.shared();
            let context = Context::here();
            let (placed, holder) = stream.place(bytes, context).unwrap();
            let waits = points.into_iter().map(|point| shared.await_outside(point)).collect();
            holder.give_back((placed.block, bytes), &Uses::default(), waits, context);
            placed.address
        }

        fn address_of_next(&self, stream: &Stream, bytes: usize) -> u64 {
            let buffer = stream.alloc::<u8>(bytes).unwrap();
            buffer.view().byte_range().address.0
        }
    }

    const BYTES: u64 = 1 << 16;

    #[test]
    fn memory_is_pending_until_the_work_outside_is_complete() {
        let stage = Stage::new();
        let stream = stage.allocator.default_stream();
        let [a, b] = stage.unknown;
        let points = vec![stage.work(a, 100), stage.work(b, 50)];
        let at = stage.used_outside(&stream, BYTES, points);
        let stats = stage.allocator.memory_stats();
        assert_eq!((stats.live.now, stats.pending_bytes), (0, BYTES));
        assert_eq!(stats.pending_bytes_by_stream["unknown streams"], 2 * BYTES);
        stage.device.host_work(60);
        assert_ne!(stage.address_of_next(&stream, BYTES as usize), at, "one of the two is still at work");
        stage.allocator.trim(BYTES);
        stage.device.host_work(40);
        assert_eq!(stage.address_of_next(&stream, BYTES as usize), at);
        stage.allocator.check().unwrap();
    }

    #[test]
    fn ends_in_another_order_than_the_frees_are_not_taken_for_each_other() {
        let stage = Stage::new();
        let stream = stage.allocator.default_stream();
        let [a, b] = stage.unknown;
        let slow = vec![stage.work(a, 100)];
        let quick = vec![stage.work(b, 10)];
        let slow_at = stage.used_outside(&stream, BYTES, slow);
        let quick_at = stage.used_outside(&stream, BYTES, quick);
        stage.device.host_work(20);
        let first = stream.alloc::<u8>(BYTES as usize).unwrap();
        let second = stream.alloc::<u8>(BYTES as usize).unwrap();
        assert_eq!(first.view().byte_range().address.0, quick_at);
        assert_ne!(second.view().byte_range().address.0, slow_at);
    }

    #[test]
    fn places_are_used_again() {
        let stage = Stage::new();
        let stream = stage.allocator.default_stream();
        for _ in 0..10 {
            let point = vec![stage.work(stage.unknown[0], 10)];
            stage.used_outside(&stream, BYTES, point);
            stage.device.host_work(10);
            stage.address_of_next(&stream, BYTES as usize);
        }
        assert_eq!(stage.allocator.shared().outside.lock().len(), 1);
    }

    #[test]
    fn a_request_blocks_the_host_for_work_outside_when_nothing_else_helps() {
        let stage = Stage::new();
        let stream = stage.allocator.default_stream();
        let all = 1 << 20;
        let at = stage.used_outside(&stream, all, vec![stage.work(stage.unknown[0], 100)]);
        assert_eq!(stage.address_of_next(&stream, all as usize), at);
        assert_eq!((stage.device.now_ns(), stage.allocator.memory_stats().host_stalls), (100, 1));
    }

    #[test]
    fn the_end_of_an_allocator_waits_for_work_outside() {
        let Stage { device, allocator, unknown: [a, _] } = {
            let stage = Stage::new();
            let point = vec![stage.work(stage.unknown[0], 100)];
            stage.used_outside(&stage.allocator.default_stream(), BYTES, point);
            stage
        };
        drop(allocator);
        assert_eq!(device.now_ns(), 100);
        let info = device.memory_info().unwrap();
        assert_eq!(info.free, info.total);
        device.destroy_stream(a).unwrap();
    }

    #[test]
    fn no_event_is_asked_while_a_stream_captures() {
        let stage = Stage::new();
        let stream = stage.allocator.default_stream();
        let capturing = stage.allocator.create_stream("capturing").unwrap();
        let point = vec![stage.work(stage.unknown[0], 10)];
        let capture = capturing.begin_capture().unwrap();
        stage.device.host_work(20);
        let at = stage.used_outside(&stream, BYTES, point);
        assert_ne!(stage.address_of_next(&stream, BYTES as usize), at);
        drop(capture.end().expect("nothing spoilt it"));
        stage.allocator.trim(0);
        assert_eq!(stage.allocator.memory_stats().pending_bytes, 0);
    }
}
