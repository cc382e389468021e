//! Random sequences of operations on a heap, beside a model.

#![cfg(not(loom))]

mod world;

use highwater_core::SMALL_BYTES;
use proptest::prelude::*;
use world::{GRANULE, Op, RANGE, STREAMS, World};

fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![0..4 * GRANULE, (0..64_u64).prop_map(|n| n * 512), SMALL_BYTES - 600..SMALL_BYTES + 600, Just(RANGE)]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => bytes().prop_map(Op::Allocate),
        2 => bytes().prop_map(Op::AllocateCached),
        5 => (any::<usize>(), prop::collection::vec((0..STREAMS, 0..4_u64), 0..3)).prop_map(|(n, w)| Op::Free(n, w)),
        2 => (0..STREAMS, 1..4_u64).prop_map(|(stream, more)| Op::Progress(stream, more)),
        2 => Just(Op::Retire),
        1 => (0..4_usize).prop_map(Op::Unmap),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn a_heap_does_what_the_model_predicts(ops in prop::collection::vec(op(), 1..80)) {
        let mut world = World::new();
        for op in ops {
            world.step(op).map_err(TestCaseError::fail)?;
        }
    }

    #[test]
    fn the_same_operations_give_the_same_addresses(ops in prop::collection::vec(op(), 1..60)) {
        let run = || -> Result<Vec<u64>, TestCaseError> {
            let mut world = World::new();
            for op in &ops {
                world.step(op.clone()).map_err(TestCaseError::fail)?;
            }
            Ok(world.live_addresses())
        };
        prop_assert_eq!(run()?, run()?);
    }
}
