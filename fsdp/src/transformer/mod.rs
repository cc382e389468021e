//! A byte-level transformer as a [`Model`]: embedding, layers of causal attention and MLP, and a head with the loss.
//!
//! The units are `embed`, `layer_0` …, `head`. Activations come from the allocator, on the compute stream: they are
//! allocated in forward and dropped as backward goes through them, so the memory of one micro-batch serves the next.

mod batch;
mod layout;
mod passes;

use highwater::{Allocator, Buffer, Stream, View};

use crate::run::{Model, ModelError, UnitLayout};

pub use batch::{LossReading, MicroBatch};
use layout::{Layouts, initialize};
use passes::{Pass, SavedHead, SavedLayer, Sizes};

/// Bytes are the vocabulary.
const VOCABULARY: usize = 256;

/// The shape of a transformer and of its micro-batches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Layers, at least one.
    pub layers: usize,
    /// Width of the residual stream; a multiple of `heads`.
    pub width: usize,
    /// Attention heads.
    pub heads: usize,
    /// Tokens of a sequence.
    pub sequence: usize,
    /// Sequences of a micro-batch.
    pub micro_batch: usize,
    /// Micro-batches of a rank in a step.
    pub rounds: u32,
    /// Tokens of a whole step, over all ranks: each loss is divided by it.
    pub global_tokens: usize,
    /// Seed of the initial parameters.
    pub seed: u64,
    /// Whether attention does anything; without it each byte sees itself alone.
    pub attention: bool,
}

impl Config {
    /// The units of a transformer of this shape.
    #[must_use]
    pub fn units(&self) -> Vec<UnitLayout> {
        let layouts = Layouts::new(self);
        let layer = |index| UnitLayout { name: format!("layer_{index}"), elements: layouts.layer.elements };
        let embed = UnitLayout { name: "embed".into(), elements: layouts.embed.elements };
        let head = UnitLayout { name: "head".into(), elements: layouts.head.elements };
        std::iter::once(embed).chain((0..self.layers).map(layer)).chain([head]).collect()
    }
}

/// One rank's transformer.
pub struct Transformer {
    config: Config,
    sizes: Sizes,
    layouts: Layouts,
    batch: batch::Batch,
    rounds: Vec<Round>,
}

/// What one micro-batch leaves between its operations.
#[derive(Default)]
struct Round {
    /// The residual stream in forward, its gradient in backward.
    stream: Option<Buffer<f32>>,
    layers: Vec<SavedLayer>,
    head: Option<SavedHead>,
}

impl Transformer {
    /// A transformer whose batches and losses live on the allocator's default stream.
    ///
    /// # Errors
    /// When memory for them fails.
    ///
    /// # Panics
    /// When a number of the configuration is 0, or the width is no multiple of the heads.
    pub fn new(allocator: &Allocator, config: Config) -> Result<Self, ModelError> {
        let Config { layers, width, heads, sequence, micro_batch, rounds, global_tokens, .. } = config;
        let numbers = [layers, width, heads, sequence, micro_batch, rounds as usize, global_tokens];
        assert!(!numbers.contains(&0) && width % heads == 0, "{config:?} is no transformer");
        let sizes = Sizes::new(&config);
        Ok(Transformer {
            batch: batch::Batch::new(allocator, &config)?,
            layouts: Layouts::new(&config),
            rounds: (0..rounds).map(|_| Round::default()).collect(),
            sizes,
            config,
        })
    }

    /// Copies the micro-batches of a step to the device, one for each round.
    ///
    /// # Errors
    /// When their lengths are not those of the configuration, the copies of the step before last are still under way
    /// (wait for its losses first), or the device fails.
    pub fn load(&mut self, stream: &Stream, micro_batches: &[MicroBatch<'_>]) -> Result<(), ModelError> {
        self.batch.load(stream, micro_batches)
    }

    /// Starts to copy the losses of the step just issued to the host. They are to be waited for before the step after
    /// next is loaded.
    ///
    /// # Errors
    /// When the device fails.
    pub fn read_losses(&mut self, stream: &Stream) -> Result<LossReading, ModelError> {
        self.batch.read_losses(stream)
    }

    /// The losses of the step that was issued last, one for each round, on the device.
    #[must_use]
    pub fn losses(&self) -> View<'_, f32> {
        self.batch.losses()
    }
}

impl Model for Transformer {
    fn units(&self) -> Vec<UnitLayout> {
        self.config.units()
    }

    fn initialize(&self, unit: usize, parameters: &mut [f32]) {
        let fields = match unit {
            0 => self.layouts.embed.initial(),
            unit if unit <= self.config.layers => self.layouts.layer.initial(self.config.layers),
            _ => self.layouts.head.initial(),
        };
        initialize(self.config.seed, unit, &fields, parameters);
    }

    fn forward(
        &mut self,
        unit: usize,
        round: u32,
        stream: &Stream,
        parameters: View<'_, f32>,
    ) -> Result<(), ModelError> {
        let index = round as usize;
        let state = &mut self.rounds[index];
        let pass = Pass { sizes: &self.sizes, stream, parameters };
        match unit {
            0 => {
                // An interrupted step may have left something behind.
                *state = Round::default();
                let ids = self.batch.ids(index);
                state.stream = Some(self.layouts.embed.forward(pass, ids)?);
            }
            unit if unit <= self.config.layers => {
                let x = state.stream.take().ok_or("a layer without an input")?;
                let (out, saved) = self.layouts.layer.forward(pass, x)?;
                state.layers.push(saved);
                state.stream = Some(out);
            }
            _ => {
                let x = state.stream.take().ok_or("a head without an input")?;
                let (targets, loss) = (self.batch.targets(index), self.batch.loss(index));
                state.head = Some(self.layouts.head.forward(pass, x, targets, loss)?);
            }
        }
        Ok(())
    }

    fn backward(
        &mut self,
        unit: usize,
        round: u32,
        stream: &Stream,
        parameters: View<'_, f32>,
        gradients: View<'_, f32>,
    ) -> Result<(), ModelError> {
        let index = round as usize;
        let state = &mut self.rounds[index];
        let pass = Pass { sizes: &self.sizes, stream, parameters };
        match unit {
            0 => {
                let dx = state.stream.take().ok_or("an embedding without a gradient")?;
                self.layouts.embed.backward(pass, gradients, self.batch.ids(index), &dx)?;
            }
            unit if unit <= self.config.layers => {
                let saved = state.layers.pop().ok_or("a layer without a forward")?;
                let dx = state.stream.as_ref().ok_or("a layer without a gradient")?;
                self.layouts.layer.backward(pass, gradients, &saved, dx)?;
            }
            _ => {
                let saved = state.head.take().ok_or("a head without a forward")?;
                let dx = self.layouts.head.backward(pass, gradients, &saved)?;
                state.stream = Some(dx);
            }
        }
        Ok(())
    }
}
