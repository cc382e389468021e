//! Shapes at the edge: what no operation is defined for is refused, what is merely empty works, and operands that
//! overlap are the device's to refuse.

use highwater::device::sim::SimConfig;
use highwater::device::{Device, DeviceCall, DeviceError};
use highwater::{Stream, StreamError, View};
use highwater_kernels::host::{AdamW, AttentionShape, EmbeddingShape, LayerNormShape, MatmulShape, Rows};
use highwater_kernels::host::{Transposed, Update};
use highwater_kernels::{
    self as kernels, AdamWViews, AttentionBackward, CrossEntropy, KernelError, LayerNormBackward, LayerNormForward,
};

use crate::operands::{Bench, Data, TIMEOUT};

/// Views for operations on nothing, and one element.
#[derive(Clone, Copy)]
struct Views<'a> {
    none: View<'a, f32>,
    no_tokens: View<'a, u32>,
    one: View<'a, f32>,
}

fn with_views(test: impl FnOnce(&Bench, Views<'_>)) {
    let bench = Bench::new(SimConfig::default());
    let (one, token) = (bench.stream.alloc::<f32>(1).unwrap(), bench.stream.alloc::<u32>(1).unwrap());
    kernels::fill(&bench.stream, 7.0, one.view()).unwrap();
    test(&bench, Views { none: one.slice(..0), no_tokens: token.slice(..0), one: one.view() });
}

fn layer_norm(stream: &Stream, width: usize, none: View<'_, f32>, parameter: View<'_, f32>) -> Result<(), KernelError> {
    let shape = LayerNormShape { rows: Rows { rows: 0, width }, eps: 1e-5 };
    let (x, out, mean, rstd, gamma, beta) = (none, none, none, none, parameter, parameter);
    kernels::layer_norm_forward(stream, shape, LayerNormForward { x, gamma, beta, out, mean, rstd })
}

fn layer_norm_backward(stream: &Stream, none: View<'_, f32>) -> Result<(), KernelError> {
    let shape = LayerNormShape { rows: Rows { rows: 0, width: 0 }, eps: 1e-5 };
    let (x, gamma, mean, rstd, dout, dx, dgamma, dbeta) = (none, none, none, none, none, none, none, none);
    let views = LayerNormBackward { x, gamma, mean, rstd, dout, dx, dgamma, dbeta };
    kernels::layer_norm_backward(stream, shape, Update::Store, Update::Store, views)
}

fn cross_entropy(stream: &Stream, width: usize, views: Views<'_>) -> Result<(), KernelError> {
    let Views { none, no_tokens, one } = views;
    let (logits, targets, token_losses, loss, dlogits) = (none, no_tokens, none, one, none);
    let views = CrossEntropy { logits, targets, token_losses, loss, dlogits };
    kernels::cross_entropy(stream, Rows { rows: 0, width }, 1.0, views)
}

/// All operations with an argument that is never right, though every length fits.
fn refusals(stream: &Stream, views: Views<'_>) -> Vec<Result<(), KernelError>> {
    let Views { none, no_tokens, one } = views;
    let (store, empty) = (Update::Store, Rows { rows: 0, width: 0 });
    let headless = AttentionShape { batch: 0, sequence: 1, heads: 1, head_width: 0 };
    let narrow = EmbeddingShape { vocabulary: 1, positions: 1, width: 0 };
    let nowhere = EmbeddingShape { vocabulary: 1, positions: 0, width: 1 };
    let (gradient, parameter, first_moment, second_moment) = (none, none, none, none);
    let attention = AttentionBackward { qkv: none, out: none, lse: none, dout: none, dqkv: none };
    vec![
        kernels::bias_forward(stream, empty, none, none),
        kernels::bias_backward(stream, empty, none, store, none),
        layer_norm(stream, 0, none, none),
        layer_norm_backward(stream, none),
        cross_entropy(stream, 0, views),
        kernels::cross_entropy_forward(stream, empty, 1.0, none, no_tokens, none, one),
        kernels::cross_entropy_backward(stream, empty, 1.0, none, no_tokens, none),
        kernels::embedding_forward(stream, narrow, no_tokens, none, none, none),
        kernels::embedding_backward(stream, narrow, no_tokens, none, store, none, none),
        kernels::embedding_forward(stream, nowhere, no_tokens, one, none, none),
        kernels::embedding_backward(stream, nowhere, no_tokens, none, store, one, none),
        kernels::attention_forward(stream, headless, none, none, none),
        kernels::attention_backward(stream, headless, attention),
        kernels::adamw(stream, AdamW::default(), 0, AdamWViews { gradient, parameter, first_moment, second_moment }),
    ]
}

#[test]
fn arguments_that_no_operation_is_defined_for_are_refused() {
    with_views(|bench, views| {
        let before = bench.device.counters();
        let refused = refusals(&bench.stream, views);
        assert_eq!(bench.device.counters(), before, "the device was called");
        let messages: Vec<String> = refused.iter().map(|result| result.as_ref().unwrap_err().to_string()).collect();
        assert!(refused.iter().all(|result| matches!(result, Err(KernelError::Invalid { .. }))), "{messages:?}");
        let width = "rows must have at least one element";
        let positions = "there must be at least one position";
        let heads = "a head must have at least one element";
        let expected = [
            ("bias", width),
            ("bias backward", width),
            ("layer norm", width),
            ("layer norm backward", width),
            ("cross-entropy", width),
            ("cross-entropy forward", width),
            ("cross-entropy backward", width),
            ("embedding", width),
            ("embedding backward", width),
            ("embedding", positions),
            ("embedding backward", positions),
            ("attention", heads),
            ("attention backward", heads),
            ("adamw", "steps count from one"),
        ];
        assert_eq!(messages, expected.map(|(kernel, what)| format!("{kernel}: {what}")));
    });
}

#[test]
fn operations_on_nothing_work() {
    with_views(|bench, views| {
        let (stream, Views { none, no_tokens, one }) = (&bench.stream, views);
        let shape = AttentionShape { batch: 0, sequence: 3, heads: 2, head_width: 4 };
        let attention = AttentionBackward { qkv: none, out: none, lse: none, dout: none, dqkv: none };
        let table = EmbeddingShape { vocabulary: 1, positions: 1, width: 1 };
        let nothing = MatmulShape { rows: 0, inner: 0, columns: 0 };
        kernels::matmul(stream, nothing, Transposed::Left, Update::Accumulate, none, none, none).unwrap();
        kernels::bias_forward(stream, Rows { rows: 0, width: 1 }, one, none).unwrap();
        layer_norm(stream, 1, none, one).unwrap();
        kernels::attention_forward(stream, shape, none, none, none).unwrap();
        kernels::attention_backward(stream, shape, attention).unwrap();
        kernels::embedding_forward(stream, table, no_tokens, one, one, none).unwrap();
        kernels::add(stream, none, none, none).unwrap();
        kernels::fill(stream, 1.0, none).unwrap();
        kernels::gelu_forward(stream, none, none).unwrap();
        stream.record().unwrap().wait(TIMEOUT).unwrap();
        assert_eq!(value(bench, one), 7.0, "none of these writes an element");

        kernels::bias_backward(stream, Rows { rows: 0, width: 1 }, none, Update::Accumulate, one).unwrap();
        assert_eq!(value(bench, one), 7.0, "nothing is added");
        cross_entropy(stream, 1, views).unwrap();
        assert_eq!(value(bench, one), 0.0, "the loss of no tokens");
    });
}

fn value(bench: &Bench, view: View<'_, f32>) -> f32 {
    let copy = bench.upload(&Data::Floats(vec![f32::NAN]));
    kernels::copy(&bench.stream, view, copy.floats()).unwrap();
    bench.download(&copy).floats()[0]
}

#[test]
fn operands_may_overlap_only_where_they_are_read() {
    let bench = Bench::new(SimConfig::default());
    let x = bench.stream.alloc::<f32>(8).unwrap();
    kernels::fill(&bench.stream, 1.5, x.view()).unwrap();
    kernels::add(&bench.stream, x.slice(..3), x.slice(1..4), x.slice(4..7)).unwrap();
    let launches = bench.device.counters().of(DeviceCall::Launch);
    for refused in [
        kernels::copy(&bench.stream, x.slice(..4), x.slice(3..7)),
        kernels::accumulate(&bench.stream, x.view(), x.view()),
        kernels::add(&bench.stream, x.slice(..2), x.slice(2..4), x.slice(1..3)),
    ] {
        let Err(KernelError::Stream(StreamError::Device { source, .. })) = &refused else { panic!("{refused:?}") };
        assert!(matches!(source, DeviceError::InvalidValue { call: DeviceCall::Launch, .. }), "{source}");
    }
    assert_eq!(bench.device.counters().of(DeviceCall::Launch), launches + 3, "they got as far as the device");
    assert_eq!(value(&bench, x.slice(4..5)), 3.0, "and the device goes on");
}
