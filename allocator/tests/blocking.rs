//! Launch-blocking mode, and what errors of work say without it.

use std::time::Duration;

use highwater::device::{Access, Address, Body, ByteRange, Cost, Device, DeviceError, Operand, Operation};
use highwater::{AllocError, Settings, SettingsBuilder, Stream, StreamError};

use crate::world::{GRANULE, World, granules};

fn blocking() -> SettingsBuilder {
    Settings::builder().launch_blocking(true)
}

/// An operation that touches memory which nobody mapped.
fn bad(world: &World, stream: &Stream) -> Result<(), StreamError> {
    let operands = vec![Operand { range: ByteRange::new(Address(64), 8), access: Access::Read }];
    let operation = Operation { name: "bad".into(), tag: 0, cost: Cost::exact(10), operands, body: Body::Nothing };
    stream.submit_external::<u8, _>("bad", &[], &[], |id, _| world.device.launch(id, operation))
}

#[test]
fn each_submission_waits_for_its_work() {
    let world = World::with(blocking());
    let [s, t] = world.streams();
    let x = world.bytes(&s, granules(1));
    let host = world.allocator.pinned::<u8>(granules(1));
    world.fill(&s, &x, 7, 10);
    assert_eq!((world.device_ns(), world.counters().host_synchronizations), (10, 1));
    world.busy(&t, &x, 5);
    assert_eq!((world.device_ns(), world.counters().host_synchronizations), (15, 2));
    t.submit_external("external", &[x.view()], &[], |id, _| {
        let operation = Operation {
            name: "external".into(),
            tag: 0,
            cost: Cost::exact(3),
            operands: Vec::new(),
            body: Body::Nothing,
        };
        world.device.launch(id, operation)
    })
    .unwrap();
    assert_eq!(world.device_ns(), 18);
    s.copy_to_host(&x, &host).unwrap();
    host.read(|bytes| assert!(bytes.iter().all(|&byte| byte == 7))).unwrap();
    let stats = world.stats();
    assert_eq!((stats.host_stalls, stats.host_stall_ns), (4, 18));
    // Nothing waits for another stream: what is freed is free.
    drop(x);
    assert_eq!(world.stats().pending_bytes, 0);
    drop((s, t, host));
    world.end();
}

#[test]
fn it_is_off_unless_asked_for() {
    let world = World::timed();
    let [s] = world.streams();
    world.idle(&s, 10);
    assert_eq!((world.device_ns(), world.counters().host_synchronizations, world.stats().fences_recorded), (0, 0, 0));
    drop(s);
    world.end();
}

#[test]
fn the_submission_that_fails_returns_its_error() {
    let world = World::with(blocking());
    let [s, t] = world.streams();
    world.idle(&s, 10);
    let error = bad(&world, &s).unwrap_err();
    let StreamError::Failed { operation, stream, source } = &error else { panic!("{error:?}") };
    assert_eq!((&**operation, &**stream), ("bad", "s"));
    assert!(matches!(**source, DeviceError::IllegalAddress { address: Address(64), .. }), "{source:?}");
    assert!(!error.to_string().contains("asynchronous"), "{error}");
    // Later calls are not to blame.
    let later = t.record().unwrap_err().to_string();
    assert!(later.contains("\"bad\" on \"s\", submitted earlier, failed"), "{later}");
}

#[test]
fn a_failure_of_another_streams_work_is_not_taken_for_the_submissions_own() {
    let world = World::with(blocking());
    let [s, t] = world.streams();
    // Past the allocator, so nobody waited for it.
    let panics = Body::Host(Box::new(|_| panic!("on purpose")));
    let raw = Operation { name: "raw".into(), tag: 0, cost: Cost::exact(5), operands: Vec::new(), body: panics };
    world.device.launch(s.id(), raw).unwrap();
    let error = t.launch("innocent", Cost::exact(10)).submit().unwrap_err();
    let StreamError::Device { doing, .. } = &error else { panic!("{error:?}") };
    assert!(doing.starts_with("innocent on \"t\""), "{doing}");
    assert!(error.to_string().contains("operation \"raw\" on \"s\", submitted earlier, failed"), "{error}");
}

#[test]
fn a_submission_that_hangs_is_named() {
    let timeout = Duration::from_nanos(100);
    let world = World::with(blocking().host_wait_timeout(timeout));
    let [s] = world.streams();
    let x = world.bytes(&s, granules(1));
    let host = world.allocator.pinned::<u8>(granules(1));
    let late = s.launch("late", Cost::exact(1000)).write(&x).submit().unwrap_err();
    let doing = "late on \"s\", in launch-blocking mode".to_owned();
    assert_eq!((late, world.device_ns()), (StreamError::TimedOut { doing, waited: timeout }, 100));
    // A copy that is under way keeps its host memory.
    assert!(matches!(s.copy_to_host(&x, &host), Err(StreamError::TimedOut { .. })));
    assert_eq!(host.read(|_| ()), Err(StreamError::HostBufferBusy));
    world.pass(1000);
    host.read(|_| ()).unwrap();
    drop((x, s, host));
    world.end();
}

#[test]
fn what_a_stream_captures_is_not_waited_for() {
    let world = World::with(blocking());
    let [s] = world.streams();
    let capture = s.begin_capture().unwrap();
    world.idle(&s, 10);
    drop(capture.end().unwrap());
    assert_eq!(world.counters().host_synchronizations, 0);
    drop(s);
    world.end();
}

#[test]
fn errors_of_requests_say_who_failed_too() {
    let world = World::timed();
    let [s, t] = world.streams();
    bad(&world, &s).unwrap();
    world.pass(10);
    let error = t.alloc::<u8>(granules(1)).unwrap_err();
    assert!(matches!(error, AllocError::Device { requested: GRANULE, .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("operation \"bad\" on \"s\", submitted earlier, failed"), "{text}");
    assert!(text.contains("launch_blocking:True in HIGHWATER_ALLOC_CONF"), "{text}");
}
