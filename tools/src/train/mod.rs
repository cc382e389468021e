//! `highwater train`: from the command line to the run folder.
//!
//! What can be wrong with the input is found before anything is made; the run folder comes last. The training itself is
//! in [`session`]; all else here is what it is given and what becomes of it.

mod batches;
mod check;
mod checkout;
mod corpus;
mod machine;
mod metrics;
mod pace;
mod progress;
mod report;
mod run_folder;
pub(crate) mod session;
mod text;
mod timeline;

use std::io;
use std::path::Path;
use std::time::Instant;

use highwater::Settings;

use crate::cli::TrainArgs;
use crate::failure::{Failure, InputError};
use crate::output;
use corpus::Corpus;
use machine::Machine;
use metrics::Metrics;
use pace::Pace;
use progress::Progress;
use report::Report;
use run_folder::RunFolder;
use session::{Job, Outcome, StepSeen};

/// Trains as the command line says.
///
/// # Errors
/// Bad input, a training that stops, results that cannot be written, and a loss that is not finite.
pub(crate) fn run(arguments: &TrainArgs) -> Result<(), Failure> {
    let (machine, ranks) = Machine::choose(arguments)?;
    check::check(arguments, ranks)?;
    Settings::from_environment().map_err(|error| InputError::Settings(error.to_string()))?;
    // Each process of several has a folder of its own.
    let out = arguments.out.as_ref().map(|out| machine.folder().map_or(out.clone(), |own| out.join(own)));
    if let Some(out) = &out {
        RunFolder::check(out)?;
    }
    let start = std::env::current_dir()
        .map_err(|error| InputError::Unreadable { path: ".".into(), reason: error.to_string() })?;
    let corpus = Corpus::read(&arguments.files, &start)?;
    corpus.check_length(arguments.seq)?;
    let folder = RunFolder::create(out.as_deref(), &start)?;

    let job = check::job(arguments, ranks, corpus.bytes.clone());
    let stopped = |source| Failure::Run { source: Box::new(source), run: folder.path().to_owned() };
    let plan = session::plan(&job).map_err(stopped)?;
    let quiet = arguments.json || !machine.tells();
    if !quiet {
        output::print(&format!("{plan}\n")).map_err(Failure::Report)?;
    }
    let mut watch = Watch::new(&job, &folder, quiet)?;
    let trained = session::train(&job, &machine, plan, &mut |seen| watch.see(seen));
    watch.progress.finish();
    let outcome = trained.map_err(stopped)?;

    let saved = save(&outcome, &folder);
    let report = Report {
        outcome: &outcome,
        unigram_entropy: corpus.unigram_entropy(),
        tokens_per_s: watch.pace.tokens_per_s(),
        run: folder.path(),
    };
    if machine.tells() {
        report.print(arguments.json).map_err(Failure::Report)?;
    }
    // Told after the report: what has been computed is worth showing all the same.
    saved?;
    watch.written.map_err(|error| Failure::write(&folder.metrics(), error))?;
    check_losses(&outcome.losses)
}

/// What is done with each step that is seen.
struct Watch {
    metrics: Metrics,
    progress: Progress,
    pace: Pace,
    /// The first failure to write metrics; the training goes on without them.
    written: io::Result<()>,
}

impl Watch {
    fn new(job: &Job, folder: &RunFolder, quiet: bool) -> Result<Self, Failure> {
        let tokens_per_step = (job.batch * job.seq) as u64;
        let path = folder.metrics();
        Ok(Watch {
            metrics: Metrics::create(&path, tokens_per_step).map_err(|error| Failure::write(&path, error))?,
            progress: Progress::new(job.steps, quiet),
            pace: Pace::new(tokens_per_step, Instant::now()),
            written: Ok(()),
        })
    }

    fn see(&mut self, seen: &StepSeen) {
        let wall = self.pace.see(Instant::now());
        if self.written.is_ok() {
            self.written = self.metrics.add(seen, wall);
        }
        self.progress.show(seen, self.pace.tokens_per_s());
    }
}

/// Writes what is known only at the end. One file that fails does not keep the other from being written.
fn save(outcome: &Outcome, folder: &RunFolder) -> Result<(), Failure> {
    let failed = |path: &Path, error: &dyn std::error::Error| Failure::write(path, error);
    let snapshot = outcome.snapshot.save(folder.snapshot()).map_err(|error| failed(&folder.snapshot(), &error.source));
    let timeline = timeline::save(&outcome.timeline, &folder.timeline());
    snapshot.and(timeline.map_err(|error| failed(&folder.timeline(), &error)))
}

/// A training whose loss is no number has run, and is of no use.
fn check_losses(losses: &[f64]) -> Result<(), Failure> {
    match losses.iter().position(|loss| !loss.is_finite()) {
        Some(step) => Err(Failure::LossNotFinite { step: step as u64 }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_loss_that_is_not_finite_is_told() {
        assert!(check_losses(&[3.0, 0.0, -1.0]).is_ok());
        for loss in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let failure = check_losses(&[3.0, loss, f64::NAN]).unwrap_err();
            assert!(matches!(failure, Failure::LossNotFinite { step: 1 }));
        }
    }
}
