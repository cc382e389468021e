//! Memory that is used again, after a free that came too early.

use std::time::Duration;

use highwater::device::{Access, Cost};
use highwater::sanitizer::{Missing, RaceKind};

use crate::stage::{BYTES, Stage, address, work};

#[test]
fn a_record_stream_that_was_forgotten_is_found_where_the_memory_is_given_out() {
    let stage = Stage::new();
    let x = stage.bytes(&stage.s1);
    stage.s1.launch("fill", work()).write(&x).submit().unwrap();
    stage.s2.wait(&stage.s1.record().unwrap()).unwrap();
    let raw = line!() + 1;
    stage.raw(&stage.s2, x.device_address(), Access::Read);
    let address = x.device_address();
    drop(x); // without record_stream(s2)
    stage.none();

    let allocated = line!() + 1;
    let y = stage.bytes(&stage.s1);
    assert_eq!(y.device_address(), address, "the allocator knows of no use");
    let race = stage.one(RaceKind::Reuse, "raw kernel", "allocation");
    assert_eq!(race.first.context.unwrap().location.line(), raw);
    assert_eq!(race.second.context.unwrap().location.line(), allocated);
    assert!(matches!(&race.missing, Missing::RecordStream { stream } if &**stream == "s2"), "{race}");
    assert!(race.first.buffer.as_ref().unwrap().freed_in().is_some());
    assert!(race.second.buffer.as_ref().unwrap().freed_in().is_none());
    // It is told once.
    stage.s1.launch("next", work()).write(&y).submit().unwrap();
    stage.none();
}

#[test]
fn a_record_stream_that_was_not_forgotten_is_let_be() {
    let stage = Stage::new();
    for _ in 0..3 {
        let x = stage.bytes(&stage.s1);
        stage.s1.launch("fill", work()).write(&x).submit().unwrap();
        stage.s2.wait(&stage.s1.record().unwrap()).unwrap();
        stage.raw(&stage.s2, x.device_address(), Access::Read);
        x.record_stream(&stage.s2);
        drop(x);
        stage.device.host_work(50);
    }
    stage.device.host_work(1000);
    let again = stage.bytes(&stage.s1);
    stage.s1.launch("fill", work()).write(&again).submit().unwrap();
    stage.none();
}

#[test]
fn a_use_that_is_recorded_up_to_a_fence_before_it_is_found() {
    let stage = Stage::new();
    let x = stage.bytes(&stage.s1);
    let early = stage.s2.record().unwrap();
    early.wait(Duration::from_secs(1)).unwrap();
    // Not by `device_address`, after which no exact end is believed.
    stage.raw(&stage.s2, address(&x), Access::Read);
    x.record_use(&stage.s2, &early).unwrap();
    drop(x);
    let _y = stage.bytes(&stage.s1);
    stage.one(RaceKind::Reuse, "raw kernel", "allocation");
}

#[test]
fn memory_that_another_stream_writes_first_is_compared_with_what_was_before() {
    let stage = Stage::new();
    let x = stage.bytes(&stage.s1);
    let address = x.device_address();
    stage.s1.launch("old", Cost::exact(1000)).write(&x).submit().unwrap();
    drop(x);
    let y = stage.bytes(&stage.s1);
    // Past the allocator: nobody puts `s2` behind the old work.
    stage.raw(&stage.s2, address, Access::Write);
    stage.one(RaceKind::Unordered, "old", "raw kernel");
    drop(y);
    let z = stage.bytes(&stage.s1);
    stage.one(RaceKind::Reuse, "raw kernel", "allocation");
    // Through the allocator the order is made.
    stage.s2.launch("new", work()).write(&z).submit().unwrap();
    assert_eq!(stage.allocator.memory_stats().waits_inserted, 1);
    stage.none();
}

#[test]
fn work_on_a_buffer_that_was_freed_is_found() {
    let stage = Stage::new();
    let allocated = line!() + 1;
    let x = stage.bytes(&stage.s1);
    let address = x.device_address();
    drop(x);
    stage.raw(&stage.s1, address, Access::Read);
    let race = stage.one(RaceKind::AfterFree, "free of the buffer", "raw kernel");
    assert_eq!(race.buffer().unwrap().allocated.location.line(), allocated);
    assert_eq!(race.range.bytes, BYTES as u64);
    assert!(matches!(race.missing, Missing::LaterFree));

    let _y = stage.bytes(&stage.s1);
    stage.raw(&stage.s1, address, Access::Read);
    stage.none();
}

/// A graph keeps its memory until it is gone.
#[test]
fn work_on_a_buffer_whose_graph_is_gone_is_found() {
    let stage = Stage::new();
    let capture = stage.s1.begin_capture().unwrap();
    let x = stage.bytes(&stage.s1);
    let address = x.device_address();
    drop(x);
    let graph = capture.end().unwrap();
    stage.raw(&stage.s1, address, Access::Read);
    stage.none();
    drop(graph);
    stage.raw(&stage.s1, address, Access::Read);
    stage.one(RaceKind::AfterFree, "free of the buffer", "raw kernel");
}

#[test]
fn memory_of_a_raw_block_is_a_buffer_too() {
    let stage = Stage::new();
    let address = stage.allocator.alloc_raw(&stage.s1, BYTES as u64).unwrap();
    stage.raw(&stage.s1, address, Access::Write);
    stage.raw(&stage.s2, address, Access::Read);
    stage.one(RaceKind::Unordered, "raw kernel", "raw kernel");
    stage.allocator.free_raw(address).unwrap();
    stage.raw(&stage.s1, address, Access::Read);
    stage.one(RaceKind::AfterFree, "free of the buffer", "raw kernel");
}

#[test]
fn memory_that_is_unmapped_while_nobody_told_of_its_use_is_found() {
    let stage = Stage::new();
    let x = stage.bytes(&stage.s1);
    let range = highwater::device::ByteRange::new(x.device_address(), BYTES as u64);
    // It is declared, and not submitted: the device would fault.
    stage.sanitizer().access(stage.s2.id(), "raw kernel", range, Access::Read);
    drop(x);
    stage.allocator.trim(0);
    let race = stage.one(RaceKind::Unmapped, "raw kernel", "unmap");
    assert!(race.second.stream.is_none() && race.to_string().contains("the host has to wait"), "{race}");
}

#[test]
fn memory_that_is_mapped_anew_is_new() {
    let stage = Stage::new();
    let x = stage.bytes(&stage.s1);
    stage.s1.launch("fill", work()).write(&x).submit().unwrap();
    drop(x);
    stage.s1.record().unwrap().wait(Duration::from_secs(1)).unwrap();
    assert_eq!(stage.allocator.trim(0), 0);
    let y = stage.bytes(&stage.s2);
    stage.s2.launch("fill", work()).write(&y).submit().unwrap();
    stage.none();
}
