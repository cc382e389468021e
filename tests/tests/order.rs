//! O1–O7: the order in which operations of a training are issued and executed.

use std::collections::BTreeMap;

use highwater::device::sim::{Executed, Mode};
use highwater_fsdp::plan::{OpIndex, OpKind, Plan, Resource, SlotIndex, UnitIndex};
use highwater_tests::{Ran, Scene, TICK_NS, Ticks};

/// Trainings with communication slower, equal and faster than compute; several steps and rounds; timed and not.
fn trainings() -> Vec<Ran> {
    let timed = [(1, 1), (2, 1), (1, 3)].map(|(compute, communication)| {
        let compute_ns = compute * TICK_NS;
        let ticks =
            Ticks { forward_ns: compute_ns, backward_ns: 2 * compute_ns, communication_ns: communication * TICK_NS };
        Scene { steps: 3, ..Scene::uniform(5, 2, ticks) }
    });
    let ticks = Ticks { forward_ns: TICK_NS, backward_ns: TICK_NS, communication_ns: TICK_NS };
    let adversarial =
        (0..20).map(|seed| Scene { steps: 3, mode: Mode::Adversarial { seed }, ..Scene::uniform(5, 2, ticks) });
    timed.into_iter().chain(adversarial).map(run).collect()
}

fn run(scene: Scene) -> Ran {
    let mut spec = scene.spec();
    spec.rounds = 2;
    scene.run(&Plan::new(&spec).unwrap()).unwrap()
}

/// One executed operation of a plan: when, and what it is.
struct Done<'a> {
    step: u64,
    kind: OpKind,
    unit: UnitIndex,
    start: u64,
    end: u64,
    op: OpIndex,
    plan: &'a Plan,
}

impl Done<'_> {
    fn touches(&self, resource: Resource) -> bool {
        self.plan.op(self.op).unwrap().accesses().any(|access| access.resource == resource)
    }

    fn slot_written(&self) -> Option<SlotIndex> {
        self.plan.op(self.op).unwrap().leases()
    }
}

/// What a rank executed, in issue order.
fn done(ran: &Ran, rank: u32) -> Vec<Done<'_>> {
    let mut parts: BTreeMap<(u64, OpIndex), Vec<&Executed>> = BTreeMap::new();
    for (step, op, executed) in ran.planned(rank) {
        parts.entry((step, op)).or_default().push(executed);
    }
    let done = parts.into_iter().map(|((step, op), parts)| Done {
        step,
        kind: ran.plan.op(op).unwrap().kind,
        unit: ran.plan.op(op).unwrap().unit,
        start: parts.iter().map(|executed| executed.start_ns).min().unwrap(),
        end: parts.iter().map(|executed| executed.end_ns).max().unwrap(),
        op,
        plan: &ran.plan,
    });
    done.collect()
}

/// For each executed operation of a rank that `which` picks, the operations that were issued before it.
fn each(which: impl Fn(OpKind) -> bool, check: impl Fn(&Done<'_>, &[Done<'_>])) {
    let mut seen = 0;
    for ran in trainings() {
        for rank in 0..2 {
            let all = done(&ran, rank);
            for (index, one) in all.iter().enumerate().filter(|(_, one)| which(one.kind)) {
                check(one, &all[..index]);
                seen += 1;
            }
        }
    }
    assert!(seen > 0, "nothing of that kind was executed");
}

fn last<'a, 'b>(before: &'a [Done<'b>], which: impl Fn(&Done<'b>) -> bool) -> Option<&'a Done<'b>> {
    before.iter().rev().find(|one| which(one))
}

fn is_gather(kind: OpKind) -> bool {
    matches!(kind, OpKind::Gather { .. })
}

#[test]
fn o1_a_gather_starts_after_the_optimizer_and_the_last_reader_of_its_slot() {
    each(is_gather, |gather, before| {
        let updated = last(before, |one| one.kind == OpKind::Optimize && one.unit == gather.unit);
        assert_eq!(updated.is_some(), gather.step > 0, "each step updates each unit");
        assert!(updated.is_none_or(|updated| updated.end <= gather.start));
        let slot = Resource::Slot(gather.slot_written().unwrap());
        assert!(before.iter().filter(|one| one.touches(slot)).all(|reader| reader.end <= gather.start));
    });
}

#[test]
fn o2_compute_starts_after_its_gather_and_nothing_blocks_the_host() {
    let computes = |kind| matches!(kind, OpKind::Forward { .. } | OpKind::Backward { .. });
    each(computes, |compute, before| {
        let gathered = last(before, |one| is_gather(one.kind) && one.unit == compute.unit).unwrap();
        assert!(gathered.end <= compute.start);
    });
    for ran in trainings() {
        assert!(ran.ranks.iter().all(|rank| rank.host_synchronizations == 0));
        assert!(ran.ranks.iter().all(|rank| (rank.waits_inserted, rank.host_stalls) == (0, 0)), "the plan says all");
    }
}

#[test]
fn o3_a_slot_is_rewritten_after_its_last_reader() {
    each(
        |_| true,
        |writer, before| {
            let Some(slot) = writer.slot_written() else { return };
            let users = before.iter().filter(|one| one.touches(Resource::Slot(slot)));
            users.for_each(|user| assert!(user.end <= writer.start, "slot {slot} is written while it is used"));
        },
    );
}

#[test]
fn o4_a_reduction_starts_after_its_gradients_and_its_slot_is_reused_after_it() {
    each(
        |kind| matches!(kind, OpKind::Reduce { .. }),
        |reduce, before| {
            let gradients = last(before, |one| matches!(one.kind, OpKind::Backward { .. }) && one.unit == reduce.unit);
            assert!(gradients.unwrap().end <= reduce.start);
        },
    );
    each(
        |_| true,
        |writer, before| {
            let Some(slot) = writer.slot_written() else { return };
            let reduced = last(before, |one| one.kind == OpKind::Reduce { gradients: slot });
            assert!(reduced.is_none_or(|reduced| reduced.end <= writer.start));
        },
    );
}

#[test]
fn o5_the_optimizer_starts_after_the_last_reduction_and_the_next_gather_after_it() {
    each(
        |kind| kind == OpKind::Optimize,
        |optimize, before| {
            let reductions = before.iter().filter(|one| matches!(one.kind, OpKind::Reduce { .. }));
            let mine: Vec<_> =
                reductions.filter(|one| one.unit == optimize.unit && one.step == optimize.step).collect();
            assert_eq!(mine.len(), 2, "one for each round");
            assert!(mine.iter().all(|reduce| reduce.end <= optimize.start));
        },
    );
    each(is_gather, |gather, before| {
        let optimizers = before.iter().filter(|one| one.kind == OpKind::Optimize && one.unit == gather.unit);
        assert!(optimizers.into_iter().all(|optimize| optimize.end <= gather.start));
    });
}

/// The operations of a rank in issue order, each once.
fn issued(ran: &Ran, rank: u32) -> Vec<(u64, OpIndex)> {
    let mut order: Vec<(u64, OpIndex)> = ran.planned(rank).into_iter().map(|part| (part.0, part.1)).collect();
    order.dedup();
    order
}

#[test]
fn o6_the_order_of_issue_is_the_plan_on_every_rank() {
    for ran in trainings() {
        let count = u32::try_from(ran.plan.ops().len()).unwrap();
        let planned: Vec<_> = (0..3).flat_map(|step| (0..count).map(move |op| (step, OpIndex(op)))).collect();
        assert_eq!(issued(&ran, 0), planned);
        assert_eq!(issued(&ran, 1), planned);
        let place = |kind: &dyn Fn(OpKind) -> bool, unit: u32| {
            let found =
                ran.plan.ops().iter().position(|op| kind(op.kind) && op.unit == UnitIndex(unit) && op.round == 0);
            found.unwrap()
        };
        let backward_from = place(&|kind| matches!(kind, OpKind::Backward { .. }), 4);
        for unit in 2..5 {
            let reduce = place(&|kind| matches!(kind, OpKind::Reduce { .. }), unit);
            let gather = ran.plan.ops()[backward_from..]
                .iter()
                .position(|op| is_gather(op.kind) && op.unit == UnitIndex(unit - 2))
                .map(|index| index + backward_from);
            assert!(
                gather.is_none_or(|gather| reduce < gather),
                "unit {unit} is reduced before the next but one comes"
            );
        }
    }
}

#[test]
fn o7_a_gather_is_issued_before_the_compute_that_hides_it() {
    let ran = &trainings()[0];
    let position = |which: &dyn Fn(&highwater_fsdp::plan::Op) -> bool| ran.plan.ops().iter().position(which).unwrap();
    for unit in 0..4 {
        let next = position(&|op| is_gather(op.kind) && op.unit == UnitIndex(unit + 1));
        let forward = position(&|op| matches!(op.kind, OpKind::Forward { .. }) && op.unit == UnitIndex(unit));
        assert!(next < forward, "the gather of unit {} is issued before the forward of unit {unit}", unit + 1);
    }
    let backward = |unit| position(&|op| matches!(op.kind, OpKind::Backward { .. }) && op.unit == UnitIndex(unit));
    let turn = position(&|op| matches!(op.kind, OpKind::Forward { .. }) && op.unit == UnitIndex(4));
    let gathered_again = |unit| {
        let again = |op: &&highwater_fsdp::plan::Op| is_gather(op.kind) && op.unit == UnitIndex(unit) && op.round == 0;
        ran.plan.ops()[turn..].iter().position(|op| again(&op)).map(|index| index + turn)
    };
    // Units kept at the turn are not gathered again; the others are hidden by the backward before their own.
    assert_eq!((0..5).filter(|&unit| gathered_again(unit).is_some()).count(), 3);
    for unit in 1..5 {
        assert!(gathered_again(unit - 1).is_none_or(|next| next < backward(unit)));
    }
}
