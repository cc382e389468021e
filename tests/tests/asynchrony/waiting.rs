//! Order between streams: what blocks the host, what holds a stream back, and what goes wrong when nothing does.

use std::time::Duration;

use highwater::device::{Access, Body, ByteRange, Cost, Device, Operand, Operation};
use highwater::{Buffer, Stream};

use super::{World, config, copy, fill, idle};

const LONG: Duration = Duration::from_secs(1);

/// The bytes that completed work has left.
fn bytes(world: &World, buffer: &Buffer<u8>) -> Vec<u8> {
    world.device.read_memory(buffer.device_address(), buffer.bytes())
}

#[test]
fn s2_4_to_wait_for_a_stream_is_not_to_wait_for_the_device() {
    for (waits_for_all, end) in [(false, 3), (true, 10)] {
        let world = World::new(config());
        let (short, long) = (world.stream("short"), world.stream("long"));
        idle(&short, "short", 3);
        idle(&long, "long", 10);
        short.record().unwrap().wait(LONG).unwrap();
        if waits_for_all {
            long.record().unwrap().wait(LONG).unwrap();
        }
        assert_eq!((world.now(), world.blocked().1), (end, end));
    }
}

/// The fence stands behind A alone, and what comes after it on the same stream is not waited for.
/// ```text
/// s1   : [A  ][more            ]
/// s2   :      [use]
/// host : goes on
/// ```
#[test]
fn s2_4_a_fence_orders_after_exactly_what_was_before_it() {
    let world = World::new(config());
    let (s1, s2) = (world.stream("s1"), world.stream("s2"));
    let (a, b) = (s1.alloc::<u8>(8).unwrap(), s2.alloc::<u8>(8).unwrap());
    fill(&s1, "A", &a, 1, 3);
    let fence = s1.record().unwrap();
    idle(&s1, "more", 10);
    s2.wait(&fence).unwrap();
    copy(&s2, "use", &a, &b, 2);
    assert_eq!((world.now(), world.blocked()), (0, (0, 0)));
    world.expect(&[("s1", "A", 0, 3), ("s1", "more", 3, 13), ("s2", "use", 3, 5)]);
    assert_eq!(bytes(&world, &b), [1; 8]);
    world.expect_no_races();
}

/// ```text
/// s1   : [A  ][more            ][later]
/// s2   :                        [use]
/// host : goes on
/// ```
#[test]
fn s2_4_wait_stream_orders_after_all_so_far_and_never_blocks_the_host() {
    let world = World::new(config());
    let (s1, s2) = (world.stream("s1"), world.stream("s2"));
    let (a, b) = (s1.alloc::<u8>(8).unwrap(), s2.alloc::<u8>(8).unwrap());
    fill(&s1, "A", &a, 1, 3);
    idle(&s1, "more", 10);
    s2.wait_stream(&s1).unwrap();
    copy(&s2, "use", &a, &b, 2);
    idle(&s1, "later", 5);
    assert_eq!((world.now(), world.blocked()), (0, (0, 0)));
    world.expect(&[("s1", "A", 0, 3), ("s1", "more", 3, 13), ("s2", "use", 13, 15), ("s1", "later", 13, 18)]);
    assert_eq!(bytes(&world, &b), [1; 8]);
    world.expect_no_races();
}

/// s1 computes `a`, and s2 uses it: ordered or not.
fn use_of_another_stream(ordered: bool) -> (Vec<u8>, usize) {
    let world = World::new(config());
    let (s1, s2) = (world.stream("s1"), world.stream("s2"));
    let (a, b) = (s1.alloc::<u8>(8).unwrap(), s2.alloc::<u8>(8).unwrap());
    fill(&s1, "last batch", &a, 1, 1);
    s2.wait_stream(&s1).unwrap();
    fill(&s1, "compute", &a, 2, 10);
    if ordered {
        s2.wait_stream(&s1).unwrap();
    }
    copy(&s2, "use", &a, &b, 3);
    world.device.cluster().settle().unwrap();
    let hazards = world.device.cluster().hazards();
    for hazard in &hazards {
        assert_eq!((&*hazard.first.name, &*hazard.second.name), ("compute", "use"));
    }
    (bytes(&world, &b), hazards.len())
}

#[test]
fn s7_4_without_an_order_the_data_are_those_of_the_batch_before() {
    assert_eq!(use_of_another_stream(false), (vec![1; 8], 1));
    assert_eq!(use_of_another_stream(true), (vec![2; 8], 0));
}

/// A read past the allocator that lasts 10 ticks, of memory that is freed at once; then the owner uses fresh memory.
fn freed_while_it_is_read(say_so: impl Fn(&Buffer<u8>, &Stream)) -> (Vec<u8>, usize) {
    let world = World::new(config());
    let (owner, reader) = (world.stream("owner"), world.stream("reader"));
    let (a, b) = (owner.alloc::<u8>(8).unwrap(), reader.alloc::<u8>(8).unwrap());
    let to = b.device_address();
    fill(&owner, "compute", &a, 1, 1);
    reader.wait_stream(&owner).unwrap();
    idle(&reader, "late", 5);
    let operand = |address, access| Operand { range: ByteRange::new(address, 8), access };
    let operands = vec![operand(a.device_address(), Access::Read), operand(to, Access::Write)];
    let body = Body::Host(Box::new(|operands| {
        let (source, target) = operands.split_at_mut(1);
        target[0].as_bytes_mut().copy_from_slice(source[0].as_bytes());
    }));
    let raw = Operation { name: "raw read".into(), tag: 0, cost: Cost::exact(10), operands, body };
    world.device.launch(reader.id(), raw).unwrap();
    say_so(&a, &reader);
    drop(a);
    fill(&owner, "next batch", &owner.alloc::<u8>(8).unwrap(), 2, 1);
    world.device.cluster().settle().unwrap();
    (bytes(&world, &b), world.device.cluster().hazards().len())
}

#[test]
fn s7_4_record_stream_keeps_memory_until_the_other_stream_is_done() {
    assert_eq!(freed_while_it_is_read(|a, reader| a.record_stream(reader)), (vec![1; 8], 0));
    assert_eq!(freed_while_it_is_read(|_, _| {}), (vec![2; 8], 0), "given out and overwritten before it was read");
}
