//! M1–M3, M11, M13: bytes leased in slots, counted by the runner and predicted by formula.

use highwater_fsdp::plan::{BackwardPrefetch, Passes, Plan, PlanSpec, predicted_peak_bytes};
use highwater_tests::{Ran, Scene, TICK_NS, Ticks};

const TICKS: Ticks = Ticks { forward_ns: TICK_NS, backward_ns: 2 * TICK_NS, communication_ns: TICK_NS };

/// Bytes of a uniform unit.
const UNIT: u64 = 1024 * 4;

/// Runs on two ranks and compares measured, planned and predicted peaks to the byte.
fn peak(scene: &Scene, spec: &PlanSpec) -> u64 {
    let plan = Plan::new(spec).unwrap();
    let ran = scene.run(&plan).unwrap();
    for rank in &ran.ranks {
        assert_eq!(rank.peak_unsharded_bytes, plan.peak_bytes());
        assert_eq!(rank.peak_unsharded_bytes, predicted_peak_bytes(spec).unwrap());
        assert_eq!(rank.unsharded_bytes, 0);
    }
    plan.peak_bytes()
}

#[test]
fn m1_forward_without_prefetch_takes_one_unit() {
    let scene = Scene::uniform(4, 2, TICKS);
    let mut spec = scene.spec();
    (spec.passes, spec.forward_prefetch, spec.slots) = (Passes::Forward, 0, 1);
    assert_eq!(peak(&scene, &spec), UNIT);
}

#[test]
fn m2_forward_takes_one_unit_more_for_each_unit_of_prefetch() {
    for depth in 1..=3_u32 {
        let scene = Scene::uniform(6, 2, TICKS);
        let mut spec = scene.spec();
        (spec.passes, spec.forward_prefetch, spec.slots) = (Passes::Forward, depth, depth + 1);
        assert_eq!(peak(&scene, &spec), u64::from(1 + depth) * UNIT);
    }
}

#[test]
fn m3_backward_takes_three_units_in_a_ring_of_three() {
    let scene = Scene { steps: 3, ..Scene::uniform(6, 2, TICKS) };
    let mut spec = scene.spec();
    assert_eq!(peak(&scene, &spec), 3 * UNIT, "a whole training");
    (spec.passes, spec.backward_prefetch) = (Passes::Backward, BackwardPrefetch::Pre);
    assert_eq!(peak(&scene, &spec), 3 * UNIT, "backward alone");
}

#[test]
fn m3_units_of_unequal_size_peak_as_predicted() {
    let scene = Scene { elements: vec![700, 1024, 300, 2048, 512, 1300], steps: 2, ..Scene::uniform(0, 2, TICKS) };
    for rounds in 1..=3 {
        let mut spec = scene.spec();
        spec.rounds = rounds;
        assert!(peak(&scene, &spec) > 0);
    }
}

#[test]
fn m11_a_host_far_ahead_leases_no_more() {
    let of = |host_ns| {
        let scene = Scene { steps: 4, host_ns, ..Scene::uniform(6, 2, TICKS) };
        let plan = Plan::new(&scene.spec()).unwrap();
        scene.run(&plan).unwrap()
    };
    let lead = |ran: &Ran| {
        let planned = ran.planned(0);
        planned.iter().map(|(_, _, executed)| executed.start_ns - executed.submitted_ns).max().unwrap()
    };
    let (far_ahead, in_step) = (of(0), of(3 * TICK_NS));
    assert!(lead(&far_ahead) > 50 * TICK_NS, "everything is queued at time 0");
    assert!(lead(&in_step) < 20 * TICK_NS, "the host is about as fast as the device");
    for (ahead, behind) in far_ahead.ranks.iter().zip(&in_step.ranks) {
        assert_eq!(ahead.peak_unsharded_bytes, 3 * UNIT);
        assert_eq!(behind.peak_unsharded_bytes, 3 * UNIT);
        assert_eq!(ahead.shards, behind.shards);
    }
    assert!(far_ahead.hazards.is_empty() && in_step.hazards.is_empty());
}

#[test]
fn m13_nothing_is_leased_between_steps_and_nothing_is_live_at_the_end() {
    let scene = Scene { steps: 2, ..Scene::uniform(5, 2, TICKS) };
    let ran = scene.run(&Plan::new(&scene.spec()).unwrap()).unwrap();
    for rank in &ran.ranks {
        assert_eq!((rank.unsharded_bytes, rank.live_bytes_at_end), (0, 0));
        assert_eq!(rank.driver_memory_calls, 0, "slots and shards stay where they are");
    }
}
