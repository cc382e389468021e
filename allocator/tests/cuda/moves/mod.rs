//! Handles that move while work through their old mapping is queued: whatever writes and reads them, no word is wrong.
//! Each check reads by plain loads, by those of memory that nobody writes, and in bulk.

mod graphs;

use highwater::device::{Address, Device};
use highwater::{Buffer, Policy, Settings, Stream};

use crate::world::{BYTES, LEN, World};

/// Writes a value to all words of a buffer on a stream.
type Write<'a> = &'a dyn Fn(&World, &Stream, &Buffer<u32>, u32);

fn by_kernel(world: &World, stream: &Stream, buffer: &Buffer<u32>, value: u32) {
    world.fill(&buffer.on(stream).unwrap(), value);
}

/// A GPU whose allocator may hold so many bytes and moves free memory whenever it can, and two of its streams.
fn world(limit: u64) -> (World, [Stream; 2]) {
    let settings = Settings::builder().memory_limit_bytes(limit).policy(Policy::Wait).page_time(1.0);
    let world = World::with(settings);
    let streams = ["s", "t"].map(|name| world.allocator.create_stream(name).unwrap());
    (world, streams)
}

/// Eight blocks of a stream, all of them written.
fn written(stream: &Stream, write: impl Fn(&Buffer<u32>)) -> Vec<Buffer<u32>> {
    let blocks: Vec<Buffer<u32>> = (0..8).map(|_| stream.alloc(LEN).unwrap()).collect();
    blocks.iter().for_each(write);
    blocks
}

/// Every other block is freed, and their memory becomes one block of a stream; that block, and the others.
fn joined(user: &Stream, mut blocks: Vec<Buffer<u32>>) -> (Buffer<u32>, Vec<Buffer<u32>>) {
    for index in [6, 4, 2, 0] {
        drop(blocks.remove(index));
    }
    (user.alloc(4 * LEN).unwrap(), blocks)
}

/// Eight blocks of a stream that is held back are written; every other one is freed, and their memory becomes one block,
/// of the same stream or of another one, before anything of it has run.
fn moves(write: Write<'_>, values: [u32; 2], same: bool) {
    let limit = 8 * BYTES;
    let (world, [s, t]) = world(limit);
    let gate = world.gate(&s.cuda_stream().unwrap());
    let put = |stream: &Stream, buffer: &Buffer<u32>, value| {
        write(&world, stream, buffer, value);
        world.check(&buffer.on(stream).unwrap(), value);
    };
    let blocks = written(&s, |block| put(&s, block, values[0]));
    let user = if same { &s } else { &t };
    let (joined, blocks) = joined(user, blocks);
    put(user, &joined, values[1]);
    blocks.iter().for_each(|block| world.check(&block.on(&s).unwrap(), values[0]));
    let stats = world.stats();
    assert!(stats.pages_moved >= 12, "{} moved", stats.pages_moved);
    assert_eq!((stats.reserved.now, stats.host_stalls, stats.waits_inserted), (limit, 0, u64::from(!same)));
    gate.open();
    world.settle();
    drop((joined, blocks));
}

#[test]
#[ignore = "needs a GPU"]
fn memory_that_kernels_write_moves() {
    [true, false].into_iter().for_each(|same| moves(&by_kernel, [1, 2], same));
}

#[test]
#[ignore = "needs a GPU"]
fn memory_that_is_set_moves() {
    let set = |world: &World, stream: &Stream, buffer: &Buffer<u32>, value: u32| {
        if value == 0 {
            stream.cuda_stream().unwrap().memset_zeros(&mut buffer.on(stream).unwrap()).unwrap();
        } else {
            by_kernel(world, stream, buffer, value);
        }
    };
    for same in [true, false] {
        moves(&set, [7, 0], same);
        moves(&set, [0, 7], same);
    }
}

#[test]
#[ignore = "needs a GPU"]
fn memory_that_is_copied_to_and_from_moves() {
    let copy = |world: &World, stream: &Stream, buffer: &Buffer<u32>, value: u32| {
        let cuda = stream.cuda_stream().unwrap();
        let source = world.constant(value, buffer.len());
        cuda.memcpy_dtod(&source, &mut buffer.on(stream).unwrap()).unwrap();
        world.keep(source);
    };
    [true, false].into_iter().for_each(|same| moves(&copy, [3, 4], same));
}

/// The same without order: the control that shows what the tests above would see.
#[test]
#[ignore = "needs a GPU"]
fn two_mappings_of_a_handle_are_one_memory_and_nothing_orders_them() {
    let world = World::new();
    let device = &world.device;
    let handle = device.create(BYTES).unwrap();
    let [old, new] = [0; 2].map(|_| {
        let address: Address = device.reserve(BYTES).unwrap();
        device.map(handle, address).unwrap();
        device.set_access(address, BYTES).unwrap();
        address
    });
    let [s, t] = [0; 2].map(|_| world.cudarc_stream());
    let gate = world.gate(&s);
    world.launch_fill(&s, old.0, LEN, 1);
    world.launch_fill(&t, new.0, LEN, 2);
    world.launch_check(&t, new.0, LEN, 2);
    t.synchronize().unwrap();
    gate.open();
    s.synchronize().unwrap();
    world.launch_check(&t, new.0, LEN, 2);
    let all = world.kinds_of_load() * LEN as u32;
    assert_eq!(world.wrong_words(), all, "the old use came late, by every kind of load");
    for address in [old, new] {
        device.unmap(address, BYTES).unwrap();
        device.unreserve(address, BYTES).unwrap();
    }
    device.release(handle).unwrap();
}
