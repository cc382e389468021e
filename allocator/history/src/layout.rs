//! Segments from what is mapped and what is in use.
//!
//! The viewer replays a trace backwards over the segments. That only works if neighbours that belong to one stream are
//! one segment, however many handles they are made of, and if blocks leave no gap. This module builds them so.

use crate::{Block, BlockState, CheckError, Segment, SegmentKind, StackId};

/// A mapped range, as the allocator keeps it: one handle, or more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MappedRange {
    /// First address.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// Stream whose heap has it.
    pub stream: u64,
    /// Where it was mapped.
    pub stack: StackId,
}

impl Segment {
    /// The segments of a device: `mapped` ranges joined where they touch and have one stream, and the active `blocks`
    /// in them, with inactive ones in between. Neither needs to be in order.
    ///
    /// # Errors
    /// If ranges overlap, or a block is not within one segment, or blocks overlap.
    pub fn runs(mut mapped: Vec<MappedRange>, mut blocks: Vec<Block>) -> Result<Vec<Segment>, CheckError> {
        mapped.sort_by_key(|range| range.address);
        blocks.sort_by_key(|block| block.address);
        let mut segments = Vec::new();
        let mut blocks = blocks.into_iter().peekable();
        for run in join(mapped)? {
            let end = run.address + run.bytes;
            let inside = std::iter::from_fn(|| blocks.next_if(|block| block.address < end));
            segments.push(segment(run, inside)?);
        }
        match blocks.next() {
            Some(block) => Err(CheckError::BlockOutside { address: block.address }),
            None => Ok(segments),
        }
    }
}

/// Joins ranges that touch and have one stream. They come by address.
fn join(mapped: Vec<MappedRange>) -> Result<Vec<MappedRange>, CheckError> {
    let mut runs: Vec<MappedRange> = Vec::new();
    for range in mapped {
        if range.address.checked_add(range.bytes).is_none() || range.bytes == 0 {
            return Err(CheckError::BadRange { address: range.address, bytes: range.bytes });
        }
        match runs.last_mut() {
            Some(last) if range.address < last.address + last.bytes => {
                return Err(CheckError::SegmentsOverlap { first: last.address, second: range.address });
            }
            Some(last) if range.address == last.address + last.bytes && range.stream == last.stream => {
                last.bytes += range.bytes;
            }
            _ => runs.push(range),
        }
    }
    Ok(runs)
}

fn segment(run: MappedRange, active: impl Iterator<Item = Block>) -> Result<Segment, CheckError> {
    let (mut at, end) = (run.address, run.address + run.bytes);
    let mut blocks = Vec::new();
    for block in active {
        let outside = CheckError::BlockOutside { address: block.address };
        if block.address < at {
            let Some(before) = blocks.last().map(|before: &Block| before.address) else { return Err(outside) };
            return Err(CheckError::BlocksOverlap { first: before, second: block.address });
        }
        if block.bytes == 0 || block.bytes > end - block.address {
            return Err(outside);
        }
        if at < block.address {
            blocks.push(gap(at, block.address));
        }
        at = block.address + block.bytes;
        blocks.push(block);
    }
    if at < end {
        blocks.push(gap(at, end));
    }
    let sum = |counts: fn(BlockState) -> bool, bytes: fn(&Block) -> u64| {
        blocks.iter().filter(|block| counts(block.state)).map(bytes).sum()
    };
    Ok(Segment {
        address: run.address,
        total_bytes: run.bytes,
        allocated_bytes: sum(|state| state == BlockState::Allocated, |block| block.bytes),
        active_bytes: sum(|state| state != BlockState::Inactive, |block| block.bytes),
        requested_bytes: sum(|state| state != BlockState::Inactive, |block| block.requested_bytes),
        stream: run.stream,
        kind: SegmentKind::Large,
        pool: (0, 0),
        expandable: true,
        stack: run.stack,
        blocks,
    })
}

fn gap(start: u64, end: u64) -> Block {
    Block { address: start, bytes: end - start, requested_bytes: 0, state: BlockState::Inactive, stack: StackId::EMPTY }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(address: u64, bytes: u64, stream: u64) -> MappedRange {
        MappedRange { address, bytes, stream, stack: StackId::EMPTY }
    }

    fn block(address: u64, bytes: u64, state: BlockState) -> Block {
        Block { address, bytes, requested_bytes: bytes - 1, state, stack: StackId::EMPTY }
    }

    #[test]
    fn ranges_that_touch_are_one_run_of_blocks_without_gaps() {
        let mapped =
            vec![range(300, 100, 1), range(100, 100, 1), range(200, 100, 1), range(400, 50, 2), range(900, 9, 1)];
        let blocks = vec![block(350, 20, BlockState::PendingFree), block(150, 100, BlockState::Allocated)];
        let segments = Segment::runs(mapped, blocks).expect("consistent");
        let shape: Vec<_> = segments.iter().map(|s| (s.address, s.total_bytes, s.stream, s.blocks.len())).collect();
        assert_eq!(shape, [(100, 300, 1, 5), (400, 50, 2, 1), (900, 9, 1, 1)]);
        let first = &segments[0];
        let blocks: Vec<_> = first.blocks.iter().map(|block| (block.address, block.bytes)).collect();
        assert_eq!(blocks, [(100, 50), (150, 100), (250, 100), (350, 20), (370, 30)]);
        assert_eq!((first.allocated_bytes, first.active_bytes, first.requested_bytes), (100, 120, 118));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let allocated = |address, bytes| block(address, bytes, BlockState::Allocated);
        let refused = |mapped, blocks| Segment::runs(mapped, blocks).expect_err("inconsistent");
        let overlap = refused(vec![range(0, 10, 1), range(9, 10, 1)], vec![]);
        assert_eq!(overlap, CheckError::SegmentsOverlap { first: 0, second: 9 });
        let overlap = refused(vec![range(0, 10, 1)], vec![allocated(0, 5), allocated(4, 5)]);
        assert_eq!(overlap, CheckError::BlocksOverlap { first: 0, second: 4 });
        for (address, bytes) in [(8, 3), (10, 1), (15, 1), (99, 1)] {
            let outside = refused(vec![range(0, 10, 1), range(20, 5, 1)], vec![allocated(address, bytes)]);
            assert_eq!(outside, CheckError::BlockOutside { address });
        }
        let bad = refused(vec![range(0, 0, 1)], vec![]);
        assert_eq!(bad, CheckError::BadRange { address: 0, bytes: 0 });
    }
}
