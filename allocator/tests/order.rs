//! A stream that is handed memory of another stream comes after what was done with it before: a wait is inserted where
//! that is not proven, and nowhere else.

use crate::world::{World, address, granules};
use highwater::{Buffer, Stream};

/// A buffer of `s` whose bytes `s` has used before: the use ends at 100 ns.
fn recycled(world: &World, s: &Stream) -> Buffer<u8> {
    let first = world.bytes(s, 1000);
    let at = address(&first);
    world.fill(s, &first, 1, 100);
    drop(first);
    let second = world.bytes(s, 1000);
    assert_eq!(address(&second), at);
    second
}

#[test]
fn without_the_order_the_old_work_would_overwrite_the_new() {
    let world = World::timed();
    let [s, t] = world.streams();
    let buffer = recycled(&world, &s);
    world.fill(&t, &buffer, 2, 10);
    assert_eq!(world.stats().waits_inserted, 1);
    world.expect(&t, &buffer, 2, 10);
    assert_eq!(world.stats().waits_inserted, 1, "now it is proven");
    world.pass(1000);
    assert_eq!(world.device.read_memory(highwater::device::Address(address(&buffer)), 4), [2; 4]);
    drop((buffer, s, t));
    world.end();
}

#[test]
fn fresh_memory_needs_no_wait() {
    let world = World::timed();
    let [s, t] = world.streams();
    world.idle(&s, 100);
    let buffer = world.bytes(&s, 1000);
    world.fill(&t, &buffer, 2, 10);
    assert_eq!(world.stats().waits_inserted, 0);
    drop((buffer, s, t));
    world.end();
}

#[test]
fn on_its_own_stream_there_is_nothing_to_wait_for() {
    let world = World::timed();
    let [s] = world.streams();
    let buffer = recycled(&world, &s);
    world.fill(&s, &buffer, 2, 10);
    assert_eq!(world.stats().waits_inserted, 0);
    drop((buffer, s));
    world.end();
}

#[test]
fn what_the_program_waited_for_is_not_waited_for_again() {
    let world = World::timed();
    let [s, t, u] = world.streams();
    let buffer = recycled(&world, &s);
    t.wait(&s.record().unwrap()).unwrap();
    world.fill(&t, &buffer, 2, 10);
    u.wait(&t.record().unwrap()).unwrap();
    world.expect(&u, &buffer, 2, 10);
    assert_eq!(world.stats().waits_inserted, 0, "u comes after s through t");
    drop((buffer, s, t, u));
    world.end();
}

#[test]
fn a_fence_from_before_the_last_use_proves_nothing() {
    let world = World::timed();
    let [s, t] = world.streams();
    let first = world.bytes(&s, 1000);
    let early = s.record().unwrap();
    world.fill(&s, &first, 1, 100);
    drop(first);
    let buffer = world.bytes(&s, 1000);
    t.wait(&early).unwrap();
    world.fill(&t, &buffer, 2, 10);
    assert_eq!(world.stats().waits_inserted, 1);
    world.expect(&t, &buffer, 2, 10);
    world.pass(500);
    assert_eq!(world.device.read_memory(highwater::device::Address(address(&buffer)), 4), [2; 4]);
    drop((early, buffer, s, t));
    world.end();
}

#[test]
fn of_several_fences_the_one_that_covers_the_last_use_is_waited_for() {
    let world = World::timed();
    let [s, t] = world.streams();
    // A fence of `s` that a pending free waits for stays beside newer ones.
    let other = world.bytes(&t, 1000);
    world.busy(&s, &other, 10);
    drop(other);
    let buffer = recycled(&world, &s);
    let newer = s.record().unwrap();
    world.fill(&t, &buffer, 2, 10);
    world.expect(&t, &buffer, 2, 10);
    world.pass(1000);
    world.expect_clean();
    drop((buffer, newer, s, t));
    world.end();
}

#[test]
fn what_the_host_has_seen_complete_is_not_waited_for() {
    let world = World::timed();
    let [s, t] = world.streams();
    let buffer = recycled(&world, &s);
    let done = s.record().unwrap();
    world.pass(99);
    assert!(!done.is_complete().unwrap());
    world.pass(1);
    assert!(done.is_complete().unwrap());
    world.fill(&t, &buffer, 2, 10);
    assert_eq!(world.stats().waits_inserted, 0);
    drop((done, buffer, s, t));
    world.end();
}

#[test]
fn what_is_complete_through_another_stream_is_not_waited_for() {
    let world = World::timed();
    let [s, t, u] = world.streams();
    let buffer = recycled(&world, &s);
    t.wait(&s.record().unwrap()).unwrap();
    let after_both = t.record().unwrap();
    world.pass(100);
    assert!(after_both.is_complete().unwrap());
    world.fill(&u, &buffer, 2, 10);
    assert_eq!(world.stats().waits_inserted, 0);
    drop((after_both, buffer, s, t, u));
    world.end();
}

#[test]
fn memory_that_is_free_by_order_alone_is_ordered_for_others_too() {
    let world = World::timed();
    let [s, t, u] = world.streams();
    let first = world.bytes(&s, 1000);
    world.fill(&t, &first, 1, 100);
    s.wait(&t.record().unwrap()).unwrap();
    drop(first);
    // Nothing of `s` touched it; but `t` still writes it, and only `s` waits for that.
    let buffer = world.bytes(&s, 1000);
    world.fill(&u, &buffer, 2, 10);
    assert_eq!(world.stats().waits_inserted, 1);
    world.pass(500);
    assert_eq!(world.device.read_memory(highwater::device::Address(address(&buffer)), 4), [2; 4]);
    drop((buffer, s, t, u));
    world.end();
}

#[test]
fn memory_that_became_free_by_a_later_order_is_ordered_for_others_too() {
    let world = World::timed();
    let [s, t, u] = world.streams();
    let first = world.bytes(&s, 1 << 16);
    let at = address(&first);
    world.fill(&t, &first, 1, 100);
    drop(first);
    let at_the_free = s.record().unwrap();
    s.wait(&t.record().unwrap()).unwrap();
    // A fence from before the wait proves nothing about the memory.
    u.wait(&at_the_free).unwrap();
    let buffer = world.bytes(&s, 1 << 16);
    assert_eq!((address(&buffer), world.met_at("own_pending")), (at, 1));
    world.fill(&u, &buffer, 2, 10);
    assert_eq!(world.stats().waits_inserted, 1);
    world.pass(500);
    assert_eq!(world.device.read_memory(highwater::device::Address(at), 4), [2; 4]);
    drop((at_the_free, buffer, s, t, u));
    world.end();
}

#[test]
fn wait_stream_orders_after_what_the_other_was_given_so_far() {
    let world = World::timed();
    let [s, t] = world.streams();
    let x = world.bytes(&s, granules(1));
    world.fill(&s, &x, 1, 10);
    t.wait_stream(&s).unwrap();
    world.fill(&s, &world.bytes(&s, granules(1)), 2, 100);
    world.expect(&t, &x, 1, 5);
    assert_eq!((world.device_ns(), world.counters().host_synchronizations), (0, 0), "the host does not wait");
    let fence = t.record().unwrap();
    fence.wait(std::time::Duration::from_secs(1)).unwrap();
    assert_eq!(world.device_ns(), 15, "what came later is not waited for");
    drop((x, fence, s, t));
    world.end();
}

#[test]
fn wait_stream_proves_the_order_to_the_allocator() {
    let world = World::timed();
    let [s, t] = world.streams();
    let x = world.bytes(&s, granules(1));
    let at = address(&x);
    world.busy(&t, &x, 10);
    drop(x);
    assert_ne!(address(&world.bytes(&s, granules(1))), at, "in use on the other stream");
    s.wait_stream(&t).unwrap();
    let again = world.bytes(&s, granules(2) - 1);
    assert_eq!((address(&again), world.stats().host_stalls), (at, 0), "ordered behind the use");
    drop((again, s, t));
    world.end();
}

#[test]
fn wait_stream_of_itself_and_of_strangers() {
    let (world, other) = (World::timed(), World::timed());
    let [s] = world.streams();
    s.wait_stream(&s.clone()).unwrap();
    assert_eq!(world.stats().fences_recorded, 0, "a stream comes after itself");
    let refused = s.wait_stream(&other.allocator.default_stream());
    assert_eq!(refused, Err(highwater::StreamError::OtherAllocator { what: "the stream" }));
    assert_eq!(other.stats().fences_recorded, 0);
    drop(s);
    world.end();
    other.end();
}
