//! Making room: which addresses a request gets when no free tile fits, and which physical memory goes there.
//!
//! A *window* is a stretch of addresses of one range with nothing live or pending in it: free tiles, and unmapped ones
//! that are filled. What fills them is, in this order,
//!
//! 1. a *spare* handle, one that holds nothing but free memory, wherever it is mapped now. If it was mapped here before
//!    and its old mapping is still there (a [`Ghost`]), it *comes back* without any call of the driver; otherwise it
//!    *moves*: it is mapped here too, and its mapping there becomes a ghost;
//! 2. a new handle.
//!
//! Of all windows the one with the fewest new bytes is taken, then the cheapest one, then the lowest address.

mod pool;
mod profile;

use std::collections::BTreeSet;

use crate::space::{Space, bounds};
use crate::tiles::{Content, Tile};
use crate::{PageId, Position, StreamIndex};
use pool::Pool;
use profile::Profile;

/// Handles are not made larger than this, bytes, unless the granularity is.
const HANDLE_BYTES_MAX: u64 = 128 << 20;
/// However much time there is, a handle is not made smaller than this part of all memory held, nor of the request: what
/// is stuck in partly used handles stays small beside them.
const HANDLES_OF_ALL: u64 = 1024;
/// Where time has no bound, of all memory held: what is stuck counts then, and nothing else.
const HANDLES_OF_ALL_UNBOUNDED: u64 = 16_384;
const HANDLES_OF_REQUEST: u64 = 64;
/// What a new handle costs, ns, on an H200: it is created, mapped, and made accessible.
const HANDLE_NS: u64 = 48_000;
/// One request may use this part of the time that there is.
const REQUESTS_PER_BUDGET: u64 = 4;

/// What mapping a handle costs beside removing an old mapping, in any unit: about 33 and 21 µs on an H200.
const MAP_COST: u64 = 33;
const REMOVE_COST: u64 = 21;

/// The largest handle that is made when `held` bytes are held and `requested` more are to be placed: a multiple of the
/// granularity.
///
/// Small handles waste less, for only those that are wholly free can move; but each costs the same, whatever its size. So
/// they are as small as `budget_ns`, the time that there is for calls of the driver, allows; `u64::MAX` is time without a
/// bound.
#[must_use]
pub fn handle_bytes(held: u64, requested: u64, granularity: u64, budget_ns: u64) -> u64 {
    let affordable = (budget_ns / REQUESTS_PER_BUDGET / HANDLE_NS).clamp(1, HANDLES_OF_REQUEST);
    let of_all = if budget_ns == u64::MAX { HANDLES_OF_ALL_UNBOUNDED } else { HANDLES_OF_ALL };
    let aim = (requested / affordable).max(held / of_all).min(HANDLE_BYTES_MAX);
    aim.next_multiple_of(granularity).max(granularity)
}

/// A handle that holds nothing but free memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spare {
    /// The handle.
    pub page: PageId,
    /// Its length, bytes.
    pub bytes: u64,
    /// The stream in whose heap it is.
    pub stream: StreamIndex,
    /// Where it is mapped there.
    pub address: u64,
    /// The position of that stream after which nobody uses it.
    pub since: Position,
    /// Whether the stream that asks comes after that position anyway.
    pub proven: bool,
}

/// An old mapping of a handle that is mapped elsewhere now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ghost {
    /// First address.
    pub address: u64,
    /// Length, bytes.
    pub bytes: u64,
    /// The handle.
    pub page: PageId,
}

/// What is done at one place of a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Piece {
    /// The spare handle comes back to its old mapping at `to`.
    Return {
        /// Which.
        spare: Spare,
        /// The address of its ghost.
        to: u64,
    },
    /// The spare handle is mapped at `to`.
    Move {
        /// Which.
        spare: Spare,
        /// The address.
        to: u64,
    },
    /// A new handle is mapped at `to`.
    Create {
        /// The address.
        to: u64,
        /// Its length, bytes.
        bytes: u64,
    },
}

impl Piece {
    /// Where it is, and its length, bytes.
    #[must_use]
    pub fn place(&self) -> (u64, u64) {
        match *self {
            Piece::Return { spare, to } | Piece::Move { spare, to } => (to, spare.bytes),
            Piece::Create { to, bytes } => (to, bytes),
        }
    }

    /// The spare handle that it takes.
    #[must_use]
    pub fn spare(&self) -> Option<Spare> {
        match *self {
            Piece::Return { spare, .. } | Piece::Move { spare, .. } => Some(spare),
            Piece::Create { .. } => None,
        }
    }
}

/// How room is made for one request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Window {
    /// Where the block is going to be.
    pub address: u64,
    /// Its length, bytes.
    pub bytes: u64,
    /// Old mappings that are in the way: removed first.
    pub removed: Vec<Ghost>,
    /// What is mapped, in the order of addresses.
    pub pieces: Vec<Piece>,
}

impl Window {
    /// Bytes in new handles.
    #[must_use]
    pub fn created(&self) -> u64 {
        let created = self.pieces.iter().filter(|piece| piece.spare().is_none());
        created.map(|piece| piece.place().1).sum()
    }
}

/// What there is to fill windows with.
#[derive(Clone, Copy, Debug)]
pub struct Supply<'a> {
    /// Spare handles of all heaps, in the order in which they are taken if nothing else decides.
    pub spares: &'a [Spare],
    /// The largest handle that may be made, bytes; `None` when none may.
    pub create: Option<u64>,
    /// Whether the window is chosen as if there were no spare handles: its address then depends on the heap alone.
    pub blind: bool,
}

/// What is known of an old mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GhostState {
    /// It has been removed.
    Gone,
    /// The host has seen its last use complete: it may be removed.
    Over,
    /// Its last use may still run.
    Used,
}

/// A window before anything is chosen for it. What is returned to it may turn out to be less, never more.
#[derive(Clone, Copy)]
struct Outline {
    address: u64,
    /// Bytes that neither free tiles nor spare handles give.
    new: u64,
    cost: u64,
}

/// Part of a window that is not free.
enum Part {
    /// Nothing is mapped: from, to what is needed, and as far as there is room.
    Hole { from: u64, needed: u64, room: u64 },
    /// The spare handle with this number comes back.
    Return { spare: usize, to: u64 },
}

/// One search for a window of `bytes`.
pub(crate) struct Search<'a, G> {
    space: &'a Space,
    bytes: u64,
    supply: Supply<'a>,
    ghost_state: G,
    /// (handle, number of the spare), ascending.
    by_page: Vec<(PageId, usize)>,
    /// Bytes in all spare handles.
    spare_bytes: u64,
}

impl<'a, G: Fn(Ghost) -> GhostState> Search<'a, G> {
    pub(crate) fn new(space: &'a Space, bytes: u64, supply: Supply<'a>, ghost_state: G) -> Self {
        let mut by_page: Vec<(PageId, usize)> =
            supply.spares.iter().enumerate().map(|(number, spare)| (spare.page, number)).collect();
        by_page.sort_unstable();
        let spare_bytes = supply.spares.iter().map(|spare| spare.bytes).sum();
        Search { space, bytes, supply, ghost_state, by_page, spare_bytes }
    }

    /// The best window that can be filled.
    pub(crate) fn run(&self) -> Option<Window> {
        let mut outlines: Vec<Outline> = Vec::new();
        // A run without a hole is one free tile, which is too small: otherwise nobody would search.
        for run in self.space.runs_with_holes() {
            let (start, end) = bounds(&run);
            if end - start >= self.bytes {
                self.outline_all(&run, &mut outlines);
            }
        }
        outlines.sort_unstable_by_key(|outline| (outline.new, outline.cost, outline.address));
        outlines.iter().find_map(|outline| self.fill(outline.address))
    }

    /// Outlines of all windows of a run that start or end with a tile or an old mapping.
    fn outline_all(&self, run: &[(u64, Tile)], outlines: &mut Vec<Outline>) {
        let (start, end) = bounds(run);
        let profile = Profile::new(self, run);
        let mut found: Vec<u64> = Vec::with_capacity(2 * profile.edges.len());
        for &edge in &profile.edges {
            let windows = [Some(edge), edge.checked_sub(self.bytes)].into_iter().flatten();
            found.extend(windows.filter(|&window| window >= start && end.saturating_sub(window) >= self.bytes));
        }
        found.sort_unstable();
        found.dedup();
        outlines.extend(found.into_iter().filter_map(|address| self.outline(&profile, address)));
    }

    fn outline(&self, profile: &Profile, address: u64) -> Option<Outline> {
        let sums = profile.sums(address, address + self.bytes);
        if sums.blocked > 0 {
            return None;
        }
        let elsewhere = self.spare_bytes.saturating_sub(sums.spare);
        if self.supply.create.is_none() && sums.missing > elsewhere {
            return None;
        }
        let new = if self.supply.blind { sums.missing } else { sums.missing.saturating_sub(elsewhere) };
        let granularity = self.space.granularity();
        // How large handles are depends on time and on other heaps.
        let handle = if self.supply.blind { granularity } else { self.supply.create.unwrap_or(granularity) };
        let mapped = sums.missing.div_ceil(handle).max(sums.holes);
        let cost = mapped * MAP_COST + sums.removed * REMOVE_COST;
        Some(Outline { address, new, cost })
    }

    /// What a window consists of beside free tiles; `None` when an old mapping that is still used is in the way.
    fn parts(&self, run: &[(u64, Tile)], address: u64) -> Option<Parts> {
        let end = address + self.bytes;
        let mut parts = Parts::default();
        let first = run.partition_point(|&(at, tile)| at + tile.bytes <= address);
        for &(at, tile) in run[first..].iter().take_while(|(at, _)| *at < end) {
            if tile.content == Content::Unmapped {
                self.parts_of_gap(at, at + tile.bytes, (address, end), &mut parts)?;
            }
        }
        Some(parts)
    }

    /// Adds what is in an unmapped tile from `start` to `gap_end`, as far as the window from `first` to `end` needs it.
    fn parts_of_gap(&self, start: u64, gap_end: u64, (first, end): (u64, u64), parts: &mut Parts) -> Option<()> {
        let granule = self.space.granularity();
        let mut from = start.max(first / granule * granule);
        let needed = end.min(gap_end).next_multiple_of(granule);
        let mut room = gap_end;
        for ghost in self.space.ghosts_in(start, gap_end) {
            let (ghost_end, state) = (ghost.address + ghost.bytes, (self.ghost_state)(ghost));
            if ghost_end <= from || state == GhostState::Gone {
                continue;
            }
            if ghost.address >= needed {
                room = ghost.address;
                break;
            }
            match (self.returning(ghost, (first, end), parts), state) {
                (Some(spare), _) => {
                    if from < ghost.address {
                        parts.parts.push(Part::Hole { from, needed: ghost.address, room: ghost.address });
                    }
                    parts.returned.insert(spare);
                    parts.parts.push(Part::Return { spare, to: ghost.address });
                    from = ghost_end;
                }
                (None, GhostState::Over) => parts.removed.push(ghost),
                (None, _) => return None,
            }
        }
        if from < needed {
            parts.parts.push(Part::Hole { from, needed, room });
        }
        Some(())
    }

    /// The spare handle that an old mapping is of.
    fn spare_of(&self, ghost: Ghost) -> Option<usize> {
        if self.supply.blind {
            return None;
        }
        let at = self.by_page.binary_search_by_key(&ghost.page, |&(page, _)| page).ok()?;
        Some(self.by_page[at].1)
    }

    /// The number of the spare handle that may come back to `ghost`: one that the window does not use otherwise.
    fn returning(&self, ghost: Ghost, (first, end): (u64, u64), parts: &Parts) -> Option<usize> {
        let at = self.spare_of(ghost)?;
        let spare = self.supply.spares[at];
        let inside = spare.address < end && spare.address + spare.bytes > first;
        (!inside && !parts.returned.contains(&at)).then_some(at)
    }

    /// Chooses what fills the window at `address`; `None` when it cannot be filled.
    fn fill(&self, address: u64) -> Option<Window> {
        let run = self.space.run_around(address);
        let parts = self.parts(&run, address)?;
        let end = address + self.bytes;
        let mut pool = Pool::new(&self.supply, |spare, number| {
            let inside = spare.address < end && spare.address + spare.bytes > address;
            inside || parts.returned.contains(&number)
        });
        let mut pieces = Vec::new();
        for part in &parts.parts {
            match *part {
                Part::Return { spare, to } => pieces.push(Piece::Return { spare: self.supply.spares[spare], to }),
                Part::Hole { mut from, needed, room } => {
                    while from < needed {
                        let piece = pool.piece(from, needed - from, room - from, self.space.granularity())?;
                        from += piece.place().1;
                        pieces.push(piece);
                    }
                }
            }
        }
        Some(Window { address, bytes: self.bytes, removed: parts.removed, pieces })
    }
}

/// What a window consists of beside free tiles.
#[derive(Default)]
struct Parts {
    /// In the order of addresses.
    parts: Vec<Part>,
    /// The numbers of the spare handles that come back.
    returned: BTreeSet<usize>,
    removed: Vec<Ghost>,
}

#[cfg(all(test, not(loom)))]
mod tests {
    mod spares;

    use super::*;
    use crate::space::Mapping;

    const GRANULE: u64 = 4096;
    const S: StreamIndex = StreamIndex(0);

    fn space_of(granules: u64) -> Space {
        let mut space = Space::new(GRANULE);
        space.add_range(GRANULE, granules * GRANULE);
        space
    }

    fn search(space: &Space, granules: u64, spares: &[Spare], create: bool) -> Option<Window> {
        let supply = Supply { spares, create: create.then_some(GRANULE), blind: false };
        Search::new(space, granules * GRANULE, supply, |_| GhostState::Used).run()
    }

    /// Maps what a window says, in handles that are named after their addresses, and gives it a block.
    fn settle(space: &mut Space, window: &Window) {
        space.hold(window);
        for piece in &window.pieces {
            let (address, bytes) = piece.place();
            let page = piece.spare().map_or(PageId(address), |spare| spare.page);
            space.arrive(Mapping { address, bytes, page }, Position(0));
        }
        space.settle(window, window.bytes);
        space.check().unwrap();
    }

    fn grown(granules: u64, blocks: &[u64]) -> Space {
        let mut space = space_of(granules);
        for &bytes in blocks {
            let window = search(&space, bytes, &[], true).unwrap();
            settle(&mut space, &window);
        }
        space
    }

    fn spares(space: &mut Space) -> Vec<Spare> {
        let spare =
            |(Mapping { address, bytes, page }, since)| Spare { page, bytes, stream: S, address, since, proven: true };
        space.wholly_free().into_iter().map(spare).collect()
    }

    fn free(space: &mut Space, granule: u64) {
        let (tile, _) = space.tile(granule * GRANULE).unwrap();
        space.turn(tile, Content::Free { since: Position(granule) });
    }

    #[test]
    fn handles_are_as_small_as_there_is_time_for() {
        let mib = 1 << 20;
        let bytes = |held, requested, budget_ns| handle_bytes(held, requested, 2 * mib, budget_ns);
        assert_eq!(bytes(0, 100 * mib, 0), 100 * mib, "one handle, if there is no time");
        assert_eq!(bytes(0, 99 * mib, 0), 100 * mib, "a multiple of the granularity");
        assert_eq!(bytes(0, 1 << 30, 0), 128 * mib, "but not larger than this");
        assert_eq!(bytes(0, 100 * mib, 4 * 10 * 48_000), 10 * mib);
        assert_eq!(bytes(0, 100 * mib, u64::MAX), 2 * mib);
        assert_eq!(bytes(0, 1 << 30, u64::MAX), 16 * mib, "no request is cut into more");
        assert_eq!(bytes(9 << 30, mib, u64::MAX - 1), 10 * mib, "nor is all that is held");
        assert_eq!(bytes(9 << 30, mib, u64::MAX), 2 * mib, "unless memory counts and nothing else");
        assert_eq!(handle_bytes(0, mib, 256 * mib, 0), 256 * mib);
    }

    #[test]
    fn growth_extends_the_free_tail_instead_of_starting_anew() {
        let mut space = grown(16, &[2]);
        free(&mut space, 1);
        let window = search(&space, 5, &[], true).unwrap();
        assert_eq!((window.address, window.created()), (GRANULE, 3 * GRANULE));
        assert_eq!(window.pieces[0].place().0, 3 * GRANULE);
    }

    #[test]
    fn growth_closes_the_smallest_hole() {
        let mut space = grown(16, &[2, 1, 2]);
        for granule in [1, 3, 4] {
            free(&mut space, granule);
        }
        space.unmap(3 * GRANULE);
        let window = search(&space, 5, &[], true).unwrap();
        assert_eq!((window.address, window.created()), (GRANULE, GRANULE));
        assert_eq!(search(&space, 17, &[], true), None);
    }

    #[test]
    fn scattered_spare_handles_are_brought_together_before_anything_is_made() {
        let mut space = grown(16, &[1, 1, 1, 1, 1]);
        for granule in [1, 3, 5] {
            free(&mut space, granule);
        }
        let found = spares(&mut space);
        assert_eq!(search(&space, 4, &found, false), None, "there are three");
        let window = search(&space, 3, &found, false).unwrap();
        assert_eq!((window.address, window.created()), (5 * GRANULE, 0), "the last one stays where it is");
        let moved: Vec<u64> = window.pieces.iter().map(|piece| piece.spare().unwrap().address / GRANULE).collect();
        assert_eq!(moved, [1, 3]);
    }

    #[test]
    fn a_handle_comes_back_to_its_old_mapping_without_a_call() {
        let mut space = grown(16, &[1, 1, 1]);
        for granule in [1, 3] {
            free(&mut space, granule);
        }
        let found = spares(&mut space);
        let window = search(&space, 2, &found, false).unwrap();
        let Piece::Move { spare, to } = window.pieces[0] else { panic!("{window:?}") };
        assert_eq!((spare.address, to), (GRANULE, 4 * GRANULE));
        space.hold(&window);
        let home = Mapping { address: spare.address, bytes: spare.bytes, page: spare.page };
        assert_eq!(space.take(home), Some(Position(1)));
        space.arrive(Mapping { address: to, ..home }, Position(1));
        space.settle(&window, GRANULE);
        space.check().unwrap();
        // A block at the third granule, nothing at the second and at the fourth, where the handle has gone.
        free(&mut space, 3);
        space.place(GRANULE, GRANULE).unwrap();
        free(&mut space, 2);
        let spares = spares(&mut space);
        let window = search(&space, 2, &spares, false).unwrap();
        let Piece::Return { spare, to } = window.pieces[0] else { panic!("{window:?}") };
        assert_eq!((spare.address, to, window.address), (4 * GRANULE, GRANULE, GRANULE));
    }

    #[test]
    fn fewer_new_bytes_are_worth_more_calls() {
        // The sixth granule keeps its block: behind it there is room for one large handle.
        let mut space = grown(16, &[1, 1, 1, 1, 1, 1]);
        for granule in 1..=5 {
            free(&mut space, granule);
        }
        for granule in [1, 3, 5] {
            space.unmap(granule * GRANULE);
        }
        let supply = Supply { spares: &[], create: Some(5 * GRANULE), blind: false };
        let window = Search::new(&space, 5 * GRANULE, supply, |_| GhostState::Used).run().unwrap();
        assert_eq!((window.address, window.created()), (GRANULE, 3 * GRANULE), "three handles, not one");
    }

    #[test]
    fn of_windows_with_as_few_new_bytes_the_cheapest_is_taken() {
        let mut space = grown(16, &[1; 8]);
        // Two holes around a free granule, and, higher up, a free granule and one hole.
        for granule in [1, 2, 3, 5, 6, 7] {
            free(&mut space, granule);
        }
        for granule in [1, 3, 6, 7] {
            space.unmap(granule * GRANULE);
        }
        let supply = Supply { spares: &[], create: Some(2 * GRANULE), blind: false };
        let window = Search::new(&space, 3 * GRANULE, supply, |_| GhostState::Used).run().unwrap();
        assert_eq!((window.address, window.pieces.len()), (5 * GRANULE, 1), "one handle, not two");
    }

    #[test]
    fn a_handle_that_lies_in_the_window_stays_there() {
        let mut space = grown(4, &[1, 1, 1, 1]);
        for granule in 1..=4 {
            free(&mut space, granule);
        }
        // The first handle has an old mapping at the third granule.
        let handle = |granule| Mapping { address: granule * GRANULE, bytes: GRANULE, page: PageId(granule * GRANULE) };
        space.take(handle(3)).unwrap();
        space.add_ghost(Ghost { address: 3 * GRANULE, bytes: GRANULE, page: handle(1).page });
        let found = spares(&mut space);
        let supply = Supply { spares: &found, create: Some(GRANULE), blind: false };
        let window = Search::new(&space, 4 * GRANULE, supply, |_| GhostState::Over).run().unwrap();
        assert_eq!((window.removed.len(), window.created()), (1, GRANULE), "{window:?}");
        assert!(window.pieces.iter().all(|piece| piece.spare().is_none()));
    }

    #[test]
    fn an_old_mapping_in_the_way_is_removed_only_when_it_is_over() {
        let mut space = grown(3, &[1, 1, 1]);
        for granule in [1, 2, 3] {
            free(&mut space, granule);
            space
                .take(Mapping { address: granule * GRANULE, bytes: GRANULE, page: PageId(granule * GRANULE) })
                .unwrap();
        }
        space.check().unwrap();
        let supply = Supply { spares: &[], create: Some(GRANULE), blind: false };
        let window = |state| Search::new(&space, 2 * GRANULE, supply, move |_| state).run();
        assert_eq!(window(GhostState::Used), None);
        assert_eq!(window(GhostState::Over).unwrap().removed.len(), 2);
        assert_eq!(window(GhostState::Gone).unwrap().removed.len(), 0);
    }

    #[test]
    fn a_window_that_is_let_go_leaves_no_trace() {
        let mut space = grown(8, &[1, 1, 1]);
        for granule in [1, 3] {
            free(&mut space, granule);
        }
        let before: Vec<_> = space.tiles().collect();
        let window = search(&space, 4, &[], true).unwrap();
        space.hold(&window);
        assert_ne!(space.tiles().collect::<Vec<_>>(), before);
        space.check().unwrap();
        space.let_go(&window);
        assert_eq!(space.tiles().collect::<Vec<_>>(), before);
        space.check().unwrap();
    }

    #[test]
    fn a_handle_that_was_taken_can_be_put_back() {
        let mut space = grown(8, &[1, 1]);
        free(&mut space, 1);
        let home = Mapping { address: GRANULE, bytes: GRANULE, page: PageId(GRANULE) };
        let since = space.take(home).unwrap();
        assert_eq!(space.take(home), None, "it is gone");
        assert!(space.put_back(home, since));
        assert!(!space.put_back(home, since), "it is there");
        assert_eq!(space.take(home), Some(since));
    }
}
