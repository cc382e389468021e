//! Element types, and an exponential that compilers can vectorise.
//!
//! The exponential is the only transcendental function in an inner loop here: softmax needs it, and GELU in its tanh
//! form is a logistic function in disguise. The one for `f32` has no branch and no table, so a plain loop over a slice
//! becomes vector code on the baseline instruction set. It never uses a fused multiply-add: results are the same with
//! and without that instruction.

use std::fmt::{Debug, Display};
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub, SubAssign};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
    impl Sealed for u8 {}
    impl Sealed for u32 {}
}

/// An element of a tensor: `f32` or `f64`. It may be cast from and to plain bytes.
pub trait Real:
    sealed::Sealed
    + bytemuck::Pod
    + Debug
    + Display
    + Default
    + PartialOrd
    + Send
    + Sync
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
    + MulAssign
{
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// Less than any number.
    const NEG_INFINITY: Self;

    /// The nearest value of this type.
    fn from_f64(value: f64) -> Self;

    /// The value as `f64`, exactly.
    fn to_f64(self) -> f64;

    /// Square root.
    fn sqrt(self) -> Self;

    /// Natural logarithm.
    fn ln(self) -> Self;

    /// Exponential function. For `f32` within a relative error of 2·10⁻⁷, and zero below −86.6 where the true value is
    /// under 2.5·10⁻³⁸; infinity and NaN behave as in the standard library.
    fn exp(self) -> Self;
}

impl Real for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const NEG_INFINITY: Self = f32::NEG_INFINITY;

    #[inline]
    fn from_f64(value: f64) -> Self {
        value as f32
    }

    #[inline]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }

    #[inline]
    fn sqrt(self) -> Self {
        f32::sqrt(self)
    }

    #[inline]
    fn ln(self) -> Self {
        f32::ln(self)
    }

    #[inline]
    fn exp(self) -> Self {
        exp_f32(self)
    }
}

impl Real for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const NEG_INFINITY: Self = f64::NEG_INFINITY;

    #[inline]
    fn from_f64(value: f64) -> Self {
        value
    }

    #[inline]
    fn to_f64(self) -> f64 {
        self
    }

    #[inline]
    fn sqrt(self) -> Self {
        f64::sqrt(self)
    }

    #[inline]
    fn ln(self) -> Self {
        f64::ln(self)
    }

    #[inline]
    fn exp(self) -> Self {
        f64::exp(self)
    }
}

/// The number of a token, an index into a vocabulary: `u8` for bytes, or `u32`.
pub trait Token: sealed::Sealed + bytemuck::Pod + Debug + Send + Sync {
    /// The token as an index.
    fn index(self) -> usize;
}

impl Token for u8 {
    #[inline]
    fn index(self) -> usize {
        usize::from(self)
    }
}

impl Token for u32 {
    #[inline]
    fn index(self) -> usize {
        self as usize
    }
}

/// e^x as 2^n · e^r with n = round(x / ln 2), so |r| ≤ ln 2 / 2, and e^r by its Taylor polynomial of degree 7, whose
/// remainder is under 8·10⁻⁹ there.
#[inline]
fn exp_f32(x: f32) -> f32 {
    const LOWEST: f32 = -86.6;
    const HIGHEST: f32 = 89.0;
    // Adding it rounds to an integer, which then stands in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts. The first has few bits, so that n times it is exact.
    const LN_2_HIGH: f32 = 355.0 / 512.0;
    const LN_2_LOW: f32 = (std::f64::consts::LN_2 - 355.0 / 512.0) as f32;

    // A comparison in this form is one instruction and lets NaN through. From `HIGHEST` on the result is infinite.
    let clamped = if x > HIGHEST { HIGHEST } else { x };
    let rounded = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = (clamped - n * LN_2_HIGH) - n * LN_2_LOW;

    let mut power = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        power = power * r + coefficient;
    }

    // 2^(n-1) from its exponent bits, then twice that: 2^128 itself has no such form. Below `LOWEST` the bits may be
    // anything, as the value is not used.
    let half_scale = f32::from_bits(rounded.to_bits().wrapping_add(126) << 23);
    let value = power * half_scale * 2.0;
    if x < LOWEST { 0.0 } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_f32_keeps_its_error_bound() {
        let mut worst = 0.0f64;
        let steps = 400_000;
        for step in 0..=steps {
            let x = (-86.6 + (88.72 + 86.6) * f64::from(step) / f64::from(steps)) as f32;
            if x < -86.6 {
                continue;
            }
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(Real::exp(x)) - exact).abs() / exact);
        }
        assert!(worst < 2e-7, "relative error {worst:e}");
        assert!(worst > 1e-9, "the check must see an error of single precision");
    }

    #[test]
    fn exp_f32_at_the_edges() {
        let exp = <f32 as Real>::exp;
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-86.7), 0.0);
        assert_eq!(exp(-1e30), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(88.73), f32::INFINITY);
        assert_eq!(exp(1e30), f32::INFINITY);
        assert!(exp(88.72).is_finite());
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(f32::from_bits(u32::MAX)).is_nan());
        assert!((f64::from(exp(1e-7)) - 1e-7f64.exp()).abs() < 1e-7);
    }

    #[test]
    fn exp_f32_does_not_turn_back() {
        let mut previous = 0.0;
        for step in -700..=700 {
            let value = <f32 as Real>::exp(step as f32 / 8.0);
            assert!(value > previous || (value == 0.0 && previous == 0.0), "at {step}/8");
            previous = value;
        }
    }
}
