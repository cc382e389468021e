//! What PyTorch would hold with expandable segments: a simulation of its policy, where the trace was recorded without.
//!
//! Each stream has a segment for requests up to 1 MiB, mapped in pages of 2 MiB, and one for larger ones, mapped in pages
//! of 20 MiB. A request takes the smallest free piece that fits, the lowest of those; what is left of it stays free. If
//! none fits, pages are mapped behind the last. Nothing is unmapped as long as no limit is met. A block that another
//! stream uses stays taken until that is over.

use std::collections::{BTreeMap, BTreeSet};

use super::lower::taken_bytes;
use crate::replay::script::{BlockNo, Script, StreamNo, What};

/// Requests up to this are small, bytes.
const SMALL_BYTES: u64 = 1 << 20;
/// Pages of a segment for small requests, and of one for larger ones, bytes.
const SMALL_PAGE_BYTES: u64 = 2 << 20;
const LARGE_PAGE_BYTES: u64 = 20 << 20;

/// Mapped memory at its peak, bytes.
pub(crate) fn reserved_bytes(script: &Script) -> u64 {
    let mut segments: BTreeMap<(StreamNo, bool), Segment> = BTreeMap::new();
    let mut places = BTreeMap::new();
    let mut pending: BTreeSet<(u64, BlockNo)> = BTreeSet::new();
    let release = |segments: &mut BTreeMap<(StreamNo, bool), Segment>, block: BlockNo, place: u64| {
        let (key, bytes) = segment_of(script, block);
        segments.get_mut(&key).expect("it was placed there").free(place, bytes);
    };
    for step in &script.steps {
        while let Some(&(until_ns, block)) = pending.first().filter(|(until_ns, _)| *until_ns <= step.at_ns) {
            pending.remove(&(until_ns, block));
            release(&mut segments, block, places[&block]);
        }
        match step.what {
            What::Alloc(block) => {
                let (key, bytes) = segment_of(script, block);
                let page = if key.1 { SMALL_PAGE_BYTES } else { LARGE_PAGE_BYTES };
                places.insert(block, segments.entry(key).or_default().place(bytes, page));
            }
            What::Free(block) => match script.blocks[block].used {
                Some((_, until_ns)) => {
                    pending.insert((until_ns, block));
                }
                None => release(&mut segments, block, places[&block]),
            },
        }
    }
    // What is mapped stays mapped.
    segments.values().map(|segment| segment.mapped).sum()
}

fn segment_of(script: &Script, block: BlockNo) -> ((StreamNo, bool), u64) {
    let bytes = taken_bytes(script.blocks[block].bytes);
    ((script.blocks[block].owner, bytes <= SMALL_BYTES), bytes)
}

/// One segment.
#[derive(Default)]
struct Segment {
    mapped: u64,
    /// Free pieces: end by start, and (size, start).
    ends: BTreeMap<u64, u64>,
    sizes: BTreeSet<(u64, u64)>,
}

impl Segment {
    fn place(&mut self, bytes: u64, page: u64) -> u64 {
        if self.sizes.range((bytes, 0)..).next().is_none() {
            let tail = self.ends.last_key_value().filter(|&(_, &end)| end == self.mapped);
            let have = tail.map_or(0, |(&start, _)| self.mapped - start);
            let (start, more) = (self.mapped, (bytes - have).next_multiple_of(page));
            self.mapped += more;
            self.free(start, more);
        }
        let &(size, start) = self.sizes.range((bytes, 0)..).next().expect("it was made to fit");
        self.take(start, size);
        if size > bytes {
            self.put(start + bytes, start + size);
        }
        start
    }

    fn free(&mut self, mut start: u64, bytes: u64) {
        let mut end = start + bytes;
        if let Some((&before, &its_end)) = self.ends.range(..start).next_back()
            && its_end == start
        {
            self.take(before, its_end - before);
            start = before;
        }
        if let Some(&after) = self.ends.get(&end) {
            self.take(end, after - end);
            end = after;
        }
        self.put(start, end);
    }

    fn put(&mut self, start: u64, end: u64) {
        self.ends.insert(start, end);
        self.sizes.insert((end - start, start));
    }

    fn take(&mut self, start: u64, size: u64) {
        self.ends.remove(&start);
        self.sizes.remove(&(size, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound::tests::script_of;

    const MIB: u64 = 1 << 20;

    #[test]
    fn small_and_large_requests_have_pages_of_their_own() {
        assert_eq!(reserved_bytes(&script_of(&[(100, 0, 10), (MIB + 1, 0, 10)])), 22 * MIB);
    }

    #[test]
    fn a_segment_grows_behind_what_is_free_at_its_end() {
        // 15 of 20 MiB are free when 30 are asked for: 15 more are needed, which are 20.
        assert_eq!(reserved_bytes(&script_of(&[(5 * MIB, 0, 30), (15 * MIB, 0, 10), (30 * MIB, 10, 20)])), 40 * MIB);
        // Here the free 15 MiB do not lie at the end.
        assert_eq!(reserved_bytes(&script_of(&[(15 * MIB, 0, 10), (5 * MIB, 0, 30), (30 * MIB, 10, 20)])), 60 * MIB);
    }

    #[test]
    fn a_block_that_another_stream_uses_is_not_taken_before_that_is_over() {
        let mut script = script_of(&[(20 * MIB, 0, 10), (20 * MIB, 12, 20), (20 * MIB, 30, 40)]);
        assert_eq!(reserved_bytes(&script), 20 * MIB);
        script.blocks[0].used = Some((1, 15));
        assert_eq!(reserved_bytes(&script), 40 * MIB);
    }
}
