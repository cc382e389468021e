//! Shapes that no program can count.

use highwater::View;
use highwater::device::Device;
use highwater::device::sim::SimConfig;
use highwater_kernels::host::{AttentionShape, EmbeddingShape, LayerNormShape, MatmulShape, Rows, Transposed, Update};
use highwater_kernels::{self as kernels, AttentionBackward, CrossEntropy, KernelError, LayerNormForward};

use crate::operands::{Bench, TIMEOUT};

/// Half of all addresses: twice that many is too many.
const HALF: usize = usize::MAX / 2 + 1;

/// With views of two elements, none, and no tokens.
fn with_views(test: impl FnOnce(&Bench, View<'_, f32>, View<'_, f32>, View<'_, u32>)) {
    let bench = Bench::new(SimConfig::default());
    let (two, token) = (bench.stream.alloc::<f32>(2).unwrap(), bench.stream.alloc::<u32>(1).unwrap());
    test(&bench, two.view(), two.slice(..0), token.slice(..0));
}

#[test]
fn shapes_beyond_all_addresses_are_refused() {
    with_views(|bench, two, none, no_tokens| {
        let stream = &bench.stream;
        let before = bench.device.counters();
        let rows = Rows { rows: HALF, width: 2 };
        let product = |rows, inner, columns| {
            let shape = MatmulShape { rows, inner, columns };
            kernels::matmul(stream, shape, Transposed::Neither, Update::Store, none, none, none)
        };
        let (x, gamma, beta, out, mean, rstd) = (none, none, none, none, none, none);
        let norm = LayerNormForward { x, gamma, beta, out, mean, rstd };
        let words = EmbeddingShape { vocabulary: HALF, positions: 1, width: 2 };
        let positions = EmbeddingShape { vocabulary: 0, positions: HALF, width: 2 };
        let attention = AttentionShape { batch: 2, sequence: HALF, heads: 1, head_width: 1 };
        let views = AttentionBackward { qkv: none, out: none, lse: none, dout: none, dqkv: none };
        let loss = CrossEntropy { logits: none, targets: no_tokens, token_losses: none, loss: none, dlogits: none };
        let refused = [
            ("matmul", "a", product(HALF, 2, 0)),
            ("matmul", "b", product(0, 2, HALF)),
            ("matmul", "c", product(HALF, 0, 2)),
            ("bias", "x", kernels::bias_forward(stream, rows, two, none)),
            ("layer norm", "x", kernels::layer_norm_forward(stream, LayerNormShape { rows, eps: 1e-5 }, norm)),
            ("cross-entropy", "logits", kernels::cross_entropy(stream, rows, 1.0, loss)),
            (
                "cross-entropy backward",
                "logits",
                kernels::cross_entropy_backward(stream, rows, 1.0, none, no_tokens, none),
            ),
            ("embedding", "token_table", kernels::embedding_forward(stream, words, no_tokens, none, none, none)),
            (
                "embedding backward",
                "dposition_table",
                kernels::embedding_backward(stream, positions, no_tokens, none, Update::Store, none, none),
            ),
            ("attention", "qkv", kernels::attention_forward(stream, attention, none, none, none)),
            ("attention backward", "qkv", kernels::attention_backward(stream, attention, views)),
        ];
        for (kernel, operand, refused) in refused {
            let error = refused.expect_err(kernel);
            let named =
                matches!(&error, KernelError::Overflow { kernel: k, operand: o } if *k == kernel && *o == operand);
            assert!(named, "{kernel}, {operand}: {error:?}");
        }
        assert_eq!(bench.device.counters(), before, "the device was called");
    });
}

#[test]
fn a_zero_after_an_overflow_is_nothing() {
    with_views(|bench, _, none, _| {
        let shape = AttentionShape { batch: HALF, sequence: 2, heads: 0, head_width: 1 };
        kernels::attention_forward(&bench.stream, shape, none, none, none).unwrap();
        let views = AttentionBackward { qkv: none, out: none, lse: none, dout: none, dqkv: none };
        kernels::attention_backward(&bench.stream, shape, views).unwrap();
        for (rows, inner, columns) in [(usize::MAX, 0, 0), (0, 0, usize::MAX), (0, usize::MAX, 0)] {
            let shape = MatmulShape { rows, inner, columns };
            for update in [Update::Store, Update::Accumulate] {
                kernels::matmul(&bench.stream, shape, Transposed::Neither, update, none, none, none).unwrap();
            }
        }
        bench.stream.record().unwrap().wait(TIMEOUT).unwrap();
    });
}
