//! Causal attention.

use highwater::{Stream, View};

use super::{ELEMENT_BYTES, Kernel, KernelError};
use crate::host::{self, AttentionShape, work};

/// What both passes need.
const HEAD_WIDTH: &str = "a head must have at least one element";

/// See [`host::attention_forward`].
///
/// # Errors
/// When a length does not fit the shape, the head width is zero, or the device fails.
#[track_caller]
pub fn attention_forward(
    stream: &Stream,
    shape: AttentionShape,
    qkv: View<'_, f32>,
    out: View<'_, f32>,
    lse: View<'_, f32>,
) -> Result<(), KernelError> {
    Kernel::new(stream, "attention", work::attention_forward(shape, ELEMENT_BYTES))
        .require(shape.head_width > 0, HEAD_WIDTH)
        .read("qkv", qkv, shape.qkv_elements())
        .write("out", out, shape.out_elements())
        .write("lse", lse, shape.lse_elements())
        .submit(move |[qkv, out, lse]| {
            host::attention_forward::<f32>(shape, qkv.as_slice(), out.as_mut_slice(), lse.as_mut_slice());
        })
}

/// See [`host::attention_backward`].
///
/// # Errors
/// When a length does not fit the shape, the head width is zero, or the device fails.
#[track_caller]
pub fn attention_backward(
    stream: &Stream,
    shape: AttentionShape,
    qkv: View<'_, f32>,
    lse: View<'_, f32>,
    dout: View<'_, f32>,
    dqkv: View<'_, f32>,
) -> Result<(), KernelError> {
    Kernel::new(stream, "attention backward", work::attention_backward(shape, ELEMENT_BYTES))
        .require(shape.head_width > 0, HEAD_WIDTH)
        .read("qkv", qkv, shape.qkv_elements())
        .read("lse", lse, shape.lse_elements())
        .read("dout", dout, shape.out_elements())
        .write("dqkv", dqkv, shape.qkv_elements())
        .submit(move |[qkv, lse, dout, dqkv]| {
            let (qkv, lse, dout) = (qkv.as_slice(), lse.as_slice(), dout.as_slice());
            host::attention_backward::<f32>(shape, qkv, lse, dout, dqkv.as_mut_slice());
        })
}
