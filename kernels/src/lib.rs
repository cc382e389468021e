//! The operations of a small transformer: what runs between two allocations.
//!
//! A training step is a chain of such operations on device buffers. [`host`] holds their arithmetic on the CPU. It is
//! what a simulated device runs as the body of an operation, and the reference for any other implementation.
//!
//! - [`host`]: forward and backward passes on flat row-major slices, for `f32` and `f64`, single-threaded and
//!   reproducible bit for bit.
//! - [`host::work`]: floating-point operations and memory traffic of each of them, for a cost model.
//! - At the root: launchers, which submit one operation each to a stream.

pub mod host;
mod launch;

pub use launch::{
    AdamWViews, CrossEntropy, KernelError, LayerNormBackward, LayerNormForward, accumulate, adamw, add,
    attention_backward, attention_forward, bias_backward, bias_forward, copy, cross_entropy, embedding_backward,
    embedding_forward, fill, gelu_backward, gelu_forward, layer_norm_backward, layer_norm_forward, matmul, scale,
};
