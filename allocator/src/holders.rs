//! Who holds the live bytes: blocks that are given out, summed up by the line that asked for them.
//!
//! The work is bounded, because it is done for every request that fails: [`MOST_BLOCKS`] blocks are looked at, of all
//! heaps together, and [`MOST_SITES`] lines are told.

use std::collections::BTreeMap;
use std::panic::Location;

use crate::error::LiveSite;
use crate::heap_state::HeapState;

/// Blocks that are looked at.
const MOST_BLOCKS: u64 = 1 << 16;
/// Lines that are told.
const MOST_SITES: usize = 5;

/// The sums so far.
#[derive(Default)]
pub(crate) struct Holders {
    /// By stream, file, line and column: blocks and bytes.
    sites: BTreeMap<(String, &'static str, u32, u32), (u64, u64)>,
    seen: u64,
    unseen: u64,
}

impl Holders {
    /// Adds the live blocks of one heap.
    pub(crate) fn add(&mut self, stream: &str, state: &HeapState) {
        for block in state.heap.live_blocks() {
            if self.seen == MOST_BLOCKS {
                self.unseen += 1;
                continue;
            }
            self.seen += 1;
            let birth = state.birth(block.block);
            self.count(stream, birth.location, block.requested);
        }
    }

    fn count(&mut self, stream: &str, location: &'static Location<'static>, bytes: u64) {
        let site = (stream.to_owned(), location.file(), location.line(), location.column());
        let (blocks, held) = self.sites.entry(site).or_insert((0, 0));
        *blocks += 1;
        *held += bytes;
    }

    /// The lines with the most bytes, the largest first, and how many blocks were not looked at.
    pub(crate) fn largest(self) -> (Vec<LiveSite>, u64) {
        let sites = self.sites.into_iter();
        let mut sites: Vec<LiveSite> = sites
            .map(|((stream, file, line, _), (blocks, bytes))| LiveSite { stream, file, line, blocks, bytes })
            .collect();
        // Stable: sites of equal size stay in the order of their names.
        sites.sort_by_key(|site| std::cmp::Reverse(site.bytes));
        sites.truncate(MOST_SITES);
        (sites, self.unseen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_come_first_and_no_more_than_five() {
        let mut holders = Holders::default();
        let here = Location::caller();
        for (stream, bytes) in [("a", 3), ("b", 9), ("c", 3), ("d", 1), ("e", 2), ("f", 4), ("a", 4)] {
            holders.count(stream, here, bytes);
        }
        let (sites, unseen) = holders.largest();
        let told: Vec<_> = sites.iter().map(|site| (&*site.stream, site.blocks, site.bytes)).collect();
        assert_eq!(told, [("b", 1, 9), ("a", 2, 7), ("f", 1, 4), ("c", 1, 3), ("e", 1, 2)]);
        assert_eq!(unseen, 0);
    }
}
