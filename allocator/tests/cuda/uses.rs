//! Memory that streams of the allocator use through cudarc, and when it is given out again.

use std::time::Duration;

use highwater::{AllocError, Settings};

use crate::world::{BYTES, LEN, LONG, World, address};

/// Memory of one stream that an adopted stream still reads when it is freed: `read` is given the gate's place in between.
fn is_kept_until_read(read: impl FnOnce(&World, &highwater::Stream, &highwater::Buffer<u32>)) {
    let world = World::new();
    let s = world.allocator.default_stream();
    let (t_cuda, t) = world.adopted("t");
    let buffer = world.filled(&s, 7);
    let at = address(&buffer);
    t.wait(&s.record().unwrap()).unwrap();
    let gate = world.gate(&t_cuda);
    read(&world, &t, &buffer);
    drop(buffer);

    assert_eq!(world.stats().pending_bytes_by_stream["t"], BYTES);
    let other = world.filled(&s, 9);
    assert_ne!(address(&other), at, "the memory is still read");
    s.record().unwrap().wait(LONG).unwrap();
    gate.open();
    t.record().unwrap().wait(LONG).unwrap();
    assert_eq!(address(&world.filled(&s, 9)), at, "the read is over");
    world.settle();
}

#[test]
#[ignore = "needs a GPU"]
fn memory_that_an_adopted_stream_reads_is_given_out_when_it_has_read() {
    is_kept_until_read(|world, t, buffer| world.check(&buffer.on(t).unwrap(), 7));
}

#[test]
#[ignore = "needs a GPU"]
fn a_guard_that_is_forgotten_keeps_the_memory_until_the_stream_is_done() {
    is_kept_until_read(|world, t, buffer| {
        let on = buffer.on(t).unwrap();
        drop(t.record().unwrap());
        world.check(&on, 7);
        std::mem::forget(on);
    });
}

#[test]
#[ignore = "needs a GPU"]
fn a_guard_that_is_dropped_late_keeps_the_memory_until_then() {
    is_kept_until_read(|world, t, buffer| {
        let on = buffer.on(t).unwrap();
        world.check(&on, 7);
        drop(t.record().unwrap());
        world.check(&on, 7);
        drop(on);
    });
}

#[test]
#[ignore = "needs a GPU"]
fn a_view_is_used_as_its_buffer() {
    is_kept_until_read(|world, t, buffer| world.check(&buffer.slice(LEN / 2..).on(t).unwrap(), 7));
}

#[test]
#[ignore = "needs a GPU"]
fn a_copy_of_cudarc_on_a_known_stream_is_a_use_until_the_free() {
    is_kept_until_read(|_, t, buffer| {
        let cuda = t.cuda_stream().unwrap();
        let mut copy = t.alloc::<u32>(LEN).unwrap();
        cuda.memcpy_dtod(buffer, &mut copy).unwrap();
    });
}

#[test]
#[ignore = "needs a GPU"]
fn unrelated_work_behind_a_guard_keeps_nothing() {
    let world = World::new();
    let s = world.allocator.default_stream();
    let (t_cuda, t) = world.adopted("t");
    let buffer = world.filled(&s, 7);
    t.wait(&s.record().unwrap()).unwrap();
    world.check(&buffer.on(&t).unwrap(), 7);
    let after = t.record().unwrap();
    let gate = world.gate(&t_cuda);
    after.wait(LONG).unwrap();
    drop(buffer);
    assert_eq!(world.stats().pending_bytes, 0);
    gate.open();
    world.settle();
}

#[test]
#[ignore = "needs a GPU"]
fn a_guard_comes_after_the_former_uses_of_the_memory() {
    let world = World::new();
    let s = world.allocator.default_stream();
    let (_, t) = world.adopted("t");
    let first = world.filled(&s, 1);
    let at = address(&first);
    let gate = world.gate(&s.cuda_stream().unwrap());
    world.fill(&first.on(&s).unwrap(), 2);
    drop(first);
    let second = s.alloc::<u32>(LEN).unwrap();
    assert_eq!(address(&second), at);
    // Without the wait this comes before the fill that is held back.
    world.fill(&second.on(&t).unwrap(), 3);
    assert_eq!(world.stats().waits_inserted, 1);
    gate.open();
    s.wait(&t.record().unwrap()).unwrap();
    world.check(&second.on(&s).unwrap(), 3);
    world.settle();
}

#[test]
#[ignore = "needs a GPU"]
fn copies_and_fills_of_cudarc_take_buffers_and_views() {
    let world = World::new();
    let s = world.allocator.default_stream();
    let cuda = s.cuda_stream().unwrap();
    let mut buffer = s.alloc::<u32>(6).unwrap();
    cuda.memcpy_htod(&[1, 2, 3, 4, 5, 6], &mut buffer).unwrap();
    cuda.memset_zeros(&mut buffer.slice(1..3)).unwrap();
    cuda.memcpy_htod(&[9], &mut buffer.slice(5..).on(&s).unwrap()).unwrap();
    assert_eq!(cuda.clone_dtoh(&buffer).unwrap(), [1, 0, 0, 4, 5, 9]);
    assert_eq!(cuda.clone_dtoh(&buffer.slice(3..5)).unwrap(), [4, 5]);
    assert_eq!(cuda.clone_dtoh(&s.alloc::<u32>(0).unwrap()).unwrap(), [0; 0]);
    world.settle();
}

#[test]
#[ignore = "needs a GPU"]
fn the_error_and_the_statistics_say_who_uses_what() {
    let limit = 4 * BYTES;
    let settings = Settings::builder().memory_limit_bytes(limit).host_wait_timeout(Duration::from_millis(1));
    let world = World::with(settings);
    let s = world.allocator.default_stream();
    let (t_cuda, t) = world.adopted("reader");
    let (read, live) = (world.filled(&s, 7), world.filled(&s, 8));
    t.wait(&s.record().unwrap()).unwrap();
    let gate = world.gate(&t_cuda);
    world.check(&read.on(&t).unwrap(), 7);
    drop(read);

    let refused = s.alloc::<u32>(3 * LEN).unwrap_err();
    let AllocError::OutOfMemory(report) = &refused else { panic!("{refused}") };
    assert_eq!((report.live, report.pending, report.capacity), (BYTES, BYTES, limit));
    let text = refused.to_string();
    assert!(text.contains("8.00 MiB pending (reader 8.00 MiB)"), "{text}");
    let map = world.stats().to_map();
    assert_eq!(map["pending_bytes_by_stream.reader"], BYTES);
    assert_eq!((map["requested_bytes.all.current"], map["num_ooms"]), (BYTES, 1));

    gate.open();
    t.record().unwrap().wait(LONG).unwrap();
    drop(s.alloc::<u32>(3 * LEN).unwrap());
    drop(live);
    world.settle();
}
