//! Things end in any order, on any thread; streams come and go.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use highwater::device::sim::{SimConfig, SimDevice};
use highwater::device::{Address, Device, DeviceCall};
use highwater::{Allocator, Buffer, Settings, StreamError};

use crate::world::{GRANULE, HookedDevice, MEMORY, World, address, granules, still, ticks};

fn free_bytes(device: &SimDevice) -> u64 {
    device.memory_info().unwrap().free
}

/// How many places there are: streams that the history knows.
fn places(world: &World) -> usize {
    world.allocator.snapshot().devices[0].notes.streams.len()
}

#[test]
fn the_allocator_may_go_first_and_the_fences_last() {
    let World { device, allocator, .. } = World::timed();
    let (s, t) = (allocator.create_stream("s").unwrap(), allocator.create_stream("t").unwrap());
    drop(allocator);
    let x: Buffer<u8> = s.alloc(1000).unwrap();
    let y: Buffer<u8> = t.alloc(granules(2)).unwrap();
    s.launch("busy", highwater::device::Cost::exact(100)).write(&x).read(&y).submit().unwrap();
    let fence = s.record().unwrap();
    drop((s, t));
    assert_eq!(device.counters().of(DeviceCall::DestroyStream), 0, "buffers keep their streams");
    assert_eq!(x.stream().name(), "s");
    drop(x);
    drop(y);
    assert_eq!(device.counters().of(DeviceCall::DestroyStream), 2);
    assert!(!fence.is_complete().unwrap());
    fence.wait(Duration::from_secs(1)).unwrap();
    assert!(free_bytes(&device) < MEMORY);
    drop(fence);
    assert_eq!(free_bytes(&device), MEMORY);
}

#[test]
fn every_order_of_dropping_is_fine() {
    // The digits of `order` choose what goes next.
    for order in 0..120 {
        let World { device, allocator, .. } = World::timed();
        let (s, t) = (allocator.create_stream("s").unwrap(), allocator.create_stream("t").unwrap());
        let x: Buffer<u8> = s.alloc(granules(1)).unwrap();
        t.launch("busy", highwater::device::Cost::exact(100)).read(&x).submit().unwrap();
        let fence = t.record().unwrap();
        let mut things: Vec<Box<dyn Send>> =
            vec![Box::new(allocator), Box::new(s), Box::new(t), Box::new(x), Box::new(fence)];
        let mut rest = order;
        while !things.is_empty() {
            let next = rest % things.len();
            rest /= things.len();
            drop(things.remove(next));
        }
        assert_eq!(free_bytes(&device), MEMORY, "order {order}");
        assert_eq!(device.counters().of(DeviceCall::DestroyStream), 2);
    }
}

#[test]
fn the_end_of_an_allocator_waits_for_its_memory_and_no_longer_than_it_may() {
    let world = World::timed();
    let [s] = world.streams();
    let x = world.bytes(&s, granules(2));
    world.fill(&s, &x, 1, 100);
    drop((x, s));
    let device = world.device.clone();
    world.close();
    assert_eq!(device.now_ns(), 100);

    let settings = still().host_wait_timeout(Duration::from_nanos(40));
    let World { device, allocator, .. } = World::with(settings);
    let s = allocator.create_stream("s").unwrap();
    let x: Buffer<u8> = s.alloc(granules(2)).unwrap();
    s.launch("long", highwater::device::Cost::exact(100)).write(&x).submit().unwrap();
    drop((x, s, allocator));
    assert_eq!((device.now_ns(), free_bytes(&device)), (40, MEMORY - 2 * GRANULE), "left mapped: it is in use");
}

#[test]
fn an_allocator_may_end_while_a_stream_of_its_device_captures() {
    let World { device, allocator, .. } = World::timed();
    let other = Allocator::with_settings(device.clone(), Settings::default()).unwrap();
    let capture = other.default_stream().begin_capture().unwrap();
    let s = allocator.create_stream("s").unwrap();
    drop(s.alloc::<u8>(1000).unwrap());
    drop((s, allocator));
    drop(capture.end().expect("the end spoilt nothing"));
}

#[test]
fn threads_may_end_before_what_they_made() {
    let world = World::timed();
    let buffers: Vec<Buffer<u8>> = thread::scope(|scope| {
        let make = |index: usize| {
            let world = &world;
            move || {
                let stream = world.allocator.create_stream(&format!("thread {index}")).unwrap();
                let buffer = world.bytes(&stream, 1000 * (index + 1));
                world.fill(&stream, &buffer, index as u8, 50);
                buffer
            }
        };
        let threads: Vec<_> = (0..4).map(|index| scope.spawn(make(index))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let [s] = world.streams();
    for (index, buffer) in buffers.iter().enumerate() {
        s.wait(&buffer.stream().record().unwrap()).unwrap();
        world.expect(&s, buffer, index as u8, 1);
    }
    drop((buffers, s));
    world.end();
}

#[test]
fn a_thousand_streams_use_the_same_places_and_memory() {
    let world = World::timed();
    let [s] = world.streams();
    for round in 0..1000u32 {
        let stream = world.allocator.create_stream(&format!("stream {round}")).unwrap();
        let (own, of_s) = (world.bytes(&stream, granules(2)), world.bytes(&s, 1000));
        world.fill(&stream, &own, round as u8, 10);
        world.fill(&stream, &of_s, round as u8, 10);
        drop((own, of_s, stream));
        world.pass(30);
    }
    assert_eq!(places(&world), 3, "the default stream, s and one that is taken over again and again");
    assert_eq!(world.stats().handles_created, 3, "one of s, and two that go from stream to stream");
    let calls = world.counters();
    assert_eq!((calls.of(DeviceCall::CreateStream), calls.of(DeviceCall::DestroyStream)), (1001, 1000));
    drop(s);
    world.end();
}

#[test]
fn a_stream_ends_when_its_last_handle_goes_beside_its_last_free() {
    let world = World::timed();
    for _ in 0..500 {
        let [s] = world.streams();
        let last = world.bytes(&s, 4096);
        drop(world.bytes(&s, 4096));
        thread::scope(|scope| {
            scope.spawn(move || drop(last));
            drop(s);
        });
        assert_eq!(places(&world), 2, "the place of a stream that is gone is used again");
    }
    world.end();
}

#[test]
fn a_place_is_taken_over_only_when_its_work_is_complete() {
    let world = World::timed();
    let [s, t] = world.streams();
    let x = world.bytes(&s, granules(1));
    world.fill(&s, &x, 1, 100);
    drop((x, s));
    let early = world.allocator.create_stream("early").unwrap();
    assert_eq!(places(&world), 4);
    world.pass(100);
    let late = world.allocator.create_stream("late").unwrap();
    assert_eq!(places(&world), 4);
    let y = world.bytes(&late, granules(1));
    assert_eq!(world.stats().handles_created, 1, "the memory of s");
    world.fill(&t, &y, 2, 1);
    assert_eq!(world.stats().waits_inserted, 0, "it is seen complete");
    drop((y, early, late, t));
    world.end();
}

#[test]
fn the_pending_use_of_a_stream_that_is_gone_completes() {
    let world = World::timed();
    let [s, t] = world.streams();
    let (recorded, launched) = (world.bytes(&s, granules(1)), world.bytes(&s, granules(1)));
    world.busy(&t, &launched, 100);
    recorded.record_stream(&t);
    drop(t);
    drop((recorded, launched));
    assert_eq!(world.stats().pending_bytes, 2 * GRANULE);
    world.pass(100);
    let again = world.bytes(&s, granules(2));
    assert_eq!((world.met_at("own_pending"), world.stats().handles_created), (1, 2));
    drop((again, s));
    world.end();
}

#[test]
fn work_that_nobody_saw_counts_after_its_stream_is_gone() {
    let world = World::timed();
    let [s, t] = world.streams();
    let used = world.bytes(&s, granules(1));
    let at = Address(address(&used));
    world.fill(&s, &used, 7, 0);
    t.wait(&s.record().unwrap()).unwrap();
    world.idle(&t, 1);
    let earlier = t.record().unwrap();
    world.raw_read(&t, at, used.bytes(), 7, 100);
    used.record_stream(&t);
    drop(t);
    world.pass(50);
    assert!(earlier.is_complete().unwrap());
    drop(used);
    assert_eq!(world.stats().pending_bytes, GRANULE);
    let places_before = places(&world);
    let next = world.allocator.create_stream("next").unwrap();
    assert_eq!(places(&world), places_before + 1, "t still works");
    let other = world.bytes(&s, granules(1));
    assert_ne!(address(&other), at.0);
    drop((earlier, other, next, s));
    world.end();
}

#[test]
fn asking_for_the_memory_of_a_stream_that_is_gone_does_not_hold_its_place() {
    let world = World::timed();
    let [s, t] = world.streams();
    let x = world.bytes(&s, granules(1));
    world.busy(&t, &x, 100);
    drop((x, s));
    world.pass(50);
    assert_eq!(world.allocator.trim(0), GRANULE, "t still uses it");
    world.pass(50);
    let places_before = places(&world);
    let next = world.allocator.create_stream("next").unwrap();
    assert_eq!(places(&world), places_before, "the place of s was taken over");
    drop((next, t));
    world.end();
}

#[test]
fn memory_of_a_stream_that_is_gone_is_waited_for_by_others() {
    let world = World::timed();
    let [s, t, u] = world.streams();
    let x = world.bytes(&s, granules(16));
    world.busy(&t, &x, 100);
    drop((x, s));
    let y = world.bytes(&u, granules(16));
    assert_eq!((world.met_at("host_wait_others"), world.device_ns()), (1, 100));
    let places_before = places(&world);
    let next = world.allocator.create_stream("next").unwrap();
    assert_eq!(places(&world), places_before, "and its place can be taken over");
    drop((y, next, t, u));
    world.end();
}

#[test]
fn a_free_that_meets_the_end_of_a_stream_completes() {
    let world = World::new(SimConfig { memory_bytes: 64 << 20, ..ticks() }, still());
    let [s] = world.streams();
    for _ in 0..500 {
        let user = world.allocator.create_stream("user").unwrap();
        let x = world.bytes(&s, 1000);
        x.record_stream(&user);
        let together = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                together.wait();
                drop(user);
            });
            together.wait();
            drop(x);
        });
    }
    assert!(places(&world) <= 3, "{} places: some could not be taken over", places(&world));
    world.allocator.trim(MEMORY);
    assert_eq!(world.stats().pending_bytes, 0);
    drop(s);
    world.end();
}

#[test]
fn a_stream_that_cannot_be_closed_is_closed_later() {
    for call in [DeviceCall::DestroyStream, DeviceCall::Record] {
        let world = World::timed();
        let [s, t] = world.streams();
        let x = world.bytes(&s, granules(1));
        world.device.fail_nth(call, 1);
        drop((x, s));
        let next = world.allocator.create_stream("next").unwrap();
        assert_eq!(places(&world), 3, "{call}");
        drop((next, t));
        let calls = world.counters();
        let destroyed = calls.of(DeviceCall::DestroyStream) - u64::from(call == DeviceCall::DestroyStream);
        assert_eq!(destroyed, calls.of(DeviceCall::CreateStream), "{call}");
        world.end();
    }
}

#[test]
fn the_end_of_an_allocator_closes_streams_that_could_not_be_closed() {
    let world = World::timed();
    let [s] = world.streams();
    world.device.fail_nth(DeviceCall::DestroyStream, 1);
    drop(s);
    let device = world.device.clone();
    world.end();
    assert_eq!(device.counters().of(DeviceCall::DestroyStream), 2, "once in vain, once at the end");
}

#[test]
fn host_memory_is_busy_until_its_copies_are_complete_whatever_fails() {
    let world = World::timed();
    let [s, t] = world.streams();
    let (host, buffer) = (world.allocator.pinned::<u8>(1000), world.bytes(&s, 1000));
    world.fill(&s, &buffer, 7, 100);
    world.device.fail_nth(DeviceCall::Record, 1);
    s.copy_to_host(&buffer, &host).expect("the copy itself is fine");
    world.device.fail_nth(DeviceCall::Record, 1);
    assert!(host.is_ready().is_err(), "the fence is still owed, and fails again");
    assert_eq!(host.read(|_| ()), Err(StreamError::HostBufferBusy));
    let doing = "waiting for the copies of a host buffer".to_owned();
    let waited = Duration::from_nanos(60);
    assert_eq!(host.wait(waited), Err(StreamError::TimedOut { doing, waited }));
    t.wait(&s.record().unwrap()).unwrap();
    for _ in 0..1000 {
        t.copy_to_device(&host, world.bytes(&t, 1000).slice(..)).unwrap();
    }
    drop((s, t));
    host.wait(Duration::from_secs(1)).unwrap();
    assert_eq!(world.device_ns(), 100);
    assert_eq!(host.read(|bytes| bytes.to_vec()).unwrap(), vec![7; 1000]);
    host.write(|bytes| bytes.fill(9)).unwrap();
    drop((host, buffer));
    world.end();
}

#[test]
fn fences_of_copies_that_nobody_waits_for_do_not_pile_up() {
    let sim = SimDevice::new(ticks());
    let device = HookedDevice::new(sim.clone());
    let allocator = Allocator::with_settings(device.clone(), Settings::default()).unwrap();
    let s = allocator.create_stream("s").unwrap();
    let (host, buffer) = (allocator.pinned::<u8>(1000), s.alloc::<u8>(1000).unwrap());
    for _ in 0..1000 {
        s.launch("work", highwater::device::Cost::exact(10)).read(&buffer).submit().unwrap();
        s.copy_to_device(&host, &buffer).unwrap();
        sim.host_work(10);
    }
    assert!(device.live_fences() < 4, "{}", device.live_fences());
    drop((host, buffer, s, allocator));
    assert_eq!(device.live_fences(), 0);
}

#[test]
fn pageable_copies_block_and_leave_nothing_under_way() {
    let world = World::timed();
    let [s] = world.streams();
    let (host, buffer) = (world.allocator.pageable::<u8>(1000), world.bytes(&s, 1000));
    world.fill(&s, &buffer, 7, 100);
    s.copy_to_host(&buffer, &host).unwrap();
    assert_eq!(world.device_ns(), 100);
    assert_eq!(host.read(|bytes| bytes.to_vec()).unwrap(), vec![7; 1000]);
    let short = world.allocator.pageable::<u8>(10);
    let lengths = StreamError::LengthMismatch { what: "source and destination of a copy", left: 1000, right: 10 };
    assert_eq!(s.copy_to_host(&buffer, &short), Err(lengths));
    drop((host, short, buffer, s));
    world.end();
}

#[test]
fn a_raw_block_keeps_its_stream_until_it_is_freed() {
    let world = World::timed();
    let [s] = world.streams();
    let raw = world.allocator.alloc_raw(&s, 1000).unwrap();
    drop(s);
    assert_eq!(world.counters().of(DeviceCall::DestroyStream), 0);
    world.allocator.free_raw(raw).unwrap();
    assert_eq!(world.counters().of(DeviceCall::DestroyStream), 1);
    world.end();
}

#[test]
fn buffers_may_be_dropped_by_a_pressure_callback_on_another_thread() {
    let world = World::timed();
    let [s] = world.streams();
    let held = Arc::new(Mutex::new(Some(world.bytes(&s, granules(16)))));
    let given = held.clone();
    let guard = world.allocator.on_pressure(move |_| {
        let buffer = given.lock().unwrap().take();
        thread::spawn(move || drop(buffer)).join().unwrap();
    });
    let taken = world.bytes(&s, granules(16));
    assert_eq!(world.met_at("callbacks"), 1);
    let at = address(&taken);
    assert!(at > 0);
    drop((guard, taken, s));
    world.end();
}

#[test]
fn an_order_that_a_dead_stream_only_submitted_is_not_inherited() {
    let world = World::timed();
    let [main, waits] = world.streams();
    let former = world.bytes(&main, granules(1));
    world.fill(&main, &former, 1, 100);
    drop(former);
    let again = world.bytes(&main, granules(1));
    // Comes after the work of `main`, does nothing itself, and goes away before that work is done.
    waits.wait(&main.record().unwrap()).unwrap();
    drop(waits);
    let next = world.allocator.create_stream("next").unwrap();
    world.fill(&next, &again, 2, 1);
    world.expect(&next, &again, 2, 1);
    drop((again, next, main));
    world.end();
}

#[test]
fn no_copy_begins_while_somebody_looks() {
    let world = World::timed();
    let [s, _t] = world.streams();
    let (host, buffer) = (world.allocator.pinned::<u8>(1000), world.bytes(&s, 1000));
    let (looking, begun) = (Barrier::new(2), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            looking.wait();
            // The simulated device itself would hold a copy to the host back.
            s.copy_to_device(&host, &buffer).unwrap();
            begun.store(true, Ordering::SeqCst);
        });
        let look = |_: &[u8]| {
            looking.wait();
            // The other thread has many chances to begin.
            (0..10_000).for_each(|_| thread::yield_now());
            assert!(!begun.load(Ordering::SeqCst), "a copy began");
        };
        host.read(look).unwrap();
    });
    assert!(begun.load(Ordering::SeqCst));
    host.wait(Duration::from_secs(1)).unwrap();
}
