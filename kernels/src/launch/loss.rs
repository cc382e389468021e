//! Cross-entropy. Losses are `f32`, whatever the element. A target outside the vocabulary is a fault of the device when
//! the operation executes.

use highwater::{Stream, View};

use super::norm::{row_block, row_groups};
use super::{Element, Kernel, KernelError, TOKEN_BYTES, elements};
use crate::cuda::{Module, Program};
use crate::host::{self, Rows, work};

/// Operands of [`cross_entropy`]; shapes as in [`host::cross_entropy`].
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropy<'a, E = f32> {
    /// Logits, `rows × width`.
    pub logits: View<'a, E>,
    /// Target of each row.
    pub targets: View<'a, u32>,
    /// Loss of each row, scaled.
    pub token_losses: View<'a, f32>,
    /// The sum of all, one element.
    pub loss: View<'a, f32>,
    /// Gradient of the logits, `rows × width`.
    pub dlogits: View<'a, E>,
}

/// Kernels over the rows, and then over their losses.
fn program<E: Element>(shape: Rows, scale: f64, rows_entry: &str, total_entry: Option<&str>) -> Program {
    let Rows { rows, width } = shape;
    let (_, groups) = row_groups(width);
    let entry = |name: &str| format!("{name}_{}", E::NAME);
    let mut program = Program::default().launch(
        Module::CrossEntropy,
        entry(rows_entry),
        (rows.div_ceil(groups), 1),
        row_block(width),
        0,
    );
    if let Some(total) = total_entry {
        program = program.launch(Module::CrossEntropy, entry(total), (1, 1), 1024, 0);
    }
    program.size(rows).size(width).real(scale)
}

/// Losses and the gradient of the logits in one operation; see [`host::cross_entropy`]. A target outside the vocabulary
/// is a fault of the device when this executes.
///
/// # Errors
/// When a length does not fit the shape, the vocabulary is empty, or the device fails.
#[track_caller]
pub fn cross_entropy<E: Element>(
    stream: &Stream,
    shape: Rows,
    scale: f64,
    views: CrossEntropy<'_, E>,
) -> Result<(), KernelError> {
    Kernel::new(stream, "cross-entropy")
        .require_width(shape.width)
        .read("logits", views.logits, elements([shape.rows, shape.width]))
        .read("targets", views.targets, shape.rows)
        .write("token_losses", views.token_losses, shape.rows)
        .write("loss", views.loss, 1)
        .write("dlogits", views.dlogits, elements([shape.rows, shape.width]))
        .submit(
            || work::cross_entropy(shape, size_of::<E>(), TOKEN_BYTES),
            || program::<E>(shape, scale, "cross_entropy_rows", Some("cross_entropy_total")),
            move |[logits, targets, token_losses, loss, dlogits]| {
                let targets = targets.as_slice::<u32>();
                let (token_losses, loss) = (token_losses.as_mut_slice(), &mut loss.as_mut_slice()[0]);
                E::change(dlogits, |dlogits| {
                    host::cross_entropy(shape, scale, &E::values(logits), targets, token_losses, loss, dlogits);
                });
            },
        )
}

/// Losses alone; see [`host::cross_entropy_forward`]. A target outside the vocabulary is a fault of the device when this
/// executes.
///
/// # Errors
/// When a length does not fit the shape, the vocabulary is empty, or the device fails.
#[track_caller]
pub fn cross_entropy_forward<E: Element>(
    stream: &Stream,
    shape: Rows,
    scale: f64,
    logits: View<'_, E>,
    targets: View<'_, u32>,
    token_losses: View<'_, f32>,
    loss: View<'_, f32>,
) -> Result<(), KernelError> {
    Kernel::new(stream, "cross-entropy forward")
        .require_width(shape.width)
        .read("logits", logits, elements([shape.rows, shape.width]))
        .read("targets", targets, shape.rows)
        .write("token_losses", token_losses, shape.rows)
        .write("loss", loss, 1)
        .submit(
            || work::cross_entropy_forward(shape, size_of::<E>(), TOKEN_BYTES),
            || program::<E>(shape, scale, "cross_entropy_forward_rows", Some("cross_entropy_forward_total")),
            move |[logits, targets, token_losses, loss]| {
                let targets = targets.as_slice::<u32>();
                let (token_losses, loss) = (token_losses.as_mut_slice(), &mut loss.as_mut_slice()[0]);
                host::cross_entropy_forward(shape, scale, &E::values(logits), targets, token_losses, loss);
            },
        )
}

/// The gradient of the logits alone; see [`host::cross_entropy_backward`]. A target outside the vocabulary is a fault of
/// the device when this executes.
///
/// # Errors
/// When a length does not fit the shape, the vocabulary is empty, or the device fails.
#[track_caller]
pub fn cross_entropy_backward<E: Element>(
    stream: &Stream,
    shape: Rows,
    scale: f64,
    logits: View<'_, E>,
    targets: View<'_, u32>,
    dlogits: View<'_, E>,
) -> Result<(), KernelError> {
    Kernel::new(stream, "cross-entropy backward")
        .require_width(shape.width)
        .read("logits", logits, elements([shape.rows, shape.width]))
        .read("targets", targets, shape.rows)
        .write("dlogits", dlogits, elements([shape.rows, shape.width]))
        .submit(
            || work::cross_entropy_backward(shape, size_of::<E>(), TOKEN_BYTES),
            || program::<E>(shape, scale, "cross_entropy_backward", None),
            move |[logits, targets, dlogits]| {
                let targets = targets.as_slice::<u32>();
                E::change(dlogits, |dlogits| {
                    host::cross_entropy_backward(shape, scale, &E::values(logits), targets, dlogits);
                });
            },
        )
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    #[test]
    fn rows_are_shared_by_blocks_and_totalled_by_one() {
        let both = program::<f32>(Rows { rows: 13, width: 8 }, 0.5, "rows", Some("total"));
        let told: Vec<_> = both.launches.iter().map(|launch| (&*launch.entry, launch.grid, launch.block)).collect();
        // Six rows a block.
        assert_eq!(told, [("rows_f32", (3, 1), 192), ("total_f32", (1, 1), 1024)]);
        let wide = program::<bf16>(Rows { rows: 13, width: 50_257 }, 0.5, "rows", None);
        let told: Vec<_> = wide.launches.iter().map(|launch| (&*launch.entry, launch.grid, launch.block)).collect();
        assert_eq!(told, [("rows_bf16", (13, 1), 256)]);
        let none = program::<f32>(Rows { rows: 0, width: 8 }, 0.5, "rows", Some("total"));
        assert_eq!(none.launches.len(), 2, "the loss of no rows is stored too");
    }
}
