//! Softmax and cross-entropy of logits with known next tokens.
//!
//! The loss of a token is log Σ exp(logit) − logit of its target, times a scale. With a scale of one over the tokens of
//! all ranks and micro-batches, losses and gradients only have to be added up.

use super::shape::check_len;
use super::sum::{max, sum};
use super::{Real, Rows, Token};

/// Losses of logits: `token_losses` has the scaled loss of each row, `loss` their sum.
///
/// `logits` is `tokens × vocabulary`, `targets` has one entry per row. The sum runs in the eight-lane order of all row
/// sums here, which depends on the number of tokens alone.
///
/// # Panics
///
/// If a slice does not fit the shape, the vocabulary is empty or a target is outside it.
pub fn cross_entropy_forward<T: Real, I: Token>(
    shape: Rows,
    scale: f64,
    logits: &[T],
    targets: &[I],
    token_losses: &mut [T],
    loss: &mut T,
) {
    check_len("targets", targets.len(), shape.rows);
    check_len("token_losses", token_losses.len(), shape.rows);
    let scale = T::from_f64(scale);
    let mut exponentials = vec![T::ZERO; shape.width];
    for ((row, &target), token_loss) in shape.of("logits", logits).zip(targets).zip(&mut *token_losses) {
        let softmax = Softmax::of(row, &mut exponentials);
        *token_loss = softmax.loss(row, target) * scale;
    }
    *loss = sum(token_losses);
}

/// Gradient of the summed loss: `dlogits` = (softmax − one-hot of the target) · `scale`.
///
/// # Panics
///
/// If a slice does not fit the shape, the vocabulary is empty or a target is outside it.
pub fn cross_entropy_backward<T: Real, I: Token>(
    shape: Rows,
    scale: f64,
    logits: &[T],
    targets: &[I],
    dlogits: &mut [T],
) {
    check_len("targets", targets.len(), shape.rows);
    let scale = T::from_f64(scale);
    for ((row, &target), drow) in shape.of("logits", logits).zip(targets).zip(shape.of_mut("dlogits", dlogits)) {
        let softmax = Softmax::of(row, drow);
        softmax.gradient(target, scale, drow);
    }
}

/// [`cross_entropy_forward`] and [`cross_entropy_backward`] in one pass over the logits, with the same bits.
///
/// # Panics
///
/// If a slice does not fit the shape, the vocabulary is empty or a target is outside it.
pub fn cross_entropy<T: Real, I: Token>(
    shape: Rows,
    scale: f64,
    logits: &[T],
    targets: &[I],
    token_losses: &mut [T],
    loss: &mut T,
    dlogits: &mut [T],
) {
    check_len("targets", targets.len(), shape.rows);
    check_len("token_losses", token_losses.len(), shape.rows);
    let scale = T::from_f64(scale);
    let outputs = token_losses.iter_mut().zip(shape.of_mut("dlogits", dlogits));
    for ((row, &target), (token_loss, drow)) in shape.of("logits", logits).zip(targets).zip(outputs) {
        let softmax = Softmax::of(row, drow);
        *token_loss = softmax.loss(row, target) * scale;
        softmax.gradient(target, scale, drow);
    }
    *loss = sum(token_losses);
}

/// What a row's softmax is made of, beside its exponentials.
struct Softmax<T> {
    largest: T,
    total: T,
}

impl<T: Real> Softmax<T> {
    /// Leaves exp(logit − largest) in `exponentials`.
    fn of(logits: &[T], exponentials: &mut [T]) -> Self {
        let largest = max(logits);
        for (exponential, &logit) in exponentials.iter_mut().zip(logits) {
            *exponential = (logit - largest).exp();
        }
        Self { largest, total: sum(exponentials) }
    }

    fn loss(&self, logits: &[T], target: impl Token) -> T {
        self.total.ln() + (self.largest - logits[checked(target, logits.len())])
    }

    /// Turns the exponentials into the gradient.
    fn gradient(&self, target: impl Token, scale: T, exponentials: &mut [T]) {
        let factor = scale / self.total;
        for exponential in &mut *exponentials {
            *exponential *= factor;
        }
        exponentials[checked(target, exponentials.len())] -= scale;
    }
}

fn checked(target: impl Token, vocabulary: usize) -> usize {
    let index = target.index();
    assert!(index < vocabulary, "target {index} is outside the vocabulary of {vocabulary}");
    index
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::{Random, assert_close, assert_gradients, to_f32};

    const SHAPES: [(usize, usize); 5] = [(1, 1), (3, 2), (5, 7), (11, 20), (67, 3)];
    const SCALE: f64 = 0.375;

    fn shapes() -> impl Iterator<Item = Rows> {
        SHAPES.into_iter().map(|(rows, width)| Rows { rows, width })
    }

    fn naive(shape: Rows, logits: &[f64], targets: &[u32]) -> Vec<f64> {
        let row_loss = |(row, &target): (&[f64], &u32)| {
            let total: f64 = row.iter().map(|logit| logit.exp()).sum();
            -(row[target as usize].exp() / total).ln() * SCALE
        };
        logits.chunks(shape.width).zip(targets).map(row_loss).collect()
    }

    fn forward<T: Real>(shape: Rows, logits: &[T], targets: &[u32]) -> (Vec<T>, T) {
        let nan = T::from_f64(f64::NAN);
        let (mut losses, mut loss) = (vec![nan; shape.rows], nan);
        cross_entropy_forward(shape, SCALE, logits, targets, &mut losses, &mut loss);
        (losses, loss)
    }

    #[test]
    fn forward_matches_a_naive_one() {
        let mut random = Random::new(10);
        for shape in shapes() {
            let logits: Vec<f64> = random.values(shape.elements()).iter().map(|x| 5.0 * x).collect();
            let targets = random.tokens(shape.rows, shape.width as u64);
            let expected = naive(shape, &logits, &targets);
            let (losses, loss) = forward(shape, &logits, &targets);
            assert_close("losses", &losses, &expected, 1e-12);
            assert_close("loss", &[loss], &[expected.iter().sum()], 1e-12);
            let (losses, loss) = forward(shape, &to_f32(&logits), &targets);
            assert_close("losses in f32", &losses, &expected, 2e-6);
            assert_close("loss in f32", &[loss], &[expected.iter().sum()], 2e-6);
        }
    }

    #[test]
    fn gradients_match_finite_differences() {
        let mut random = Random::new(11);
        for shape in shapes() {
            let inputs = [("logits", random.values(shape.elements()))];
            let targets = random.tokens(shape.rows, shape.width as u64);
            let mut dlogits = vec![f64::NAN; shape.elements()];
            cross_entropy_backward(shape, SCALE, &inputs[0].1, &targets, &mut dlogits);
            assert_gradients(&inputs, &[&dlogits], |inputs| forward(shape, &inputs[0].1, &targets).1);

            let mut single = vec![f32::NAN; shape.elements()];
            cross_entropy_backward(shape, SCALE, &to_f32(&inputs[0].1), &targets, &mut single);
            assert_close("f32", &single, &dlogits, 1e-6);
        }
    }

    #[test]
    fn both_at_once_has_the_same_bits() {
        let mut random = Random::new(12);
        for shape in shapes() {
            let logits = to_f32(&random.values(shape.elements()));
            let targets: Vec<u8> = random.tokens(shape.rows, shape.width as u64).iter().map(|&t| t as u8).collect();
            let (mut losses, mut loss) = (vec![f32::NAN; shape.rows], f32::NAN);
            cross_entropy_forward(shape, SCALE, &logits, &targets, &mut losses, &mut loss);
            let mut dlogits = vec![f32::NAN; shape.elements()];
            cross_entropy_backward(shape, SCALE, &logits, &targets, &mut dlogits);

            let (mut losses_2, mut loss_2) = (vec![f32::NAN; shape.rows], f32::NAN);
            let mut dlogits_2 = vec![f32::NAN; shape.elements()];
            cross_entropy(shape, SCALE, &logits, &targets, &mut losses_2, &mut loss_2, &mut dlogits_2);
            assert_eq!((losses, loss, dlogits), (losses_2, loss_2, dlogits_2));
        }
    }

    #[test]
    fn the_loss_is_the_sum_of_the_token_losses_in_lane_order() {
        let mut random = Random::new(22);
        let mut other_bits = 0;
        for rows in 60..80 {
            let shape = Rows { rows, width: 3 };
            let (losses, loss) = forward(shape, &to_f32(&random.values(3 * rows)), &random.tokens(rows, 3));
            assert_eq!(loss, sum(&losses));
            other_bits += u32::from(loss != losses.iter().fold(0.0, |total, loss| total + loss));
        }
        assert!(other_bits > 5, "the order shows in the bits");
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let shape = Rows { rows: 1, width: 3 };
        let (losses, _) = forward(shape, &[3e4f32, 0.0, -3e4], &[1]);
        assert_eq!(losses, [3e4 * SCALE as f32]);
        let (losses, _) = forward(shape, &[3e4f32, 0.0, -3e4], &[0]);
        assert_eq!(losses, [0.0]);
    }

    #[test]
    fn a_nan_is_not_hidden() {
        let (_, loss) = forward(Rows { rows: 1, width: 3 }, &[0.0f32, f32::NAN, 1.0], &[0]);
        assert!(loss.is_nan());
    }

    #[test]
    #[should_panic(expected = "target 3 is outside the vocabulary of 3")]
    fn a_target_outside_the_vocabulary_is_refused() {
        forward(Rows { rows: 1, width: 3 }, &[0.0f32; 3], &[3]);
    }
}
