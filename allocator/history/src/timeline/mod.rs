//! Memory over time: which block and which mapped range was there, from when to when.
//!
//! A snapshot has the memory of its own moment, and the events before. [`Timeline`] undoes the events once, from the end,
//! and keeps what it meets as rectangles: a range of addresses for a range of moments. From them follow the sums at every
//! [moment](Timeline::sums), the [map](Timeline::map) of segments and blocks at any of them, what each
//! [stack](Timeline::held) holds, and [levels](Levels) that let a page draw a million events.
//!
//! **Moments.** Moment `m` is right before event `m`; the last one, which has the number of events, is the end. Event `m`
//! is what lies between the moments `m` and `m + 1`.
//!
//! **Bytes.** What a program asked for is known. What its block takes is known of blocks that are there in the end, and
//! of snapshots of this project; else it follows from how the allocator rounds.
//!
//! Traces come from anywhere. What fits nothing is left out and counted ([`Timeline::faults`]).
//!
//! Invariants: rectangles of blocks overlap each other nowhere at their first addresses, and begin in a mapped range;
//! those of mapped ranges overlap nowhere. `first <= freed <= gone` holds for each block, `first < gone` for each range.

mod build;
mod levels;
mod map;
mod sums;

use crate::{SegmentKind, StackId};

pub use levels::{Levels, Point, Series, Shown};
pub use map::{HeldBytes, MapBlock, MapSegment};
pub use sums::Sums;

/// Whose memory: a stream's, in a pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Lane {
    /// The stream, as the file calls it.
    pub stream: u64,
    /// Private pool; (0, 0) is the common one.
    pub pool: (u64, u64),
}

/// What blocks are told by: the stack that asked, or where none was recorded the size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Holder {
    /// The stack.
    pub stack: StackId,
    /// Bytes of each block as asked for if there is no stack, else 0.
    pub bytes: u64,
}

impl Holder {
    fn of(stack: StackId, requested_bytes: u64) -> Self {
        Self { stack, bytes: if stack == StackId::EMPTY { requested_bytes } else { 0 } }
    }
}

/// Where blocks come from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Source {
    /// Who asked.
    pub holder: Holder,
    /// Index of the lane.
    pub lane: usize,
}

/// A block, from the event that handed it out to the one that made it free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockLife {
    /// First address.
    pub address: u64,
    /// Bytes as asked for.
    pub requested_bytes: u64,
    /// Bytes that it takes.
    pub bytes: u64,
    /// Index of the source.
    pub source: usize,
    /// First moment at which it is there; 0 if it is older than the trace.
    pub first: u32,
    /// First moment at which it was given back, and waits; `gone` if it never waits.
    pub freed: u32,
    /// First moment at which it is not there; one past the end if it stays.
    pub gone: u32,
}

impl BlockLife {
    /// Whether it is there at a moment.
    #[must_use]
    pub fn is_at(&self, moment: u32) -> bool {
        (self.first..self.gone).contains(&moment)
    }

    /// Whether it was given back at a moment, and waits.
    #[must_use]
    pub fn is_pending_at(&self, moment: u32) -> bool {
        (self.freed..self.gone).contains(&moment)
    }
}

/// A range of mapped memory: a segment, or the part of one that was mapped and unmapped with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MappedLife {
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
    /// First moment at which it is there; 0 if it is older than the trace.
    pub first: u32,
    /// First moment at which it is not there; one past the end if it stays.
    pub gone: u32,
}

impl MappedLife {
    /// Whether it is there at a moment.
    #[must_use]
    pub fn is_at(&self, moment: u32) -> bool {
        (self.first..self.gone).contains(&moment)
    }
}

/// Memory of one device over time.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Timeline {
    events: u32,
    lanes: Vec<Lane>,
    sources: Vec<Source>,
    blocks: Vec<BlockLife>,
    mapped: Vec<MappedLife>,
    faults: u64,
}

impl Timeline {
    /// Number of events, and the last moment.
    #[must_use]
    pub fn events(&self) -> u32 {
        self.events
    }

    /// Streams and pools, in their order.
    #[must_use]
    pub fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    /// Holders with their lanes, in the order of first use from the end.
    #[must_use]
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// Blocks, by their first moment, then by address.
    #[must_use]
    pub fn blocks(&self) -> &[BlockLife] {
        &self.blocks
    }

    /// Mapped ranges, by their first moment, then by address.
    #[must_use]
    pub fn mapped(&self) -> &[MappedLife] {
        &self.mapped
    }

    /// Events and blocks that fit nothing, and were left out.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.faults
    }

    /// The event that a moment comes after; `None` for what is older than the trace, and for what is behind its end.
    #[must_use]
    pub fn event_before(&self, moment: u32) -> Option<u32> {
        moment.checked_sub(1).filter(|&event| event < self.events)
    }

    /// The lane of a block.
    #[must_use]
    pub fn lane_of(&self, block: &BlockLife) -> usize {
        self.sources[block.source].lane
    }
}
