//! Token and position tables.

use highwater::{Stream, View};

use super::{ELEMENT_BYTES, Kernel, KernelError, TOKEN_BYTES};
use crate::host::{self, EmbeddingShape, Update, work};

/// What both passes need.
const POSITIONS: &str = "there must be at least one position";

/// See [`host::embedding_forward`]. A token outside the vocabulary is a fault of the device when this executes.
///
/// # Errors
/// When a length does not fit the shape, the width is zero, there are no positions, or the device fails.
#[track_caller]
pub fn embedding_forward(
    stream: &Stream,
    shape: EmbeddingShape,
    ids: View<'_, u32>,
    token_table: View<'_, f32>,
    position_table: View<'_, f32>,
    out: View<'_, f32>,
) -> Result<(), KernelError> {
    let tokens = ids.len();
    Kernel::new(stream, "embedding", work::embedding_forward(shape, tokens, ELEMENT_BYTES, TOKEN_BYTES))
        .require_width(shape.width)
        .require(shape.positions > 0, POSITIONS)
        .read("ids", ids, tokens)
        .read("token_table", token_table, shape.vocabulary * shape.width)
        .read("position_table", position_table, shape.positions * shape.width)
        .write("out", out, tokens * shape.width)
        .submit(move |[ids, token_table, position_table, out]| {
            let (ids, tables) = (ids.as_slice::<u32>(), (token_table.as_slice(), position_table.as_slice()));
            host::embedding_forward::<f32, _>(shape, ids, tables.0, tables.1, out.as_mut_slice());
        })
}

/// See [`host::embedding_backward`]. A token outside the vocabulary is a fault of the device when this executes.
///
/// # Errors
/// When a length does not fit the shape, the width is zero, there are no positions, or the device fails.
#[track_caller]
pub fn embedding_backward(
    stream: &Stream,
    shape: EmbeddingShape,
    ids: View<'_, u32>,
    dout: View<'_, f32>,
    update: Update,
    dtoken_table: View<'_, f32>,
    dposition_table: View<'_, f32>,
) -> Result<(), KernelError> {
    let tokens = ids.len();
    let work = work::embedding_backward(shape, tokens, update, ELEMENT_BYTES, TOKEN_BYTES);
    Kernel::new(stream, "embedding backward", work)
        .require_width(shape.width)
        .require(shape.positions > 0, POSITIONS)
        .read("ids", ids, tokens)
        .read("dout", dout, tokens * shape.width)
        .update(update, "dtoken_table", dtoken_table, shape.vocabulary * shape.width)
        .update(update, "dposition_table", dposition_table, shape.positions * shape.width)
        .submit(move |[ids, dout, dtoken_table, dposition_table]| {
            let (ids, dout) = (ids.as_slice::<u32>(), dout.as_slice());
            let tables = (dtoken_table.as_mut_slice(), dposition_table.as_mut_slice());
            host::embedding_backward::<f32, _>(shape, ids, dout, update, tables.0, tables.1);
        })
}
