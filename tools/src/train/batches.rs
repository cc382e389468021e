//! Which bytes a step trains on.
//!
//! A sequence's place in the corpus is a pure function of the seed, the step and the sequence's number in the step. So
//! batches depend neither on the number of ranks, nor on what was asked for before.

use std::sync::Arc;

/// The batches of a training.
#[derive(Clone, Debug)]
pub(crate) struct Batches {
    corpus: Arc<[u8]>,
    /// Tokens of a sequence.
    seq: usize,
    /// Sequences of a step.
    batch: usize,
    seed: u64,
}

impl Batches {
    /// Batches of `batch` sequences of `seq` tokens.
    ///
    /// # Panics
    /// If the corpus has no room for a sequence and the byte after it.
    pub(crate) fn new(corpus: Arc<[u8]>, seq: usize, batch: usize, seed: u64) -> Self {
        assert!(corpus.len() > seq, "{} bytes hold no sequence of {seq} tokens and a target", corpus.len());
        Batches { corpus, seq, batch, seed }
    }

    /// Sequence `index` of step `step`, both from 0: `seq + 1` bytes, as the last token's target is the byte after it.
    ///
    /// # Panics
    /// If the step has no such sequence.
    pub(crate) fn sequence(&self, step: u64, index: usize) -> &[u8] {
        assert!(index < self.batch, "sequence {index} of a batch of {}", self.batch);
        let places = (self.corpus.len() - self.seq) as u64;
        let random = mix(mix(mix(self.seed) ^ step) ^ index as u64);
        // The high half of the product is even over the places, where a remainder would favour the first.
        let place = usize::try_from((u128::from(random) * u128::from(places)) >> 64).expect("it is below the length");
        &self.corpus[place..=place + self.seq]
    }
}

/// SplitMix64's output function after one step of its counter: a bijection in which every input bit moves about half of
/// the output bits.
fn mix(counter: u64) -> u64 {
    let mut word = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batches(bytes: usize, seq: usize, seed: u64) -> Batches {
        let corpus: Vec<u8> = (0..bytes).map(|index| index as u8).collect();
        Batches::new(corpus.into(), seq, 1000, seed)
    }

    #[test]
    fn a_sequence_is_consecutive_bytes_of_the_corpus() {
        let batches = batches(200, 7, 1);
        for index in 0..100 {
            let sequence = batches.sequence(3, index);
            assert_eq!(sequence.len(), 8);
            assert!(sequence.windows(2).all(|pair| pair[1] == pair[0] + 1));
        }
    }

    #[test]
    fn every_place_is_used_and_none_more_than_its_share() {
        // 10 places; 20,000 draws.
        let batches = batches(16, 6, 9);
        let mut uses = [0_u32; 10];
        for (step, index) in (0..20).flat_map(|step| (0..1000).map(move |index| (step, index))) {
            uses[usize::from(batches.sequence(step, index)[0])] += 1;
        }
        assert!(uses.iter().all(|&uses| (1800..2200).contains(&uses)), "{uses:?}");
    }

    #[test]
    fn the_shortest_corpus_has_one_place() {
        assert_eq!(batches(5, 4, 1).sequence(8, 999), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn seed_step_and_index_each_change_the_place() {
        let places = |seed, step: u64, from: usize| -> Vec<u8> {
            let batches = batches(256, 1, seed);
            (from..from + 16).map(|index| batches.sequence(step, index)[0]).collect()
        };
        let base = places(1, 0, 0);
        assert_eq!(base, places(1, 0, 0), "the same question has the same answer");
        for other in [places(2, 0, 0), places(1, 1, 0), places(1, 0, 16)] {
            assert_ne!(base, other);
        }
        // Step and index are not just added up.
        assert_ne!(places(1, 1, 0)[..15], places(1, 0, 1)[..15]);
    }

    #[test]
    fn the_generator_is_splitmix64() {
        // The first outputs of the published generator for seed 0 and for the state after one step.
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mix(0x9e37_79b9_7f4a_7c15), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    #[should_panic(expected = "no sequence of 5 tokens")]
    fn a_corpus_without_a_target_for_the_last_token_is_refused() {
        batches(5, 5, 1);
    }
}
