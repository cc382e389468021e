//! The point of the simulation: a wait that is missing gives wrong bytes, and is reported.

mod support;

use std::sync::Arc;

use highwater_device::sim::{SimConfig, SimDevice};
use highwater_device::{Access, Body, Device, HostMemory, Operation};
use support::{copy, fill, finish, idle, memory, order, pinned, read, streams, ticks, update, write};

/// Fills a cell on one stream and copies it on another.
fn produce_and_consume(device: &Arc<SimDevice>, with_wait: bool) -> Vec<u8> {
    let [producer, consumer] = streams(device);
    let cell = memory(device, 1);
    let result = cell.offset(4096);
    device.launch(producer, fill("produce", 10, cell, 64, 7)).unwrap();
    if with_wait {
        order(device, producer, consumer);
    }
    device.launch(consumer, Operation { tag: 5, ..copy("consume", 2, cell, result, 64) }).unwrap();
    device.cluster().settle().unwrap();
    device.read_memory(result, 64)
}

#[test]
fn a_wait_orders_bytes() {
    let device = SimDevice::new(ticks());
    assert_eq!(produce_and_consume(&device, true), [7; 64]);
    assert_eq!(device.cluster().hazards(), []);
}

#[test]
fn a_missing_wait_gives_wrong_bytes_and_a_hazard() {
    let device = SimDevice::new(ticks());
    assert_eq!(produce_and_consume(&device, false), [0xFF; 64]);
    let hazards = device.cluster().hazards();
    assert_eq!(hazards.len(), 1);
    let hazard = &hazards[0];
    assert_eq!((hazard.device, hazard.offset_bytes, hazard.bytes), (0, 0, 64));
    assert_eq!(
        (&*hazard.first.name, &*hazard.first.stream_name, hazard.first.access),
        ("produce", "s0", Access::Write)
    );
    assert_eq!((&*hazard.second.name, hazard.second.tag, hazard.second.access), ("consume", 5, Access::Read));
    assert_eq!((hazard.first.id, hazard.second.id), (0, 1));
}

#[test]
fn memory_reused_too_early_is_seen() {
    let device = SimDevice::new(ticks());
    let [reader, writer] = streams(&device);
    let cell = memory(&device, 1);
    let result = cell.offset(4096);
    device.launch(reader, fill("produce", 5, cell, 8, 1)).unwrap();
    device.launch(reader, copy("consume", 5, cell, result, 8)).unwrap();
    // Someone gets the block again while the copy is still queued.
    device.launch(writer, fill("reuse", 3, cell.offset(4), 8, 2)).unwrap();
    device.cluster().settle().unwrap();
    assert_eq!(device.read_memory(cell, 12), [[1; 8].as_slice(), &[2; 4]].concat());
    let hazards = device.cluster().hazards();
    assert_eq!(hazards.len(), 1);
    assert_eq!((hazards[0].offset_bytes, hazards[0].bytes), (4, 4));
}

#[test]
fn two_addresses_of_one_page_are_the_same_bytes() {
    let device = SimDevice::new(ticks());
    let granule = device.properties().granularity_bytes;
    let page = device.create(granule).unwrap();
    let [first, second] = streams(&device);
    let addresses = [0, 1].map(|_| {
        let address = device.reserve(granule).unwrap();
        device.map(page, address).unwrap();
        device.set_access(address, granule).unwrap();
        address
    });
    device.launch(first, fill("one", 10, addresses[0], 16, 1)).unwrap();
    device.launch(second, idle("two", 10, vec![read(addresses[1].offset(12), 16)])).unwrap();
    device.cluster().settle().unwrap();
    let hazards = device.cluster().hazards();
    assert_eq!(hazards.len(), 1);
    assert_eq!((hazards[0].page, hazards[0].offset_bytes, hazards[0].bytes), (page, 12, 4));
    // Seen through the other address only when it has completed.
    device.launch(first, fill("later", 10, addresses[0], 16, 2)).unwrap();
    let fence = device.record(first).unwrap();
    device.host_work(9);
    assert_eq!(device.query(fence), Ok(false));
    assert_eq!(device.read_memory(addresses[1], 1), [1]);
    device.host_work(1);
    assert_eq!(device.query(fence), Ok(true));
    assert_eq!(device.read_memory(addresses[1], 1), [2]);
}

#[test]
fn readers_do_not_race() {
    let device = SimDevice::new(ticks());
    let [first, second, third] = streams(&device);
    let cell = memory(&device, 1);
    for stream in [first, second] {
        device.launch(stream, idle("read", 10, vec![read(cell, 64)])).unwrap();
    }
    device.launch(third, idle("beside", 10, vec![write(cell.offset(64), 64), update(cell, 0)])).unwrap();
    device.cluster().settle().unwrap();
    assert_eq!(device.cluster().hazards(), []);
}

#[test]
fn the_same_place_of_two_pages_is_no_race() {
    let device = SimDevice::new(ticks());
    for stream in streams::<2>(&device) {
        let cell = memory(&device, 1);
        device.launch(stream, idle("write", 10, vec![write(cell, 64)])).unwrap();
    }
    device.cluster().settle().unwrap();
    assert_eq!(device.cluster().hazards(), []);
}

#[test]
fn reads_are_taken_at_the_start_and_writes_seen_at_the_end() {
    let device = SimDevice::new(ticks());
    let [first, second, third] = streams(&device);
    let cell = memory(&device, 1);
    device.launch(first, fill("before", 10, cell, 1, 1)).unwrap();
    finish(&device, first);
    // `long` starts at 10 with 1 and ends at 30; `middle` writes at 15; `look` reads at 20.
    let body = Body::Host(Box::new(|operands| operands[0].as_bytes_mut()[0] += 10));
    device.launch(first, Operation { body, ..idle("long", 20, vec![update(cell, 1)]) }).unwrap();
    device.launch(second, fill("middle", 5, cell, 1, 50)).unwrap();
    device.launch(third, idle("delay", 10, vec![])).unwrap();
    device.launch(third, copy("look", 1, cell, cell.offset(8), 1)).unwrap();
    device.cluster().settle().unwrap();
    assert_eq!(device.read_memory(cell, 1), [11]);
    assert_eq!(device.read_memory(cell.offset(8), 1), [50]);
}

#[test]
fn what_is_only_written_starts_as_nan() {
    let device = SimDevice::new(ticks());
    let [stream] = streams(&device);
    let cell = memory(&device, 1);
    device.launch(stream, fill("old", 1, cell, 8, 3)).unwrap();
    let body = Body::Host(Box::new(|operands| operands[0].as_mut_slice::<f32>()[0] = 1.0));
    device.launch(stream, Operation { body, ..idle("half", 1, vec![write(cell, 8)]) }).unwrap();
    finish(&device, stream);
    let bytes = device.read_memory(cell, 8);
    assert_eq!(bytes[..4], 1.0f32.to_ne_bytes());
    assert!(f32::from_ne_bytes(bytes[4..].try_into().unwrap()).is_nan(), "it does not keep the old bytes");
}

#[test]
fn pinned_memory_is_read_when_the_copy_starts() {
    let device = SimDevice::new(ticks());
    let [stream] = streams(&device);
    let cell = memory(&device, 1);
    let host = pinned(&[1; 4]);
    device.launch(stream, idle("busy", 100, vec![])).unwrap();
    device.copy_to_device(stream, cell, &host, 0, 4).unwrap();
    host.write(|bytes: &mut [u8]| bytes.fill(2)); // too early
    finish(&device, stream);
    assert_eq!(device.read_memory(cell, 4), [2; 4]);
}

#[test]
fn pinned_memory_is_written_when_the_copy_ends() {
    let device = SimDevice::new(ticks());
    let [stream] = streams(&device);
    let cell = memory(&device, 1);
    device.launch(stream, fill("fill", 100, cell, 4, 9)).unwrap();
    let host = HostMemory::pinned(4);
    device.copy_to_host(stream, &host, 0, cell, 4).unwrap();
    assert_eq!(host.read(<[u8]>::to_vec), [0; 4]);
    finish(&device, stream);
    assert_eq!(host.read(<[u8]>::to_vec), [9; 4]);
}

#[test]
fn without_bodies_time_and_hazards_are_the_same() {
    let outcomes = [true, false].map(|bodies| {
        let device = SimDevice::new(SimConfig { bodies, ..ticks() });
        let result = produce_and_consume(&device, false);
        assert_eq!(result, [0xFF; 64]);
        (device.cluster().take_timeline(), device.cluster().hazards())
    });
    assert_eq!(outcomes[0], outcomes[1]);
    let device = SimDevice::new(SimConfig { bodies: false, ..ticks() });
    assert_eq!(produce_and_consume(&device, true), [0xFF; 64], "no byte is computed");
}
