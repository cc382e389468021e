//! Times of the kernels on a GPU, at the sizes of a transformer with 8 × 1024 tokens and width 1536.
//!
//! A sample is a batch of launches, one after the other, between two fences that take the time; what is told is the median
//! of the samples, for one launch. Inputs are random numbers: products of constants run faster than real ones.

use std::error::Error;
use std::sync::Arc;

use highwater::device::cuda::{CudaConfig, CudaDevice};
use highwater::{Allocator, Buffer, Fence, Stream};
use highwater_kernels as kernels;
use highwater_kernels::host::{AdamW, AttentionShape, LayerNormShape, MatmulShape, Rows, Transposed, Update};
use highwater_kernels::{AdamWViews, AttentionBackward, CrossEntropy, Element, LayerNormBackward, LayerNormForward};
use serde::Serialize;

use crate::cli::BenchKernelsArgs;
use crate::doctor::{self, Need};
use crate::failure::Failure;
use crate::output;

/// Tokens of a batch.
const TOKENS: usize = 8 * 1024;
/// Width of the residual stream.
const WIDTH: usize = 1536;
/// Tokens that a text is made of.
const VOCABULARY: usize = 50_304;
/// Parameters of one step of the optimizer.
const PARAMETERS: usize = 64 << 20;

/// Launches of a sample, samples, and samples before.
const BATCH: u32 = 10;
const SAMPLES: usize = 15;
const WARM_UP: usize = 3;

/// One measurement.
#[derive(Serialize)]
struct Timing {
    kernel: &'static str,
    shape: String,
    element: &'static str,
    us: f64,
    /// Of the arithmetic that the operation is defined by; 0 where memory is what counts.
    tflops: f64,
    /// Of the operands, each once.
    gb_per_s: f64,
}

/// Measures all kernels and prints a line for each.
///
/// # Errors
/// When something that a GPU needs is missing, or a measurement fails.
pub(crate) fn run(arguments: &BenchKernelsArgs) -> Result<(), Failure> {
    doctor::require(Need::Training)?;
    let mut tell = |timing: Timing| {
        let line = match arguments.json {
            true => serde_json::to_string(&timing).expect("numbers and text are JSON") + "\n",
            false => format!(
                "{:<24} {:<5} {:<32} {:>9.1} us {:>7.1} TFLOP/s {:>7.0} GB/s\n",
                timing.kernel, timing.element, timing.shape, timing.us, timing.tflops, timing.gb_per_s
            ),
        };
        output::print(&line).map_err(Failure::Print)
    };
    let bench = Bench::new().map_err(Failure::bench)?;
    bench.all::<half::bf16>("bf16", &mut tell)?;
    bench.all::<f32>("f32", &mut tell)?;
    bench.optimizer(&mut tell)
}

struct Bench {
    allocator: Allocator,
    stream: Stream,
}

type Tell<'a> = &'a mut dyn FnMut(Timing) -> Result<(), Failure>;

impl Bench {
    fn new() -> Result<Self, Box<dyn Error + Send + Sync>> {
        let device = CudaDevice::new(CudaConfig { timing: true, ..CudaConfig::default() })?;
        kernels::cuda::prepare(&device)?;
        let allocator = Allocator::new(Arc::clone(&device) as _)?;
        Ok(Bench { stream: allocator.default_stream(), allocator })
    }

    /// Random numbers around 0, about `size` large.
    fn random<E: Element>(&self, elements: usize, size: f32) -> Result<Buffer<E>, Box<dyn Error + Send + Sync>> {
        let staging = self.allocator.pinned::<f32>(elements);
        let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ elements as u64;
        staging.write(|values| {
            for value in values {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *value = ((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * size;
            }
        })?;
        let (copied, cast) = (self.stream.alloc::<f32>(elements)?, self.stream.alloc::<E>(elements)?);
        self.stream.copy_to_device(&staging, &copied)?;
        kernels::cast(&self.stream, copied.view(), cast.view())?;
        staging.wait(std::time::Duration::from_secs(60))?;
        Ok(cast)
    }

    /// Median time of one launch, ns.
    fn measure(&self, mut launch: impl FnMut(&Stream) -> Result<(), kernels::KernelError>) -> Result<f64, Failure> {
        let mut sample = || -> Result<u64, Box<dyn Error + Send + Sync>> {
            let start = self.stream.record()?;
            for _ in 0..BATCH {
                launch(&self.stream)?;
            }
            let end: Fence = self.stream.record()?;
            end.wait(std::time::Duration::from_secs(60))?;
            Ok(end.elapsed_ns_since(&start)?)
        };
        let mut samples = Vec::new();
        for index in 0..WARM_UP + SAMPLES {
            let sampled = sample().map_err(Failure::bench)?;
            samples.extend((index >= WARM_UP).then_some(sampled));
        }
        samples.sort_unstable();
        Ok(samples[samples.len() / 2] as f64 / f64::from(BATCH))
    }

    fn all<E: Element>(&self, element: &'static str, tell: Tell<'_>) -> Result<(), Failure> {
        for (columns, inner) in [(3 * WIDTH, WIDTH), (WIDTH, WIDTH), (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH)] {
            self.product::<E>(element, (columns, inner), tell)?;
        }
        for (heads, head_width) in [(12, 128), (24, 64)] {
            self.attention::<E>(element, (heads, head_width), tell)?;
        }
        self.norm::<E>(element, tell)?;
        self.loss::<E>(element, tell)
    }

    /// The three products of a layer: forward, and the gradients of the input and of the weights.
    fn product<E: Element>(
        &self,
        element: &'static str,
        (columns, inner): (usize, usize),
        tell: Tell<'_>,
    ) -> Result<(), Failure> {
        let buffers = || -> Result<_, Box<dyn Error + Send + Sync>> {
            Ok((self.random::<E>(TOKENS * inner, 1.0)?, self.random::<E>(inner * columns, 0.03)?))
        };
        let (x, weight) = buffers().map_err(Failure::bench)?;
        let y = self.random::<E>(TOKENS * columns, 1.0).map_err(Failure::bench)?;
        let flops = 2.0 * (TOKENS * inner * columns) as f64;
        let bytes = ((TOKENS * (inner + columns) + inner * columns) * size_of::<E>()) as f64;
        let forward = MatmulShape { rows: TOKENS, inner, columns };
        let of_x = MatmulShape { rows: TOKENS, inner: columns, columns: inner };
        let of_weight = MatmulShape { rows: inner, inner: TOKENS, columns };
        let (x, weight, y) = (x.view(), weight.view(), y.view());
        for (kernel, shape, transposed, a, b, c) in [
            ("matmul", forward, Transposed::Neither, x, weight, y),
            ("matmul of input", of_x, Transposed::Right, y, weight, x),
            ("matmul of weight", of_weight, Transposed::Left, x, y, weight),
        ] {
            let ns = self.measure(|stream| kernels::matmul(stream, shape, transposed, Update::Store, a, b, c))?;
            let MatmulShape { rows, inner, columns } = shape;
            tell(timing(kernel, format!("{rows}x{inner}x{columns}"), element, ns, flops, bytes))?;
        }
        Ok(())
    }

    fn attention<E: Element>(
        &self,
        element: &'static str,
        (heads, head_width): (usize, usize),
        tell: Tell<'_>,
    ) -> Result<(), Failure> {
        let shape = AttentionShape { batch: 8, sequence: 1024, heads, head_width };
        let buffer = |elements| self.random::<E>(elements, 1.0).map_err(Failure::bench);
        let (qkv, out) = (buffer(shape.qkv_elements())?, buffer(shape.out_elements())?);
        let (dout, dqkv) = (buffer(shape.out_elements())?, buffer(shape.qkv_elements())?);
        let lse = self.random::<f32>(shape.lse_elements(), 1.0).map_err(Failure::bench)?;
        let views = AttentionBackward {
            qkv: qkv.view(),
            out: out.view(),
            lse: lse.view(),
            dout: dout.view(),
            dqkv: dqkv.view(),
        };
        // Two products over the half of the pairs that is seen; five in the backward pass.
        let pairs = (shape.batch * heads * shape.sequence * shape.sequence) as f64 / 2.0;
        let flops = 4.0 * pairs * head_width as f64;
        let bytes = (4 * shape.out_elements() * size_of::<E>()) as f64;
        let told = format!("8x1024 {heads}x{head_width} causal");
        let forward = self.measure(|s| kernels::attention_forward(s, shape, views.qkv, views.out, views.lse))?;
        tell(timing("attention", told.clone(), element, forward, flops, bytes))?;
        let backward = self.measure(|s| kernels::attention_backward(s, shape, views))?;
        tell(timing("attention backward", told, element, backward, 2.5 * flops, 2.0 * bytes))
    }

    fn norm<E: Element>(&self, element: &'static str, tell: Tell<'_>) -> Result<(), Failure> {
        let shape = LayerNormShape { rows: Rows { rows: TOKENS, width: WIDTH }, eps: 1e-5 };
        let tensor = || self.random::<E>(TOKENS * WIDTH, 1.0).map_err(Failure::bench);
        let (x, out, dout, dx) = (tensor()?, tensor()?, tensor()?, tensor()?);
        let row = || self.random::<E>(WIDTH, 1.0).map_err(Failure::bench);
        let (gamma, beta, dgamma, dbeta) = (row()?, row()?, row()?, row()?);
        let saved = || self.random::<f32>(TOKENS, 1.0).map_err(Failure::bench);
        let (mean, rstd) = (saved()?, saved()?);
        let views = LayerNormForward {
            x: x.view(),
            gamma: gamma.view(),
            beta: beta.view(),
            out: out.view(),
            mean: mean.view(),
            rstd: rstd.view(),
        };
        let bytes = (TOKENS * WIDTH * size_of::<E>()) as f64;
        let told = format!("{TOKENS}x{WIDTH}");
        let ns = self.measure(|stream| kernels::layer_norm_forward(stream, shape, views))?;
        tell(timing("layer norm", told.clone(), element, ns, 0.0, 2.0 * bytes))?;
        let views = LayerNormBackward {
            x: x.view(),
            gamma: gamma.view(),
            mean: mean.view(),
            rstd: rstd.view(),
            dout: dout.view(),
            dx: dx.view(),
            dgamma: dgamma.view(),
            dbeta: dbeta.view(),
        };
        let store = Update::Store;
        let ns = self.measure(|stream| kernels::layer_norm_backward(stream, shape, store, store, views))?;
        tell(timing("layer norm backward", told, element, ns, 0.0, 3.0 * bytes))
    }

    fn loss<E: Element>(&self, element: &'static str, tell: Tell<'_>) -> Result<(), Failure> {
        let shape = Rows { rows: TOKENS, width: VOCABULARY };
        let tensor = || self.random::<E>(TOKENS * VOCABULARY, 4.0).map_err(Failure::bench);
        let (logits, dlogits) = (tensor()?, tensor()?);
        let targets = self.stream.alloc::<u32>(TOKENS).map_err(Failure::bench)?;
        let staging = self.allocator.pinned::<u32>(TOKENS);
        let spread = |targets: &mut [u32]| {
            for (index, target) in (0u32..).zip(targets) {
                *target = index.wrapping_mul(2_654_435_761) % VOCABULARY as u32;
            }
        };
        staging.write(spread).map_err(Failure::bench)?;
        self.stream.copy_to_device(&staging, &targets).map_err(Failure::bench)?;
        let losses = |elements| self.random::<f32>(elements, 1.0).map_err(Failure::bench);
        let (token_losses, loss) = (losses(TOKENS)?, losses(1)?);
        let views = CrossEntropy {
            logits: logits.view(),
            targets: targets.view(),
            token_losses: token_losses.view(),
            loss: loss.view(),
            dlogits: dlogits.view(),
        };
        let ns = self.measure(|stream| kernels::cross_entropy(stream, shape, 1.0 / TOKENS as f64, views))?;
        let bytes = 2.0 * (TOKENS * VOCABULARY * size_of::<E>()) as f64;
        tell(timing("cross-entropy both", format!("{TOKENS}x{VOCABULARY}"), element, ns, 0.0, bytes))
    }

    fn optimizer(&self, tell: Tell<'_>) -> Result<(), Failure> {
        let tensor = || self.random::<f32>(PARAMETERS, 0.1).map_err(Failure::bench);
        let (gradient, parameter, first, second) = (tensor()?, tensor()?, tensor()?, tensor()?);
        kernels::fill(&self.stream, 0.01, second.view()).map_err(Failure::bench)?;
        let views = AdamWViews {
            gradient: gradient.view(),
            parameter: parameter.view(),
            first_moment: first.view(),
            second_moment: second.view(),
        };
        let ns = self.measure(|stream| kernels::adamw(stream, AdamW::default(), 7, views))?;
        tell(timing("adamw", PARAMETERS.to_string(), "f32", ns, 0.0, 7.0 * 4.0 * PARAMETERS as f64))
    }
}

fn timing(kernel: &'static str, shape: String, element: &'static str, ns: f64, flops: f64, bytes: f64) -> Timing {
    Timing { kernel, shape, element, us: ns / 1e3, tflops: flops / ns / 1e3, gb_per_s: bytes / ns }
}
