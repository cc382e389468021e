//! The operations of a small transformer: what runs between two allocations.
//!
//! A training step is a chain of such operations on device buffers. The crate has three parts:
//!
//! - [`host`]: their arithmetic on the CPU, forward and backward passes on flat row-major slices, for `f32` and `f64`,
//!   single-threaded and reproducible bit for bit. It is what a simulated device runs as the body of an operation, and
//!   the reference for any other implementation. [`host::work`] says how much each of them computes and moves.
//! - [`cuda`]: the same on a GPU. Kernels are compiled when first used, and kept on disk.
//! - The functions at the root: launchers, which submit one operation each to a stream, on views of device memory whose
//!   elements are `f32` or `bf16` ([`Element`]).
//!
//! # Launchers
//!
//! A launcher has the name of its host function. It checks the operands' lengths against the shape, tells the device
//! what the operation reads, writes and costs, and returns at once. Outputs with [`Update::Store`](host::Update::Store)
//! are written without being read; with [`Update::Accumulate`](host::Update::Accumulate) they are read and written.
//!
//! What the caller did wrong is a [`KernelError`], and then nothing was submitted. Bad data in device memory shows only
//! when the operation executes: a token outside its table stops the device with a fault. Operands may overlap only where
//! all that overlap are read: an operation on one operand in place ([`scale`], [`accumulate`], [`bias_forward`]) has its
//! own function.
//!
//! ```
//! use highwater::{Allocator, device::sim::SimDevice};
//! use highwater_kernels::{self as kernels, host::{MatmulShape, Transposed, Update}};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let allocator = Allocator::new(SimDevice::new(Default::default()))?;
//! let stream = allocator.default_stream();
//! let shape = MatmulShape { rows: 2, inner: 3, columns: 4 };
//! let (a, b, c) = (stream.alloc::<f32>(6)?, stream.alloc(12)?, stream.alloc(8)?);
//! kernels::fill(&stream, 1.0, a.view())?;
//! kernels::fill(&stream, 0.5, b.view())?;
//! kernels::matmul(&stream, shape, Transposed::Neither, Update::Store, a.view(), b.view(), c.view())?;
//!
//! let product = allocator.pinned(8);
//! stream.copy_to_host(&c, &product)?;
//! product.wait(std::time::Duration::from_secs(1))?;
//! product.read(|elements| assert_eq!(elements, [1.5; 8]))?;
//! # Ok(()) }
//! ```

pub mod cuda;
pub mod host;
mod launch;

pub use launch::{
    AdamWViews, AttentionBackward, CrossEntropy, Element, KernelError, LayerNormBackward, LayerNormForward,
    MOST_SOURCES, accumulate, adamw, add, attention_backward, attention_forward, bias_backward, bias_forward, cast,
    copy, cross_entropy, cross_entropy_backward, cross_entropy_forward, embedding_backward, embedding_forward, fill,
    gelu_backward, gelu_forward, layer_norm_backward, layer_norm_forward, matmul, scale, sum_ranks_on_gpu,
};
