//! The command line of `highwater snapshot`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use highwater::history::inspect::When;

use crate::cli::parse_size;

/// Options of `highwater snapshot`.
#[derive(Debug, Args)]
pub(crate) struct SnapshotArgs {
    /// What to do with it.
    #[command(subcommand)]
    pub(crate) what: SnapshotWhat,
}

/// What can be done with snapshots.
#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotWhat {
    /// Say what snapshots hold: events, memory by stream and pool, the lines with the most memory
    #[command(after_help = "Examples:\n  highwater snapshot summary run.pickle\n  \
                      highwater snapshot summary rank*.pickle.xz --json | jq '.devices[].peak_bytes'\n\n\
                      Exit codes: 0 it ran · 2 bad input")]
    Summary(SummaryArgs),
    /// Show live memory at a moment as a tree of stacks
    #[command(
        after_help = "WHEN is oom (the request that failed), peak, end, the index of an event, a time since the \
                      first event (1.5s, 20ms, 700us), or mark:NAME (the first begin of a scope of the program).\n\n\
                      Examples:\n  highwater snapshot at oom run.pickle\n  \
                      highwater snapshot at peak run.pickle --depth 4 --min-bytes 100MiB\n  \
                      highwater snapshot at 'mark:ProfilerStep#3' run.pickle --json | jq .tree.bytes\n\n\
                      Exit codes: 0 it ran · 2 bad input, or there is no such moment"
    )]
    At(AtArgs),
    /// Name the lines whose memory grows from iteration to iteration
    #[command(after_help = "Examples:\n  highwater snapshot growth run.pickle\n  \
                      highwater snapshot growth run.pickle --capacity 80GiB --json | jq .growth.sites\n\n\
                      Exit codes: 0 it ran · 2 bad input")]
    Growth(GrowthArgs),
    /// List memory that was freed and waits, by stream and stack, with its age and what it waits for
    #[command(after_help = "Examples:\n  highwater snapshot pending run.pickle\n  \
                      highwater snapshot pending run.pickle --at peak --json | jq '.groups[0]'\n\n\
                      Exit codes: 0 it ran · 2 bad input, or there is no such moment")]
    Pending(MomentArgs),
    /// Show what keeps free memory in pieces: runs, and the blocks that pin segments or pages
    #[command(after_help = "Examples:\n  highwater snapshot frag run.pickle\n  \
                      highwater snapshot frag run.pickle --at oom --top 20\n\n\
                      Exit codes: 0 it ran · 2 bad input, or there is no such moment")]
    Frag(MomentArgs),
    /// Compare the live memory of two snapshots at the same moment, stack by stack
    #[command(after_help = "Examples:\n  highwater snapshot diff before.pickle after.pickle\n  \
                      highwater snapshot diff a.pickle b.pickle --at mark:step\n\n\
                      Exit codes: 0 it ran · 2 bad input, or there is no such moment")]
    Diff(DiffArgs),
    /// Cut a part out, with memory as it was then, as a snapshot that viewers open
    #[command(after_help = "Examples:\n  highwater snapshot slice run.pickle --from 1000 --to 2000 -o part.pickle\n  \
                      highwater snapshot slice run.pickle --from 1.5s --to oom -o part.pickle\n\n\
                      Exit codes: 0 it ran · 1 the part could not be written · 2 bad input")]
    Slice(SliceArgs),
    /// Mend a snapshot that viewers do not open: protocol 5, long lists, files that end too early
    #[command(after_help = "Examples:\n  highwater snapshot repair run.pickle -o mended.pickle\n\n\
                      Exit codes: 0 it ran · 1 it could not be written · 2 nothing of it can be read")]
    Repair(RepairArgs),
    /// Say whether the memory viewer of PyTorch opens snapshots, and what it would stumble over
    #[command(after_help = "Examples:\n  highwater snapshot check run.pickle\n\n\
                      Exit codes: 0 it opens · 1 it does not · 2 bad input")]
    Check(CheckArgs),
    /// Write a snapshot in a format of others
    #[command(after_help = "Examples:\n  \
                      highwater snapshot export perfetto run.pickle -o run.json     for ui.perfetto.dev\n  \
                      highwater snapshot export sqlite run.pickle -o run.db         for sqlite3 run.db\n  \
                      highwater snapshot export folded run.pickle --at oom -o -     for flame graphs\n\n\
                      Exit codes: 0 it ran · 1 it could not be written · 2 bad input")]
    Export(ExportArgs),
}

/// Options of `highwater snapshot summary`.
#[derive(Debug, Args)]
pub(crate) struct SummaryArgs {
    /// Snapshots, plain or compressed (gzip, xz, zstd); - for stdin
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// Lines of the program to list
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) top: u16,

    /// Print one JSON object a file
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `highwater snapshot at`.
#[derive(Debug, Args)]
pub(crate) struct AtArgs {
    /// The moment
    #[arg(value_name = "WHEN", value_parser = parse_when)]
    pub(crate) when: When,

    /// Snapshots, plain or compressed (gzip, xz, zstd); - for stdin
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// The device; by default the one with the most events
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<usize>,

    /// Levels of the tree; frames with one caller and one callee are one level
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(crate) depth: u8,

    /// Leave out what has fewer bytes; by default one part in 200
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) min_bytes: Option<u64>,

    /// Print one JSON object a file
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `highwater snapshot growth`.
#[derive(Debug, Args)]
pub(crate) struct GrowthArgs {
    /// Snapshots, plain or compressed (gzip, xz, zstd); - for stdin
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// The device; by default all
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<usize>,

    /// Memory of the device, which PyTorch's snapshots do not tell: says when memory ends
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) capacity: Option<u64>,

    /// Print one JSON object a file
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `highwater snapshot pending` and `frag`.
#[derive(Debug, Args)]
pub(crate) struct MomentArgs {
    /// Snapshots, plain or compressed (gzip, xz, zstd); - for stdin
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// The moment: oom, peak, end, the index of an event, a time (1.5s) or mark:NAME; by default oom, else end
    #[arg(long, value_name = "WHEN", value_parser = parse_when)]
    pub(crate) at: Option<When>,

    /// The device; by default the one with the most events
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<usize>,

    /// Entries of each list
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) top: u16,

    /// Print one JSON object a file
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `highwater snapshot diff`.
#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// The snapshot to compare with
    #[arg(value_name = "A")]
    pub(crate) first: PathBuf,

    /// The snapshot that may have more or less
    #[arg(value_name = "B")]
    pub(crate) second: PathBuf,

    /// The moment in both: oom, peak, end, the index of an event, a time (1.5s) or mark:NAME
    #[arg(long, value_name = "WHEN", value_parser = parse_when, default_value = "peak")]
    pub(crate) at: When,

    /// The device; by default the one with the most events
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<usize>,

    /// Stacks to list
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) top: u16,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `highwater snapshot slice`.
#[derive(Debug, Args)]
pub(crate) struct SliceArgs {
    /// A snapshot, plain or compressed (gzip, xz, zstd); - for stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Where the part begins: oom, peak, the index of an event, a time (1.5s) or mark:NAME
    #[arg(long, value_name = "WHEN", value_parser = parse_when, default_value = "0")]
    pub(crate) from: When,

    /// Where the part ends, before that event
    #[arg(long, value_name = "WHEN", value_parser = parse_when, default_value = "end")]
    pub(crate) to: When,

    /// The device whose events count; by default the one with the most. Others are cut at the same times
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<usize>,

    /// Where to write the part
    #[arg(long, short, value_name = "OUT")]
    pub(crate) out: PathBuf,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `highwater snapshot repair`.
#[derive(Debug, Args)]
pub(crate) struct RepairArgs {
    /// A snapshot, plain or compressed (gzip, xz, zstd); - for stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Where to write what is good of it
    #[arg(long, short, value_name = "OUT")]
    pub(crate) out: PathBuf,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `highwater snapshot check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Snapshots, plain or compressed (gzip, xz, zstd); - for stdin
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// Print one JSON object a file
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `highwater snapshot export`.
#[derive(Debug, Args)]
pub(crate) struct ExportArgs {
    /// The format
    #[arg(value_enum, value_name = "FORMAT")]
    pub(crate) format: Format,

    /// A snapshot, plain or compressed (gzip, xz, zstd); - for stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Where to write it; - for stdout, but for sqlite and parquet
    #[arg(long, short, value_name = "OUT")]
    pub(crate) out: PathBuf,

    /// The moment of folded stacks: oom, peak, end, the index of an event, a time (1.5s) or mark:NAME
    #[arg(long, value_name = "WHEN", value_parser = parse_when, default_value = "peak")]
    pub(crate) at: When,

    /// The device of folded stacks; by default the one with the most events
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<usize>,

    /// Blocks below this get no slice of their own in perfetto
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "0")]
    pub(crate) min_bytes: u64,
}

/// Formats of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Format {
    /// A trace for ui.perfetto.dev: memory as counters, blocks as slices
    Perfetto,
    /// All of it as one JSON object
    Json,
    /// A database with tables of events, blocks, segments, stacks and lives
    Sqlite,
    /// The events as a table of columns; only if the command was built with the feature parquet
    Parquet,
    /// Live bytes by stack, for flame graphs
    Folded,
}

/// A moment as people write it.
pub(super) fn parse_when(text: &str) -> Result<When, String> {
    const EXPECTED: &str = "give oom, peak, end, the index of an event, a time like 1.5s or 20ms, or mark:NAME";
    if let Some(name) = text.strip_prefix("mark:") {
        return Ok(When::Mark(name.to_owned()));
    }
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let scale = match (number, unit) {
        ("", "oom") => return Ok(When::OutOfMemory),
        ("", "peak") => return Ok(When::Peak),
        ("", "end") => return Ok(When::End),
        (_, "") => return number.parse().map(When::Event).map_err(|_| EXPECTED.to_owned()),
        (_, "us") => 1.0,
        (_, "ms") => 1e3,
        (_, "s") => 1e6,
        _ => return Err(EXPECTED.to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| EXPECTED.to_owned())?;
    Ok(When::SinceStart((number * scale).round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_told_in_words() {
        assert_eq!(parse_when("oom"), Ok(When::OutOfMemory));
        assert_eq!(parse_when("peak"), Ok(When::Peak));
        assert_eq!(parse_when("4519"), Ok(When::Event(4519)));
        assert_eq!(parse_when("1.5s"), Ok(When::SinceStart(1_500_000)));
        assert_eq!(parse_when("20ms"), Ok(When::SinceStart(20_000)));
        assert_eq!(parse_when("7us"), Ok(When::SinceStart(7)));
        assert_eq!(parse_when("mark:ProfilerStep#3"), Ok(When::Mark("ProfilerStep#3".to_owned())));
        for wrong in ["", "s", "1.5", "3h", "peek", "-1", "1..2s"] {
            assert!(parse_when(wrong).is_err(), "{wrong}");
        }
    }
}
