//! The transformer's arithmetic on the CPU.
//!
//! Every function works on flat row-major slices, on the thread that calls it. The forward and the backward pass of an
//! operation are two functions, so that a caller can put memory operations between them. Outputs are passed in; an
//! output that is stored is never read before it is written, so it may hold any bytes (NaN patterns too).
//!
//! # Rules that hold for all functions
//!
//! - **Element type**: generic over [`Real`], which is `f32` or `f64`.
//! - **Store or add**: a gradient that may be summed over micro-batches takes an [`Update`].
//! - **Order of sums**: fixed by the shape alone. The same inputs give the same bits on every thread of a machine, in
//!   any number of concurrent calls, wherever the slices lie in memory. (The matrix product picks its instructions and
//!   blocks for the processor at hand, so another processor may round differently.) See [`Update::Accumulate`] for how
//!   a sum meets the value that is already there.
//! - **Panics**: only when a slice does not fit its shape, a shape has a zero where none is allowed, or a token is
//!   outside its table. The message names the argument.
//!
//! # Operations
//!
//! | operation | forward | backward |
//! |---|---|---|
//! | matrix product | [`matmul`] | [`matmul`] with the other layouts |
//! | bias | [`bias_forward`] | [`bias_backward`] |
//! | layer normalisation | [`layer_norm_forward`] | [`layer_norm_backward`] |
//! | GELU | [`gelu_forward`] | [`gelu_backward`] |
//! | causal self-attention | [`attention_forward`] | [`attention_backward`] |
//! | embedding | [`embedding_forward`] | [`embedding_backward`] |
//! | cross-entropy | [`cross_entropy_forward`] | [`cross_entropy_backward`], or both at once: [`cross_entropy`] |
//! | elementwise | [`add`], [`accumulate`], [`scale`], [`fill`], [`copy`] | |
//! | optimizer | [`adamw`] | |
//!
//! # Example
//!
//! ```
//! use highwater_kernels::host::{MatmulShape, Transposed, Update, matmul};
//!
//! let shape = MatmulShape { rows: 2, inner: 3, columns: 1 };
//! let mut product = [f32::NAN; 2];
//! matmul(shape, Transposed::Neither, Update::Store, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[1.0, 0.0, -1.0], &mut product);
//! assert_eq!(product, [-2.0, -2.0]);
//! ```

mod adamw;
mod attention;
mod bias;
mod cross_entropy;
mod elementwise;
mod embedding;
mod gelu;
mod layer_norm;
mod matmul;
mod real;
mod shape;
mod sum;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod transformer;
mod update;
pub mod work;

pub use adamw::{AdamW, adamw};
pub use attention::{AttentionShape, attention_backward, attention_forward};
pub use bias::{bias_backward, bias_forward};
pub use cross_entropy::{cross_entropy, cross_entropy_backward, cross_entropy_forward};
pub use elementwise::{accumulate, add, copy, fill, scale};
pub use embedding::{EmbeddingShape, embedding_backward, embedding_forward};
pub use gelu::{gelu_backward, gelu_forward};
pub use layer_norm::{LayerNormBackward, LayerNormForward, LayerNormShape, layer_norm_backward, layer_norm_forward};
pub use matmul::{MatmulShape, Transposed, matmul};
pub use real::{Real, Token};
pub use shape::Rows;
pub use update::Update;
