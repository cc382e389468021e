//! Layer norm.

use highwater::{Stream, View};

use super::{ELEMENT_BYTES, Kernel, KernelError};
use crate::host::{self, LayerNormShape, Rows, Update, work};

/// Operands of [`layer_norm_forward`]; shapes as in [`host::LayerNormForward`].
#[derive(Clone, Copy, Debug)]
pub struct LayerNormForward<'a> {
    /// Input.
    pub x: View<'a, f32>,
    /// Scale.
    pub gamma: View<'a, f32>,
    /// Shift.
    pub beta: View<'a, f32>,
    /// Output.
    pub out: View<'a, f32>,
    /// Saved mean of each row.
    pub mean: View<'a, f32>,
    /// Saved reciprocal standard deviation of each row.
    pub rstd: View<'a, f32>,
}

/// Operands of [`layer_norm_backward`]; shapes as in [`host::LayerNormBackward`].
#[derive(Clone, Copy, Debug)]
pub struct LayerNormBackward<'a> {
    /// Input of the forward pass.
    pub x: View<'a, f32>,
    /// Scale.
    pub gamma: View<'a, f32>,
    /// Saved mean of each row.
    pub mean: View<'a, f32>,
    /// Saved reciprocal standard deviation of each row.
    pub rstd: View<'a, f32>,
    /// Gradient of the output.
    pub dout: View<'a, f32>,
    /// Gradient of the input.
    pub dx: View<'a, f32>,
    /// Gradient of the scale.
    pub dgamma: View<'a, f32>,
    /// Gradient of the shift.
    pub dbeta: View<'a, f32>,
}

/// See [`host::layer_norm_forward`].
///
/// # Errors
/// When a length does not fit the shape, the width is zero, or the device fails.
#[track_caller]
pub fn layer_norm_forward(
    stream: &Stream,
    shape: LayerNormShape,
    views: LayerNormForward<'_>,
) -> Result<(), KernelError> {
    let Rows { rows, width } = shape.rows;
    Kernel::new(stream, "layer norm", work::layer_norm_forward(shape, ELEMENT_BYTES))
        .require_width(width)
        .read("x", views.x, rows * width)
        .read("gamma", views.gamma, width)
        .read("beta", views.beta, width)
        .write("out", views.out, rows * width)
        .write("mean", views.mean, rows)
        .write("rstd", views.rstd, rows)
        .submit(move |[x, gamma, beta, out, mean, rstd]| {
            let operands = host::LayerNormForward::<f32> {
                x: x.as_slice(),
                gamma: gamma.as_slice(),
                beta: beta.as_slice(),
                out: out.as_mut_slice(),
                mean: mean.as_mut_slice(),
                rstd: rstd.as_mut_slice(),
            };
            host::layer_norm_forward(shape, operands);
        })
}

/// See [`host::layer_norm_backward`].
///
/// # Errors
/// When a length does not fit the shape, the width is zero, or the device fails.
#[track_caller]
pub fn layer_norm_backward(
    stream: &Stream,
    shape: LayerNormShape,
    dx_update: Update,
    parameter_update: Update,
    views: LayerNormBackward<'_>,
) -> Result<(), KernelError> {
    let Rows { rows, width } = shape.rows;
    let work = work::layer_norm_backward(shape, dx_update, parameter_update, ELEMENT_BYTES);
    Kernel::new(stream, "layer norm backward", work)
        .require_width(width)
        .read("x", views.x, rows * width)
        .read("gamma", views.gamma, width)
        .read("mean", views.mean, rows)
        .read("rstd", views.rstd, rows)
        .read("dout", views.dout, rows * width)
        .update(dx_update, "dx", views.dx, rows * width)
        .update(parameter_update, "dgamma", views.dgamma, width)
        .update(parameter_update, "dbeta", views.dbeta, width)
        .submit(move |[x, gamma, mean, rstd, dout, dx, dgamma, dbeta]| {
            let operands = host::LayerNormBackward::<f32> {
                x: x.as_slice(),
                gamma: gamma.as_slice(),
                mean: mean.as_slice(),
                rstd: rstd.as_slice(),
                dout: dout.as_slice(),
                dx: dx.as_mut_slice(),
                dgamma: dgamma.as_mut_slice(),
                dbeta: dbeta.as_mut_slice(),
            };
            host::layer_norm_backward(shape, dx_update, parameter_update, operands);
        })
}
