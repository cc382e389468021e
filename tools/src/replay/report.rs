//! What is told of a replay: one object for machines, or a few lines for people.

use serde::Serialize;

use super::drive::Outcome;
use super::script::Script;
use crate::bound::lower::{Bound, Frontier};

/// What came of replaying one trace. Sizes are bytes; times say their unit.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Report {
    /// The file, or the name of the generated trace.
    pub(crate) trace: String,
    /// Events of the trace.
    pub(crate) events: usize,
    /// Most bytes live at once, as asked for.
    pub(crate) peak_live_bytes: u64,
    /// Most physical bytes held at once.
    pub(crate) peak_reserved_bytes: u64,
    /// The one divided by the other.
    pub(crate) utilization: f64,
    /// The most that any allocator can have that makes the program at most 1 % slower.
    pub(crate) lower_bound_utilization: f64,
    /// Time of the device's work divided by that with unlimited memory.
    pub(crate) critical_path_ratio: f64,
    /// Time that streams stood still for waits that are not the program's, over all streams.
    pub(crate) added_device_wait_us: f64,
    /// Host time of an allocation or free, mean.
    pub(crate) ns_per_op: f64,
    /// Host time of an allocation.
    pub(crate) alloc_ns: Percentiles,
    /// Handles that changed their place; null if the allocator does not count them.
    pub(crate) pages_moved: Option<u64>,
    /// Host time of driver memory calls.
    pub(crate) page_seconds: f64,
    /// Time from the first event to the last.
    pub(crate) trace_seconds: f64,
    /// Driver memory calls in the second half of the requests and frees.
    pub(crate) driver_memory_calls_second_half: u64,
    /// Times that a request blocked the host.
    pub(crate) host_stalls: u64,
    /// Waits that the allocator put on streams.
    pub(crate) waits_inserted: u64,
    /// How far the device was behind the host.
    pub(crate) behind_us: u64,
    /// The most that any allocator can have, by how much slower the program may become.
    pub(crate) frontier: Vec<FrontierPoint>,
    /// Reads of blocks that found other bytes than were written; null if they were not compared.
    pub(crate) mismatches: Option<usize>,
}

/// One point of the frontier.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct FrontierPoint {
    /// The critical path may be this many times that with unlimited memory.
    pub(crate) critical_path_ratio: f64,
    /// No allocator's utilization is above this, then.
    pub(crate) utilization_at_most: f64,
    /// The best that this allocator has shown within that, with a limit or without; null if it was not tried.
    pub(crate) utilization_reached: Option<f64>,
}

/// Of many times: those that half, 99 % and 99.9 % of them do not exceed, and the largest.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub(crate) struct Percentiles {
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
}

impl Percentiles {
    /// Those of `times`.
    pub(crate) fn of(mut times: Vec<u64>) -> Self {
        times.sort_unstable();
        let at = |per_mille: usize| {
            let rank = (times.len() * per_mille).div_ceil(1000);
            times.get(rank.saturating_sub(1)).copied().unwrap_or(0)
        };
        Percentiles { p50: at(500), p99: at(990), p999: at(999), max: at(1000) }
    }
}

impl Report {
    /// What came of a replay.
    pub(crate) fn new(trace: String, script: &Script, behind_us: u64, verified: bool, outcome: Outcome) -> Self {
        let Outcome { counters, calls, .. } = outcome;
        let ops = outcome.alloc_ns.len() as u64 + outcome.frees;
        let op_ns = outcome.alloc_ns.iter().sum::<u64>() + outcome.free_ns;
        let frontier = Frontier::of(script, behind_us.saturating_mul(1000));
        let frontier = frontier.points().map(|(ratio, Bound { bytes, .. })| FrontierPoint {
            critical_path_ratio: ratio,
            utilization_at_most: ratio_of(counters.peak_live_bytes, *bytes),
            utilization_reached: None,
        });
        let frontier: Vec<_> = frontier.collect();
        Report {
            trace,
            events: script.events,
            peak_live_bytes: counters.peak_live_bytes,
            peak_reserved_bytes: counters.peak_reserved_bytes,
            utilization: ratio_of(counters.peak_live_bytes, counters.peak_reserved_bytes),
            lower_bound_utilization: frontier[Frontier::ASKED].utilization_at_most,
            critical_path_ratio: ratio_of(outcome.makespan_ns, outcome.ideal_ns),
            added_device_wait_us: outcome.added_wait_ns as f64 / 1e3,
            ns_per_op: ratio_of(op_ns, ops),
            alloc_ns: Percentiles::of(outcome.alloc_ns),
            pages_moved: counters.pages_moved,
            page_seconds: calls.page_ns as f64 / 1e9,
            trace_seconds: script.span_ns as f64 / 1e9,
            driver_memory_calls_second_half: calls.page_calls - outcome.page_calls_first_half,
            host_stalls: counters.host_stalls,
            waits_inserted: counters.waits_inserted,
            behind_us,
            frontier,
            mismatches: verified.then_some(outcome.mismatches.len()),
        }
    }

    /// Adds what replays under limits have shown: the utilization and the ratio of the critical path of each.
    pub(crate) fn add_reached(&mut self, shown: &[(f64, f64)]) {
        for point in &mut self.frontier {
            // To two digits: mapping memory the first time takes some of the critical path anyway.
            let within = |&&(_, ratio): &&(f64, f64)| ratio < point.critical_path_ratio + 0.005;
            point.utilization_reached =
                shown.iter().filter(within).map(|&(utilization, _)| utilization).reduce(f64::max);
        }
    }

    /// For machines, with the end of the line.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers and text are JSON") + "\n"
    }

    /// For people, with the end of the last line.
    pub(crate) fn text(&self) -> String {
        let Report { trace, events, behind_us, trace_seconds, .. } = self;
        let mut text = format!("{trace}: {events} events, {trace_seconds:.3} s, device {behind_us} us behind\n");
        let mut line = |name: &str, value: String| text.push_str(&format!("  {name:<22} {value}\n"));
        line("peak live", gigabytes(self.peak_live_bytes));
        line("peak reserved", gigabytes(self.peak_reserved_bytes));
        let (reached, most) = (self.utilization, self.lower_bound_utilization);
        line("utilization", format!("{reached:.4}, no allocator has more than {most:.4}"));
        line("critical path", format!("{:.4} times that with unlimited memory", self.critical_path_ratio));
        line("waits inserted", format!("{}, {:.1} us of streams", self.waits_inserted, self.added_device_wait_us));
        line("host stalls", self.host_stalls.to_string());
        let part = self.page_seconds / self.trace_seconds.max(f64::MIN_POSITIVE) * 100.0;
        line("driver memory calls", format!("{:.3} s, {part:.2} % of the trace", self.page_seconds));
        line("  in the second half", self.driver_memory_calls_second_half.to_string());
        line("pages moved", self.pages_moved.map_or("not counted".to_owned(), |moved| moved.to_string()));
        let Percentiles { p50, p99, p999, max } = self.alloc_ns;
        line("an allocation", format!("{p50} ns (99 %: {p99}, 99.9 %: {p999}, longest {max})"));
        line("allocation or free", format!("{:.0} ns, mean", self.ns_per_op));
        if let Some(mismatches) = self.mismatches {
            line("wrong bytes", format!("in {mismatches} reads"));
        }
        let tried = self.frontier.iter().any(|point| point.utilization_reached.is_some());
        if tried || self.frontier.iter().any(|point| point.utilization_at_most < FULL) {
            line("frontier", "by how much longer the program may take".to_owned());
            for point in &self.frontier {
                let reached = point.utilization_reached.map(|reached| format!(", and {reached:.4} was reached"));
                let (name, reached) =
                    (format!("  {:.2} times", point.critical_path_ratio), reached.unwrap_or_default());
                line(&name, format!("no allocator has more than {:.4}{reached}", point.utilization_at_most));
            }
        }
        if self.frontier.iter().any(|point| point.utilization_at_most < FULL) {
            line("", "blocks that other streams still use cannot be reused without waiting for them".to_owned());
        }
        text
    }
}

/// Above this the limits of the frontier say nothing: rounding to whole pages is what is left.
const FULL: f64 = 0.99;

/// `part` of `whole`; 0 of nothing.
pub(crate) fn ratio_of(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.3} GB", bytes as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_reached_is_the_best_within_the_time() {
        let script = crate::replay::generate::script(crate::cli::Generated::Moe);
        let outcome = crate::replay::drive::tests::played(&script);
        let mut report = Report::new("moe".into(), &script, 0, false, outcome);
        assert!(report.frontier.windows(2).all(|pair| pair[0].utilization_at_most <= pair[1].utilization_at_most));
        assert!(report.text().contains("cannot be reused without waiting") && !report.text().contains("was reached"));
        report.add_reached(&[(0.5, 1.004), (0.7, 1.006), (0.6, 1.02), (0.9, 1.06)]);
        let reached: Vec<_> = report.frontier.iter().map(|point| point.utilization_reached).collect();
        assert_eq!(reached, [Some(0.5), Some(0.7), Some(0.7)]);
        assert!(report.text().contains("and 0.5000 was reached"));
        report.add_reached(&[]);
        assert!(report.frontier.iter().all(|point| point.utilization_reached.is_none()));
    }

    #[test]
    fn percentiles_are_times_that_occurred() {
        assert_eq!(Percentiles::of(Vec::new()), Percentiles::default());
        assert_eq!(Percentiles::of(vec![7]), Percentiles { p50: 7, p99: 7, p999: 7, max: 7 });
        let times: Vec<u64> = (1..=2000).rev().collect();
        assert_eq!(Percentiles::of(times), Percentiles { p50: 1000, p99: 1980, p999: 1998, max: 2000 });
    }
}
