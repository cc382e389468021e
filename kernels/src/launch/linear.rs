//! Matrix products and biases.

use highwater::{Stream, View};

use super::{ELEMENT_BYTES, Kernel, KernelError};
use crate::host::{self, MatmulShape, Rows, Transposed, Update, work};

/// c = a·b, or c += a·b; see [`host::matmul`].
///
/// # Errors
/// When a length does not fit the shape, or the device fails.
#[track_caller]
pub fn matmul(
    stream: &Stream,
    shape: MatmulShape,
    transposed: Transposed,
    update: Update,
    a: View<'_, f32>,
    b: View<'_, f32>,
    c: View<'_, f32>,
) -> Result<(), KernelError> {
    let MatmulShape { rows, inner, columns } = shape;
    Kernel::new(stream, "matmul", work::matmul(shape, update, ELEMENT_BYTES))
        .read("a", a, rows * inner)
        .read("b", b, inner * columns)
        .update(update, "c", c, rows * columns)
        .submit(move |[a, b, c]| {
            host::matmul::<f32>(shape, transposed, update, a.as_slice(), b.as_slice(), c.as_mut_slice());
        })
}

/// Adds `bias` to each row of `x`; see [`host::bias_forward`].
///
/// # Errors
/// When a length does not fit the shape, the width is zero, or the device fails.
#[track_caller]
pub fn bias_forward(stream: &Stream, shape: Rows, bias: View<'_, f32>, x: View<'_, f32>) -> Result<(), KernelError> {
    Kernel::new(stream, "bias", work::bias_forward(shape, ELEMENT_BYTES))
        .require_width(shape.width)
        .read("bias", bias, shape.width)
        .read_write("x", x, shape.elements())
        .submit(move |[bias, x]| host::bias_forward::<f32>(shape, bias.as_slice(), x.as_mut_slice()))
}

/// The sum of the rows of `dout`; see [`host::bias_backward`].
///
/// # Errors
/// When a length does not fit the shape, the width is zero, or the device fails.
#[track_caller]
pub fn bias_backward(
    stream: &Stream,
    shape: Rows,
    dout: View<'_, f32>,
    update: Update,
    dbias: View<'_, f32>,
) -> Result<(), KernelError> {
    Kernel::new(stream, "bias backward", work::bias_backward(shape, update, ELEMENT_BYTES))
        .require_width(shape.width)
        .read("dout", dout, shape.elements())
        .update(update, "dbias", dbias, shape.width)
        .submit(move |[dout, dbias]| host::bias_backward::<f32>(shape, dout.as_slice(), update, dbias.as_mut_slice()))
}
