//! Workers that run side by side: what it gains, and that the host is ahead of all of them.

use super::{World, config, copy, fill, idle, with_launches};

/// Ticks of the gradients, of the transfer, and of the update.
const STEPS: [(u64, u64, u64); 4] = [(5, 5, 1), (6, 3, 2), (3, 6, 2), (4, 0, 1)];

/// ```text
/// compute : [gradients       ][        ][update]
/// network :                   [average ]
/// ```
#[test]
fn s1_2_in_step_every_part_takes_its_time() {
    for (compute_ticks, transfer, update) in STEPS {
        let world = World::new(config());
        let (compute, network) = (world.stream("compute"), world.stream("network"));
        idle(&compute, "gradients", compute_ticks);
        network.wait_stream(&compute).unwrap();
        idle(&network, "average", transfer);
        compute.wait_stream(&network).unwrap();
        idle(&compute, "update", update);
        let (averaged, end) = (compute_ticks + transfer, compute_ticks + transfer + update);
        world.expect(&[
            ("compute", "gradients", 0, compute_ticks),
            ("network", "average", compute_ticks, averaged),
            ("compute", "update", averaged, end),
        ]);
    }
}

/// ```text
/// compute : [gradients][gradients of the next][update]
/// network :            [average              ]
/// ```
#[test]
fn s1_2_overlapped_only_the_longer_part_takes_time() {
    for (compute_ticks, transfer, update) in STEPS {
        let world = World::new(config());
        let (compute, network) = (world.stream("compute"), world.stream("network"));
        let (first, next) = (compute.alloc::<u8>(64).unwrap(), compute.alloc::<u8>(64).unwrap());
        fill(&compute, "gradients", &first, 1, compute_ticks);
        network.wait_stream(&compute).unwrap();
        fill(&compute, "next", &next, 2, compute_ticks);
        fill(&network, "average", &first, 3, transfer);
        compute.wait_stream(&network).unwrap();
        copy(&compute, "update", &first, &next, update);
        let (begin, both) = (compute_ticks, compute_ticks + compute_ticks.max(transfer));
        world.expect(&[
            ("compute", "gradients", 0, begin),
            ("compute", "next", begin, 2 * compute_ticks),
            ("network", "average", begin, begin + transfer),
            ("compute", "update", both, both + update),
        ]);
        assert_eq!(both + update - begin, compute_ticks.max(transfer) + update);
        world.expect_no_races();
    }
}

/// ```text
/// host   : [launch K1][launch K2][launch K3][launch K4][ goes on
/// device :            [K1       ][K2                  ][K3       ][K4]
/// ```
#[test]
fn s2_1_the_host_is_ahead_of_the_device() {
    let world = World::new(with_launches());
    let stream = world.allocator.default_stream();
    for (name, ticks) in [("K1", 4), ("K2", 6), ("K3", 4), ("K4", 2)] {
        idle(&stream, name, ticks);
    }
    assert_eq!(world.now(), 4, "four launches");
    assert_eq!(world.blocked(), (0, 0));
    world.expect(&[
        ("default", "K1", 1, 5),
        ("default", "K2", 5, 11),
        ("default", "K3", 11, 15),
        ("default", "K4", 15, 17),
    ]);
}

/// ```text
/// default : [matmul][add][relu][matmul]
/// copies  : [h2d   ][h2d   ]
/// network :         [all-reduce]
/// ```
#[test]
fn s2_2_a_stream_is_a_queue_and_queues_run_side_by_side() {
    let world = World::new(config());
    let (default, copies, network) =
        (world.allocator.default_stream(), world.stream("copies"), world.stream("network"));
    let (x, y) = (copies.alloc::<u8>(4).unwrap(), copies.alloc::<u8>(4).unwrap());
    let host = world.allocator.pinned::<u8>(4);
    idle(&default, "matmul", 4);
    let after_matmul = default.record().unwrap();
    idle(&default, "add", 2);
    idle(&default, "relu", 2);
    idle(&default, "matmul", 4);
    copies.copy_to_device(&host, &x).unwrap();
    copies.copy_to_device(&host, &y).unwrap();
    network.wait(&after_matmul).unwrap();
    idle(&network, "all-reduce", 7);
    world.expect(&[
        ("default", "matmul", 0, 4),
        ("copies", "copy_to_device", 0, 4),
        ("default", "add", 4, 6),
        ("copies", "copy_to_device", 4, 8),
        ("network", "all-reduce", 4, 11),
        ("default", "relu", 6, 8),
        ("default", "matmul", 8, 12),
    ]);
}

/// Two copies of 4 ticks and two products of 5; one column of the drawing is two ticks.
/// ```text
///          0    1    2    3    4    5    6    7
/// default :           [matmul A    ][matmul B    ]
/// copies  : [h2d A   ][h2d B   ]
/// ```
#[test]
fn s2_3_copies_overlap_compute() {
    let world = World::new(config());
    let (default, copies) = (world.allocator.default_stream(), world.stream("copies"));
    for matmul in ["matmul A", "matmul B"] {
        let (x, host) = (copies.alloc::<u8>(4).unwrap(), world.allocator.pinned::<u8>(4));
        copies.copy_to_device(&host, &x).unwrap();
        default.wait_stream(&copies).unwrap();
        let result = default.alloc::<u8>(4).unwrap();
        copy(&default, matmul, &x, &result, 5);
    }
    world.expect(&[
        ("copies", "copy_to_device", 0, 4),
        ("default", "matmul A", 4, 9),
        ("copies", "copy_to_device", 4, 8),
        ("default", "matmul B", 9, 14),
    ]);
    world.expect_no_races();
}

/// ```text
///          0    1    2    3    4    5    6    7    8    9
/// default : [h2d A   ][matmul A    ][h2d B   ][matmul B    ]
/// ```
#[test]
fn s2_3_on_one_stream_copies_and_compute_take_turns() {
    let world = World::new(config());
    let default = world.allocator.default_stream();
    for matmul in ["matmul A", "matmul B"] {
        let (x, host) = (default.alloc::<u8>(4).unwrap(), world.allocator.pinned::<u8>(4));
        default.copy_to_device(&host, &x).unwrap();
        let result = default.alloc::<u8>(4).unwrap();
        copy(&default, matmul, &x, &result, 5);
    }
    world.expect(&[
        ("default", "copy_to_device", 0, 4),
        ("default", "matmul A", 4, 9),
        ("default", "copy_to_device", 9, 13),
        ("default", "matmul B", 13, 18),
    ]);
}

#[test]
fn s3_1_after_a_whole_step_has_been_submitted_nothing_may_have_been_done() {
    let world = World::new(with_launches());
    let stream = world.allocator.default_stream();
    for name in ["forward", "loss", "backward", "step"] {
        idle(&stream, name, 10);
    }
    assert!(world.device.cluster().take_timeline().is_empty(), "the first is not over yet");
    assert_eq!((world.now(), world.blocked()), (4, (0, 0)));
    // Whoever must see the result waits for all of it.
    stream.record().unwrap().wait(std::time::Duration::from_secs(1)).unwrap();
    assert_eq!((world.now(), world.blocked()), (41, (1, 37)));
}
