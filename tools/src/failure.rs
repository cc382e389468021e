//! Why a command did not end well: one line for people, and an exit code.
//!
//! A line names what is wrong, where, and what to do.

use std::path::{Path, PathBuf};

use highwater_kernels::cuda::BuildError;

use crate::train::session::SessionError;

/// Exit code of bad input.
pub(crate) const BAD_INPUT: u8 = 2;

/// Exit code of a command that ran, with no for an answer, or not to its end.
const NO: u8 = 1;

/// Why a command did not end well.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The input is bad; nothing was started.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The training stopped.
    #[error("{source}, while training; the steps before are in {}", run.display())]
    Run {
        /// Why.
        source: Box<SessionError>,
        /// The run folder.
        run: PathBuf,
    },
    /// A result could not be written.
    #[error("{reason}, {}; {help} or choose another with --out", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        reason: String,
        /// What can be done about it there.
        help: &'static str,
    },
    /// The terminal failed.
    #[error("{0}, drawing on the terminal")]
    Terminal(std::io::Error),
    /// What was found out could not be printed.
    #[error("{0}, writing to stdout")]
    Print(std::io::Error),
    /// The kernels do not compile, or cannot be compiled.
    #[error("{0}")]
    Kernels(BuildError),
    /// A measurement failed.
    #[error("{0}, measuring")]
    Bench(Box<dyn std::error::Error + Send + Sync>),
    /// A trace could not be replayed to its end, or the allocator broke its contract.
    #[error("{reason}, replaying {trace}")]
    Replay {
        /// The file, or the name of the generated trace.
        trace: String,
        /// Why.
        reason: String,
    },
    /// What was claimed to be proven is not.
    #[error("{reason}, checking the certificate of {trace}")]
    Certificate {
        /// The file.
        trace: String,
        /// Why.
        reason: String,
    },
    /// Kernels keep registers in memory.
    #[error(
        "{spilling} kernels spill registers on {arch}, see the lines that say so; give them fewer threads or less work"
    )]
    Spills {
        /// How many.
        spilling: usize,
        /// The architecture.
        arch: String,
    },
    /// Something that a GPU needs is not there.
    #[error("{missing} of what a GPU needs {} missing, see the lines marked so", if *missing == 1 { "is" } else { "are" })]
    Missing {
        /// How many things.
        missing: usize,
    },
    /// The evidence shows no cause.
    #[error("the evidence does not decide, {place}; see the lines under X for what to record next time")]
    Undecided {
        /// The file or folder.
        place: String,
    },
    /// The viewer does not open a snapshot.
    #[error(
        "the viewer of PyTorch does not open {wrong} of {files} snapshots, see the lines above; highwater snapshot repair mends most"
    )]
    NotViewable {
        /// How many do not open.
        wrong: usize,
        /// How many were looked at.
        files: usize,
    },
    /// The report could not be printed.
    #[error("{0}, writing the report to stdout; the results are in the run folder all the same")]
    Report(std::io::Error),
    /// The training ran to its end, and is of no use.
    #[error("the loss is not finite, from step {step} on; try a smaller --lr")]
    LossNotFinite {
        /// The first such step, from 0.
        step: u64,
    },
}

/// Input that is refused before anything starts.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum InputError {
    /// A number that must not be 0.
    #[error("0 is no {what}, {option}; give at least 1")]
    Zero {
        /// What it counts.
        what: &'static str,
        /// The option.
        option: &'static str,
    },
    /// A number above its limit.
    #[error("{value} is too large, {option}; give at most {limit}")]
    TooLarge {
        /// The number.
        value: u64,
        /// The option.
        option: &'static str,
        /// The largest that is taken.
        limit: u64,
    },
    /// The width does not split into the heads.
    #[error("{width} is not a multiple of {heads}, --width {width} with --heads {heads}; give a --width that is")]
    UnevenHeads {
        /// `--width`.
        width: u64,
        /// `--heads`.
        heads: u64,
    },
    /// The batch does not split into micro-batches.
    #[error(
        "{batch} is not a multiple of {micro_batch}, --batch {batch} with --micro-batch {micro_batch}; \
         give a --batch that is"
    )]
    UnevenBatch {
        /// `--batch`.
        batch: u64,
        /// `--micro-batch`.
        micro_batch: u64,
    },
    /// The micro-batches do not split over the ranks.
    #[error(
        "{micro_batches} micro-batches do not spread evenly over {ranks} ranks, --batch with --micro-batch and --ranks; \
         give a --batch that is a multiple of {}",
        u64::from(*ranks) * micro_batch
    )]
    UnevenRanks {
        /// Micro-batches of a step.
        micro_batches: u64,
        /// `--micro-batch`.
        micro_batch: u64,
        /// `--ranks`.
        ranks: u32,
    },
    /// No trace to replay.
    #[error("there is nothing to replay; give SNAPSHOT files, or --generate")]
    NothingToReplay,
    /// A snapshot that cannot be used.
    #[error("{reason}, {}; give a memory snapshot of PyTorch or of this project that holds a trace", path.display())]
    Snapshot {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// There is no GPU, or something that it needs is missing.
    #[error("{0}; highwater doctor tells more")]
    NoGpu(String),
    /// NCCL without GPUs.
    #[error("NCCL needs GPUs, --group nccl with --device sim; give --device cuda, or leave --group out")]
    NcclNeedsCuda,
    /// The process's place among the ranks is not told.
    #[error("{0}, --group nccl")]
    Place(String),
    /// Another number of ranks than of processes.
    #[error("{ranks} ranks are not the {world_size} of WORLD_SIZE, --ranks with --group nccl; leave --ranks out")]
    OtherWorld {
        /// `--ranks`.
        ranks: u32,
        /// `WORLD_SIZE`.
        world_size: u32,
    },
    /// A name that is no architecture.
    #[error("{0:?} is no architecture, --arch; give sm_ and its number, like sm_90")]
    Architecture(String),
    /// The allocator's settings in the environment.
    #[error("{0}, HIGHWATER_ALLOC_CONF; mend or unset it")]
    Settings(String),
    /// The learning rate is no number to learn with.
    #[error("{0} is no learning rate, --lr; give a finite number above 0")]
    LearningRate(f64),
    /// The plan of a step would be too long.
    #[error(
        "a step of {operations} operations is too long, --layers with --batch; \
         give fewer layers or micro-batches, so that it has at most {limit}"
    )]
    StepTooLong {
        /// Operations of a rank in a step, at most.
        operations: u64,
        /// The limit.
        limit: u64,
    },
    /// A file of the corpus that cannot be read.
    #[error("{reason}, reading {}; give files that can be read", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// A file that is neither a snapshot nor a text with an error.
    #[error("{reason}, {place}; give a memory snapshot, or the text of an out-of-memory error")]
    NotExplained {
        /// What was looked at.
        place: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A file with nothing in it.
    #[error("nothing is in it, {place}; was it written to its end?")]
    Empty {
        /// The file.
        place: String,
    },
    /// A folder without snapshots.
    #[error("there are no snapshots, {}; give a folder with a file for each rank", .0.display())]
    NoSnapshots(PathBuf),
    /// A device that the snapshot does not have.
    #[error("device {device} has neither events nor memory, --device with {place}; leave --device out")]
    NoDevice {
        /// `--device`.
        device: usize,
        /// The file.
        place: String,
    },
    /// A file that is no snapshot, or an empty one.
    #[error("{reason}, {place}; give a memory snapshot of PyTorch or of this project")]
    NoSnapshot {
        /// The file.
        place: String,
        /// Why not.
        reason: String,
    },
    /// A moment that a trace does not have.
    #[error("{reason}, {place}; give peak, end, the index of an event, a time like 1.5s, or mark:NAME")]
    NoMoment {
        /// Why not.
        reason: String,
        /// The file.
        place: String,
    },
    /// A part whose end comes before its beginning.
    #[error("the part ends at event {to}, before it begins at event {from}, --from with --to; give a later --to")]
    Backwards {
        /// `--from`, as an event.
        from: usize,
        /// `--to`, as an event.
        to: usize,
    },
    /// What is not written to stdout.
    #[error("{format} cannot be written to stdout, --out -; give a file")]
    NeedsAFile {
        /// The format.
        format: &'static str,
    },
    /// A format that this build does not have.
    #[error("this build cannot write Parquet, export parquet; build with --features parquet, or export sqlite")]
    #[cfg_attr(feature = "parquet", expect(dead_code, reason = "that build can"))]
    NoParquet,
    /// A stdout that nothing can be drawn on.
    #[error("stdout is no terminal, tui; run it in one, or use highwater view or highwater why")]
    NoTerminal,
    /// A result in the place of the snapshot that it is made of.
    #[error("this would take the place of the snapshot, --out {}; give another file", .0.display())]
    OverSnapshot(PathBuf),
    /// A folder where a file should be.
    #[error("this is a folder, {}; give the files in it", .0.display())]
    Folder(PathBuf),
    /// No files were given, and there is no checkout to take them from.
    #[error("there is nothing to train on, {} is in no checkout of this project; give FILES", .0.display())]
    NoCheckout(PathBuf),
    /// The corpus is shorter than a sequence.
    #[error("{bytes} bytes are too short, {place}; give at least {needed} bytes, or a smaller --seq")]
    TooShort {
        /// Bytes of the corpus.
        bytes: u64,
        /// Where they come from.
        place: String,
        /// What one sequence and its last target take.
        needed: u64,
    },
    /// The run folder holds something.
    #[error("the folder is not empty, --out {}; give a new or an empty one", .0.display())]
    OutNotEmpty(PathBuf),
    /// The run folder is something else.
    #[error("this is not a folder, --out {}; give a new or an empty folder", .0.display())]
    OutNotAFolder(PathBuf),
    /// The run folder cannot be made or looked into.
    #[error("{reason}, {}; choose another folder with --out", path.display())]
    OutFailed {
        /// The folder.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
}

impl Failure {
    /// A result at `path` could not be written.
    pub(crate) fn write(path: &Path, reason: impl ToString) -> Self {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let help = if folder.is_some_and(|folder| !folder.is_dir()) { "make its folder" } else { "free the place" };
        Failure::Write { path: path.to_owned(), reason: reason.to_string(), help }
    }

    /// A measurement failed.
    pub(crate) fn bench(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Failure::Bench(source.into())
    }

    /// What to tell, on one line.
    pub(crate) fn line(&self) -> String {
        let text = self.to_string();
        let parts: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        parts.join("; ")
    }

    /// The exit code.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Failure::Input(_) => BAD_INPUT,
            Failure::Run { .. }
            | Failure::Write { .. }
            | Failure::Terminal(_)
            | Failure::Print(_)
            | Failure::Kernels(_)
            | Failure::Missing { .. }
            | Failure::Replay { .. }
            | Failure::Certificate { .. }
            | Failure::Spills { .. }
            | Failure::Bench(_)
            | Failure::Undecided { .. }
            | Failure::NotViewable { .. }
            | Failure::Report(_)
            | Failure::LossNotFinite { .. } => NO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bad_input_exits_with_2() {
        assert_eq!(Failure::from(InputError::LearningRate(f64::NAN)).exit_code(), 2);
        assert_eq!(Failure::LossNotFinite { step: 3 }.exit_code(), 1);
        assert_eq!(Failure::write(Path::new("x"), "disk full").exit_code(), 1);
        assert_eq!(Failure::Report(std::io::Error::other("closed")).exit_code(), 1);
    }

    #[test]
    fn a_cause_of_many_lines_is_told_on_one() {
        let failure = Failure::write(Path::new("run"), "no space\n  2 of 3\n\nleft");
        assert_eq!(failure.line(), "no space; 2 of 3; left, run; free the place or choose another with --out");
        let failure = Failure::write(Path::new("no such folder/run"), "not found");
        assert_eq!(failure.line(), "not found, no such folder/run; make its folder or choose another with --out");
    }
}
