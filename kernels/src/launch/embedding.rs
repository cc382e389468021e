//! Token and position tables.

use highwater::{Stream, View};

use super::{Element, Kernel, KernelError, TOKEN_BYTES, elements};
use crate::cuda::{Module, Program};
use crate::host::{self, EmbeddingShape, Update, work};

/// What both passes need.
const POSITIONS: &str = "there must be at least one position";

/// See [`host::embedding_forward`]. A token outside the vocabulary is a fault of the device when this executes.
///
/// # Errors
/// When a length does not fit the shape, the width is zero, there are no positions, or the device fails.
#[track_caller]
pub fn embedding_forward<E: Element>(
    stream: &Stream,
    shape: EmbeddingShape,
    ids: View<'_, u32>,
    token_table: View<'_, E>,
    position_table: View<'_, E>,
    out: View<'_, E>,
) -> Result<(), KernelError> {
    let tokens = ids.len();
    Kernel::new(stream, "embedding")
        .require_width(shape.width)
        .require(shape.positions > 0, POSITIONS)
        .read("ids", ids, tokens)
        .read("token_table", token_table, elements([shape.vocabulary, shape.width]))
        .read("position_table", position_table, elements([shape.positions, shape.width]))
        .write("out", out, elements([tokens, shape.width]))
        .submit(
            || work::embedding_forward(shape, tokens, size_of::<E>(), TOKEN_BYTES),
            || {
                let entry = format!("embedding_forward_{}", E::NAME);
                let program = Program::default().launch(Module::Embedding, entry, (tokens.div_ceil(8), 1), 256, 0);
                sized(program, tokens, shape)
            },
            move |[ids, token_table, position_table, out]| {
                let (ids, tables) = (ids.as_slice::<u32>(), (&E::values(token_table), &E::values(position_table)));
                E::change(out, |out| host::embedding_forward(shape, ids, tables.0, tables.1, out));
            },
        )
}

/// See [`host::embedding_backward`]. A token outside the vocabulary is a fault of the device when this executes.
///
/// # Errors
/// When a length does not fit the shape, the width is zero, there are no positions, or the device fails.
#[track_caller]
pub fn embedding_backward<E: Element>(
    stream: &Stream,
    shape: EmbeddingShape,
    ids: View<'_, u32>,
    dout: View<'_, E>,
    update: Update,
    dtoken_table: View<'_, E>,
    dposition_table: View<'_, E>,
) -> Result<(), KernelError> {
    let tokens = ids.len();
    Kernel::new(stream, "embedding backward")
        .require_width(shape.width)
        .require(shape.positions > 0, POSITIONS)
        .read("ids", ids, tokens)
        .read("dout", dout, elements([tokens, shape.width]))
        .update(update, "dtoken_table", dtoken_table, elements([shape.vocabulary, shape.width]))
        .update(update, "dposition_table", dposition_table, elements([shape.positions, shape.width]))
        .submit(
            || work::embedding_backward(shape, tokens, update, size_of::<E>(), TOKEN_BYTES),
            || backward_program::<E>(shape, tokens, update),
            move |[ids, dout, dtoken_table, dposition_table]| {
                let (ids, dout) = (ids.as_slice::<u32>(), &*E::values(dout));
                E::change(dtoken_table, |dtoken| {
                    E::change(dposition_table, |dposition| {
                        host::embedding_backward(shape, ids, dout, update, dtoken, dposition);
                    });
                });
            },
        )
}

fn backward_program<E: Element>(shape: EmbeddingShape, tokens: usize, update: Update) -> Program {
    let entry = |stage: &str| format!("embedding_backward_{stage}_{}", E::NAME);
    let per_block = 256 * E::PACK;
    let mut program = Program::default();
    if update == Update::Store {
        let blocks = (shape.vocabulary * shape.width).div_ceil(per_block);
        program = program.launch(Module::Embedding, entry("clear"), (blocks, 1), 256, 0);
    }
    let positions = (shape.positions * shape.width).div_ceil(per_block);
    let program = program
        .launch(Module::Embedding, entry("tokens"), (tokens, shape.width.div_ceil(per_block)), 256, 0)
        .launch(Module::Embedding, entry("positions"), (positions, 1), 256, 0);
    sized(program, tokens, shape).flag(update == Update::Accumulate)
}

fn sized(program: Program, tokens: usize, shape: EmbeddingShape) -> Program {
    program.size(tokens).size(shape.vocabulary).size(shape.positions).size(shape.width)
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::cuda::Scalar;

    const SHAPE: EmbeddingShape = EmbeddingShape { vocabulary: 100, positions: 30, width: 2050 };

    fn told(program: &Program) -> Vec<(&str, (u32, u32))> {
        program.launches.iter().map(|launch| (&*launch.entry, launch.grid)).collect()
    }

    #[test]
    fn only_what_is_stored_is_cleared_first() {
        let stored = backward_program::<f32>(SHAPE, 7, Update::Store);
        let stages = [
            ("embedding_backward_clear_f32", (201, 1)),
            ("embedding_backward_tokens_f32", (7, 3)),
            ("embedding_backward_positions_f32", (61, 1)),
        ];
        assert_eq!(told(&stored), stages);
        let added = backward_program::<f32>(SHAPE, 7, Update::Accumulate);
        assert_eq!(told(&added), stages[1..]);
        assert_eq!((stored.scalars[4], added.scalars[4]), (Scalar::Flag(false), Scalar::Flag(true)));
    }

    #[test]
    fn bf16_takes_half_the_blocks_and_every_grid_has_one() {
        let half = backward_program::<bf16>(SHAPE, 7, Update::Store);
        let grids: Vec<_> = told(&half).into_iter().map(|(_, grid)| grid).collect();
        assert_eq!(grids, [(101, 1), (7, 2), (31, 1)]);
        let none = backward_program::<bf16>(EmbeddingShape { vocabulary: 0, ..SHAPE }, 0, Update::Store);
        assert_eq!(told(&none)[..2].iter().map(|(_, grid)| *grid).collect::<Vec<_>>(), [(1, 1), (1, 2)]);
        let many = backward_program::<bf16>(SHAPE, 1 << 20, Update::Store);
        assert_eq!(told(&many)[1].1, (65_535, 2), "the kernel walks on");
    }
}
