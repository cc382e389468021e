//! CUDA's default streams: what the legacy one orders implicitly, and what the per-thread ones do not.

mod support;

use std::sync::Arc;

use highwater_device::sim::{Collective, DefaultStream, SimCluster, SimConfig, SimDevice, StreamKind};
use highwater_device::{Address, ByteRange, Cost, Device, DeviceCall, DeviceError, StreamId};
use support::{adversarial, copy, fill, finish, idle, memory, pinned, spans, streams, ticks};

fn config(default_stream: DefaultStream) -> SimConfig {
    SimConfig { default_stream, ..ticks() }
}

fn legacy() -> Arc<SimDevice> {
    SimDevice::new(config(DefaultStream::Legacy))
}

fn launch(device: &SimDevice, stream: StreamId, name: &'static str, ns: u64) {
    device.launch(stream, idle(name, ns, vec![])).unwrap();
}

/// Name, start and end of everything, after it has been executed.
fn executed(device: &SimDevice) -> Vec<(String, u64, u64)> {
    device.cluster().settle().unwrap();
    spans(&device.cluster())
}

fn span(name: &str, start: u64, end: u64) -> (String, u64, u64) {
    (name.to_owned(), start, end)
}

/// Work of a stream, of the default stream, of another stream.
fn one_between_two(default_stream: DefaultStream) -> Vec<(String, u64, u64)> {
    let device = SimDevice::new(config(default_stream));
    let [first, second] = streams(&device);
    launch(&device, first, "first", 3);
    launch(&device, device.default_stream(), "default", 2);
    launch(&device, second, "second", 4);
    executed(&device)
}

#[test]
fn the_legacy_stream_comes_after_what_was_before_and_before_what_comes_after() {
    let spans = one_between_two(DefaultStream::Legacy);
    assert_eq!(spans, [span("first", 0, 3), span("default", 3, 5), span("second", 5, 9)]);
}

#[test]
fn plain_and_per_thread_default_streams_order_nothing() {
    for default_stream in [DefaultStream::Plain, DefaultStream::PerThread] {
        let spans = one_between_two(default_stream);
        assert_eq!(spans, [span("first", 0, 3), span("default", 0, 2), span("second", 0, 4)]);
    }
}

#[test]
fn the_legacy_stream_does_not_wait_for_later_work_nor_for_streams_that_are_not_blocking() {
    let device = legacy();
    let [blocking] = streams(&device);
    let exempt = device.create_stream_of_kind("exempt", StreamKind::NonBlocking).unwrap();
    launch(&device, exempt, "exempt before", 50);
    launch(&device, blocking, "before", 3);
    launch(&device, device.default_stream(), "default", 2);
    launch(&device, blocking, "after", 10);
    let other = device.create_stream_of_kind("other", StreamKind::NonBlocking).unwrap();
    launch(&device, other, "exempt after", 1);
    let expected = [
        span("exempt before", 0, 50),
        span("before", 0, 3),
        span("exempt after", 0, 1),
        span("default", 3, 5),
        span("after", 5, 15),
    ];
    assert_eq!(executed(&device), expected);
}

#[test]
fn fences_and_waits_of_the_legacy_stream_are_ordered_as_its_work_is() {
    let device = legacy();
    let [blocking, later] = streams(&device);
    let exempt = device.create_stream_of_kind("exempt", StreamKind::NonBlocking).unwrap();
    launch(&device, blocking, "before", 3);
    let fence = device.record(device.default_stream()).unwrap();
    device.wait(exempt, fence).unwrap();
    launch(&device, exempt, "behind the fence", 4);
    // A wait of the legacy stream holds back what comes after it.
    let end = device.record(exempt).unwrap();
    device.wait(device.default_stream(), end).unwrap();
    launch(&device, later, "behind the wait", 1);
    assert_eq!(
        executed(&device),
        [span("before", 0, 3), span("behind the fence", 3, 7), span("behind the wait", 7, 8)]
    );
    assert!(device.query(fence).unwrap());
}

#[test]
fn copies_are_ordered_too() {
    let device = legacy();
    let [blocking] = streams(&device);
    let cell = memory(&device, 1);
    launch(&device, blocking, "before", 3);
    device.copy_to_device(device.default_stream(), cell, &pinned(&[1; 8]), 0, 8).unwrap();
    launch(&device, blocking, "after", 1);
    assert_eq!(executed(&device), [span("before", 0, 3), span("copy_to_device", 3, 3), span("after", 3, 4)]);
}

/// A collective of the device with itself.
fn alone(device: &SimDevice, cell: Address) -> Collective {
    Collective {
        communicator: device.cluster().communicator("alone", &[0]),
        name: "collective".into(),
        tag: 0,
        cost: Cost::exact(2),
        sends: vec![ByteRange::new(cell, 8)],
        receive: support::write(cell, 8),
        body: Box::new(|_, _| {}),
    }
}

#[test]
fn collectives_are_ordered_too() {
    let device = legacy();
    let [blocking] = streams(&device);
    let cell = memory(&device, 1);
    launch(&device, blocking, "before", 3);
    device.collective(device.default_stream(), alone(&device, cell)).unwrap();
    launch(&device, blocking, "after", 1);
    assert_eq!(executed(&device), [span("before", 0, 3), span("collective", 3, 5), span("after", 5, 6)]);
}

#[test]
fn nobody_waited_so_the_timeline_names_no_wait() {
    let device = legacy();
    let [first] = streams(&device);
    launch(&device, first, "first", 3);
    launch(&device, device.default_stream(), "default", 2);
    device.cluster().settle().unwrap();
    assert!(device.cluster().take_timeline().iter().all(|done| done.waited.is_empty()));
    assert_eq!(device.counters().of(DeviceCall::Wait), 0);
}

#[test]
fn a_stream_that_was_destroyed_is_waited_for_until_its_work_is_done() {
    let device = legacy();
    let [gone] = streams(&device);
    launch(&device, gone, "gone", 5);
    device.destroy_stream(gone).unwrap();
    launch(&device, device.default_stream(), "default", 2);
    assert_eq!(executed(&device), [span("gone", 0, 5), span("default", 5, 7)]);
}

#[test]
fn the_order_ends_at_the_device() {
    let cluster = SimCluster::new(2, config(DefaultStream::Legacy));
    let (here, there) = (cluster.device(0), cluster.device(1));
    let [stream] = streams(&here);
    launch(&here, stream, "here", 5);
    launch(&there, there.default_stream(), "there", 2);
    cluster.settle().unwrap();
    assert_eq!(spans(&cluster), [span("here", 0, 5), span("there", 0, 2)]);
}

#[test]
fn the_order_holds_in_every_schedule() {
    for seed in 0..100 {
        let device = SimDevice::new(SimConfig { default_stream: DefaultStream::Legacy, ..adversarial(seed) });
        let [writer, reader] = streams(&device);
        let (source, target) = (memory(&device, 1), memory(&device, 1));
        for round in 1..4 {
            device.launch(writer, fill("write", 1, source, 8, round)).unwrap();
            device.launch(device.default_stream(), copy("copy", 1, source, target, 8)).unwrap();
            // The next write comes after the copy as well.
            device.launch(reader, idle("read", 1, vec![support::read(target, 8)])).unwrap();
        }
        finish(&device, device.default_stream());
        assert_eq!(device.read_memory(target, 8), [3; 8], "seed {seed}");
        device.cluster().settle().unwrap();
        assert!(device.cluster().hazards().is_empty(), "seed {seed}");
    }
}

#[test]
fn each_thread_has_a_default_stream_of_its_own() {
    let device = SimDevice::new(config(DefaultStream::PerThread));
    let mine = device.default_stream();
    let run = |name| {
        std::thread::scope(|scope| {
            scope
                .spawn(|| (device.default_stream(), launch(&device, device.default_stream(), name, 3)))
                .join()
                .unwrap()
                .0
        })
    };
    launch(&device, mine, "mine", 5);
    let (first, second) = (run("first"), run("second"));
    assert!(mine != first && first != second);
    assert_eq!(device.default_stream(), mine, "asked again");
    assert_eq!(executed(&device), [span("mine", 0, 5), span("first", 0, 3), span("second", 0, 3)]);
    for stream in [mine, first, second] {
        assert!(matches!(device.destroy_stream(stream), Err(DeviceError::InvalidValue { .. })));
    }
}

#[test]
fn per_thread_default_streams_are_ordered_with_a_legacy_one() {
    let device = SimDevice::new(config(DefaultStream::PerThread));
    let legacy = device.create_stream_of_kind("legacy", StreamKind::Legacy).unwrap();
    launch(&device, device.default_stream(), "mine", 5);
    launch(&device, legacy, "legacy", 2);
    assert_eq!(executed(&device), [span("mine", 0, 5), span("legacy", 5, 7)]);
    let second = device.create_stream_of_kind("second", StreamKind::Legacy);
    assert!(matches!(second, Err(DeviceError::InvalidValue { .. })));
}

#[test]
fn captures_keep_clear_of_the_legacy_stream() {
    let device = legacy();
    let [blocking] = streams(&device);
    let exempt = device.create_stream_of_kind("exempt", StreamKind::NonBlocking).unwrap();
    let default = device.default_stream();
    assert!(matches!(device.begin_capture(default), Err(DeviceError::InvalidValue { .. })));

    device.begin_capture(exempt).unwrap();
    launch(&device, default, "beside an exempt stream", 1);
    device.end_capture(exempt).unwrap();

    let cell = memory(&device, 1);
    device.begin_capture(blocking).unwrap();
    let refused = device.launch(default, idle("default", 1, vec![]));
    assert_eq!(refused, Err(DeviceError::CaptureViolation { call: DeviceCall::Launch }));
    let refused = device.copy_to_device(default, cell, &pinned(&[1; 8]), 0, 8);
    assert_eq!(refused, Err(DeviceError::CaptureViolation { call: DeviceCall::CopyToDevice }));
    let refused = device.collective(default, alone(&device, cell));
    assert_eq!(refused, Err(DeviceError::CaptureViolation { call: DeviceCall::Collective }));
    assert_eq!(device.end_capture(blocking), Err(DeviceError::CaptureViolation { call: DeviceCall::Launch }));
}
