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
    /// Train a byte-level transformer with sharded parameters on simulated GPUs
    #[command(
        args_override_self = true,
        long_about = "Train a byte-level transformer with sharded parameters on simulated GPUs.\n\n\
                      Parameters, gradients and optimizer state are cut into one shard for each rank; a layer is whole only \
                      while it is used. Results are equal to the bit for any number of ranks.\n\n\
                      The run folder gets metrics.jsonl (one object a step), timeline.json (the first and last steps in \
                      virtual time, for ui.perfetto.dev) and snapshot.pickle (memory history, for the memory viewer of \
                      PyTorch).",
        after_help = "Examples:\n  \
                      highwater train                                  train on the checkout's own text and sources\n  \
                      highwater train book.txt more.txt --steps 100    train on files, one after the other\n  \
                      highwater train --ranks 1 --out runs/alone       one GPU, in a folder of your choice\n  \
                      highwater train --json | jq .loss_last           numbers for machines\n\n\
                      Exit codes: 0 it ran · 1 the loss is not finite, or the run failed on the way · 2 bad input"
    )]
    Train(TrainArgs),
}

/// What trains.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Device {
    /// Simulated GPUs: a virtual clock, real bytes, arithmetic on the CPU
    Sim,
}

/// Options of `highwater train`.
#[derive(Debug, Args)]
pub(crate) struct TrainArgs {
    /// Files to train on, in this order; without any, the checkout's own text and sources
    #[arg(value_name = "FILES")]
    pub(crate) files: Vec<PathBuf>,

    /// Simulated GPUs that share the parameters, 1 to 64
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) ranks: u32,

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
        Cli::try_parse_from(words).map(|Cli { command: Command::Train(arguments) }| arguments)
    }

    #[test]
    fn the_definition_makes_sense() {
        Cli::command().debug_assert();
    }

    #[test]
    fn files_keep_their_order_among_options() {
        let arguments = train("b.txt --ranks 2 a.txt --no-attention c.txt").unwrap();
        assert_eq!(arguments.files, ["b.txt", "a.txt", "c.txt"].map(PathBuf::from));
        assert_eq!((arguments.ranks, arguments.no_attention, arguments.json), (2, true, false));
    }

    #[test]
    fn the_simulated_device_is_the_only_one() {
        assert_eq!(train("--device sim").unwrap().device, Device::Sim);
        assert!(train("--device cuda").is_err());
    }
}
