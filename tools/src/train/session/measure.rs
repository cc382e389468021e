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

/// The part of the time of collectives in which the rank computes nothing, over all steps but the first
/// [`TIMELINE_STEPS`], in which memory is still mapped; over all if there are no others.
pub(super) fn exposed_fraction(timeline: &[Executed], rank: u32, plan: &Plan) -> f64 {
    let late = |executed: &&Executed| step_of(executed).is_some_and(|step| step >= TIMELINE_STEPS);
    let any_late = timeline.iter().any(|executed| late(&executed));
    let of_lane = |lane: Lane| {
        let chosen = timeline.iter().filter(move |executed| {
            executed.device == rank && (late(executed) || !any_late) && lane_of(executed, plan) == Some(lane)
        });
        let mut intervals: Vec<(u64, u64)> = chosen.map(|executed| (executed.start_ns, executed.end_ns)).collect();
        intervals.sort_unstable();
        intervals
    };
    let (communication, compute) = (of_lane(Lane::Communication), of_lane(Lane::Compute));
    let total: u64 = communication.iter().map(|(start, end)| end - start).sum();
    let hidden: u64 = communication.iter().map(|&interval| covered(interval, &compute)).sum();
    if total == 0 { 0.0 } else { (total - hidden) as f64 / total as f64 }
}

/// How much of an interval others cover, which are in order of their starts.
fn covered((start, end): (u64, u64), others: &[(u64, u64)]) -> u64 {
    let (mut sum, mut reached) = (0, start);
    for &(from, to) in others {
        let (from, to) = (from.max(reached), to.min(end));
        if from < to {
            sum += to - from;
            reached = to;
        }
    }
    sum
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

    #[test]
    fn what_is_covered_twice_counts_once() {
        assert_eq!(covered((10, 20), &[(0, 12), (11, 13), (15, 16), (19, 30)]), 3 + 1 + 1);
        assert_eq!(covered((10, 20), &[]), 0);
        assert_eq!(covered((10, 20), &[(0, 50), (5, 60)]), 10);
        assert_eq!(covered((10, 20), &[(20, 30), (0, 10)]), 0);
    }

    #[test]
    fn the_median_leaves_the_first_steps_out() {
        assert_eq!(median_step_ns(&[]), 0);
        assert_eq!(median_step_ns(&[5]), 0);
        assert_eq!(median_step_ns(&[5, 9]), 4);
        assert_eq!(median_step_ns(&[0, 1000, 2000, 3000, 3010, 3020, 9999]), 10);
    }
}
