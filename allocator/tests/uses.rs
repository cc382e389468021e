//! Who else uses a block and until when: exactly, or the whole stream.

use std::time::Duration;

use highwater::device::{Access, Address, ByteRange, DeviceResult};
use highwater::device::{Body, Cost, Device, Operand, Operation};
use highwater::{Allocator, Buffer, Settings, Stream, StreamError};

use crate::world::{GRANULE, World, address, granules, still, ticks};

/// What `world` says about a use that lasts 10 ns, with 1000 ns of unrelated work after it: the time at which the memory
/// can be had again.
fn free_again_at(record: impl FnOnce(&World, &Stream, &Buffer<u8>)) -> u64 {
    let world = World::timed();
    let [s, t] = world.streams();
    let used = world.bytes(&s, granules(1));
    let at = address(&used);
    record(&world, &t, &used);
    world.idle(&t, 1000);
    drop(used);
    let mut passed = 0;
    loop {
        let again = world.bytes(&s, granules(1));
        if address(&again) == at {
            assert_eq!(world.met_at("own_pending"), u64::from(passed > 0));
            drop((again, s, t));
            world.end();
            return passed;
        }
        drop(again);
        world.allocator.trim(granules(1) as u64);
        assert!(passed < 2000, "never");
        world.pass(5);
        passed += 5;
    }
}

#[test]
fn a_launch_is_a_use_up_to_the_next_fence() {
    let exact = free_again_at(|world, t, used| {
        world.busy(t, used, 10);
        drop(t.record().unwrap());
    });
    // Without a fence in between, the one that the free records stands behind the unrelated work.
    let late = free_again_at(|world, t, used| world.busy(t, used, 10));
    assert_eq!((exact, late), (10, 1010));
}

#[test]
fn an_external_call_is_a_use_up_to_the_next_fence() {
    let freed = free_again_at(|world, t, used| {
        world.idle(t, 10);
        let nothing = |_, _| -> DeviceResult<()> { Ok(()) };
        t.submit_external("nothing yet", &[used.view()], &[], nothing).unwrap();
        drop(t.record().unwrap());
    });
    assert_eq!(freed, 10);
}

#[test]
fn record_use_frees_earlier_than_record_stream() {
    let exact = free_again_at(|world, t, used| {
        world.idle(t, 10);
        used.record_use(t, &t.record().unwrap()).unwrap();
    });
    let whole = free_again_at(|world, t, used| {
        world.idle(t, 10);
        used.record_stream(t);
    });
    assert_eq!((exact, whole), (10, 1010));
}

#[test]
fn a_later_exact_use_does_not_shorten_a_whole_stream_use() {
    let whole = free_again_at(|world, t, used| {
        used.record_stream(t);
        world.busy(t, used, 10);
        used.record_use(t, &t.record().unwrap()).unwrap();
    });
    assert_eq!(whole, 1010);
}

#[test]
fn once_the_address_is_known_outside_every_use_is_of_the_whole_stream() {
    let launched = free_again_at(|world, t, used| {
        let _ = used.device_address();
        world.busy(t, used, 10);
    });
    let recorded = free_again_at(|world, t, used| {
        let _ = used.device_address();
        world.idle(t, 10);
        used.record_use(t, &t.record().unwrap()).unwrap();
    });
    assert_eq!((launched, recorded), (1010, 1010));
}

#[test]
fn a_fence_that_is_old_ends_the_use_at_once() {
    let freed = free_again_at(|_, t, used| used.record_use(t, &t.record().unwrap()).unwrap());
    assert_eq!(freed, 0);
}

#[test]
fn an_earlier_fence_does_not_end_a_use_that_nobody_saw() {
    let world = World::timed();
    let [s, t] = world.streams();
    let used = world.bytes(&s, granules(1));
    let at = Address(address(&used));
    world.fill(&s, &used, 7, 0);
    t.wait(&s.record().unwrap()).unwrap();
    // Both fences come after the same work that the allocator knows of; only the second comes after the read.
    let earlier = t.record().unwrap();
    world.raw_read(&t, at, used.bytes(), 7, 100);
    let later = t.record().unwrap();
    s.wait(&earlier).unwrap();
    used.record_use(&t, &later).unwrap();
    drop(used);
    world.pass(50);
    assert!(earlier.is_complete().unwrap());
    assert_eq!(world.stats().pending_bytes, 1 << 16);
    let other = world.bytes(&s, granules(1));
    assert_ne!(address(&other), at.0);
    world.pass(50);
    let again = world.bytes(&s, granules(1));
    assert_eq!(address(&again), at.0);
    drop((earlier, later, other, again, s, t));
    world.end();
}

#[test]
fn an_earlier_fence_does_not_end_a_whole_stream_use() {
    let world = World::timed();
    let [s, t] = world.streams();
    let used = world.bytes(&s, granules(1));
    let at = Address(address(&used));
    world.fill(&s, &used, 7, 0);
    t.wait(&s.record().unwrap()).unwrap();
    let earlier = t.record().unwrap();
    world.raw_read(&t, at, used.bytes(), 7, 100);
    used.record_stream(&t);
    assert!(earlier.is_complete().unwrap());
    drop(used);
    assert_eq!(world.stats().pending_bytes, 1 << 16);
    world.pass(100);
    let again = world.bytes(&s, granules(1));
    assert_eq!(address(&again), at.0);
    drop((earlier, again, s, t));
    world.end();
}

#[test]
fn what_comes_after_the_free_does_not_hold_the_memory() {
    let world = World::timed();
    let [s, t] = world.streams();
    let used = world.bytes(&s, granules(1));
    let at = address(&used);
    world.busy(&t, &used, 100);
    drop(used);
    world.idle(&t, 1000);
    world.pass(100);
    let again = world.bytes(&s, granules(1));
    assert_eq!(address(&again), at);
    drop((again, s, t));
    world.end();
}

#[test]
fn all_users_have_to_be_done() {
    let world = World::timed();
    let [s, t, u] = world.streams();
    let used = world.bytes(&s, granules(1));
    let at = address(&used);
    world.busy(&t, &used, 10);
    world.busy(&u, &used, 20);
    drop(used);
    let by_stream = world.stats().pending_bytes_by_stream;
    assert_eq!((by_stream["t"], by_stream["u"], world.stats().pending_bytes), (1 << 16, 1 << 16, 1 << 16));
    world.pass(10);
    let other = world.bytes(&s, granules(1));
    assert_ne!(address(&other), at);
    world.pass(10);
    let again = world.bytes(&s, granules(1));
    assert_eq!(address(&again), at);
    drop((other, again, s, t, u));
    world.end();
}

#[test]
fn the_owners_own_uses_need_no_note() {
    let world = World::timed();
    let [s] = world.streams();
    let used = world.bytes(&s, 1000);
    world.busy(&s, &used, 100);
    used.record_stream(&s);
    used.record_use(&s, &s.record().unwrap()).unwrap();
    drop(used);
    assert_eq!(world.stats().pending_bytes, 0);
    drop(s);
    world.end();
}

#[test]
fn a_fence_of_another_stream_or_allocator_is_refused() {
    let world = World::timed();
    let [s, t] = world.streams();
    let other = Allocator::with_settings(world.device.clone(), Settings::default()).unwrap();
    let foreign = other.create_stream("foreign").unwrap();
    let used = world.bytes(&s, 1000);
    let on_s = s.record().unwrap();
    assert_eq!(used.record_use(&t, &on_s), Err(StreamError::OtherStream { stream: "t".into() }));
    let fence = foreign.record().unwrap();
    assert_eq!(used.record_use(&t, &fence), Err(StreamError::OtherAllocator { what: "the fence" }));
    assert_eq!(t.wait(&fence), Err(StreamError::OtherAllocator { what: "the fence" }));
    let launched = foreign.launch("foreign", Cost::exact(1)).read(&used).submit();
    assert_eq!(launched, Err(StreamError::OtherAllocator { what: "an operand" }));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| used.record_stream(&foreign))).is_err());
    drop((on_s, fence, used, foreign, other, s, t));
    world.end();
}

#[test]
fn what_an_external_call_submits_is_ordered_and_recorded() {
    let world = World::new(ticks(), still());
    let [s, t] = world.streams();
    let first = world.bytes(&s, 1000);
    world.fill(&s, &first, 1, 100);
    drop(first);
    let second = world.bytes(&s, 1000);
    let device = world.device.clone();
    let filled = t.submit_external("fill", &[], &[second.view().slice(0..500)], |stream, external| {
        assert_eq!(external.writes[0].address, Address(address(&second)));
        let body = Body::Host(Box::new(|operands| operands[0].as_bytes_mut().fill(2)));
        let operands = vec![Operand { range: external.writes[0], access: Access::Write }];
        device.launch(stream, Operation { name: "fill".into(), tag: 0, cost: Cost::exact(10), operands, body })
    });
    filled.unwrap();
    assert_eq!(world.stats().waits_inserted, 1, "after what S did with the memory before");
    s.wait(&t.record().unwrap()).unwrap();
    world.expect(&s, second.slice(0..500), 2, 1);
    world.pass(200);
    assert_eq!(world.device.read_memory(Address(address(&second)), 2), [2, 2]);

    let failed = t.submit_external("fails", &[second.view()], &[], |stream, external| {
        let range = ByteRange::new(Address(u64::MAX), external.reads[0].bytes);
        let operands = vec![Operand { range, access: Access::Read }];
        world.device.launch(
            stream,
            Operation { name: "bad".into(), tag: 0, cost: Cost::exact(10), operands, body: Body::Nothing },
        )
    });
    assert!(failed.unwrap_err().to_string().starts_with("fails on \"t\": launch: "));
    drop((second, s, t));
    world.end();
}

/// The host has seen all that the stream was given through the allocator, and not what came after it.
#[test]
fn memory_is_not_returned_under_work_that_went_past_the_allocator() {
    let world = World::timed();
    let [s] = world.streams();
    let block = world.bytes(&s, granules(1));
    world.fill(&s, &block, 7, 10);
    s.record().unwrap().wait(Duration::from_secs(1)).unwrap();
    world.raw_read(&s, block.device_address(), GRANULE, 7, 100);
    drop(block);
    assert_eq!(world.allocator.trim(0), GRANULE, "it is still read");
    world.pass(200);
    assert_eq!(world.allocator.trim(0), 0);
    drop(s);
    world.end();
}
