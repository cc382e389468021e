//! The optimizer AdamW (Loshchilov and Hutter, arXiv:1711.05101).

use super::Real;
use super::shape::check_len;

/// Settings of [`adamw`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the average gradient.
    pub beta1: f64,
    /// Decay of the average squared gradient.
    pub beta2: f64,
    /// Added to the square root of the average squared gradient.
    pub eps: f64,
    /// Decay of the parameters, as a multiple of the learning rate.
    pub weight_decay: f64,
}

impl Default for AdamW {
    /// lr 0.001, betas 0.9 and 0.999, eps 10⁻⁸, weight decay 0.01.
    fn default() -> Self {
        Self { lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 }
    }
}

impl AdamW {
    /// What the arithmetic of a step needs, from the settings and the step alone: 1 − lr · weight decay, lr over the
    /// correction of the first moment, one over the root of that of the second, eps, and for each moment how much of the
    /// old and of the new goes in.
    pub(crate) fn factors(self, step: u64) -> [f64; 8] {
        let AdamW { lr, beta1, beta2, eps, weight_decay } = self;
        let correction1 = 1.0 - power(beta1, step);
        let correction2 = 1.0 - power(beta2, step);
        let keep = 1.0 - lr * weight_decay;
        [keep, lr / correction1, 1.0 / correction2.sqrt(), eps, beta1, 1.0 - beta1, beta2, 1.0 - beta2]
    }
}

/// One step of AdamW over any range of a flat parameter, in place.
///
/// `step` counts from one. `first_moment` and `second_moment` are zero before the first step. Each element is updated
/// on its own and all that depends on the step is computed once from `step`, so the result has the same bits however
/// the parameter is cut into ranges.
///
/// # Panics
///
/// If the lengths differ or `step` is zero.
pub fn adamw<T: Real>(
    settings: AdamW,
    step: u64,
    gradient: &[T],
    parameter: &mut [T],
    first_moment: &mut [T],
    second_moment: &mut [T],
) {
    assert!(step > 0, "steps count from one");
    check_len("gradient", gradient.len(), parameter.len());
    check_len("first moment", first_moment.len(), parameter.len());
    check_len("second moment", second_moment.len(), parameter.len());

    let [keep, step_size, root_factor, eps, old1, new1, old2, new2] = settings.factors(step).map(T::from_f64);

    let moments = first_moment.iter_mut().zip(second_moment);
    for ((parameter, &gradient), (first, second)) in parameter.iter_mut().zip(gradient).zip(moments) {
        *first = old1 * *first + new1 * gradient;
        *second = old2 * *second + new2 * gradient * gradient;
        let root = second.sqrt() * root_factor + eps;
        *parameter = *parameter * keep - step_size * *first / root;
    }
}

/// `base` to the power of `exponent` by repeated squaring. The standard function does not promise the same bits in
/// every place where it is called.
fn power(mut base: f64, mut exponent: u64) -> f64 {
    let mut result = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::{Random, assert_close, to_f32};

    const SETTINGS: AdamW = AdamW { lr: 0.02, beta1: 0.8, beta2: 0.95, eps: 1e-6, weight_decay: 0.3 };

    /// The definition, with moments written out as sums over all gradients so far.
    fn reference(gradients: &[f64], mut parameter: f64) -> f64 {
        let AdamW { lr, beta1, beta2, eps, weight_decay } = SETTINGS;
        for t in 1..=gradients.len() {
            let average = |beta: f64, term: &dyn Fn(f64) -> f64| {
                let weighted: f64 = (1..=t).map(|i| beta.powi((t - i) as i32) * term(gradients[i - 1])).sum();
                (1.0 - beta) * weighted / (1.0 - beta.powi(t as i32))
            };
            let (first, second) = (average(beta1, &|g| g), average(beta2, &|g| g * g));
            parameter -= lr * (first / (second.sqrt() + eps) + weight_decay * parameter);
        }
        parameter
    }

    #[test]
    fn three_steps_match_the_definition() {
        let mut random = Random::new(14);
        let len = 13;
        let start = random.values(len);
        let gradients: Vec<Vec<f64>> = (0..3).map(|_| random.values(len)).collect();
        let (mut parameter, mut first, mut second) = (start.clone(), vec![0.0; len], vec![0.0; len]);
        let (mut single, mut first_32, mut second_32) = (to_f32(&start), vec![0.0f32; len], vec![0.0f32; len]);
        for (index, gradient) in gradients.iter().enumerate() {
            let step = index as u64 + 1;
            adamw(SETTINGS, step, gradient, &mut parameter, &mut first, &mut second);
            adamw(SETTINGS, step, &to_f32(gradient), &mut single, &mut first_32, &mut second_32);
        }
        let expected: Vec<f64> = (0..len)
            .map(|i| reference(&gradients.iter().map(|gradient| gradient[i]).collect::<Vec<_>>(), start[i]))
            .collect();
        assert_close("f64", &parameter, &expected, 1e-13);
        assert_close("f32", &single, &expected, 1e-6);
    }

    #[test]
    fn cuts_do_not_change_a_bit() {
        let mut random = Random::new(15);
        let len = 101;
        let gradient = to_f32(&random.values(len));
        let start = to_f32(&random.values(len));
        let run = |cut: usize| {
            let (mut p, mut m, mut v) = (start.clone(), vec![0.125f32; len], vec![0.5f32; len]);
            for step in 7..10 {
                let ranges = p.chunks_mut(cut).zip(gradient.chunks(cut)).zip(m.chunks_mut(cut).zip(v.chunks_mut(cut)));
                for ((p, gradient), (m, v)) in ranges {
                    adamw(SETTINGS, step, gradient, p, m, v);
                }
            }
            [p, m, v].concat().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        let whole = run(len);
        for cut in [1, 2, 3, 7, 16, 64, 100] {
            assert_eq!(run(cut), whole, "ranges of {cut}");
        }
    }

    #[test]
    fn powers() {
        assert_eq!(power(0.5, 0), 1.0);
        assert_eq!(power(0.5, 1), 0.5);
        assert_eq!(power(0.5, 10), 1.0 / 1024.0);
        assert_eq!(power(3.0, 13), 1_594_323.0);
        assert_eq!(power(0.9, u64::MAX), 0.0);
    }

    #[test]
    #[should_panic(expected = "steps count from one")]
    fn step_zero_is_refused() {
        adamw(SETTINGS, 0, &[0.0f32], &mut [0.0], &mut [0.0], &mut [0.0]);
    }

    #[test]
    #[should_panic(expected = "second moment: the slice has 1 elements, the shape needs 2")]
    fn a_wrong_length_is_refused() {
        adamw(SETTINGS, 1, &[0.0f32; 2], &mut [0.0; 2], &mut [0.0; 2], &mut [0.0; 1]);
    }
}
