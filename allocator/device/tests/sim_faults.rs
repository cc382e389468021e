//! Faults: what misuse does, what is broken on request, and that nothing goes on after.

mod support;

use std::sync::Arc;

use highwater_device::sim::{SimConfig, SimDevice};
use highwater_device::{
    Address, Body, Device, DeviceCall, DeviceError, FenceHandle, HostMemory, Operation, PageHandle, StreamId, Waited,
};
use support::{fill, finish, idle, memory, order, read, streams, ticks, write};

fn poisoned(fault: &DeviceError) -> DeviceError {
    DeviceError::Poisoned { fault: Box::new(fault.clone()) }
}

// ---- misuse of memory

#[test]
fn unmapping_under_queued_or_running_work_is_a_fault() {
    for start_it in [false, true] {
        let device = SimDevice::new(ticks());
        let [stream, other] = streams(&device);
        let granule = device.properties().granularity_bytes;
        let cell = memory(&device, 1);
        device.launch(other, idle("first", if start_it { 0 } else { 50 }, vec![])).unwrap();
        order(&device, other, stream);
        device.launch(stream, idle("user", 10, vec![read(cell.offset(100), 4)])).unwrap();
        device.host_work(5);
        let fault = device.unmap(cell, granule).unwrap_err();
        assert_eq!(fault, DeviceError::UnmappedInUse { address: cell, operation: "user".into(), stream: "s0".into() });
        assert_eq!(device.record(stream), Err(poisoned(&fault)));
        assert_eq!(device.cluster().settle(), Err(fault));
    }
}

#[test]
fn unmapping_after_completion_or_beside_the_use_is_fine() {
    let device = SimDevice::new(ticks());
    let [stream] = streams(&device);
    let granule = device.properties().granularity_bytes;
    let (cell, beside) = (memory(&device, 1), memory(&device, 1));
    device.launch(stream, idle("user", 10, vec![read(cell, granule), write(beside.offset(64), 0)])).unwrap();
    device.unmap(beside, granule).unwrap();
    device.host_work(10);
    device.unmap(cell, granule).unwrap();
}

#[test]
fn a_page_in_use_at_one_address_can_leave_another() {
    let device = SimDevice::new(ticks());
    let [stream] = streams(&device);
    let granule = device.properties().granularity_bytes;
    let page = device.create(granule).unwrap();
    let [old, new] = [0, 1].map(|_| device.reserve(granule).unwrap());
    for address in [old, new] {
        device.map(page, address).unwrap();
        device.set_access(address, granule).unwrap();
    }
    device.launch(stream, idle("old user", 10, vec![read(old, 8)])).unwrap();
    device.unmap(new, granule).unwrap();
    assert!(matches!(device.unmap(old, granule), Err(DeviceError::UnmappedInUse { .. })));
}

#[test]
fn touching_memory_that_is_not_mapped_is_a_fault() {
    let granule = ticks().granularity_bytes;
    // What is mapped, what is accessible, what is touched: and the first bad address.
    let cases = [(0, 0, 0, 8, 0), (1, 0, 0, 8, 0), (1, 1, granule - 4, 8, granule), (2, 1, granule - 4, 8, granule)];
    for (mapped, accessible, offset, bytes, bad) in cases {
        let device = SimDevice::new(ticks());
        let [stream] = streams(&device);
        let base = device.reserve(4 * granule).unwrap();
        for index in 0..mapped {
            let page = device.create(granule).unwrap();
            device.map(page, base.offset(index * granule)).unwrap();
        }
        if accessible > 0 {
            device.set_access(base, accessible * granule).unwrap();
        }
        device.launch(stream, idle("delay", 1, vec![])).unwrap();
        device.launch(stream, idle("bad", 1, vec![read(base.offset(offset), bytes)])).unwrap();
        let fence = device.record(stream).unwrap();
        let fault = device.synchronize(fence, None).unwrap_err();
        let address = base.offset(bad);
        assert_eq!(fault, DeviceError::IllegalAddress { operation: "bad".into(), stream: "s0".into(), address });
        assert_eq!(device.query(fence), Err(poisoned(&fault)), "it never counts as complete");
    }
}

#[test]
fn memory_counts_when_the_operation_starts() {
    let device = SimDevice::new(ticks());
    let [stream] = streams(&device);
    let granule = device.properties().granularity_bytes;
    let address = device.reserve(granule).unwrap();
    device.launch(stream, idle("delay", 10, vec![])).unwrap();
    device.launch(stream, fill("user", 1, address, 8, 1)).unwrap();
    let page = device.create(granule).unwrap();
    device.map(page, address).unwrap();
    device.set_access(address, granule).unwrap();
    finish(&device, stream);
    assert_eq!(device.read_memory(address, 8), [1; 8]);
}

#[test]
fn a_stale_address_faults() {
    let device = SimDevice::new(ticks());
    let [stream] = streams(&device);
    let granule = device.properties().granularity_bytes;
    let stale = memory(&device, 1);
    device.unmap(stale, granule).unwrap();
    device.unreserve(stale, granule).unwrap();
    let _new = memory(&device, 1);
    device.launch(stream, idle("late", 1, vec![write(stale, 8)])).unwrap();
    assert!(matches!(device.cluster().settle(), Err(DeviceError::IllegalAddress { .. })));
}

// ---- sticky

/// Makes every call that can fail.
fn every_call(device: &SimDevice, stream: StreamId, fence: FenceHandle) -> Vec<(DeviceCall, DeviceError)> {
    let host = HostMemory::pinned(8);
    let communicator = device.cluster().communicator("alone", &[0]);
    let collective = highwater_device::sim::Collective {
        communicator,
        name: "gather".into(),
        tag: 0,
        cost: highwater_device::Cost::exact(1),
        sends: vec![read(Address(0), 0).range],
        receive: write(Address(0), 0),
        body: Box::new(|_, _| ()),
    };
    let operation = idle("nothing", 1, vec![]);
    let granule = device.properties().granularity_bytes;
    let mut results = vec![
        (DeviceCall::CreateStream, device.create_stream("new").err()),
        (DeviceCall::DestroyStream, device.destroy_stream(stream).err()),
        (DeviceCall::Record, device.record(stream).err()),
        (DeviceCall::Query, device.query(fence).err()),
        (DeviceCall::Wait, device.wait(stream, fence).err()),
        (DeviceCall::Synchronize, device.synchronize(fence, None).err()),
        (DeviceCall::Elapsed, device.elapsed_ns(fence, fence).err()),
        (DeviceCall::BeginCapture, device.begin_capture(stream).err()),
        (DeviceCall::EndCapture, device.end_capture(stream).err()),
        (DeviceCall::Reserve, device.reserve(granule).err()),
        (DeviceCall::Unreserve, device.unreserve(Address(0), granule).err()),
        (DeviceCall::Create, device.create(granule).err()),
        (DeviceCall::Map, device.map(PageHandle(0), Address(0)).err()),
        (DeviceCall::SetAccess, device.set_access(Address(0), granule).err()),
        (DeviceCall::Unmap, device.unmap(Address(0), granule).err()),
        (DeviceCall::Release, device.release(PageHandle(0)).err()),
        (DeviceCall::MemoryInfo, device.memory_info().err()),
        (DeviceCall::Launch, device.launch(stream, operation).err()),
        (DeviceCall::CopyToDevice, device.copy_to_device(stream, Address(0), &host, 0, 0).err()),
        (DeviceCall::CopyToHost, device.copy_to_host(stream, &host, 0, Address(0), 0).err()),
    ];
    results.push((DeviceCall::Collective, device.collective(stream, collective).err()));
    results.into_iter().map(|(call, error)| (call, error.unwrap_or_else(|| panic!("{call} succeeded")))).collect()
}

#[test]
fn after_a_fault_every_call_says_so_and_nothing_runs() {
    let device = SimDevice::new(ticks());
    let [stream, other] = streams(&device);
    let cell = memory(&device, 1);
    let fence = device.record(stream).unwrap();
    device.launch(other, fill("running", 10, cell, 8, 1)).unwrap();
    device.launch(other, fill("queued", 10, cell, 8, 2)).unwrap();
    device.launch(stream, idle("delay", 5, vec![])).unwrap();
    device.launch(stream, idle("bad", 5, vec![read(Address(64), 8)])).unwrap();
    let fault = device.cluster().settle().unwrap_err();
    assert!(matches!(fault, DeviceError::IllegalAddress { address: Address(64), .. }));
    let refused = every_call(&device, stream, fence);
    assert_eq!(refused.iter().map(|(call, _)| *call).collect::<Vec<_>>(), {
        let mut calls = DeviceCall::ALL.to_vec();
        calls.sort_by_key(|&call| refused.iter().position(|(named, _)| *named == call));
        calls
    });
    for (call, error) in refused {
        assert_eq!(error, poisoned(&fault), "{call}");
    }
    device.release_fence(fence);
    assert_eq!(device.read_memory(cell, 8), [0xFF; 8], "what ran did not end");
    let executed = device.cluster().take_timeline();
    assert_eq!(support::names(&executed), ["delay"]);
}

// ---- failures on request

/// What can be seen of a device from outside.
fn picture(device: &SimDevice) -> String {
    format!("{:?} {:?} {}", device.memory_info(), device.is_capturing(), device.now_ns())
}

#[test]
fn every_call_fails_on_request_once_and_changes_nothing() {
    for &call in DeviceCall::ALL {
        let device = SimDevice::new(ticks());
        let [stream, second] = streams(&device);
        let granule = device.properties().granularity_bytes;
        let (reserved, cell) = (device.reserve(granule).unwrap(), memory(&device, 1));
        let (loose, mapped) = (device.create(granule).unwrap(), device.create(granule).unwrap());
        let at = device.reserve(granule).unwrap();
        device.map(mapped, at).unwrap();
        let fence = device.record(stream).unwrap();
        let host = HostMemory::pinned(8);
        let communicator = device.cluster().communicator("alone", &[0]);
        // Each may be called twice, as the first call changes nothing.
        let make = |failing: bool| -> Result<(), DeviceError> {
            match call {
                DeviceCall::CreateStream => device.create_stream("new").map(drop),
                DeviceCall::DestroyStream => device.destroy_stream(second),
                DeviceCall::Record => device.record(stream).map(drop),
                DeviceCall::Query => device.query(fence).map(drop),
                DeviceCall::Wait => device.wait(stream, fence),
                DeviceCall::Synchronize => device.synchronize(fence, None).map(|waited| {
                    assert_eq!(waited, Waited::Complete);
                }),
                DeviceCall::Elapsed => device.elapsed_ns(fence, fence).map(drop),
                DeviceCall::BeginCapture => device.begin_capture(stream),
                DeviceCall::EndCapture => {
                    if failing {
                        device.begin_capture(stream)?;
                    }
                    let ended = device.end_capture(stream);
                    assert_eq!(device.is_capturing(), failing, "it still captures when the end failed");
                    ended
                }
                DeviceCall::Reserve => device.reserve(granule).map(drop),
                DeviceCall::Unreserve => device.unreserve(reserved, granule),
                DeviceCall::Create => device.create(granule).map(drop),
                DeviceCall::Map => device.map(loose, reserved),
                DeviceCall::SetAccess => device.set_access(at, granule),
                DeviceCall::Unmap => device.unmap(at, granule),
                DeviceCall::Release => device.release(loose),
                DeviceCall::MemoryInfo => device.memory_info().map(drop),
                DeviceCall::Launch => device.launch(stream, fill("fill", 1, cell, 8, 1)),
                DeviceCall::CopyToDevice => device.copy_to_device(stream, cell, &host, 0, 8),
                DeviceCall::CopyToHost => device.copy_to_host(stream, &host, 0, cell, 8),
                DeviceCall::Collective => device.collective(
                    stream,
                    highwater_device::sim::Collective {
                        communicator: communicator.clone(),
                        name: "gather".into(),
                        tag: 0,
                        cost: highwater_device::Cost::exact(1),
                        sends: vec![read(cell, 8).range],
                        receive: write(cell.offset(8), 8),
                        body: Box::new(|sent, received| {
                            received.as_bytes_mut().copy_from_slice(sent[0].as_bytes());
                        }),
                    },
                ),
            }
        };
        let before = (picture(&device), device.counters().of(call));
        device.fail_nth(call, 1);
        let failure = make(true).unwrap_err();
        match (call, failure) {
            (DeviceCall::Create, DeviceError::OutOfMemory { requested, free }) => {
                assert_eq!((requested, free), (granule, device.memory_info().unwrap().free));
            }
            (_, failure) => assert_eq!(failure, DeviceError::Injected { call, nth: 1 }),
        }
        if call != DeviceCall::EndCapture {
            assert_eq!(picture(&device), before.0, "{call}");
        }
        assert_eq!(device.counters().of(call), before.1 + 1 + u64::from(call == DeviceCall::MemoryInfo));
        device.cluster().settle().unwrap();
        assert_eq!(device.cluster().take_timeline(), [], "{call} left work behind");
        assert_eq!(make(false), Ok(()), "{call} fails once only");
        device.cluster().settle().unwrap();
    }
}

#[test]
fn the_nth_call_is_counted_from_now() {
    let device = SimDevice::new(ticks());
    let [stream] = streams(&device);
    device.record(stream).unwrap();
    device.fail_nth(DeviceCall::Record, 3);
    let made: Vec<bool> = (0..5).map(|_| device.record(stream).is_ok()).collect();
    assert_eq!(made, [true, true, false, true, true]);
}

#[test]
fn a_fence_that_fails_never_completes() {
    let device = SimDevice::new(ticks());
    let [stream, other] = streams(&device);
    device.fail_fence(2);
    device.launch(stream, idle("work", 10, vec![])).unwrap();
    let good = device.record(stream).unwrap();
    let bad = device.record(stream).unwrap();
    device.wait(other, bad).unwrap();
    device.launch(other, idle("behind", 1, vec![])).unwrap();
    device.host_work(9);
    assert_eq!((device.query(good), device.query(bad)), (Ok(false), Ok(false)));
    let fault = device.synchronize(bad, None).unwrap_err();
    assert_eq!(fault, DeviceError::Injected { call: DeviceCall::Record, nth: 2 });
    assert_eq!(device.now_ns(), 10, "it fails when its work has completed");
    assert_eq!(device.query(bad), Err(poisoned(&fault)));
    assert_eq!(device.cluster().settle(), Err(fault));
    assert_eq!(support::spans(&device.cluster()), [("work".to_owned(), 0, 10)]);
}

#[test]
fn a_fence_can_fail_on_an_idle_stream() {
    let device = SimDevice::new(ticks());
    device.fail_fence(1);
    let bad = device.record(device.default_stream()).unwrap();
    assert!(matches!(device.query(bad), Err(DeviceError::Poisoned { .. })));
}

// ---- bodies

fn with_body(body: impl FnOnce(&mut [highwater_device::OperandBytes]) + Send + 'static, cell: Address) -> Operation {
    Operation { body: Body::Host(Box::new(body)), ..idle("body", 5, vec![write(cell, 8)]) }
}

fn body_fault(device: &Arc<SimDevice>, operation: Operation) -> (String, u64) {
    let [stream] = streams(device);
    device.launch(stream, operation).unwrap();
    let fence = device.record(stream).unwrap();
    match device.synchronize(fence, None) {
        Err(DeviceError::BodyPanicked { operation, stream, message }) => {
            assert_eq!((&*operation, &*stream), ("body", "s0"));
            (message, device.now_ns())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_body_that_panics_is_a_fault() {
    for workers in [0, 2] {
        let device = SimDevice::new(SimConfig { workers, ..ticks() });
        let cell = memory(&device, 1);
        let fault = body_fault(&device, with_body(|_| panic!("bad number {}", 3), cell));
        assert_eq!(fault, ("bad number 3".to_owned(), 5));
        assert_eq!(device.read_memory(cell, 8), [0xFF; 8]);
    }
}

#[test]
fn a_body_cannot_change_the_length_of_an_operand() {
    let device = SimDevice::new(ticks());
    let cell = memory(&device, 1);
    let longer = with_body(|operands| operands[0] = highwater_device::OperandBytes::filled(9, 0), cell);
    assert!(body_fault(&device, longer).0.contains("length"));
}

#[test]
fn a_body_that_calls_its_device_does_not_hang() {
    for workers in [0, 1] {
        let device = SimDevice::new(SimConfig { workers, ..ticks() });
        let cell = memory(&device, 1);
        let inner = device.clone();
        let calls = with_body(
            move |_| {
                let _ = inner.memory_info();
            },
            cell,
        );
        assert!(body_fault(&device, calls).0.contains("the body of an operation called a simulated device"));
    }
}

#[test]
fn what_a_body_owns_must_not_call_the_device_when_it_is_dropped() {
    struct Caller(Arc<SimDevice>);
    impl Drop for Caller {
        fn drop(&mut self) {
            let _ = self.0.memory_info();
        }
    }
    let device = SimDevice::new(ticks());
    let caller = Caller(device.clone());
    let owns = with_body(move |_| drop(caller), Address(0));
    // Refused, so it is dropped within the call: a panic, not a hang.
    let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| device.launch(StreamId(0), owns)));
    let text = refused.unwrap_err().downcast_ref::<&str>().map(|text| (*text).to_owned());
    assert!(text.unwrap().contains("when it was dropped"));
    assert!(device.memory_info().is_ok(), "the device goes on");
}

#[test]
fn dropping_a_device_with_queued_work_does_not_hang() {
    for workers in [0, 2] {
        let device = SimDevice::new(SimConfig { workers, ..ticks() });
        let [stream] = streams(&device);
        let cell = memory(&device, 1);
        for value in 0..100 {
            device.launch(stream, fill("fill", 10, cell, 1 << 20, value)).unwrap();
            device.host_work(1);
        }
        drop(device);
    }
}
