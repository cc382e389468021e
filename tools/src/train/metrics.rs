//! The numbers of each step, in a file of one JSON object a line.
//!
//! A line is given to the system whole, at once: a run that is killed leaves whole lines, and none is late.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::session::StepSeen;

/// The file.
pub(crate) struct Metrics {
    file: File,
    tokens_per_step: u64,
}

/// One line of it.
#[derive(Serialize)]
struct Line {
    /// The step, from 0.
    step: u64,
    /// Mean loss over the step's tokens, nats; null if it is not finite.
    loss: f64,
    /// Tokens trained on so far, with this step's.
    tokens: u64,
    /// Since the training began, on the wall's clock, s.
    wall_s: f64,
    /// The most bytes in use so far, largest over ranks.
    peak_live_bytes: u64,
    /// The most physical bytes held so far, largest over ranks.
    peak_reserved_bytes: u64,
    /// Virtual time when the loss was on every host, ns.
    device_ns: u64,
}

impl Metrics {
    /// A new file at `path`.
    ///
    /// # Errors
    /// When it cannot be made, or is there already.
    pub(crate) fn create(path: &Path, tokens_per_step: u64) -> io::Result<Self> {
        Ok(Metrics { file: File::create_new(path)?, tokens_per_step })
    }

    /// Adds the line of a step that was seen `wall` after the training began.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn add(&mut self, seen: &StepSeen, wall: Duration) -> io::Result<()> {
        let line = Line {
            step: seen.step,
            loss: seen.loss,
            tokens: (seen.step + 1) * self.tokens_per_step,
            wall_s: wall.as_secs_f64(),
            peak_live_bytes: seen.peak_live_bytes,
            peak_reserved_bytes: seen.peak_reserved_bytes,
            device_ns: seen.device_ns,
        };
        let mut text = serde_json::to_vec(&line)?;
        text.push(b'\n');
        self.file.write_all(&text)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};

    use super::*;
    use crate::scratch::Scratch;

    fn seen(step: u64, loss: f64) -> StepSeen {
        StepSeen { step, loss, device_ns: 77, peak_live_bytes: 10, peak_reserved_bytes: 20 }
    }

    #[test]
    fn every_step_is_on_a_line_before_the_next_one() {
        let scratch = Scratch::new();
        let path = scratch.path().join("metrics.jsonl");
        let mut metrics = Metrics::create(&path, 100).unwrap();
        for step in 0..3 {
            metrics.add(&seen(step, 0.5), Duration::from_millis(1500)).unwrap();
            // Read while it is open: this is what a killed run leaves.
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.ends_with('\n'));
            let last: Value = serde_json::from_str(text.lines().nth(step as usize).unwrap()).unwrap();
            let expected = json!({
                "step": step, "loss": 0.5, "tokens": (step + 1) * 100, "wall_s": 1.5,
                "peak_live_bytes": 10, "peak_reserved_bytes": 20, "device_ns": 77,
            });
            assert_eq!(last, expected);
        }
    }

    #[test]
    fn a_loss_that_is_no_number_is_still_json() {
        let scratch = Scratch::new();
        let path = scratch.path().join("metrics.jsonl");
        Metrics::create(&path, 1).unwrap().add(&seen(0, f64::NAN), Duration::ZERO).unwrap();
        let line: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(line["loss"], Value::Null);
    }

    #[test]
    fn a_file_that_is_there_is_kept() {
        let scratch = Scratch::new();
        let path = scratch.write("metrics.jsonl", "of another run");
        assert!(Metrics::create(&path, 1).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "of another run");
    }
}
