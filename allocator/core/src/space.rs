//! Address ranges cut into tiles: the room in which blocks are placed.
//!
//! The tiles of a range lie side by side, without gap or overlap. Neighbours that are both free, or both unmapped, are
//! one tile. Unmapped tiles start and end on the granularity of the device; the bounds of handles are on it too, and a
//! handle never spans two ranges. A tile that is not unmapped is covered by handles, wholly.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Range, RangeInclusive};

use crate::{BlockId, PageId, Position, ROUNDING_BYTES};

/// Handles are not made larger than this, bytes.
const HANDLE_BYTES_MAX: u64 = 32 << 20;

/// What a tile holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Content {
    /// Nothing is mapped here.
    Unmapped,
    /// Free; the last use by the owner was before its position `since`.
    Free { since: Position },
    /// Freed, waiting: the number of the pending free.
    Pending(u64),
    /// Given out.
    Live(BlockId),
}

/// One tile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tile {
    pub(crate) bytes: u64,
    pub(crate) content: Content,
}

/// A place where physical memory is to be mapped: both numbers are multiples of the granularity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gap {
    /// First address.
    pub address: u64,
    /// Length, bytes.
    pub bytes: u64,
}

/// A handle that is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// First address.
    pub address: u64,
    /// Length, bytes.
    pub bytes: u64,
    /// The handle.
    pub page: PageId,
}

/// The sizes of the handles that fill a gap of `bytes`, first to last: powers of two times the granularity, the largest
/// first, none above 32 MiB (unless the granularity is). Mapping costs a fixed time for each handle, so few are better;
/// small ones can be given back more often.
pub fn handle_sizes(bytes: u64, granularity: u64) -> impl Iterator<Item = u64> {
    debug_assert!(bytes.is_multiple_of(granularity), "a gap is a whole number of granules");
    let mut left = bytes / granularity;
    let largest = (HANDLE_BYTES_MAX / granularity).max(1);
    std::iter::from_fn(move || {
        let granules = largest.min(1 << left.checked_ilog2()?);
        left -= granules;
        Some(granules * granularity)
    })
}

/// Ranges of addresses, their tiles and the handles mapped in them.
#[derive(Debug)]
pub(crate) struct Space {
    granularity: u64,
    /// Start → length.
    ranges: BTreeMap<u64, u64>,
    tiles: BTreeMap<u64, Tile>,
    /// Free tiles by size, then address.
    free: BTreeSet<(u64, u64)>,
    mappings: BTreeMap<u64, Mapping>,
}

impl Space {
    pub(crate) fn new(granularity: u64) -> Self {
        Space {
            granularity,
            ranges: BTreeMap::new(),
            tiles: BTreeMap::new(),
            free: BTreeSet::new(),
            mappings: BTreeMap::new(),
        }
    }

    /// Adds a reserved range, all of it unmapped.
    pub(crate) fn add_range(&mut self, address: u64, bytes: u64) {
        debug_assert!(address.is_multiple_of(self.granularity) && bytes.is_multiple_of(self.granularity));
        self.ranges.insert(address, bytes);
        self.tiles.insert(address, Tile { bytes, content: Content::Unmapped });
    }

    pub(crate) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(&address, &bytes)| (address, bytes))
    }

    pub(crate) fn tiles(&self) -> impl DoubleEndedIterator<Item = (u64, Tile)> + '_ {
        self.tiles.iter().map(|(&address, &tile)| (address, tile))
    }

    pub(crate) fn mappings(&self) -> impl Iterator<Item = Mapping> + '_ {
        self.mappings.values().copied()
    }

    pub(crate) fn tile(&self, address: u64) -> Option<Tile> {
        self.tiles.get(&address).copied()
    }

    /// Length of the largest free tile, bytes.
    pub(crate) fn largest_free(&self) -> u64 {
        self.free.last().map_or(0, |&(bytes, _)| bytes)
    }

    /// Places a block in the smallest free tile that holds it, the lowest address first.
    pub(crate) fn place(&mut self, bytes: u64, block: BlockId) -> Option<(u64, Position)> {
        let &(room, address) = self.free.range((bytes, 0)..).next()?;
        let tile = self.remove(address);
        let Content::Free { since } = tile.content else { unreachable!("the index of free tiles holds free tiles") };
        self.insert(address, bytes, Content::Live(block));
        if room > bytes {
            self.insert(address + bytes, room - bytes, Content::Free { since });
        }
        Some((address, since))
    }

    /// Changes what the tile at `address` holds, and joins it with neighbours of its new kind.
    pub(crate) fn turn(&mut self, address: u64, content: Content) {
        let tile = self.remove(address);
        self.insert_joined(address, tile.bytes, content);
    }

    /// Where memory has to be mapped so that a block of `bytes` fits: the window with the fewest unmapped bytes, the
    /// lowest address first; empty gaps are left out. No window reaches into addresses that are `taken`. `None` when no
    /// range has the room.
    pub(crate) fn plan_growth(&self, bytes: u64, taken: &[Range<u64>]) -> Option<Vec<Gap>> {
        let mut best: Option<(u64, Vec<Gap>)> = None;
        let runs = self.runs(|content| matches!(content, Content::Free { .. } | Content::Unmapped));
        for run in runs.into_iter().flat_map(|run| clear_of(run, taken)) {
            let (start, end) = bounds(&run);
            if end - start < bytes {
                continue;
            }
            let starts = run.iter().map(|&(address, _)| address);
            let ends = run.iter().map(|&(address, tile)| (address + tile.bytes).saturating_sub(bytes));
            for window in starts.chain(ends).filter(|&window| window >= start && window + bytes <= end) {
                let gaps = self.gaps(&run, window..=window + bytes - 1);
                let unmapped: u64 = gaps.iter().map(|gap| gap.bytes).sum();
                let better = best.as_ref().is_none_or(|(least, chosen)| {
                    (unmapped, gaps.first().map(|gap| gap.address)) < (*least, chosen.first().map(|gap| gap.address))
                });
                if better {
                    best = Some((unmapped, gaps));
                }
            }
        }
        best.map(|(_, gaps)| gaps)
    }

    /// The unmapped parts of a window, widened to the granularity.
    fn gaps(&self, run: &[(u64, Tile)], window: RangeInclusive<u64>) -> Vec<Gap> {
        let granule = self.granularity;
        run.iter()
            .filter(|(_, tile)| tile.content == Content::Unmapped)
            .filter_map(|&(address, tile)| {
                let first = address.max(*window.start()) / granule * granule;
                let end = (address + tile.bytes).min((window.end() + 1).next_multiple_of(granule));
                (first < end).then(|| Gap { address: first, bytes: end - first })
            })
            .collect()
    }

    /// A handle was mapped in an unmapped tile: its bytes are free, and nobody has ever used them.
    pub(crate) fn map(&mut self, mapping: Mapping) {
        let (&address, &tile) = self.tiles.range(..=mapping.address).next_back().expect("a gap lies in a tile");
        let end = address + tile.bytes;
        let mapped_end = mapping.address + mapping.bytes;
        assert!(tile.content == Content::Unmapped && mapped_end <= end, "memory is mapped only where none is");
        self.tiles.remove(&address);
        if address < mapping.address {
            self.insert(address, mapping.address - address, Content::Unmapped);
        }
        if mapped_end < end {
            self.insert(mapped_end, end - mapped_end, Content::Unmapped);
        }
        self.mappings.insert(mapping.address, mapping);
        self.insert_joined(mapping.address, mapping.bytes, Content::Free { since: Position(0) });
    }

    /// Handles that lie wholly in free tiles, with the position of the owner after which nobody uses them, in the order
    /// of addresses.
    pub(crate) fn wholly_free(&self) -> Vec<(Mapping, Position)> {
        let mut found = Vec::new();
        for (address, tile) in self.tiles() {
            let Content::Free { since } = tile.content else { continue };
            let inside = self.mappings.range(address..address + tile.bytes);
            found.extend(
                inside
                    .map(|(_, &mapping)| mapping)
                    .filter(|mapping| mapping.address + mapping.bytes <= address + tile.bytes)
                    .map(|mapping| (mapping, since)),
            );
        }
        found
    }

    /// Handles without a live block, each with the tiles that it touches, in the order of addresses.
    pub(crate) fn unoccupied(&self) -> Vec<(Mapping, Vec<Tile>)> {
        let mut found = Vec::new();
        for run in self.runs(|content| matches!(content, Content::Free { .. } | Content::Pending(_))) {
            let (start, end) = bounds(&run);
            for &mapping in self.mappings.range(start..end).map(|(_, mapping)| mapping) {
                let mapped_end = mapping.address + mapping.bytes;
                if mapped_end > end {
                    continue;
                }
                let first = run.partition_point(|&(address, tile)| address + tile.bytes <= mapping.address);
                let touched = run[first..].iter().take_while(|(address, _)| *address < mapped_end);
                found.push((mapping, touched.map(|&(_, tile)| tile).collect()));
            }
        }
        found
    }

    /// A wholly free handle was unmapped.
    pub(crate) fn unmap(&mut self, address: u64) -> Mapping {
        let mapping = self.mappings.remove(&address).expect("only a mapped handle is unmapped");
        let (&start, &tile) = self.tiles.range(..=address).next_back().expect("a handle lies in a tile");
        let (end, mapped_end) = (start + tile.bytes, address + mapping.bytes);
        let Content::Free { since } = tile.content else { unreachable!("only a wholly free handle is unmapped") };
        assert!(mapped_end <= end, "only a wholly free handle is unmapped");
        self.remove(start);
        if start < address {
            self.insert(start, address - start, Content::Free { since });
        }
        if mapped_end < end {
            self.insert(mapped_end, end - mapped_end, Content::Free { since });
        }
        self.insert_joined(address, mapping.bytes, Content::Unmapped);
        mapping
    }

    /// The longest runs of neighbouring tiles of a range whose content `fits`.
    pub(crate) fn runs(&self, fits: impl Fn(Content) -> bool) -> Vec<Vec<(u64, Tile)>> {
        let mut runs: Vec<Vec<(u64, Tile)>> = Vec::new();
        let mut open = false;
        for (address, tile) in self.tiles() {
            if !fits(tile.content) {
                open = false;
                continue;
            }
            if open && !self.ranges.contains_key(&address) {
                runs.last_mut().expect("a run is open").push((address, tile));
            } else {
                runs.push(vec![(address, tile)]);
            }
            open = true;
        }
        runs
    }

    fn remove(&mut self, address: u64) -> Tile {
        let tile = self.tiles.remove(&address).expect("the caller holds the address of a tile");
        if matches!(tile.content, Content::Free { .. }) {
            self.free.remove(&(tile.bytes, address));
        }
        tile
    }

    fn insert(&mut self, address: u64, bytes: u64, content: Content) {
        if matches!(content, Content::Free { .. }) {
            self.free.insert((bytes, address));
        }
        self.tiles.insert(address, Tile { bytes, content });
    }

    fn insert_joined(&mut self, mut address: u64, mut bytes: u64, mut content: Content) {
        let before = self.tiles.range(..address).next_back().map(|(&at, &tile)| (at, tile));
        if let Some((at, tile)) = before
            && at + tile.bytes == address
            && !self.ranges.contains_key(&address)
            && let Some(joined) = join(tile.content, content)
        {
            self.remove(at);
            (address, bytes, content) = (at, tile.bytes + bytes, joined);
        }
        let next = address + bytes;
        if let Some(tile) = self.tile(next)
            && !self.ranges.contains_key(&next)
            && let Some(joined) = join(content, tile.content)
        {
            self.remove(next);
            (bytes, content) = (bytes + tile.bytes, joined);
        }
        self.insert(address, bytes, content);
    }

    /// Checks everything that the module's documentation says; the first broken rule in words.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (&start, &length) in &self.ranges {
            self.check_range(start, length)?;
        }
        let free: BTreeSet<(u64, u64)> = self
            .tiles()
            .filter(|(_, tile)| matches!(tile.content, Content::Free { .. }))
            .map(|(address, tile)| (tile.bytes, address))
            .collect();
        if free != self.free {
            return Err("the index of free tiles does not list the free tiles".into());
        }
        let unmapped: u64 = self.tiles().filter(|(_, t)| t.content == Content::Unmapped).map(|(_, t)| t.bytes).sum();
        let reserved: u64 = self.ranges.values().sum();
        let mapped: u64 = self.mappings().map(|mapping| mapping.bytes).sum();
        if unmapped + mapped != reserved {
            return Err(format!("{mapped} mapped and {unmapped} unmapped bytes in {reserved} reserved"));
        }
        Ok(())
    }

    fn check_range(&self, start: u64, length: u64) -> Result<(), String> {
        let mut expected = start;
        let mut before: Option<Content> = None;
        for (address, tile) in self.tiles.range(start..start + length).map(|(&address, &tile)| (address, tile)) {
            if address != expected {
                return Err(format!("a tile starts at {address:#x}, the one before ends at {expected:#x}"));
            }
            if tile.bytes == 0 || !address.is_multiple_of(ROUNDING_BYTES) {
                return Err(format!("the tile at {address:#x} ({} bytes) breaks the rounding", tile.bytes));
            }
            if before.is_some_and(|content| join(content, tile.content).is_some()) {
                return Err(format!("the tile at {address:#x} should be joined with the one before"));
            }
            let aligned = address.is_multiple_of(self.granularity) && tile.bytes.is_multiple_of(self.granularity);
            if tile.content == Content::Unmapped && !aligned {
                return Err(format!("the unmapped tile at {address:#x} is not a whole number of granules"));
            }
            if tile.content == Content::Unmapped && self.mappings.range(address..address + tile.bytes).next().is_some()
            {
                return Err(format!("a handle is mapped in the unmapped tile at {address:#x}"));
            }
            (expected, before) = (address + tile.bytes, Some(tile.content));
        }
        if expected != start + length {
            return Err(format!("the tiles end at {expected:#x}, the range at {:#x}", start + length));
        }
        Ok(())
    }
}

/// What two neighbours become, if they are to be one tile.
fn join(left: Content, right: Content) -> Option<Content> {
    match (left, right) {
        (Content::Unmapped, Content::Unmapped) => Some(Content::Unmapped),
        (Content::Free { since: a }, Content::Free { since: b }) => Some(Content::Free { since: a.max(b) }),
        _ => None,
    }
}

/// What is left of a run without the addresses that are `taken`, which ascend.
fn clear_of(run: Vec<(u64, Tile)>, taken: &[Range<u64>]) -> Vec<Vec<(u64, Tile)>> {
    if taken.is_empty() {
        return vec![run];
    }
    let mut left = vec![Vec::new()];
    for (start, tile) in run {
        let (mut at, end) = (start, start + tile.bytes);
        for other in taken.iter().filter(|other| other.start < end && start < other.end) {
            if at < other.start {
                left.last_mut().expect("a part is open").push((at, Tile { bytes: other.start - at, ..tile }));
            }
            left.push(Vec::new());
            at = other.end;
        }
        if at < end {
            left.last_mut().expect("a part is open").push((at, Tile { bytes: end - at, ..tile }));
        }
    }
    left.retain(|part| !part.is_empty());
    left
}

fn bounds(run: &[(u64, Tile)]) -> (u64, u64) {
    let (first, (last, tile)) = (run[0].0, run[run.len() - 1]);
    (first, last + tile.bytes)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const GRANULE: u64 = 4096;

    fn space_of(granules: u64) -> Space {
        let mut space = Space::new(GRANULE);
        space.add_range(GRANULE, granules * GRANULE);
        space
    }

    fn fill(space: &mut Space, gaps: &[Gap]) {
        for gap in gaps {
            let mapping = Mapping { address: gap.address, bytes: gap.bytes, page: PageId(gap.address) };
            space.map(mapping);
        }
        space.check().unwrap();
    }

    #[test]
    fn handles_are_few_and_none_is_too_large() {
        let mib = 1 << 20;
        let sizes: Vec<u64> = handle_sizes(78 * mib, 2 * mib).map(|bytes| bytes / mib).collect();
        assert_eq!(sizes, [32, 32, 8, 4, 2]);
        assert_eq!(handle_sizes(64 * mib, 64 * mib).collect::<Vec<_>>(), [64 * mib]);
        assert_eq!(handle_sizes(0, 2 * mib).count(), 0);
    }

    #[test]
    fn growth_extends_the_free_tail_instead_of_starting_anew() {
        let mut space = space_of(16);
        fill(&mut space, &[Gap { address: GRANULE, bytes: 2 * GRANULE }]);
        assert!(space.place(512, BlockId(0)).is_some());
        let gaps = space.plan_growth(3 * GRANULE, &[]).unwrap();
        assert_eq!(gaps, [Gap { address: 3 * GRANULE, bytes: 2 * GRANULE }]);
        fill(&mut space, &gaps);
        assert_eq!(space.place(3 * GRANULE, BlockId(1)), Some((GRANULE + 512, Position(0))));
    }

    #[test]
    fn growth_closes_the_smallest_hole() {
        let mut space = space_of(16);
        let gaps = [Gap { address: GRANULE, bytes: 2 * GRANULE }, Gap { address: 4 * GRANULE, bytes: 2 * GRANULE }];
        fill(&mut space, &gaps);
        assert_eq!(space.plan_growth(5 * GRANULE, &[]).unwrap(), [Gap { address: 3 * GRANULE, bytes: GRANULE }]);
        assert_eq!(space.plan_growth(17 * GRANULE, &[]), None);
    }

    #[test]
    fn growth_keeps_off_addresses_that_are_taken() {
        let at = |granules: Range<u64>| granules.start * GRANULE..granules.end * GRANULE;
        let mut space = space_of(16);
        fill(&mut space, &[Gap { address: GRANULE, bytes: 2 * GRANULE }]);
        let gap = |address: u64, granules: u64| Gap { address: address * GRANULE, bytes: granules * GRANULE };
        let plan = |granules: u64, taken: &[Range<u64>]| space.plan_growth(granules * GRANULE, taken);
        assert_eq!(plan(4, &[at(5..6)]), Some(vec![gap(3, 2)]), "right up to it");
        assert_eq!(plan(4, &[at(4..5)]), Some(vec![gap(5, 4)]), "behind it");
        assert_eq!(plan(4, &[at(3..4), at(8..10)]), Some(vec![gap(4, 4)]), "between two");
        assert_eq!(plan(7, &[at(3..4), at(8..10)]), Some(vec![gap(10, 7)]), "behind both");
        assert_eq!(plan(8, &[at(3..4), at(8..10)]), None);
        assert_eq!(plan(4, &[at(0..1), at(17..18)]), Some(vec![gap(3, 2)]), "other ranges do not matter");
    }

    #[test]
    fn a_free_handle_between_live_neighbours_can_leave() {
        let mut space = space_of(4);
        for granule in 1..=4 {
            fill(&mut space, &[Gap { address: granule * GRANULE, bytes: GRANULE }]);
        }
        for block in 0..4 {
            space.place(GRANULE, BlockId(block)).unwrap();
        }
        space.turn(2 * GRANULE, Content::Free { since: Position(7) });
        let free = space.wholly_free();
        assert_eq!(free.len(), 1);
        assert_eq!((free[0].0.address, free[0].1), (2 * GRANULE, Position(7)));
        space.unmap(2 * GRANULE);
        space.check().unwrap();
        assert_eq!(space.largest_free(), 0);
    }

    #[test]
    fn neighbouring_ranges_are_never_joined() {
        let [low, high] = [1, 3].map(|granule| Gap { address: granule * GRANULE, bytes: 2 * GRANULE });
        for gaps in [[low, high], [high, low]] {
            let mut space = space_of(2);
            space.add_range(high.address, high.bytes);
            fill(&mut space, &gaps);
            assert_eq!(space.largest_free(), 2 * GRANULE);
            assert_eq!(space.plan_growth(3 * GRANULE, &[]), None, "no window spans two ranges");
        }
    }

    #[test]
    fn a_handle_that_a_live_block_reaches_into_is_occupied() {
        for freed in [1, 2] {
            let mut space = space_of(2);
            fill(&mut space, &[Gap { address: GRANULE, bytes: 2 * GRANULE }]);
            for block in 0..2 {
                space.place(GRANULE, BlockId(block)).unwrap();
            }
            space.turn(freed * GRANULE, Content::Pending(0));
            assert_eq!(space.unoccupied(), []);
        }
    }

    #[test]
    fn free_memory_is_as_late_as_its_latest_part() {
        const QUARTER: u64 = GRANULE / 4;
        let mut space = space_of(1);
        fill(&mut space, &[Gap { address: GRANULE, bytes: GRANULE }]);
        for block in 0..4 {
            space.place(QUARTER, BlockId(block)).unwrap();
        }
        for (quarter, position) in [(1, 9), (0, 3), (2, 5)] {
            space.turn(GRANULE + quarter * QUARTER, Content::Free { since: Position(position) });
        }
        assert_eq!(space.place(QUARTER, BlockId(4)), Some((GRANULE, Position(9))), "joined");
        assert_eq!(space.place(2 * QUARTER, BlockId(5)), Some((GRANULE + QUARTER, Position(9))), "what was left");
    }
}
