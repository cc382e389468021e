//! Streams that the allocator does not know.

use cudarc::driver::sys::CUgraphInstantiate_flags;
use cudarc::driver::sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
use cudarc::driver::sys::CUstreamCaptureMode::{CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED};
use cudarc::driver::{DevicePtr, DriverError};

use crate::world::{BYTES, LEN, LONG, World, address};

#[test]
#[ignore = "needs a GPU"]
fn memory_that_an_unknown_stream_copies_is_given_out_when_it_has_copied() {
    let world = World::new();
    let s = world.allocator.default_stream();
    let unknown = world.cudarc_stream();
    let mut copies = [unknown.alloc_zeros::<u32>(LEN).unwrap(), unknown.alloc_zeros::<u32>(LEN).unwrap()];
    let buffer = world.filled(&s, 7);
    let at = address(&buffer);
    unknown.join(&s.cuda_stream().unwrap()).unwrap();
    // The event is recorded twice: what counts is the end of the second copy.
    unknown.memcpy_dtod(&buffer, &mut copies[0]).unwrap();
    let gate = world.gate(&unknown);
    unknown.memcpy_dtod(&buffer, &mut copies[1]).unwrap();
    drop(buffer);

    let stats = world.stats();
    assert_eq!((stats.live.now, stats.pending_bytes), (0, BYTES));
    assert_eq!(stats.pending_bytes_by_stream["unknown streams"], BYTES);
    let other = world.filled(&s, 9);
    assert_ne!(address(&other), at);
    s.record().unwrap().wait(LONG).unwrap();
    gate.open();
    for copy in &copies {
        assert!(unknown.clone_dtoh(copy).unwrap().iter().all(|&word| word == 7));
    }
    assert_eq!(address(&world.filled(&s, 9)), at);
    assert_eq!(world.stats().pending_bytes, 0);
    world.settle();
}

#[test]
#[ignore = "needs a GPU"]
fn an_unknown_stream_may_go_before_its_work_is_done() {
    let world = World::new();
    let s = world.allocator.default_stream();
    let (source, mut target) = (world.filled(&s, 7), s.alloc::<u32>(LEN).unwrap());
    let at = address(&source);
    let unknown = world.cudarc_stream();
    unknown.join(&s.cuda_stream().unwrap()).unwrap();
    let gate = world.gate(&unknown);
    unknown.memcpy_dtod(&source, &mut target).unwrap();
    drop((source, unknown));
    assert_ne!(address(&world.filled(&s, 9)), at);
    gate.open();
    world.settle();
    world.check(&target.on(&s).unwrap(), 7);
    drop(target);
    world.settle();
    assert_eq!(world.trim(), 0);
}

#[test]
#[ignore = "needs a GPU"]
fn an_unknown_stream_comes_after_the_former_uses_of_the_memory() {
    let world = World::new();
    let s = world.allocator.default_stream();
    let unknown = world.cudarc_stream();
    let first = world.filled(&s, 1);
    let at = address(&first);
    let gate = world.gate(&s.cuda_stream().unwrap());
    world.fill(&first.on(&s).unwrap(), 2);
    drop(first);
    let mut second = s.alloc::<u32>(LEN).unwrap();
    assert_eq!(address(&second), at);
    unknown.memset_zeros(&mut second).unwrap();
    gate.open();
    s.cuda_stream().unwrap().join(&unknown).unwrap();
    world.check(&second.on(&s).unwrap(), 0);
    world.settle();
}

#[test]
#[ignore = "needs a GPU"]
fn without_events_of_cudarc_an_unknown_stream_is_waited_for() {
    let world = World::new();
    let s = world.allocator.default_stream();
    let unknown = world.cudarc_stream();
    world.without_event_tracking();
    let mut copy = unknown.alloc_zeros::<u32>(LEN).unwrap();
    let buffer = world.filled(&s, 7);
    unknown.join(&s.cuda_stream().unwrap()).unwrap();
    unknown.memcpy_dtod(&buffer, &mut copy).unwrap();
    drop(buffer);
    assert_eq!(world.stats().pending_bytes, 0);
    drop(world.filled(&s, 9));
    assert!(unknown.clone_dtoh(&copy).unwrap().iter().all(|&word| word == 7));
    world.settle();
}

#[test]
#[ignore = "needs a GPU"]
fn a_request_waits_for_an_unknown_stream_when_nothing_else_helps() {
    let world = World::with(highwater::Settings::builder().memory_limit_bytes(BYTES));
    let s = world.allocator.default_stream();
    let unknown = world.cudarc_stream();
    let mut copy = unknown.alloc_zeros::<u32>(LEN).unwrap();
    let buffer = world.filled(&s, 7);
    let at = address(&buffer);
    unknown.join(&s.cuda_stream().unwrap()).unwrap();
    let gate = world.gate(&unknown);
    unknown.memcpy_dtod(&buffer, &mut copy).unwrap();
    drop(buffer);
    gate.open();
    assert_eq!(address(&world.filled(&s, 9)), at);
    assert!(unknown.clone_dtoh(&copy).unwrap().iter().all(|&word| word == 7));
    world.settle();
}

#[test]
#[ignore = "needs a GPU"]
fn what_an_unknown_stream_captures_is_no_use() {
    let world = World::new();
    let s = world.allocator.default_stream();
    let unknown = world.cudarc_stream();
    let buffer = s.alloc::<u32>(LEN).unwrap();
    unknown.begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    unknown.memset_zeros(&mut buffer.view()).unwrap();
    let graph = unknown.end_capture(CUgraphInstantiate_flags(0)).unwrap().expect("nothing spoilt it");
    graph.launch().unwrap();
    unknown.synchronize().unwrap();
    world.check(&buffer.on(&s).unwrap(), 0);
    drop(buffer);
    assert_eq!(world.stats().pending_bytes, 0);
    world.settle();
}

#[test]
#[ignore = "needs a GPU"]
fn an_error_of_the_allocator_waits_in_the_context_and_the_use_is_noted_nevertheless() {
    let world = World::new();
    let s = world.allocator.default_stream();
    let (captured, _t) = world.adopted("captured");
    let unknown = world.cudarc_stream();
    drop(world.filled(&s, 1));
    let buffer = s.alloc::<u32>(LEN).unwrap();
    let gate = world.gate(&unknown);
    captured.begin_capture(CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    // The stream would have to wait for the owner, and no fence may be recorded now.
    drop(buffer.device_ptr(&unknown));
    assert_eq!(world.context.check_err().unwrap_err().0, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert!(captured.end_capture(CUgraphInstantiate_flags(0)).is_ok());
    drop(buffer);
    assert_eq!(world.stats().pending_bytes, BYTES);
    gate.open();
    world.settle();
}

#[test]
#[ignore = "needs a GPU"]
fn an_error_that_waits_for_the_program_is_neither_lost_nor_in_the_way() {
    let world = World::new();
    let s = world.allocator.default_stream();
    let unknown = world.cudarc_stream();
    let buffer = world.filled(&s, 1);
    let gate = world.gate(&unknown);
    let error = DriverError(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    world.context.record_err(Err::<(), _>(error));
    drop(buffer.device_ptr(&unknown));
    drop((buffer, s.record().unwrap(), world.allocator.create_stream("another").unwrap()));
    assert_eq!(world.context.check_err(), Err(error));
    assert_eq!(world.stats().pending_bytes, BYTES);
    gate.open();
    world.settle();
}

#[test]
#[ignore = "needs a GPU"]
fn a_global_capture_of_an_unknown_stream_stays_whole() {
    let world = World::new();
    let s = world.allocator.default_stream();
    let (_, t) = world.adopted("t");
    let unknown = world.cudarc_stream();
    let buffer = world.filled(&s, 1);
    unknown.begin_capture(CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
    t.wait(&s.record().unwrap()).unwrap();
    world.check(&buffer.on(&t).unwrap(), 1);
    drop(buffer);
    // Asks the fence of the free, waits for another, and maps memory.
    drop(world.filled(&s, 2));
    s.record().unwrap().wait(LONG).unwrap();
    drop(s.alloc::<u32>(8 * LEN).unwrap());
    assert!(unknown.end_capture(CUgraphInstantiate_flags(0)).is_ok());
    world.settle();
}
