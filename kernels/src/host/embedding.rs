//! Looking up tokens and positions in tables, and the gradient of the tables.

use super::shape::check_len;
use super::{Real, Rows, Token, Update};

/// Shape of an embedding. Token `t` of a batch stands at position `t` modulo `positions`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EmbeddingShape {
    /// Rows of the token table.
    pub vocabulary: usize,
    /// Rows of the position table: the length of a sequence. At least one.
    pub positions: usize,
    /// Elements in a row of each table and of the output. At least one.
    pub width: usize,
}

impl EmbeddingShape {
    fn rows(self, rows: usize) -> Rows {
        Rows { rows, width: self.width }
    }

    fn check(self, token_table: usize, position_table: usize) {
        assert!(self.positions > 0, "an embedding needs at least one position");
        check_len("token table", token_table, self.vocabulary * self.width);
        check_len("position table", position_table, self.positions * self.width);
    }

    fn token_range(self, id: impl Token) -> std::ops::Range<usize> {
        let id = id.index();
        assert!(id < self.vocabulary, "token {id} is outside the vocabulary of {}", self.vocabulary);
        id * self.width..(id + 1) * self.width
    }

    fn position_range(self, token: usize) -> std::ops::Range<usize> {
        let position = token % self.positions;
        position * self.width..(position + 1) * self.width
    }
}

/// Row `t` of `out` = row `ids[t]` of `token_table` + row `t` mod `positions` of `position_table`.
///
/// # Panics
///
/// If a slice does not fit the shape (`out` has `ids.len() × width` elements), there are no positions, the width is
/// zero or a token is outside the vocabulary.
pub fn embedding_forward<T: Real, I: Token>(
    shape: EmbeddingShape,
    ids: &[I],
    token_table: &[T],
    position_table: &[T],
    out: &mut [T],
) {
    shape.check(token_table.len(), position_table.len());
    for (t, (row, &id)) in shape.rows(ids.len()).of_mut("out", out).zip(ids).enumerate() {
        let sources = token_table[shape.token_range(id)].iter().zip(&position_table[shape.position_range(t)]);
        for (out, (&token, &position)) in row.iter_mut().zip(sources) {
            *out = token + position;
        }
    }
}

/// Gradients of the tables: row `t` of `dout` is added to the rows that token `t` was made of, first token first.
///
/// [`Update::Store`] zeroes the tables first; [`Update::Accumulate`] adds token by token to what they hold.
///
/// # Panics
///
/// As [`embedding_forward`].
pub fn embedding_backward<T: Real, I: Token>(
    shape: EmbeddingShape,
    ids: &[I],
    dout: &[T],
    update: Update,
    dtoken_table: &mut [T],
    dposition_table: &mut [T],
) {
    shape.check(dtoken_table.len(), dposition_table.len());
    if update == Update::Store {
        dtoken_table.fill(T::ZERO);
        dposition_table.fill(T::ZERO);
    }
    for (t, (row, &id)) in shape.rows(ids.len()).of("dout", dout).zip(ids).enumerate() {
        super::accumulate(row, &mut dtoken_table[shape.token_range(id)]);
        super::accumulate(row, &mut dposition_table[shape.position_range(t)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::{Random, assert_gradients, weigh};

    #[test]
    fn rows_are_looked_up() {
        let shape = EmbeddingShape { vocabulary: 3, positions: 2, width: 2 };
        let mut out = [f32::NAN; 6];
        embedding_forward(shape, &[2u8, 0, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &[10.0, 20.0, 30.0, 40.0], &mut out);
        assert_eq!(out, [15.0, 26.0, 31.0, 42.0, 15.0, 26.0]);
    }

    #[test]
    fn gradients_match_finite_differences() {
        let mut random = Random::new(13);
        for (vocabulary, positions, width, tokens) in [(1, 1, 1, 3), (5, 3, 2, 6), (4, 7, 3, 9)] {
            let shape = EmbeddingShape { vocabulary, positions, width };
            let ids = random.tokens(tokens, vocabulary as u64);
            let weights = random.values(tokens * width);
            let inputs =
                [("tokens", random.values(vocabulary * width)), ("positions", random.values(positions * width))];
            let mut dtokens = vec![f64::NAN; vocabulary * width];
            let mut dpositions = vec![f64::NAN; positions * width];
            embedding_backward(shape, &ids, &weights, Update::Store, &mut dtokens, &mut dpositions);
            assert_gradients(&inputs, &[&dtokens, &dpositions], |inputs| {
                let mut out = vec![f64::NAN; tokens * width];
                embedding_forward(shape, &ids, &inputs[0].1, &inputs[1].1, &mut out);
                weigh(&out, &weights)
            });
        }
    }

    #[test]
    fn accumulation_runs_in_token_order() {
        let shape = EmbeddingShape { vocabulary: 1, positions: 3, width: 1 };
        let (mut tokens, mut positions) = ([1e8f32], [1.0f32; 3]);
        embedding_backward(shape, &[0u8; 3], &[3.0, 3.0, -1e8], Update::Accumulate, &mut tokens, &mut positions);
        // Each 3 is rounded to 0 on its own beside 1e8 (whose spacing is 8); their sum would be rounded to 8.
        assert_eq!(tokens, [0.0]);
        assert_eq!(positions, [4.0, 4.0, 1.0 - 1e8]);
    }

    #[test]
    #[should_panic(expected = "token 3 is outside the vocabulary of 3")]
    fn a_token_outside_the_vocabulary_is_refused() {
        let shape = EmbeddingShape { vocabulary: 3, positions: 1, width: 1 };
        embedding_forward(shape, &[3u32], &[0.0; 3], &[0.0], &mut [0.0]);
    }

    #[test]
    #[should_panic(expected = "position table: the slice has 1 elements, the shape needs 2")]
    fn a_wrong_shape_is_refused() {
        let shape = EmbeddingShape { vocabulary: 1, positions: 2, width: 1 };
        embedding_forward(shape, &[0u32], &[0.0], &[0.0], &mut [0.0]);
    }
}
