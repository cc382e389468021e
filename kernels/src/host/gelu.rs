//! The Gaussian error linear unit in its tanh form (Hendrycks and Gimpel, arXiv:1606.08415).
//!
//! gelu(x) = x/2 · (1 + tanh u) with u = √(2/π) · (x + 0.044715·x³). As (1 + tanh u)/2 is the logistic function of 2u,
//! the code needs one exponential and no tanh, and loses no digits where tanh is near −1.

use super::Real;
use super::shape::check_len;

const CUBIC: f64 = 0.044_715;

/// 2·√(2/π).
fn slope<T: Real>() -> T {
    T::from_f64(2.0 * (2.0 / std::f64::consts::PI).sqrt())
}

/// The logistic function of 2u.
#[inline]
fn gate<T: Real>(x: T, slope: T, cubic: T) -> T {
    let twice_u = slope * (x + cubic * x * x * x);
    T::ONE / (T::ONE + (-twice_u).exp())
}

/// `out` = gelu(`x`), elementwise.
///
/// # Panics
///
/// If the lengths differ.
pub fn gelu_forward<T: Real>(x: &[T], out: &mut [T]) {
    check_len("x", x.len(), out.len());
    let (slope, cubic) = (slope(), T::from_f64(CUBIC));
    for (out, &x) in out.iter_mut().zip(x) {
        *out = x * gate(x, slope, cubic);
    }
}

/// `dx` = `dout` · gelu′(`x`), elementwise, where `x` is the input of the forward pass.
///
/// # Panics
///
/// If the lengths differ.
pub fn gelu_backward<T: Real>(x: &[T], dout: &[T], dx: &mut [T]) {
    check_len("x", x.len(), dx.len());
    check_len("dout", dout.len(), dx.len());
    let (slope, cubic) = (slope(), T::from_f64(CUBIC));
    let three_cubic = T::from_f64(3.0 * CUBIC);
    for (dx, (&x, &dout)) in dx.iter_mut().zip(x.iter().zip(dout)) {
        let gate = gate(x, slope, cubic);
        let gate_slope = gate * (T::ONE - gate) * slope * (T::ONE + three_cubic * x * x);
        *dx = dout * (gate + x * gate_slope);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::{Random, assert_close, assert_gradients, to_f32, weigh};

    fn naive(x: f64) -> f64 {
        let u = (2.0 / std::f64::consts::PI).sqrt() * (x + CUBIC * x.powi(3));
        0.5 * x * (1.0 + u.tanh())
    }

    fn sweep() -> Vec<f64> {
        (-4000..=4000).map(|step| f64::from(step) / 400.0).collect()
    }

    #[test]
    fn forward_matches_the_tanh_form() {
        let x = sweep();
        let expected: Vec<f64> = x.iter().map(|&x| naive(x)).collect();
        let mut out = vec![f64::NAN; x.len()];
        gelu_forward(&x, &mut out);
        assert_close("f64", &out, &expected, 1e-14);
        let mut out = vec![f32::NAN; x.len()];
        gelu_forward(&to_f32(&x), &mut out);
        assert_close("f32", &out, &expected, 5e-7);
    }

    #[test]
    fn backward_matches_finite_differences() {
        let mut random = Random::new(6);
        let inputs = [("x", (-12..=12).map(|step| f64::from(step) / 3.0).collect::<Vec<_>>())];
        let weights = random.values(inputs[0].1.len());
        let mut dx = vec![f64::NAN; weights.len()];
        gelu_backward(&inputs[0].1, &weights, &mut dx);
        assert_gradients(&inputs, &[&dx], |inputs| {
            let mut out = vec![f64::NAN; weights.len()];
            gelu_forward(&inputs[0].1, &mut out);
            weigh(&out, &weights)
        });
    }

    #[test]
    fn backward_in_single_precision() {
        let x = sweep();
        let dout = vec![1.0; x.len()];
        let (mut exact, mut dx) = (vec![f64::NAN; x.len()], vec![f32::NAN; x.len()]);
        gelu_backward(&x, &dout, &mut exact);
        gelu_backward(&to_f32(&x), &to_f32(&dout), &mut dx);
        assert_close("dx", &dx, &exact, 2e-6);
    }

    #[test]
    fn far_from_zero_it_is_zero_or_the_identity() {
        let (mut out, mut dx) = ([f32::NAN; 2], [f32::NAN; 2]);
        gelu_forward(&[-1e4, 1e4], &mut out);
        gelu_backward(&[-1e4, 1e4], &[1.0; 2], &mut dx);
        assert_eq!((out, dx), ([0.0, 1e4], [0.0, 1.0]));
    }

    #[test]
    #[should_panic(expected = "dout: the slice has 2 elements, the shape needs 3")]
    fn a_wrong_shape_is_refused() {
        gelu_backward(&[0.0; 3], &[0.0; 2], &mut [0.0; 3]);
    }
}
