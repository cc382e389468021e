//! Matrix products and biases.

use highwater::{Stream, View};

use super::{Element, Kernel, KernelError, elements};
use crate::cuda::{self, Kind, Library, Module, Program};
use crate::host::{self, MatmulShape, Rows, Transposed, Update, work};

/// c = a·b, or c += a·b; see [`host::matmul`]. On a GPU by cuBLASLt, which takes memory to work in from the allocator. It
/// sums in `f32`; a `bf16` product that is added to `c` may be rounded once before the sum is.
///
/// # Errors
/// When a length does not fit the shape, or the device fails.
#[track_caller]
pub fn matmul<E: Element>(
    stream: &Stream,
    shape: MatmulShape,
    transposed: Transposed,
    update: Update,
    a: View<'_, E>,
    b: View<'_, E>,
    c: View<'_, E>,
) -> Result<(), KernelError> {
    let MatmulShape { rows, inner, columns } = shape;
    let kernel = Kernel::new(stream, "matmul")
        .read("a", a, elements([rows, inner]))
        .read("b", b, elements([inner, columns]))
        .update(update, "c", c, elements([rows, columns]))
        .checked(|| work::matmul(shape, update, size_of::<E>()))?;
    let Some(device) = stream.cuda_device() else {
        return kernel.submit_to_host(move |[a, b, c]| {
            E::change(c, |c| host::matmul(shape, transposed, update, &E::values(a), &E::values(b), c));
        });
    };
    let library = kernel.built(Library::of(device))?;
    let addresses: [u64; 3] = kernel.addresses().try_into().expect("three matrices were declared");
    if rows == 0 || columns == 0 || inner == 0 {
        let bytes = if update == Update::Store { (rows * columns * size_of::<E>()) as u64 } else { 0 };
        return Ok(kernel.launch.driver_body(move |stream| cuda::zero(stream, addresses[2], bytes)).submit()?);
    }
    let blas = kernel.built(library.blas())?;
    let plan = kernel.built(blas.plan(Kind::new(E::TYPE, shape, transposed, update, addresses)))?;
    if plan.workspace_bytes > 0 {
        kernel.refuse_foreign_capture()?;
    }
    let failed = |source| KernelError::Scratch { kernel: "matmul", source };
    let workspace = stream.alloc::<u8>(plan.workspace_bytes).map_err(failed)?;
    let launch = kernel.launch.write(&workspace);
    let workspace_at = launch.operands().last().expect("it was just declared").range.address.0;
    Ok(launch.driver_body(move |stream| blas.submit(&plan, stream, addresses, workspace_at)).submit()?)
}

/// Adds `bias` to each row of `x`; see [`host::bias_forward`].
///
/// # Errors
/// When a length does not fit the shape, the width is zero, or the device fails.
#[track_caller]
pub fn bias_forward<E: Element>(
    stream: &Stream,
    shape: Rows,
    bias: View<'_, E>,
    x: View<'_, E>,
) -> Result<(), KernelError> {
    let Rows { rows, width } = shape;
    Kernel::new(stream, "bias")
        .require_width(width)
        .read("bias", bias, width)
        .read_write("x", x, elements([rows, width]))
        .submit(
            || work::bias_forward(shape, size_of::<E>()),
            || forward_program::<E>(shape),
            move |[bias, x]| E::change(x, |x| host::bias_forward(shape, &E::values(bias), x)),
        )
}

/// The sum of the rows of `dout`; see [`host::bias_backward`].
///
/// # Errors
/// When a length does not fit the shape, the width is zero, or the device fails.
#[track_caller]
pub fn bias_backward<E: Element>(
    stream: &Stream,
    shape: Rows,
    dout: View<'_, E>,
    update: Update,
    dbias: View<'_, E>,
) -> Result<(), KernelError> {
    let Rows { rows, width } = shape;
    Kernel::new(stream, "bias backward")
        .require_width(width)
        .read("dout", dout, elements([rows, width]))
        .update(update, "dbias", dbias, width)
        .submit(
            || work::bias_backward(shape, update, size_of::<E>()),
            || backward_program::<E>(shape, update),
            move |[dout, dbias]| {
                E::change(dbias, |dbias| host::bias_backward(shape, &E::values(dout), update, dbias));
            },
        )
}

fn forward_program<E: Element>(shape: Rows) -> Program {
    let Rows { rows, width } = shape;
    let entry = format!("bias_forward_{}", E::NAME);
    let blocks = (rows * width).div_ceil(4096);
    Program::default().launch(Module::Bias, entry, (blocks, 1), 256, 0).size(rows).size(width)
}

/// Chunks of rows are summed on their own, then the chunks.
fn backward_program<E: Element>(shape: Rows, update: Update) -> Program {
    let Rows { rows, width } = shape;
    let chunks = rows.div_ceil(128).clamp(1, 128);
    let entry = |stage: &str| format!("bias_backward_{stage}_{}", E::NAME);
    Program::default()
        .launch(Module::Bias, entry("partial"), (width.div_ceil(32 * E::PACK), chunks), 256, 0)
        .launch(Module::Bias, entry("final"), (width.div_ceil(32), 1), 512, 0)
        .scratch(chunks * width)
        .size(rows)
        .size(width)
        .flag(update == Update::Accumulate)
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::cuda::Scalar;

    fn told(program: &Program) -> Vec<(&str, (u32, u32), u32)> {
        program.launches.iter().map(|launch| (&*launch.entry, launch.grid, launch.block)).collect()
    }

    #[test]
    fn a_bias_is_added_by_blocks_of_4096_elements() {
        let forward = forward_program::<f32>(Rows { rows: 4097, width: 2 });
        assert_eq!(told(&forward), [("bias_forward_f32", (3, 1), 256)]);
        assert_eq!(told(&forward_program::<bf16>(Rows { rows: 0, width: 2 })), [("bias_forward_bf16", (1, 1), 256)]);
    }

    #[test]
    fn its_gradient_has_a_row_of_scratch_for_each_chunk() {
        for (rows, chunks) in [(0, 1), (1, 1), (128, 1), (129, 2), (16_384, 128), (1 << 20, 128)] {
            let singles = backward_program::<f32>(Rows { rows, width: 257 }, Update::Accumulate);
            assert_eq!(singles.scratch, [chunks * 257]);
            let chunks = chunks as u32;
            let stages = [("bias_backward_partial_f32", (3, chunks), 256), ("bias_backward_final_f32", (9, 1), 512)];
            assert_eq!(told(&singles), stages, "{rows} rows");
            assert_eq!(singles.scalars, [Scalar::Size(rows), Scalar::Size(257), Scalar::Flag(true)]);
            let halves = backward_program::<bf16>(Rows { rows, width: 257 }, Update::Store);
            assert_eq!(halves.launches[0].grid, (2, chunks), "{rows} rows");
        }
    }
}
