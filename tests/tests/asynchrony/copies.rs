//! Copies between host and device: pageable memory blocks the host, and with it all that the host would have submitted.

use highwater::{HostBuffer, Stream, StreamError};

use super::{World, config, copy, idle};

/// Two requests, each a copy in, a product and a copy out, on a stream of its own.
fn two_requests(world: &World, memory: impl Fn(usize) -> HostBuffer<u8>) {
    for name in ["first", "second"] {
        let stream = world.stream(name);
        let (input, output) = (memory(2), memory(2));
        let (x, y) = (stream.alloc::<u8>(2).unwrap(), stream.alloc::<u8>(2).unwrap());
        stream.copy_to_device(&input, &x).unwrap();
        copy(&stream, "matmul", &x, &y, 3);
        stream.copy_to_host(&y, &output).unwrap();
    }
}

/// ```text
/// first  : [h2d][matmul][d2h]
/// second : [h2d][matmul][d2h]
/// ```
#[test]
fn s3_3_pinned_copies_leave_the_host_free_to_fill_all_streams() {
    let world = World::new(config());
    two_requests(&world, |len| world.allocator.pinned(len));
    assert_eq!((world.now(), world.blocked()), (0, (0, 0)));
    world.expect(&[
        ("first", "copy_to_device", 0, 2),
        ("second", "copy_to_device", 0, 2),
        ("first", "matmul", 2, 5),
        ("second", "matmul", 2, 5),
        ("first", "copy_to_host", 5, 7),
        ("second", "copy_to_host", 5, 7),
    ]);
    world.expect_no_races();
}

/// ```text
/// first  : [h2d][matmul][d2h]
/// second :                   [h2d][matmul][d2h]
/// host   : [block]     [block][block]    [block]
/// ```
#[test]
fn s3_3_pageable_copies_block_the_host_and_streams_run_one_after_the_other() {
    let world = World::new(config());
    two_requests(&world, |len| world.allocator.pageable(len));
    assert_eq!((world.now(), world.blocked()), (14, (4, 14)));
    world.expect(&[
        ("first", "copy_to_device", 0, 2),
        ("first", "matmul", 2, 5),
        ("first", "copy_to_host", 5, 7),
        ("second", "copy_to_device", 7, 9),
        ("second", "matmul", 9, 12),
        ("second", "copy_to_host", 12, 14),
    ]);
}

/// A training on three batches: the host prepares one in 4 ticks, its copy takes 2, its step 6.
fn train(world: &World, copies: &Stream, memory: impl Fn(usize) -> HostBuffer<u8>) {
    let compute = world.allocator.default_stream();
    for _ in 0..3 {
        world.host(4);
        let (x, batch) = (copies.alloc::<u8>(2).unwrap(), memory(2));
        copies.copy_to_device(&batch, &x).unwrap();
        compute.wait_stream(copies).unwrap();
        compute.launch("step", highwater::device::Cost::exact(6)).read(&x).submit().unwrap();
    }
}

/// ```text
/// host    : [prepare][prepare][prepare]
/// copies  :          [h2d]    [h2d]    [h2d]
/// default :               [step       ][step       ][step       ]
/// ```
#[test]
fn s3_3_a_loader_with_pinned_memory_keeps_the_device_busy() {
    let world = World::new(config());
    train(&world, &world.stream("copies"), |len| world.allocator.pinned(len));
    assert_eq!((world.now(), world.blocked()), (12, (0, 0)));
    world.expect(&[
        ("copies", "copy_to_device", 4, 6),
        ("default", "step", 6, 12),
        ("copies", "copy_to_device", 8, 10),
        ("default", "step", 12, 18),
        ("copies", "copy_to_device", 12, 14),
        ("default", "step", 18, 24),
    ]);
    world.expect_no_races();
}

/// ```text
/// host    : [prepare][b ][prepare][block ][prepare][block ]
/// default :          [h2d][step      ][h2d][step      ][h2d][step      ]
/// ```
#[test]
fn s3_3_a_loader_with_pageable_memory_waits_for_the_step_before() {
    let world = World::new(config());
    train(&world, &world.allocator.default_stream(), |len| world.allocator.pageable(len));
    assert_eq!((world.now(), world.blocked()), (22, (3, 2 + 4 + 4)));
    world.expect(&[
        ("default", "copy_to_device", 4, 6),
        ("default", "step", 6, 12),
        ("default", "copy_to_device", 12, 14),
        ("default", "step", 14, 20),
        ("default", "copy_to_device", 20, 22),
        ("default", "step", 22, 28),
    ]);
}

#[test]
fn s3_3_pinned_memory_alone_does_not_overlap_what_stands_in_one_queue() {
    let world = World::new(config());
    train(&world, &world.allocator.default_stream(), |len| world.allocator.pinned(len));
    assert_eq!((world.now(), world.blocked()), (12, (0, 0)), "the host is free");
    world.expect(&[
        ("default", "copy_to_device", 4, 6),
        ("default", "step", 6, 12),
        ("default", "copy_to_device", 12, 14),
        ("default", "step", 14, 20),
        ("default", "copy_to_device", 20, 22),
        ("default", "step", 22, 28),
    ]);
}

#[test]
fn s3_3_who_looks_at_pinned_memory_too_early_is_told_so() {
    let world = World::new(config());
    let stream = world.allocator.default_stream();
    let (x, host) = (stream.alloc::<u8>(2).unwrap(), world.allocator.pinned::<u8>(2));
    super::fill(&stream, "fill", &x, 7, 3);
    stream.copy_to_host(&x, &host).unwrap();
    idle(&stream, "later", 100);
    assert_eq!(host.read(|bytes| bytes.to_vec()), Err(StreamError::HostBufferBusy));
    host.wait(std::time::Duration::from_secs(1)).unwrap();
    assert_eq!(world.now(), 5, "the later work is not waited for");
    assert_eq!(host.read(|bytes| bytes.to_vec()), Ok(vec![7, 7]));
}
