//! What a training came to, at its end: a table for people or one object for machines, on stdout.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use serde::Serialize;

use super::session::{Clock, Outcome};
use super::text;
use crate::output;

/// The steps at the end whose mean loss is told.
const LAST_STEPS: usize = 20;

/// All that is told.
pub(crate) struct Report<'a> {
    /// What the training gave.
    pub(crate) outcome: &'a Outcome,
    /// Nats.
    pub(crate) unigram_entropy: f64,
    /// On the wall's clock.
    pub(crate) tokens_per_s: f64,
    /// The run folder.
    pub(crate) run: &'a Path,
}

/// The object for machines. Losses are null when they are not finite.
#[derive(Serialize)]
struct Numbers {
    steps: usize,
    ranks: u32,
    /// Of the first step.
    loss_first: f64,
    /// Mean of the last steps.
    loss_last: f64,
    unigram_entropy: f64,
    tokens_per_s: f64,
    peak_unsharded_bytes: u64,
    peak_unsharded_predicted_bytes: u64,
    peak_live_bytes: u64,
    peak_reserved_bytes: u64,
    host_syncs_per_step: f64,
    late_driver_memory_calls: u64,
    exposed_comm_fraction: f64,
    step_ns: u64,
    parameters_digest: String,
    run_dir: String,
}

impl Report<'_> {
    /// Prints it.
    ///
    /// # Errors
    /// As [`output::print`].
    pub(crate) fn print(&self, json: bool) -> io::Result<()> {
        output::print(&if json { self.json() } else { self.table() })
    }

    fn json(&self) -> String {
        let outcome = self.outcome;
        let loss = |loss: Option<&f64>| loss.copied().unwrap_or(f64::NAN);
        let numbers = Numbers {
            steps: outcome.losses.len(),
            ranks: outcome.plan.spec().ranks,
            loss_first: loss(outcome.losses.first()),
            loss_last: mean_of_last(&outcome.losses),
            unigram_entropy: self.unigram_entropy,
            tokens_per_s: self.tokens_per_s,
            peak_unsharded_bytes: outcome.peak_unsharded_bytes,
            peak_unsharded_predicted_bytes: outcome.peak_unsharded_predicted_bytes,
            peak_live_bytes: outcome.peak_live_bytes,
            peak_reserved_bytes: outcome.peak_reserved_bytes,
            host_syncs_per_step: outcome.host_syncs_per_step,
            late_driver_memory_calls: outcome.late_driver_memory_calls,
            exposed_comm_fraction: outcome.exposed_comm_fraction,
            step_ns: outcome.step_ns,
            parameters_digest: self.digest(),
            run_dir: self.run.to_string_lossy().into_owned(),
        };
        serde_json::to_string(&numbers).expect("numbers and text are JSON") + "\n"
    }

    fn table(&self) -> String {
        let mut table = String::new();
        for (name, value) in self.rows() {
            writeln!(table, "{name:<22}  {value}").expect("a text takes any text");
        }
        table
    }

    fn rows(&self) -> Vec<(&'static str, String)> {
        let outcome = self.outcome;
        let (plan, losses) = (&outcome.plan, &outcome.losses);
        let (spec, waits) = (plan.spec(), plan.edges().count());
        let clock = match outcome.clock {
            Clock::Virtual => "virtual time",
            Clock::Measured => "measured",
        };
        let peak = |bytes: u64| format!("{} ({} B)", text::bytes(bytes), text::grouped(bytes));
        vec![
            ("ranks", spec.ranks.to_string()),
            (
                "plan",
                format!(
                    "{} units, {} slots of {}, {waits} edges",
                    spec.units.len(),
                    spec.slots,
                    text::bytes(plan.slot_bytes())
                ),
            ),
            ("unsharded, predicted", peak(outcome.peak_unsharded_predicted_bytes)),
            ("unsharded, measured", peak(outcome.peak_unsharded_bytes)),
            ("peak live", peak(outcome.peak_live_bytes)),
            ("peak reserved", peak(outcome.peak_reserved_bytes)),
            ("exposed communication", format!("{:.1} %, {clock}", outcome.exposed_comm_fraction * 100.0)),
            ("host synchronisations", format!("{} a step and rank", outcome.host_syncs_per_step)),
            ("driver memory calls", format!("{} after the second step", outcome.late_driver_memory_calls)),
            ("step", format!("{}, {clock}", text::nanoseconds(outcome.step_ns))),
            (
                "loss",
                format!(
                    "{:.4} nats, mean of the last {} of {} steps",
                    mean_of_last(losses),
                    losses.len().min(LAST_STEPS),
                    losses.len()
                ),
            ),
            ("unigram entropy", format!("{:.4} nats", self.unigram_entropy)),
            ("tokens/s", format!("{}, wall time", text::grouped(self.tokens_per_s as u64))),
            ("parameters", self.digest()),
            ("run folder", self.run.display().to_string()),
        ]
    }

    fn digest(&self) -> String {
        format!("{:016x}", self.outcome.parameters_digest)
    }
}

fn mean_of_last(losses: &[f64]) -> f64 {
    let last = &losses[losses.len().saturating_sub(LAST_STEPS)..];
    last.iter().sum::<f64>() / last.len() as f64
}

#[cfg(test)]
mod tests {
    use highwater::history::Snapshot;
    use highwater_fsdp::plan::{Plan, PlanSpec, UnitSpec};
    use serde_json::{Value, json};

    use super::*;

    fn outcome(losses: Vec<f64>) -> Outcome {
        let spec = PlanSpec::new(vec![UnitSpec::new("a", 4000), UnitSpec::new("b", 8000)], 4);
        Outcome {
            losses,
            plan: Plan::new(&spec).unwrap(),
            peak_unsharded_bytes: 12_001,
            peak_unsharded_predicted_bytes: 12_000,
            peak_live_bytes: 3_400_000,
            peak_reserved_bytes: 4_194_304,
            host_syncs_per_step: 0.0,
            late_driver_memory_calls: 3,
            clock: Clock::Virtual,
            exposed_comm_fraction: 0.125,
            step_ns: 1_250_000,
            parameters_digest: 0xab_cdef,
            snapshot: Snapshot::new(),
            timeline: Vec::new(),
        }
    }

    fn report(outcome: &Outcome) -> Report<'_> {
        Report { outcome, unigram_entropy: 3.25, tokens_per_s: 1234.5, run: Path::new("runs/7") }
    }

    #[test]
    fn the_object_has_these_keys_and_no_other() {
        let text = report(&outcome(vec![5.5, 4.0, 2.5])).json();
        assert_eq!(text.lines().count(), 1);
        let expected = json!({
            "steps": 3, "ranks": 4, "loss_first": 5.5, "loss_last": 4.0, "unigram_entropy": 3.25,
            "tokens_per_s": 1234.5, "peak_unsharded_bytes": 12_001, "peak_unsharded_predicted_bytes": 12_000,
            "peak_live_bytes": 3_400_000, "peak_reserved_bytes": 4_194_304, "host_syncs_per_step": 0.0, "late_driver_memory_calls": 3,
            "exposed_comm_fraction": 0.125, "step_ns": 1_250_000, "parameters_digest": "0000000000abcdef", "run_dir": "runs/7",
        });
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
    }

    #[test]
    fn a_loss_that_is_no_number_is_null() {
        let numbers: Value = serde_json::from_str(&report(&outcome(vec![1.0, f64::INFINITY])).json()).unwrap();
        assert_eq!((&numbers["loss_first"], &numbers["loss_last"]), (&json!(1.0), &Value::Null));
    }

    #[test]
    fn the_table_tells_each_number_once() {
        let losses = (0..30).map(f64::from).collect();
        let outcome = outcome(losses);
        let edges = outcome.plan.edges().count();
        let table = report(&outcome).table();
        let expected = format!(
            "ranks                   4\n\
             plan                    2 units, 3 slots of 8.00 kB, {edges} edges\n\
             unsharded, predicted    12.00 kB (12,000 B)\n\
             unsharded, measured     12.00 kB (12,001 B)\n\
             peak live               3.40 MB (3,400,000 B)\n\
             peak reserved           4.19 MB (4,194,304 B)\n\
             exposed communication   12.5 %, virtual time\n\
             host synchronisations   0 a step and rank\n\
             driver memory calls     3 after the second step\n\
             step                    1.25 ms, virtual time\n\
             loss                    19.5000 nats, mean of the last 20 of 30 steps\n\
             unigram entropy         3.2500 nats\n\
             tokens/s                1,234, wall time\n\
             parameters              0000000000abcdef\n\
             run folder              runs/7\n"
        );
        assert_eq!(table, expected);
    }

    #[test]
    fn the_mean_is_over_what_there_is() {
        assert_eq!(mean_of_last(&[1.0, 3.0]), 2.0);
        assert_eq!(mean_of_last(&[9.0; 40]), 9.0);
        let mut losses = vec![100.0; 5];
        losses.extend([1.0; 20]);
        assert_eq!(mean_of_last(&losses), 1.0);
    }
}
