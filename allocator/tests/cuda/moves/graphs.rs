//! Graphs among memory that moves: their launches are work that the allocator does not see, and their memory stays.

use std::cell::RefCell;

use cudarc::driver::CudaGraph;
use highwater::{Buffer, Stream};

use super::{joined, moves, world, written};
use crate::world::{BYTES, LEN, World};

/// A graph of a stream that writes a value to all words of a buffer.
fn graph_of(world: &World, stream: &Stream, buffer: &Buffer<u32>, value: u32) -> CudaGraph {
    world.graph(&stream.cuda_stream().unwrap(), |_| world.fill(&buffer.on(stream).unwrap(), value))
}

/// The graphs' launches are all that writes the blocks: what comes after the stream's place at the free comes after them.
#[test]
#[ignore = "needs a GPU"]
fn memory_that_graphs_write_moves() {
    for same in [true, false] {
        let launched = RefCell::new(Vec::new());
        let by_graph = |world: &World, stream: &Stream, buffer: &Buffer<u32>, value: u32| {
            let graph = graph_of(world, stream, buffer, value);
            graph.launch().unwrap();
            launched.borrow_mut().push(graph);
        };
        moves(&by_graph, [5, 6], same);
    }
}

/// Whoever launches a graph again and again keeps its memory: what moves is other memory, also between two launches.
#[test]
#[ignore = "needs a GPU"]
fn memory_of_a_graph_stays_while_the_rest_moves() {
    for same in [true, false] {
        let (world, [s, t]) = world(9 * BYTES);
        let kept = s.alloc::<u32>(LEN).unwrap();
        let graph = graph_of(&world, &s, &kept, 9);
        let launch = |before: u32| {
            world.fill(&kept.on(&s).unwrap(), before);
            graph.launch().unwrap();
            world.check(&kept.on(&s).unwrap(), 9);
        };
        let gate = world.gate(&s.cuda_stream().unwrap());
        launch(1);
        let by_kernel = |stream: &Stream, buffer: &Buffer<u32>, value| world.fill(&buffer.on(stream).unwrap(), value);
        let blocks = written(&s, |block| by_kernel(&s, block, 2));
        launch(3);
        let user = if same { &s } else { &t };
        let (joined, blocks) = joined(user, blocks);
        by_kernel(user, &joined, 4);
        world.check(&joined.on(user).unwrap(), 4);
        launch(5);
        blocks.iter().for_each(|block| world.check(&block.on(&s).unwrap(), 2));
        assert!(world.stats().pages_moved >= 12, "{} moved", world.stats().pages_moved);
        assert_eq!(world.stats().reserved.now, 9 * BYTES);
        gate.open();
        world.settle();
        // The moved memory is written once more, after launches that are over.
        launch(7);
        by_kernel(user, &joined, 8);
        world.check(&joined.on(user).unwrap(), 8);
        world.settle();
        drop((joined, blocks, kept));
    }
}
