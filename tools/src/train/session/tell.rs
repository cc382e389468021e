//! Joining what the ranks report into steps.

use std::collections::BTreeMap;
use std::sync::mpsc::Receiver;

/// One step, as it is seen.
pub(crate) struct StepSeen {
    /// Its number, from 0.
    pub(crate) step: u64,
    /// Mean loss over its tokens, nats.
    pub(crate) loss: f64,
    /// The device's clock when the loss was on every host, ns.
    pub(crate) device_ns: u64,
    /// The most bytes in use so far, largest over ranks.
    pub(crate) peak_live_bytes: u64,
    /// The most physical bytes held so far, largest over ranks.
    pub(crate) peak_reserved_bytes: u64,
}

/// A rank's losses of one step.
pub(super) struct Report {
    pub(super) rank: u32,
    pub(super) step: u64,
    /// One a round: of this rank, or of all ranks in their order.
    pub(super) losses: Vec<Vec<f32>>,
    pub(super) device_ns: u64,
    pub(super) peak_live_bytes: u64,
    pub(super) peak_reserved_bytes: u64,
}

/// What has been told.
#[derive(Default)]
pub(super) struct Told {
    pub(super) losses: Vec<f64>,
    pub(super) peak_live_bytes: u64,
    pub(super) peak_reserved_bytes: u64,
    /// When each step was seen, ns.
    pub(super) seen_ns: Vec<u64>,
}

/// Joins the reports of `reporters` ranks into steps, in order.
pub(super) fn tell(reporters: usize, arriving: Receiver<Report>, seen: &mut (dyn FnMut(&StepSeen) + Send)) -> Told {
    let mut all = Told::default();
    let mut waiting: BTreeMap<u64, Vec<Report>> = BTreeMap::new();
    for report in arriving {
        let step = report.step;
        let reports = waiting.entry(step).or_default();
        reports.push(report);
        if reports.len() < reporters {
            continue;
        }
        let mut reports = waiting.remove(&step).expect("it is complete");
        reports.sort_by_key(|report| report.rank);
        let loss = total(&reports);
        let most = |of: fn(&Report) -> u64| reports.iter().map(of).max().unwrap_or(0);
        all.losses.push(loss);
        all.peak_live_bytes = all.peak_live_bytes.max(most(|report| report.peak_live_bytes));
        all.peak_reserved_bytes = all.peak_reserved_bytes.max(most(|report| report.peak_reserved_bytes));
        all.seen_ns.push(most(|report| report.device_ns));
        seen(&StepSeen {
            step,
            loss,
            device_ns: most(|report| report.device_ns),
            peak_live_bytes: all.peak_live_bytes,
            peak_reserved_bytes: all.peak_reserved_bytes,
        });
    }
    all
}

/// The sum of all losses, in the order of micro-batches, whatever the number of ranks and who reports for whom.
fn total(reports: &[Report]) -> f64 {
    let by_rank: Vec<&Vec<f32>> = reports.iter().flat_map(|report| &report.losses).collect();
    let rounds = by_rank.first().map_or(0, |losses| losses.len());
    (0..rounds).flat_map(|round| by_rank.iter().map(move |losses| f64::from(losses[round]))).sum()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn report(rank: u32, step: u64, losses: &[&[f32]]) -> Report {
        let losses = losses.iter().map(|losses| losses.to_vec()).collect();
        let device_ns = 100 * step + u64::from(rank);
        Report { rank, step, losses, device_ns, peak_live_bytes: 5 - u64::from(rank), peak_reserved_bytes: 7 }
    }

    fn told(reporters: usize, reports: Vec<Report>) -> (Told, Vec<u64>) {
        let (send, arriving) = channel();
        reports.into_iter().for_each(|report| send.send(report).unwrap());
        drop(send);
        let mut steps = Vec::new();
        let told = tell(reporters, arriving, &mut |seen| steps.push(seen.step));
        (told, steps)
    }

    #[test]
    fn a_step_is_told_when_every_rank_has_reported() {
        let (all, steps) = told(2, vec![report(1, 0, &[&[2.0]]), report(1, 1, &[&[8.0]]), report(0, 0, &[&[1.0]])]);
        assert_eq!((steps, &*all.losses), (vec![0], &[3.0][..]));
        assert_eq!((all.peak_live_bytes, &*all.seen_ns), (5, &[1][..]));
    }

    #[test]
    fn losses_are_added_in_the_order_of_micro_batches() {
        // 1e8 + 1 is 1e8 in neither order of f64; with these the order shows.
        let big = 9_007_199_254_740_992.0f32;
        let separate = told(2, vec![report(1, 0, &[&[1.0, 1.0]]), report(0, 0, &[&[big, -big]])]).0.losses;
        let together = told(1, vec![report(0, 0, &[&[big, -big], &[1.0, 1.0]])]).0.losses;
        assert_eq!(separate, together);
        assert_eq!(separate, [f64::from(big) + 1.0 - f64::from(big) + 1.0]);
    }
}
