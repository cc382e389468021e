//! Whether the numbers of a training fit together, asked before anything is read or made.
//!
//! What passes here converts to the types of a [`Job`] without loss, and none of the sums and products made of it later
//! overflows.

use std::sync::Arc;

use highwater_fsdp::plan::MAX_OPERATIONS;

use super::session::Job;
use crate::cli::TrainArgs;
use crate::failure::InputError;

/// The most ranks.
const MAX_RANKS: u64 = 64;

/// The most layers, and the largest width, sequence and batch.
const MAX_SIZE: u64 = 1 << 16;

/// The most steps: their numbers take half of a 64-bit tag, and their tokens are counted in 64 bits.
const MAX_STEPS: u64 = 1 << 31;

/// Refuses numbers that are no training.
pub(crate) fn check(arguments: &TrainArgs, ranks: u32) -> Result<(), InputError> {
    let TrainArgs { layers, width, heads, seq, batch, micro_batch, steps, .. } = *arguments;
    let of_ranks = u64::from(ranks);
    for (what, option, value, limit) in [
        ("number of ranks", "--ranks", of_ranks, MAX_RANKS),
        ("number of layers", "--layers", layers, MAX_SIZE),
        ("width", "--width", width, MAX_SIZE),
        ("number of heads", "--heads", heads, MAX_SIZE),
        ("length of a sequence", "--seq", seq, MAX_SIZE),
        ("batch", "--batch", batch, MAX_SIZE),
        ("micro-batch", "--micro-batch", micro_batch, MAX_SIZE),
        ("number of steps", "--steps", steps, MAX_STEPS),
    ] {
        if value == 0 {
            return Err(InputError::Zero { what, option });
        }
        if value > limit {
            return Err(InputError::TooLarge { value, option, limit });
        }
    }
    if !width.is_multiple_of(heads) {
        return Err(InputError::UnevenHeads { width, heads });
    }
    if !batch.is_multiple_of(micro_batch) {
        return Err(InputError::UnevenBatch { batch, micro_batch });
    }
    let micro_batches = batch / micro_batch;
    if !micro_batches.is_multiple_of(of_ranks) {
        return Err(InputError::UnevenRanks { micro_batches, micro_batch, ranks });
    }
    if !(arguments.lr.is_finite() && arguments.lr > 0.0) {
        return Err(InputError::LearningRate(arguments.lr));
    }
    check_step(layers, micro_batches / of_ranks)
}

/// Refuses a step that no plan is made for.
fn check_step(layers: u64, rounds: u64) -> Result<(), InputError> {
    // The layers, the embedding and the head: two gathers, a forward, a backward and a reduce a round; one update.
    let operations = (layers + 2) * (5 * rounds + 1);
    if operations > MAX_OPERATIONS {
        return Err(InputError::StepTooLong { operations, limit: MAX_OPERATIONS });
    }
    Ok(())
}

/// The job of arguments that passed [`check`].
pub(crate) fn job(arguments: &TrainArgs, ranks: u32, corpus: Arc<[u8]>) -> Job {
    let size = |number: u64| usize::try_from(number).expect("the limits fit a usize");
    Job {
        ranks,
        layers: size(arguments.layers),
        width: size(arguments.width),
        heads: size(arguments.heads),
        seq: size(arguments.seq),
        batch: size(arguments.batch),
        micro_batch: size(arguments.micro_batch),
        steps: arguments.steps,
        lr: arguments.lr,
        seed: arguments.seed,
        attention: !arguments.no_attention,
        corpus,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use highwater_fsdp::plan::{Plan, PlanSpec, UnitSpec};

    use super::*;
    use crate::cli::{Cli, Command};

    fn checked(line: &str) -> Result<(), InputError> {
        let words = ["highwater", "train"].into_iter().chain(line.split_whitespace());
        let Command::Train(arguments) = Cli::try_parse_from(words).unwrap().command else { panic!("{line}") };
        check(&arguments, arguments.ranks.unwrap_or(4))
    }

    #[test]
    fn the_defaults_and_the_limits_pass() {
        assert_eq!(checked(""), Ok(()));
        assert_eq!(checked("--ranks 64 --batch 64 --micro-batch 1"), Ok(()));
        assert_eq!(checked("--ranks 1 --batch 1 --micro-batch 1 --heads 1 --width 1 --seq 1 --steps 1"), Ok(()));
        assert_eq!(checked("--seq 65536 --width 65536 --heads 65536"), Ok(()));
    }

    #[test]
    fn past_its_limit_each_number_is_refused() {
        for (option, limit) in [("--ranks", 64), ("--layers", 65536), ("--width", 65536), ("--steps", 1 << 31)] {
            let value = limit + 1;
            let refused = InputError::TooLarge { value, option, limit };
            assert_eq!(checked(&format!("{option} {value}")), Err(refused));
        }
    }

    #[test]
    fn learning_rates_are_finite_and_above_zero() {
        for rate in ["0", "-0.1", "inf", "-inf", "nan"] {
            assert!(matches!(checked(&format!("--lr {rate}")), Err(InputError::LearningRate(_))), "{rate}");
        }
        assert_eq!(checked("--lr 1e-300"), Ok(()));
    }

    #[test]
    fn the_longest_step_that_passes_can_be_planned_and_the_next_cannot() {
        let plan = |units: u64, rounds: u64| {
            let mut spec = PlanSpec::new((0..units).map(|_| UnitSpec::new("unit", 4)).collect(), 1);
            spec.rounds = u32::try_from(rounds).unwrap();
            Plan::new(&spec)
        };
        let layers = 4_000;
        let rounds = (1..).take_while(|&rounds| check_step(layers, rounds).is_ok()).last().unwrap();
        assert!(plan(layers + 2, rounds).is_ok());
        assert!(plan(layers + 2, rounds + 1).is_err());
    }
}
