//! Captures of adopted streams that the program makes without telling.

use std::sync::mpsc::channel;

use cudarc::driver::sys::CUgraphInstantiate_flags;
use cudarc::driver::sys::CUstreamCaptureMode::{
    self, CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
};
use highwater::device::{Device, DeviceCall};

use crate::world::{BYTES, LEN, LONG, World};

/// Calls that a capture forbids.
fn forbidden(world: &World) -> Vec<u64> {
    use DeviceCall::{Query, Record, Synchronize, Wait};
    [Record, Query, Wait, Synchronize].iter().map(|&call| world.device.counters().of(call)).collect()
}

/// Allocates, frees, uses and asks on `s` while `t` captures.
fn work_meanwhile(world: &World) {
    let s = world.allocator.default_stream();
    let before = forbidden(world);
    let (_, other) = (world.stats().to_map(), world.allocator.snapshot());
    drop(other);
    let buffer = world.filled(&s, 3);
    world.check(&buffer.on(&s).unwrap(), 3);
    drop(buffer);
    assert_eq!(world.allocator.trim(0), world.stats().reserved.now, "nothing is returned meanwhile");
    assert!(s.record().is_err());
    assert_eq!(forbidden(world), before);
}

/// A capture of an adopted stream by the program, with work of the allocator meanwhile.
fn stays_whole(mode: CUstreamCaptureMode) {
    let world = World::new();
    let s = world.allocator.default_stream();
    let (cuda, t) = world.adopted("t");
    let buffer = s.alloc::<u32>(LEN).unwrap();
    // Memory for what is asked for meanwhile, and a free that waits.
    drop([world.filled(&s, 1), world.filled(&s, 1)]);
    let used = world.filled(&s, 1);
    t.wait(&s.record().unwrap()).unwrap();
    let gate = world.gate(&cuda);
    world.check(&used.on(&t).unwrap(), 1);

    cuda.begin_capture(mode).unwrap();
    assert!(world.device.is_capturing());
    world.fill(&buffer.on(&t).unwrap(), 5);
    drop(used);
    work_meanwhile(&world);
    assert_eq!(world.stats().pending_bytes, BYTES);
    let graph = cuda.end_capture(CUgraphInstantiate_flags(0)).unwrap().expect("nothing spoilt it");
    assert!(!world.device.is_capturing());

    gate.open();
    graph.launch().unwrap();
    world.check(&buffer.on(&t).unwrap(), 5);
    t.record().unwrap().wait(LONG).unwrap();
    drop(buffer);
    drop(graph);
    drop((s.alloc::<u32>(LEN).unwrap(), t));
    world.settle();
    assert_eq!(world.trim(), 0);
}

#[test]
#[ignore = "needs a GPU"]
fn a_relaxed_capture_of_the_program_stays_whole() {
    stays_whole(CU_STREAM_CAPTURE_MODE_RELAXED);
}

#[test]
#[ignore = "needs a GPU"]
fn a_thread_local_capture_of_the_program_stays_whole() {
    stays_whole(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

#[test]
#[ignore = "needs a GPU"]
fn a_global_capture_of_the_program_stays_whole() {
    stays_whole(CU_STREAM_CAPTURE_MODE_GLOBAL);
}

#[test]
#[ignore = "needs a GPU"]
fn a_global_capture_of_another_thread_is_seen() {
    let world = World::new();
    let s = world.allocator.default_stream();
    let (cuda, _t) = world.adopted("t");
    drop([world.filled(&s, 1), world.filled(&s, 1)]);
    let (begun, wait_begun) = channel();
    let (end, wait_end) = channel::<()>();
    std::thread::scope(|scope| {
        let capture = scope.spawn(move || {
            cuda.begin_capture(CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
            begun.send(()).unwrap();
            wait_end.recv().unwrap();
            cuda.end_capture(CUgraphInstantiate_flags(0)).map(|_| ())
        });
        wait_begun.recv().unwrap();
        assert!(world.device.is_capturing());
        work_meanwhile(&world);
        end.send(()).unwrap();
        capture.join().unwrap().expect("nothing spoilt it");
    });
    assert!(!world.device.is_capturing());
    world.settle();
}

#[test]
#[ignore = "needs a GPU"]
fn growth_leaves_a_capture_whole() {
    let world = World::new();
    let s = world.allocator.default_stream();
    let (cuda, _t) = world.adopted("t");
    for mode in [CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_GLOBAL] {
        cuda.begin_capture(mode).unwrap();
        let grown = world.stats().handles_created;
        let buffer = s.alloc::<u32>(8 * LEN).unwrap();
        assert!(world.stats().handles_created > grown);
        drop(cuda.end_capture(CUgraphInstantiate_flags(0)).unwrap_or_else(|error| panic!("{mode:?}: {error}")));
        drop(buffer);
        assert_eq!(world.trim(), 0);
    }
    world.settle();
}
