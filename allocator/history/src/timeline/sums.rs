//! Sums of bytes at each moment.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::{Holder, Timeline};

/// Bytes at a moment. Together they are what is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sums {
    /// Held by the program, as it asked for it.
    pub live_bytes: u64,
    /// What blocks that it holds take beyond that.
    pub rounding_bytes: u64,
    /// Blocks that were given back and wait.
    pub pending_bytes: u64,
    /// Mapped memory that no block takes.
    pub cached_bytes: u64,
}

impl Sums {
    /// Bytes that are not free.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.live_bytes.saturating_add(self.rounding_bytes).saturating_add(self.pending_bytes)
    }

    /// Bytes that are mapped; more than that only where a trace contradicts itself.
    #[must_use]
    pub fn reserved_bytes(&self) -> u64 {
        self.used_bytes().saturating_add(self.cached_bytes)
    }
}

/// A change of what is there, between the moment before and its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Change {
    pub(super) moment: u32,
    pub(super) what: What,
}

/// What changes; the number is that of a block or a mapped range.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum What {
    Mapped(u32),
    Unmapped(u32),
    Born(u32),
    Freed(u32),
    Gone(u32),
}

impl Timeline {
    /// All changes by moment. Those of moment 0 make what is older than the trace.
    pub(super) fn changes(&self) -> Vec<Change> {
        let mut changes = Vec::with_capacity(3 * self.blocks.len() + 2 * self.mapped.len());
        let end = self.events;
        let mut add = |moment: u32, what| {
            if moment <= end {
                changes.push(Change { moment, what });
            }
        };
        for (index, block) in (0..).zip(&self.blocks) {
            add(block.first, What::Born(index));
            add(block.freed, What::Freed(index));
            add(block.gone, What::Gone(index));
        }
        for (index, mapped) in (0..).zip(&self.mapped) {
            add(mapped.first, What::Mapped(index));
            add(mapped.gone, What::Unmapped(index));
        }
        changes.sort_unstable();
        changes
    }

    /// The sums at each moment, of the lanes that are wanted.
    #[must_use]
    pub fn sums(&self, wanted: impl Fn(usize) -> bool) -> Vec<Sums> {
        let mut sums = Vec::with_capacity(self.events as usize + 1);
        // Wide, because a file may say anything.
        let (mut live, mut rounding, mut pending, mut mapped) = (0_i128, 0_i128, 0_i128, 0_i128);
        let changes = self.changes();
        let mut changes = changes.iter().peekable();
        for moment in 0..=self.events {
            while let Some(change) = changes.next_if(|change| change.moment == moment) {
                match change.what {
                    What::Mapped(index) | What::Unmapped(index) => {
                        let range = &self.mapped[index as usize];
                        let sign = if change.what == What::Mapped(index) { 1 } else { -1 };
                        mapped += sign * i128::from(wanted(range.lane)) * i128::from(range.bytes);
                    }
                    What::Born(index) | What::Freed(index) | What::Gone(index) => {
                        let block = &self.blocks[index as usize];
                        if !wanted(self.lane_of(block)) {
                            continue;
                        }
                        let (asked, bytes) = (i128::from(block.requested_bytes), i128::from(block.bytes));
                        let (live_change, pending_change) = match change.what {
                            What::Born(_) => (1, 0),
                            What::Freed(_) => (-1, 1),
                            _ => (0, -1),
                        };
                        live += live_change * asked;
                        rounding += live_change * (bytes - asked);
                        pending += pending_change * bytes;
                    }
                }
            }
            let bytes = |sum: i128| sum.clamp(0, u64::MAX.into()) as u64;
            sums.push(Sums {
                live_bytes: bytes(live),
                rounding_bytes: bytes(rounding),
                pending_bytes: bytes(pending),
                cached_bytes: bytes(mapped - live - rounding - pending),
            });
        }
        sums
    }

    /// The most that each holder holds at once, as it asked for it; most bytes first.
    #[must_use]
    pub fn most_held(&self) -> Vec<(Holder, u64)> {
        let mut sums: BTreeMap<Holder, (i128, i128)> = BTreeMap::new();
        for change in self.changes() {
            let (index, sign) = match change.what {
                What::Born(index) => (index, 1),
                What::Freed(index) => (index, -1),
                _ => continue,
            };
            let block = &self.blocks[index as usize];
            let (now, most) = sums.entry(self.sources[block.source].holder).or_default();
            *now += sign * i128::from(block.requested_bytes);
            *most = (*most).max(*now);
        }
        let bytes = |most: i128| most.clamp(0, u64::MAX.into()) as u64;
        let mut order: Vec<_> = sums.into_iter().map(|(holder, (_, most))| (holder, bytes(most))).collect();
        order.sort_by_key(|&(holder, most)| (Reverse(most), holder));
        order
    }
}
