//! The published timelines, one step each. Where the published times have halves, a tick is half a unit.

use super::*;

fn forward_ticks(forward: u64, gather: u64) -> UnitTicks {
    UnitTicks { forward, gather, ..UnitTicks::default() }
}

fn backward_ticks(backward: u64, gather: u64, reduce: u64) -> UnitTicks {
    UnitTicks { backward, gather, reduce, ..UnitTicks::default() }
}

fn timeline(spec: &PlanSpec, ticks: UnitTicks) -> Timeline {
    plan(spec).timeline(&Durations::uniform(spec.units.len(), ticks), 1).unwrap()
}

/// Start and end of every operation of these kinds, in issue order.
fn intervals(spec: &PlanSpec, ticks: UnitTicks, kind: &str) -> Vec<(u64, u64)> {
    let (plan, timeline) = (plan(spec), timeline(spec, ticks));
    let of_kind = plan.ops().iter().zip(timeline.intervals()).filter(|(op, _)| op.kind.name() == kind);
    of_kind.map(|(_, interval)| (interval.start, interval.end)).collect()
}

fn prefetching_forward(units: usize) -> PlanSpec {
    PlanSpec { slots: 2, ..spec(units, Passes::Forward) }
}

#[track_caller]
fn check_forward(units: usize, ticks: UnitTicks, none: u64, prefetch: u64) {
    assert_eq!(timeline(&without_prefetch(spec(units, Passes::Forward)), ticks).span(), none, "none");
    assert_eq!(timeline(&prefetching_forward(units), ticks).span(), prefetch, "prefetch");
}

#[track_caller]
fn check_forward_intervals(ticks: UnitTicks, gathers: [(u64, u64); 4], forwards: [(u64, u64); 4]) {
    assert_eq!(intervals(&prefetching_forward(4), ticks, "gather"), gathers);
    assert_eq!(intervals(&prefetching_forward(4), ticks, "forward"), forwards);
}

/// Three slots must do as well as four: there is one communicator.
#[track_caller]
fn check_backward(units: usize, ticks: UnitTicks, none: u64, pre: u64) {
    let pre_spec = spec(units, Passes::Backward);
    assert_eq!(timeline(&without_prefetch(pre_spec.clone()), ticks).span(), none, "none");
    assert_eq!(timeline(&pre_spec, ticks).span(), pre, "pre, 3 slots");
    assert_eq!(timeline(&PlanSpec { slots: 4, ..pre_spec }, ticks).span(), pre, "pre, 4 slots");
}

#[test]
fn c3_forward_4_1_1() {
    let ticks = forward_ticks(1, 1);
    check_forward(4, ticks, 8, 5);
    check_forward_intervals(ticks, [(0, 1), (1, 2), (2, 3), (3, 4)], [(1, 2), (2, 3), (3, 4), (4, 5)]);
}

#[test]
fn c3_forward_4_2_1() {
    let ticks = forward_ticks(2, 1);
    check_forward(4, ticks, 12, 9);
    check_forward_intervals(ticks, [(0, 1), (1, 2), (3, 4), (5, 6)], [(1, 3), (3, 5), (5, 7), (7, 9)]);
}

#[test]
fn c3_forward_4_1_2() {
    let ticks = forward_ticks(1, 2);
    check_forward(4, ticks, 12, 9);
    check_forward_intervals(ticks, [(0, 2), (2, 4), (4, 6), (6, 8)], [(2, 3), (4, 5), (6, 7), (8, 9)]);
}

#[test]
fn c3_forward_8_1_half() {
    check_forward(8, forward_ticks(2, 1), 24, 17);
}

#[test]
fn c3_forward_8_1_one_and_half() {
    check_forward(8, forward_ticks(2, 3), 40, 26);
}

#[test]
fn c3_backward_4_2_1_1() {
    let ticks = backward_ticks(2, 1, 1);
    check_backward(4, ticks, 16, 10);
    let pre = spec(4, Passes::Backward);
    assert_eq!(intervals(&pre, ticks, "gather"), [(0, 1), (1, 2), (4, 5), (6, 7)]);
    assert_eq!(intervals(&pre, ticks, "backward"), [(1, 3), (3, 5), (5, 7), (7, 9)]);
    assert_eq!(intervals(&pre, ticks, "reduce"), [(3, 4), (5, 6), (7, 8), (9, 10)]);
}

#[test]
fn c3_backward_4_2_half_half() {
    check_backward(4, backward_ticks(4, 1, 1), 24, 18);
}

#[test]
fn c3_backward_4_1_1_1() {
    check_backward(4, backward_ticks(1, 1, 1), 12, 8);
}

#[test]
fn c3_backward_4_2_one_and_half_one_and_half() {
    check_backward(4, backward_ticks(4, 3, 3), 40, 26);
}

#[test]
fn c3_backward_8_2_1_1() {
    check_backward(8, backward_ticks(2, 1, 1), 32, 18);
}

#[test]
fn c3_backward_8_2_half_half() {
    check_backward(8, backward_ticks(4, 1, 1), 48, 34);
}

#[test]
fn c3_backward_8_1_1_1() {
    check_backward(8, backward_ticks(1, 1, 1), 24, 16);
}

#[test]
fn c3_backward_8_2_one_and_half_one_and_half() {
    check_backward(8, backward_ticks(4, 3, 3), 80, 50);
}

#[test]
fn c3_backward_8_3_2_2() {
    check_backward(8, backward_ticks(3, 2, 2), 56, 34);
}

#[test]
fn exposed_communication_is_what_compute_does_not_hide() {
    let none = timeline(&without_prefetch(spec(4, Passes::Forward)), forward_ticks(2, 1)).exposed_communication();
    assert_eq!(none, Ratio { part: 4, whole: 4 }, "all of it");
    let prefetch = timeline(&prefetching_forward(4), forward_ticks(2, 1)).exposed_communication();
    assert_eq!(prefetch, Ratio { part: 1, whole: 4 }, "the first gather");
    let backward = timeline(&spec(4, Passes::Backward), backward_ticks(2, 1, 1)).exposed_communication();
    assert_eq!(backward, Ratio { part: 2, whole: 8 }, "the first gather and the last reduce");
    assert_eq!(backward.as_f64(), 0.25);
    let silent = timeline(&spec(4, Passes::Forward), forward_ticks(2, 0)).exposed_communication();
    assert_eq!((silent, silent.as_f64()), (Ratio { part: 0, whole: 0 }, 0.0));
}

/// Compute-bound training exposes the first gather of the first step, and nothing more: the last reduce runs beside the
/// optimizer of the later half, the next step's first gather beside that of the first half.
#[test]
fn training_exposes_one_gather() {
    let spec = spec(4, Passes::Training);
    let ticks = UnitTicks { forward: 2, backward: 4, gather: 1, reduce: 1, optimize: 1 };
    let timeline = plan(&spec).timeline(&Durations::uniform(4, ticks), 3).unwrap();
    let compute_of_step = 4 * (2 + 4 + 1);
    assert_eq!(timeline.span_without_communication(), 3 * compute_of_step);
    assert_eq!(timeline.span(), 3 * compute_of_step + 1);
}

#[test]
fn intervals_are_found_by_step_and_operation() {
    let spec = prefetching_forward(4);
    let timeline = plan(&spec).timeline(&Durations::uniform(4, forward_ticks(1, 1)), 2).unwrap();
    assert_eq!(timeline.interval(0, OpIndex(0)), Some(Interval { start: 0, end: 1 }));
    assert_eq!(timeline.interval(1, OpIndex(7)), Some(Interval { start: 8, end: 9 }));
    assert_eq!(timeline.interval(0, OpIndex(8)), None, "not an operation of step 0");
    assert_eq!(timeline.interval(2, OpIndex(0)), None);
    assert_eq!(timeline.communication(), 8);
}

#[test]
fn bad_durations_are_refused() {
    let plan = plan(&prefetching_forward(4));
    let one = forward_ticks(1, 1);
    assert_eq!(plan.timeline(&Durations::uniform(3, one), 1), Err(PlanError::Durations { given: 3, units: 4 }));
    let huge = forward_ticks(u64::MAX / 4, 0);
    assert!(plan.timeline(&Durations::uniform(4, huge), 1).is_ok());
    assert_eq!(plan.timeline(&Durations::uniform(4, huge), 2), Err(PlanError::TooManyTicks));
    assert_eq!(plan.timeline(&Durations::uniform(4, forward_ticks(u64::MAX / 4, 1)), 1), Err(PlanError::TooManyTicks));
}
