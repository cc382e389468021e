//! Sums and maxima of rows in an order fixed by the length.
//!
//! A sum runs in eight lanes: lane `l` adds the elements `l`, `l + 8`, `l + 16`, … of the whole groups of eight. The
//! lanes are then added pairwise, 4 + 4, 2 + 2, 1 + 1, and the elements after the last whole group are added one by
//! one. Eight lanes are independent, so the loop becomes vector code without changing the order.

use super::Real;

const LANES: usize = 8;

/// Sum of the values.
#[inline]
pub(super) fn sum<T: Real>(values: &[T]) -> T {
    sum_by(values, |value| value)
}

/// Sum of `term` over the values.
#[inline]
pub(super) fn sum_by<T: Real>(values: &[T], term: impl Fn(T) -> T) -> T {
    let groups = values.chunks_exact(LANES);
    let tail = groups.remainder();
    let mut lanes = [T::ZERO; LANES];
    for group in groups {
        for (lane, &value) in lanes.iter_mut().zip(group) {
            *lane += term(value);
        }
    }
    tail.iter().fold(join(lanes, |a, b| a + b), |total, &value| total + term(value))
}

/// Sum of the products of two slices of the same length.
#[inline]
pub(super) fn dot<T: Real>(left: &[T], right: &[T]) -> T {
    debug_assert_eq!(left.len(), right.len());
    let (left_groups, right_groups) = (left.chunks_exact(LANES), right.chunks_exact(LANES));
    let tail = left_groups.remainder().iter().zip(right_groups.remainder());
    let mut lanes = [T::ZERO; LANES];
    for (left, right) in left_groups.zip(right_groups) {
        for (lane, (&left, &right)) in lanes.iter_mut().zip(left.iter().zip(right)) {
            *lane += left * right;
        }
    }
    tail.fold(join(lanes, |a, b| a + b), |total, (&left, &right)| total + left * right)
}

/// The largest value; minus infinity for none. NaN values are passed over.
#[inline]
pub(super) fn max<T: Real>(values: &[T]) -> T {
    let larger = |a: T, b: T| if b > a { b } else { a };
    let groups = values.chunks_exact(LANES);
    let tail = groups.remainder();
    let mut lanes = [T::NEG_INFINITY; LANES];
    for group in groups {
        for (lane, &value) in lanes.iter_mut().zip(group) {
            *lane = larger(*lane, value);
        }
    }
    tail.iter().fold(join(lanes, larger), |largest, &value| larger(largest, value))
}

#[inline]
fn join<T: Real>(lanes: [T; LANES], combine: impl Fn(T, T) -> T) -> T {
    let [a, b, c, d, e, f, g, h] = lanes;
    let (a, b, c, d) = (combine(a, e), combine(b, f), combine(c, g), combine(d, h));
    combine(combine(a, c), combine(b, d))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::{Random, assert_close, to_f32};

    #[test]
    fn sums_match_naive_ones_at_every_length() {
        let mut random = Random::new(1);
        for len in 0..40 {
            let (a, b) = (random.values(len), random.values(len));
            assert_close("sum", &[sum(&a)], &[a.iter().sum()], 1e-12);
            assert_close("squares", &[sum_by(&a, |x| x * x)], &[a.iter().map(|x| x * x).sum()], 1e-12);
            assert_close("dot", &[dot(&a, &b)], &[a.iter().zip(&b).map(|(a, b)| a * b).sum()], 1e-12);
            assert_eq!(max(&a), a.iter().copied().fold(f64::NEG_INFINITY, f64::max));
        }
    }

    /// The documented order, element by element.
    fn in_lane_order(values: &[f32]) -> f32 {
        let whole = values.len() / 8 * 8;
        let lane = |l: usize| (l..whole).step_by(8).fold(0.0, |total, index| total + values[index]);
        let four: Vec<f32> = (0..4).map(|l| lane(l) + lane(l + 4)).collect();
        let two = [four[0] + four[2], four[1] + four[3]];
        values[whole..].iter().fold(two[0] + two[1], |total, value| total + value)
    }

    #[test]
    fn the_order_of_a_sum_is_the_documented_one() {
        let mut random = Random::new(23);
        let mut other_bits = 0;
        for len in 0..100 {
            let values = to_f32(&random.values(len));
            assert_eq!(sum(&values), in_lane_order(&values), "length {len}");
            assert_eq!(dot(&values, &vec![1.0; len]), in_lane_order(&values), "length {len}");
            other_bits += u32::from(sum(&values) != values.iter().fold(0.0, |total, value| total + value));
        }
        assert!(other_bits > 50, "the order shows in the bits");
    }
}
