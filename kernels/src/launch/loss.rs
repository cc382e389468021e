//! Cross-entropy.

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

/// Losses and the gradient of the logits in one operation; see [`host::cross_entropy`].
///
/// # Errors
/// When a length does not fit the shape, or the device fails.
#[track_caller]
pub fn cross_entropy(stream: &Stream, shape: Rows, scale: f64, views: CrossEntropy<'_>) -> Result<(), KernelError> {
    Kernel::new(stream, "cross-entropy", work::cross_entropy(shape, ELEMENT_BYTES, TOKEN_BYTES))
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
