//! Plans broken on purpose, some for every fault that `verify` knows.

use super::*;

fn training() -> Plan {
    plan(&PlanSpec { rounds: 2, ..spec(4, Passes::Training) })
}

fn fault(plan: &Plan) -> PlanFault {
    match plan.verify() {
        Err(PlanError::Unsound(fault)) => fault,
        other => panic!("the plan is broken, and verify says {other:?}"),
    }
}

/// Gives a changed list the waits that it needs, so that only its contents can be wrong.
fn rewired(mut plan: Plan) -> Plan {
    waits::assign(&mut plan.ops);
    plan
}

fn position(plan: &Plan, kind: &str, unit: u32, round: u32) -> usize {
    let found = |op: &Op| op.kind.name() == kind && op.unit == UnitIndex(unit) && op.round == round;
    plan.ops.iter().position(found).expect("the operation is in the plan")
}

#[test]
fn o10_every_wait_is_missed() {
    for rounds in 1..4 {
        for passes in [Passes::Forward, Passes::Backward, Passes::Training] {
            let plan = plan(&PlanSpec { rounds, ..spec(5, passes) });
            assert!(plan.edges().count() > 0);
            for edge in plan.edges() {
                let broken = plan.without_wait(edge);
                assert_eq!(broken.edges().count(), plan.edges().count() - 1);
                let unordered = fault(&broken);
                assert!(
                    matches!(unordered, PlanFault::Unordered { to, .. } if to == edge.to),
                    "{edge:?}: {unordered:?}"
                );
            }
        }
    }
}

#[test]
fn a_wait_that_is_not_there_changes_nothing() {
    let plan = training();
    let absent = Edge { from: OpIndex(0), to: OpIndex(u32::MAX), previous_step: false };
    assert_eq!(plan.without_wait(absent), plan);
}

#[test]
fn needless_waits_are_found() {
    let plan = training();
    let count = plan.ops.len() as u32;
    let conflict_free_or_known = |from: u32, to: u32, previous_step: bool| {
        let (edge, mut plan) = (Edge { from: OpIndex(from), to: OpIndex(to), previous_step }, plan.clone());
        let wait = WaitEdge { on: edge.from, previous_step };
        let usable = (previous_step || from < to) && plan.ops[from as usize].lane() != plan.ops[to as usize].lane();
        if !usable || plan.ops[to as usize].waits.contains(&wait) {
            return None;
        }
        plan.ops[to as usize].waits.push(wait);
        waits::mark_signals(&mut plan.ops);
        Some((edge, fault(&plan)))
    };
    let mut tried = 0;
    for (from, to) in (0..count).flat_map(|from| (0..count).map(move |to| (from, to))) {
        for (_, fault) in [false, true].into_iter().filter_map(|previous| conflict_free_or_known(from, to, previous)) {
            assert!(matches!(fault, PlanFault::RedundantWait { .. }), "{fault:?}");
            tried += 1;
        }
    }
    assert!(tried > 100);
}

#[test]
fn waits_that_cannot_work_are_found() {
    let plan = training();
    let edge = plan.edges().next().expect("there are waits");
    let mut silent = plan.clone();
    silent.ops[edge.from.index()].signals = false;
    assert_eq!(fault(&silent), PlanFault::BadWait { edge });

    let mut bad = plan.clone();
    let own_lane = WaitEdge { on: OpIndex(0), previous_step: false };
    bad.ops[1].waits = vec![own_lane];
    bad.ops[0].signals = true;
    assert!(matches!(fault(&bad), PlanFault::BadWait { .. }), "both are gathers");

    let mut future = plan.clone();
    let last = plan.ops.len() - 1;
    future.ops[last].signals = true;
    future.ops[0].waits = vec![WaitEdge { on: OpIndex(last as u32), previous_step: false }];
    assert!(matches!(fault(&future), PlanFault::BadWait { .. }), "it does not come earlier");

    let mut nobody = plan.clone();
    let op = plan.ops.iter().position(|op| !op.signals).expect("not all signal");
    nobody.ops[op].signals = true;
    assert_eq!(fault(&nobody), PlanFault::RedundantSignal { op: OpIndex(op as u32) });
}

#[test]
fn wrong_passes_are_found() {
    let plan = training();
    let mut short = plan.clone();
    short.ops.truncate(position(&plan, "backward", 0, 1));
    assert_eq!(fault(&short), PlanFault::WrongOrder { op: OpIndex(short.ops.len() as u32) });
    let mut long = plan.clone();
    long.ops.push(plan.ops[position(&plan, "forward", 0, 0)].clone());
    assert_eq!(fault(&long), PlanFault::WrongOrder { op: OpIndex(plan.ops.len() as u32) });
    let mut swapped = plan.clone();
    let (first, second) = (position(&plan, "backward", 1, 1), position(&plan, "backward", 0, 1));
    swapped.ops.swap(first, second);
    assert_eq!(fault(&swapped), PlanFault::WrongOrder { op: OpIndex(first as u32) });
}

#[test]
fn wrong_slot_contents_are_found() {
    let plan = training();
    let mut other_unit = plan.clone();
    other_unit.ops[position(&plan, "gather", 2, 0)].unit = UnitIndex(3);
    assert!(matches!(fault(&rewired(other_unit)), PlanFault::WrongContent { resource: Resource::Slot(_), .. }));
    let mut other_round = plan.clone();
    other_round.ops[position(&plan, "reduce", 1, 1)].round = 0;
    assert!(matches!(fault(&rewired(other_round)), PlanFault::WrongContent { resource: Resource::Slot(_), .. }));
}

/// An update in the middle of the step: later uses would find new parameters.
#[test]
fn o5_updates_before_the_end_are_found() {
    let plan = plan(&PlanSpec { keep_distance: 0, ..spec(1, Passes::Training) });
    assert_eq!(letters(&plan), "G0 F0 G0 B0 R0 O0");
    let mut no_gradients = plan.clone();
    no_gradients.ops.swap(4, 5);
    let resource = Resource::GradientShard(UnitIndex(0));
    assert_eq!(fault(&rewired(no_gradients)), PlanFault::WrongContent { op: OpIndex(4), resource });

    let mut twice = plan.clone();
    twice.ops.push(plan.ops[5].clone());
    assert_eq!(fault(&rewired(twice)), PlanFault::Unfinished { resource: Resource::Shard(UnitIndex(0)) });

    let mut never = plan.clone();
    never.ops.pop();
    assert_eq!(fault(&rewired(never)), PlanFault::Unfinished { resource: Resource::Shard(UnitIndex(0)) });
}

#[test]
fn wrong_leases_are_found() {
    let plan = training();
    let mut early = plan.clone();
    let forward = position(&plan, "forward", 3, 0);
    let OpKind::Forward { parameters } = plan.ops[forward].kind else { panic!("it is a forward") };
    early.ops[forward].releases = Some(parameters);
    assert!(matches!(fault(&early), PlanFault::WrongContent { .. }), "unit 3 is kept for its backward");

    let mut unleased = plan.clone();
    let free = SlotIndex(2);
    assert!(plan.ops[2].kind.name() == "forward" && plan.ops[..3].iter().all(|op| op.leases() != Some(free)));
    unleased.ops[2].releases = Some(free);
    assert_eq!(fault(&unleased), PlanFault::WrongLease { op: OpIndex(2), slot: free });

    let mut left = plan.clone();
    let last = position(&plan, "backward", 0, 1);
    left.ops[last].releases = None;
    assert!(matches!(fault(&left), PlanFault::LeaseLeft { .. }));

    let mut taken = plan.clone();
    let reduce = position(&plan, "reduce", 1, 0);
    taken.ops[reduce].releases = None;
    assert!(matches!(fault(&taken), PlanFault::WrongLease { .. }), "the next gather writes the slot");

    let mut outside = plan.clone();
    outside.ops[0].kind = OpKind::Gather { into: SlotIndex(3) };
    assert_eq!(
        fault(&rewired(outside)),
        PlanFault::WrongLease { op: OpIndex(0), slot: SlotIndex(3) },
        "there are three slots"
    );
}

/// Gathers into a spare slot stand in for lost reduces, so that all leases still end.
#[test]
fn lost_gradients_are_found() {
    let spare = SlotIndex(4);
    let without_reduce = |rounds, unit, next_gather: (u32, u32)| {
        let mut plan = plan(&PlanSpec { rounds, slots: 5, ..spec(4, Passes::Backward) });
        let lost = position(&plan, "reduce", unit, 0);
        plan.ops[lost].kind = OpKind::Gather { into: spare };
        let next = position(&plan, "gather", next_gather.0, next_gather.1);
        plan.ops[next].releases = Some(spare);
        fault(&rewired(plan))
    };
    let resource = Resource::GradientShard(UnitIndex(3));
    assert_eq!(without_reduce(1, 3, (1, 0)), PlanFault::Unfinished { resource });
    let resource = Resource::GradientShard(UnitIndex(0));
    let later_reduce = without_reduce(2, 0, (3, 1));
    assert!(matches!(later_reduce, PlanFault::WrongContent { resource: found, .. } if found == resource));
}
