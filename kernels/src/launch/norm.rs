//! Layer norm. Means and reciprocal deviations are `f32`, whatever the element.

use highwater::{Stream, View};

use super::{Element, Kernel, KernelError, elements};
use crate::cuda::{Module, Program};
use crate::host::{self, LayerNormShape, Rows, Update, work};

/// Operands of [`layer_norm_forward`]; shapes as in [`host::LayerNormForward`].
#[derive(Clone, Copy, Debug)]
pub struct LayerNormForward<'a, E = f32> {
    /// Input.
    pub x: View<'a, E>,
    /// Scale.
    pub gamma: View<'a, E>,
    /// Shift.
    pub beta: View<'a, E>,
    /// Output.
    pub out: View<'a, E>,
    /// Saved mean of each row.
    pub mean: View<'a, f32>,
    /// Saved reciprocal standard deviation of each row.
    pub rstd: View<'a, f32>,
}

/// Operands of [`layer_norm_backward`]; shapes as in [`host::LayerNormBackward`].
#[derive(Clone, Copy, Debug)]
pub struct LayerNormBackward<'a, E = f32> {
    /// Input of the forward pass.
    pub x: View<'a, E>,
    /// Scale.
    pub gamma: View<'a, E>,
    /// Saved mean of each row.
    pub mean: View<'a, f32>,
    /// Saved reciprocal standard deviation of each row.
    pub rstd: View<'a, f32>,
    /// Gradient of the output.
    pub dout: View<'a, E>,
    /// Gradient of the input.
    pub dx: View<'a, E>,
    /// Gradient of the scale.
    pub dgamma: View<'a, E>,
    /// Gradient of the shift.
    pub dbeta: View<'a, E>,
}

/// How threads share rows: the threads of a group, and the groups of a block.
pub(super) fn row_groups(width: usize) -> (usize, usize) {
    let group = 32 * width.div_ceil(512).clamp(1, 8);
    (group, (192 / group).max(1))
}

/// Threads of a block.
pub(super) fn row_block(width: usize) -> u32 {
    let (group, groups) = row_groups(width);
    u32::try_from(group * groups).expect("at most 256 threads")
}

/// See [`host::layer_norm_forward`].
///
/// # Errors
/// When a length does not fit the shape, the width is zero, or the device fails.
#[track_caller]
pub fn layer_norm_forward<E: Element>(
    stream: &Stream,
    shape: LayerNormShape,
    views: LayerNormForward<'_, E>,
) -> Result<(), KernelError> {
    let Rows { rows, width } = shape.rows;
    Kernel::new(stream, "layer norm")
        .require_width(width)
        .read("x", views.x, elements([rows, width]))
        .read("gamma", views.gamma, width)
        .read("beta", views.beta, width)
        .write("out", views.out, elements([rows, width]))
        .write("mean", views.mean, rows)
        .write("rstd", views.rstd, rows)
        .submit(
            || work::layer_norm_forward(shape, size_of::<E>()),
            || {
                let (_, groups) = row_groups(width);
                let entry = format!("layer_norm_forward_{}", E::NAME);
                Program::default()
                    .launch(Module::LayerNorm, entry, (rows.div_ceil(groups), 1), row_block(width), 0)
                    .size(rows)
                    .size(width)
                    .real(shape.eps)
            },
            move |[x, gamma, beta, out, mean, rstd]| {
                let (mean, rstd) = (mean.as_mut_slice(), rstd.as_mut_slice());
                E::change(out, |out| {
                    let (x, gamma, beta) = (&*E::values(x), &*E::values(gamma), &*E::values(beta));
                    host::layer_norm_forward(shape, host::LayerNormForward { x, gamma, beta, out, mean, rstd });
                });
            },
        )
}

/// See [`host::layer_norm_backward`].
///
/// # Errors
/// When a length does not fit the shape, the width is zero, or the device fails.
#[track_caller]
pub fn layer_norm_backward<E: Element>(
    stream: &Stream,
    shape: LayerNormShape,
    dx_update: Update,
    parameter_update: Update,
    views: LayerNormBackward<'_, E>,
) -> Result<(), KernelError> {
    let Rows { rows, width } = shape.rows;
    Kernel::new(stream, "layer norm backward")
        .require_width(width)
        .read("x", views.x, elements([rows, width]))
        .read("gamma", views.gamma, width)
        .read("mean", views.mean, rows)
        .read("rstd", views.rstd, rows)
        .read("dout", views.dout, elements([rows, width]))
        .update(dx_update, "dx", views.dx, elements([rows, width]))
        .update(parameter_update, "dgamma", views.dgamma, width)
        .update(parameter_update, "dbeta", views.dbeta, width)
        .submit(
            || work::layer_norm_backward(shape, dx_update, parameter_update, size_of::<E>()),
            || backward_program::<E>(shape.rows, dx_update, parameter_update),
            move |[x, gamma, mean, rstd, dout, dx, dgamma, dbeta]| {
                let (mean, rstd) = (mean.as_slice(), rstd.as_slice());
                let (x, gamma, dout) = (&*E::values(x), &*E::values(gamma), &*E::values(dout));
                E::change(dx, |dx| {
                    E::change(dgamma, |dgamma| {
                        E::change(dbeta, |dbeta| {
                            let operands = host::LayerNormBackward { x, gamma, mean, rstd, dout, dx, dgamma, dbeta };
                            host::layer_norm_backward(shape, dx_update, parameter_update, operands);
                        });
                    });
                });
            },
        )
}

/// Chunks of rows are summed on their own, then the chunks.
fn backward_program<E: Element>(rows: Rows, dx_update: Update, parameter_update: Update) -> Program {
    let Rows { rows, width } = rows;
    let (_, groups) = row_groups(width);
    let block = row_block(width);
    let most = 128 * (576 / block as usize).max(1);
    let chunks = rows.div_ceil(4 * groups).clamp(1, most);
    let entry = |stage: &str| format!("layer_norm_backward_{stage}_{}", E::NAME);
    Program::default()
        .launch(Module::LayerNorm, entry("partial"), (chunks, 1), block, 0)
        .launch(Module::LayerNorm, entry("final"), ((2 * width).div_ceil(32), 1), 512, 0)
        .scratch(chunks * 2 * width)
        .size(rows)
        .size(width)
        .flag(dx_update == Update::Accumulate)
        .flag(parameter_update == Update::Accumulate)
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::cuda::Scalar;

    /// A number that the kernels are compiled with.
    fn compiled(name: &str) -> usize {
        let source = include_str!("../../cu/common.cuh");
        let (_, behind) = source.split_once(&format!("constexpr int {name} = ")).unwrap();
        behind.split_once(';').unwrap().0.parse().unwrap()
    }

    #[test]
    fn groups_are_as_the_kernels_are_compiled() {
        let (held, most) = (compiled("HELD_ELEMENTS"), compiled("MOST_GROUP_THREADS"));
        for width in 1..20_000 {
            let (group, groups) = row_groups(width);
            assert!(group.is_multiple_of(32) && (32..=most).contains(&group), "{width}: {group} threads");
            assert!(width > held * most || group * held >= width, "{width}: more than {group} threads hold");
            // Each group has a barrier of its own, of sixteen; the first is the block's.
            assert!((1..16).contains(&groups), "{width}: {groups} groups");
            let threads = row_block(width) as usize;
            assert!(threads == group * groups && threads <= most, "{width}: {threads} threads");
        }
        let cuts = [1, 512, 513, 768, 1536, 1537, 3072, 3073, 4096, 100_000].map(row_groups);
        let expected = [(32, 6), (32, 6), (64, 3), (64, 3), (96, 2), (128, 1), (192, 1), (224, 1), (256, 1), (256, 1)];
        assert_eq!(cuts, expected);
    }

    #[test]
    fn the_backward_pass_has_a_row_of_scratch_for_each_chunk() {
        let program = |rows, width| backward_program::<bf16>(Rows { rows, width }, Update::Store, Update::Accumulate);
        // Rows, width; chunks: a block has `groups` rows four times, up to 128 blocks or what fits three times as many.
        for (rows, width, chunks) in
            [(0, 8, 1), (1, 8, 1), (24, 8, 1), (25, 8, 2), (100_000, 8, 384), (100_000, 4096, 256), (5, 4096, 2)]
        {
            let program = program(rows, width);
            assert_eq!(program.scratch, [chunks * 2 * width], "{rows} × {width}");
            let grids: Vec<_> = program.launches.iter().map(|launch| (launch.grid, launch.block)).collect();
            let final_blocks = u32::try_from((2 * width).div_ceil(32)).unwrap();
            assert_eq!(grids, [((chunks as u32, 1), row_block(width)), ((final_blocks, 1), 512)], "{rows} × {width}");
            let scalars = [Scalar::Size(rows), Scalar::Size(width), Scalar::Flag(false), Scalar::Flag(true)];
            assert_eq!(program.scalars, scalars);
        }
        let entries: Vec<_> = program(1, 1).launches.into_iter().map(|launch| launch.entry).collect();
        assert_eq!(entries, ["layer_norm_backward_partial_bf16", "layer_norm_backward_final_bf16"]);
    }
}
