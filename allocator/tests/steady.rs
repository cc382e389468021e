//! After a warm-up, a workload that repeats makes no driver memory call and never blocks the host.

use highwater::Stream;
use highwater::device::sim::SimConfig;
use highwater::{Fence, Settings};

use crate::world::{MEMORY, World, granules, ticks};

/// One round: two streams that hand buffers to each other, and a copy to the host. `previous` is the end of the round
/// before on each.
fn round(world: &World, s: &Stream, t: &Stream) -> Fence {
    let weights = world.bytes(s, granules(1));
    world.fill(s, &weights, 1, 20);
    let activations: Vec<_> = (1..6).map(|size| world.bytes(s, size * 3000)).collect();
    for buffer in &activations {
        world.fill(s, buffer, 2, 10);
    }
    t.wait(&s.record().unwrap()).unwrap();
    for buffer in &activations {
        let mine = world.bytes(t, 5000);
        world.fill(t, &mine, 3, 10);
        world.expect(t, buffer, 2, 10);
    }
    world.expect(t, &weights, 1, 10);
    t.record().unwrap()
}

#[test]
fn a_workload_that_repeats_leaves_the_driver_alone() {
    let world = World::new(SimConfig { memory_bytes: 4 * MEMORY, ..ticks() }, Settings::builder());
    let [s, t] = world.streams();
    let mut ends: Vec<Fence> = Vec::new();
    let mut warm = None;
    for step in 0..200 {
        ends.push(round(&world, &s, &t));
        // The host is at most two rounds ahead, as in a training loop.
        if ends.len() > 2 {
            s.wait(&ends.remove(0)).unwrap();
        }
        world.pass(40);
        if step == 20 {
            warm = Some((world.counters(), world.stats()));
        }
    }
    let ((calls, stats), now) = (warm.expect("there were more rounds"), world.counters());
    assert_eq!(now.driver_memory_calls(), calls.driver_memory_calls());
    assert_eq!((now.host_synchronizations, world.stats().host_stalls), (0, 0));
    assert!(world.stats().allocations > stats.allocations + 1000);
    world.check();
    drop((ends, s, t));
    world.end();
}

#[test]
fn fences_do_not_pile_up() {
    let world = World::timed();
    let [s, t] = world.streams();
    for _ in 0..2000 {
        let x = world.bytes(&s, 1000);
        world.busy(&t, &x, 10);
        drop(x);
        world.pass(10);
    }
    let stats = world.stats();
    assert_eq!(stats.fences_recorded, 2000 + stats.waits_inserted, "one for each free that waits, and each wait");
    assert_eq!(world.stats().reserved.now, 1 << 16);
    drop((s, t));
    world.end();
}
