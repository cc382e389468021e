//! Address ranges cut into tiles: the room in which blocks are placed.
//!
//! Neighbouring tiles that are both free, or both unmapped, are one tile. Unmapped tiles start and end on the granularity of
//! the device; the bounds of handles are on it too, and a handle never spans two ranges. A tile that is neither unmapped
//! nor coming is covered by handles, wholly.
//!
//! Unmapped tiles may contain *ghosts*: old mappings of handles that have moved elsewhere.

use std::collections::BTreeMap;

use crate::tiles::{Content, Tile, TileId, Tiles};
use crate::trail::{Step, Trail};
use crate::window::{Ghost, Piece, Window};
use crate::{PageId, Position};

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

/// A handle that is mapped, and what is known of its uses.
#[derive(Clone, Copy, Debug)]
struct Mapped {
    mapping: Mapping,
    /// The position of the owner after which nobody uses any of it, as far as the trail was followed. Says nothing of the
    /// parts that are in use.
    last: Position,
}

/// Ranges of addresses, their tiles and the handles mapped in them.
#[derive(Debug)]
pub(crate) struct Space {
    granularity: u64,
    tiles: Tiles,
    /// The block that was freed last, if nothing has been asked for since: it is given whole to a request of its size.
    warm: Option<TileId>,
    mappings: BTreeMap<u64, Mapped>,
    trail: Trail,
    /// Old mappings, in unmapped tiles. Some may have been removed since.
    ghosts: BTreeMap<u64, Ghost>,
}

impl Space {
    pub(crate) fn new(granularity: u64) -> Self {
        Space {
            granularity,
            tiles: Tiles::new(granularity),
            warm: None,
            mappings: BTreeMap::new(),
            trail: Trail::default(),
            ghosts: BTreeMap::new(),
        }
    }

    pub(crate) fn granularity(&self) -> u64 {
        self.granularity
    }

    /// Adds a reserved range, all of it unmapped.
    pub(crate) fn add_range(&mut self, address: u64, bytes: u64) {
        debug_assert!(address.is_multiple_of(self.granularity) && bytes.is_multiple_of(self.granularity));
        self.tiles.add_range(address, bytes);
    }

    /// Whether an address lies in one of the ranges.
    pub(crate) fn has(&self, address: u64) -> bool {
        self.tiles.has(address)
    }

    /// The longest stretch of addresses without any mapping, as far as the heap knows, bytes.
    pub(crate) fn largest_hole(&self) -> u64 {
        let mut largest = 0;
        for (address, tile) in self.tiles.holes().map(|hole| self.tiles.get(hole)) {
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
        self.tiles.ranges()
    }

    /// All tiles, in the order of addresses.
    pub(crate) fn tiles(&self) -> impl Iterator<Item = (u64, Tile)> + '_ {
        self.tiles.by_range().flatten()
    }

    /// All tiles with their numbers, in no order.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (TileId, u64, Tile)> + '_ {
        self.tiles.all()
    }

    /// The tile of a number, and its address.
    pub(crate) fn find(&self, tile: TileId) -> Option<(u64, Tile)> {
        self.tiles.find(tile)
    }

    pub(crate) fn mappings(&self) -> impl Iterator<Item = Mapping> + '_ {
        self.mappings.values().map(|mapped| mapped.mapping)
    }

    /// The handles that begin in `start..end`.
    pub(crate) fn mappings_in(&self, start: u64, end: u64) -> impl Iterator<Item = Mapping> + '_ {
        self.mappings.range(start..end).map(|(_, mapped)| mapped.mapping)
    }

    /// The tile that starts at an address.
    pub(crate) fn tile(&self, address: u64) -> Option<(TileId, Tile)> {
        self.tiles.at(address).map(|tile| (tile, self.tiles.get(tile).1))
    }

    /// Length of the largest free tile, bytes.
    pub(crate) fn largest_free(&self) -> u64 {
        self.tiles.largest_free()
    }

    /// Places a block: in the one that was freed last if it has the size, else in the smallest free tile that holds it, the
    /// lowest address first.
    #[inline(always)]
    pub(crate) fn place(&mut self, bytes: u64, requested: u64) -> Option<(TileId, u64, Position)> {
        if let Some(tile) = self.warm {
            if let (address, Tile { bytes: known, content: Content::Warm { since } }) = self.tiles.get(tile)
                && known == bytes
            {
                self.warm = None;
                self.tiles.set(tile, Content::Live { requested });
                return Some((tile, address, since));
            }
            self.cool();
        }
        self.place_cold(bytes, requested)
    }

    #[inline(never)]
    fn place_cold(&mut self, bytes: u64, requested: u64) -> Option<(TileId, u64, Position)> {
        let tile = self.tiles.best_free(bytes)?;
        let (address, found) = self.tiles.get(tile);
        let Content::Free { since } = found.content else { unreachable!("the index of free tiles holds free tiles") };
        self.tiles.split_off(tile, bytes, Content::Live { requested });
        Some((tile, address, since))
    }

    /// A block is free whose last use was before a position of the owner.
    #[inline]
    pub(crate) fn free(&mut self, tile: TileId, since: Position) {
        self.cool();
        self.tiles.set(tile, Content::Warm { since });
        self.warm = Some(tile);
    }

    /// Makes the block that was freed last free like any other memory: before free memory is looked at.
    #[inline]
    pub(crate) fn cool(&mut self) {
        let Some(tile) = self.warm.take() else { return };
        let (address, Tile { bytes, content: Content::Warm { since } }) = self.tiles.get(tile) else {
            unreachable!("what was freed last stays as it is until it is used or cooled")
        };
        self.trail.leave(Step { address, bytes, since });
        self.tiles.turn(tile, Content::Free { since });
    }

    /// Changes what a tile holds, and joins it with neighbours of its new kind.
    pub(crate) fn turn(&mut self, tile: TileId, content: Content) {
        if let Content::Free { since } = content {
            let (address, Tile { bytes, .. }) = self.tiles.get(tile);
            self.trail.leave(Step { address, bytes, since });
        }
        self.tiles.turn(tile, content);
    }

    /// Brings what is known of the uses of each handle up to date.
    pub(crate) fn follow_trail(&mut self) {
        self.cool();
        for Step { address, bytes, since } in self.trail.follow() {
            let before = self.mappings.range_mut(..=address).next_back().map(|(_, mapped)| mapped);
            let reaching = before.filter(|Mapped { mapping, .. }| mapping.address + mapping.bytes > address);
            if let Some(mapped) = reaching {
                mapped.last = mapped.last.max(since);
            }
            for (_, mapped) in self.mappings.range_mut(address + 1..address + bytes) {
                mapped.last = mapped.last.max(since);
            }
        }
    }

    /// The position of the owner after which nobody uses a wholly free handle that lies in a tile of this age: the trail was
    /// followed.
    fn last_use(&self, mapped: &Mapped, tile: Position) -> Position {
        tile.min(mapped.last.max(self.trail.forgotten()))
    }

    /// The old mappings that begin in `start..end`.
    pub(crate) fn ghosts_in(&self, start: u64, end: u64) -> impl Iterator<Item = Ghost> + '_ {
        self.ghosts.range(start..end).map(|(_, &ghost)| ghost)
    }

    /// Keeps a window: its free tiles are held, what it maps is coming, and what it removes is forgotten.
    pub(crate) fn hold(&mut self, window: &Window) {
        for tile in self.overlapping(window.address, window.bytes) {
            let (address, tile) = self.tiles.get(tile);
            let Content::Free { since } = tile.content else { continue };
            let start = address.max(window.address);
            let end = (address + tile.bytes).min(window.address + window.bytes);
            self.tiles.carve(start, end - start, Content::Held { since });
        }
        for ghost in &window.removed {
            self.ghosts.remove(&ghost.address);
        }
        for piece in &window.pieces {
            let (to, bytes) = piece.place();
            self.forget_ghosts(to, bytes);
            self.tiles.carve(to, bytes, Content::Coming);
        }
    }

    /// A handle that was coming is mapped.
    pub(crate) fn arrive(&mut self, mapping: Mapping, since: Position) {
        let coming = |tile: &Tile| tile.content == Content::Coming && tile.bytes == mapping.bytes;
        let tile = self.tile(mapping.address).filter(|(_, tile)| coming(tile));
        let (tile, _) = tile.expect("only what is coming arrives");
        self.mappings.insert(mapping.address, Mapped { mapping, last: since });
        self.tiles.turn(tile, Content::Free { since });
    }

    /// Lets a window go: what was held is free again, and what has not arrived is not coming any more.
    pub(crate) fn let_go(&mut self, window: &Window) {
        let inside = self.overlapping(window.address, window.bytes);
        let held = |&tile: &TileId| match self.tiles.get(tile).1.content {
            Content::Held { since } => Some((tile, since)),
            _ => None,
        };
        for (tile, since) in inside.iter().filter_map(held).collect::<Vec<_>>() {
            self.tiles.turn(tile, Content::Free { since });
        }
        for piece in &window.pieces {
            let (to, bytes) = piece.place();
            let coming = |tile: &Tile| tile.content == Content::Coming && tile.bytes == bytes;
            if let Some((tile, _)) = self.tile(to).filter(|(_, tile)| coming(tile)) {
                self.tiles.turn(tile, Content::Unmapped);
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
    pub(crate) fn settle(&mut self, window: &Window, requested: u64) -> (TileId, Position) {
        self.let_go(window);
        let (_, tile) = self.containing(window.address);
        let Content::Free { since } = tile.content else { unreachable!("a window that is whole is free") };
        self.tiles.carve(window.address, window.bytes, Content::Live { requested });
        (self.tiles.at(window.address).expect("it was just carved"), since)
    }

    /// Takes a wholly free handle out; its mapping stays behind as a ghost. `None` when it is not wholly free any more.
    pub(crate) fn take(&mut self, mapping: Mapping) -> Option<Position> {
        self.follow_trail();
        let mapped = *self.mappings.get(&mapping.address).filter(|mapped| mapped.mapping == mapping)?;
        let (start, tile) = self.containing(mapping.address);
        let Content::Free { since } = tile.content else { return None };
        if start + tile.bytes < mapping.address + mapping.bytes {
            return None;
        }
        let since = self.last_use(&mapped, since);
        self.unmap(mapping.address);
        let Mapping { address, bytes, page } = mapping;
        self.ghosts.insert(address, Ghost { address, bytes, page });
        Some(since)
    }

    /// Puts a handle that was [taken](Space::take) back. Whether its old mapping is still there.
    pub(crate) fn put_back(&mut self, mapping: Mapping, since: Position) -> bool {
        let known = self.ghosts.remove(&mapping.address).is_some_and(|ghost| ghost.page == mapping.page);
        if known {
            self.mappings.insert(mapping.address, Mapped { mapping, last: since });
            self.tiles.carve(mapping.address, mapping.bytes, Content::Free { since });
        }
        known
    }

    /// Handles that lie wholly in free tiles, with the position of the owner after which nobody uses them, in the order
    /// of addresses.
    pub(crate) fn wholly_free(&mut self) -> Vec<(Mapping, Position)> {
        self.follow_trail();
        let mut tiles: Vec<(u64, Tile)> =
            self.tiles.free_from(self.granularity).into_iter().map(|tile| self.tiles.get(tile)).collect();
        tiles.sort_unstable_by_key(|&(address, _)| address);
        let mut found = Vec::new();
        for (address, tile) in tiles {
            let Content::Free { since } = tile.content else {
                unreachable!("the index of free tiles holds free tiles")
            };
            let end = address + tile.bytes;
            let inside = self.mappings.range(address..end).map(|(_, mapped)| mapped);
            let whole = inside.filter(|Mapped { mapping, .. }| mapping.address + mapping.bytes <= end);
            found.extend(whole.map(|mapped| (mapped.mapping, self.last_use(mapped, since))));
        }
        found
    }

    /// Handles without a live block, each with the tiles that it touches, in the order of addresses. Free tiles are as old
    /// there as their part of the handle is known to be.
    pub(crate) fn unoccupied(&mut self) -> Vec<(Mapping, Vec<Tile>)> {
        self.follow_trail();
        let mut found = Vec::new();
        for run in self.runs(|content| matches!(content, Content::Free { .. } | Content::Pending(_))) {
            let (start, end) = bounds(&run);
            for mapped in self.mappings.range(start..end).map(|(_, mapped)| mapped) {
                let mapping = mapped.mapping;
                let mapped_end = mapping.address + mapping.bytes;
                if mapped_end > end {
                    continue;
                }
                let first = run.partition_point(|&(address, tile)| address + tile.bytes <= mapping.address);
                let touched = run[first..].iter().take_while(|(address, _)| *address < mapped_end);
                found.push((mapping, touched.map(|&(_, tile)| self.as_old_as(mapped, tile)).collect()));
            }
        }
        found
    }

    /// A tile that touches a handle; if it is free, as old as that part of it.
    fn as_old_as(&self, mapped: &Mapped, tile: Tile) -> Tile {
        match tile.content {
            Content::Free { since } => Tile { content: Content::Free { since: self.last_use(mapped, since) }, ..tile },
            _ => tile,
        }
    }

    /// A wholly free handle was unmapped.
    pub(crate) fn unmap(&mut self, address: u64) -> Mapping {
        let Mapped { mapping, .. } = self.mappings.remove(&address).expect("only a mapped handle is unmapped");
        let (_, tile) = self.containing(address);
        assert!(matches!(tile.content, Content::Free { .. }), "only a wholly free handle is unmapped");
        self.tiles.carve(address, mapping.bytes, Content::Unmapped);
        mapping
    }

    /// The longest runs of neighbouring tiles of a range whose content `fits`.
    pub(crate) fn runs(&self, fits: impl Fn(Content) -> bool) -> Vec<Vec<(u64, Tile)>> {
        let mut runs: Vec<Vec<(u64, Tile)>> = Vec::new();
        for tiles in self.tiles.by_range() {
            let mut open = false;
            for (address, tile) in tiles {
                match (fits(tile.content), open) {
                    (true, true) => runs.last_mut().expect("a run is open").push((address, tile)),
                    (true, false) => runs.push(vec![(address, tile)]),
                    (false, _) => {}
                }
                open = fits(tile.content);
            }
        }
        runs
    }

    /// The runs of free and unmapped tiles with something unmapped in them, in the order of addresses.
    pub(crate) fn runs_with_holes(&self) -> Vec<Vec<(u64, Tile)>> {
        let mut runs: Vec<Vec<(u64, Tile)>> = Vec::new();
        for hole in self.tiles.holes() {
            let (address, _) = self.tiles.get(hole);
            if runs.last().is_none_or(|run| bounds(run).1 <= address) {
                runs.push(self.run_around(address));
            }
        }
        runs
    }

    /// The tile that `address` lies in, and where it starts.
    fn containing(&self, address: u64) -> (u64, Tile) {
        self.tiles.get(self.tiles.containing(address).expect("the address lies in a range"))
    }

    /// The tiles that touch a stretch of addresses.
    fn overlapping(&self, address: u64, bytes: u64) -> Vec<TileId> {
        let first = self.tiles.containing(address).expect("the address lies in a range");
        self.tiles.from(first).take_while(|&tile| self.tiles.get(tile).0 < address + bytes).collect()
    }

    /// The run of free and unmapped tiles around `address`.
    pub(crate) fn run_around(&self, address: u64) -> Vec<(u64, Tile)> {
        let fits = |&tile: &TileId| matches!(self.tiles.get(tile).1.content, Content::Free { .. } | Content::Unmapped);
        let at = self.tiles.containing(address).expect("the address lies in a range");
        let earlier = |&tile: &TileId| self.tiles.before(tile).filter(fits);
        let first = std::iter::successors(Some(at), earlier).last().expect("it starts with one");
        self.tiles.from(first).take_while(fits).map(|tile| self.tiles.get(tile)).collect()
    }

    /// Checks everything that the module's documentation says; the first broken rule in words.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.tiles.check()?;
        let warm = self.tiles.all().filter(|(.., tile)| matches!(tile.content, Content::Warm { .. }));
        if warm.map(|(tile, ..)| tile).ne(self.warm) {
            return Err("what was freed last is not what is known of it".into());
        }
        let is_unmapped = |content| matches!(content, Content::Unmapped | Content::Coming);
        let unmapped: u64 = self.tiles().filter(|(_, t)| is_unmapped(t.content)).map(|(_, t)| t.bytes).sum();
        let reserved: u64 = self.ranges().map(|(_, bytes)| bytes).sum();
        let mapped: u64 = self.mappings().map(|mapping| mapping.bytes).sum();
        if unmapped + mapped != reserved {
            return Err(format!("{mapped} mapped and {unmapped} unmapped bytes in {reserved} reserved"));
        }
        for (address, tile) in self.tiles().filter(|(_, tile)| tile.content == Content::Unmapped) {
            if self.mappings_in(address, address + tile.bytes).next().is_some() {
                return Err(format!("a handle is mapped in the unmapped tile at {address:#x}"));
            }
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

    fn turn(space: &mut Space, address: u64, content: Content) {
        let (tile, _) = space.tile(address).unwrap();
        space.turn(tile, content);
    }

    #[test]
    fn a_free_handle_between_live_neighbours_can_leave() {
        let mut space = space_of(4);
        for granule in 1..=4 {
            fill(&mut space, &[(granule, 1)]);
        }
        for _ in 0..4 {
            space.place(GRANULE, GRANULE).unwrap();
        }
        turn(&mut space, 2 * GRANULE, Content::Free { since: Position(7) });
        let free = space.wholly_free();
        assert_eq!(free.len(), 1);
        assert_eq!((free[0].0.address, free[0].1), (2 * GRANULE, Position(7)));
        space.unmap(2 * GRANULE);
        space.check().unwrap();
        assert_eq!(space.largest_free(), 0);
    }

    #[test]
    fn a_handle_of_the_block_that_was_freed_last_can_leave() {
        let mut space = space_of(2);
        fill(&mut space, &[(1, 1), (2, 1)]);
        let (tile, address, _) = space.place(GRANULE, GRANULE).unwrap();
        space.free(tile, Position(7));
        let mapping = Mapping { address, bytes: GRANULE, page: PageId(address) };
        assert_eq!(space.take(mapping), Some(Position(7)));
        space.check().unwrap();
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
            for _ in 0..2 {
                space.place(GRANULE, GRANULE).unwrap();
            }
            turn(&mut space, freed * GRANULE, Content::Pending(0));
            assert_eq!(space.unoccupied(), []);
        }
    }

    #[test]
    fn free_memory_is_as_late_as_its_latest_part() {
        const QUARTER: u64 = GRANULE / 4;
        let mut space = space_of(1);
        fill(&mut space, &[(1, 1)]);
        for _ in 0..4 {
            space.place(QUARTER, QUARTER).unwrap();
        }
        for (quarter, position) in [(1, 9), (0, 3), (2, 5)] {
            turn(&mut space, GRANULE + quarter * QUARTER, Content::Free { since: Position(position) });
        }
        let mut place = |bytes| space.place(bytes, bytes).map(|(_, address, since)| (address, since));
        assert_eq!(place(QUARTER), Some((GRANULE, Position(9))), "joined");
        assert_eq!(place(2 * QUARTER), Some((GRANULE + QUARTER, Position(9))), "what was left");
    }
}
