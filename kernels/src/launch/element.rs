//! Elements of tensors in device memory.

use std::borrow::Cow;

use half::bf16;
use highwater::Pod;
use highwater::device::OperandBytes;

use crate::cuda::ElementType;

mod sealed {
    use super::{Cow, ElementType, OperandBytes, Pod};

    /// What the launchers need of an element.
    pub trait Arithmetic: Pod {
        /// What ends the names of the kernels for it.
        const NAME: &'static str;
        /// What a matrix product calls it.
        const TYPE: ElementType;
        /// Elements in 16 bytes.
        const PACK: usize = 16 / size_of::<Self>();

        /// The values, as `f32`.
        fn values(operand: &OperandBytes) -> Cow<'_, [f32]>;

        /// Changes the values, as `f32`.
        fn change<R>(operand: &mut OperandBytes, change: impl FnOnce(&mut [f32]) -> R) -> R;
    }
}

use sealed::Arithmetic;

/// An element of a tensor: `f32`, or `bf16`. All arithmetic is in `f32`; a `bf16` result is rounded once, to the nearest
/// value, ties to even.
pub trait Element: Arithmetic {}

impl Element for f32 {}

impl Element for bf16 {}

impl Arithmetic for f32 {
    const NAME: &'static str = "f32";
    const TYPE: ElementType = ElementType::F32;

    fn values(operand: &OperandBytes) -> Cow<'_, [f32]> {
        Cow::Borrowed(operand.as_slice())
    }

    fn change<R>(operand: &mut OperandBytes, change: impl FnOnce(&mut [f32]) -> R) -> R {
        change(operand.as_mut_slice())
    }
}

impl Arithmetic for bf16 {
    const NAME: &'static str = "bf16";
    const TYPE: ElementType = ElementType::Bf16;

    fn values(operand: &OperandBytes) -> Cow<'_, [f32]> {
        Cow::Owned(operand.as_slice::<bf16>().iter().map(|value| value.to_f32()).collect())
    }

    fn change<R>(operand: &mut OperandBytes, change: impl FnOnce(&mut [f32]) -> R) -> R {
        let mut values = Self::values(operand).into_owned();
        let result = change(&mut values);
        for (place, value) in operand.as_mut_slice::<bf16>().iter_mut().zip(values) {
            *place = bf16::from_f32(value);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_is_rounded_once_to_the_nearest() {
        let mut operand = OperandBytes::filled(6, 0);
        // Between 1 and the next value, 1 + 2⁻⁷: below, at, and above the middle; ties go to even.
        let middle = 1.0 + 2f32.powi(-8);
        bf16::change(&mut operand, |values| values.copy_from_slice(&[middle.next_down(), middle, middle.next_up()]));
        assert_eq!(*bf16::values(&operand), [1.0, 1.0, 1.0 + 2f32.powi(-7)]);
    }
}
