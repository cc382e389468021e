//! Who touched which bytes of one piece of memory.
//!
//! Invariants: cells do not overlap and are not empty. A cell has the last write and those reads since that no later
//! read comes after: whoever comes after the reads that are kept comes after all.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use highwater_device::Access;

use crate::order::Op;
use crate::race::BufferInfo;

/// One operation's use of some bytes.
#[derive(Clone, Debug)]
pub(crate) struct Use {
    pub(crate) op: Arc<Op>,
    pub(crate) access: Access,
    /// The buffer that the bytes belonged to.
    pub(crate) buffer: Option<Arc<BufferInfo>>,
    /// The address of the mapping that it went through.
    pub(crate) via: u64,
}

#[derive(Clone, Debug)]
struct Cell {
    end: u64,
    write: Option<Use>,
    reads: Vec<Use>,
}

impl Cell {
    fn uses(&self) -> impl Iterator<Item = &Use> {
        self.write.iter().chain(&self.reads)
    }

    fn is_empty(&self) -> bool {
        self.write.is_none() && self.reads.is_empty()
    }
}

/// The uses of one page, or of another piece of memory, by offset in bytes.
#[derive(Default, Debug)]
pub(crate) struct Shadow {
    cells: BTreeMap<u64, Cell>,
    /// How many cells there may be before it is looked for what can be forgotten.
    sweep_at: usize,
}

/// Cells of a shadow that is never swept.
const SMALL: usize = 64;

impl Shadow {
    /// Uses that conflict with an access and are not ordered before it, with the bytes that they share with it.
    pub(crate) fn conflicts(
        &self,
        range: &Range<u64>,
        access: Access,
        is_before: impl Fn(&Op) -> bool,
    ) -> Vec<(Range<u64>, Use)> {
        let mut found = Vec::new();
        for (&start, cell) in self.cells.range(self.first_in(range)..range.end) {
            let shared = start.max(range.start)..cell.end.min(range.end);
            let reads = if access.writes() { &cell.reads[..] } else { &[] };
            let uses = cell.write.iter().chain(reads).filter(|used| !is_before(&used.op));
            found.extend(uses.map(|used| (shared.clone(), used.clone())));
        }
        found
    }

    /// All uses that `counts` says yes to.
    pub(crate) fn uses(&self, counts: impl Fn(&Use) -> bool) -> Vec<(Range<u64>, Use)> {
        let cells = self.cells.iter();
        let uses = cells.flat_map(|(&start, cell)| cell.uses().map(move |used| (start..cell.end, used)));
        uses.filter(|(_, used)| counts(used)).map(|(range, used)| (range, used.clone())).collect()
    }

    /// Notes a use. `is_before` says of an operation whether it comes before this one.
    pub(crate) fn note(&mut self, range: Range<u64>, used: &Use, is_before: impl Fn(&Op) -> bool) {
        if range.is_empty() {
            return;
        }
        self.cut(range.start);
        self.cut(range.end);
        if used.access.writes() {
            let covered: Vec<u64> = self.cells.range(range.clone()).map(|(&start, _)| start).collect();
            for start in covered {
                self.cells.remove(&start);
            }
            let cell = Cell { end: range.end, write: Some(used.clone()), reads: Vec::new() };
            self.cells.insert(range.start, cell);
        } else {
            self.fill_gaps(&range);
            for cell in self.cells.range_mut(range).map(|(_, cell)| cell) {
                cell.reads.retain(|read| !is_before(&read.op));
                cell.reads.push(used.clone());
            }
        }
    }

    /// Forgets uses inside a range.
    pub(crate) fn forget(&mut self, range: &Range<u64>, mut which: impl FnMut(&Op) -> bool) {
        self.cut(range.start);
        self.cut(range.end);
        for cell in self.cells.range_mut(range.clone()).map(|(_, cell)| cell) {
            cell.write.take_if(|used| which(&used.op));
            cell.reads.retain(|used| !which(&used.op));
        }
        self.cells.retain(|_, cell| !cell.is_empty());
    }

    /// Forgets what the host has seen complete, which can race with nothing any more, when there is much; and then, when
    /// there is more than `most`, the cells with the lowest offsets. How many of those.
    pub(crate) fn sweep(&mut self, most: usize, is_over: impl Fn(&Op) -> bool) -> u64 {
        if self.cells.len() <= self.sweep_at.max(SMALL).min(most) {
            return 0;
        }
        for cell in self.cells.values_mut() {
            cell.write.take_if(|used| is_over(&used.op));
            cell.reads.retain(|used| !is_over(&used.op));
        }
        self.cells.retain(|_, cell| !cell.is_empty());
        let mut dropped = 0;
        // Some room is made, so that the next use does not sweep again.
        let left = if self.cells.len() > most { most / 4 * 3 } else { most };
        while self.cells.len() > left {
            let (_, cell) = self.cells.pop_first().expect("it is longer than something");
            dropped += cell.uses().count() as u64;
        }
        self.sweep_at = 2 * self.cells.len();
        dropped
    }

    /// The start of the first cell that reaches into a range, or the start of the range.
    fn first_in(&self, range: &Range<u64>) -> u64 {
        let before = self.cells.range(..=range.start).next_back();
        before.filter(|(_, cell)| cell.end > range.start).map_or(range.start, |(&start, _)| start)
    }

    /// Makes a border at an offset.
    fn cut(&mut self, at: u64) {
        let Some((_, cell)) = self.cells.range_mut(..at).next_back() else { return };
        if cell.end > at {
            let rest = cell.clone();
            cell.end = at;
            self.cells.insert(at, rest);
        }
    }

    /// Makes empty cells where there are none. The range has borders at both ends.
    fn fill_gaps(&mut self, range: &Range<u64>) {
        let mut gaps = Vec::new();
        let mut next = range.start;
        for (&start, cell) in self.cells.range(range.clone()) {
            if next < start {
                gaps.push(next..start);
            }
            next = cell.end;
        }
        if next < range.end {
            gaps.push(next..range.end);
        }
        for gap in gaps {
            self.cells.insert(gap.start, Cell { end: gap.end, write: None, reads: Vec::new() });
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::clock::{Epoch, Lane};

    fn used(lane: usize, tick: u64, access: Access) -> Use {
        let epoch = Epoch { lane: Lane(lane), tick };
        let op = Op { name: "op".into(), stream: "s".into(), context: None, epoch, captured: false };
        Use { op: Arc::new(op), access, buffer: None, via: 0 }
    }

    /// Nothing is before anything but on one lane.
    fn note(shadow: &mut Shadow, range: Range<u64>, lane: usize, tick: u64, access: Access) {
        shadow.note(range, &used(lane, tick, access), |op| op.epoch.lane == Lane(lane));
    }

    fn found(shadow: &Shadow, range: Range<u64>, access: Access) -> Vec<(Range<u64>, usize, u64)> {
        let conflicts = shadow.conflicts(&range, access, |_| false);
        conflicts.into_iter().map(|(range, used)| (range, used.op.epoch.lane.0, used.op.epoch.tick)).collect()
    }

    #[test]
    fn views_that_overlap_share_the_bytes_in_common_alone() {
        let mut shadow = Shadow::default();
        note(&mut shadow, 0..100, 0, 1, Access::Write);
        note(&mut shadow, 40..60, 1, 1, Access::Write);
        assert_eq!(found(&shadow, 50..80, Access::Read), [(50..60, 1, 1), (60..80, 0, 1)]);
        assert_eq!(found(&shadow, 100..200, Access::Write), []);
        assert_eq!(found(&shadow, 0..40, Access::Write), [(0..40, 0, 1)]);
    }

    #[test]
    fn a_read_conflicts_with_writes_alone_and_a_write_ends_both() {
        let mut shadow = Shadow::default();
        note(&mut shadow, 0..10, 0, 1, Access::Read);
        note(&mut shadow, 5..20, 1, 1, Access::Read);
        assert_eq!(found(&shadow, 0..20, Access::Read), []);
        assert_eq!(found(&shadow, 0..20, Access::Write), [(0..5, 0, 1), (5..10, 0, 1), (5..10, 1, 1), (10..20, 1, 1)]);
        note(&mut shadow, 0..20, 2, 1, Access::ReadWrite);
        assert_eq!(found(&shadow, 0..20, Access::Write), [(0..20, 2, 1)]);
    }

    #[test]
    fn a_read_of_the_same_stream_takes_the_place_of_the_former() {
        let mut shadow = Shadow::default();
        note(&mut shadow, 0..10, 0, 1, Access::Read);
        note(&mut shadow, 0..10, 0, 2, Access::Read);
        assert_eq!(found(&shadow, 0..10, Access::Write), [(0..10, 0, 2)]);
    }

    #[test]
    fn a_sweep_forgets_what_is_over_first() {
        let mut shadow = Shadow::default();
        for start in 0..100 {
            note(&mut shadow, start * 10..start * 10 + 5, (start % 2) as usize, 1, Access::Write);
        }
        assert_eq!(shadow.sweep(80, |op| op.epoch.lane == Lane(0)), 0);
        assert_eq!(found(&shadow, 0..1000, Access::Write).len(), 50);
        assert_eq!(shadow.sweep(40, |_| false), 20, "the rest does not fit, and a quarter is made room");
        let left = found(&shadow, 0..1000, Access::Write);
        assert_eq!((left.len(), left[0].0.start), (30, 410), "those with the lowest offsets are gone");
    }

    #[test]
    fn a_few_uses_are_not_swept() {
        let mut shadow = Shadow::default();
        note(&mut shadow, 0..10, 0, 1, Access::Write);
        assert_eq!(shadow.sweep(1000, |_| true), 0);
        assert_eq!(found(&shadow, 0..10, Access::Read).len(), 1);
    }

    const BYTES: usize = 24;

    proptest! {
        /// Byte by byte: the last write, and the reads since of each lane.
        #[test]
        fn cells_say_what_bytes_say(
            steps in prop::collection::vec((0..BYTES as u64, 1..12u64, 0..3usize, 0..3u8), 1..40),
        ) {
            let mut shadow = Shadow::default();
            let mut bytes = vec![BTreeMap::<(usize, bool), u64>::new(); BYTES];
            for (tick, (start, len, lane, kind)) in (1..).zip(steps) {
                let range = start..(start + len).min(BYTES as u64);
                let access = [Access::Read, Access::Write, Access::ReadWrite][usize::from(kind)];
                note(&mut shadow, range.clone(), lane, tick, access);
                for byte in &mut bytes[range.start as usize..range.end as usize] {
                    if access.writes() {
                        byte.clear();
                    }
                    byte.insert((lane, access.writes()), tick);
                }
                for (at, byte) in (0..).zip(&bytes) {
                    for access in [Access::Read, Access::Write] {
                        let mut expected: Vec<_> =
                            byte.iter().filter(|((_, write), _)| *write || access.writes()).map(|(_, &tick)| tick).collect();
                        let mut seen: Vec<_> =
                            found(&shadow, at..at + 1, access).into_iter().map(|(_, _, tick)| tick).collect();
                        expected.sort_unstable();
                        seen.sort_unstable();
                        prop_assert_eq!(&expected, &seen);
                    }
                }
            }
        }
    }
}
