//! Causal attention.

use highwater_kernels as kernels;
use highwater_kernels::host::{self, AttentionShape, work};

use super::{read, written};
use crate::operands::{Case, Random};

pub(super) fn attentions(random: &mut Random, cases: &mut Vec<Case>) {
    for (batch, sequence, heads, head_width) in [(1, 1, 1, 1), (2, 5, 3, 4), (1, 40, 2, 8)] {
        let shape = AttentionShape { batch, sequence, heads, head_width };
        cases.push(Case {
            kernel: "attention",
            what: format!("{shape:?}"),
            operands: vec![
                read("qkv", random.floats(shape.qkv_elements())),
                written("out", shape.out_elements()),
                written("lse", shape.lse_elements()),
            ],
            work: work::attention_forward(shape, 4),
            launch: Box::new(move |stream, tensors| {
                let [qkv, out, lse] = tensors else { unreachable!() };
                kernels::attention_forward(stream, shape, qkv.floats(), out.floats(), lse.floats())
            }),
            host: Box::new(move |data| {
                let [qkv, out, lse] = data else { unreachable!() };
                host::attention_forward(shape, qkv.floats(), out.floats(), lse.floats());
            }),
        });
        let qkv = random.floats(shape.qkv_elements());
        let (mut out, mut lse) = (vec![0.0; shape.out_elements()], vec![0.0; shape.lse_elements()]);
        host::attention_forward(shape, &qkv, &mut out, &mut lse);
        cases.push(Case {
            kernel: "attention backward",
            what: format!("{shape:?}"),
            operands: vec![
                read("qkv", qkv),
                read("out", out),
                read("lse", lse),
                read("dout", random.floats(shape.out_elements())),
                written("dqkv", shape.qkv_elements()),
            ],
            work: work::attention_backward(shape, 4),
            launch: Box::new(move |stream, tensors| {
                let [qkv, out, lse, dout, dqkv] = tensors else { unreachable!() };
                let (qkv, out, lse, dout) = (qkv.floats(), out.floats(), lse.floats(), dout.floats());
                let views = kernels::AttentionBackward { qkv, out, lse, dout, dqkv: dqkv.floats() };
                kernels::attention_backward(stream, shape, views)
            }),
            host: Box::new(move |data| {
                let [qkv, _out, lse, dout, dqkv] = data else { unreachable!() };
                let (qkv, lse, dout) = (qkv.floats(), lse.floats(), dout.floats());
                host::attention_backward(shape, qkv, lse, dout, dqkv.floats());
            }),
        });
    }
}
