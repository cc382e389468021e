//! What a timeline says of a training's steps.

use highwater::device::Executed;
use highwater_fsdp::plan::{Lane, Plan};

use super::TIMELINE_STEPS;

/// The step that an operation belongs to.
pub(super) fn step_of(executed: &Executed) -> Option<u64> {
    (executed.tag >> 32).checked_sub(1)
}

/// The lane of an operation of the plan.
fn lane_of(executed: &Executed, plan: &Plan) -> Option<Lane> {
    step_of(executed)?;
    let index = usize::try_from(executed.tag & u64::from(u32::MAX)).ok()?;
    Some(plan.ops().get(index)?.lane())
}

/// The operations of the first and last steps, with the copies around them.
pub(super) fn windows(timeline: Vec<Executed>, steps: u64) -> Vec<Executed> {
    let last = steps.saturating_sub(TIMELINE_STEPS);
    let wanted = |step: u64| step < TIMELINE_STEPS || step >= last;
    let end_of_first =
        timeline.iter().filter(|e| step_of(e).is_some_and(|step| step < TIMELINE_STEPS)).map(|e| e.end_ns).max();
    let start_of_last =
        timeline.iter().filter(|e| step_of(e).is_some_and(|step| step >= last)).map(|e| e.start_ns).min();
    let inside = |executed: &Executed| match step_of(executed) {
        Some(step) => wanted(step),
        None => {
            end_of_first.is_some_and(|end| executed.start_ns <= end)
                || start_of_last.is_some_and(|start| executed.end_ns >= start)
        }
    };
    timeline.into_iter().filter(inside).collect()
}

/// The time for which computation stands still because of collectives, as a part of their own time: over all steps but
/// the first [`TIMELINE_STEPS`], in which memory is still mapped; over all if there are no others.
///
/// A computation that waits for collectives stands still from when it could have begun (it was submitted, and the one
/// before it had ended) until the last of them ends.
pub(super) fn exposed_fraction(timeline: &[Executed], rank: u32, plan: &Plan) -> f64 {
    let late = |executed: &Executed| step_of(executed).is_some_and(|step| step >= TIMELINE_STEPS);
    let any_late = timeline.iter().any(late);
    let of_lane = |lane: Lane| {
        let chosen = |executed: &&Executed| executed.device == rank && lane_of(executed, plan) == Some(lane);
        let mut operations: Vec<&Executed> = timeline.iter().filter(chosen).collect();
        operations.sort_by_key(|executed| executed.id);
        operations
    };
    let counts = |executed: &Executed| late(executed) || !any_late;
    let (communication, compute) = (of_lane(Lane::Communication), of_lane(Lane::Compute));
    let total: u64 = communication.iter().filter(|e| counts(e)).map(|e| e.end_ns - e.start_ns).sum();
    let (mut exposed, mut before_ns) = (0, 0);
    // The first one is left out: what ran before it is not known.
    for executed in compute.into_iter().filter(|e| counts(e)) {
        let collective = |id: &u64| communication.binary_search_by_key(id, |e| e.id).ok();
        let ends = executed.waited.iter().filter_map(collective).map(|index| communication[index].end_ns);
        if let Some(end_ns) = ends.max().filter(|_| before_ns > 0) {
            exposed += end_ns.saturating_sub(before_ns.max(executed.submitted_ns));
        }
        before_ns = executed.end_ns;
    }
    if total == 0 { 0.0 } else { exposed as f64 / total as f64 }
}

/// The median time from one moment to the next, but for the first few; 0 where there are not two.
pub(super) fn median_step_ns(seen_ns: &[u64]) -> u64 {
    let skipped = usize::try_from(TIMELINE_STEPS).expect("it is small").min(seen_ns.len().saturating_sub(2));
    let mut steps: Vec<u64> = seen_ns[skipped..].windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    steps.sort_unstable();
    steps.get(steps.len() / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::sync::Arc;

    use highwater::device::{ExecutedKind, StreamId};
    use highwater_fsdp::plan::{PlanSpec, UnitSpec};

    /// A plan of two units, and its first operation of each lane.
    fn plan() -> (Plan, u64, u64) {
        let plan = Plan::new(&PlanSpec::new(vec![UnitSpec::new("a", 512), UnitSpec::new("b", 512)], 1)).unwrap();
        let first = |lane| plan.ops().iter().position(|op| op.lane() == lane).unwrap() as u64;
        let (communication, compute) = (first(Lane::Communication), first(Lane::Compute));
        (plan, communication, compute)
    }

    fn ran(id: u64, op: u64, submitted_ns: u64, times_ns: (u64, u64), waited: &[u64]) -> Executed {
        Executed {
            id,
            device: 0,
            stream: StreamId(op),
            stream_name: Arc::from("lane"),
            name: "operation".into(),
            tag: (TIMELINE_STEPS + 1) << 32 | op,
            submitted_ns,
            start_ns: times_ns.0,
            end_ns: times_ns.1,
            kind: ExecutedKind::Kernel,
            operands: Vec::new(),
            waited: waited.to_vec(),
        }
    }

    #[test]
    fn a_collective_is_exposed_while_a_computation_could_run_but_for_it() {
        let (plan, gather, forward) = plan();
        let exposed = |operations: &[Executed]| exposed_fraction(operations, 0, &plan);
        let collective = ran(1, gather, 0, (50, 150), &[]);
        let before = |end| ran(0, forward, 0, (1, end), &[]);
        let waiting = |submitted| ran(2, forward, submitted, (150, 200), &[1]);
        assert_eq!(exposed(&[before(20), collective.clone(), waiting(60)]), 0.9, "from the submission on");
        assert_eq!(exposed(&[before(110), collective.clone(), waiting(60)]), 0.4, "from the end before");
        assert_eq!(exposed(&[before(20), collective.clone(), waiting(500)]), 0.0, "the host came later");
        assert_eq!(
            exposed(&[before(20), collective.clone(), ran(2, forward, 60, (150, 200), &[])]),
            0.0,
            "nobody waits"
        );
        assert_eq!(exposed(&[collective.clone(), waiting(60)]), 0.0, "what ran before is not known");
        assert_eq!(exposed(&[before(20), waiting(60)]), 0.0, "there is no communication");
        assert_eq!(exposed_fraction(&[before(20), collective, waiting(60)], 1, &plan), 0.0, "another rank's");
    }

    #[test]
    fn the_median_leaves_the_first_steps_out() {
        assert_eq!(median_step_ns(&[]), 0);
        assert_eq!(median_step_ns(&[5]), 0);
        assert_eq!(median_step_ns(&[5, 9]), 4);
        assert_eq!(median_step_ns(&[0, 1000, 2000, 3000, 3010, 3020, 9999]), 10);
    }
}
