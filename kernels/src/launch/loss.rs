//! Cross-entropy. A target outside the vocabulary is a fault of the device when the operation executes.

use highwater::{Stream, View};

use super::{ELEMENT_BYTES, Kernel, KernelError, TOKEN_BYTES};
use crate::host::{self, Rows, work};

/// Operands of [`cross_entropy`]; shapes as in [`host::cross_entropy`].
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropy<'a> {
    /// Logits, `rows × width`.
    pub logits: View<'a, f32>,
    /// Target of each row.
    pub targets: View<'a, u32>,
    /// Loss of each row, scaled.
    pub token_losses: View<'a, f32>,
    /// The sum of all, one element.
    pub loss: View<'a, f32>,
    /// Gradient of the logits, `rows × width`.
    pub dlogits: View<'a, f32>,
}

/// Losses and the gradient of the logits in one operation; see [`host::cross_entropy`]. A target outside the vocabulary
/// is a fault of the device when this executes.
///
/// # Errors
/// When a length does not fit the shape, the vocabulary is empty, or the device fails.
#[track_caller]
pub fn cross_entropy(stream: &Stream, shape: Rows, scale: f64, views: CrossEntropy<'_>) -> Result<(), KernelError> {
    Kernel::new(stream, "cross-entropy", work::cross_entropy(shape, ELEMENT_BYTES, TOKEN_BYTES))
        .require_width(shape.width)
        .read("logits", views.logits, shape.elements())
        .read("targets", views.targets, shape.rows)
        .write("token_losses", views.token_losses, shape.rows)
        .write("loss", views.loss, 1)
        .write("dlogits", views.dlogits, shape.elements())
        .submit(move |[logits, targets, token_losses, loss, dlogits]| {
            let (logits, targets) = (logits.as_slice::<f32>(), targets.as_slice::<u32>());
            let (token_losses, loss) = (token_losses.as_mut_slice(), &mut loss.as_mut_slice()[0]);
            host::cross_entropy(shape, scale, logits, targets, token_losses, loss, dlogits.as_mut_slice());
        })
}

/// Losses alone; see [`host::cross_entropy_forward`]. A target outside the vocabulary is a fault of the device when this
/// executes.
///
/// # Errors
/// When a length does not fit the shape, the vocabulary is empty, or the device fails.
#[track_caller]
pub fn cross_entropy_forward(
    stream: &Stream,
    shape: Rows,
    scale: f64,
    logits: View<'_, f32>,
    targets: View<'_, u32>,
    token_losses: View<'_, f32>,
    loss: View<'_, f32>,
) -> Result<(), KernelError> {
    let work = work::cross_entropy_forward(shape, ELEMENT_BYTES, TOKEN_BYTES);
    Kernel::new(stream, "cross-entropy forward", work)
        .require_width(shape.width)
        .read("logits", logits, shape.elements())
        .read("targets", targets, shape.rows)
        .write("token_losses", token_losses, shape.rows)
        .write("loss", loss, 1)
        .submit(move |[logits, targets, token_losses, loss]| {
            let (logits, targets) = (logits.as_slice::<f32>(), targets.as_slice::<u32>());
            let (token_losses, loss) = (token_losses.as_mut_slice(), &mut loss.as_mut_slice()[0]);
            host::cross_entropy_forward(shape, scale, logits, targets, token_losses, loss);
        })
}

/// The gradient of the logits alone; see [`host::cross_entropy_backward`]. A target outside the vocabulary is a fault of
/// the device when this executes.
///
/// # Errors
/// When a length does not fit the shape, the vocabulary is empty, or the device fails.
#[track_caller]
pub fn cross_entropy_backward(
    stream: &Stream,
    shape: Rows,
    scale: f64,
    logits: View<'_, f32>,
    targets: View<'_, u32>,
    dlogits: View<'_, f32>,
) -> Result<(), KernelError> {
    let work = work::cross_entropy_backward(shape, ELEMENT_BYTES, TOKEN_BYTES);
    Kernel::new(stream, "cross-entropy backward", work)
        .require_width(shape.width)
        .read("logits", logits, shape.elements())
        .read("targets", targets, shape.rows)
        .write("dlogits", dlogits, shape.elements())
        .submit(move |[logits, targets, dlogits]| {
            let (logits, targets) = (logits.as_slice::<f32>(), targets.as_slice::<u32>());
            host::cross_entropy_backward(shape, scale, logits, targets, dlogits.as_mut_slice());
        })
}
