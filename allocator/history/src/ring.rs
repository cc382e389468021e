//! A bounded history: the newest records that fit a number of bytes.
//!
//! Memory is taken in chunks as records come, so an idle ring costs nothing, and no record is ever copied to make room.
//! Once the bound is reached each record takes the place of the oldest, and nothing is allocated any more.
//!
//! A ring has no lock: its owner has one.
//!
//! Invariants: records lie in slots `0..len` while `len < capacity`, oldest in slot 0; from then on the oldest lies in
//! slot `next`. Chunks are full but for the last one.

use crate::Record;

/// Records in a chunk: 64 KiB.
const CHUNK_RECORDS: usize = 1024;

/// The newest records that fit a bound in bytes.
#[derive(Clone, Debug)]
pub struct Ring {
    chunks: Vec<Vec<Record>>,
    capacity: usize,
    next: usize,
    len: usize,
    dropped: u64,
}

impl Ring {
    /// A ring that holds as many records as fit `capacity_bytes`. With room for none, records are only counted as
    /// dropped.
    #[must_use]
    pub fn new(capacity_bytes: usize) -> Self {
        Self { chunks: Vec::new(), capacity: capacity_bytes / size_of::<Record>(), next: 0, len: 0, dropped: 0 }
    }

    /// Adds a record, in the place of the oldest if the ring is full.
    // Always inlined where it is hot: the record is then made where it stays. One that is made elsewhere and copied in wider
    // pieces than it was written makes the processor wait.
    #[inline(always)]
    pub fn push(&mut self, record: Record) {
        if self.len == self.capacity {
            self.dropped += 1;
            if self.capacity == 0 {
                return;
            }
        } else {
            self.len += 1;
        }
        let (index, slot) = (self.next / CHUNK_RECORDS, self.next % CHUNK_RECORDS);
        if index == self.chunks.len() {
            self.add_chunk();
        }
        let chunk = &mut self.chunks[index];
        if slot == chunk.len() {
            chunk.push(record);
        } else {
            chunk[slot] = record;
        }
        self.next += 1;
        if self.next == self.capacity {
            self.next = 0;
        }
    }

    #[cold]
    fn add_chunk(&mut self) {
        let left = self.capacity - self.chunks.len() * CHUNK_RECORDS;
        self.chunks.push(Vec::with_capacity(left.min(CHUNK_RECORDS)));
    }

    /// Records held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no record is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Records lost since the start or the last [`clear`](Self::clear), because newer ones took their place.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The most bytes that its records may take.
    #[must_use]
    pub fn capacity_bytes(&self) -> usize {
        self.capacity * size_of::<Record>()
    }

    /// Bytes that its records take now, room for the next ones included.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.capacity() * size_of::<Record>()).sum()
    }

    /// The records, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &Record> {
        let start = if self.len < self.capacity { 0 } else { self.next };
        (start..start + self.len).map(|slot| {
            let slot = if slot < self.capacity { slot } else { slot - self.capacity };
            &self.chunks[slot / CHUNK_RECORDS][slot % CHUNK_RECORDS]
        })
    }

    /// Forgets every record and the count of dropped ones, and gives the memory back.
    pub fn clear(&mut self) {
        *self = Self::new(self.capacity_bytes());
    }
}

/// All records of `rings` in one sequence: by time, then by position of the ring in the slice, then by order in the
/// ring.
///
/// A ring's own order is always kept. A record that is older than the one before it in its ring (its time was taken
/// before the lock of the ring) gets the time of that one, so the times of the result never go back.
#[must_use]
pub fn merge(rings: &[&Ring]) -> Vec<Record> {
    let mut records = Vec::with_capacity(rings.iter().map(|ring| ring.len()).sum());
    for ring in rings {
        let mut latest_ns = 0;
        records.extend(ring.iter().map(|&record| {
            latest_ns = record.time_ns.max(latest_ns);
            Record { time_ns: latest_ns, ..record }
        }));
    }
    // Stable: equal times stay in the order of rings, and of records within a ring.
    records.sort_by_key(|record| record.time_ns);
    records
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::{Action, Context};

    fn record(time_ns: u64, stream: u64) -> Record {
        Record { time_ns, action: Action::Stall { stream, stall_ns: 0 }, context: Context::here() }
    }

    fn stamp(record: &Record) -> (u64, u64) {
        let Action::Stall { stream, .. } = record.action else { panic!("only stalls are made here") };
        (record.time_ns, stream)
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push(usize),
        Clear,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![20 => (0usize..700).prop_map(Step::Push), 1 => Just(Step::Clear)];
        prop::collection::vec(step, 0..20)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn a_ring_is_a_queue_that_forgets_its_oldest(
            capacity in prop_oneof![0usize..5, 1020usize..1030, 2040usize..2060],
            odd_bytes in 0usize..64,
            steps in steps(),
        ) {
            let bound = capacity * size_of::<Record>() + odd_bytes;
            let mut ring = Ring::new(bound);
            let mut model = VecDeque::new();
            let (mut dropped, mut time) = (0, 0);
            for step in steps {
                match step {
                    Step::Push(count) => for _ in 0..count {
                        time += 1;
                        ring.push(record(time, 0));
                        model.push_back(time);
                        if model.len() > capacity {
                            model.pop_front();
                            dropped += 1;
                        }
                    },
                    Step::Clear => {
                        ring.clear();
                        model.clear();
                        dropped = 0;
                        prop_assert_eq!(ring.held_bytes(), 0);
                    }
                }
                prop_assert_eq!(ring.len(), model.len());
                prop_assert_eq!(ring.is_empty(), model.is_empty());
                prop_assert_eq!(ring.dropped(), dropped);
                prop_assert!(ring.held_bytes() <= bound);
                prop_assert!(ring.iter().map(|record| record.time_ns).eq(model.iter().copied()));
            }
            prop_assert_eq!(ring.capacity_bytes(), capacity * size_of::<Record>());
        }

        #[test]
        fn a_merge_is_ordered_and_keeps_the_order_of_each_ring(
            times in prop::collection::vec(prop::collection::vec(0u64..20, 0..30), 0..5),
        ) {
            let rings: Vec<Ring> = times.iter().map(|times| {
                let mut ring = Ring::new(1 << 16);
                for (order, &time) in times.iter().enumerate() {
                    ring.push(record(time, order as u64));
                }
                ring
            }).collect();
            // The model: the key of every record, written out and sorted.
            let mut expected = Vec::new();
            for (index, times) in times.iter().enumerate() {
                for order in 0..times.len() {
                    let latest = *times[..=order].iter().max().expect("at least one");
                    expected.push((latest, index, order as u64));
                }
            }
            expected.sort_unstable();
            let merged = merge(&rings.iter().collect::<Vec<_>>());
            prop_assert!(merged.iter().map(stamp).eq(expected.iter().map(|&(time, _, order)| (time, order))));
        }
    }

    #[test]
    fn an_idle_ring_holds_no_memory() {
        let mut ring = Ring::new(1 << 30);
        assert_eq!(ring.held_bytes(), 0);
        ring.push(record(1, 1));
        assert_eq!(ring.held_bytes(), CHUNK_RECORDS * size_of::<Record>());
    }

    #[test]
    fn equal_times_keep_the_order_of_rings() {
        let (mut first, mut second) = (Ring::new(1 << 12), Ring::new(1 << 12));
        second.push(record(5, 20));
        first.push(record(5, 10));
        first.push(record(5, 11));
        second.push(record(4, 21));
        let merged = merge(&[&first, &second]);
        assert_eq!(merged.iter().map(stamp).collect::<Vec<_>>(), [(5, 10), (5, 11), (5, 20), (5, 21)]);
    }
}
