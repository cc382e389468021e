//! The two elements, and random ones.

use half::bf16;
use highwater_kernels::Element;

/// Half a unit in the last place of an `f32`, relative.
pub(crate) const F32_UNIT: f64 = 1.0 / (1u64 << 24) as f64;

/// An element, and what the tests need of it.
pub(crate) trait Number: Element {
    const TITLE: &'static str;
    /// The most that rounding to it changes a value, relative.
    const UNIT: f64;
    /// A value that stands around views: a NaN that no arithmetic makes.
    const GUARD: Self;

    fn round(value: f32) -> Self;

    fn to_f32(self) -> f32;

    fn bits(self) -> u32;
}

impl Number for f32 {
    const TITLE: &'static str = "f32";
    const UNIT: f64 = F32_UNIT;
    const GUARD: Self = f32::from_bits(0x7fd5_1234);

    fn round(value: f32) -> Self {
        value
    }

    fn to_f32(self) -> f32 {
        self
    }

    fn bits(self) -> u32 {
        self.to_bits()
    }
}

impl Number for bf16 {
    const TITLE: &'static str = "bf16";
    const UNIT: f64 = 1.0 / 256.0;
    const GUARD: Self = bf16::from_bits(0x7fd5);

    fn round(value: f32) -> Self {
        bf16::from_f32(value)
    }

    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }

    fn bits(self) -> u32 {
        u32::from(self.to_bits())
    }
}

/// A small generator (splitmix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// In −1 to 1, with all bits of an f32: a uniform value times one of ½ to 1.
    pub(crate) fn singles(&mut self, len: usize) -> Vec<f32> {
        let mut uniform = || (self.next() >> 40) as f32 / (1u32 << 23) as f32 - 1.0;
        (0..len).map(|_| uniform() * (0.75 + 0.25 * uniform())).collect()
    }

    /// In −1 to 1, rounded to the element.
    pub(crate) fn elements<E: Number>(&mut self, len: usize) -> Vec<f32> {
        self.scaled::<E>(1.0, len)
    }

    /// In −`most` to `most`, rounded to the element.
    pub(crate) fn scaled<E: Number>(&mut self, most: f32, len: usize) -> Vec<f32> {
        self.singles(len).into_iter().map(|value| E::round(most * value).to_f32()).collect()
    }

    pub(crate) fn tokens(&mut self, len: usize, vocabulary: usize) -> Vec<u32> {
        (0..len).map(|_| (self.next() % vocabulary as u64) as u32).collect()
    }
}
