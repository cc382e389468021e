//! Sequences kept once each, with numbers in the order of their first use.
//!
//! All items lie one after another in one vector. A table of numbers, addressed by hash, finds a sequence again. Nobody
//! iterates over the table, so the numbers depend on the input alone, although the hash has a seed of its own in each
//! process: whoever makes a file cannot know which sequences collide.
//!
//! Invariants: `ends` is ascending, its last entry is the length of `items`; less than three quarters of `table` are
//! taken, and its length is a power of two.

use std::hash::{BuildHasher, RandomState};

/// An entry of the table that is not taken.
const FREE: u32 = u32::MAX;

/// What a pool can hold sequences of.
pub(super) trait Item: Copy + Eq {
    /// Items in a word.
    const IN_A_WORD: usize;
    /// A word of items as a number.
    fn pack(items: &[Self]) -> u64;
    /// Less than a word of items as a number, which tells all sequences of their length apart.
    fn pack_rest(items: &[Self]) -> u64;
}

macro_rules! item {
    ($type:ty, $rest:expr) => {
        impl Item for $type {
            const IN_A_WORD: usize = 8 / size_of::<$type>();

            #[inline]
            fn pack(items: &[Self]) -> u64 {
                let shift = 8 * size_of::<$type>();
                items.iter().rev().fold(0, |word, &item| word << shift | u64::from(item))
            }

            #[inline]
            fn pack_rest(items: &[Self]) -> u64 {
                $rest(items)
            }
        }
    };
}

item!(u8, rest_of_bytes);
item!(u16, Self::pack);
item!(u32, Self::pack);

/// Two halves that overlap are faster than a byte after another.
#[inline]
fn rest_of_bytes(bytes: &[u8]) -> u64 {
    match (bytes.first_chunk(), bytes.last_chunk()) {
        (Some(&first), Some(&last)) => u64::from(u32::from_le_bytes(first)) << 32 | u64::from(u32::from_le_bytes(last)),
        _ => match *bytes {
            [a, b, c] => u64::from(u32::from_le_bytes([a, b, c, 0])),
            [a, b] => u64::from(u16::from_le_bytes([a, b])),
            [a] => a.into(),
            _ => 0,
        },
    }
}

#[derive(Clone, Debug)]
pub(super) struct Pool<T> {
    items: Vec<T>,
    /// Where each sequence ends.
    ends: Vec<usize>,
    table: Vec<u32>,
    seed: u64,
}

impl<T: Item> Pool<T> {
    pub(super) fn new() -> Self {
        Self { items: Vec::new(), ends: Vec::new(), table: vec![FREE; 64], seed: RandomState::new().hash_one(0) }
    }

    /// Number of sequences.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// A sequence. Panics if no sequence has the number.
    pub(super) fn get(&self, id: u32) -> &[T] {
        let id = id as usize;
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.items[start..self.ends[id]]
    }

    /// The number of a sequence that is there.
    #[inline]
    pub(super) fn find(&self, sequence: &[T]) -> Option<u32> {
        match self.table[self.slot(sequence)] {
            FREE => None,
            id => Some(id),
        }
    }

    /// The number of a sequence, which is added if it is new.
    #[inline]
    pub(super) fn intern(&mut self, sequence: &[T]) -> u32 {
        let slot = self.slot(sequence);
        match self.table[slot] {
            FREE => self.add(sequence, slot),
            id => id,
        }
    }

    fn add(&mut self, sequence: &[T], slot: usize) -> u32 {
        let id = u32::try_from(self.ends.len()).ok().filter(|&id| id != FREE);
        let id = id.expect("four billion sequences do not fit in memory");
        self.items.extend_from_slice(sequence);
        self.ends.push(self.items.len());
        self.table[slot] = id;
        if self.ends.len() * 4 > self.table.len() * 3 {
            self.grow();
        }
        id
    }

    fn grow(&mut self) {
        self.table = vec![FREE; self.table.len() * 2];
        for id in 0..self.ends.len() as u32 {
            let mut slot = self.first_slot(self.get(id));
            while self.table[slot] != FREE {
                slot = (slot + 1) & (self.table.len() - 1);
            }
            self.table[slot] = id;
        }
    }

    /// Where the sequence is in the table, or has to go.
    #[inline]
    fn slot(&self, sequence: &[T]) -> usize {
        let mut slot = self.first_slot(sequence);
        loop {
            match self.table[slot] {
                FREE => return slot,
                id if self.get(id) == sequence => return slot,
                _ => slot = (slot + 1) & (self.table.len() - 1),
            }
        }
    }

    #[inline]
    fn first_slot(&self, sequence: &[T]) -> usize {
        let words = sequence.chunks_exact(T::IN_A_WORD);
        let rest = T::pack_rest(words.remainder());
        let start = fold(self.seed ^ sequence.len() as u64, rest);
        let hash = words.fold(start, |hash, word| fold(hash, T::pack(word)));
        hash as usize & (self.table.len() - 1)
    }
}

/// Mixes a word into a hash: both halves of a wide product.
#[inline]
fn fold(hash: u64, word: u64) -> u64 {
    let product = u128::from(hash ^ word) * 0x9e37_79b9_7f4a_7c15;
    (product as u64) ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_sequences_have_one_number_and_come_back() {
        let mut pool = Pool::<u16>::new();
        let sequence = |n: u16| (0..n % 13).map(|i| i * 7 + n).collect::<Vec<_>>();
        let mut expected = std::collections::BTreeMap::new();
        for round in 0..2 {
            for n in 0..2000 {
                let sequence = sequence(n);
                let next = expected.len() as u32;
                let &mut id = expected.entry(sequence.clone()).or_insert(next);
                assert!(round == 1 || pool.find(&sequence).is_none_or(|found| found == id));
                assert_eq!(pool.intern(&sequence), id);
                assert_eq!(pool.find(&sequence), Some(id));
            }
        }
        assert_eq!(pool.len(), expected.len());
        assert!(expected.iter().all(|(sequence, &id)| pool.get(id) == sequence));
    }

    #[test]
    fn sequences_that_differ_in_length_or_in_the_last_item_alone_differ() {
        let mut pool = Pool::<u8>::new();
        let ids: Vec<_> =
            [&b""[..], b"\0", b"\0\0", b"12345678", b"12345678\0", b"123456789"].map(|s| pool.intern(s)).into();
        assert_eq!(ids, [0, 1, 2, 3, 4, 5]);
    }
}
