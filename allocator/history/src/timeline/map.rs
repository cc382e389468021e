//! Memory at one moment: segments with their blocks, and who holds how much.

use std::collections::BTreeMap;

use super::{Holder, MappedLife, Timeline};
use crate::SegmentKind;

/// A segment at a moment: mapped memory without a gap, of one lane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapSegment {
    /// First address.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// Index of the lane.
    pub lane: usize,
    /// Which requests it serves.
    pub kind: SegmentKind,
    /// Whether it is mapped piece by piece.
    pub expandable: bool,
    /// Its blocks, by address; what is between them is free.
    pub blocks: Vec<MapBlock>,
}

/// A block at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapBlock {
    /// First address.
    pub address: u64,
    /// Bytes that it takes; cut where the next block or the end of the segment says that rounding was less.
    pub bytes: u64,
    /// Whether it was given back, and waits.
    pub pending: bool,
    /// Its index among the blocks of the timeline.
    pub block: usize,
}

/// What a holder holds at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeldBytes {
    /// Who holds it.
    pub holder: Holder,
    /// Bytes as asked for.
    pub bytes: u64,
    /// Blocks.
    pub blocks: u64,
}

impl Timeline {
    /// The segments of a moment, by address. A moment behind the end is as the end.
    #[must_use]
    pub fn map(&self, moment: u32) -> Vec<MapSegment> {
        let moment = moment.min(self.events);
        let mut ranges: Vec<&MappedLife> = self.mapped.iter().filter(|mapped| mapped.is_at(moment)).collect();
        ranges.sort_by_key(|mapped| mapped.address);
        let mut segments: Vec<MapSegment> = Vec::new();
        for range in ranges {
            let joins = |last: &&mut MapSegment| {
                last.address + last.bytes == range.address
                    && (last.lane, last.kind) == (range.lane, range.kind)
                    && last.expandable
                    && range.expandable
            };
            match segments.last_mut().filter(joins) {
                Some(last) => last.bytes += range.bytes,
                None => segments.push(MapSegment {
                    address: range.address,
                    bytes: range.bytes,
                    lane: range.lane,
                    kind: range.kind,
                    expandable: range.expandable,
                    blocks: Vec::new(),
                }),
            }
        }
        let mut blocks: Vec<_> = (0..).zip(&self.blocks).filter(|(_, block)| block.is_at(moment)).collect();
        blocks.sort_by_key(|(_, block)| block.address);
        let next = blocks.iter().map(|(_, block)| block.address).skip(1).chain([u64::MAX]);
        let mut segments_left = segments.iter_mut().peekable();
        for (&(index, block), next) in blocks.iter().zip(next) {
            while segments_left.next_if(|segment| segment.address + segment.bytes <= block.address).is_some() {}
            let Some(segment) = segments_left.peek_mut().filter(|segment| segment.address <= block.address) else {
                continue;
            };
            let end = block.address.saturating_add(block.bytes).min(next).min(segment.address + segment.bytes);
            let (address, bytes) = (block.address, end - block.address);
            segment.blocks.push(MapBlock { address, bytes, pending: block.is_pending_at(moment), block: index });
        }
        segments
    }

    /// What each holder holds at a moment in the lanes that are wanted, most bytes first. Blocks that wait are not held.
    #[must_use]
    pub fn held(&self, moment: u32, wanted: impl Fn(usize) -> bool) -> Vec<HeldBytes> {
        let moment = moment.min(self.events);
        let mut sums: BTreeMap<Holder, (u64, u64)> = BTreeMap::new();
        for block in self.blocks.iter().filter(|block| block.is_at(moment) && !block.is_pending_at(moment)) {
            let source = self.sources[block.source];
            if wanted(source.lane) {
                let sum = sums.entry(source.holder).or_default();
                *sum = (sum.0.saturating_add(block.requested_bytes), sum.1 + 1);
            }
        }
        let of = |(holder, (bytes, blocks))| HeldBytes { holder, bytes, blocks };
        let mut held: Vec<HeldBytes> = sums.into_iter().map(of).collect();
        held.sort_by_key(|held| (std::cmp::Reverse(held.bytes), held.holder));
        held
    }
}
