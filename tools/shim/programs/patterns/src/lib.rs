//! Synthetic data for the training programs: noisy patterns, made from a fixed seed.
//!
//! Each class has one random pattern. A sample is the pattern of its class or the negative of it, plus noise. The sign
//! makes the classes inseparable by planes, so a model needs a hidden layer to tell them apart. The same seed gives
//! the same data on every machine of one platform.

/// Number of classes.
pub const CLASSES: usize = 16;
/// Numbers in one sample.
pub const INPUTS: usize = 1024;
/// Deviation of the noise, where a pattern has deviation 1.
const NOISE: f32 = 5.0;

/// A random number generator with 64 bits of state (SplitMix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator that always gives the same numbers for the same `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Uniform in (0, 1].
    fn unit(&mut self) -> f32 {
        ((self.next() >> 40) + 1) as f32 / (1u64 << 24) as f32
    }

    /// Normal with deviation 1 (Box–Muller).
    fn normal(&mut self) -> f32 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        radius * (std::f32::consts::TAU * self.unit()).cos()
    }
}

/// The pattern of each class.
#[derive(Debug, Clone)]
pub struct Patterns(Vec<f32>);

impl Patterns {
    /// Draws `CLASSES` patterns of `INPUTS` numbers.
    pub fn new(random: &mut Random) -> Self {
        Self((0..CLASSES * INPUTS).map(|_| random.normal()).collect())
    }

    /// Draws `count` samples of random classes, scaled to deviation 1.
    pub fn samples(&self, count: usize, random: &mut Random) -> Samples {
        let mut rows = Vec::with_capacity(count * INPUTS);
        let mut labels = Vec::with_capacity(count);
        let scale = 1.0 / (1.0 + NOISE * NOISE).sqrt();
        for _ in 0..count {
            let class = random.below(CLASSES);
            let sign = if random.below(2) == 0 { 1.0 } else { -1.0 };
            let pattern = &self.0[class * INPUTS..(class + 1) * INPUTS];
            rows.extend(pattern.iter().map(|value| scale * (sign * value + NOISE * random.normal())));
            labels.push(class as u32);
        }
        Samples { rows, labels }
    }
}

/// Samples in host memory.
#[derive(Debug, Clone)]
pub struct Samples {
    rows: Vec<f32>,
    labels: Vec<u32>,
}

impl Samples {
    /// Number of samples.
    pub fn count(&self) -> usize {
        self.labels.len()
    }

    /// The `count` samples from `start` on, going round at the end: rows `[count, INPUTS]` and labels `[count]`.
    ///
    /// # Panics
    ///
    /// If there are no samples at all.
    pub fn batch(&self, start: usize, count: usize) -> (Vec<f32>, Vec<u32>) {
        let mut rows = Vec::with_capacity(count * INPUTS);
        let mut labels = Vec::with_capacity(count);
        for sample in (start..start + count).map(|index| index % self.count()) {
            rows.extend_from_slice(&self.rows[sample * INPUTS..(sample + 1) * INPUTS]);
            labels.push(self.labels[sample]);
        }
        (rows, labels)
    }
}

/// Batch sizes that a training run goes through in turn, so that its tensors change their sizes.
pub const BATCH_SIZES: [usize; 4] = [2048, 1024, 1536, 2048];

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(seed: u64, count: usize) -> (Patterns, Samples) {
        let mut random = Random::new(seed);
        let patterns = Patterns::new(&mut random);
        let samples = patterns.samples(count, &mut random);
        (patterns, samples)
    }

    #[test]
    fn the_seed_decides_the_data() {
        let first = samples(7, 20).1.batch(0, 20);
        assert_eq!(first, samples(7, 20).1.batch(0, 20));
        assert_ne!(first, samples(8, 20).1.batch(0, 20));
    }

    #[test]
    fn a_batch_goes_round_at_the_end() {
        let samples = samples(7, 5).1;
        let (rows, labels) = samples.batch(3, 4);
        let (all_rows, all_labels) = samples.batch(0, 5);
        assert_eq!(labels, [all_labels[3], all_labels[4], all_labels[0], all_labels[1]]);
        assert_eq!(rows[2 * INPUTS..3 * INPUTS], all_rows[..INPUTS]);
    }

    #[test]
    fn each_sample_is_nearest_to_its_own_pattern_with_either_sign() {
        let (patterns, samples) = samples(7, 64);
        let (rows, labels) = samples.batch(0, 64);
        let mut signs = [0, 0];
        for (row, label) in rows.chunks(INPUTS).zip(labels) {
            let products: Vec<f32> =
                patterns.0.chunks(INPUTS).map(|pattern| pattern.iter().zip(row).map(|(p, r)| p * r).sum()).collect();
            let best = (0..CLASSES).max_by(|&a, &b| products[a].abs().total_cmp(&products[b].abs()));
            assert_eq!(best, Some(label as usize));
            signs[usize::from(products[label as usize] < 0.0)] += 1;
        }
        assert!(signs[0] > 0 && signs[1] > 0, "both signs occur: {signs:?}");
    }

    #[test]
    fn normal_numbers_have_mean_zero_and_deviation_one() {
        let mut random = Random::new(3);
        let numbers: Vec<f64> = (0..100_000).map(|_| f64::from(random.normal())).collect();
        let mean = numbers.iter().sum::<f64>() / 1e5;
        let variance = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "{mean} {variance}");
    }
}
