//! C.3: when the operations of a forward and of a backward pass are executed on the simulated device, in ticks, with the
//! host infinitely far ahead.

use highwater_fsdp::plan::Plan;
use highwater_fsdp::plan::{BackwardPrefetch, OpKind, Passes, PlanSpec};
use highwater_tests::{Ran, Scene, TICK_NS, Ticks};

/// Half ticks, ns.
fn halves(count: u64) -> u64 {
    count * TICK_NS / 2
}

/// Durations in half ticks.
fn ticks(compute: u64, communication: u64) -> Ticks {
    let (compute, communication_ns) = (halves(compute), halves(communication));
    Ticks { forward_ns: compute, backward_ns: compute, communication_ns }
}

fn run(units: usize, ticks: Ticks, spec: impl FnOnce(&mut PlanSpec)) -> Ran {
    let scene = Scene::uniform(units, 2, ticks);
    let mut options = scene.spec();
    spec(&mut options);
    let plan = Plan::new(&options).unwrap();
    plan.verify().unwrap();
    let ran = scene.run(&plan).unwrap();
    assert!(ran.hazards.is_empty(), "{:?}", ran.hazards);
    ran
}

fn forward(units: usize, ticks: Ticks, prefetch: u32) -> Ran {
    run(units, ticks, |spec| {
        (spec.passes, spec.forward_prefetch, spec.slots) = (Passes::Forward, prefetch, prefetch + 1);
    })
}

fn backward(units: usize, ticks: Ticks, prefetch: BackwardPrefetch, slots: u32) -> Ran {
    run(units, ticks, |spec| {
        (spec.passes, spec.backward_prefetch, spec.slots) = (Passes::Backward, prefetch, slots);
    })
}

/// When operations of one kind were executed, in half ticks.
fn intervals(ran: &Ran, kind: impl Fn(OpKind) -> bool) -> Vec<(u64, u64)> {
    let found = ran.plan.ops().iter().enumerate().filter(|(_, op)| kind(op.kind)).map(|(index, _)| {
        let index = highwater_fsdp::plan::OpIndex(u32::try_from(index).unwrap());
        let (mine, other) = (ran.interval(0, 0, index), ran.interval(1, 0, index));
        assert_eq!(mine, other, "both ranks do the same");
        (2 * mine.start_ns / TICK_NS, 2 * mine.end_ns / TICK_NS)
    });
    found.collect()
}

fn span(ran: &Ran) -> u64 {
    intervals(ran, |_| true).into_iter().map(|(_, end)| end).max().unwrap()
}

fn gathers(ran: &Ran) -> Vec<(u64, u64)> {
    intervals(ran, |kind| matches!(kind, OpKind::Gather { .. }))
}

fn computes(ran: &Ran) -> Vec<(u64, u64)> {
    intervals(ran, |kind| matches!(kind, OpKind::Forward { .. } | OpKind::Backward { .. }))
}

/// Whole ticks as half ticks.
fn whole(intervals: &[(u64, u64)]) -> Vec<(u64, u64)> {
    intervals.iter().map(|&(start, end)| (2 * start, 2 * end)).collect()
}

#[test]
fn c3_forward_4_1_1() {
    assert_eq!(span(&forward(4, ticks(2, 2), 0)), 16);
    let ran = forward(4, ticks(2, 2), 1);
    assert_eq!(span(&ran), 10);
    assert_eq!(gathers(&ran), whole(&[(0, 1), (1, 2), (2, 3), (3, 4)]));
    assert_eq!(computes(&ran), whole(&[(1, 2), (2, 3), (3, 4), (4, 5)]));
}

#[test]
fn c3_forward_4_2_1() {
    assert_eq!(span(&forward(4, ticks(4, 2), 0)), 24);
    let ran = forward(4, ticks(4, 2), 1);
    assert_eq!(span(&ran), 18);
    assert_eq!(gathers(&ran), whole(&[(0, 1), (1, 2), (3, 4), (5, 6)]));
    assert_eq!(computes(&ran), whole(&[(1, 3), (3, 5), (5, 7), (7, 9)]));
}

#[test]
fn c3_forward_4_1_2() {
    assert_eq!(span(&forward(4, ticks(2, 4), 0)), 24);
    let ran = forward(4, ticks(2, 4), 1);
    assert_eq!(span(&ran), 18);
    assert_eq!(gathers(&ran), whole(&[(0, 2), (2, 4), (4, 6), (6, 8)]));
    assert_eq!(computes(&ran), whole(&[(2, 3), (4, 5), (6, 7), (8, 9)]));
}

#[test]
fn c3_forward_8_1_half() {
    assert_eq!(span(&forward(8, ticks(2, 1), 0)), 24);
    assert_eq!(span(&forward(8, ticks(2, 1), 1)), 17);
}

#[test]
fn c3_forward_8_1_one_and_a_half() {
    assert_eq!(span(&forward(8, ticks(2, 3), 0)), 40);
    assert_eq!(span(&forward(8, ticks(2, 3), 1)), 26);
}

/// `none`, `PRE, one comm` and `3 slots, one` in half ticks.
fn c3_backward(units: usize, ticks: Ticks, none: u64, pre: u64) {
    assert_eq!(span(&backward(units, ticks, BackwardPrefetch::None, 2)), none);
    assert_eq!(span(&backward(units, ticks, BackwardPrefetch::Pre, 3)), pre, "three slots");
    assert_eq!(span(&backward(units, ticks, BackwardPrefetch::Pre, 4)), pre, "a fourth slot gains nothing");
}

#[test]
fn c3_backward_4_2_1_1() {
    c3_backward(4, ticks(4, 2), 32, 20);
    let ran = backward(4, ticks(4, 2), BackwardPrefetch::Pre, 3);
    assert_eq!(gathers(&ran), whole(&[(0, 1), (1, 2), (4, 5), (6, 7)]));
    assert_eq!(computes(&ran), whole(&[(1, 3), (3, 5), (5, 7), (7, 9)]));
    let reduces = intervals(&ran, |kind| matches!(kind, OpKind::Reduce { .. }));
    assert_eq!(reduces, whole(&[(3, 4), (5, 6), (7, 8), (9, 10)]));
}

#[test]
fn c3_backward_4_2_half_half() {
    c3_backward(4, ticks(4, 1), 24, 18);
}

#[test]
fn c3_backward_4_1_1_1() {
    c3_backward(4, ticks(2, 2), 24, 16);
}

#[test]
fn c3_backward_4_2_one_and_a_half() {
    c3_backward(4, ticks(4, 3), 40, 26);
}

#[test]
fn c3_backward_8_2_1_1() {
    c3_backward(8, ticks(4, 2), 64, 36);
}

#[test]
fn c3_backward_8_2_half_half() {
    c3_backward(8, ticks(4, 1), 48, 34);
}

#[test]
fn c3_backward_8_1_1_1() {
    c3_backward(8, ticks(2, 2), 48, 32);
}

#[test]
fn c3_backward_8_2_one_and_a_half() {
    c3_backward(8, ticks(4, 3), 80, 50);
}

#[test]
fn c3_backward_8_3_2_2() {
    c3_backward(8, ticks(6, 4), 112, 68);
}
