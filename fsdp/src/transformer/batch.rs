//! A rank's tokens on their way to the device, and its losses on their way back.
//!
//! Both go through pinned host memory that is used in turns: what belongs to an even step is not touched while an odd
//! one is in flight.

use std::sync::Arc;
use std::time::Duration;

use highwater::{Allocator, Buffer, HostBuffer, Stream, View};

use super::Config;
use crate::run::ModelError;

/// One micro-batch: sequence after sequence.
#[derive(Clone, Debug)]
pub struct MicroBatch<'a> {
    /// The sequences, each one byte longer than the model's: a byte's target is the one after it.
    pub sequences: Vec<&'a [u8]>,
}

/// The losses of a step, on their way to the host.
#[derive(Clone, Debug)]
pub struct LossReading {
    losses: Arc<HostBuffer<f32>>,
}

impl LossReading {
    /// The reading of losses that are being copied to `losses`.
    #[must_use]
    pub fn new(losses: Arc<HostBuffer<f32>>) -> Self {
        LossReading { losses }
    }

    /// Waits for them: one loss for each round, already divided by the tokens of the whole step.
    ///
    /// # Errors
    /// After `timeout`, or when the device fails.
    pub fn wait(&self, timeout: Duration) -> Result<Vec<f32>, ModelError> {
        self.losses.wait(timeout)?;
        Ok(self.losses.read(<[f32]>::to_vec)?)
    }
}

pub(super) struct Batch {
    /// Sequences of a micro-batch.
    micro_batch: usize,
    /// Tokens of a sequence.
    sequence: usize,
    rounds: usize,
    ids: Buffer<u32>,
    targets: Buffer<u32>,
    losses: Buffer<f32>,
    turns: [Turn; 2],
    turn: usize,
}

struct Turn {
    ids: HostBuffer<u32>,
    targets: HostBuffer<u32>,
    losses: Arc<HostBuffer<f32>>,
}

impl Batch {
    pub(super) fn new(allocator: &Allocator, config: &Config) -> Result<Self, ModelError> {
        let Config { micro_batch, sequence, .. } = *config;
        let (stream, tokens, rounds) = (allocator.default_stream(), micro_batch * sequence, config.rounds as usize);
        let turn = || Turn {
            ids: allocator.pinned(tokens * rounds),
            targets: allocator.pinned(tokens * rounds),
            losses: Arc::new(allocator.pinned(rounds)),
        };
        Ok(Batch {
            micro_batch,
            sequence,
            rounds,
            ids: stream.alloc(tokens * rounds)?,
            targets: stream.alloc(tokens * rounds)?,
            losses: stream.alloc(rounds)?,
            turns: [turn(), turn()],
            turn: 0,
        })
    }

    pub(super) fn load(&mut self, stream: &Stream, micro_batches: &[MicroBatch<'_>]) -> Result<(), ModelError> {
        self.check(micro_batches)?;
        // The turn is taken when all has gone well: what is refused may be tried again.
        let next = 1 - self.turn;
        let turn = &self.turns[next];
        let sequences = || micro_batches.iter().flat_map(|micro_batch| &micro_batch.sequences);
        let fill = |buffer: &mut [u32], bytes: &mut dyn Iterator<Item = u8>| {
            buffer.iter_mut().zip(bytes).for_each(|(place, byte)| *place = u32::from(byte));
        };
        let inputs = sequences().flat_map(|sequence| sequence[..sequence.len() - 1].iter().copied());
        let targets = sequences().flat_map(|sequence| sequence[1..].iter().copied());
        turn.ids.write(|buffer| fill(buffer, &mut inputs.clone()))?;
        turn.targets.write(|buffer| fill(buffer, &mut targets.clone()))?;
        stream.copy_to_device(&turn.ids, &self.ids)?;
        stream.copy_to_device(&turn.targets, &self.targets)?;
        self.turn = next;
        Ok(())
    }

    /// Refuses what has not the lengths of the configuration.
    fn check(&self, micro_batches: &[MicroBatch<'_>]) -> Result<(), ModelError> {
        if micro_batches.len() != self.rounds {
            return Err(format!("{} micro-batches for {} rounds", micro_batches.len(), self.rounds).into());
        }
        for (round, MicroBatch { sequences }) in micro_batches.iter().enumerate() {
            if sequences.len() != self.micro_batch {
                let (given, expected) = (sequences.len(), self.micro_batch);
                return Err(format!("micro-batch {round} has {given} sequences, the model takes {expected}").into());
            }
            if let Some(wrong) = sequences.iter().find(|sequence| sequence.len() != self.sequence + 1) {
                let (given, expected) = (wrong.len(), self.sequence + 1);
                let what = format!("a sequence of micro-batch {round} has {given} bytes, the model takes {expected}");
                return Err(what.into());
            }
        }
        Ok(())
    }

    /// Tokens of a micro-batch.
    fn tokens(&self) -> usize {
        self.micro_batch * self.sequence
    }

    pub(super) fn read_losses(&mut self, stream: &Stream) -> Result<LossReading, ModelError> {
        let losses = &self.turns[self.turn].losses;
        stream.copy_to_host(&self.losses, losses)?;
        Ok(LossReading { losses: losses.clone() })
    }

    /// One element a round.
    pub(super) fn losses(&self) -> View<'_, f32> {
        self.losses.view()
    }

    pub(super) fn ids(&self, round: usize) -> View<'_, u32> {
        self.ids.slice(round * self.tokens()..(round + 1) * self.tokens())
    }

    pub(super) fn targets(&self, round: usize) -> View<'_, u32> {
        self.targets.slice(round * self.tokens()..(round + 1) * self.tokens())
    }

    /// One element.
    pub(super) fn loss(&self, round: usize) -> View<'_, f32> {
        self.losses.slice(round..=round)
    }
}
