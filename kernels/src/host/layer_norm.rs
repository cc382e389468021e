//! Layer normalisation with scale and shift (Ba, Kiros and Hinton, arXiv:1607.06450).
//!
//! The forward pass saves the mean and the reciprocal standard deviation of each row; the backward pass builds the
//! normalised values from them again rather than keeping them.

use super::shape::check_len;
use super::sum::{dot, sum, sum_by};
use super::{Real, Rows, Update};

/// Shape of a layer normalisation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerNormShape {
    /// Rows that are normalised one by one.
    pub rows: Rows,
    /// Added to the variance before the square root.
    pub eps: f64,
}

/// Operands of [`layer_norm_forward`].
#[derive(Debug)]
pub struct LayerNormForward<'a, T> {
    /// Input, `rows × width`.
    pub x: &'a [T],
    /// Scale, `width` elements.
    pub gamma: &'a [T],
    /// Shift, `width` elements.
    pub beta: &'a [T],
    /// Output, `rows × width`.
    pub out: &'a mut [T],
    /// Saved mean of each row, `rows` elements.
    pub mean: &'a mut [T],
    /// Saved 1/√(variance + eps) of each row, `rows` elements.
    pub rstd: &'a mut [T],
}

/// Operands of [`layer_norm_backward`].
#[derive(Debug)]
pub struct LayerNormBackward<'a, T> {
    /// Input of the forward pass, `rows × width`.
    pub x: &'a [T],
    /// Scale, `width` elements.
    pub gamma: &'a [T],
    /// Mean of each row as the forward pass saved it.
    pub mean: &'a [T],
    /// Reciprocal standard deviation of each row as the forward pass saved it.
    pub rstd: &'a [T],
    /// Gradient of the output, `rows × width`.
    pub dout: &'a [T],
    /// Gradient of the input, `rows × width`.
    pub dx: &'a mut [T],
    /// Gradient of the scale, `width` elements.
    pub dgamma: &'a mut [T],
    /// Gradient of the shift, `width` elements.
    pub dbeta: &'a mut [T],
}

/// `out` = (`x` − mean) · rstd · `gamma` + `beta`, with mean and (biased) variance of each row.
///
/// # Panics
///
/// If a slice does not fit the shape or the width is zero.
pub fn layer_norm_forward<T: Real>(shape: LayerNormShape, operands: LayerNormForward<'_, T>) {
    let LayerNormForward { x, gamma, beta, out, mean, rstd } = operands;
    let Rows { rows, width } = shape.rows;
    check_len("gamma", gamma.len(), width);
    check_len("beta", beta.len(), width);
    check_len("mean", mean.len(), rows);
    check_len("rstd", rstd.len(), rows);
    let (eps, count) = (T::from_f64(shape.eps), T::from_f64(width as f64));

    let saved = mean.iter_mut().zip(rstd);
    for ((x, out), (mean, rstd)) in shape.rows.of("x", x).zip(shape.rows.of_mut("out", out)).zip(saved) {
        let row_mean = sum(x) / count;
        let variance = sum_by(x, |x| (x - row_mean) * (x - row_mean)) / count;
        let row_rstd = T::ONE / (variance + eps).sqrt();
        for ((out, &x), (&gamma, &beta)) in out.iter_mut().zip(x).zip(gamma.iter().zip(beta)) {
            *out = (x - row_mean) * row_rstd * gamma + beta;
        }
        (*mean, *rstd) = (row_mean, row_rstd);
    }
}

/// Gradients of the input, the scale and the shift.
///
/// `dx_update` applies to `dx`, so that it can be added to the gradient of a residual connection; `parameter_update`
/// applies to `dgamma` and `dbeta`, which are sums over the rows, first row first.
///
/// # Panics
///
/// If a slice does not fit the shape or the width is zero.
pub fn layer_norm_backward<T: Real>(
    shape: LayerNormShape,
    dx_update: Update,
    parameter_update: Update,
    operands: LayerNormBackward<'_, T>,
) {
    let LayerNormBackward { x, gamma, mean, rstd, dout, dx, dgamma, dbeta } = operands;
    let Rows { rows, width } = shape.rows;
    check_len("gamma", gamma.len(), width);
    check_len("mean", mean.len(), rows);
    check_len("rstd", rstd.len(), rows);
    check_len("dgamma", dgamma.len(), width);
    check_len("dbeta", dbeta.len(), width);
    let per_element = T::ONE / T::from_f64(width as f64);

    let (mut gamma_total, mut beta_total) = (vec![T::ZERO; width], vec![T::ZERO; width]);
    let (mut normalised, mut scaled) = (vec![T::ZERO; width], vec![T::ZERO; width]);
    let inputs = shape.rows.of("x", x).zip(shape.rows.of("dout", dout)).zip(mean.iter().zip(rstd));
    for (((x, dout), (&mean, &rstd)), dx) in inputs.zip(shape.rows.of_mut("dx", dx)) {
        for (normalised, &x) in normalised.iter_mut().zip(x) {
            *normalised = (x - mean) * rstd;
        }
        for (scaled, (&dout, &gamma)) in scaled.iter_mut().zip(dout.iter().zip(gamma)) {
            *scaled = dout * gamma;
        }
        for (total, (&dout, &normalised)) in gamma_total.iter_mut().zip(dout.iter().zip(&normalised)) {
            *total += dout * normalised;
        }
        for (total, &dout) in beta_total.iter_mut().zip(dout) {
            *total += dout;
        }
        let average = sum(&scaled) * per_element;
        let slope = dot(&scaled, &normalised) * per_element;
        for (scaled, &normalised) in scaled.iter_mut().zip(&normalised) {
            *scaled = rstd * (*scaled - average - normalised * slope);
        }
        dx_update.write(dx, &scaled);
    }
    parameter_update.write(dgamma, &gamma_total);
    parameter_update.write(dbeta, &beta_total);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::{Random, assert_close, assert_gradients, to_f32, weigh};

    const SHAPES: [(usize, usize); 4] = [(1, 2), (3, 5), (2, 8), (5, 19)];

    struct Saved<T> {
        out: Vec<T>,
        mean: Vec<T>,
        rstd: Vec<T>,
    }

    fn forward<T: Real>(shape: LayerNormShape, x: &[T], gamma: &[T], beta: &[T]) -> Saved<T> {
        let nan = T::from_f64(f64::NAN);
        let rows = shape.rows.rows;
        let mut saved = Saved { out: vec![nan; x.len()], mean: vec![nan; rows], rstd: vec![nan; rows] };
        let Saved { out, mean, rstd } = &mut saved;
        layer_norm_forward(shape, LayerNormForward { x, gamma, beta, out, mean, rstd });
        saved
    }

    fn shapes() -> impl Iterator<Item = LayerNormShape> {
        SHAPES.into_iter().map(|(rows, width)| LayerNormShape { rows: Rows { rows, width }, eps: 1e-3 })
    }

    fn naive(shape: LayerNormShape, x: &[f64], gamma: &[f64], beta: &[f64]) -> Vec<f64> {
        let count = shape.rows.width as f64;
        let mut out = Vec::new();
        for row in x.chunks(shape.rows.width) {
            let mean = row.iter().sum::<f64>() / count;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
            out.extend(
                row.iter().enumerate().map(|(i, x)| (x - mean) / (variance + shape.eps).sqrt() * gamma[i] + beta[i]),
            );
        }
        out
    }

    #[test]
    fn forward_matches_a_naive_one() {
        let mut random = Random::new(7);
        for shape in shapes() {
            let x: Vec<f64> = random.values(shape.rows.elements()).iter().map(|x| 3.0 * x + 2.0).collect();
            let (gamma, beta) = (random.values(shape.rows.width), random.values(shape.rows.width));
            let expected = naive(shape, &x, &gamma, &beta);
            assert_close("f64", &forward(shape, &x, &gamma, &beta).out, &expected, 1e-12);
            let single = forward(shape, &to_f32(&x), &to_f32(&gamma), &to_f32(&beta));
            assert_close("f32", &single.out, &expected, 1e-5);
        }
    }

    #[test]
    fn gradients_match_finite_differences() {
        let mut random = Random::new(8);
        for shape in shapes() {
            let Rows { rows, width } = shape.rows;
            let weights = random.values(rows * width);
            let inputs =
                [("x", random.values(rows * width)), ("gamma", random.values(width)), ("beta", random.values(width))];
            let (x, gamma) = (&inputs[0].1, &inputs[1].1);
            let saved = forward(shape, x, gamma, &inputs[2].1);
            let backward = |update, mut dx: Vec<f64>, mut dgamma: Vec<f64>, mut dbeta: Vec<f64>| {
                let operands = LayerNormBackward {
                    x,
                    gamma,
                    mean: &saved.mean,
                    rstd: &saved.rstd,
                    dout: &weights,
                    dx: &mut dx,
                    dgamma: &mut dgamma,
                    dbeta: &mut dbeta,
                };
                layer_norm_backward(shape, update, update, operands);
                (dx, dgamma, dbeta)
            };
            let nan = |len| vec![f64::NAN; len];
            let (dx, dgamma, dbeta) = backward(Update::Store, nan(rows * width), nan(width), nan(width));
            assert_gradients(&inputs, &[&dx, &dgamma, &dbeta], |inputs| {
                weigh(&forward(shape, &inputs[0].1, &inputs[1].1, &inputs[2].1).out, &weights)
            });

            let (more, ..) = backward(Update::Accumulate, vec![1.0; rows * width], dgamma.clone(), dbeta.clone());
            assert_eq!(more, dx.iter().map(|dx| 1.0 + dx).collect::<Vec<_>>());
            let (_, twice, again) = backward(Update::Accumulate, dx, dgamma.clone(), dbeta.clone());
            assert_eq!(twice, dgamma.iter().map(|x| x + x).collect::<Vec<_>>());
            assert_eq!(again, dbeta.iter().map(|x| x + x).collect::<Vec<_>>());
        }
    }

    #[test]
    fn backward_in_single_precision() {
        let mut random = Random::new(9);
        let shape = LayerNormShape { rows: Rows { rows: 7, width: 96 }, eps: 1e-5 };
        let (x, dout) = (random.values(7 * 96), random.values(7 * 96));
        let (gamma, beta) = (random.values(96), random.values(96));
        fn run<T: Real>(shape: LayerNormShape, x: &[T], gamma: &[T], beta: &[T], dout: &[T]) -> Vec<T> {
            let saved = forward(shape, x, gamma, beta);
            let nan = T::from_f64(f64::NAN);
            let (mut dx, mut dgamma, mut dbeta) = (vec![nan; x.len()], vec![nan; gamma.len()], vec![nan; gamma.len()]);
            let operands = LayerNormBackward {
                x,
                gamma,
                mean: &saved.mean,
                rstd: &saved.rstd,
                dout,
                dx: &mut dx,
                dgamma: &mut dgamma,
                dbeta: &mut dbeta,
            };
            layer_norm_backward(shape, Update::Store, Update::Store, operands);
            [dx, dgamma, dbeta].concat()
        }
        let single = run(shape, &to_f32(&x), &to_f32(&gamma), &to_f32(&beta), &to_f32(&dout));
        assert_close("gradients", &single, &run(shape, &x, &gamma, &beta, &dout), 1e-5);
    }

    #[test]
    #[should_panic(expected = "beta: the slice has 2 elements, the shape needs 3")]
    fn a_wrong_shape_is_refused() {
        forward(LayerNormShape { rows: Rows { rows: 1, width: 3 }, eps: 1e-5 }, &[0.0; 3], &[0.0; 3], &[0.0; 2]);
    }
}
