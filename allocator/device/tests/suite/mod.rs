//! The contract suite: functions over a factory that makes fresh devices of one kind. They use copies for all content,
//! so that they say the same of a GPU. `contract_suite!(module, factory)` makes a test of each;
//! attributes before the module go to each test.

use std::sync::Arc;

use highwater_device::{
    Access, Address, Body, ByteRange, Cost, Device, DeviceCall, DeviceError, DeviceResult, FenceHandle, HostMemory,
    Operand, Operation, PageHandle, StreamId, Waited,
};

/// Makes a fresh device.
pub(crate) type Factory<'a> = &'a dyn Fn() -> Arc<dyn Device>;

/// Makes a module with a test for each function of the suite.
#[macro_export]
macro_rules! contract_suite {
    ($(#[$attribute:meta])* $module:ident, $factory:expr) => {
        $crate::contract_suite!(@tests ($(#[$attribute])*) $module, $factory;
            stream_order, fence_order, wait_outlives_fence, fences, bounded_wait, streams, memory_life_cycle,
            release_while_mapped, aliases, copies, pageable_copies_block, out_of_memory, refused_streams_and_fences,
            refused_memory_calls, refused_work, counters, capture, spoilt_capture);
    };
    (@tests $attributes:tt $module:ident, $factory:expr; $($name:ident),* $(,)?) => {
        mod $module {
            use super::*;
            $($crate::contract_suite!(@test $attributes $name, $factory);)*
        }
    };
    (@test ($(#[$attribute:meta])*) $name:ident, $factory:expr) => {
        #[test]
        $(#[$attribute])*
        fn $name() {
            $crate::suite::$name(&$factory);
        }
    };
}

/// A mapped and accessible range.
struct Mapped {
    address: Address,
    page: PageHandle,
    bytes: u64,
}

fn mapped(device: &dyn Device) -> Mapped {
    let bytes = device.properties().granularity_bytes;
    let address = device.reserve(bytes).unwrap();
    let page = device.create(bytes).unwrap();
    device.map(page, address).unwrap();
    device.set_access(address, bytes).unwrap();
    Mapped { address, page, bytes }
}

fn pinned(content: u8, bytes: u64) -> HostMemory {
    let memory = HostMemory::pinned(bytes);
    memory.write(|target: &mut [u8]| target.fill(content));
    memory
}

fn put(device: &dyn Device, stream: StreamId, address: Address, content: u8, bytes: u64) {
    device.copy_to_device(stream, address, &pinned(content, bytes), 0, bytes).unwrap();
}

fn finish(device: &dyn Device, stream: StreamId) {
    let fence = device.record(stream).unwrap();
    assert_eq!(device.synchronize(fence, None), Ok(Waited::Complete));
    device.release_fence(fence);
}

/// The content, after everything on `stream`.
fn get(device: &dyn Device, stream: StreamId, address: Address, bytes: u64) -> Vec<u8> {
    let target = HostMemory::pinned(bytes);
    device.copy_to_host(stream, &target, 0, address, bytes).unwrap();
    finish(device, stream);
    target.read(<[u8]>::to_vec)
}

fn operation(operands: Vec<Operand>) -> Operation {
    Operation { name: "nothing".into(), tag: 0, cost: Cost::kernel(1, 1), operands, body: Body::Nothing }
}

fn assert_invalid<T: std::fmt::Debug>(call: DeviceCall, result: DeviceResult<T>) {
    match result {
        Err(DeviceError::InvalidValue { call: named, what }) => {
            assert_eq!(named, call);
            assert!(!what.is_empty());
        }
        other => panic!("{call} should refuse this, but: {other:?}"),
    }
}

pub(crate) fn stream_order(new: Factory<'_>) {
    let device = &*new();
    let memory = mapped(device);
    let stream = device.create_stream("work").unwrap();
    for content in 1..=5 {
        put(device, stream, memory.address, content, 64);
    }
    assert_eq!(get(device, stream, memory.address, 64), [5; 64]);
}

pub(crate) fn fence_order(new: Factory<'_>) {
    let device = &*new();
    let memory = mapped(device);
    let streams: Vec<StreamId> =
        (0..4).map(|index| device.create_stream(&format!("stream {index}")).unwrap()).collect();
    // Each stream writes after the one before it; the last writer wins only if every wait holds.
    for content in 1..=20u8 {
        let stream = streams[usize::from(content) % 4];
        put(device, stream, memory.address, content, 512);
        let fence = device.record(stream).unwrap();
        device.wait(streams[(usize::from(content) + 1) % 4], fence).unwrap();
        device.release_fence(fence);
    }
    assert_eq!(get(device, streams[1], memory.address, 512), [20; 512]);
}

pub(crate) fn wait_outlives_fence(new: Factory<'_>) {
    let device = &*new();
    let memory = mapped(device);
    let (first, second) = (device.create_stream("first").unwrap(), device.create_stream("second").unwrap());
    for content in 0..10 {
        put(device, first, memory.address, content, 4096);
    }
    let fence = device.record(first).unwrap();
    device.wait(second, fence).unwrap();
    device.release_fence(fence);
    assert_eq!(get(device, second, memory.address, 1), [9]);
    assert_invalid(DeviceCall::Query, device.query(fence));
}

pub(crate) fn fences(new: Factory<'_>) {
    let device = &*new();
    let memory = mapped(device);
    let stream = device.create_stream("work").unwrap();
    let idle = device.record(stream).unwrap();
    assert_eq!(device.synchronize(idle, None), Ok(Waited::Complete), "nothing stands before it");
    assert_eq!(device.query(idle), Ok(true));
    put(device, stream, memory.address, 1, 1 << 20);
    let after = device.record(stream).unwrap();
    assert_eq!(device.synchronize(after, None), Ok(Waited::Complete));
    assert_eq!(device.query(after), Ok(true));
    assert_eq!(device.synchronize(after, Some(0)), Ok(Waited::Complete));
    assert!(device.elapsed_ns(idle, after).unwrap() > 0);
    assert_eq!(device.elapsed_ns(after, idle), Ok(0));

    // A wait with nothing behind it holds a fence back too.
    let other = device.create_stream("other").unwrap();
    put(device, stream, memory.address, 2, 1 << 20);
    let written = device.record(stream).unwrap();
    device.wait(other, written).unwrap();
    let passed = device.record(other).unwrap();
    assert_eq!(device.synchronize(passed, None), Ok(Waited::Complete));
    assert_eq!(device.query(written), Ok(true));
    for fence in [idle, after, written, passed] {
        device.release_fence(fence);
    }
}

pub(crate) fn bounded_wait(new: Factory<'_>) {
    let device = &*new();
    let memory = mapped(device);
    let stream = device.create_stream("work").unwrap();
    for content in 0..20 {
        put(device, stream, memory.address, content, memory.bytes);
    }
    let fence = device.record(stream).unwrap();
    let mut waited = device.synchronize(fence, Some(1));
    while waited == Ok(Waited::TimedOut) {
        waited = device.synchronize(fence, Some(1_000_000));
    }
    assert_eq!(waited, Ok(Waited::Complete));
    assert_eq!(device.query(fence), Ok(true));
}

pub(crate) fn streams(new: Factory<'_>) {
    let device = &*new();
    let memory = mapped(device);
    let first = device.create_stream("same name").unwrap();
    let second = device.create_stream("same name").unwrap();
    assert_ne!(first, second);
    assert_ne!(first, device.default_stream());
    put(device, first, memory.address, 7, 64);
    let fence = device.record(first).unwrap();
    device.destroy_stream(first).unwrap();
    let third = device.create_stream("third").unwrap();
    assert_ne!(third, first, "an id names one stream for ever");
    // Work of the destroyed stream still executes, and its fences still hold.
    device.wait(third, fence).unwrap();
    assert_eq!(get(device, third, memory.address, 64), [7; 64]);
    assert_eq!(device.query(fence), Ok(true));
    assert_eq!(get(device, device.default_stream(), memory.address, 1), [7]);
}

pub(crate) fn memory_life_cycle(new: Factory<'_>) {
    let device = &*new();
    let granule = device.properties().granularity_bytes;
    let before = device.memory_info().unwrap();
    assert_eq!(before.total, device.properties().total_bytes);
    let address = device.reserve(8 * granule).unwrap();
    assert!(address.0.is_multiple_of(granule));
    let pages: Vec<PageHandle> = (0..2).map(|_| device.create(2 * granule).unwrap()).collect();
    assert_eq!(device.memory_info().unwrap().free, before.free - 4 * granule);
    device.map(pages[0], address).unwrap();
    device.map(pages[1], address.offset(2 * granule)).unwrap();
    device.set_access(address, 4 * granule).unwrap();

    // One operand may span mappings.
    let stream = device.default_stream();
    let border = address.offset(2 * granule - 8);
    put(device, stream, border, 3, 16);
    assert_eq!(get(device, stream, border, 16), [3; 16]);

    // The content belongs to the page, not to the address.
    device.unmap(address, 4 * granule).unwrap();
    device.map(pages[1], address).unwrap();
    device.set_access(address, 2 * granule).unwrap();
    assert_eq!(get(device, stream, address, 8), [3; 8]);
    device.unmap(address, 2 * granule).unwrap();
    for page in pages {
        device.release(page).unwrap();
    }
    device.unreserve(address, 8 * granule).unwrap();
    assert_eq!(device.memory_info().unwrap(), before);
}

pub(crate) fn release_while_mapped(new: Factory<'_>) {
    let device = &*new();
    let before = device.memory_info().unwrap();
    let memory = mapped(device);
    device.release(memory.page).unwrap();
    assert_eq!(device.memory_info().unwrap().free, before.free - memory.bytes);
    // The handle is gone, though its memory is not.
    let other = device.reserve(memory.bytes).unwrap();
    assert_invalid(DeviceCall::Map, device.map(memory.page, other));
    assert_invalid(DeviceCall::Release, device.release(memory.page));
    put(device, device.default_stream(), memory.address, 4, 16);
    assert_eq!(get(device, device.default_stream(), memory.address, 16), [4; 16]);
    device.unmap(memory.address, memory.bytes).unwrap();
    assert_eq!(device.memory_info().unwrap().free, before.free);
}

pub(crate) fn aliases(new: Factory<'_>) {
    let device = &*new();
    let memory = mapped(device);
    let other = device.reserve(memory.bytes).unwrap();
    device.map(memory.page, other).unwrap();
    device.set_access(other, memory.bytes).unwrap();
    let stream = device.create_stream("work").unwrap();
    put(device, stream, memory.address.offset(100), 11, 50);
    assert_eq!(get(device, stream, other.offset(100), 50), [11; 50]);
    put(device, stream, other.offset(120), 12, 10);
    assert_eq!(get(device, stream, memory.address.offset(120), 11), [[12; 10].as_slice(), &[11]].concat());
    // One mapping goes, the bytes stay.
    device.unmap(memory.address, memory.bytes).unwrap();
    assert_eq!(get(device, stream, other.offset(120), 10), [12; 10]);
}

pub(crate) fn copies(new: Factory<'_>) {
    let device = &*new();
    let memory = mapped(device);
    let stream = device.create_stream("work").unwrap();
    for host in [HostMemory::pinned(100), HostMemory::pageable(100)] {
        host.write(|target: &mut [u8]| {
            for (index, byte) in target.iter_mut().enumerate() {
                *byte = index as u8;
            }
        });
        device.copy_to_device(stream, memory.address.offset(5), &host, 10, 20).unwrap();
        let back = if host.is_pinned() { HostMemory::pinned(100) } else { HostMemory::pageable(100) };
        device.copy_to_host(stream, &back, 70, memory.address.offset(5), 20).unwrap();
        device.copy_to_device(stream, memory.address, &host, 100, 0).unwrap();
        finish(device, stream);
        back.read(|content: &[u8]| {
            assert_eq!(content[70..90], (10..30).collect::<Vec<u8>>());
            assert!(content[..70].iter().chain(&content[90..]).all(|&byte| byte == 0));
        });
    }
}

pub(crate) fn pageable_copies_block(new: Factory<'_>) {
    let device = &*new();
    let memory = mapped(device);
    let stream = device.create_stream("work").unwrap();
    put(device, stream, memory.address, 1, memory.bytes);
    let (before, fence) = (device.counters(), device.record(stream).unwrap());
    let host = HostMemory::pageable(8);
    device.copy_to_host(stream, &host, 0, memory.address, 8).unwrap();
    assert_eq!(host.read(<[u8]>::to_vec), [1; 8], "it is complete on return");
    assert_eq!(device.query(fence), Ok(true), "and so is what stood before it");
    assert_eq!(device.counters().host_synchronizations, before.host_synchronizations + 1);
    assert!(device.counters().host_blocked_ns >= before.host_blocked_ns);
}

pub(crate) fn out_of_memory(new: Factory<'_>) {
    let device = &*new();
    let granule = device.properties().granularity_bytes;
    let info = device.memory_info().unwrap();
    let too_much = info.total.next_multiple_of(granule) + granule;
    match device.create(too_much) {
        Err(DeviceError::OutOfMemory { requested, free }) => {
            assert_eq!(requested, too_much);
            assert!(free <= info.total);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(device.memory_info().unwrap(), info, "a failed call changes nothing");
    device.release(device.create(granule).unwrap()).unwrap();
}

pub(crate) fn refused_streams_and_fences(new: Factory<'_>) {
    let device = &*new();
    let fence = device.record(device.default_stream()).unwrap();
    let gone = device.create_stream("gone").unwrap();
    device.destroy_stream(gone).unwrap();
    for stream in [gone, StreamId(u64::MAX)] {
        assert_invalid(DeviceCall::DestroyStream, device.destroy_stream(stream));
        assert_invalid(DeviceCall::Record, device.record(stream));
        assert_invalid(DeviceCall::Wait, device.wait(stream, fence));
        assert_invalid(DeviceCall::BeginCapture, device.begin_capture(stream));
        assert_invalid(DeviceCall::EndCapture, device.end_capture(stream));
        assert_invalid(DeviceCall::Launch, device.launch(stream, operation(Vec::new())));
    }
    assert_invalid(DeviceCall::DestroyStream, device.destroy_stream(device.default_stream()));
    assert_invalid(DeviceCall::EndCapture, device.end_capture(device.default_stream()));
    let released = device.record(device.default_stream()).unwrap();
    let before = device.counters().fences_released;
    device.release_fence(released);
    device.release_fence(released);
    assert_eq!(device.counters().fences_released, before + 1, "a fence is given back once");
    for bad in [released, FenceHandle(u64::MAX)] {
        assert_invalid(DeviceCall::Query, device.query(bad));
        assert_invalid(DeviceCall::Wait, device.wait(device.default_stream(), bad));
        assert_invalid(DeviceCall::Synchronize, device.synchronize(bad, None));
        assert_invalid(DeviceCall::Elapsed, device.elapsed_ns(fence, bad));
    }
    assert_eq!(device.query(fence), Ok(true), "the device goes on");
}

pub(crate) fn refused_memory_calls(new: Factory<'_>) {
    let device = &*new();
    let granule = device.properties().granularity_bytes;
    for bytes in [0, granule - 1, granule + 1] {
        assert_invalid(DeviceCall::Reserve, device.reserve(bytes));
        assert_invalid(DeviceCall::Create, device.create(bytes));
    }
    let address = device.reserve(4 * granule).unwrap();
    let (page, pair) = (device.create(granule).unwrap(), device.create(2 * granule).unwrap());
    let gone = device.create(granule).unwrap();
    device.release(gone).unwrap();
    assert_invalid(DeviceCall::Map, device.map(gone, address));
    assert_invalid(DeviceCall::Map, device.map(PageHandle(u64::MAX), address));
    assert_invalid(DeviceCall::Map, device.map(page, address.offset(granule / 2)));
    assert_invalid(DeviceCall::Map, device.map(page, address.offset(4 * granule)));
    assert_invalid(DeviceCall::Map, device.map(pair, address.offset(3 * granule)));
    assert_invalid(DeviceCall::Map, device.map(page, Address(0)));
    assert_invalid(DeviceCall::Release, device.release(gone));
    assert_invalid(DeviceCall::Release, device.release(PageHandle(u64::MAX)));

    device.map(pair, address.offset(granule)).unwrap();
    assert_invalid(DeviceCall::Map, device.map(page, address.offset(granule)));
    assert_invalid(DeviceCall::Map, device.map(page, address.offset(2 * granule)));
    assert_invalid(DeviceCall::Map, device.map(pair, address));
    for (offset, bytes) in
        [(0, granule), (granule, granule), (2 * granule, granule), (granule, 3 * granule), (granule, 0)]
    {
        assert_invalid(DeviceCall::SetAccess, device.set_access(address.offset(offset), bytes));
        assert_invalid(DeviceCall::Unmap, device.unmap(address.offset(offset), bytes));
    }
    assert_invalid(DeviceCall::Unmap, device.unmap(address.offset(granule), u64::MAX));
    assert_invalid(DeviceCall::Unreserve, device.unreserve(address, 4 * granule));
    device.unmap(address.offset(granule), 2 * granule).unwrap();
    assert_invalid(DeviceCall::Unreserve, device.unreserve(address, 3 * granule));
    assert_invalid(DeviceCall::Unreserve, device.unreserve(address.offset(granule), 3 * granule));
    device.unreserve(address, 4 * granule).unwrap();
    assert_invalid(DeviceCall::Unreserve, device.unreserve(address, 4 * granule));
    assert_invalid(DeviceCall::Map, device.map(page, address));
}

pub(crate) fn refused_work(new: Factory<'_>) {
    let device = &*new();
    let memory = mapped(device);
    let stream = device.default_stream();
    let host = HostMemory::pinned(16);
    for (offset, bytes) in [(0, 17), (16, 1), (u64::MAX, 1), (1, u64::MAX)] {
        assert_invalid(DeviceCall::CopyToDevice, device.copy_to_device(stream, memory.address, &host, offset, bytes));
        assert_invalid(DeviceCall::CopyToHost, device.copy_to_host(stream, &host, offset, memory.address, bytes));
    }
    let endless = Address(u64::MAX - 7);
    assert_invalid(DeviceCall::CopyToDevice, device.copy_to_device(stream, endless, &host, 0, 16));
    assert_invalid(DeviceCall::CopyToHost, device.copy_to_host(stream, &host, 0, endless, 16));
    let operand =
        |offset, bytes, access| Operand { range: ByteRange::new(memory.address.offset(offset), bytes), access };
    for (first, second) in
        [(Access::Write, Access::Read), (Access::Read, Access::ReadWrite), (Access::Write, Access::Write)]
    {
        let overlapping = vec![operand(0, 8, first), operand(7, 8, second)];
        assert_invalid(DeviceCall::Launch, device.launch(stream, operation(overlapping)));
    }
    let endless = Operand { range: ByteRange::new(memory.address, u64::MAX), access: Access::Read };
    assert_invalid(DeviceCall::Launch, device.launch(stream, operation(vec![endless])));
    let allowed = vec![
        operand(0, 8, Access::Read),
        operand(4, 8, Access::Read),
        operand(12, 4, Access::Write),
        operand(14, 0, Access::Write),
    ];
    device.launch(stream, operation(allowed)).unwrap();
    // No byte of it is touched, so it may be anywhere.
    let nowhere = Operand { range: ByteRange::new(Address(8), 0), access: Access::ReadWrite };
    device.launch(stream, operation(vec![nowhere])).unwrap();
    finish(device, stream);
}

pub(crate) fn counters(new: Factory<'_>) {
    let device = &*new();
    let start = device.counters();
    assert_eq!(start.driver_memory_calls(), 0);
    let memory = mapped(device);
    let stream = device.create_stream("work").unwrap();
    put(device, stream, memory.address, 1, memory.bytes);
    device.launch(stream, operation(Vec::new())).unwrap();
    let fence = device.record(stream).unwrap();
    device.wait(device.default_stream(), fence).unwrap();
    device.query(fence).unwrap();
    assert_eq!(device.synchronize(fence, None), Ok(Waited::Complete));
    let blocked = device.counters().host_synchronizations;
    assert_eq!(device.synchronize(fence, None), Ok(Waited::Complete));
    assert_eq!(device.counters().host_synchronizations, blocked, "there was nothing to wait for");
    device.unmap(memory.address, memory.bytes).unwrap();
    device.release(memory.page).unwrap();
    assert_invalid(DeviceCall::Release, device.release(memory.page));
    device.memory_info().unwrap();
    let counted = device.counters();
    for (call, times) in [
        (DeviceCall::Reserve, 1),
        (DeviceCall::Create, 1),
        (DeviceCall::Map, 1),
        (DeviceCall::SetAccess, 1),
        (DeviceCall::Unmap, 1),
        (DeviceCall::Release, 2),
        (DeviceCall::Unreserve, 0),
        (DeviceCall::CreateStream, 1),
        (DeviceCall::CopyToDevice, 1),
        (DeviceCall::Launch, 1),
        (DeviceCall::Record, 1),
        (DeviceCall::Wait, 1),
        (DeviceCall::Query, 1),
        (DeviceCall::Synchronize, 2),
        (DeviceCall::MemoryInfo, 1),
    ] {
        assert_eq!(counted.of(call) - start.of(call), times, "{call}");
    }
    assert_eq!(counted.driver_memory_calls(), 7);
}

pub(crate) fn capture(new: Factory<'_>) {
    let device = &*new();
    let memory = mapped(device);
    let (captured, other) = (device.create_stream("captured").unwrap(), device.create_stream("other").unwrap());
    put(device, other, memory.address, 1, 16);
    finish(device, other);
    assert!(!device.is_capturing());
    device.begin_capture(captured).unwrap();
    assert!(device.is_capturing());
    assert_invalid(DeviceCall::BeginCapture, device.begin_capture(captured));
    assert_invalid(DeviceCall::DestroyStream, device.destroy_stream(captured));
    put(device, captured, memory.address, 2, 16);
    device.launch(captured, operation(Vec::new())).unwrap();
    put(device, other, memory.address.offset(16), 3, 16);
    assert_eq!(device.end_capture(captured), Ok(()));
    assert!(!device.is_capturing());
    // What was captured has not executed; other streams went on.
    finish(device, captured);
    assert_eq!(get(device, other, memory.address, 32), [[1; 16], [3; 16]].concat());
}

pub(crate) fn spoilt_capture(new: Factory<'_>) {
    let device = &*new();
    let (captured, other) = (device.create_stream("captured").unwrap(), device.create_stream("other").unwrap());
    let fence = device.record(other).unwrap();
    let violation = |call| DeviceError::CaptureViolation { call };
    let begin = || device.begin_capture(captured).unwrap();
    for stream in [captured, other] {
        begin();
        assert_eq!(device.record(stream), Err(violation(DeviceCall::Record)));
        assert_eq!(device.end_capture(captured), Err(violation(DeviceCall::Record)));
        begin();
        assert_eq!(device.wait(stream, fence), Err(violation(DeviceCall::Wait)));
        assert_eq!(device.query(fence), Err(violation(DeviceCall::Query)));
        assert_eq!(device.end_capture(captured), Err(violation(DeviceCall::Wait)), "the first one is named");
    }
    begin();
    assert_eq!(device.query(fence), Err(violation(DeviceCall::Query)));
    assert_eq!(device.end_capture(captured), Err(violation(DeviceCall::Query)));
    begin();
    assert_eq!(device.synchronize(fence, None), Err(violation(DeviceCall::Synchronize)));
    assert_eq!(device.end_capture(captured), Err(violation(DeviceCall::Synchronize)));
    assert!(!device.is_capturing());
    begin();
    assert_eq!(device.end_capture(captured), Ok(()), "the next capture is not spoilt");
    assert_eq!(device.query(fence), Ok(true));
}
