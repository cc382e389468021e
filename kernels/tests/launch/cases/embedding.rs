//! Token and position tables.

use highwater_kernels as kernels;
use highwater_kernels::host::{self, EmbeddingShape, work};

use super::{UPDATES, read, tokens, updated, written};
use crate::operands::{Case, Random};

pub(super) fn embeddings(random: &mut Random, cases: &mut Vec<Case>) {
    for (vocabulary, positions, width, count) in [(1, 1, 1, 1), (11, 4, 6, 12), (256, 7, 5, 21)] {
        let shape = EmbeddingShape { vocabulary, positions, width };
        cases.push(Case {
            kernel: "embedding",
            what: format!("{shape:?}, {count} tokens"),
            operands: vec![
                tokens("ids", random.tokens(count, vocabulary)).shown_by("out"),
                read("token_table", random.floats(vocabulary * width)),
                read("position_table", random.floats(positions * width)),
                written("out", count * width),
            ],
            work: work::embedding_forward(shape, count, 4, 4),
            launch: Box::new(move |stream, tensors| {
                let [ids, words, positions, out] = tensors else { unreachable!() };
                let (words, positions) = (words.floats(), positions.floats());
                kernels::embedding_forward(stream, shape, ids.tokens(), words, positions, out.floats())
            }),
            host: Box::new(move |data| {
                let [ids, words, positions, out] = data else { unreachable!() };
                host::embedding_forward(shape, ids.tokens(), words.floats(), positions.floats(), out.floats());
            }),
        });
        for update in UPDATES {
            cases.push(Case {
                kernel: "embedding backward",
                what: format!("{shape:?}, {count} tokens, {update:?}"),
                operands: vec![
                    tokens("ids", random.tokens(count, vocabulary)).shown_by("dout"),
                    read("dout", random.floats(count * width)),
                    updated(random, update, "dtoken_table", vocabulary * width),
                    updated(random, update, "dposition_table", positions * width),
                ],
                work: work::embedding_backward(shape, count, update, 4, 4),
                launch: Box::new(move |stream, tensors| {
                    let [ids, dout, words, positions] = tensors else { unreachable!() };
                    let (ids, dout) = (ids.tokens(), dout.floats());
                    kernels::embedding_backward(stream, shape, ids, dout, update, words.floats(), positions.floats())
                }),
                host: Box::new(move |data| {
                    let [ids, dout, words, positions] = data else { unreachable!() };
                    let (ids, dout) = (ids.tokens(), dout.floats());
                    host::embedding_backward(shape, ids, dout, update, words.floats(), positions.floats());
                }),
            });
        }
    }
}
