//! The same training on 1, 2 and 4 ranks.

use highwater::device::sim::Mode;
use highwater_fsdp::plan::Plan;
use highwater_tests::{Scene, TICK_NS, Ticks};

const TICKS: Ticks = Ticks { forward_ns: TICK_NS, backward_ns: TICK_NS, communication_ns: TICK_NS };

/// Four micro-batches a step, whatever the number of ranks.
fn parameters(ranks: u32) -> Vec<Vec<u32>> {
    let elements = vec![300, 1000, 77, 512];
    let scene = Scene { elements, steps: 4, mode: Mode::Timed, ..Scene::uniform(0, ranks, TICKS) };
    let mut spec = scene.spec();
    spec.rounds = 4 / ranks;
    scene.run(&Plan::new(&spec).unwrap()).unwrap().parameters(&scene.elements)
}

#[test]
fn any_number_of_ranks_gives_the_same_bits() {
    let alone = parameters(1);
    assert_eq!(parameters(2), alone);
    assert_eq!(parameters(4), alone);
    let changed = alone.iter().flatten().filter(|&&bits| !f32::from_bits(bits).is_finite()).count();
    assert_eq!(changed, 0, "no padding and no poison gets into parameters");
}
