//! Free memory that moves: within a heap, and from stream to stream.

use highwater::device::sim::SimConfig;
use highwater::device::{CostModel, DeviceCall};
use highwater::{Buffer, Policy, Settings};

use crate::world::{GRANULE, GRANULES, Rng, World, address, granules, ticks};

const ALL: u64 = GRANULES;

fn world() -> World {
    World::with(Settings::builder().page_time(1.0))
}

/// As many handles of the stream as there are values, one after the other, each filled with its value.
fn filled(world: &World, stream: &highwater::Stream, values: &[u8]) -> Vec<Buffer<u8>> {
    let fill = |&value| {
        let buffer = world.bytes(stream, granules(1));
        world.fill(stream, &buffer, value, 1);
        buffer
    };
    values.iter().map(fill).collect()
}

#[test]
fn scattered_handles_of_a_heap_are_brought_together_without_a_wait() {
    let world = world();
    let [s] = world.streams();
    let mut blocks = filled(&world, &s, &[0; ALL as usize]);
    for index in [14, 10, 6, 2] {
        drop(blocks.remove(index));
    }
    let before = world.counters();
    let joined = world.bytes(&s, granules(4));
    world.fill(&s, &joined, 9, 1);
    world.expect(&s, &joined, 9, 1);
    blocks.iter().for_each(|block| world.expect(&s, block, 0, 1));
    let after = world.counters();
    assert_eq!((world.met_at("move"), world.stats().pages_moved), (1, 4), "there is no room beside any of them");
    assert_eq!(after.of(DeviceCall::Create), before.of(DeviceCall::Create));
    assert_eq!((after.of(DeviceCall::Unmap), after.host_synchronizations), (0, 0));
    assert_eq!((world.stats().waits_inserted, world.stats().reserved.now), (0, ALL * GRANULE));
    drop((joined, blocks, s));
    world.end();
}

#[test]
fn memory_that_another_stream_has_freed_is_lent_while_its_last_use_still_runs() {
    let world = world();
    let [s, t] = world.streams();
    let used = world.bytes(&s, granules(ALL));
    world.fill(&s, &used, 1, 100);
    drop(used);
    let lent = world.bytes(&t, granules(ALL));
    world.fill(&t, &lent, 2, 10);
    world.expect(&t, &lent, 2, 1);
    assert_eq!((world.device_ns(), world.stats().host_stalls), (0, 0), "the host goes on");
    assert_eq!((world.met_at("order"), world.stats().waits_inserted), (1, 1));
    world.pass(1000);
    assert_eq!(world.stats().reserved.peak, ALL * GRANULE);
    drop((lent, s, t));
    world.end();
}

#[test]
fn a_third_stream_comes_after_both_former_owners() {
    let world = world();
    let [s, t, u] = world.streams();
    let used = world.bytes(&s, granules(ALL));
    world.fill(&s, &used, 1, 100);
    drop(used);
    let lent = world.bytes(&t, granules(ALL));
    // The first to touch it is neither its former nor its present owner.
    world.fill(&u, &lent, 3, 1);
    world.expect(&u, &lent, 3, 1);
    world.pass(1000);
    drop((lent, s, t, u));
    world.end();
}

#[test]
fn what_is_complete_moves_without_a_wait_and_so_does_what_is_proven() {
    for proven in [false, true] {
        let world = world();
        let [s, t] = world.streams();
        let used = world.bytes(&s, granules(ALL));
        world.fill(&s, &used, 1, 100);
        drop(used);
        if proven {
            t.wait(&s.record().unwrap()).unwrap();
        } else {
            world.pass(100);
        }
        let lent = world.bytes(&t, granules(ALL));
        world.fill(&t, &lent, 2, 1);
        world.expect(&t, &lent, 2, 1);
        assert_eq!((world.met_at("move"), world.stats().waits_inserted), (1, 0));
        drop((lent, s, t));
        world.end();
    }
}

#[test]
fn a_pair_of_streams_that_peak_in_turn_settles_to_no_driver_call() {
    let world = world();
    let [s, t] = world.streams();
    let mut calls = Vec::new();
    for round in 0..20u8 {
        for stream in [&s, &t] {
            let block = world.bytes(stream, granules(ALL - 2));
            world.fill(stream, &block, round, 10);
            world.expect(stream, &block, round, 1);
        }
        calls.push(world.counters().driver_memory_calls());
    }
    assert_eq!(calls[2], calls[19], "{calls:?}");
    let stats = world.stats();
    assert!(stats.pages_moved > stats.pages_remapped + 100, "{} came back", stats.pages_moved - stats.pages_remapped);
    assert_eq!(stats.reserved.peak, (ALL - 2) * GRANULE);
    drop((s, t));
    world.end();
}

#[test]
fn pending_memory_is_ordered_before_more_is_mapped_and_after_it_where_memory_is_preferred() {
    for (policy, created, rung) in [(Policy::Wait, 4, "order"), (Policy::Grow, 8, "grow")] {
        let world = World::with(Settings::builder().policy(policy).page_time(1.0));
        let [s, t] = world.streams();
        let used = world.bytes(&s, granules(4));
        world.busy(&t, &used, 100);
        drop(used);
        let again = world.bytes(&s, granules(4));
        world.fill(&s, &again, 1, 1);
        assert_eq!((world.stats().handles_created, world.device_ns()), (created, 0));
        assert_eq!(world.met_at(rung), if policy == Policy::Wait { 1 } else { 2 });
        drop((again, s, t));
        world.end();
    }
}

#[test]
fn scattered_pending_memory_is_brought_together_behind_its_waits() {
    let world = world();
    let [s, t] = world.streams();
    let mut blocks = filled(&world, &s, &[0; ALL as usize]);
    let pending: Vec<Buffer<u8>> = [12, 8, 4].map(|index| blocks.remove(index)).into();
    t.wait(&s.record().unwrap()).unwrap();
    pending.iter().for_each(|block| world.busy(&t, block, 100));
    drop(pending);
    let joined = world.bytes(&s, granules(3));
    world.fill(&s, &joined, 5, 1);
    world.expect(&s, &joined, 5, 1);
    assert_eq!((world.met_at("order"), world.stats().waits_inserted, world.device_ns()), (1, 1, 0));
    drop((joined, blocks, s, t));
    world.end();
}

#[test]
fn memory_of_open_streams_stays_where_it_is() {
    let world = world();
    let [s, t] = world.streams();
    s.mark_open();
    let used = world.bytes(&s, granules(ALL - 1));
    world.fill(&s, &used, 1, 100);
    drop(used);
    world.pass(100);
    let other = world.bytes(&t, granules(1));
    assert_eq!((world.stats().pages_moved, world.met_at("grow")), (0, 2));
    drop((other, s, t));
    world.end();
}

#[test]
fn not_even_within_its_heap_does_memory_of_an_open_stream_move() {
    let world = world();
    let [s] = world.streams();
    s.mark_open();
    let mut blocks = filled(&world, &s, &[0; 5]);
    drop((blocks.remove(3), blocks.remove(1)));
    let joined = world.bytes(&s, granules(2));
    assert_eq!((world.stats().pages_moved, world.stats().handles_created), (0, 7));
    drop((joined, blocks, s));
    world.pass(10);
    world.end();
}

#[test]
fn no_wait_for_memory_is_put_behind_an_open_stream() {
    let world = world();
    let [s, t, open] = world.streams();
    open.mark_open();
    world.idle(&open, 100);
    let used = world.bytes(&s, granules(ALL - 1));
    world.fill(&s, &used, 1, 1);
    s.wait(&open.record().unwrap()).unwrap();
    world.fill(&s, &used, 1, 1);
    drop(used);
    let other = world.bytes(&t, granules(1));
    assert_eq!((world.stats().pages_moved, world.stats().waits_inserted), (0, 0));
    drop((other, s, t, open));
    world.end();
}

#[test]
fn an_open_stream_chooses_the_same_addresses_whatever_is_free_elsewhere() {
    let offsets = |lent: bool| {
        let world = world();
        let [s, t] = world.streams();
        s.mark_open();
        drop(lent.then(|| world.bytes(&t, granules(3))));
        let blocks: Vec<Buffer<u8>> = [2, 1, 3, 1].map(|count| world.bytes(&s, granules(count))).into();
        assert_eq!(world.stats().pages_moved > 0, lent);
        let offsets: Vec<u64> = blocks.iter().map(|block| address(block) - address(&blocks[0])).collect();
        drop((blocks, s, t));
        world.end();
        offsets
    };
    assert_eq!(offsets(false), offsets(true));
}

#[test]
fn nothing_moves_while_a_stream_captures() {
    let world = world();
    let [s, t, u] = world.streams();
    drop(world.bytes(&s, granules(4)));
    let capture = u.begin_capture().unwrap();
    let other = world.bytes(&t, granules(4));
    assert_eq!((world.stats().pages_moved, world.stats().handles_created), (0, 8));
    drop(capture.end().unwrap());
    drop((other, s, t, u));
    world.end();
}

/// A graph may be launched at any time: its memory stays where it is until it is dropped.
#[test]
fn memory_that_a_graph_keeps_does_not_move() {
    let world = world();
    let [s, t] = world.streams();
    let capture = s.begin_capture().unwrap();
    drop(world.bytes(&s, granules(4)));
    let graph = capture.end().unwrap();
    let rest = world.bytes(&t, granules(ALL - 4));
    world.no_room(&t, granules(1));
    assert_eq!(world.stats().pages_moved, 0);
    drop(graph);
    let moved = world.bytes(&t, granules(4));
    assert_eq!((world.stats().pages_moved, world.stats().reserved.now), (4, ALL * GRANULE));
    drop((moved, rest, s, t));
    world.end();
}

#[test]
fn memory_in_use_through_an_old_mapping_is_not_unmapped() {
    let world = world();
    let [s, t] = world.streams();
    let used = world.bytes(&s, granules(ALL));
    world.fill(&s, &used, 1, 100);
    drop(used);
    drop(world.bytes(&t, granules(ALL)));
    // Free where it is now, and its old mapping still used.
    assert_eq!(world.allocator.trim(0), ALL * GRANULE);
    assert_eq!((world.stats().cached_bytes, world.stats().stray_bytes), (ALL * GRANULE, 0), "it stays of use");
    world.pass(50);
    assert_eq!(world.allocator.trim(0), ALL * GRANULE);
    world.pass(60);
    assert_eq!(world.allocator.trim(0), 0);
    assert_eq!(world.stats().old_mappings_bytes, 0);
    drop((s, t));
    world.end();
}

#[test]
fn a_handle_keeps_few_old_mappings() {
    let world = world();
    let streams = world.streams::<5>();
    for round in 0..4 {
        for stream in &streams {
            drop(world.bytes(stream, granules(ALL)));
        }
        world.pass(round);
    }
    assert!(world.stats().old_mappings_bytes <= 3 * ALL * GRANULE, "{}", world.stats().old_mappings_bytes);
    drop(streams);
    world.end();
}

#[test]
fn a_failed_move_gives_everything_back() {
    let calls = [DeviceCall::Map, DeviceCall::SetAccess, DeviceCall::Record, DeviceCall::Wait, DeviceCall::Unmap];
    for (call, own) in calls.into_iter().flat_map(|call| [(call, false), (call, true)]) {
        for nth in 1..=3 {
            for also in [None, Some(DeviceCall::Unmap)] {
                fail_a_move(own, (call, nth), also);
            }
        }
    }
}

/// Scattered handles of `s` are freed, and asked for as one block by `t`, or by `s` itself.
fn fail_a_move(own: bool, (call, nth): (DeviceCall, u64), also: Option<DeviceCall>) {
    let world = world();
    let [s, t] = world.streams();
    let mut blocks = filled(&world, &s, &[7; ALL as usize]);
    for index in [12, 8, 4] {
        drop(blocks.remove(index));
    }
    world.device.fail_nth(call, nth);
    if let Some(also) = also {
        world.device.fail_nth(also, 1);
    }
    let user = if own { &s } else { &t };
    let moved = user.alloc::<u8>(granules(3));
    world.check();
    if let Ok(moved) = &moved {
        world.fill(user, moved, 3, 1);
        world.expect(user, moved, 3, 1);
    }
    blocks.iter().for_each(|block| world.expect(&s, block, 7, 1));
    drop(moved);
    let again = world.bytes(user, granules(3));
    world.fill(user, &again, 3, 1);
    world.expect(user, &again, 3, 1);
    drop((again, blocks, s, t));
    // What fails here at last was to fail before.
    world.pass(1000);
    let left: Vec<u64> = (0..4).map(|_| world.allocator.trim(0)).collect();
    assert_eq!(left[3], 0, "{call} {nth} {also:?} {left:?}");
    world.end();
}

/// Another stream touches what was brought together before the owner does: the uses through the old mappings still run.
#[test]
fn who_uses_moved_memory_first_comes_after_its_uses_elsewhere() {
    let world = world();
    let [s, t] = world.streams();
    let mut blocks = filled(&world, &s, &[0; ALL as usize]);
    for index in [14, 10, 6, 2] {
        world.fill(&s, &blocks[index], 5, 100);
        drop(blocks.remove(index));
    }
    let joined = world.bytes(&s, granules(4));
    assert_eq!(world.met_at("move"), 1);
    world.fill(&t, &joined, 9, 1);
    world.expect(&t, &joined, 9, 1);
    drop((joined, blocks, s, t));
    world.pass(1000);
    world.end();
}

/// Of too many old mappings the oldest goes, but not while it is used.
#[test]
fn an_old_mapping_too_many_stays_as_long_as_it_is_used() {
    let world = world();
    let streams = world.streams::<5>();
    for stream in streams.iter().chain(&streams) {
        let all = world.bytes(stream, granules(ALL));
        world.fill(stream, &all, 1, 100);
        world.expect(stream, &all, 1, 100);
    }
    assert_eq!((world.device_ns(), world.stats().reserved.peak), (0, ALL * GRANULE));
    world.pass(5000);
    drop(streams);
    world.end();
}

/// Where an open stream has its memory does not depend on what other streams have freed.
#[test]
fn an_open_stream_takes_the_same_addresses_whatever_is_free_elsewhere() {
    let settings = || Settings::builder().memory_limit_bytes(2 * GRANULE).policy(Policy::Wait).page_time(1.0);
    let places = [false, true].map(|freed| {
        let world = World::with(settings());
        let [open, other] = world.streams();
        // A handle of the stream has moved away, and is free again there, or not.
        drop(world.bytes(&open, granules(1)));
        let moved = world.bytes(&other, granules(1));
        assert_eq!(world.stats().pages_moved, 1);
        open.mark_open();
        let kept = (!freed).then_some(moved);
        let block = world.bytes(&open, granules(1));
        let place = address(&block);
        drop((block, kept, open, other));
        world.end();
        place
    });
    assert_eq!(places[0], places[1]);
}

#[test]
fn the_history_says_whom_a_stream_waits_for_where_memory_moves() {
    let world = world();
    let [s, t] = world.streams();
    let used = world.bytes(&s, granules(ALL));
    world.fill(&s, &used, 1, 100);
    drop(used);
    let lent = world.bytes(&t, granules(ALL));
    let snapshot = world.allocator.snapshot();
    let waits: Vec<(u64, u64)> =
        snapshot.devices[0].notes.waits_inserted.iter().map(|wait| (wait.fact.stream, wait.fact.for_stream)).collect();
    assert_eq!(waits, [(2, 1)]);
    drop((lent, s, t));
    world.pass(100);
    world.end();
}

/// Many small handles can move one by one, but each costs calls: there are as many as the time for them allows.
#[test]
fn handles_are_small_where_there_is_time_for_calls_until_it_is_spent() {
    let made = |part: f64, map_ns: u64| {
        let cost = CostModel { map_ns, ..CostModel::free() };
        let world = World::new(SimConfig { cost, ..ticks() }, Settings::builder().page_time(part));
        let [s] = world.streams();
        world.pass(10_000_000);
        let [first, second] = [0, 1].map(|_| {
            let before = world.stats().handles_created;
            (world.bytes(&s, granules(4)), world.stats().handles_created - before)
        });
        let made = (first.1, second.1);
        drop((first, second, s));
        world.end();
        made
    };
    assert_eq!(made(0.0, 0), (1, 1));
    assert_eq!(made(0.5, 0), (4, 4));
    assert_eq!(made(0.5, 5_000_000), (4, 1), "the first four have taken 20 ms");
}

/// Each plans with what is free in the others, and whoever comes first has it. There is memory for all of them anyway.
#[test]
fn streams_that_grow_at_once_do_not_fail_because_others_are_faster() {
    for seed in 0..20 {
        let config = SimConfig { cost: CostModel::free(), bodies: false, workers: 0, ..SimConfig::default() };
        let world = World::new(config, Settings::builder());
        std::thread::scope(|scope| {
            for stream in world.streams::<4>() {
                let mut rng = Rng::new(seed);
                scope.spawn(move || {
                    let mut blocks: Vec<Option<Buffer<u8>>> = std::iter::repeat_with(|| None).take(64).collect();
                    for _ in 0..1000 {
                        let block = &mut blocks[rng.below(64)];
                        *block = None;
                        *block = Some(stream.alloc(512 << rng.below(14)).unwrap());
                    }
                });
            }
        });
        assert_eq!(world.stats().out_of_memory, 0);
    }
}

#[test]
fn with_the_time_for_calls_overdrawn_memory_moves_only_where_nothing_else_helps() {
    let cost = CostModel { map_ns: 60_000_000, ..CostModel::free() };
    let world = World::new(SimConfig { cost, ..ticks() }, Settings::builder().page_time(0.0));
    let [s, t] = world.streams();
    drop(world.bytes(&s, granules(4)));
    let blocks = [4, 8].map(|many| world.bytes(&t, granules(many)));
    assert_eq!((world.stats().handles_created, world.stats().pages_moved), (3, 0));
    let last = world.bytes(&t, granules(4));
    assert_eq!((world.stats().handles_created, world.stats().pages_moved), (3, 1), "there is no other");
    drop((blocks, last, s, t));
    world.end();
}

const MIB: usize = 1 << 20;
const MS: u64 = 1_000_000;

/// A device with room for large blocks, on which calls take no time.
fn large() -> World {
    let config = SimConfig { memory_bytes: 256 << 20, granularity_bytes: 2 << 20, cost: CostModel::free(), ..ticks() };
    World::new(config, Settings::builder().page_time(1.0))
}

/// A fence that is recorded when somebody asks comes behind everything that the owner was given meanwhile.
#[test]
fn a_large_block_that_was_freed_is_known_to_be_free_when_another_stream_asks() {
    let world = large();
    let [s, t] = world.streams();
    let [freed, used, freed_later] = [0, 1, 2].map(|_| world.bytes(&s, 4 * MIB));
    world.busy(&s, &freed, 3 * MS);
    drop(freed);
    world.busy(&s, &used, 100 * MS);
    world.pass(2 * MS);
    // Another fence, behind the long use: it does not take the place of the first.
    drop(freed_later);
    world.pass(8 * MS);
    let held = world.stats().reserved.now;
    let taken = world.bytes(&t, 4 * MIB);
    assert_eq!((world.met_at("move"), world.stats().reserved.now), (1, held));
    assert_eq!((world.stats().waits_inserted, world.stats().host_stalls), (0, 0));
    drop((used, taken, s, t));
    world.end();
}

/// The first fence covers the second free too if nothing was submitted between, but only as long as nobody asks.
#[test]
fn each_large_free_is_behind_a_fence_of_its_own() {
    let world = large();
    let [s, t] = world.streams();
    let [first, second, used] = [0, 1, 2].map(|_| world.bytes(&s, 4 * MIB));
    world.busy(&s, &first, 10);
    world.busy(&s, &second, 10);
    drop(first);
    world.pass(2 * MS);
    drop(second);
    world.busy(&s, &used, 100 * MS);
    world.pass(8 * MS);
    let held = world.stats().reserved.now;
    let taken = world.bytes(&t, 8 * MIB);
    assert_eq!((world.met_at("move"), world.stats().reserved.now), (1, held));
    drop((used, taken, s, t));
    world.end();
}

#[test]
fn a_handle_that_is_longer_than_every_gap_moves_to_a_new_range() {
    let world = World::with(Settings::builder().page_time(0.0));
    let [s, t] = world.streams();
    let mut blocks = filled(&world, &s, &[0; ALL as usize]);
    world.pass(100);
    let kept: Vec<_> = [14, 10, 6, 2].into_iter().map(|index| blocks.remove(index)).collect();
    drop(blocks);
    world.allocator.trim(0);
    drop(world.bytes(&t, granules(ALL - 4)));
    let taken = world.bytes(&s, granules(1));
    assert_eq!((world.met_at("move"), world.stats().pages_moved, world.met_at("return_cached")), (1, 1, 0));
    drop((kept, taken, s, t));
    world.end();
}

#[test]
fn what_an_open_stream_holds_up_is_not_chosen_where_other_memory_is_there() {
    let world = World::with(Settings::builder().page_time(1.0).policy(Policy::Wait));
    let [open, held_up, closed, asks] = world.streams();
    let [behind, free] = [&held_up, &closed].map(|stream| world.bytes(stream, granules(1)));
    open.mark_open();
    world.idle(&open, 1000);
    let fence = open.record().unwrap();
    held_up.wait(&fence).unwrap();
    for (stream, block) in [(&held_up, &behind), (&closed, &free)] {
        world.busy(stream, block, 10);
    }
    drop((behind, free));
    let taken = world.bytes(&asks, granules(1));
    assert_eq!((world.met_at("order"), world.stats().reserved.now), (1, 2 * GRANULE));
    world.pass(2000);
    drop((taken, fence, open, held_up, closed, asks));
    world.end();
}

#[test]
fn fences_behind_frees_are_few_and_do_not_pile_up() {
    let world = large();
    let [s, t] = world.streams();
    let before = world.counters();
    for _ in 0..10 {
        for _ in 0..50 {
            let block = world.bytes(&s, 4 * MIB);
            world.busy(&s, &block, 10);
            drop(block);
        }
        world.pass(2 * MS);
    }
    let after = world.counters();
    let made = |call| after.of(call) - before.of(call);
    assert_eq!(made(DeviceCall::Record), 10, "one in each millisecond in which something was freed");
    assert!((10..=20).contains(&made(DeviceCall::Query)), "each is asked until it is over, and goes");
    // A small block says little of a handle.
    let before = world.counters();
    drop(world.bytes(&s, MIB));
    world.pass(2 * MS);
    drop(world.bytes(&s, MIB));
    assert_eq!(world.counters().of(DeviceCall::Record), before.of(DeviceCall::Record));
    drop((s, t));
    world.end();
}
