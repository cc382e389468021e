//! Host memory that copies read and write.

use std::time::Duration;

use highwater::StreamError;
use highwater::device::{Access, HostMemory};
use highwater::sanitizer::{Missing, RaceKind};

use crate::stage::{BYTES, Stage, work};

const LONG: Duration = Duration::from_secs(1);

/// A copy past the allocator, whose host memory the allocator does not guard.
fn copy(stage: &Stage, host: &HostMemory, to_device: bool) {
    let buffer = stage.bytes(&stage.s1);
    let (device, address) = (stage.allocator.watched_device(), buffer.device_address());
    let id = stage.s1.id();
    match to_device {
        true => device.copy_to_device(id, address, host, 0, BYTES as u64).unwrap(),
        false => device.copy_to_host(id, host, 0, address, BYTES as u64).unwrap(),
    }
}

#[test]
fn a_host_write_to_pinned_memory_that_is_still_read_is_found() {
    let stage = Stage::new();
    let host = HostMemory::pinned(BYTES as u64);
    copy(&stage, &host, true);
    stage.sanitizer().host_access(&host, 0..100, Access::Read);
    stage.none();
    let fence = stage.s1.record().unwrap();
    let line = line!() + 1;
    stage.sanitizer().host_access(&host, 0..100, Access::Write);
    let race = stage.one(RaceKind::Host, "copy to the device", "host write");
    assert_eq!((race.on_host, race.range.bytes), (true, 100));
    assert_eq!(race.second.context.unwrap().location.line(), line);
    assert!(matches!(&race.missing, Missing::HostWait { covering: Some(_) }), "{race}");
    fence.wait(LONG).unwrap();
    stage.sanitizer().host_access(&host, 0..100, Access::Write);
    stage.none();
}

#[test]
fn a_host_read_of_pinned_memory_that_is_still_written_is_found() {
    let stage = Stage::new();
    let host = HostMemory::pinned(2 * BYTES as u64);
    copy(&stage, &host, false);
    stage.sanitizer().host_access(&host, BYTES as u64..2 * BYTES as u64, Access::Read);
    stage.none();
    stage.sanitizer().host_access(&host, 0..1, Access::Read);
    stage.one(RaceKind::Host, "copy to the host", "host read");
}

#[test]
fn a_copy_of_pageable_memory_is_over_when_the_call_returns() {
    let stage = Stage::new();
    let host = HostMemory::pageable(BYTES as u64);
    for to_device in [true, false] {
        copy(&stage, &host, to_device);
        stage.sanitizer().host_access(&host, 0..BYTES as u64, Access::Write);
        stage.none();
    }
}

#[test]
fn copies_of_two_streams_with_one_host_buffer_are_ordered_by_the_program() {
    let stage = Stage::new();
    let (host, a, b) = (stage.allocator.pinned::<u8>(BYTES), stage.bytes(&stage.s1), stage.bytes(&stage.s2));
    stage.s1.launch("fill", work()).write(&a).submit().unwrap();
    stage.s1.copy_to_host(&a, &host).unwrap();
    stage.s2.copy_to_device(&host, &b).unwrap();
    let race = stage.one(RaceKind::Unordered, "copy to the host", "copy to the device");
    assert!(race.on_host);
}

#[test]
fn a_host_buffer_refuses_what_would_race() {
    let stage = Stage::new();
    let (host, a) = (stage.allocator.pinned::<u8>(BYTES), stage.bytes(&stage.s1));
    stage.s1.launch("fill", work()).write(&a).submit().unwrap();
    stage.s1.copy_to_host(&a, &host).unwrap();
    assert_eq!(host.read(|_| ()), Err(StreamError::HostBufferBusy));
    host.wait(LONG).unwrap();
    host.write(|bytes| bytes.fill(1)).unwrap();
    stage.none();
}
