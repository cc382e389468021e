//! Virtual time, to the tick.

mod support;

use highwater_device::sim::{ExecutedKind, SimCluster, SimConfig, SimDevice};
use highwater_device::{Cost, CostModel, Device, DeviceError, HostMemory, Operation, Waited};
use support::{fill, finish, idle, memory, order, pinned, read, spans, streams, ticks};

fn span(name: &str, start: u64, end: u64) -> (String, u64, u64) {
    (name.to_owned(), start, end)
}

#[test]
fn a_pipeline_of_two_streams() {
    let device = SimDevice::new(ticks());
    let [gather, compute] = streams(&device);
    // Gather 3, compute 2; a gather may be two ahead of its compute.
    let mut free = Vec::new();
    for index in 0..4 {
        if index >= 2 {
            device.wait(gather, free[index - 2]).unwrap();
        }
        device.launch(gather, idle("gather", 3, vec![])).unwrap();
        order(&device, gather, compute);
        device.launch(compute, idle("compute", if index == 0 { 10 } else { 2 }, vec![])).unwrap();
        free.push(device.record(compute).unwrap());
    }
    device.cluster().settle().unwrap();
    let timeline = device.cluster().take_timeline();
    let times: Vec<_> = timeline.iter().map(|done| (&*done.name, done.start_ns, done.end_ns)).collect();
    assert_eq!(
        times,
        [
            ("gather", 0, 3),
            ("compute", 3, 13),
            ("gather", 3, 6),
            ("compute", 13, 15),
            ("gather", 13, 16),
            ("compute", 16, 18),
            ("gather", 16, 19),
            ("compute", 19, 21),
        ]
    );
    // Each compute waited for its gather; the third gather for the first compute.
    let waits: Vec<_> = timeline.iter().map(|done| (done.id, done.waited.clone())).collect();
    assert_eq!(
        waits,
        [(0, vec![]), (1, vec![0]), (2, vec![]), (3, vec![2]), (4, vec![1]), (5, vec![4]), (6, vec![3]), (7, vec![6]),]
    );
    assert_eq!(device.elapsed_ns(free[0], free[3]), Ok(8));
    assert_eq!(device.now_ns(), 21);
}

#[test]
fn the_host_pays_for_calls_and_work_starts_when_it_is_submitted() {
    let cost = CostModel { kernel_latency_ns: 0, ..CostModel::default() };
    let device = SimDevice::new(SimConfig { cost: cost.clone(), timeline: true, ..SimConfig::default() });
    let [stream] = streams(&device);
    assert_eq!(device.now_ns(), cost.stream_ns);
    let short = Operation { cost: Cost::kernel(0, 4_200), ..idle("short", 0, vec![]) };
    device.launch(stream, short).unwrap();
    device.host_work(500);
    let long = Operation { cost: Cost::kernel(500_000_000, 0), ..idle("long", 0, vec![]) };
    device.launch(stream, long).unwrap();
    device.launch(stream, idle("last", 7, vec![])).unwrap();
    let last = cost.stream_ns + 3 * cost.launch_ns + 500;
    assert_eq!(device.now_ns(), last);
    device.cluster().settle().unwrap();
    let first = cost.stream_ns + cost.launch_ns;
    let second = first + 500 + cost.launch_ns;
    assert_eq!(
        spans(&device.cluster()),
        [
            span("short", first, first + 1),
            span("long", second, second + 10_000),
            span("last", second + 10_000, second + 10_007),
        ]
    );
}

#[test]
fn memory_calls_cost_by_the_handle() {
    let cost = CostModel::default();
    let device = SimDevice::new(SimConfig { cost: cost.clone(), ..SimConfig::default() });
    let granule = device.properties().granularity_bytes;
    let address = device.reserve(3 * granule).unwrap();
    for index in 0..3 {
        let page = device.create(granule).unwrap();
        device.map(page, address.offset(index * granule)).unwrap();
    }
    let mapped = cost.reserve_ns + 3 * (cost.create_ns + cost.map_ns);
    assert_eq!(device.now_ns(), mapped);
    device.set_access(address, 3 * granule).unwrap();
    assert_eq!(device.now_ns(), mapped + 3 * cost.set_access_ns);
    device.unmap(address.offset(granule), 2 * granule).unwrap();
    assert_eq!(device.now_ns(), mapped + 3 * cost.set_access_ns + 2 * cost.unmap_ns);
}

#[test]
fn a_fence_completes_at_its_time_and_not_before() {
    let device = SimDevice::new(ticks());
    let [stream] = streams(&device);
    device.launch(stream, idle("work", 100, vec![])).unwrap();
    let fence = device.record(stream).unwrap();
    device.host_work(99);
    assert_eq!(device.query(fence), Ok(false));
    device.host_work(1);
    assert_eq!(device.query(fence), Ok(true));
}

#[test]
fn synchronize_takes_the_time_that_is_left() {
    let cost = CostModel { synchronize_ns: 40, ..CostModel::free() };
    let device = SimDevice::new(SimConfig { cost, ..ticks() });
    let [stream] = streams(&device);
    device.launch(stream, idle("work", 1_000, vec![])).unwrap();
    let fence = device.record(stream).unwrap();
    device.host_work(300);
    assert_eq!(device.synchronize(fence, Some(600)), Ok(Waited::TimedOut));
    assert_eq!(device.now_ns(), 900, "start + timeout, exactly");
    assert_eq!(device.counters().host_synchronizations, 1);
    assert_eq!(device.counters().host_blocked_ns, 600);
    assert_eq!(device.synchronize(fence, Some(0)), Ok(Waited::TimedOut));
    assert_eq!(device.counters().host_synchronizations, 1, "a timeout of 0 only asks");
    assert_eq!(device.synchronize(fence, Some(100)), Ok(Waited::Complete), "complete at the deadline is complete");
    assert_eq!(device.now_ns(), 1_040);
    assert_eq!(device.counters().host_synchronizations, 2);
    assert_eq!(device.counters().host_blocked_ns, 700);
    assert_eq!(device.synchronize(fence, None), Ok(Waited::Complete));
    assert_eq!(device.now_ns(), 1_080);
    assert_eq!(device.counters().host_synchronizations, 2);
}

#[test]
fn elapsed_time_needs_complete_fences() {
    let device = SimDevice::new(ticks());
    let [stream] = streams(&device);
    device.launch(stream, idle("work", 5, vec![])).unwrap();
    let start = device.record(stream).unwrap();
    device.launch(stream, idle("work", 7, vec![])).unwrap();
    let end = device.record(stream).unwrap();
    assert!(matches!(device.elapsed_ns(start, end), Err(DeviceError::InvalidValue { .. })));
    finish(&device, stream);
    assert_eq!(device.elapsed_ns(start, end), Ok(7));
    assert_eq!(device.elapsed_ns(end, start), Ok(0));
}

/// Two chunks: each is copied in on one stream and computed on another.
fn chunked(host: &HostMemory) -> Vec<(String, u64, u64)> {
    let cost = CostModel { host_link_bytes_per_us: 1_000, ..CostModel::free() };
    let device = SimDevice::new(SimConfig { cost, ..ticks() });
    let [copies, compute] = streams(&device);
    let target = memory(&device, 1);
    for chunk in 0..3 {
        device.copy_to_device(copies, target.offset(chunk * 100), host, 0, 100).unwrap();
        order(&device, copies, compute);
        device.launch(compute, idle("compute", 80, vec![read(target.offset(chunk * 100), 100)])).unwrap();
        device.host_work(10);
    }
    device.cluster().settle().unwrap();
    spans(&device.cluster())
}

#[test]
fn pinned_copies_overlap_with_compute() {
    assert_eq!(
        chunked(&HostMemory::pinned(100)),
        [
            span("copy_to_device", 0, 100),
            span("compute", 100, 180),
            span("copy_to_device", 100, 200),
            span("compute", 200, 280),
            span("copy_to_device", 200, 300),
            span("compute", 300, 380),
        ]
    );
}

#[test]
fn pageable_copies_hold_the_host_up() {
    // The host comes back from each copy only when it is done, and has 10 ticks of work before the next.
    assert_eq!(
        chunked(&HostMemory::pageable(100)),
        [
            span("copy_to_device", 0, 100),
            span("compute", 100, 180),
            span("copy_to_device", 110, 210),
            span("compute", 210, 290),
            span("copy_to_device", 220, 320),
            span("compute", 320, 400),
        ]
    );
}

#[test]
fn a_pageable_copy_waits_for_all_that_is_queued_before_it() {
    let device = SimDevice::new(ticks());
    let [stream, other] = streams(&device);
    let source = memory(&device, 1);
    device.launch(stream, idle("work", 500, vec![])).unwrap();
    device.launch(other, idle("other", 900, vec![])).unwrap();
    let back = HostMemory::pinned(8);
    device.copy_to_host(stream, &back, 0, source, 8).unwrap();
    assert_eq!(device.now_ns(), 0);
    let back = HostMemory::pageable(8);
    device.copy_to_host(stream, &back, 0, source, 8).unwrap();
    assert_eq!(device.now_ns(), 500, "not for other streams");
    assert_eq!(device.counters().host_blocked_ns, 500);
    assert_eq!(device.counters().host_synchronizations, 1);
}

#[test]
fn at_equal_times_ends_come_before_starts() {
    let device = SimDevice::new(ticks());
    let [clock, writer] = streams(&device);
    let cell = memory(&device, 1);
    device.launch(writer, fill("fill", 10, cell, 4, 9)).unwrap();
    device.launch(clock, idle("tick", 10, vec![])).unwrap();
    let back = pinned(&[0; 4]);
    device.copy_to_host(clock, &back, 0, cell, 4).unwrap();
    device.cluster().settle().unwrap();
    assert_eq!(back.read(<[u8]>::to_vec), [9; 4]);
    assert_eq!(device.cluster().hazards(), [], "they do not overlap");
}

#[test]
fn the_timeline_names_everything() {
    let device = SimDevice::new(SimConfig { timeline: false, ..ticks() });
    let [stream] = streams(&device);
    let cell = memory(&device, 1);
    let host = HostMemory::pinned(4);
    device.launch(stream, idle("unseen", 1, vec![])).unwrap();
    device.cluster().settle().unwrap();
    assert_eq!(device.cluster().take_timeline(), []);
    device.cluster().set_timeline(true);
    device.launch(stream, Operation { tag: 77, ..fill("fill", 3, cell, 4, 1) }).unwrap();
    device.copy_to_host(stream, &host, 0, cell, 4).unwrap();
    device.copy_to_device(stream, cell, &host, 0, 4).unwrap();
    device.cluster().settle().unwrap();
    let timeline = device.cluster().take_timeline();
    assert_eq!(timeline.len(), 3);
    let kinds: Vec<_> = timeline.iter().map(|done| done.kind.clone()).collect();
    assert_eq!(kinds, [ExecutedKind::Kernel, ExecutedKind::CopyToHost, ExecutedKind::CopyToDevice]);
    let first = &timeline[0];
    assert_eq!((&*first.name, first.tag, first.device), ("fill", 77, 0));
    assert_eq!((first.stream, &*first.stream_name), (stream, "s0"));
    assert_eq!((first.submitted_ns, first.start_ns, first.end_ns), (1, 1, 4));
    assert_eq!(first.operands, [support::write(cell, 4)]);
    assert_eq!(device.cluster().take_timeline(), [], "it was taken");
}

#[test]
fn devices_have_clocks_of_their_own() {
    let cluster = SimCluster::new(2, ticks());
    let (first, second) = (cluster.device(0), cluster.device(1));
    first.launch(first.default_stream(), idle("a", 10, vec![])).unwrap();
    second.launch(second.default_stream(), idle("b", 4, vec![])).unwrap();
    finish(&second, second.default_stream());
    assert_eq!((first.now_ns(), second.now_ns()), (0, 4));
    finish(&first, first.default_stream());
    assert_eq!((first.now_ns(), second.now_ns()), (10, 4));
    assert_eq!(cluster.now_ns(), 10);
    // A call cannot be made in the devices' past.
    assert!(second.record(second.default_stream()).is_ok());
    assert_eq!(second.now_ns(), 10);
}
