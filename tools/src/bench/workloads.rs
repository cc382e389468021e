//! The workloads of allocator benchmarks, the same sequence to the bit as in any other language.
//!
//! Every draw is made by one 64-bit generator before anything is measured.

use highwater::{AllocError, Buffer, Stream};

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

/// One step of a churn: the block in a slot goes, and another comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Draw {
    /// The slot.
    pub(crate) slot: usize,
    /// Index of the stream that the new block is for.
    pub(crate) stream: usize,
    /// Its size, bytes.
    pub(crate) bytes: u64,
}

/// A churn: blocks of random sizes take the places of random others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Churn {
    /// Blocks that are live at once.
    pub(crate) slots: usize,
    /// Streams that they are spread over.
    pub(crate) streams: usize,
    /// Sizes are at least this, bytes.
    pub(crate) low: u64,
    /// And below this.
    pub(crate) high: u64,
    /// Steps that are measured, after eight for each slot that are not.
    pub(crate) steps: usize,
    /// Of the generator.
    pub(crate) seed: u64,
}

impl Churn {
    /// The three that allocators are compared by.
    pub(crate) const COMPARED: [Churn; 3] = [
        Churn { slots: 4096, streams: 1, low: 512, high: 64 << 20, steps: 300_000, seed: 1 },
        Churn { slots: 4096, streams: 4, low: 512, high: 64 << 20, steps: 300_000, seed: 2 },
        Churn { slots: 65_536, streams: 1, low: 512, high: 1 << 20, steps: 300_000, seed: 3 },
    ];

    /// Steps before those that are measured.
    pub(crate) fn warm_up(&self) -> usize {
        self.slots * 8
    }

    /// All steps, those before the measured ones too.
    pub(crate) fn draws(&self) -> Vec<Draw> {
        self.first_draws(self.warm_up() + self.steps)
    }

    /// The first so many steps.
    pub(crate) fn first_draws(&self, steps: usize) -> Vec<Draw> {
        let mut random = Lcg::new(self.seed);
        let draw = |_| Draw {
            slot: random.next() as usize % self.slots,
            stream: random.next() as usize % self.streams,
            bytes: random.log_uniform(self.low, self.high),
        };
        (0..steps).map(draw).collect()
    }
}

/// The blocks that are live, by slot.
#[derive(Debug)]
pub(crate) struct Live {
    slots: Vec<Option<Buffer<u8>>>,
    streams: Vec<Stream>,
}

impl Live {
    /// So many empty slots, for blocks of these streams.
    pub(crate) fn new(slots: usize, streams: Vec<Stream>) -> Self {
        Live { slots: std::iter::repeat_with(|| None).take(slots).collect(), streams }
    }

    /// The block in the slot of a draw goes, and another comes.
    ///
    /// # Errors
    /// When there is no memory for it; the slot is empty then.
    pub(crate) fn step(&mut self, draw: &Draw) -> Result<(), AllocError> {
        self.free(draw);
        self.fill(draw)
    }

    /// The block in the slot of a draw goes.
    pub(crate) fn free(&mut self, draw: &Draw) {
        self.slots[draw.slot] = None;
    }

    /// A block comes into the slot of a draw.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub(crate) fn fill(&mut self, draw: &Draw) -> Result<(), AllocError> {
        self.slots[draw.slot] = Some(self.streams[draw.stream].alloc::<u8>(draw.bytes as usize)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_gives_what_it_gives_in_other_languages() {
        // By hand: (1 × multiplier + increment) mod 2^64, without its lower 33 bits.
        let state = 6_364_136_223_846_793_005_u64.wrapping_add(1_442_695_040_888_963_407);
        assert_eq!(Lcg::new(1).next(), state >> 33);
        assert_eq!(Lcg::new(0).next(), 1_442_695_040_888_963_407 >> 33);
    }

    #[test]
    fn draws_are_the_same_at_every_run_and_in_range() {
        for churn in Churn::COMPARED {
            let churn = Churn { slots: 64, steps: 1000, ..churn };
            let draws = churn.draws();
            assert_eq!((draws.len(), &draws), (1512, &churn.draws()));
            assert!(draws.iter().all(|draw| draw.slot < 64 && draw.stream < churn.streams));
            assert!(draws.iter().all(|draw| (churn.low..churn.high).contains(&draw.bytes)));
            let small = draws.iter().filter(|draw| draw.bytes < 1 << 14).count();
            assert!(
                (draws.len() / 5..draws.len() * 3 / 5).contains(&small),
                "{small} are small: all scales occur alike"
            );
        }
    }
}
