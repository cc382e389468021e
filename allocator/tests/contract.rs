//! The first promises: usable at once, aligned, reused when it is safe and not before; frees that never wait; the same
//! addresses every time; and the statistics.

use std::sync::{Arc, Mutex};
use std::thread;

use highwater::device::sim::{SimConfig, SimDevice};
use highwater::device::{Cost, Device, DeviceCall};
use highwater::{Allocator, Buffer, PointerError, Settings};

use crate::world::{GRANULE, HookedDevice, MEMORY, Rng, World, address, granules, ticks};

#[test]
fn a_block_is_usable_at_once_aligned_and_its_own() {
    let world = World::timed();
    let [s] = world.streams();
    let before = world.counters();
    let sizes = [1, 511, 512, 513, 100_000, granules(1)];
    let buffers: Vec<Buffer<u8>> = sizes.iter().map(|&bytes| world.bytes(&s, bytes)).collect();
    for (index, buffer) in buffers.iter().enumerate() {
        assert!(address(buffer).is_multiple_of(512), "{buffer:?}");
        world.fill(&s, buffer, index as u8, 10);
    }
    for (index, buffer) in buffers.iter().enumerate() {
        world.expect(&s, buffer, index as u8, 10);
    }
    let after = world.counters();
    for call in [DeviceCall::Record, DeviceCall::Query, DeviceCall::Wait, DeviceCall::Synchronize] {
        assert_eq!(after.of(call), before.of(call), "{call}");
    }
    drop(buffers);
    drop(s);
    world.end();
}

#[test]
fn zero_elements_are_a_valid_request_everywhere() {
    let world = World::timed();
    let [s, t] = world.streams();
    let nothing = world.bytes(&s, 0);
    assert!(nothing.is_empty() && nothing.bytes() == 0 && nothing.device_address().0 == 0);
    world.fill(&s, &nothing, 1, 5);
    world.expect(&t, &nothing, 1, 5);
    nothing.record_stream(&t);
    let host = world.allocator.pinned::<u8>(0);
    s.copy_to_device(&host, &nothing).unwrap();
    s.copy_to_host(&nothing, &host).unwrap();
    assert_eq!(world.stats().reserved.now, 0);
    drop((nothing, host, s, t));
    world.end();
}

#[test]
fn a_request_that_no_number_holds_is_an_error() {
    let world = World::timed();
    let [s] = world.streams();
    let error = s.alloc::<u64>(usize::MAX).unwrap_err();
    assert_eq!(error.to_string(), format!("{} elements of 8 bytes are more than 2^64 bytes", usize::MAX));
    assert!(s.alloc::<u8>(usize::MAX).is_err());
    drop(s);
    world.end();
}

#[test]
fn freed_and_unused_elsewhere_it_is_the_streams_again_at_once() {
    let world = World::timed();
    let [s] = world.streams();
    let first = world.bytes(&s, 1000);
    let at = address(&first);
    world.fill(&s, &first, 1, 100);
    drop(first);
    let second = world.bytes(&s, 1000);
    assert_eq!(address(&second), at, "the work is queued, and comes first on the same stream");
    assert_eq!(world.met_at("own_free"), 1);
    drop((second, s));
    world.end();
}

#[test]
fn used_elsewhere_it_is_given_out_only_when_the_use_is_complete() {
    let world = World::timed();
    let [s, t] = world.streams();
    let first = world.bytes(&s, granules(1));
    let at = address(&first);
    world.busy(&t, &first, 100);
    drop(first);
    world.check();
    assert_eq!(world.stats().pending_bytes, GRANULE);
    assert_eq!(world.stats().pending_bytes_by_stream["t"], GRANULE);
    let others = [0, 99].map(|ns| {
        world.pass(ns);
        world.bytes(&s, granules(1))
    });
    assert!(others.iter().all(|other| address(other) != at));
    world.pass(1);
    let again = world.bytes(&s, granules(1));
    assert_eq!((address(&again), world.met_at("own_pending")), (at, 1));
    drop((others, again, s, t));
    world.end();
}

#[test]
fn used_elsewhere_and_waited_for_it_is_the_streams_again_at_once() {
    let world = World::timed();
    let [s, t] = world.streams();
    let first = world.bytes(&s, 1000);
    let at = address(&first);
    world.fill(&t, &first, 3, 100);
    s.wait(&t.record().unwrap()).unwrap();
    drop(first);
    let again = world.bytes(&s, 1000);
    assert_eq!(address(&again), at, "what S does with it comes after what T does");
    world.fill(&s, &again, 4, 1);
    world.expect(&s, &again, 4, 1);
    assert_eq!(world.stats().pending_bytes, 0);
    drop((again, s, t));
    world.end();
}

#[test]
fn a_wait_put_after_the_free_gives_the_memory_back_too() {
    let world = World::timed();
    let [s, t] = world.streams();
    let first = world.bytes(&s, granules(1));
    let at = address(&first);
    world.fill(&t, &first, 3, 100);
    drop(first);
    s.wait(&t.record().unwrap()).unwrap();
    let again = world.bytes(&s, granules(1));
    assert_eq!((address(&again), world.met_at("own_pending")), (at, 1));
    world.fill(&s, &again, 4, 1);
    world.expect(&s, &again, 4, 1);
    drop((again, s, t));
    world.end();
}

#[test]
fn a_free_from_another_thread_does_not_wait_for_a_heap_that_is_held() {
    let sim = SimDevice::new(ticks());
    let device = HookedDevice::new(sim.clone());
    let allocator = Allocator::with_settings(device.clone(), Settings::default()).unwrap();
    let (s, t) = (allocator.create_stream("s").unwrap(), allocator.create_stream("t").unwrap());
    let [given, pending]: [Buffer<u8>; 2] = [1, 1].map(|count| s.alloc(granules(count)).unwrap());
    let at = address(&given);
    t.launch("busy", Cost::exact(100)).read(&pending).submit().unwrap();
    drop(pending);
    // The heap of `s` is held while it asks what has become of the pending free. If the free waited for it, this would
    // hang.
    device.before(DeviceCall::Query, move || thread::spawn(move || drop(given)).join().unwrap());
    let again: Buffer<u8> = s.alloc(granules(1)).unwrap();
    assert!(device.has_run());
    assert_eq!(allocator.memory_stats().live.now, again.bytes());
    allocator.check().unwrap();
    assert_eq!(address(&again), at, "the message was delivered before the request looked again");
    drop((again, s, t, allocator));
    assert_eq!(sim.memory_info().unwrap().free, MEMORY);
}

/// A random program; the addresses that it gets.
fn addresses(config: SimConfig, seed: u64) -> Vec<u64> {
    let world = World::new(config, Settings::builder());
    let streams = world.streams::<3>();
    let mut rng = Rng::new(seed);
    let mut live: Vec<Buffer<u8>> = Vec::new();
    let mut seen = Vec::new();
    for _ in 0..400 {
        let stream = &streams[rng.below(3)];
        match rng.below(6) {
            0..3 => match stream.alloc(1 + rng.below(granules(2))) {
                Ok(buffer) => {
                    seen.push(address(&buffer));
                    live.push(buffer);
                }
                Err(_) => live.clear(),
            },
            3 if !live.is_empty() => world.busy(stream, &live[rng.below(live.len())], rng.below(50) as u64),
            4 if !live.is_empty() => drop(live.swap_remove(rng.below(live.len()))),
            _ => world.pass(rng.below(40) as u64),
        }
    }
    drop((live, streams));
    world.end();
    seen
}

#[test]
fn the_same_calls_and_completions_give_the_same_addresses() {
    for seed in 0..4 {
        let first = addresses(ticks(), seed);
        assert!(first.len() > 100);
        assert_eq!(first, addresses(ticks(), seed));
        let adversarial = crate::world::adversarial(seed);
        assert_eq!(addresses(adversarial.clone(), seed), addresses(adversarial, seed));
    }
}

#[test]
fn raw_pointers_know_what_they_are() {
    let world = World::timed();
    let [s, t] = world.streams();
    let raw = world.allocator.alloc_raw(&s, 1000).unwrap();
    assert!(raw.0.is_multiple_of(512));
    let nothing = world.allocator.alloc_raw(&s, 0).unwrap();
    assert_eq!(nothing.0, 0);
    world.allocator.record_stream_raw(nothing, &t).unwrap();
    world.allocator.free_raw(nothing).unwrap();
    world.allocator.free_raw(nothing).unwrap();

    world.idle(&t, 100);
    world.allocator.record_stream_raw(raw, &t).unwrap();
    world.allocator.free_raw(raw).unwrap();
    assert_eq!(world.stats().pending_bytes, 1024);
    let unknown = PointerError::Unknown { address: raw.0 };
    assert_eq!(world.allocator.free_raw(raw), Err(unknown.clone()), "freed twice");
    assert_eq!(world.allocator.record_stream_raw(raw, &t), Err(unknown));
    let inside = raw.offset(8);
    assert_eq!(world.allocator.free_raw(inside), Err(PointerError::Unknown { address: inside.0 }));
    drop((s, t));
    world.end();
}

#[test]
fn statistics_have_pytorchs_names_and_add_up() {
    let world = World::timed();
    let [s, t] = world.streams();
    let kept = world.bytes(&s, 1000);
    let used = world.bytes(&s, 3000);
    world.busy(&t, &used, 100);
    drop(used);
    let map = world.stats().to_map();
    let expected = [
        ("requested_bytes.all.current", 1000),
        ("requested_bytes.all.peak", 4000),
        ("requested_bytes.all.allocated", 4000),
        ("requested_bytes.all.freed", 3000),
        ("allocated_bytes.all.current", 1024),
        ("active_bytes.all.current", 1024 + 3072),
        ("reserved_bytes.all.current", GRANULE),
        ("inactive_split_bytes.all.current", GRANULE - 1024 - 3072),
        ("allocation.all.current", 1),
        ("allocation.all.freed", 1),
        ("num_device_alloc", 1),
        ("num_device_free", 0),
        ("num_ooms", 0),
        ("pending_bytes", 3072),
        ("pending_bytes_by_stream.t", 3072),
        ("requests_by_rung.grow", 1),
        ("requests_by_rung.own_free", 1),
        ("host_stalls", 0),
        ("waits_inserted", 0),
    ];
    for (key, value) in expected {
        assert_eq!(map.get(key), Some(&value), "{key}");
    }
    world.allocator.reset_peak_memory_stats();
    assert_eq!(world.stats().live.peak, 1000);
    drop((kept, s, t));
    world.end();
}

#[test]
fn a_limit_below_the_devices_memory_holds() {
    let limit = 5 * GRANULE + 100;
    let world = World::with(Settings::builder().memory_limit_bytes(limit));
    let [s] = world.streams();
    let held = world.bytes(&s, granules(5));
    let report = world.no_room(&s, 1);
    assert_eq!((report.capacity, report.physical, report.live), (limit, 5 * GRANULE, 5 * GRANULE));
    drop((held, s));
    world.end();
}

#[test]
fn buffers_go_from_thread_to_thread_and_every_byte_stays_right() {
    let world = Arc::new(World::new(SimConfig { memory_bytes: 4 * MEMORY, ..ticks() }, Settings::builder()));
    let (threads, rounds) = (4, 200);
    /// What a thread finds: buffers, each with the fence after its last write and the byte that it is full of.
    type Letters = Mutex<Vec<(Buffer<u8>, highwater::Fence, u8)>>;
    let boxes: Arc<Vec<Letters>> = Arc::new((0..threads).map(|_| Mutex::default()).collect());
    thread::scope(|scope| {
        for thread in 0..threads {
            let (world, boxes) = (world.clone(), boxes.clone());
            scope.spawn(move || {
                let stream = world.allocator.create_stream("own").unwrap();
                let mut rng = Rng::new(thread as u64);
                for round in 0..rounds {
                    let buffer = world.bytes(&stream, 1 + rng.below(8000));
                    let value = (round * threads + thread) as u8;
                    world.fill(&stream, &buffer, value, 5);
                    let filled = stream.record().unwrap();
                    boxes[rng.below(threads)].lock().unwrap().push((buffer, filled, value));
                    let received = std::mem::take(&mut *boxes[thread].lock().unwrap());
                    for (buffer, filled, value) in received {
                        stream.wait(&filled).unwrap();
                        world.expect(&stream, &buffer, value, 5);
                    }
                    if round % 16 == 0 {
                        world.pass(50);
                        world.allocator.trim(MEMORY);
                    }
                }
            });
        }
    });
    boxes.iter().for_each(|waiting| waiting.lock().unwrap().clear());
    Arc::into_inner(world).expect("the threads have ended").end();
}
