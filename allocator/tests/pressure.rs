//! Pressure callbacks: what they may do, and what they get.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use highwater::{Buffer, PressureGuard};

use crate::world::{GRANULE, GRANULES, World, address, granules};

type Held = Arc<Mutex<Vec<Buffer<u8>>>>;

#[test]
fn a_callback_may_free_what_the_request_needs() {
    let world = World::timed();
    let [s] = world.streams();
    let held: Held = Arc::new(Mutex::new(vec![world.bytes(&s, granules(GRANULES))]));
    let (given, needed) = (held.clone(), Arc::new(AtomicU64::new(0)));
    let told = needed.clone();
    let guard = world.allocator.on_pressure(move |bytes| {
        told.store(bytes, Ordering::Relaxed);
        given.lock().unwrap().clear();
    });
    let taken = world.bytes(&s, granules(3));
    assert_eq!((world.met_at("callbacks"), needed.load(Ordering::Relaxed)), (1, 3 * GRANULE));
    drop((guard, taken, held, s));
    world.end();
}

#[test]
fn what_a_callback_frees_is_searched_even_when_others_used_it() {
    let world = World::timed();
    let [s, t] = world.streams();
    let buffer = world.bytes(&s, granules(GRANULES));
    world.busy(&t, &buffer, 10);
    world.pass(10);
    let held: Held = Arc::new(Mutex::new(vec![buffer]));
    let given = held.clone();
    let guard = world.allocator.on_pressure(move |_| given.lock().unwrap().clear());
    let taken = world.bytes(&s, granules(GRANULES));
    assert_eq!((world.met_at("callbacks"), world.stats().host_stalls), (1, 0));
    drop((guard, taken, s, t));
    world.end();
}

#[test]
fn what_a_callback_waits_for_is_searched() {
    let world = World::timed();
    let [s, t] = world.streams();
    // Otherwise `s` is made to wait for it.
    t.mark_open();
    let buffer = world.bytes(&s, granules(GRANULES));
    world.busy(&t, &buffer, 10);
    let done = t.record().unwrap();
    drop(buffer);
    let guard = world.allocator.on_pressure(move |_| done.wait(Duration::from_secs(1)).unwrap());
    let taken = world.bytes(&s, granules(GRANULES));
    assert_eq!((world.met_at("callbacks"), world.stats().host_stalls), (1, 0));
    drop((guard, taken, s, t));
    world.end();
}

#[test]
fn a_callback_may_allocate_on_the_same_stream_and_is_not_asked_again_for_that() {
    let world = World::timed();
    let [s] = world.streams();
    let full = world.bytes(&s, granules(GRANULES));
    let calls = Arc::new(AtomicU64::new(0));
    let (counted, stream) = (calls.clone(), s.clone());
    let guard = world.allocator.on_pressure(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        assert!(stream.alloc::<u8>(granules(1)).is_err(), "there is no room for it");
    });
    world.no_room(&s, granules(1));
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    drop(full);
    drop(world.bytes(&s, granules(1)));
    drop((guard, s));
    world.end();
}

#[test]
fn callbacks_that_allocate_are_never_asked_by_each_other() {
    let world = World::timed();
    let [s] = world.streams();
    let full = world.bytes(&s, granules(GRANULES));
    let calls = Arc::new(AtomicU64::new(0));
    let greedy = || {
        let (counted, stream) = (calls.clone(), s.clone());
        world.allocator.on_pressure(move |_| {
            assert!(counted.fetch_add(1, Ordering::Relaxed) < 4, "a callback is asked while another one runs");
            assert!(stream.alloc::<u8>(granules(1)).is_err(), "there is no room for it");
        })
    };
    let guards = [greedy(), greedy()];
    for _ in 0..2 {
        world.no_room(&s, granules(1));
    }
    assert_eq!(calls.load(Ordering::Relaxed), 4);
    drop((guards, full, s));
    world.end();
}

#[test]
fn a_panic_in_a_callback_goes_to_the_caller_and_breaks_nothing() {
    let world = World::timed();
    let [s] = world.streams();
    let full = world.bytes(&s, granules(GRANULES));
    let guard = world.allocator.on_pressure(|_| panic!("not today"));
    for _ in 0..2 {
        let panic = catch_unwind(AssertUnwindSafe(|| s.alloc::<u8>(granules(1)))).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"not today"));
        world.check();
    }
    drop(guard);
    world.no_room(&s, granules(1));
    drop(full);
    let taken = world.bytes(&s, granules(1));
    drop((taken, s));
    world.end();
}

#[test]
fn a_callback_may_begin_and_end_a_capture() {
    let world = World::timed();
    let [s, t] = world.streams();
    let full = world.bytes(&s, granules(GRANULES));
    let (open, stream) = (Arc::new(Mutex::new(None)), t.clone());
    let slot = open.clone();
    let guard = world.allocator.on_pressure(move |_| *slot.lock().unwrap() = Some(stream.begin_capture().unwrap()));
    let before = world.counters();
    world.no_room(&s, granules(1));
    let after = world.counters();
    assert_eq!(before.host_synchronizations, after.host_synchronizations);
    open.lock().unwrap().take().unwrap().end().expect("the rungs above touched no fence");
    drop((guard, full, s, t));
    world.end();
}

#[test]
fn callbacks_are_asked_in_order_until_their_guards_are_gone() {
    let world = World::timed();
    let [s] = world.streams();
    let full = world.bytes(&s, granules(GRANULES));
    let asked: Arc<Mutex<Vec<u32>>> = Arc::default();
    let register = |number| {
        let asked = asked.clone();
        world.allocator.on_pressure(move |_| asked.lock().unwrap().push(number))
    };
    let [first, second, third] = [register(1), register(2), register(3)];
    world.no_room(&s, granules(1));
    drop(second);
    world.no_room(&s, granules(1));
    assert_eq!(*asked.lock().unwrap(), [1, 2, 3, 1, 3]);
    drop((first, third, full, s));
    world.end();
}

#[test]
fn a_callback_may_own_anything_even_another_ones_guard() {
    let world = World::timed();
    let [s] = world.streams();
    let inner: PressureGuard = world.allocator.on_pressure(|_| {});
    let buffer = world.bytes(&s, 1000);
    let at = address(&buffer);
    let (stream, allocator) = (s.clone(), world.allocator.clone());
    let outer = world.allocator.on_pressure(move |_| {
        let _ = (&inner, &buffer, &stream, &allocator);
    });
    drop(outer);
    let again = world.bytes(&s, 1000);
    assert_eq!(address(&again), at);
    drop((again, s));
    world.end();
}
