//! Measuring time, and the calls that force the host to wait.

use std::time::Duration;

use highwater::device::CostModel;
use highwater::device::sim::SimConfig;
use highwater::{Allocator, Stream};

use super::{World, config, idle};

const LONG: Duration = Duration::from_secs(1);

/// A launch takes the host 4 ticks; nothing else takes it any.
fn world() -> World {
    let config = config();
    World::new(SimConfig { cost: CostModel { launch_ns: 4, ..config.cost }, ..config })
}

fn synchronize(stream: &Stream) {
    stream.record().unwrap().wait(LONG).unwrap();
}

#[test]
fn s7_1_the_hosts_clock_around_a_launch_measures_the_launch() {
    for ticks in [1, 1000] {
        let world = world();
        let start = world.now();
        idle(&world.allocator.default_stream(), "matmul", ticks);
        assert_eq!(world.now() - start, 4, "however long the product takes");
    }
}

#[test]
fn s7_1_what_was_queued_before_is_measured_by_whoever_waits_first() {
    let world = world();
    let stream = world.allocator.default_stream();
    idle(&stream, "culprit", 1000);
    let start = world.now();
    idle(&stream, "innocent", 1);
    synchronize(&stream);
    assert_eq!(world.now() - start, 1001, "the culprit's time");
}

#[test]
fn s3_4_between_two_synchronisations_the_hosts_clock_is_right() {
    let world = world();
    let stream = world.allocator.default_stream();
    idle(&stream, "warm up", 1000);
    synchronize(&stream);
    let start = world.now();
    idle(&stream, "heavy", 100);
    synchronize(&stream);
    assert_eq!(world.now() - start, 4 + 100, "with the launch");
    assert_eq!(world.blocked().0, 2);
}

#[test]
fn s3_4_fences_measure_on_the_devices_own_clock_and_block_nobody() {
    let world = world();
    let stream = world.allocator.default_stream();
    idle(&stream, "before", 1000);
    let start = stream.record().unwrap();
    idle(&stream, "heavy", 100);
    let end = stream.record().unwrap();
    assert_eq!((world.now(), world.blocked()), (8, (0, 0)));
    assert!(end.elapsed_ns_since(&start).is_err(), "not over yet");
    end.wait(LONG).unwrap();
    assert_eq!(end.elapsed_ns_since(&start), Ok(100), "neither the launch nor what was before");
    assert_eq!(start.elapsed_ns_since(&end), Ok(0));
}

#[test]
fn s3_4_the_timeline_tells_each_operations_stream_and_time() {
    let world = world();
    let side = world.stream("side");
    idle(&world.allocator.default_stream(), "matmul", 50);
    idle(&side, "copy", 20);
    world.expect(&[("default", "matmul", 4, 54), ("side", "copy", 8, 28)]);
}

/// Three iterations. The host prepares one in 2 ticks; a step takes 6 and its average over the network 6 more. After
/// those that `prints` names, the loss is brought to the host and looked at.
fn train(prints: impl Fn(usize) -> bool) -> World {
    let world = World::new(config());
    let (compute, network) = (world.allocator.default_stream(), world.stream("network"));
    for iteration in 0..3 {
        world.host(2);
        idle(&compute, "step", 6);
        network.wait_stream(&compute).unwrap();
        let loss = network.alloc::<u8>(1).unwrap();
        super::fill(&network, "average", &loss, iteration as u8, 6);
        if prints(iteration) {
            assert_eq!(item(&world.allocator, &network, &loss), iteration as u8);
        }
    }
    world
}

/// The value of a scalar: its bytes have to be on the host.
fn item(allocator: &Allocator, stream: &Stream, scalar: &highwater::Buffer<u8>) -> u8 {
    let host = allocator.pageable::<u8>(1);
    stream.copy_to_host(scalar, &host).unwrap();
    host.read(|value| value[0]).unwrap()
}

/// ```text
/// host    : [2][2][2]
/// default :    [step  ][step  ][step  ]
/// network :            [avg   ][avg   ][avg   ]
/// ```
#[test]
fn s3_2_without_a_look_at_the_loss_steps_and_averages_overlap() {
    let world = train(|_| false);
    assert_eq!((world.now(), world.blocked()), (6, (0, 0)));
    world.expect(&[
        ("default", "step", 2, 8),
        ("network", "average", 8, 14),
        ("default", "step", 8, 14),
        ("network", "average", 14, 20),
        ("default", "step", 14, 20),
        ("network", "average", 20, 26),
    ]);
}

/// ```text
/// host    : [2][block              ][2][block              ][2][block              ]
/// default :    [step  ]                [step  ]                [step  ]
/// network :            [avg   ][d2h]           [avg   ][d2h]           [avg   ][d2h]
/// ```
#[test]
fn s3_2_a_look_at_the_loss_in_every_iteration_takes_all_overlap_away() {
    let world = train(|_| true);
    assert_eq!((world.now(), world.blocked()), (45, (3, 3 * 13)));
    world.expect(&[
        ("default", "step", 2, 8),
        ("network", "average", 8, 14),
        ("network", "copy_to_host", 14, 15),
        ("default", "step", 17, 23),
        ("network", "average", 23, 29),
        ("network", "copy_to_host", 29, 30),
        ("default", "step", 32, 38),
        ("network", "average", 38, 44),
        ("network", "copy_to_host", 44, 45),
    ]);
}

#[test]
fn s3_2_a_look_at_the_end_alone_costs_one_copy() {
    let world = train(|iteration| iteration == 2);
    assert_eq!((world.now(), world.blocked()), (27, (1, 21)));
}
