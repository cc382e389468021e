//! Schedules that a seed chooses: the bytes are the same, and a plan with a wait less is caught.

use highwater::device::sim::Mode;
use highwater_fsdp::plan::Plan;
use highwater_tests::{Ran, Scene, TICK_NS, Ticks};

const TICKS: Ticks = Ticks { forward_ns: TICK_NS, backward_ns: TICK_NS, communication_ns: TICK_NS };

fn scene(seed: u64) -> Scene {
    let mode = Mode::Adversarial { seed };
    Scene { elements: vec![256, 512, 128, 384], steps: 3, mode, ..Scene::uniform(0, 2, TICKS) }
}

fn plan() -> Plan {
    let mut spec = scene(0).spec();
    spec.rounds = 2;
    Plan::new(&spec).unwrap()
}

fn expected(plan: &Plan) -> Ran {
    Scene { mode: Mode::Timed, ..scene(0) }.run(plan).unwrap()
}

#[test]
fn five_hundred_schedules_give_the_same_bytes_and_the_same_peak() {
    let plan = plan();
    let expected = expected(&plan);
    let parameters = expected.parameters(&scene(0).elements);
    for seed in 0..500 {
        let ran = scene(seed).run(&plan).unwrap();
        assert_eq!(ran.parameters(&scene(seed).elements), parameters, "seed {seed}");
        assert!(ran.hazards.is_empty(), "seed {seed}: {:?}", ran.hazards);
        for (rank, expected) in ran.ranks.iter().zip(&expected.ranks) {
            assert_eq!(rank.peak_unsharded_bytes, expected.peak_unsharded_bytes, "seed {seed}");
            assert_eq!(rank.host_synchronizations, 0, "seed {seed}");
        }
    }
}

#[test]
fn o10_each_wait_is_missed_when_it_is_removed() {
    let plan = plan();
    let parameters = expected(&plan).parameters(&scene(0).elements);
    let edges: Vec<_> = plan.edges().collect();
    assert!(edges.len() > 10, "a plan of two rounds has waits");
    for edge in edges {
        let without = plan.without_wait(edge);
        let caught = (0..400).find(|&seed| {
            let ran = scene(seed).run(&without).unwrap();
            !ran.hazards.is_empty() || ran.parameters(&scene(seed).elements) != parameters
        });
        assert!(caught.is_some(), "nothing shows that {edge:?} is missing");
    }
}
