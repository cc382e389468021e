//! What the tests of this module share: random numbers, comparisons, finite differences.

use super::Real;

/// A small generator (splitmix64): the same seed gives the same values everywhere.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in −1 to 1.
    pub(super) fn values(&mut self, len: usize) -> Vec<f64> {
        (0..len).map(|_| (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0).collect()
    }

    pub(super) fn tokens(&mut self, len: usize, vocabulary: u64) -> Vec<u32> {
        (0..len).map(|_| (self.next() % vocabulary) as u32).collect()
    }
}

pub(super) fn to_f32(values: &[f64]) -> Vec<f32> {
    values.iter().map(|&value| value as f32).collect()
}

/// A weighted sum makes a scalar of an output; its gradient for the output is the weights.
pub(super) fn weigh(output: &[f64], weights: &[f64]) -> f64 {
    assert_eq!(output.len(), weights.len());
    output.iter().zip(weights).map(|(a, b)| a * b).sum()
}

/// Fails unless each pair is within `tolerance · (1 + |expected|)`. NaN is never close.
#[track_caller]
pub(super) fn assert_close<T: Real>(name: &str, actual: &[T], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len(), "{name}: lengths");
    for (index, (actual, &expected)) in actual.iter().zip(expected).enumerate() {
        let difference = (actual.to_f64() - expected).abs();
        assert!(
            difference <= tolerance * (1.0 + expected.abs()),
            "{name}[{index}]: {actual} where {expected} was expected (difference {difference:e})"
        );
    }
}

/// Compares the gradients of a scalar function for every element of every input with central differences.
#[track_caller]
pub(super) fn assert_gradients(
    inputs: &[(&str, Vec<f64>)],
    gradients: &[&[f64]],
    function: impl Fn(&[(&str, Vec<f64>)]) -> f64,
) {
    const STEP: f64 = 1e-5;
    assert_eq!(inputs.len(), gradients.len());
    let mut moved = inputs.to_vec();
    for (which, (name, values)) in inputs.iter().enumerate() {
        let mut differences = Vec::with_capacity(values.len());
        for (index, &value) in values.iter().enumerate() {
            moved[which].1[index] = value + STEP;
            let above = function(&moved);
            moved[which].1[index] = value - STEP;
            let below = function(&moved);
            moved[which].1[index] = value;
            differences.push((above - below) / (2.0 * STEP));
        }
        assert_close(name, gradients[which], &differences, 1e-7);
    }
}
