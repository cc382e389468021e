//! Issue order, slots and waits of small plans.

use super::*;

fn index(plan: &Plan, kind: &str, unit: u32, round: u32) -> usize {
    let found = |op: &Op| op.kind.name() == kind && op.unit == UnitIndex(unit) && op.round == round;
    plan.ops().iter().position(found).expect("the operation is in the plan")
}

#[test]
fn whole_lists() {
    assert_eq!(letters(&plan(&spec(4, Passes::Forward))), "G0 G1 F0 G2 F1 G3 F2 F3");
    assert_eq!(letters(&plan(&spec(4, Passes::Backward))), "G3 G2 B3 R3 G1 B2 R2 G0 B1 R1 B0 R0");
    assert_eq!(
        letters(&plan(&spec(4, Passes::Training))),
        "G0 G1 F0 G2 F1 G3 F2 F3 B3 R3 G1 B2 R2 G0 B1 R1 B0 R0 O2 O3 O0 O1"
    );
    let none = without_prefetch(spec(2, Passes::Training));
    assert_eq!(letters(&plan(&none)), "G0 F0 G1 F1 B1 R1 G0 B0 R0 O1 O0", "two slots keep one unit");
}

#[test]
fn units_near_a_turn_stay() {
    let gathers = |keep_distance, slots| {
        let plan = plan(&PlanSpec { rounds: 2, keep_distance, slots, ..spec(6, Passes::Training) });
        plan.ops().iter().filter(|op| op.kind.name() == "gather").count()
    };
    // Two rounds of two passes use 24 units; there are three turns.
    assert_eq!([0, 1, 2, 3, 4, 5].map(|distance| gathers(distance, 4)), [24, 21, 21, 18, 18, 15]);
    assert_eq!(gathers(5, 3), 18, "three slots have room for two units and gradients");
    assert_eq!(gathers(u32::MAX, 7), 6, "room for all");
}

#[test]
fn rounds_continue_with_the_units_that_stayed() {
    let plan = plan(&PlanSpec { rounds: 2, ..spec(3, Passes::Training) });
    assert_eq!(letters(&plan), "G0 G1 F0 G2 F1 F2 B2 R2 G0 B1 R1 B0 R0 F0 G2 F1 F2 B2 R2 G0 B1 R1 B0 R0 O2 O0 O1");
}

#[test]
fn o1_next_gather_waits_for_the_optimizer() {
    let plan = plan(&spec(4, Passes::Training));
    let optimize = OpIndex(index(&plan, "optimize", 0, 0) as u32);
    assert_eq!(plan.ops()[0].waits, [WaitEdge { on: optimize, previous_step: true }]);
    let follows_optimizer = |edge: &Edge| edge.previous_step;
    let gathers: Vec<u32> =
        plan.edges().filter(follows_optimizer).map(|edge| plan.ops()[edge.to.index()].unit.0).collect();
    assert_eq!(gathers, [0, 1], "the later half was updated before unit 0");
}

#[test]
fn the_last_update_waits_for_the_last_reduction() {
    // All others come after theirs by the gathers in between.
    let plan = plan(&spec(4, Passes::Training));
    let reduce = OpIndex(index(&plan, "reduce", 0, 0) as u32);
    let waits = |unit| &plan.ops()[index(&plan, "optimize", unit, 0)].waits;
    assert_eq!(*waits(0), [WaitEdge { on: reduce, previous_step: false }]);
    let of_updates: usize = (0..4).map(|unit| waits(unit).len()).sum();
    assert_eq!(of_updates, 1);
}

#[test]
fn o6_reduce_before_the_next_but_one_gather() {
    for units in 2..7 {
        let plan = plan(&spec(units, Passes::Backward));
        for unit in (2..units as u32).rev() {
            let (backward, reduce) = (index(&plan, "backward", unit, 0), index(&plan, "reduce", unit, 0));
            assert_eq!(reduce, backward + 1);
            assert!(reduce < index(&plan, "gather", unit - 2, 0));
        }
    }
}

#[test]
fn o7_gather_ahead_of_the_use_before() {
    for depth in 1..4 {
        let plan = plan(&PlanSpec { forward_prefetch: depth, slots: depth + 1, ..spec(6, Passes::Forward) });
        for unit in 0..6 {
            let forward = index(&plan, "forward", unit, 0);
            let ahead = (unit + depth).min(5);
            assert!(index(&plan, "gather", ahead, 0) < forward);
            assert!(unit + depth >= 5 || index(&plan, "gather", ahead + 1, 0) > forward, "no further than that");
        }
    }
    let plan = plan(&spec(6, Passes::Backward));
    for unit in 1..6 {
        assert!(index(&plan, "gather", unit - 1, 0) < index(&plan, "backward", unit, 0));
        assert!(unit < 2 || index(&plan, "gather", unit - 2, 0) > index(&plan, "backward", unit, 0));
    }
}

#[test]
fn ring_of_three_slots_in_backward() {
    let plan = plan(&spec(5, Passes::Backward));
    let slots = |unit| match plan.ops()[index(&plan, "backward", unit, 0)].kind {
        OpKind::Backward { parameters, gradients } => (parameters, gradients),
        other => panic!("{other:?} is no backward"),
    };
    for unit in 1..5 {
        assert_eq!(slots(unit - 1).1, slots(unit).0, "gradients take the slot that the parameters left");
        assert!(unit < 2 || slots(unit - 2).0 == slots(unit).1, "the gather takes the slot that the reduce leaves");
    }
}

#[test]
fn waits_of_a_short_backward() {
    let plan = plan(&spec(3, Passes::Backward));
    assert_eq!(letters(&plan), "G2 G1 B2 R2 G0 B1 R1 B0 R0");
    let waits: Vec<String> = plan
        .edges()
        .map(|edge| format!("{}<-{}{}", edge.to, edge.from, if edge.previous_step { "'" } else { "" }))
        .collect();
    // Backwards wait for their gathers, reduces for their backwards. Gathers take a slot that a reduce left, gradients
    // one where parameters were, in the next step too: no wait for a free slot.
    assert_eq!(waits, ["2<-0", "3<-2", "5<-1", "6<-5", "7<-4", "8<-7"]);
}

#[test]
fn fingerprint_tells_plans_apart() {
    let base = PlanSpec { rounds: 2, ..spec(4, Passes::Training) };
    let of = |spec: &PlanSpec| plan(spec).fingerprint();
    let mut renamed = base.clone();
    renamed.units[1].name = "v1".to_owned();
    let mut resized = base.clone();
    resized.units[1].padded_bytes += 2;
    let others = [
        renamed,
        resized,
        PlanSpec { ranks: 4, ..base.clone() },
        PlanSpec { rounds: 3, ..base.clone() },
        PlanSpec { slots: 4, ..base.clone() },
        PlanSpec { keep_distance: 0, ..base.clone() },
        PlanSpec { forward_prefetch: 2, ..base.clone() },
        spec(5, Passes::Training),
        spec(4, Passes::Backward),
    ];
    let mut seen: Vec<u64> = others.iter().map(of).chain([of(&base)]).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), others.len() + 1);
    assert_eq!(of(&base), of(&base.clone()));
    let plan = plan(&base);
    for edge in plan.edges() {
        assert_ne!(plan.without_wait(edge).fingerprint(), plan.fingerprint(), "waits count");
    }
}
