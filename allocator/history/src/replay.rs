//! Memory as it was before each event, found by undoing a trace from its end.
//!
//! This is how the viewer draws an allocator's state: it starts from the segments of a snapshot and goes backwards. An
//! event that cannot be undone blanks its page, so both the check of a snapshot and the check of a file go through
//! here.
//!
//! Invariants: segments are not empty and do not overlap; every live block starts inside one.

use std::{collections::BTreeMap, ops::Bound};

/// A segment at some moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) bytes: u64,
    pub(crate) stream: u64,
}

/// Why an event could not be undone.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayFault {
    /// A range is empty or goes past the end of the address space.
    #[error("the range has no bytes, or goes past the end of the address space")]
    BadRange,
    /// A range overlaps a segment that is mapped at the time.
    #[error("it overlaps the segment at {0:#x}")]
    SegmentOverlap(u64),
    /// A range that was mapped is not within one segment afterwards.
    #[error("its memory is not in one segment afterwards")]
    NotMapped,
    /// A block lies in no segment.
    #[error("the block at {0:#x} lies in no segment at that time")]
    BlockOutside(u64),
    /// A block whose free was requested is not known afterwards.
    #[error("the block is neither pending nor completed afterwards")]
    NoBlock,
}

/// Segments and live blocks at some moment.
#[derive(Default, Debug)]
pub(crate) struct Replay {
    segments: BTreeMap<u64, Run>,
    /// Bytes of each live block.
    blocks: BTreeMap<u64, u64>,
}

impl Replay {
    /// Adds a segment of the snapshot.
    pub(crate) fn add_segment(&mut self, address: u64, run: Run) -> Result<(), ReplayFault> {
        let end = address.checked_add(run.bytes).filter(|_| run.bytes > 0).ok_or(ReplayFault::BadRange)?;
        let last_before = self.segments.range(..end).next_back();
        if let Some((&before, existing)) = last_before
            && before + existing.bytes > address
        {
            return Err(ReplayFault::SegmentOverlap(before));
        }
        self.segments.insert(address, run);
        Ok(())
    }

    /// Adds a block that is live at the time: of the snapshot, or because its free is undone.
    pub(crate) fn add_block(&mut self, address: u64, bytes: u64) -> Result<(), ReplayFault> {
        if self.segment_at(address).is_none() {
            return Err(ReplayFault::BlockOutside(address));
        }
        self.blocks.insert(address, bytes);
        Ok(())
    }

    /// The segment that holds an address.
    pub(crate) fn segment_at(&self, address: u64) -> Option<(u64, Run)> {
        let (&start, &run) = self.segments.range(..=address).next_back()?;
        (address - start < run.bytes).then_some((start, run))
    }

    /// A live block that shares a byte with the range.
    pub(crate) fn block_over(&self, address: u64, bytes: u64) -> Option<u64> {
        let end = address.saturating_add(bytes);
        let (&start, &length) = self.blocks.range(..end).next_back()?;
        (start == address || start.saturating_add(length) > address).then_some(start)
    }

    /// Undoes the request to free a block, which must be live afterwards: it is at least pending.
    pub(crate) fn undo_free_requested(&self, address: u64) -> Result<(), ReplayFault> {
        if self.blocks.contains_key(&address) { Ok(()) } else { Err(ReplayFault::NoBlock) }
    }

    /// Undoes an allocation. Returns the bytes of the block, `None` if it was not live afterwards.
    pub(crate) fn undo_alloc(&mut self, address: u64) -> Option<u64> {
        self.blocks.remove(&address)
    }

    /// Undoes the mapping of part of a segment.
    pub(crate) fn undo_map(&mut self, address: u64, bytes: u64) -> Result<(), ReplayFault> {
        let end = address.checked_add(bytes).filter(|_| bytes > 0).ok_or(ReplayFault::BadRange)?;
        let (start, run) = self.segment_at(address).ok_or(ReplayFault::NotMapped)?;
        let run_end = start + run.bytes;
        if end > run_end {
            return Err(ReplayFault::NotMapped);
        }
        self.segments.remove(&start);
        if start < address {
            self.segments.insert(start, Run { bytes: address - start, ..run });
        }
        if end < run_end {
            self.segments.insert(end, Run { bytes: run_end - end, ..run });
        }
        self.no_block_in(address, end)
    }

    /// Undoes the unmapping of a range: it is joined with neighbours of its stream.
    pub(crate) fn undo_unmap(&mut self, address: u64, mut run: Run) -> Result<(), ReplayFault> {
        self.add_segment(address, run)?;
        let end = address + run.bytes;
        if let Some(&next) = self.segments.get(&end)
            && next.stream == run.stream
        {
            self.segments.remove(&end);
            run.bytes += next.bytes;
        }
        let mut start = address;
        if let Some((&before, previous)) = self.segments.range(..address).next_back()
            && before + previous.bytes == address
            && previous.stream == run.stream
        {
            self.segments.remove(&address);
            run.bytes += address - before;
            start = before;
        }
        self.segments.insert(start, run);
        Ok(())
    }

    /// Undoes the making of a whole segment.
    pub(crate) fn undo_segment_alloc(&mut self, address: u64) -> Result<(), ReplayFault> {
        let run = self.segments.remove(&address).ok_or(ReplayFault::NotMapped)?;
        self.no_block_in(address, address + run.bytes)
    }

    fn no_block_in(&self, start: u64, end: u64) -> Result<(), ReplayFault> {
        match self.blocks.range((Bound::Included(start), Bound::Excluded(end))).next() {
            Some((&block, _)) => Err(ReplayFault::BlockOutside(block)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(bytes: u64) -> Run {
        Run { bytes, stream: 1 }
    }

    #[test]
    fn unmapping_undone_joins_neighbours_of_one_stream() {
        let mut replay = Replay::default();
        replay.add_segment(0, run(10)).expect("free");
        replay.add_segment(20, run(10)).expect("free");
        replay.add_segment(30, Run { bytes: 5, stream: 2 }).expect("free");
        replay.undo_unmap(10, run(10)).expect("free");
        assert_eq!(replay.segment_at(29), Some((0, run(30))));
        assert_eq!(replay.segment_at(30), Some((30, Run { bytes: 5, stream: 2 })));
        replay.undo_map(5, 20).expect("within one segment");
        assert_eq!((replay.segment_at(4), replay.segment_at(5)), (Some((0, run(5))), None));
        assert_eq!((replay.segment_at(24), replay.segment_at(25)), (None, Some((25, run(5)))));
    }

    #[test]
    fn faults_are_named() {
        let mut replay = Replay::default();
        replay.add_segment(100, run(10)).expect("free");
        assert_eq!(replay.add_segment(109, run(5)), Err(ReplayFault::SegmentOverlap(100)));
        assert_eq!(replay.add_segment(90, run(11)), Err(ReplayFault::SegmentOverlap(100)));
        assert_eq!(replay.add_segment(0, run(0)), Err(ReplayFault::BadRange));
        assert_eq!(replay.add_segment(u64::MAX, run(2)), Err(ReplayFault::BadRange));
        assert_eq!(replay.add_block(110, 1), Err(ReplayFault::BlockOutside(110)));
        assert_eq!(replay.undo_map(105, 6), Err(ReplayFault::NotMapped));
        replay.add_block(105, 2).expect("inside");
        assert_eq!(replay.undo_map(104, 3), Err(ReplayFault::BlockOutside(105)));
        assert_eq!(replay.undo_segment_alloc(7), Err(ReplayFault::NotMapped));
        replay.add_segment(200, run(10)).expect("free");
        replay.add_block(209, 1).expect("inside");
        assert_eq!(replay.undo_segment_alloc(200), Err(ReplayFault::BlockOutside(209)));
    }

    #[test]
    fn blocks_over_a_range_are_found() {
        let mut replay = Replay::default();
        replay.add_segment(0, run(100)).expect("free");
        replay.add_block(10, 10).expect("inside");
        let over = |address, bytes| replay.block_over(address, bytes);
        assert_eq!((over(0, 10), over(20, 5)), (None, None));
        assert_eq!((over(0, 11), over(19, 1), over(12, 2), over(10, 0)), (Some(10), Some(10), Some(10), None));
    }
}
