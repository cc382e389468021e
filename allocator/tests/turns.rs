//! Programs whose host is far ahead: streams that peak one after the other, and gathers that are recorded on another stream.

use highwater::device::sim::SimConfig;
use highwater::{Policy, Settings, Stream};

use crate::world::{GRANULE, Rng, World, granules, ticks};

/// Each stream asks for blocks, uses them, and gives them back; then the next one does. The device has not begun yet.
fn take_turns(world: &World, streams: &[Stream]) {
    for round in 0..6u8 {
        for stream in streams {
            let blocks: Vec<_> = [5, 3, 4, 2].into_iter().map(|size| world.bytes(stream, granules(size))).collect();
            blocks.iter().for_each(|block| world.fill(stream, block, round, 10));
            blocks.iter().for_each(|block| world.expect(stream, block, round, 10));
        }
    }
}

#[test]
fn four_streams_that_peak_in_turn_hold_what_one_of_them_needs() {
    let peak = 14 * GRANULE;
    let waiting = Settings::builder().policy(Policy::Wait);
    // Where growing comes first, the limit says when it ends.
    let limited = Settings::builder().policy(Policy::Grow).memory_limit_bytes(peak);
    for settings in [waiting, limited] {
        let world = World::with(settings.page_time(1.0));
        let streams: [Stream; 4] = world.streams();
        take_turns(&world, &streams);
        let stats = world.stats();
        assert_eq!((world.device_ns(), stats.host_stalls, stats.reserved.peak), (0, 0, peak));
        drop(streams);
        world.end();
    }
}

/// Sizes of any length, and something that each stream keeps all along: only handles that are wholly free go to the next
/// one, and still hardly more is held than was in use at once.
#[test]
fn four_streams_that_peak_in_turn_hold_three_percent_more_than_the_peak_of_their_sum() {
    let config = SimConfig { memory_bytes: 64 << 20, ..ticks() };
    let world = World::new(config, Settings::builder().policy(Policy::Wait).page_time(1.0));
    let streams: [Stream; 4] = world.streams();
    let mut rng = Rng::new(7);
    let kept: Vec<_> = streams.iter().map(|stream| world.bytes(stream, granules(3) + 700)).collect();
    for round in 0..6u8 {
        for (stream, many) in streams.iter().zip([40, 70, 55, 62]) {
            let blocks: Vec<_> = (0..many).map(|_| world.bytes(stream, 512 + rng.below(granules(6)))).collect();
            blocks.iter().for_each(|block| world.fill(stream, block, round, 10));
            blocks.iter().for_each(|block| world.expect(stream, block, round, 10));
        }
    }
    let stats = world.stats();
    assert_eq!((world.device_ns(), stats.host_stalls), (0, 0), "the device has not begun");
    let (held, used) = (stats.reserved.peak, stats.live.peak);
    assert!(held * 100 <= used * 103, "{held} bytes for {used}");
    drop((kept, streams));
    world.end();
}

/// FSDP with `record_stream` on every gather, fifty units ahead: each gathered unit waits for its use.
fn gathers(open: bool) {
    let limit = 12 * GRANULE;
    let world = World::with(Settings::builder().memory_limit_bytes(limit));
    let [gather, compute] = world.streams();
    if open {
        gather.mark_open();
    }
    for unit in 0..50u8 {
        let gathered = world.bytes(&gather, granules(4));
        world.fill(&gather, &gathered, unit, 30);
        compute.wait(&gather.record().unwrap()).unwrap();
        world.expect(&compute, &gathered, unit, 50);
    }
    let stats = world.stats();
    assert_eq!((world.device_ns(), stats.host_stalls, stats.reserved.peak), (0, 0, limit));
    assert!(stats.waits_inserted >= 47, "{}", stats.waits_inserted);
    // Nothing was given back and asked for again, which is what PyTorch calls a retry.
    let retries = ["callbacks", "return_cached", "host_wait_own", "host_wait_others"].map(|rung| world.met_at(rung));
    assert_eq!((retries, stats.out_of_memory), ([0; 4], 0));
    world.device.cluster().settle().unwrap();
    assert_eq!(world.device_ns(), 30 + 50 * 50, "uses follow one another without a gap");
    drop((gather, compute));
    world.end();
}

#[test]
fn gathers_far_ahead_of_their_uses_stay_within_the_limit_without_a_stall() {
    gathers(false);
}

#[test]
fn gathers_on_an_open_stream_wait_for_uses_that_nothing_but_their_own_stream_holds_up() {
    gathers(true);
}
