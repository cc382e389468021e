//! Guards over work that is submitted past the allocator.

use std::sync::Arc;

use highwater::device::Device;
use highwater::{Allocator, Buffer, Stream, StreamError};

use crate::world::{World, address, granules, still};

/// When memory of `s` can be had again after `use_it` with the stream `t`, and 1000 ns of unrelated work on `t`.
fn free_again_at(use_it: impl FnOnce(&World, &Stream, Buffer<u8>)) -> u64 {
    let world = World::timed();
    let [s, t] = world.streams();
    let used = world.bytes(&s, granules(1));
    let at = address(&used);
    use_it(&world, &t, used);
    let mut passed = 0;
    while address(&world.bytes(&s, granules(1))) != at {
        world.allocator.trim(granules(1) as u64);
        assert!(passed < 2000, "never");
        world.pass(5);
        passed += 5;
    }
    // A guard that was forgotten keeps its stream, and with it the allocator: there is no end to check.
    world.check();
    world.expect_clean();
    passed
}

#[test]
fn a_guard_is_a_use_up_to_its_drop() {
    let freed = free_again_at(|world, t, used| {
        let on = used.on(t).unwrap();
        world.idle(t, 10);
        drop(on);
        drop(t.record().unwrap());
        world.idle(t, 1000);
        drop(used);
    });
    assert_eq!(freed, 10);
}

#[test]
fn a_guard_that_is_dropped_late_holds_until_then() {
    let freed = free_again_at(|world, t, used| {
        let on = used.on(t).unwrap();
        world.idle(t, 10);
        drop(t.record().unwrap());
        world.idle(t, 1000);
        drop(on);
        drop(used);
    });
    assert_eq!(freed, 1010, "the fence before the drop ends nothing");
}

#[test]
fn a_guard_that_is_forgotten_is_a_use_until_the_free() {
    let freed = free_again_at(|world, t, used| {
        std::mem::forget(used.on(t).unwrap());
        world.idle(t, 10);
        drop(t.record().unwrap());
        world.idle(t, 1000);
        drop(used);
    });
    assert_eq!(freed, 1010);
}

#[test]
fn the_last_of_several_guards_ends_the_use() {
    let overlapping = free_again_at(|world, t, used| {
        let (first, second) = (used.on(t).unwrap(), used.slice(..10).on(t).unwrap());
        world.idle(t, 10);
        drop(second);
        drop(t.record().unwrap());
        world.idle(t, 10);
        drop(first);
        drop(t.record().unwrap());
        world.idle(t, 1000);
        drop(used);
    });
    let one_forgotten = free_again_at(|world, t, used| {
        std::mem::forget(used.on(t).unwrap());
        drop(used.on(t).unwrap());
        drop(t.record().unwrap());
        world.idle(t, 1000);
        drop(used);
    });
    assert_eq!((overlapping, one_forgotten), (20, 1000));
}

#[test]
fn what_is_known_outside_is_used_until_the_free() {
    let freed = free_again_at(|world, t, used| {
        let _ = used.device_address();
        drop(used.on(t).unwrap());
        drop(t.record().unwrap());
        world.idle(t, 1000);
        drop(used);
    });
    assert_eq!(freed, 1000);
}

#[test]
fn a_guard_of_the_own_stream_notes_nothing() {
    let world = World::timed();
    let [s] = world.streams();
    let used = world.bytes(&s, granules(1));
    let at = address(&used);
    let on = used.on(&s).unwrap();
    assert_eq!((on.address().0, on.len(), on.stream()), (at, granules(1), &s));
    world.idle(&s, 100);
    drop(on);
    drop(used);
    let again = world.bytes(&s, granules(1));
    assert_eq!((address(&again), world.stats().pending_bytes), (at, 0));
    drop((again, s));
    world.end();
}

#[test]
fn a_guard_comes_after_the_former_uses_of_the_memory() {
    let world = World::timed();
    let [s, t] = world.streams();
    let before = world.bytes(&s, granules(1));
    world.fill(&s, &before, 1, 100);
    drop(before);
    let used = world.bytes(&s, granules(1));
    let on = used.slice(4..).on(&t).unwrap();
    assert_eq!(world.stats().waits_inserted, 1);
    assert_eq!(on.address().0, address(&used) + 4);
    // Without the wait it would read what nobody has written yet.
    world.raw_read(&t, on.address(), 8, 1, 10);
    drop(on);
    drop((used, s, t));
    world.end();
}

#[test]
fn zero_elements_need_no_guard() {
    let world = World::timed();
    let [s, t] = world.streams();
    let nothing = world.bytes(&s, 0);
    let on = nothing.on(&t).unwrap();
    assert!(on.is_empty() && on.view().is_empty());
    assert_eq!(format!("{on:?}"), format!("On({:?}, \"t\")", nothing.view()));
    drop(on);
    drop((nothing, s, t));
    world.end();
}

#[test]
fn a_guard_refuses_streams_of_others_and_orders_inside_a_capture() {
    let world = World::timed();
    let [s, t, u] = world.streams();
    let before = world.bytes(&s, granules(1));
    world.fill(&s, &before, 1, 100);
    drop(before);
    let used = world.bytes(&s, granules(1));
    let device: Arc<dyn Device> = world.device.clone();
    let other = Allocator::with_settings(device, still().build().unwrap()).unwrap();
    let refused = used.on(&other.default_stream()).unwrap_err();
    assert_eq!(refused, StreamError::OtherAllocator { what: "the stream" });
    drop(other);

    let capture = u.begin_capture().unwrap();
    assert!(matches!(used.on(&t), Err(StreamError::Capturing { .. })));
    drop(capture.end().unwrap());
    drop(used);
    // What was refused is not noted.
    assert_eq!(world.stats().pending_bytes, 0);
    drop((s, t, u));
    world.end();
}

#[test]
fn an_earlier_fence_does_not_end_the_use_of_a_guard() {
    let world = World::timed();
    let [s, t] = world.streams();
    let used = world.bytes(&s, granules(1));
    let at = address(&used);
    world.fill(&s, &used, 7, 0);
    t.wait(&s.record().unwrap()).unwrap();
    let on = used.on(&t).unwrap();
    // The allocator has seen nothing of `t` since this fence: the end of the guard has to have a position of its own.
    let earlier = t.record().unwrap();
    world.raw_read(&t, on.address(), used.bytes(), 7, 100);
    drop(on);
    drop(used);
    world.pass(50);
    assert!(earlier.is_complete().unwrap());
    let other = world.bytes(&s, granules(1));
    assert_ne!(address(&other), at);
    world.fill(&s, &other, 8, 10);
    world.pass(50);
    let again = world.bytes(&s, granules(1));
    assert_eq!(address(&again), at);
    drop((earlier, other, again, s, t));
    world.end();
}
