//! What is seen of a training while it goes on, on stderr: a bar on a terminal, else a line now and then, and nothing
//! when a machine reads.

use std::io::{self, IsTerminal, Write};

use indicatif::{ProgressBar, ProgressStyle};

use super::session::StepSeen;
use super::text;

/// Steps from one line to the next.
const LINE_STEPS: u64 = 50;

/// How progress is shown.
pub(crate) enum Progress {
    /// A bar, drawn over itself.
    Bar(ProgressBar),
    /// Lines, for a log; the number is the steps of the training.
    Lines(u64),
    /// Nothing.
    Quiet,
}

impl Progress {
    /// As fits stderr.
    pub(crate) fn new(steps: u64, quiet: bool) -> Self {
        if quiet {
            return Progress::Quiet;
        }
        if !io::stderr().is_terminal() {
            return Progress::Lines(steps);
        }
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}").expect("the template is well-formed");
        Progress::Bar(ProgressBar::new(steps).with_style(style))
    }

    /// One more step was seen.
    pub(crate) fn show(&self, seen: &StepSeen, tokens_per_s: f64) {
        let done = seen.step + 1;
        match self {
            Progress::Bar(bar) => {
                bar.set_position(done);
                bar.set_message(facts(seen, tokens_per_s));
            }
            Progress::Lines(steps) if is_line(done) => {
                // Nobody reads it if it cannot be written.
                let _ = writeln!(io::stderr(), "step {done}/{steps}  {}", facts(seen, tokens_per_s));
            }
            Progress::Lines(_) | Progress::Quiet => {}
        }
    }

    /// The training is over: a bar goes away, as the report says more.
    pub(crate) fn finish(&self) {
        if let Progress::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

fn is_line(done: u64) -> bool {
    done.is_multiple_of(LINE_STEPS)
}

fn facts(seen: &StepSeen, tokens_per_s: f64) -> String {
    let (rate, peak) = (text::grouped(tokens_per_s as u64), text::bytes(seen.peak_live_bytes));
    format!("loss {:.4}  {rate} tokens/s  peak {peak}", seen.loss)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_told_by_loss_rate_and_peak() {
        let seen = StepSeen { step: 9, loss: 2.5, device_ns: 0, peak_live_bytes: 1_500_000, peak_reserved_bytes: 0 };
        assert_eq!(facts(&seen, 12_345.6), "loss 2.5000  12,345 tokens/s  peak 1.50 MB");
    }
}
