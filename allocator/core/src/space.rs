//! Address ranges cut into tiles: the room in which blocks are placed.
//!
//! The tiles of a range lie side by side, without gap or overlap. Neighbours that are both free, or both unmapped, are
//! one tile. Unmapped tiles start and end on the granularity of the device; the bounds of handles are on it too, and a
//! handle never spans two ranges. A tile that is neither unmapped nor coming is covered by handles, wholly.
//!
//! Unmapped tiles may contain *ghosts*: old mappings of handles that have moved elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use crate::window::{Ghost, Piece, Window};
use crate::{BlockId, PageId, Position, ROUNDING_BYTES};

/// What a tile holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Content {
    /// Nothing of use is mapped here.
    Unmapped,
    /// A handle is being mapped here, for a window.
    Coming,
    /// Free, and kept for a window.
    Held { since: Position },
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
    /// Old mappings, in unmapped tiles. Some may have been removed since.
    ghosts: BTreeMap<u64, Ghost>,
}

impl Space {
    pub(crate) fn new(granularity: u64) -> Self {
        Space {
            granularity,
            ranges: BTreeMap::new(),
            tiles: BTreeMap::new(),
            free: BTreeSet::new(),
            mappings: BTreeMap::new(),
            ghosts: BTreeMap::new(),
        }
    }

    pub(crate) fn granularity(&self) -> u64 {
        self.granularity
    }

    /// Adds a reserved range, all of it unmapped.
    pub(crate) fn add_range(&mut self, address: u64, bytes: u64) {
        debug_assert!(address.is_multiple_of(self.granularity) && bytes.is_multiple_of(self.granularity));
        self.ranges.insert(address, bytes);
        self.tiles.insert(address, Tile { bytes, content: Content::Unmapped });
    }

    /// Whether an address lies in one of the ranges.
    pub(crate) fn has(&self, address: u64) -> bool {
        self.ranges.range(..=address).next_back().is_some_and(|(&start, &bytes)| address < start + bytes)
    }

    /// The longest stretch of addresses without any mapping, as far as the heap knows, bytes.
    pub(crate) fn largest_hole(&self) -> u64 {
        let mut largest = 0;
        for (address, tile) in self.tiles().filter(|(_, tile)| tile.content == Content::Unmapped) {
            let mut from = address;
            for ghost in self.ghosts_in(address, address + tile.bytes) {
                largest = largest.max(ghost.address - from);
                from = ghost.address + ghost.bytes;
            }
            largest = largest.max(address + tile.bytes - from);
        }
        largest
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

    /// The handles that begin in `start..end`.
    pub(crate) fn mappings_in(&self, start: u64, end: u64) -> impl Iterator<Item = Mapping> + '_ {
        self.mappings.range(start..end).map(|(_, &mapping)| mapping)
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

    /// The old mappings that begin in `start..end`.
    pub(crate) fn ghosts_in(&self, start: u64, end: u64) -> impl Iterator<Item = Ghost> + '_ {
        self.ghosts.range(start..end).map(|(_, &ghost)| ghost)
    }

    /// Keeps a window: its free tiles are held, what it maps is coming, and what it removes is forgotten.
    pub(crate) fn hold(&mut self, window: &Window) {
        for (address, tile) in self.overlapping(window.address, window.bytes) {
            let Content::Free { since } = tile.content else { continue };
            let start = address.max(window.address);
            let end = (address + tile.bytes).min(window.address + window.bytes);
            self.carve(start, end - start, Content::Held { since });
        }
        for ghost in &window.removed {
            self.ghosts.remove(&ghost.address);
        }
        for piece in &window.pieces {
            let (to, bytes) = piece.place();
            self.forget_ghosts(to, bytes);
            self.carve(to, bytes, Content::Coming);
        }
    }

    /// A handle that was coming is mapped.
    pub(crate) fn arrive(&mut self, mapping: Mapping, since: Position) {
        let tile = self.tile(mapping.address).filter(|tile| tile.bytes == mapping.bytes);
        assert!(tile.is_some_and(|tile| tile.content == Content::Coming), "only what is coming arrives");
        self.mappings.insert(mapping.address, mapping);
        self.turn(mapping.address, Content::Free { since });
    }

    /// Lets a window go: what was held is free again, and what has not arrived is not coming any more.
    pub(crate) fn let_go(&mut self, window: &Window) {
        for (address, tile) in self.overlapping(window.address, window.bytes) {
            if let Content::Held { since } = tile.content {
                self.turn(address, Content::Free { since });
            }
        }
        for piece in &window.pieces {
            let (to, bytes) = piece.place();
            if self.tile(to).is_some_and(|tile| tile.content == Content::Coming && tile.bytes == bytes) {
                self.turn(to, Content::Unmapped);
                if let Piece::Return { spare, to } = *piece {
                    self.add_ghost(Ghost { address: to, bytes, page: spare.page });
                }
            }
        }
        for &ghost in &window.removed {
            let (start, tile) = self.containing(ghost.address);
            if tile.content == Content::Unmapped && ghost.address + ghost.bytes <= start + tile.bytes {
                self.add_ghost(ghost);
            }
        }
    }

    /// There is a mapping in an unmapped tile. Those that are known there are gone.
    pub(crate) fn add_ghost(&mut self, ghost: Ghost) {
        self.forget_ghosts(ghost.address, ghost.bytes);
        self.ghosts.insert(ghost.address, ghost);
    }

    fn forget_ghosts(&mut self, address: u64, bytes: u64) {
        let before = self.ghosts.range(..address).next_back().map(|(_, &ghost)| ghost);
        let reaching = before.filter(|ghost| ghost.address + ghost.bytes > address);
        let inside: Vec<u64> = self.ghosts.range(address..address + bytes).map(|(&at, _)| at).collect();
        for at in reaching.map(|ghost| ghost.address).into_iter().chain(inside) {
            self.ghosts.remove(&at);
        }
    }

    /// Places a block in a window whose handles have all arrived.
    pub(crate) fn settle(&mut self, window: &Window, block: BlockId) -> Position {
        self.let_go(window);
        let (_, tile) = self.containing(window.address);
        let Content::Free { since } = tile.content else { unreachable!("a window that is whole is free") };
        self.carve(window.address, window.bytes, Content::Live(block));
        since
    }

    /// Takes a wholly free handle out; its mapping stays behind as a ghost. `None` when it is not wholly free any more.
    pub(crate) fn take(&mut self, mapping: Mapping) -> Option<Position> {
        let known = self.mappings.get(&mapping.address) == Some(&mapping);
        let (start, tile) = known.then(|| self.containing(mapping.address))?;
        let Content::Free { since } = tile.content else { return None };
        if start + tile.bytes < mapping.address + mapping.bytes {
            return None;
        }
        self.unmap(mapping.address);
        let Mapping { address, bytes, page } = mapping;
        self.ghosts.insert(address, Ghost { address, bytes, page });
        Some(since)
    }

    /// Puts a handle that was [taken](Space::take) back. Whether its old mapping is still there.
    pub(crate) fn put_back(&mut self, mapping: Mapping, since: Position) -> bool {
        let known = self.ghosts.remove(&mapping.address).is_some_and(|ghost| ghost.page == mapping.page);
        if known {
            self.mappings.insert(mapping.address, mapping);
            self.carve(mapping.address, mapping.bytes, Content::Free { since });
        }
        known
    }

    /// Handles that lie wholly in free tiles, with the position of the owner after which nobody uses them, in the order
    /// of addresses.
    pub(crate) fn wholly_free(&self) -> Vec<(Mapping, Position)> {
        let mut tiles: Vec<(u64, u64)> = self.free.range((self.granularity, 0)..).map(|&(b, a)| (a, b)).collect();
        tiles.sort_unstable();
        let mut found = Vec::new();
        for (address, bytes) in tiles {
            let Some(Tile { content: Content::Free { since }, .. }) = self.tile(address) else {
                unreachable!("the index of free tiles holds free tiles")
            };
            let inside = self.mappings.range(address..address + bytes).map(|(_, &mapping)| mapping);
            let whole = inside.filter(|mapping| mapping.address + mapping.bytes <= address + bytes);
            found.extend(whole.map(|mapping| (mapping, since)));
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
        let (_, tile) = self.containing(address);
        assert!(matches!(tile.content, Content::Free { .. }), "only a wholly free handle is unmapped");
        self.carve(address, mapping.bytes, Content::Unmapped);
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

    /// The tile that `address` lies in, and where it starts.
    fn containing(&self, address: u64) -> (u64, Tile) {
        let found = self.tiles.range(..=address).next_back().map(|(&start, &tile)| (start, tile));
        found.filter(|(start, tile)| address < start + tile.bytes).expect("the address lies in a range")
    }

    /// The tiles that touch a stretch of addresses.
    fn overlapping(&self, address: u64, bytes: u64) -> Vec<(u64, Tile)> {
        let (first, _) = self.containing(address);
        self.tiles.range(first..address + bytes).map(|(&start, &tile)| (start, tile)).collect()
    }

    /// The run of free and unmapped tiles around `address`.
    pub(crate) fn run_around(&self, address: u64) -> Vec<(u64, Tile)> {
        let fits = |content| matches!(content, Content::Free { .. } | Content::Unmapped);
        let (start, _) = self.containing(address);
        let mut first = start;
        for (&before, tile) in self.tiles.range(..start).rev() {
            if self.ranges.contains_key(&first) || before + tile.bytes != first || !fits(tile.content) {
                break;
            }
            first = before;
        }
        let behind = self.tiles.range(first..).map(|(&at, &tile)| (at, tile));
        behind.take_while(|&(at, tile)| fits(tile.content) && (at == first || !self.ranges.contains_key(&at))).collect()
    }

    /// Changes what a part of one tile holds, and joins it with neighbours of its new kind.
    fn carve(&mut self, address: u64, bytes: u64, content: Content) {
        let (start, tile) = self.containing(address);
        let (end, carved_end) = (start + tile.bytes, address + bytes);
        assert!(carved_end <= end, "what is carved lies in one tile");
        self.remove(start);
        if start < address {
            self.insert(start, address - start, tile.content);
        }
        if carved_end < end {
            self.insert(carved_end, end - carved_end, tile.content);
        }
        self.insert_joined(address, bytes, content);
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
        let is_unmapped = |content| matches!(content, Content::Unmapped | Content::Coming);
        let unmapped: u64 = self.tiles().filter(|(_, t)| is_unmapped(t.content)).map(|(_, t)| t.bytes).sum();
        let reserved: u64 = self.ranges.values().sum();
        let mapped: u64 = self.mappings().map(|mapping| mapping.bytes).sum();
        if unmapped + mapped != reserved {
            return Err(format!("{mapped} mapped and {unmapped} unmapped bytes in {reserved} reserved"));
        }
        let mut clear = 0;
        for ghost in self.ghosts.values() {
            let (start, tile) = self.containing(ghost.address);
            let inside = ghost.address + ghost.bytes <= start + tile.bytes && tile.content == Content::Unmapped;
            if !inside || ghost.address < clear {
                return Err(format!("the old mapping at {:#x} is in the way of something", ghost.address));
            }
            clear = ghost.address + ghost.bytes;
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
            if matches!(tile.content, Content::Unmapped | Content::Coming) && !aligned {
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

pub(crate) fn bounds(run: &[(u64, Tile)]) -> (u64, u64) {
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

    /// Maps handles of so many granules one after the other, each at the granule that its name says.
    fn fill(space: &mut Space, handles: &[(u64, u64)]) {
        for &(granule, granules) in handles {
            let (to, bytes) = (granule * GRANULE, granules * GRANULE);
            let window = Window { address: to, bytes, removed: vec![], pieces: vec![Piece::Create { to, bytes }] };
            space.hold(&window);
            space.arrive(Mapping { address: to, bytes, page: PageId(to) }, Position(0));
            space.let_go(&window);
        }
        space.check().unwrap();
    }

    #[test]
    fn a_free_handle_between_live_neighbours_can_leave() {
        let mut space = space_of(4);
        for granule in 1..=4 {
            fill(&mut space, &[(granule, 1)]);
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
        let [low, high] = [(1, 2), (3, 2)];
        for handles in [[low, high], [high, low]] {
            let mut space = space_of(2);
            space.add_range(3 * GRANULE, 2 * GRANULE);
            fill(&mut space, &handles);
            assert_eq!((space.largest_free(), space.largest_hole()), (2 * GRANULE, 0));
            assert_eq!(space.run_around(3 * GRANULE).len(), 1);
        }
    }

    #[test]
    fn a_handle_that_a_live_block_reaches_into_is_occupied() {
        for freed in [1, 2] {
            let mut space = space_of(2);
            fill(&mut space, &[(1, 2)]);
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
        fill(&mut space, &[(1, 1)]);
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
