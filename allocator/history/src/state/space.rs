//! Free memory: its runs, and whether a request would fit.

use crate::SegmentKind;

use super::memory::{Held, Mapped, Memory};
use super::rules::Rules;

/// What a request may be served from: segments of its pool, its stream and its kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Domain {
    pub(crate) pool: (u64, u64),
    pub(crate) stream: u64,
    pub(crate) kind: SegmentKind,
}

impl Domain {
    pub(crate) fn has(&self, segment: &Mapped) -> bool {
        self.pool == segment.pool && self.stream == segment.stream && self.kind == segment.kind
    }
}

/// A request that memory was wanted for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    /// As asked for.
    pub(crate) bytes: u64,
    /// Of its block.
    pub(crate) block: u64,
    /// That the driver is asked for where no cached block fits.
    pub(crate) driver: u64,
    pub(crate) domain: Domain,
}

impl Request {
    pub(crate) fn new(rules: &Rules, bytes: u64, stream: u64, pool: (u64, u64)) -> Self {
        let block = rules.block_bytes(bytes);
        let domain = Domain { pool, stream, kind: rules.kind(block) };
        Self { bytes, block, driver: rules.driver_bytes(block), domain }
    }
}

/// A free run of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    pub(crate) segment: Mapped,
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// Whether it is the whole segment.
    pub(crate) whole: bool,
}

impl Run {
    /// Bytes of the whole pages in it, which have `page` bytes each.
    pub(crate) fn page_bytes(&self, page: u64) -> u64 {
        let end = (self.start + self.bytes) / page * page;
        end.saturating_sub(self.start.next_multiple_of(page))
    }
}

/// The free runs at a moment.
#[derive(Clone, Debug)]
pub(crate) struct Space {
    pub(crate) runs: Vec<Run>,
}

impl Space {
    /// What is free if only those blocks are there that `holds` is true for.
    pub(crate) fn of(memory: &Memory, holds: impl Fn(&Held) -> bool) -> Self {
        Self::between(memory, |_, held| holds(held))
    }

    /// What would be free without some blocks, told by their address.
    pub(crate) fn without(memory: &Memory, gone: impl Fn(u64) -> bool) -> Self {
        Self::between(memory, |address, _| !gone(address))
    }

    fn between(memory: &Memory, holds: impl Fn(u64, &Held) -> bool) -> Self {
        let mut runs = Vec::new();
        for (&address, &segment) in &memory.segments {
            let end = address + segment.bytes;
            let mut at = address;
            let mut push = |start: u64, end: u64| {
                if start < end {
                    runs.push(Run { segment, start, bytes: end - start, whole: end - start == segment.bytes });
                }
            };
            for (&block, held) in memory.blocks.range(address..end).filter(|&(&block, held)| holds(block, held)) {
                push(at, block);
                at = block + held.bytes;
            }
            push(at, end);
        }
        Self { runs }
    }

    pub(crate) fn sum(&self, wanted: impl Fn(&Run) -> bool) -> u64 {
        self.runs.iter().filter(|run| wanted(run)).map(|run| run.bytes).sum()
    }

    pub(crate) fn largest(&self, wanted: impl Fn(&Run) -> bool) -> u64 {
        self.runs.iter().filter(|run| wanted(run)).map(|run| run.bytes).max().unwrap_or(0)
    }

    /// Bytes of segments in which nothing is live, and that the allocator may return.
    pub(crate) fn returnable(&self) -> u64 {
        self.sum(|run| run.whole && run.segment.pool == (0, 0))
    }

    /// Bytes of whole pages of `page` bytes that hold nothing: what mapping page by page could use anew.
    pub(crate) fn page_bytes(&self, page: u64) -> u64 {
        self.runs.iter().filter(|run| run.segment.pool == (0, 0)).map(|run| run.page_bytes(page)).sum()
    }

    /// Whether a request fits, in a run of its own domain or as a new segment, when the device has so much free.
    pub(crate) fn fits(&self, rules: &Rules, request: &Request, device_free: u64) -> bool {
        let serves = |run: &Run| request.domain.has(&run.segment) && rules.may_serve(run.bytes, request.block);
        let pages = rules.expandable || rules.own;
        let returned = if pages { self.page_bytes(rules.page_bytes) } else { self.returnable() };
        self.largest(serves) >= request.block || device_free.saturating_add(returned) >= request.driver
    }
}
