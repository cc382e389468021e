//! Any sequence of operations on a heap does what the model predicts, and gives the same addresses each time.

#![no_main]

#[path = "../../allocator/core/tests/world/mod.rs"]
mod world;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use world::{GRANULE, Op, RANGE, STREAMS, World};

/// An operation in bounded numbers, so that no input is wasted.
#[derive(Arbitrary, Debug)]
enum Input {
    Allocate(Bytes),
    AllocateCached(Bytes),
    Free(u8, [Option<(u8, u8)>; 2]),
    Progress(u8, u8),
    Retire,
    Unmap(u8),
}

#[derive(Arbitrary, Debug)]
enum Bytes {
    Small(u16),
    Granules(u8),
    AroundTheSmallLimit(i16),
    WholeRange,
}

impl Bytes {
    fn get(&self) -> u64 {
        match *self {
            Bytes::Small(bytes) => u64::from(bytes),
            Bytes::Granules(granules) => u64::from(granules) * GRANULE / 8,
            Bytes::AroundTheSmallLimit(offset) => highwater_core::SMALL_BYTES.saturating_add_signed(offset.into()),
            Bytes::WholeRange => RANGE,
        }
    }
}

impl Input {
    fn op(&self) -> Op {
        let stream = |number: u8| u32::from(number) % STREAMS;
        match self {
            Input::Allocate(bytes) => Op::Allocate(bytes.get()),
            Input::AllocateCached(bytes) => Op::AllocateCached(bytes.get()),
            Input::Free(nth, waits) => {
                let waits = waits.iter().flatten().map(|&(number, ahead)| (stream(number), u64::from(ahead % 4)));
                Op::Free(usize::from(*nth), waits.collect())
            }
            Input::Progress(number, more) => Op::Progress(stream(*number), u64::from(more % 4)),
            Input::Retire => Op::Retire,
            Input::Unmap(most) => Op::Unmap(usize::from(most % 4)),
        }
    }
}

fn run(inputs: &[Input]) -> Vec<u64> {
    let mut world = World::new();
    for input in inputs {
        if let Err(broken) = world.step(input.op()) {
            panic!("{input:?}: {broken}");
        }
    }
    world.live_addresses()
}

fuzz_target!(|inputs: Vec<Input>| {
    assert_eq!(run(&inputs), run(&inputs));
});
