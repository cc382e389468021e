//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "highwater",
    version,
    about = "GPU memory for training: a stream-aware allocator, sharded parameters, and a recorder of both",
    arg_required_else_help = true,
    after_help = "Examples:\n  highwater train\n  highwater train --help\n\n\
                  Exit codes: 0 it ran · 1 it ran and the answer is no, or it failed on the way · 2 bad input"
)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Train a byte-level transformer with sharded parameters, on simulated GPUs or on real ones
    #[command(
        args_override_self = true,
        long_about = "Train a byte-level transformer with sharded parameters, on simulated GPUs or on real ones.\n\n\
                      Parameters, gradients and optimizer state are cut into one shard for each rank; a layer is whole only \
                      while it is used. Results are equal to the bit for any number of ranks (but for --group nccl, which \
                      adds in an order of its own).\n\n\
                      With --group nccl each process is one rank: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT \
                      say which, and rank 0 tells what came of it.\n\n\
                      The run folder gets metrics.jsonl (one object a step), timeline.json (the first and last steps, for \
                      ui.perfetto.dev; on a GPU measured beside predicted) and snapshot.pickle (memory history, for the \
                      memory viewer of PyTorch).",
        after_help = "Examples:\n  \
                      highwater train                                  train on the checkout's own text and sources\n  \
                      highwater train book.txt more.txt --steps 100    train on files, one after the other\n  \
                      highwater train --ranks 1 --out runs/alone       one GPU, in a folder of your choice\n  \
                      highwater train --json | jq .loss_last           numbers for machines\n  \
                      highwater train --device cuda --ranks 4          four ranks that share GPU 0\n  \
                      RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=localhost MASTER_PORT=29500 \\\n  \
                      \u{20}   highwater train --device cuda --group nccl    one of two processes\n\n\
                      Exit codes: 0 it ran · 1 the loss is not finite, or the run failed on the way · 2 bad input"
    )]
    Train(TrainArgs),
    /// Tell what this machine has of what a GPU needs, what is missing, and what to do
    #[command(
        long_about = "Tell what this machine has of what a GPU needs: the driver, GPUs and their memory, the compiler of \
                      kernels (NVRTC) and its headers, matrix products (cuBLASLt) and communication (NCCL), each with its \
                      version, what is missing, and what to do. The simulated device needs none of it.",
        after_help = "Examples:\n  highwater doctor\n  highwater doctor --json | jq '.findings[] | select(.ok | not)'\n\n\
                      Exit codes: 0 all of it is there · 1 something is missing (only --group nccl needs NCCL) · 2 bad input"
    )]
    Doctor(DoctorArgs),
    /// Compile the GPU kernels, and tell what each takes; needs the compiler NVRTC, and no GPU
    #[command(after_help = "Examples:\n  highwater kernels\n  highwater kernels --json | jq .registers\n\n\
                      Exit codes: 0 every kernel compiles and none spills registers · 1 one does not, or there is no \
                      compiler · 2 bad input")]
    Kernels(KernelsArgs),
    /// Say why memory ran out: from snapshots of PyTorch or of this project, or from the text of the error
    #[command(
        long_about = "Say why memory ran out, from snapshots of PyTorch or of this project, or from the text of the error \
                      alone.\n\n\
                      The request that failed is looked at, else the one that made the host wait, else the peak. The trace is \
                      undone to that moment; each byte is accounted for, and each cause comes with its bytes, what speaks for \
                      it, what would refute it, and whether the request would have fitted without it.\n\n\
                      A folder is taken as the ranks of one program, a file each; the odd one out is named.",
        after_help = "Examples:\n  \
                      highwater why snapshot.pickle                    also .gz, .xz, .zst\n  \
                      highwater why snapshots/                         every rank, and the odd one out\n  \
                      python train.py 2>&1 | highwater why -           the text of the error alone\n  \
                      highwater why snapshot.pickle --capacity 80GiB   memory that nobody accounts for shows\n  \
                      highwater why --growth snapshot.pickle           which line grows, and when memory ends\n  \
                      highwater why snapshot.pickle --json | jq .cause\n\n\
                      Exit codes: 0 a cause was found · 1 the evidence does not decide · 2 bad input"
    )]
    Why(WhyArgs),
    /// Look into memory snapshots: what was held when, what waits, what differs; cut, mend, check and export them
    #[command(after_help = "Examples:\n  highwater snapshot summary rank*.pickle\n  \
                      highwater snapshot at oom run.pickle\n  \
                      highwater snapshot diff before.pickle after.pickle --at peak\n  \
                      highwater snapshot at --help                     what can be a moment\n\n\
                      Exit codes: 0 it ran · 1 the answer is no, or it could not be written · 2 bad input")]
    Snapshot(crate::snapshot::SnapshotArgs),
    /// Show a snapshot as a page for any browser: memory over time, a map of it at any moment, and the verdict
    #[command(
        long_about = "Show a snapshot as a page for any browser: memory over time by stack, a map of segments and blocks at \
                      any moment, and why memory ran out. The page is one file; it fetches nothing, and needs no network.",
        after_help = "Examples:\n  \
                      highwater view snapshot.pickle                   writes snapshot.html\n  \
                      highwater view rank0.pickle.xz -o /tmp/0.html    also .gz, .zst\n  \
                      highwater view snapshot.pickle --capacity 80GiB  with the line where the device ends\n\n\
                      Exit codes: 0 the page is there · 1 it could not be written · 2 bad input"
    )]
    View(ViewArgs),
    /// Show a snapshot in the terminal: the verdict, memory over time, and what holds it at any moment
    #[command(
        long_about = "Show a snapshot in the terminal, for machines that are reached by ssh: the verdict, memory over time as \
                      a chart, each stream, and what holds the memory at the moment under the cursor.\n\n\
                      Keys: arrows move the cursor, + and - zoom, tab goes through the streams, ? lists all, q leaves.",
        after_help = "Examples:\n  highwater tui snapshot.pickle\n  highwater tui rank0.pickle.xz --capacity 80GiB\n\n\
                      Exit codes: 0 it was shown · 1 the terminal failed · 2 bad input, or stdout is no terminal"
    )]
    Tui(TuiArgs),
    /// Measure speed
    Bench(BenchArgs),
    /// Replay memory snapshots as timed work against the allocator
    #[command(
        long_about = "Replay memory snapshots of PyTorch or of this project as timed work against the allocator.\n\n\
                      The host asks for blocks and gives them back when the trace says; in between every stream is busy with \
                      work on them, and the device is as far behind the host as --behind says. docs/replay.md tells what \
                      that is, and what it is not.",
        after_help = "Examples:\n  \
                      highwater replay run.pickle\n  \
                      highwater replay *.pickle.xz --behind 5000 --json | jq .utilization\n  \
                      highwater replay run.pickle --limit 8000000000 --verify\n  \
                      highwater replay --generate moe --behind 100000 --frontier\n\n\
                      Exit codes: 0 it ran · 1 memory ran out, or bytes were wrong · 2 bad input"
    )]
    Replay(ReplayArgs),
    /// Prove how little memory a recorded program could do with, and tell how near allocators come
    #[command(
        after_help = "Examples:\n  highwater bound run.pickle\n  highwater bound run.pickle --json | jq .bound_bytes\n\n\
                      Exit codes: 0 it ran · 1 it failed on the way · 2 bad input"
    )]
    Bound(BoundArgs),
}

/// Options of `highwater replay`.
#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// Snapshots with a trace, plain or compressed (gzip, xz, zstd)
    #[arg(value_name = "SNAPSHOT")]
    pub(crate) snapshots: Vec<PathBuf>,

    /// Replay a generated trace too
    #[arg(long, value_enum, value_name = "NAME")]
    pub(crate) generate: Vec<Generated>,

    /// What the work runs on
    #[arg(long, value_enum, default_value_t = ReplayDevice::Sim)]
    pub(crate) device: ReplayDevice,

    /// What comes first where a wait on a stream would free memory: the wait, or more memory; by default as the allocator
    #[arg(long, value_enum)]
    pub(crate) policy: Option<Policy>,

    /// Most physical memory to hold, bytes; by default the device's
    #[arg(long, value_name = "BYTES")]
    pub(crate) limit: Option<u64>,

    /// How far the device is behind the host, microseconds
    #[arg(long, value_name = "US", default_value_t = 0)]
    pub(crate) behind: u64,

    /// Try limits and more or less time for pages too: how full memory can be, by how much longer the program may take
    #[arg(long)]
    pub(crate) frontier: bool,

    /// Write a pattern into every block, and compare it at every use
    #[arg(long)]
    pub(crate) verify: bool,

    /// Print one JSON object a trace
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a replay runs on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum ReplayDevice {
    /// A simulated GPU: a virtual clock, and what driver calls cost on an H200
    Sim,
    /// GPU 0
    Cuda,
}

/// What comes first where a wait on a stream would free memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Policy {
    /// More memory
    Grow,
    /// The wait
    Wait,
}

impl Policy {
    /// As the allocator's settings call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Policy::Grow => "grow",
            Policy::Wait => "wait",
        }
    }
}

/// Traces that are made up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Generated {
    /// Training on sequences of any length
    Varlen,
    /// Batches that another stream brings
    Prefetch,
    /// Experts with another number of tokens each step, on three streams
    Moe,
    /// Requests with caches that grow
    Inference,
}

impl Generated {
    /// What the trace is called.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Generated::Varlen => "varlen",
            Generated::Prefetch => "prefetch",
            Generated::Moe => "moe",
            Generated::Inference => "inference",
        }
    }
}

/// Options of `highwater bound`.
#[derive(Debug, Args)]
pub(crate) struct BoundArgs {
    /// A snapshot with a trace, plain or compressed (gzip, xz, zstd)
    #[arg(value_name = "SNAPSHOT")]
    pub(crate) snapshot: PathBuf,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `highwater why`.
#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// A snapshot, a folder of snapshots, a text with the error, or - for stdin
    #[arg(value_name = "FILE|DIR|-")]
    pub(crate) input: PathBuf,

    /// Look for growth alone, also where nothing failed
    #[arg(long)]
    pub(crate) growth: bool,

    /// Memory of the device, which PyTorch's snapshots do not tell
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) capacity: Option<u64>,

    /// A file with the text of the error, for what the snapshot does not tell
    #[arg(long, value_name = "FILE")]
    pub(crate) message: Option<PathBuf>,

    /// Look at this device alone
    #[arg(long, value_name = "N")]
    pub(crate) device: Option<usize>,

    /// Lines of the program to list
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) top: usize,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `highwater view`.
#[derive(Debug, Args)]
pub(crate) struct ViewArgs {
    /// A snapshot, plain or compressed (gzip, xz, zstd), or - for stdin
    #[arg(value_name = "FILE|-")]
    pub(crate) snapshot: PathBuf,

    /// The page, or - for stdout; by default the snapshot's name with .html, in this folder
    #[arg(short, long, value_name = "OUT.html")]
    pub(crate) out: Option<PathBuf>,

    /// Memory of the device, which PyTorch's snapshots do not tell
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) capacity: Option<u64>,
}

/// Options of `highwater tui`.
#[derive(Debug, Args)]
pub(crate) struct TuiArgs {
    /// A snapshot, plain or compressed (gzip, xz, zstd)
    #[arg(value_name = "FILE")]
    pub(crate) snapshot: PathBuf,

    /// Memory of the device, which PyTorch's snapshots do not tell
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) capacity: Option<u64>,
}

/// A number of bytes, with a unit or without.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let scale: f64 = match unit.trim() {
        "" | "B" => 1.0,
        "KiB" | "K" => 1024.0,
        "MiB" | "M" => 1024.0 * 1024.0,
        "GiB" | "G" => 1024.0 * 1024.0 * 1024.0,
        "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        _ => return Err("give a size like 80GiB, 85GB or 85899345920".to_owned()),
    };
    let number: f64 = number.parse().map_err(|_| "give a size like 80GiB, 85GB or 85899345920".to_owned())?;
    Ok((number * scale) as u64)
}

/// Options of `highwater bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// What to measure.
    #[command(subcommand)]
    pub(crate) what: BenchWhat,
}

/// What can be measured.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchWhat {
    /// The kernels on GPU 0, at the sizes of a transformer with 8 × 1024 tokens and width 1536
    #[command(
        after_help = "Examples:\n  highwater bench kernels\n  highwater bench kernels --json > kernels.jsonl\n\n\
                      Exit codes: 0 it ran · 1 it failed on the way · 2 bad input, or no GPU"
    )]
    Kernels(BenchKernelsArgs),
    /// Blocks of random sizes that come and go, on the simulated device: how full memory is, and how long a request takes
    #[command(after_help = "Examples:\n  highwater bench churn\n  highwater bench churn --json | jq .utilization\n\n\
                      Exit codes: 0 it ran · 1 it failed on the way · 2 bad input")]
    Churn(BenchChurnArgs),
    /// What the host pays for an allocation and its free, beside malloc
    #[command(
        long_about = "What the host pays for an allocation and its free, beside malloc: over and over, among many blocks, from \
                      many threads, from one thread to another, and with other streams that use the block. docs/benchmarks.md \
                      tells each workload.",
        after_help = "Examples:\n  highwater bench alloc\n  highwater bench alloc --recorder off --json | jq .hot_pair_ns\n  \
                      highwater bench alloc --device cuda\n\n\
                      Exit codes: 0 it ran · 1 it failed on the way · 2 bad input, or no GPU"
    )]
    Alloc(BenchAllocArgs),
    /// What pages that move cost a kernel that runs meanwhile, and what they are worth to a loop that prefetches
    #[command(
        long_about = "What pages that move cost a kernel that runs meanwhile, and what they are worth to a loop that prefetches: \
                      its memory and the time of its steps, with lending and without. docs/benchmarks.md tells both.",
        after_help = "Examples:\n  highwater bench moves\n  highwater bench moves --device cuda --json | jq .slowdown_percent\n\n\
                      Exit codes: 0 it ran · 1 it failed on the way · 2 bad input, or no GPU"
    )]
    Moves(BenchMovesArgs),
}

/// Options of `highwater bench moves`.
#[derive(Debug, Args)]
pub(crate) struct BenchMovesArgs {
    /// What it runs on
    #[arg(long, value_enum, default_value_t = Device::Sim)]
    pub(crate) device: Device,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `highwater bench alloc`.
#[derive(Debug, Args)]
pub(crate) struct BenchAllocArgs {
    /// What the memory is of
    #[arg(long, value_enum, default_value_t = BenchDevice::Sim)]
    pub(crate) device: BenchDevice,

    /// Whether the history of memory is recorded; by default as the settings in the environment say, else on
    #[arg(long, value_enum)]
    pub(crate) recorder: Option<Recorder>,

    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// What the memory of a measurement is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum BenchDevice {
    /// A simulated GPU that costs nothing, so that only the allocator is measured
    Sim,
    /// GPU 0
    Cuda,
}

/// Whether the history of memory is recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Recorder {
    /// As a program has it by default
    On,
    /// Nothing is recorded
    Off,
}

/// Options of `highwater bench churn`.
#[derive(Debug, Args)]
pub(crate) struct BenchChurnArgs {
    /// Print one JSON object a workload
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `highwater bench kernels`.
#[derive(Debug, Args)]
pub(crate) struct BenchKernelsArgs {
    /// Print one JSON object a kernel
    #[arg(long)]
    pub(crate) json: bool,
}

/// What trains.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Device {
    /// Simulated GPUs: a virtual clock, real bytes, arithmetic on the CPU
    Sim,
    /// NVIDIA GPUs
    Cuda,
}

/// How ranks talk to each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum GroupKind {
    /// All ranks in this process
    Local,
    /// A process for each rank, over NCCL
    Nccl,
}

/// Options of `highwater doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `highwater kernels`.
#[derive(Debug, Args)]
pub(crate) struct KernelsArgs {
    /// Architecture to compile for
    #[arg(long, value_name = "sm_NN", default_value = "sm_90")]
    pub(crate) arch: String,

    /// Print one JSON object a kernel
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `highwater train`.
#[derive(Debug, Args)]
pub(crate) struct TrainArgs {
    /// Files to train on, in this order; without any, the checkout's own text and sources
    #[arg(value_name = "FILES")]
    pub(crate) files: Vec<PathBuf>,

    /// Ranks that share the parameters, 1 to 64; by default 4 simulated ones, 1 on a GPU, WORLD_SIZE with --group nccl
    #[arg(long, value_name = "N")]
    pub(crate) ranks: Option<u32>,

    /// Layers of the transformer
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub(crate) layers: u64,

    /// Width of the residual stream, a multiple of the heads
    #[arg(long, value_name = "N", default_value_t = 96)]
    pub(crate) width: u64,

    /// Attention heads
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) heads: u64,

    /// Tokens (bytes) of a sequence
    #[arg(long, value_name = "TOKENS", default_value_t = 64)]
    pub(crate) seq: u64,

    /// Sequences of a step, over all ranks
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub(crate) batch: u64,

    /// Sequences of a micro-batch; ranks × this must divide the batch
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) micro_batch: u64,

    /// Steps to train
    #[arg(long, value_name = "N", default_value_t = 300)]
    pub(crate) steps: u64,

    /// Learning rate
    #[arg(long, value_name = "RATE", default_value_t = 0.002, allow_hyphen_values = true)]
    pub(crate) lr: f64,

    /// Seed of the initial parameters and of the batches
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub(crate) seed: u64,

    /// What trains
    #[arg(long, value_enum, default_value_t = Device::Sim)]
    pub(crate) device: Device,

    /// How ranks talk to each other
    #[arg(long, value_enum, default_value_t = GroupKind::Local)]
    pub(crate) group: GroupKind,

    /// Run folder, new or empty; without it, the next free runs/N of the checkout or the current folder
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,

    /// Print one JSON object instead of a table, and no progress
    #[arg(long)]
    pub(crate) json: bool,

    /// Leave attention out: each byte sees itself alone
    #[arg(long)]
    pub(crate) no_attention: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn train(line: &str) -> Result<TrainArgs, clap::Error> {
        let words = ["highwater", "train"].into_iter().chain(line.split_whitespace());
        Cli::try_parse_from(words).map(|cli| match cli.command {
            Command::Train(arguments) => arguments,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn the_definition_makes_sense() {
        Cli::command().debug_assert();
    }

    #[test]
    fn files_keep_their_order_among_options() {
        let arguments = train("b.txt --ranks 2 a.txt --no-attention c.txt").unwrap();
        assert_eq!(arguments.files, ["b.txt", "a.txt", "c.txt"].map(PathBuf::from));
        assert_eq!((arguments.ranks, arguments.no_attention, arguments.json), (Some(2), true, false));
    }

    #[test]
    fn devices_and_groups_have_names() {
        assert_eq!(train("").unwrap().device, Device::Sim);
        assert_eq!(train("--device cuda").unwrap().device, Device::Cuda);
        assert_eq!(train("--group nccl").unwrap().group, GroupKind::Nccl);
        assert!(train("--device tpu").is_err());
    }
}
