//! Leased bytes: the published peaks, and peaks of unequal units worked out by hand.

use super::*;

const P: u64 = 1024;

#[track_caller]
fn peak(spec: &PlanSpec) -> u64 {
    let measured = plan(spec).peak_bytes();
    assert_eq!(predicted_peak_bytes(spec), Ok(measured), "predicted and measured");
    measured
}

#[test]
fn m1_forward_without_prefetch() {
    let none = without_prefetch(spec(6, Passes::Forward));
    assert_eq!(peak(&none), P);
    assert_eq!(peak(&PlanSpec { slots: 3, ..none }), P, "more slots do not make it more");
}

#[test]
fn m2_forward_with_depth() {
    for depth in 0..5 {
        let spec = PlanSpec { forward_prefetch: depth, slots: depth + 1, ..spec(6, Passes::Forward) };
        assert_eq!(peak(&spec), u64::from(1 + depth) * P);
    }
}

#[test]
fn m3_backward_with_three_slots() {
    assert_eq!(peak(&spec(6, Passes::Backward)), 3 * P);
    assert_eq!(peak(&spec(6, Passes::Training)), 3 * P, "keeping units at the turn costs nothing");
    assert_eq!(peak(&PlanSpec { rounds: 3, ..spec(6, Passes::Training) }), 3 * P, "nor between rounds");
}

#[test]
fn m5_backward_without_overlap() {
    assert_eq!(peak(&without_prefetch(spec(6, Passes::Backward))), 2 * P);
    assert_eq!(peak(&without_prefetch(spec(6, Passes::Training))), 2 * P);
}

#[test]
fn m6_unequal_units_peak_at_a_window() {
    let forward = PlanSpec { passes: Passes::Forward, ..PlanSpec::new(sized(&[10, 20, 70, 30, 40]), 2) };
    assert_eq!(peak(&forward), 100, "units 2 and 3");
    let backward = PlanSpec { passes: Passes::Backward, ..forward.clone() };
    assert_eq!(peak(&backward), 20 + 70 + 70, "unit 1 ahead, unit 2 with its gradients");
    let kept = PlanSpec { passes: Passes::Training, ..PlanSpec::new(sized(&[10, 90, 2, 50, 40]), 2) };
    assert_eq!(peak(&kept), 10 + 90 + 90);
    let rounds = PlanSpec { rounds: 2, ..kept };
    assert_eq!(peak(&rounds), 10 + 90 + 90, "unit 0 ahead comes with unit 1 kept, not with more");
    let wide = PlanSpec { slots: 4, keep_distance: 5, ..rounds };
    assert_eq!(peak(&wide), 10 + 90 + 2 + 90, "three units are kept from backward to forward");
}

#[test]
fn m10_every_step_leases_alike() {
    let plan = plan(&PlanSpec { rounds: 2, ..spec(5, Passes::Training) });
    assert!(plan.ops().iter().all(|op| op.leases().is_none_or(|slot| slot.0 < 3)));
    assert_eq!(plan, Plan::new(plan.spec()).unwrap(), "the same spec gives the same slots");
}

#[test]
fn m13_nothing_is_leased_at_the_end() {
    for passes in [Passes::Forward, Passes::Backward, Passes::Training] {
        let plan = plan(&PlanSpec { rounds: 2, ..spec(5, passes) });
        assert_eq!(plan.leased_bytes().last(), Some(0));
        assert_eq!(
            plan.leased_bytes().filter(|bytes| *bytes == 0).count(),
            match passes {
                Passes::Forward => 2,
                Passes::Backward => 2,
                Passes::Training => 1 + 5,
            },
            "never in the middle of a pass"
        );
    }
}

#[test]
fn m14_budget_below_need_is_refused() {
    let spec = PlanSpec { passes: Passes::Backward, ..PlanSpec::new(sized(&[10, 20, 70, 30, 40]), 2) };
    let with = |budget| PlanSpec { max_unsharded_bytes: Some(budget), ..spec.clone() };
    assert_eq!(plan(&with(160)).peak_bytes(), 160);
    let refused = Plan::new(&with(159)).unwrap_err();
    let unit = "u2".to_owned();
    assert_eq!(refused, PlanError::OverBudget { unit, peak_bytes: 160, budget_bytes: 159, missing_bytes: 1 });
    assert_eq!(refused.to_string(), "the peak of 160 B, reached at unit u2, exceeds the budget of 159 B by 1 B");
    assert_eq!(predicted_peak_bytes(&with(0)), Ok(160), "the prediction itself has no budget");
}
