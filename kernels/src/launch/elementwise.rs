//! One element at a time.

use highwater::{Stream, View};

use super::{ELEMENT_BYTES, Kernel, KernelError};
use crate::host::{self, work};

/// out = left + right; all of one length.
///
/// # Errors
/// When a length differs from that of `out`, or the device fails.
#[track_caller]
pub fn add(stream: &Stream, left: View<'_, f32>, right: View<'_, f32>, out: View<'_, f32>) -> Result<(), KernelError> {
    Kernel::new(stream, "add", work::add(out.len(), ELEMENT_BYTES))
        .read("left", left, out.len())
        .read("right", right, out.len())
        .write("out", out, out.len())
        .submit(|[left, right, out]| host::add::<f32>(left.as_slice(), right.as_slice(), out.as_mut_slice()))
}

/// target += source; both of one length.
///
/// # Errors
/// When the lengths differ, or the device fails.
#[track_caller]
pub fn accumulate(stream: &Stream, source: View<'_, f32>, target: View<'_, f32>) -> Result<(), KernelError> {
    Kernel::new(stream, "accumulate", work::add(target.len(), ELEMENT_BYTES))
        .read("source", source, target.len())
        .read_write("target", target, target.len())
        .submit(|[source, target]| host::accumulate::<f32>(source.as_slice(), target.as_mut_slice()))
}

/// target *= factor.
///
/// # Errors
/// When the device fails.
#[track_caller]
pub fn scale(stream: &Stream, factor: f64, target: View<'_, f32>) -> Result<(), KernelError> {
    Kernel::new(stream, "scale", work::scale(target.len(), ELEMENT_BYTES))
        .read_write("target", target, target.len())
        .submit(move |[target]| host::scale::<f32>(factor, target.as_mut_slice()))
}

/// Every element of `target` = `value`.
///
/// # Errors
/// When the device fails.
#[track_caller]
pub fn fill(stream: &Stream, value: f32, target: View<'_, f32>) -> Result<(), KernelError> {
    Kernel::new(stream, "fill", work::fill(target.len(), ELEMENT_BYTES))
        .write("target", target, target.len())
        .submit(move |[target]| host::fill(value, target.as_mut_slice()))
}

/// target = source; both of one length.
///
/// # Errors
/// When the lengths differ, or the device fails.
#[track_caller]
pub fn copy(stream: &Stream, source: View<'_, f32>, target: View<'_, f32>) -> Result<(), KernelError> {
    Kernel::new(stream, "copy", work::copy(target.len(), ELEMENT_BYTES))
        .read("source", source, target.len())
        .write("target", target, target.len())
        .submit(|[source, target]| host::copy::<f32>(source.as_slice(), target.as_mut_slice()))
}

/// See [`host::gelu_forward`].
///
/// # Errors
/// When the lengths differ, or the device fails.
#[track_caller]
pub fn gelu_forward(stream: &Stream, x: View<'_, f32>, out: View<'_, f32>) -> Result<(), KernelError> {
    Kernel::new(stream, "gelu", work::gelu_forward(out.len(), ELEMENT_BYTES))
        .read("x", x, out.len())
        .write("out", out, out.len())
        .submit(|[x, out]| host::gelu_forward::<f32>(x.as_slice(), out.as_mut_slice()))
}

/// See [`host::gelu_backward`].
///
/// # Errors
/// When the lengths differ, or the device fails.
#[track_caller]
pub fn gelu_backward(
    stream: &Stream,
    x: View<'_, f32>,
    dout: View<'_, f32>,
    dx: View<'_, f32>,
) -> Result<(), KernelError> {
    Kernel::new(stream, "gelu backward", work::gelu_backward(dx.len(), ELEMENT_BYTES))
        .read("x", x, dx.len())
        .read("dout", dout, dx.len())
        .write("dx", dx, dx.len())
        .submit(|[x, dout, dx]| host::gelu_backward::<f32>(x.as_slice(), dout.as_slice(), dx.as_mut_slice()))
}
