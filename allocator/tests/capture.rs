//! Captures: nothing is done meanwhile that would break one, and what a graph was given stays its own.

use std::time::Duration;

use highwater::device::Device;
use highwater::device::{Cost, DeviceCall, DeviceError};
use highwater::{Buffer, StreamError};

use crate::world::{GRANULES, World, address, granules};

/// Counts of the calls that a capture forbids, and of those that move pages out.
fn forbidden(world: &World) -> Vec<u64> {
    use DeviceCall::{Query, Record, Release, Synchronize, Unmap, Wait};
    [Record, Query, Wait, Synchronize, Unmap, Release].iter().map(|&call| world.counters().of(call)).collect()
}

#[test]
fn nothing_that_breaks_a_capture_is_done_meanwhile() {
    let world = World::timed();
    let [s, t, u] = world.streams();
    let used_before = world.bytes(&s, granules(1));
    world.busy(&t, &used_before, 100);
    let cached = world.bytes(&u, granules(2));
    drop(cached);
    let capture = u.begin_capture().unwrap();
    let before = forbidden(&world);

    drop(used_before);
    let inside: Buffer<u8> = world.bytes(&u, granules(1));
    world.fill(&u, &inside, 1, 5);
    let outside = world.bytes(&t, granules(1));
    world.fill(&t, &outside, 2, 5);
    let foreign = world.bytes(&t, granules(1));
    world.busy(&s, &foreign, 50);
    drop((foreign, outside, inside));
    assert_eq!(world.allocator.trim(0), world.stats().reserved.now);
    let _ = (world.allocator.snapshot(), world.stats().to_map());
    world.no_room(&s, granules(GRANULES));
    drop(world.allocator.create_stream("short-lived").unwrap());
    world.check();
    assert_eq!(forbidden(&world), before);
    assert_eq!(world.stats().pending_bytes, 2 << 16);

    drop(capture.end().expect("nothing spoilt it"));
    world.pass(200);
    // The frees of meanwhile have no fence yet: whoever asks next records it.
    let again = [world.bytes(&s, granules(1)), world.bytes(&t, granules(2))];
    world.pass(1);
    assert_eq!(world.stats().pending_bytes, 0, "{:?}", world.stats());
    drop((again, s, t, u));
    world.end();
}

#[test]
fn memory_of_a_capture_is_kept_until_its_graph_is_dropped() {
    let world = World::timed();
    let [s, t] = world.streams();
    let capture = s.begin_capture().unwrap();
    let inside = world.bytes(&s, granules(1));
    let at = address(&inside);
    world.fill(&s, &inside, 1, 5);
    drop(inside);
    let second = world.bytes(&s, granules(1));
    assert_ne!(address(&second), at, "not reused inside the capture");
    let graph = capture.end().unwrap();
    let kept = [at, address(&second)];
    drop(second);
    let third = world.bytes(&s, granules(1));
    assert_ne!(address(&third), at);
    assert_eq!(world.allocator.trim(0), 3 << 16, "the graph may be launched at any time");
    drop(third);
    drop(graph);
    let again = world.bytes(&s, granules(1));
    assert!(kept.contains(&address(&again)));
    drop((again, s, t));
    world.end();
}

#[test]
fn a_buffer_that_outlives_its_graph_is_just_a_buffer() {
    let world = World::timed();
    let [s] = world.streams();
    let capture = s.begin_capture().unwrap();
    let inside = world.bytes(&s, 1000);
    drop(capture.end().unwrap());
    let at = address(&inside);
    drop(inside);
    let again = world.bytes(&s, 1000);
    assert_eq!(address(&again), at);
    drop((again, s));
    world.end();
}

#[test]
fn a_spoilt_capture_is_reported_and_its_memory_is_free() {
    let world = World::timed();
    let [s, t] = world.streams();
    let capture = s.begin_capture().unwrap();
    let inside = world.bytes(&s, granules(1));
    drop(inside);
    // Somebody goes past the allocator.
    assert!(world.device.record(t.id()).is_err());
    let error = capture.end().unwrap_err();
    assert_eq!(
        error,
        StreamError::Device {
            doing: "ending the capture of \"s\"".into(),
            source: DeviceError::CaptureViolation { call: DeviceCall::Record },
        }
    );
    assert_eq!(world.counters().of(DeviceCall::EndCapture), 1);
    assert_eq!(world.stats().cached_bytes, 1 << 16);
    assert!(t.record().is_ok());
    drop((s, t));
    world.end();
}

#[test]
fn a_launch_that_would_need_a_wait_is_refused_with_the_reason() {
    let world = World::timed();
    let [s, t] = world.streams();
    let (fresh, first) = (world.bytes(&s, 1000), world.bytes(&s, 1000));
    world.fill(&s, &first, 1, 100);
    drop(first);
    let recycled = world.bytes(&s, 1000);
    let capture = t.begin_capture().unwrap();
    world.fill(&t, &fresh, 3, 1);
    let refused = t.launch("late", Cost::exact(1)).read(&recycled).submit().unwrap_err();
    assert_eq!(
        refused.to_string(),
        "ordering \"t\" after \"s\" is not possible while a stream of the device captures: do it before the capture begins"
    );
    drop(capture.end().expect("the refusal spoilt nothing"));
    world.fill(&t, &recycled, 2, 1);
    let capture = t.begin_capture().unwrap();
    world.fill(&t, &recycled, 3, 1);
    drop(capture.end().expect("proven by now"));
    drop((recycled, fresh, s, t));
    world.end();
}

#[test]
fn whatever_asks_or_waits_is_refused_meanwhile() {
    let world = World::timed();
    let [s, t] = world.streams();
    let fence = s.record().unwrap();
    let host = world.allocator.pinned::<u8>(1000);
    let buffer = world.bytes(&s, 1000);
    world.idle(&s, 100);
    s.copy_to_device(&host, &buffer).unwrap();
    let capture = t.begin_capture().unwrap();
    let before = forbidden(&world);
    let capturing = |result: Result<(), StreamError>| assert!(matches!(result, Err(StreamError::Capturing { .. })));
    capturing(s.record().map(drop));
    capturing(s.wait(&fence));
    capturing(fence.is_complete().map(drop));
    capturing(fence.wait(Duration::from_secs(1)));
    capturing(host.is_ready().map(drop));
    capturing(host.wait(Duration::from_secs(1)));
    capturing(host.read(|_| ()));
    capturing(t.begin_capture().map(drop));
    assert_eq!(forbidden(&world), before);
    drop(capture.end().unwrap());
    drop((fence, host, buffer, s, t));
    world.end();
}

#[test]
fn a_copy_that_is_made_while_another_stream_captures_keeps_its_host_buffer_busy() {
    let world = World::timed();
    let [s, t] = world.streams();
    let (host, buffer) = (world.allocator.pinned::<u8>(1000), world.bytes(&s, 1000));
    let capture = t.begin_capture().unwrap();
    world.fill(&s, &buffer, 7, 100);
    s.copy_to_host(&buffer, &host).unwrap();
    drop(capture);
    assert_eq!(host.read(|_| ()), Err(StreamError::HostBufferBusy));
    assert_eq!(host.write(|_| ()), Err(StreamError::HostBufferBusy));
    world.pass(100);
    assert_eq!(host.read(|bytes| bytes.to_vec()).unwrap(), vec![7; 1000]);
    drop((host, buffer, s, t));
    world.end();
}

#[test]
fn an_end_that_the_device_refuses_does_not_leave_the_capture_open() {
    let world = World::timed();
    let [s] = world.streams();
    let capture = s.begin_capture().unwrap();
    drop(world.bytes(&s, granules(1)));
    world.device.fail_nth(DeviceCall::EndCapture, 1);
    assert!(capture.end().is_err());
    assert!(!world.device.is_capturing());
    assert_eq!(world.stats().cached_bytes, 1 << 16, "the memory is free");
    s.record().unwrap();
    drop(s);
    world.end();
}

#[test]
fn a_begin_that_the_device_refuses_changes_nothing() {
    let world = World::timed();
    let [s] = world.streams();
    world.device.fail_nth(DeviceCall::BeginCapture, 1);
    assert!(s.begin_capture().is_err());
    let at = {
        let buffer = world.bytes(&s, 1000);
        address(&buffer)
    };
    assert_eq!(address(&world.bytes(&s, 1000)), at, "the memory is no graph's");
    drop(s.begin_capture().unwrap().end().unwrap());
    drop(s);
    world.end();
}

#[test]
fn streams_and_allocators_may_go_while_something_captures() {
    let world = World::timed();
    let [s, t] = world.streams();
    let buffer = world.bytes(&t, 1000);
    world.busy(&t, &buffer, 50);
    let capture = s.begin_capture().unwrap();
    drop((buffer, t, s));
    assert_eq!(world.counters().of(DeviceCall::DestroyStream), 0);
    drop(capture.end().unwrap());
    world.pass(100);
    let next = world.allocator.create_stream("next").unwrap();
    // Both were closed when a place was looked for; one of them was taken over.
    assert_eq!(world.counters().of(DeviceCall::DestroyStream), 2);
    drop(next);
    world.end();
}
