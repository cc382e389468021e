//! The workloads of allocator benchmarks, the same sequence to the bit as in any other language.
//!
//! Every draw is made by one 64-bit generator before anything is measured.

/// The generator: multiplier and increment of Knuth's MMIX, of which the upper 31 bits are used.
#[derive(Clone, Debug)]
pub(crate) struct Lcg(u64);

impl Lcg {
    /// From a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Lcg(seed)
    }

    /// The next 31 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// A number in [0, 1).
    fn unit(&mut self) -> f64 {
        self.next() as f64 / 2_147_483_648.0
    }

    /// A size in `[low, high)` whose logarithm is uniform.
    pub(crate) fn log_uniform(&mut self, low: u64, high: u64) -> u64 {
        let (low, high) = ((low as f64).ln(), (high as f64).ln());
        (low + self.unit() * (high - low)).exp() as u64
    }
}
