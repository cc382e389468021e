//! Trains a small classifier of noisy patterns with burn on its CUDA backend.
//!
//! All random numbers come from fixed seeds. The batch size changes from step to step, so the sizes of the tensors do.
//! Prints the loss of the first and of every 50th step, and at the end one line of JSON with these losses, the seconds
//! that training and testing took and the accuracy on samples that were not trained on.

use std::time::Instant;

use burn::backend::cuda::CudaDevice;
use burn::backend::{Autodiff, Cuda};
use burn::module::{AutodiffModule, Module};
use burn::nn::loss::{CrossEntropyLoss, CrossEntropyLossConfig};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::tensor::activation::relu;
use burn::tensor::backend::Backend;
use burn::tensor::{ElementConversion, Int, Tensor, TensorData};
use patterns::{BATCH_SIZES, CLASSES, INPUTS, Patterns, Random, Samples};

type Train = Autodiff<Cuda<f32, i32>>;

const SEED: u64 = 20_240_607;
const HIDDEN: usize = 2048;
const TRAIN_SAMPLES: usize = 65_536;
const TEST_SAMPLES: usize = 4096;
const TEST_BATCH: usize = 1024;
const STEPS: usize = 600;
const REPORT_EVERY_STEPS: usize = 50;
const CLEANUP_EVERY_STEPS: usize = 10;
const LEARNING_RATE: f64 = 1e-4;

/// Four linear layers; the two in the middle are a residual branch.
#[derive(Module, Debug)]
struct Model<B: Backend> {
    input: Linear<B>,
    up: Linear<B>,
    down: Linear<B>,
    output: Linear<B>,
}

impl<B: Backend> Model<B> {
    fn new(device: &B::Device) -> Self {
        Self {
            input: LinearConfig::new(INPUTS, HIDDEN).init(device),
            up: LinearConfig::new(HIDDEN, HIDDEN).init(device),
            down: LinearConfig::new(HIDDEN, HIDDEN).init(device),
            output: LinearConfig::new(HIDDEN, CLASSES).init(device),
        }
    }

    /// Maps `[batch, INPUTS]` to logits `[batch, CLASSES]`.
    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let x = relu(self.input.forward(x));
        let branch = self.down.forward(relu(self.up.forward(x.clone())));
        self.output.forward(relu(x + branch))
    }
}

/// Copies one batch to the device.
fn upload<B: Backend>(
    samples: &Samples,
    start: usize,
    count: usize,
    device: &B::Device,
) -> (Tensor<B, 2>, Tensor<B, 1, Int>) {
    let (rows, labels) = samples.batch(start, count);
    let labels: Vec<i32> = labels.into_iter().map(|label| label as i32).collect();
    let rows = Tensor::from_data(TensorData::new(rows, [count, INPUTS]), device);
    let labels = Tensor::from_data(TensorData::new(labels, [count]), device);
    (rows, labels)
}

/// The share of the samples whose largest logit is that of their class.
fn accuracy<B: Backend>(model: &Model<B>, samples: &Samples, device: &B::Device) -> f64 {
    let mut right = 0;
    for start in (0..samples.count()).step_by(TEST_BATCH) {
        let (rows, labels) = upload::<B>(samples, start, TEST_BATCH, device);
        let guesses = model.forward(rows).argmax(1).reshape([TEST_BATCH]);
        right += guesses.equal(labels).int().sum().into_scalar().elem::<i64>();
    }
    right as f64 / samples.count() as f64
}

fn main() {
    let device = CudaDevice::default();
    Train::seed(&device, SEED);
    let mut random = Random::new(SEED);
    let patterns = Patterns::new(&mut random);
    let train = patterns.samples(TRAIN_SAMPLES, &mut random);
    let test = patterns.samples(TEST_SAMPLES, &mut random);

    let mut model = Model::<Train>::new(&device);
    let mut optimizer = AdamWConfig::new().init();
    let loss_function: CrossEntropyLoss<Train> = CrossEntropyLossConfig::new().init(&device);
    let mut losses = Vec::new();
    let mut position = 0;

    let start = Instant::now();
    for step in 1..=STEPS {
        let count = BATCH_SIZES[step % BATCH_SIZES.len()];
        let (rows, labels) = upload::<Train>(&train, position, count, &device);
        position = (position + count) % train.count();

        let loss = loss_function.forward(model.forward(rows), labels);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(LEARNING_RATE, model, gradients);

        if step == 1 || step % REPORT_EVERY_STEPS == 0 {
            let value = loss.into_scalar().elem::<f64>();
            println!("step {step:4} loss {value:.6}");
            losses.push(format!("{value:.6}"));
        }
        if step % CLEANUP_EVERY_STEPS == 0 {
            // Gives the memory that burn keeps for reuse back to the driver, as a program that shares its GPU does.
            Train::memory_cleanup(&device);
        }
    }
    let accuracy = accuracy(&model.valid(), &test, &device);
    let seconds = start.elapsed().as_secs_f64();
    println!(r#"{{"losses":[{}],"seconds":{seconds:.3},"accuracy":{accuracy:.6}}}"#, losses.join(","));
}
