//! How much each operation computes and moves, for a cost model.
//!
//! - **FLOPs**: every addition, subtraction, multiplication, division, comparison, root, logarithm and exponential
//!   counts as one, as the functions of [`host`](super) perform them. Masked scores of an attention do not count.
//! - **Bytes**: device memory traffic with perfect reuse inside the operation, as in the roofline model (Williams,
//!   Waterman and Patterson, 2009): each operand is read once, each output written once, and an output that is
//!   accumulated is also read. Scratch stays on the chip.
//!
//! The leading terms are the usual ones: 2·m·n·k for a matrix product, so that a dense layer costs two FLOPs per weight
//! and token forward and four backward (Kaplan et al., arXiv:2001.08361), and for a causal attention about
//! 2·batch·heads·sequence²·head width forward and 2.5 times that backward (Dao, arXiv:2307.08691, section 4.1).

use std::ops::Add;

use super::{AttentionShape, EmbeddingShape, LayerNormShape, MatmulShape, Rows, Update};

/// Work of one operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Floating-point operations.
    pub flops: u64,
    /// Bytes read from and written to device memory.
    pub bytes: u64,
}

impl Work {
    const fn new(flops: usize, bytes: usize) -> Self {
        Self { flops: flops as u64, bytes: bytes as u64 }
    }
}

impl Add for Work {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { flops: self.flops + other.flops, bytes: self.bytes + other.bytes }
    }
}

/// Times that an output is touched: written, or read and written.
const fn touches(update: Update) -> usize {
    match update {
        Update::Store => 1,
        Update::Accumulate => 2,
    }
}

/// FLOPs of adding a result to an output.
const fn additions(update: Update, elements: usize) -> usize {
    match update {
        Update::Store => 0,
        Update::Accumulate => elements,
    }
}

/// Work of [`matmul`](super::matmul()): `inner` multiplications and additions for each element of C.
pub fn matmul(shape: MatmulShape, update: Update, element_bytes: usize) -> Work {
    let MatmulShape { rows, inner, columns } = shape;
    // Products of sizes come first: where a size is zero the other ones may be anything.
    let elements = rows * inner + inner * columns + rows * columns * touches(update);
    Work::new(rows * inner * columns * 2, elements * element_bytes)
}

/// Work of [`bias_forward`](super::bias_forward): one addition for each element, in place.
pub fn bias_forward(shape: Rows, element_bytes: usize) -> Work {
    Work::new(shape.elements(), (2 * shape.elements() + shape.width) * element_bytes)
}

/// Work of [`bias_backward`](super::bias_backward): one addition for each element.
pub fn bias_backward(shape: Rows, update: Update, element_bytes: usize) -> Work {
    let flops = shape.elements() + additions(update, shape.width);
    Work::new(flops, (shape.elements() + touches(update) * shape.width) * element_bytes)
}

/// Work of [`layer_norm_forward`](super::layer_norm_forward): for each element one FLOP for the mean, three for the
/// variance and four for the output; five for each row.
pub fn layer_norm_forward(shape: LayerNormShape, element_bytes: usize) -> Work {
    let Rows { rows, width } = shape.rows;
    Work::new(8 * rows * width + 5 * rows, (2 * rows * width + 2 * width + 2 * rows) * element_bytes)
}

/// Work of [`layer_norm_backward`](super::layer_norm_backward): for each element two FLOPs for the normalised value,
/// one for the scaled gradient, three for the parameters, three for the two row sums and four for `dx`;
/// two for each row.
pub fn layer_norm_backward(
    shape: LayerNormShape,
    dx_update: Update,
    parameter_update: Update,
    element_bytes: usize,
) -> Work {
    let Rows { rows, width } = shape.rows;
    let added = additions(dx_update, rows * width) + additions(parameter_update, 2 * width);
    let inputs = 2 * rows * width + width + 2 * rows;
    let outputs = touches(dx_update) * rows * width + touches(parameter_update) * 2 * width;
    Work::new(13 * rows * width + 2 * rows + added, (inputs + outputs) * element_bytes)
}

/// Work of [`gelu_forward`](super::gelu_forward): nine FLOPs for each element.
pub fn gelu_forward(elements: usize, element_bytes: usize) -> Work {
    Work::new(9 * elements, 2 * elements * element_bytes)
}

/// Work of [`gelu_backward`](super::gelu_backward): eighteen FLOPs for each element.
pub fn gelu_backward(elements: usize, element_bytes: usize) -> Work {
    Work::new(18 * elements, 3 * elements * element_bytes)
}

/// Pairs of a query and a key that it sees, over all heads and sequences.
fn attention_pairs(shape: AttentionShape) -> usize {
    shape.batch * shape.heads * shape.sequence * (shape.sequence + 1) / 2
}

/// Work of [`attention_forward`](super::attention_forward): for each pair of a query and a key that it sees two matrix
/// products of `2 · head_width` FLOPs, one for the scale and five for the softmax; three for each row of scores.
pub fn attention_forward(shape: AttentionShape, element_bytes: usize) -> Work {
    let flops = attention_pairs(shape) * (4 * shape.head_width + 6) + 3 * shape.lse_elements();
    Work::new(flops, (shape.qkv_elements() + shape.out_elements() + shape.lse_elements()) * element_bytes)
}

/// Work of [`attention_backward`](super::attention_backward): for each pair of a query and a key that it sees five
/// matrix products, one FLOP for the scale, two for the probability and four for its gradient.
pub fn attention_backward(shape: AttentionShape, element_bytes: usize) -> Work {
    let flops = attention_pairs(shape) * (10 * shape.head_width + 7);
    Work::new(flops, (2 * shape.qkv_elements() + 2 * shape.out_elements() + shape.lse_elements()) * element_bytes)
}

/// Work of [`cross_entropy_forward`](super::cross_entropy_forward): for each logit a comparison, a subtraction, an
/// exponential and an addition; five for each row. `token_bytes` is the size of a target.
pub fn cross_entropy_forward(shape: Rows, element_bytes: usize, token_bytes: usize) -> Work {
    let elements = shape.elements() + shape.rows + 1;
    Work::new(4 * shape.elements() + 5 * shape.rows, elements * element_bytes + shape.rows * token_bytes)
}

/// Work of [`cross_entropy_backward`](super::cross_entropy_backward): for each logit the four FLOPs of the forward pass
/// and a multiplication; two for each row.
pub fn cross_entropy_backward(shape: Rows, element_bytes: usize, token_bytes: usize) -> Work {
    let elements = 2 * shape.elements();
    Work::new(5 * shape.elements() + 2 * shape.rows, elements * element_bytes + shape.rows * token_bytes)
}

/// Work of [`cross_entropy`](super::cross_entropy()): the forward pass, one multiplication for each logit, and two
/// FLOPs for each row.
pub fn cross_entropy(shape: Rows, element_bytes: usize, token_bytes: usize) -> Work {
    cross_entropy_forward(shape, element_bytes, token_bytes)
        + Work::new(shape.elements() + 2 * shape.rows, shape.elements() * element_bytes)
}

/// Work of [`embedding_forward`](super::embedding_forward) for `tokens` tokens: one addition for each element of the
/// output. A row of a table is read for every token that needs it.
pub fn embedding_forward(shape: EmbeddingShape, tokens: usize, element_bytes: usize, token_bytes: usize) -> Work {
    let elements = tokens * shape.width;
    Work::new(elements, 3 * elements * element_bytes + tokens * token_bytes)
}

/// Work of [`embedding_backward`](super::embedding_backward) for `tokens` tokens: two additions for each element of the
/// gradient. A row of a table is read and written for every token that adds to it, and stored tables are zeroed first.
pub fn embedding_backward(
    shape: EmbeddingShape,
    tokens: usize,
    update: Update,
    element_bytes: usize,
    token_bytes: usize,
) -> Work {
    let elements = tokens * shape.width;
    let zeroed = match update {
        Update::Store => (shape.vocabulary + shape.positions) * shape.width,
        Update::Accumulate => 0,
    };
    Work::new(2 * elements, (5 * elements + zeroed) * element_bytes + tokens * token_bytes)
}

/// Work of [`add`](super::add), and of [`accumulate`](super::accumulate), which also reads two values and writes one.
pub fn add(elements: usize, element_bytes: usize) -> Work {
    Work::new(elements, 3 * elements * element_bytes)
}

/// Work of [`scale`](super::scale).
pub fn scale(elements: usize, element_bytes: usize) -> Work {
    Work::new(elements, 2 * elements * element_bytes)
}

/// Work of [`fill`](super::fill).
pub fn fill(elements: usize, element_bytes: usize) -> Work {
    Work::new(0, elements * element_bytes)
}

/// Work of [`copy`](super::copy).
pub fn copy(elements: usize, element_bytes: usize) -> Work {
    Work::new(0, 2 * elements * element_bytes)
}

/// Work of [`adamw`](super::adamw()): three FLOPs for the first moment, four for the second, three for the root and
/// four for the parameter. Four values are read and three written.
pub fn adamw(elements: usize, element_bytes: usize) -> Work {
    Work::new(14 * elements, 7 * elements * element_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dense_layer_costs_six_flops_per_weight_and_token() {
        let (tokens, inputs, outputs) = (7, 5, 3);
        let forward = MatmulShape { rows: tokens, inner: inputs, columns: outputs };
        let dx = MatmulShape { rows: tokens, inner: outputs, columns: inputs };
        let dw = MatmulShape { rows: inputs, inner: tokens, columns: outputs };
        let total = [forward, dx, dw].into_iter().map(|shape| matmul(shape, Update::Store, 4).flops).sum::<u64>();
        assert_eq!(total, 6 * 7 * (5 * 3));
        assert_eq!(matmul(forward, Update::Store, 4).bytes, 4 * (35 + 15 + 21));
        assert_eq!(matmul(forward, Update::Accumulate, 4).bytes, 4 * (35 + 15 + 2 * 21));
    }

    #[test]
    fn a_long_attention_approaches_the_published_counts() {
        let shape = AttentionShape { batch: 2, sequence: 4096, heads: 16, head_width: 128 };
        let published = 4.0 * 2.0 * 16.0 * 4096.0 * 4096.0 * 128.0 / 2.0;
        let forward = attention_forward(shape, 2);
        assert!((forward.flops as f64 / published - 1.0).abs() < 0.02);
        assert!((attention_backward(shape, 2).flops as f64 / published - 2.5).abs() < 0.05);
        // Packed input, output and one number for each row of scores, of two bytes each.
        assert_eq!(forward.bytes, 2 * 2 * 4096 * 16 * (4 * 128 + 1));
    }

    #[test]
    fn attention_counts_the_pairs_that_are_seen() {
        let shape = AttentionShape { batch: 2, sequence: 5, heads: 3, head_width: 1 };
        let seen = (0..5).map(|query| (0..5).filter(|&key| key <= query).count()).sum::<usize>();
        assert_eq!(attention_pairs(shape), 2 * 3 * seen);
    }

    #[test]
    fn accumulation_reads_what_it_adds_to() {
        let rows = Rows { rows: 4, width: 3 };
        let stored = bias_backward(rows, Update::Store, 4);
        assert_eq!(stored, Work { flops: 12, bytes: 4 * 15 });
        assert_eq!(bias_backward(rows, Update::Accumulate, 4), stored + Work { flops: 3, bytes: 4 * 3 });

        let shape = LayerNormShape { rows, eps: 1e-5 };
        let stored = layer_norm_backward(shape, Update::Store, Update::Store, 8);
        let accumulated = layer_norm_backward(shape, Update::Accumulate, Update::Accumulate, 8);
        assert_eq!(accumulated, stored + Work { flops: 12 + 6, bytes: 8 * (12 + 6) });
    }

    #[test]
    fn one_pass_of_cross_entropy_saves_the_second_reading() {
        let shape = Rows { rows: 10, width: 256 };
        let apart = cross_entropy_forward(shape, 4, 1) + cross_entropy_backward(shape, 4, 1);
        let fused = cross_entropy(shape, 4, 1);
        assert_eq!(apart.bytes - fused.bytes, 4 * 2560 + 10);
        assert_eq!(apart.flops - fused.flops, 4 * 2560);
    }

    #[test]
    fn optimizer_and_embedding() {
        assert_eq!(adamw(10, 4), Work { flops: 140, bytes: 280 });
        let shape = EmbeddingShape { vocabulary: 256, positions: 8, width: 16 };
        assert_eq!(embedding_forward(shape, 24, 4, 1), Work { flops: 384, bytes: 3 * 384 * 4 + 24 });
        let added = embedding_backward(shape, 24, Update::Accumulate, 4, 1);
        assert_eq!(added, Work { flops: 768, bytes: 5 * 384 * 4 + 24 });
        let stored = embedding_backward(shape, 24, Update::Store, 4, 1);
        assert_eq!(stored.bytes - added.bytes, (256 + 8) * 16 * 4);
    }
}
