//! Causal multi-head self-attention on packed queries, keys and values.
//!
//! Each head is a few matrix products on blocks of queries. The matrix of scores exists one block at a time, in scratch
//! of the call. Between the passes only the log-sum-exp of each row of scores is kept; the backward pass makes the
//! probabilities from it again (as Dao does, arXiv:2307.08691), and needs no output of the forward pass beside it.
//!
//! In a row of scores the keys after the query are masked: their probability is exactly zero.

use super::matmul::{Matrix, MatrixMut, product};
use super::shape::check_len;
use super::sum::{dot, max, sum};
use super::{Real, Update};

/// Queries whose scores are computed together. A block sees the keys up to its own last query, so smaller blocks waste
/// less on masked scores, and larger ones make better matrix products.
const QUERY_BLOCK: usize = 32;

/// Shape of an attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttentionShape {
    /// Sequences, which do not see each other.
    pub batch: usize,
    /// Tokens in a sequence.
    pub sequence: usize,
    /// Heads.
    pub heads: usize,
    /// Elements of a head in a query, key or value. At least one.
    pub head_width: usize,
}

impl AttentionShape {
    /// Elements of a row of the output: `heads · head_width`.
    pub const fn width(self) -> usize {
        self.heads * self.head_width
    }

    /// Tokens of the batch.
    pub const fn tokens(self) -> usize {
        self.batch * self.sequence
    }

    /// Elements of the packed queries, keys and values: `[batch, sequence, 3 · width]`.
    pub const fn qkv_elements(self) -> usize {
        3 * self.tokens() * self.width()
    }

    /// Elements of the output: `[batch, sequence, width]`.
    pub const fn out_elements(self) -> usize {
        self.tokens() * self.width()
    }

    /// Elements of the saved log-sum-exps: `[batch, heads, sequence]`.
    pub const fn lse_elements(self) -> usize {
        self.tokens() * self.heads
    }

    fn score_factor<T: Real>(self) -> T {
        T::from_f64(1.0 / (self.head_width as f64).sqrt())
    }

    fn scratch<T: Real>(self) -> Vec<T> {
        vec![T::ZERO; QUERY_BLOCK.min(self.sequence) * self.sequence]
    }

    fn head_indices(self) -> impl Iterator<Item = Head> {
        (0..self.batch * self.heads).map(move |index| Head { shape: self, index })
    }

    fn blocks(self) -> impl DoubleEndedIterator<Item = Block> {
        let sequence = self.sequence;
        (0..sequence).step_by(QUERY_BLOCK).map(move |start| Block { start, end: (start + QUERY_BLOCK).min(sequence) })
    }
}

/// One head of one sequence.
#[derive(Clone, Copy)]
struct Head {
    shape: AttentionShape,
    /// Sequence · heads + head.
    index: usize,
}

/// One of the three parts of a packed row.
#[derive(Clone, Copy)]
enum Part {
    Query = 0,
    Key = 1,
    Value = 2,
}

impl Head {
    /// Where the head's elements of `row` start in a tensor with `parts` parts in a row.
    fn start(self, row: usize, parts: usize, part: usize) -> usize {
        let AttentionShape { sequence, heads, head_width, .. } = self.shape;
        let token = self.index / heads * sequence + row;
        (token * parts + part) * self.shape.width() + self.index % heads * head_width
    }

    fn packed<T>(self, qkv: &[T], part: Part, rows: Block) -> Matrix<'_, T> {
        let stride = 3 * self.shape.width();
        Matrix::new(&qkv[self.start(rows.start, 3, part as usize)..], rows.len(), self.shape.head_width, stride)
    }

    fn packed_mut<T>(self, qkv: &mut [T], part: Part, rows: Block) -> MatrixMut<'_, T> {
        let stride = 3 * self.shape.width();
        MatrixMut::new(&mut qkv[self.start(rows.start, 3, part as usize)..], rows.len(), self.shape.head_width, stride)
    }

    fn plain<T>(self, out: &[T], rows: Block) -> Matrix<'_, T> {
        Matrix::new(&out[self.start(rows.start, 1, 0)..], rows.len(), self.shape.head_width, self.shape.width())
    }

    fn plain_mut<T>(self, out: &mut [T], rows: Block) -> MatrixMut<'_, T> {
        MatrixMut::new(&mut out[self.start(rows.start, 1, 0)..], rows.len(), self.shape.head_width, self.shape.width())
    }

    /// The head's entries for a block in a tensor `[batch, heads, sequence]`.
    fn saved(self, block: Block) -> std::ops::Range<usize> {
        let first = self.index * self.shape.sequence;
        first + block.start..first + block.end
    }
}

/// Consecutive rows of a sequence.
#[derive(Clone, Copy)]
struct Block {
    start: usize,
    end: usize,
}

impl Block {
    fn len(self) -> usize {
        self.end - self.start
    }

    /// The keys that some query of the block sees.
    fn keys(self) -> Block {
        Block { start: 0, end: self.end }
    }

    fn score_elements(self) -> usize {
        self.len() * self.end
    }

    /// The rows of a block of scores, each cut into the part that its query sees and the masked part.
    fn rows_mut<T>(self, scores: &mut [T]) -> impl Iterator<Item = (&mut [T], &mut [T])> {
        scores
            .chunks_exact_mut(self.end)
            .enumerate()
            .map(move |(row, scores)| scores.split_at_mut(self.start + row + 1))
    }
}

/// Causal attention of each head: `out` = softmax(Q·Kᵀ / √`head_width`) · V over the keys up to each query.
///
/// `qkv` is `[batch, sequence, 3 · width]`: in a row all queries, then all keys, then all values, head after head.
/// `out` is `[batch, sequence, width]`, and `lse` the log-sum-exp of each row of scores, `[batch, heads, sequence]`.
///
/// # Panics
///
/// If a slice does not fit the shape or the head width is zero.
pub fn attention_forward<T: Real>(shape: AttentionShape, qkv: &[T], out: &mut [T], lse: &mut [T]) {
    check(shape, qkv.len(), out.len(), lse.len());
    let mut scores = shape.scratch();
    for head in shape.head_indices() {
        for block in shape.blocks() {
            let scores = &mut scores[..block.score_elements()];
            score(head, block, qkv, scores);
            for ((seen, masked), lse) in block.rows_mut(scores).zip(&mut lse[head.saved(block)]) {
                *lse = softmax(seen);
                masked.fill(T::ZERO);
            }
            let probabilities = Matrix::new(scores, block.len(), block.end, block.end);
            let values = head.packed(qkv, Part::Value, block.keys());
            product(head.plain_mut(out, block), Update::Store, T::ONE, probabilities, values);
        }
    }
}

/// Gradient of the packed queries, keys and values.
///
/// `qkv` and `lse` are input and saved output of the forward pass, `dout` is the gradient of its output. `dqkv` is
/// stored, in the layout of `qkv`.
///
/// # Panics
///
/// If a slice does not fit the shape or the head width is zero.
pub fn attention_backward<T: Real>(shape: AttentionShape, qkv: &[T], lse: &[T], dout: &[T], dqkv: &mut [T]) {
    check(shape, qkv.len(), dout.len(), lse.len());
    check_len("dqkv", dqkv.len(), shape.qkv_elements());
    let factor = shape.score_factor();
    let (mut probabilities, mut dscores) = (shape.scratch(), shape.scratch());
    for head in shape.head_indices() {
        // The last block sees all keys: it stores their gradients, and the earlier ones add to them.
        for block in shape.blocks().rev() {
            let update = if block.end == shape.sequence { Update::Store } else { Update::Accumulate };
            let probabilities = &mut probabilities[..block.score_elements()];
            let dscores = &mut dscores[..block.score_elements()];
            score(head, block, qkv, probabilities);
            let dout = head.plain(dout, block);
            let values = head.packed(qkv, Part::Value, block.keys());
            let dprobabilities = MatrixMut::new(dscores, block.len(), block.end, block.end);
            product(dprobabilities, Update::Store, T::ONE, dout, values.transposed());
            softmax_backward(block, &lse[head.saved(block)], probabilities, dscores);

            let dvalues = head.packed_mut(dqkv, Part::Value, block.keys());
            let probabilities = Matrix::new(probabilities, block.len(), block.end, block.end);
            product(dvalues, update, T::ONE, probabilities.transposed(), dout);
            let dscores = Matrix::new(dscores, block.len(), block.end, block.end);
            let dkeys = head.packed_mut(dqkv, Part::Key, block.keys());
            product(dkeys, update, factor, dscores.transposed(), head.packed(qkv, Part::Query, block));
            let dqueries = head.packed_mut(dqkv, Part::Query, block);
            product(dqueries, Update::Store, factor, dscores, head.packed(qkv, Part::Key, block.keys()));
        }
    }
}

fn check(shape: AttentionShape, qkv: usize, out: usize, lse: usize) {
    assert!(shape.head_width > 0, "a head must have at least one element");
    check_len("qkv", qkv, shape.qkv_elements());
    check_len("output or its gradient", out, shape.out_elements());
    check_len("lse", lse, shape.lse_elements());
}

/// Scores of a block of queries with all keys up to its end, one row for each query. Both passes call it with the same
/// shapes, so they see the same bits.
fn score<T: Real>(head: Head, block: Block, qkv: &[T], scores: &mut [T]) {
    let queries = head.packed(qkv, Part::Query, block);
    let keys = head.packed(qkv, Part::Key, block.keys());
    let scores = MatrixMut::new(scores, block.len(), block.end, block.end);
    product(scores, Update::Store, head.shape.score_factor(), queries, keys.transposed());
}

/// Turns scores into probabilities and returns their log-sum-exp.
fn softmax<T: Real>(scores: &mut [T]) -> T {
    let largest = max(scores);
    for score in &mut *scores {
        *score = (*score - largest).exp();
    }
    let total = sum(scores);
    let factor = T::ONE / total;
    for score in &mut *scores {
        *score *= factor;
    }
    largest + total.ln()
}

/// Turns scores into probabilities, and the gradients of probabilities into those of scores.
fn softmax_backward<T: Real>(block: Block, lse: &[T], scores: &mut [T], gradients: &mut [T]) {
    let rows = block.rows_mut(scores).zip(block.rows_mut(gradients));
    for (((seen, masked), (gradients, masked_gradients)), &lse) in rows.zip(lse) {
        for score in &mut *seen {
            *score = (*score - lse).exp();
        }
        let average = dot(seen, gradients);
        for (gradient, &probability) in gradients.iter_mut().zip(&*seen) {
            *gradient = probability * (*gradient - average);
        }
        masked.fill(T::ZERO);
        masked_gradients.fill(T::ZERO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::{Random, assert_close, assert_gradients, to_f32, weigh};

    fn shapes() -> impl Iterator<Item = AttentionShape> {
        let sizes = [(1, 1, 1, 1), (2, 3, 2, 3), (1, 7, 3, 2), (2, 5, 1, 4), (1, QUERY_BLOCK + 3, 2, 2)];
        sizes.into_iter().map(|(batch, sequence, heads, head_width)| AttentionShape {
            batch,
            sequence,
            heads,
            head_width,
        })
    }

    fn naive(shape: AttentionShape, qkv: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let AttentionShape { batch, sequence, heads, head_width } = shape;
        let width = shape.width();
        let at = |part, b, h, t, i| qkv[((b * sequence + t) * 3 + part) * width + h * head_width + i];
        let (mut out, mut lse) = (vec![0.0; shape.out_elements()], Vec::new());
        for (b, h, query) in
            (0..batch).flat_map(|b| (0..heads).flat_map(move |h| (0..sequence).map(move |query| (b, h, query))))
        {
            let score = |key| {
                let products = (0..head_width).map(|i| at(0, b, h, query, i) * at(1, b, h, key, i));
                products.sum::<f64>() / (head_width as f64).sqrt()
            };
            let total: f64 = (0..=query).map(|key| score(key).exp()).sum();
            for i in 0..head_width {
                out[(b * sequence + query) * width + h * head_width + i] =
                    (0..=query).map(|key| score(key).exp() / total * at(2, b, h, key, i)).sum();
            }
            lse.push(total.ln());
        }
        (out, lse)
    }

    fn forward<T: Real>(shape: AttentionShape, qkv: &[T]) -> (Vec<T>, Vec<T>) {
        let nan = T::from_f64(f64::NAN);
        let (mut out, mut lse) = (vec![nan; shape.out_elements()], vec![nan; shape.lse_elements()]);
        attention_forward(shape, qkv, &mut out, &mut lse);
        (out, lse)
    }

    fn backward<T: Real>(shape: AttentionShape, qkv: &[T], dout: &[T]) -> Vec<T> {
        let mut dqkv = vec![T::from_f64(f64::NAN); shape.qkv_elements()];
        attention_backward(shape, qkv, &forward(shape, qkv).1, dout, &mut dqkv);
        dqkv
    }

    #[test]
    fn forward_matches_a_naive_one() {
        let mut random = Random::new(16);
        for shape in shapes() {
            let qkv: Vec<f64> = random.values(shape.qkv_elements()).iter().map(|x| 3.0 * x).collect();
            let (out, lse) = naive(shape, &qkv);
            let double = forward(shape, &qkv);
            assert_close("out", &double.0, &out, 1e-12);
            assert_close("lse", &double.1, &lse, 1e-12);
            let single = forward(shape, &to_f32(&qkv));
            assert_close("out in f32", &single.0, &out, 1e-5);
            assert_close("lse in f32", &single.1, &lse, 1e-5);
        }
    }

    #[test]
    fn gradients_match_finite_differences() {
        let mut random = Random::new(17);
        for shape in shapes() {
            let weights = random.values(shape.out_elements());
            let inputs = [("qkv", random.values(shape.qkv_elements()))];
            let dqkv = backward(shape, &inputs[0].1, &weights);
            assert_gradients(&inputs, &[&dqkv], |inputs| weigh(&forward(shape, &inputs[0].1).0, &weights));

            let single = backward(shape, &to_f32(&inputs[0].1), &to_f32(&weights));
            assert_close("f32", &single, &dqkv, 1e-5);
        }
    }

    #[test]
    fn later_tokens_and_other_sequences_change_no_bit() {
        let mut random = Random::new(18);
        let shape = AttentionShape { batch: 3, sequence: QUERY_BLOCK + 5, heads: 2, head_width: 3 };
        let qkv = to_f32(&random.values(shape.qkv_elements()));
        let row = 3 * shape.width();
        // Every token of the middle sequence from position 10 on is another one.
        let changed = shape.sequence + 10..2 * shape.sequence;
        let mut other = qkv.clone();
        other[changed.start * row..changed.end * row].copy_from_slice(&to_f32(&random.values(changed.len() * row)));
        let (before, after) = (forward(shape, &qkv).0, forward(shape, &other).0);
        for (token, (before, after)) in before.chunks(shape.width()).zip(after.chunks(shape.width())).enumerate() {
            assert_eq!(before != after, changed.contains(&token), "token {token}");
        }
    }

    #[test]
    fn large_scores_do_not_overflow() {
        let shape = AttentionShape { batch: 1, sequence: 2, heads: 1, head_width: 1 };
        // The second query prefers the first key by far.
        let (out, lse) = forward(shape, &[1.0f32, 300.0, 5.0, 300.0, -300.0, 7.0]);
        assert_eq!(out, [5.0, 5.0]);
        assert_eq!(lse, [300.0, 90_000.0]);
    }

    #[test]
    fn an_empty_batch_is_no_work() {
        let shape = AttentionShape { batch: 0, sequence: 4, heads: 2, head_width: 3 };
        assert_eq!(forward::<f32>(shape, &[]), (vec![], vec![]));
        let shape = AttentionShape { batch: 2, sequence: 0, ..shape };
        assert_eq!(backward::<f32>(shape, &[], &[]), vec![]);
    }

    #[test]
    #[should_panic(expected = "lse: the slice has 1 elements, the shape needs 2")]
    fn a_wrong_shape_is_refused() {
        let shape = AttentionShape { batch: 1, sequence: 2, heads: 1, head_width: 1 };
        attention_forward(shape, &[0.0; 6], &mut [0.0; 2], &mut [0.0; 1]);
    }
}
