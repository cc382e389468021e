//! Trains a small classifier of noisy patterns with candle on its CUDA backend.
//!
//! All random numbers come from fixed seeds. The batch size changes from step to step, so the sizes of the tensors do.
//! Prints the loss of the first and of every 50th step, and at the end one line of JSON with these losses, the seconds
//! that training and testing took and the accuracy on samples that were not trained on.

use std::time::Instant;

use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::{AdamW, Linear, Module, Optimizer, ParamsAdamW, VarBuilder, VarMap, linear, loss};
use patterns::{BATCH_SIZES, CLASSES, INPUTS, Patterns, Random, Samples};

const SEED: u64 = 20_240_607;
const HIDDEN: usize = 2048;
const TRAIN_SAMPLES: usize = 65_536;
const TEST_SAMPLES: usize = 4096;
const TEST_BATCH: usize = 1024;
const STEPS: usize = 600;
const REPORT_EVERY_STEPS: usize = 50;
const LEARNING_RATE: f64 = 1e-4;

/// Four linear layers; the two in the middle are a residual branch.
struct Model {
    input: Linear,
    up: Linear,
    down: Linear,
    output: Linear,
}

impl Model {
    fn new(vars: VarBuilder) -> Result<Self> {
        Ok(Self {
            input: linear(INPUTS, HIDDEN, vars.pp("input"))?,
            up: linear(HIDDEN, HIDDEN, vars.pp("up"))?,
            down: linear(HIDDEN, HIDDEN, vars.pp("down"))?,
            output: linear(HIDDEN, CLASSES, vars.pp("output"))?,
        })
    }
}

impl Module for Model {
    /// Maps `[batch, INPUTS]` to logits `[batch, CLASSES]`.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.input.forward(x)?.relu()?;
        let branch = self.down.forward(&self.up.forward(&x)?.relu()?)?;
        self.output.forward(&(x + branch)?.relu()?)
    }
}

/// Copies one batch to the device.
fn upload(samples: &Samples, start: usize, count: usize, device: &Device) -> Result<(Tensor, Tensor)> {
    let (rows, labels) = samples.batch(start, count);
    let rows = Tensor::from_vec(rows, (count, INPUTS), device)?;
    let labels = Tensor::from_vec(labels, count, device)?;
    Ok((rows, labels))
}

/// The share of the samples whose largest logit is that of their class.
fn accuracy(model: &Model, samples: &Samples, device: &Device) -> Result<f64> {
    let mut right = 0.0;
    for start in (0..samples.count()).step_by(TEST_BATCH) {
        let (rows, labels) = upload(samples, start, TEST_BATCH, device)?;
        let guesses = model.forward(&rows)?.argmax(D::Minus1)?;
        let matches = guesses.eq(&labels)?.to_dtype(DType::F32)?;
        right += f64::from(matches.sum_all()?.to_scalar::<f32>()?);
    }
    Ok(right / samples.count() as f64)
}

fn main() -> Result<()> {
    let device = Device::new_cuda(0)?;
    device.set_seed(SEED)?;
    let mut random = Random::new(SEED);
    let patterns = Patterns::new(&mut random);
    let train = patterns.samples(TRAIN_SAMPLES, &mut random);
    let test = patterns.samples(TEST_SAMPLES, &mut random);

    let vars = VarMap::new();
    let model = Model::new(VarBuilder::from_varmap(&vars, DType::F32, &device))?;
    let parameters = ParamsAdamW { lr: LEARNING_RATE, weight_decay: 1e-4, ..Default::default() };
    // The order of the variables in the map is random; the update of each does not depend on the others.
    let mut optimizer = AdamW::new(vars.all_vars(), parameters)?;
    let mut losses = Vec::new();
    let mut position = 0;

    let start = Instant::now();
    for step in 1..=STEPS {
        let count = BATCH_SIZES[step % BATCH_SIZES.len()];
        let (rows, labels) = upload(&train, position, count, &device)?;
        position = (position + count) % train.count();

        let loss = loss::cross_entropy(&model.forward(&rows)?, &labels)?;
        optimizer.backward_step(&loss)?;

        if step == 1 || step % REPORT_EVERY_STEPS == 0 {
            let value = loss.to_scalar::<f32>()?;
            println!("step {step:4} loss {value:.6}");
            losses.push(format!("{value:.6}"));
        }
    }
    let accuracy = accuracy(&model, &test, &device)?;
    let seconds = start.elapsed().as_secs_f64();
    println!(r#"{{"losses":[{}],"seconds":{seconds:.3},"accuracy":{accuracy:.6}}}"#, losses.join(","));
    Ok(())
}
