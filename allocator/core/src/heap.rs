//! The memory of one stream.
//!
//! A heap gives free memory out at once: whatever its stream is still to do with it comes before whatever the stream
//! will be asked next. A block that other streams used is *pending* from its free until each of those uses is complete,
//! or provably before what the stream will do next.
//!
//! A heap is a plain value; its lock is a [`Station`](crate::Station), and a free is a message to it.

use std::collections::BTreeMap;

use crate::space::Space;
use crate::tiles::{Content, Tile, TileId};
use crate::window::{Ghost, GhostState, Search, Supply, Window};
use crate::{BlockId, Books, Mapping, Position, Receive, SMALL_BYTES, StreamIndex, Wait, join_waits, rounded};

/// Where a request was placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// The block.
    pub block: BlockId,
    /// Its address.
    pub address: u64,
    /// Its length after rounding, bytes.
    pub bytes: u64,
    /// Another stream may touch the block only after this position of the owner; 0 when nobody ever used its bytes.
    pub since: Position,
}

/// A free, as a message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Freed {
    /// The block.
    pub block: BlockId,
    /// A mark of the owner at the free: its own uses are before.
    pub since: Position,
    /// What has to be passed first.
    pub waits: Vec<Wait>,
}

/// Whether a wait is over.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Satisfied {
    /// It is not.
    No,
    /// What the owner will be given from now on comes after it, on the device.
    Ordered,
    /// The host has seen it complete.
    Complete,
}

/// A pending free that came to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retired {
    /// The address of the block that it was.
    pub address: u64,
    /// The length that had been asked for, bytes.
    pub requested: u64,
}

/// A handle without a live block, and what has to be passed before it may be unmapped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unoccupied {
    /// The handle.
    pub mapping: Mapping,
    /// The position of the owner.
    pub since: Position,
    /// The positions of other streams: those that its pending frees wait for.
    pub waits: Vec<Wait>,
}

/// A block that is given out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockInfo {
    /// Its number.
    pub block: BlockId,
    /// First address.
    pub address: u64,
    /// What was asked for, bytes.
    pub requested: u64,
    /// What it takes, bytes.
    pub bytes: u64,
}

#[derive(Debug)]
struct Pending {
    block: BlockId,
    address: u64,
    bytes: u64,
    requested: u64,
    since: Position,
    waits: Vec<Wait>,
}

/// What a tile is, seen from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TileKind {
    /// Free.
    Free,
    /// Freed and waiting.
    Pending,
    /// Given out.
    Live,
}

/// A tile that is mapped, seen from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TileInfo {
    /// First address.
    pub address: u64,
    /// Length, bytes.
    pub bytes: u64,
    /// What was asked for, bytes; for a free tile 0.
    pub requested: u64,
    /// The block that it is or, as long as its free is pending, was.
    pub block: Option<BlockId>,
    /// What it is.
    pub kind: TileKind,
}

/// A heap's broken rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckError(String);

impl std::fmt::Display for CheckError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CheckError {}

/// The memory of one stream.
#[derive(Debug)]
pub struct Heap {
    small: Space,
    large: Space,
    /// By number: the order of the frees.
    pending: BTreeMap<u64, Pending>,
    pending_next: u64,
    books: Books,
}

impl Heap {
    /// An empty heap. Memory is mapped in multiples of `granularity`, bytes.
    ///
    /// # Panics
    /// When the granularity is not a multiple of the rounding of blocks.
    #[must_use]
    pub fn new(granularity: u64) -> Self {
        assert!(rounded(granularity) == Some(granularity), "the granularity is a multiple of the rounding");
        Heap {
            small: Space::new(granularity),
            large: Space::new(granularity),
            pending: BTreeMap::new(),
            pending_next: 0,
            books: Books::default(),
        }
    }

    /// Places a request of `requested` bytes in free memory, if any fits.
    #[inline(always)]
    pub fn place(&mut self, requested: u64) -> Option<Placement> {
        let bytes = rounded(requested)?;
        let (tile, address, since) = self.space_mut(bytes).place(bytes, requested)?;
        Some(self.born(Placement { block: number(tile, bytes), address, bytes, since }, requested))
    }

    #[inline(always)]
    fn born(&mut self, placed: Placement, requested: u64) -> Placement {
        self.books.cached -= placed.bytes;
        self.books.live += requested;
        self.books.rounding += placed.bytes - requested;
        placed
    }

    /// The blocks that are given out, in no order.
    pub fn live_blocks(&self) -> impl Iterator<Item = BlockInfo> + '_ {
        let spaces = [(&self.small, 0), (&self.large, SMALL_BYTES + 1)];
        spaces.into_iter().flat_map(|(space, kind)| {
            space.numbered().filter_map(move |(tile, address, found)| match found.content {
                Content::Live { requested } => {
                    Some(BlockInfo { block: number(tile, kind), address, requested, bytes: found.bytes })
                }
                _ => None,
            })
        })
    }

    /// Takes a block back.
    ///
    /// # Panics
    /// When the block is not given out: whoever frees holds the block, so it cannot happen twice.
    #[inline(always)]
    pub fn free(&mut self, freed: Freed) -> BlockInfo {
        let Freed { block, since, waits } = freed;
        let (space, tile) = self.space_of(block);
        let found = space.find(tile);
        let Some((address, Tile { bytes, content: Content::Live { requested } })) = found else {
            panic!("a block that is freed is given out, not {found:?}")
        };
        let info = BlockInfo { block, address, requested, bytes };
        if waits.is_empty() {
            space.free(tile, since);
            self.books.cached += bytes;
        } else {
            self.keep_pending(info, since, waits);
        }
        self.books.live -= requested;
        self.books.rounding -= bytes - requested;
        info
    }

    /// A block waits to be free.
    fn keep_pending(&mut self, info: BlockInfo, since: Position, waits: Vec<Wait>) {
        let BlockInfo { block, address, requested, bytes } = info;
        self.books.pending += bytes;
        let number = self.pending_next;
        self.pending_next += 1;
        self.turn(block, Content::Pending(number));
        let waits = join_waits(waits);
        self.pending.insert(number, Pending { block, address, bytes, requested, since, waits });
    }

    fn turn(&mut self, block: BlockId, content: Content) {
        let (space, tile) = self.space_of(block);
        space.turn(tile, content);
    }

    /// Where a block is: the space, and the number in it.
    fn space_of(&mut self, block: BlockId) -> (&mut Space, TileId) {
        let space = if block.0 & 1 == 0 { &mut self.small } else { &mut self.large };
        (space, TileId(block.0 >> 1))
    }

    /// Whether any free is pending.
    #[must_use]
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The streams that pending frees wait for, and how far: what is worth asking.
    #[must_use]
    pub fn awaited(&self) -> Vec<Wait> {
        join_waits(self.pending.values().flat_map(|pending| pending.waits.iter().copied()))
    }

    /// Bytes pending, by the stream that they wait for (a block that waits for two counts at both).
    #[must_use]
    pub fn pending_by_stream(&self) -> BTreeMap<StreamIndex, u64> {
        let mut bytes = BTreeMap::new();
        for pending in self.pending.values() {
            for wait in &pending.waits {
                *bytes.entry(wait.stream).or_insert(0) += pending.bytes;
            }
        }
        bytes
    }

    /// What each pending free waits for: address and wait, in the order of the frees.
    pub fn pending_waits(&self) -> impl Iterator<Item = (u64, Wait)> + '_ {
        self.pending.values().flat_map(|pending| pending.waits.iter().map(|&wait| (pending.address, wait)))
    }

    /// Ends the pending frees whose waits are all over. `now` is a mark of the owner, set before the call: memory that
    /// became usable by order alone is safe for other streams only after it.
    pub fn retire(&mut self, now: Position, satisfied: impl Fn(Wait) -> Satisfied) -> Vec<Retired> {
        let over: Vec<(u64, Satisfied)> = self
            .pending
            .iter()
            .filter_map(|(&number, pending)| {
                let least = pending.waits.iter().map(|&wait| satisfied(wait)).min().unwrap_or(Satisfied::Complete);
                (least != Satisfied::No).then_some((number, least))
            })
            .collect();
        let mut retired = Vec::with_capacity(over.len());
        for (number, how) in over {
            let pending = self.pending.remove(&number).expect("it was just found");
            let since = if how == Satisfied::Ordered { now } else { pending.since };
            self.books.pending -= pending.bytes;
            self.books.cached += pending.bytes;
            self.turn(pending.block, Content::Free { since });
            retired.push(Retired { address: pending.address, requested: pending.requested });
        }
        retired
    }

    /// The waits that suffice for a request of `requested` bytes, without mapping anything: those of the run of free and
    /// pending memory whose last free is the oldest. `None` when no run is long enough.
    #[must_use]
    pub fn sufficient_waits(&self, requested: u64) -> Option<Vec<Wait>> {
        let bytes = rounded(requested)?;
        let mut best: Option<(u64, usize, Vec<u64>)> = None;
        for run in self.space(bytes).runs(|content| matches!(content, Content::Free { .. } | Content::Pending(_))) {
            for first in 0..run.len() {
                let mut length = 0;
                let mut numbers = Vec::new();
                for (_, tile) in &run[first..] {
                    length += tile.bytes;
                    if let Content::Pending(number) = tile.content {
                        numbers.push(number);
                    }
                    if length >= bytes {
                        break;
                    }
                }
                if length < bytes {
                    break;
                }
                let last = numbers.iter().copied().max().unwrap_or(0);
                if best.as_ref().is_none_or(|(oldest, count, _)| (last, numbers.len()) < (*oldest, *count)) {
                    best = Some((last, numbers.len(), numbers));
                }
            }
        }
        let (_, _, numbers) = best?;
        Some(join_waits(numbers.iter().flat_map(|number| self.pending[number].waits.iter().copied())))
    }

    /// How room is made for `requested` bytes. `None` when `supply` does not suffice, or when no reserved range has the
    /// room: [`add_range`](Heap::add_range) first.
    #[must_use]
    pub fn window(
        &mut self,
        requested: u64,
        supply: Supply<'_>,
        ghost_state: impl Fn(Ghost) -> GhostState,
    ) -> Option<Window> {
        let bytes = rounded(requested)?;
        self.space_mut(bytes).cool();
        Search::new(self.space(bytes), bytes, supply, ghost_state).run()
    }

    /// The longest stretch of addresses without any mapping, for requests like `requested`, bytes.
    #[must_use]
    pub fn largest_hole(&self, requested: u64) -> u64 {
        self.space(requested).largest_hole()
    }

    /// Gives the heap a reserved range for requests like `requested`.
    pub fn add_range(&mut self, requested: u64, address: u64, bytes: u64) {
        self.space_mut(requested).add_range(address, bytes);
    }

    /// Keeps a window for the one who asked for it, until it is [settled](Heap::settle) or [let go](Heap::let_go).
    pub fn hold(&mut self, window: &Window) {
        self.space_mut(window.bytes).hold(window);
    }

    /// A handle of a window is mapped (with access); nobody touches it before the owner's position `since`.
    pub fn arrive(&mut self, window: &Window, mapping: Mapping, since: Position) {
        self.books.cached += mapping.bytes;
        self.books.physical += mapping.bytes;
        self.space_mut(window.bytes).arrive(mapping, since);
    }

    /// Places the request that a window was made for: all its handles have arrived.
    pub fn settle(&mut self, window: &Window, requested: u64) -> Placement {
        let Window { address, bytes, .. } = *window;
        let (tile, since) = self.space_mut(bytes).settle(window, requested);
        self.born(Placement { block: number(tile, bytes), address, bytes, since }, requested)
    }

    /// Lets a window go; handles that have arrived stay.
    pub fn let_go(&mut self, window: &Window) {
        self.space_mut(window.bytes).let_go(window);
    }

    /// Takes a handle out of [`wholly_free`](Heap::wholly_free) away, to be mapped elsewhere: its old mapping stays. Returns
    /// the position of the owner after which nobody uses it; `None` when it is not wholly free any more.
    pub fn take(&mut self, mapping: Mapping) -> Option<Position> {
        let since = self.space_at(mapping.address)?.take(mapping)?;
        self.books.cached -= mapping.bytes;
        self.books.physical -= mapping.bytes;
        Some(since)
    }

    /// Puts a handle back that was [taken](Heap::take). Whether its old mapping is still there; otherwise nothing changes.
    #[must_use]
    pub fn put_back(&mut self, mapping: Mapping, since: Position) -> bool {
        let back = self.space_at(mapping.address).is_some_and(|space| space.put_back(mapping, since));
        if back {
            self.books.cached += mapping.bytes;
            self.books.physical += mapping.bytes;
        }
        back
    }

    /// Handles that hold nothing but free memory, each with the position of the owner that has to be complete before it
    /// may be unmapped.
    #[must_use]
    pub fn wholly_free(&mut self) -> Vec<(Mapping, Position)> {
        let mut found = self.small.wholly_free();
        found.extend(self.large.wholly_free());
        found
    }

    /// Handles that could leave if everything complete were seen to be so: those that hold free and pending memory only.
    #[must_use]
    pub fn unoccupied(&mut self) -> Vec<Unoccupied> {
        let handles = self.small.unoccupied().into_iter().chain(self.large.unoccupied());
        handles
            .map(|(mapping, tiles)| {
                let (mut last, mut waits) = (Position(0), Vec::new());
                for tile in tiles {
                    match tile.content {
                        Content::Free { since } => last = last.max(since),
                        Content::Pending(number) => {
                            let pending = &self.pending[&number];
                            last = last.max(pending.since);
                            waits.extend(pending.waits.iter().copied());
                        }
                        _ => {
                            unreachable!("an unoccupied handle lies in free and pending tiles")
                        }
                    }
                }
                Unoccupied { mapping, since: last, waits: join_waits(waits) }
            })
            .collect()
    }

    /// Before free memory is looked at.
    fn cool(&mut self) {
        self.small.cool();
        self.large.cool();
    }

    /// A handle out of [`wholly_free`](Heap::wholly_free) was unmapped.
    pub fn unmap(&mut self, mapping: Mapping) {
        let space = self.space_at(mapping.address).expect("a handle is mapped in a range of the heap");
        let gone = space.unmap(mapping.address);
        self.books.cached -= gone.bytes;
        self.books.physical -= gone.bytes;
    }

    /// There is a mapping, in memory that the heap takes for unmapped, which could not be removed.
    pub fn add_ghost(&mut self, ghost: Ghost) {
        if let Some(space) = self.space_at(ghost.address) {
            space.add_ghost(ghost);
        }
    }

    /// The waits after which `bytes` of the pending memory are free, the oldest frees first; all of them if that is less.
    #[must_use]
    pub fn waits_for(&self, bytes: u64) -> Vec<Wait> {
        let mut sum = 0;
        let enough = self.pending.values().take_while(|pending| {
            let more = sum < bytes;
            sum += pending.bytes;
            more
        });
        join_waits(enough.flat_map(|pending| pending.waits.iter().copied()))
    }

    /// The books.
    #[must_use]
    pub fn books(&self) -> Books {
        self.books
    }

    /// The largest free piece, bytes.
    #[must_use]
    pub fn largest_free(&mut self) -> u64 {
        self.cool();
        self.small.largest_free().max(self.large.largest_free())
    }

    /// The reserved ranges (address, bytes).
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.small.ranges().chain(self.large.ranges())
    }

    /// Handles that are mapped.
    pub fn mappings(&self) -> impl Iterator<Item = Mapping> + '_ {
        self.small.mappings().chain(self.large.mappings())
    }

    /// The mapped tiles, as runs without a hole, in the order of addresses within small and large requests.
    #[must_use]
    pub fn mapped_runs(&self) -> Vec<Vec<TileInfo>> {
        let mapped = |content| !matches!(content, Content::Unmapped | Content::Coming);
        let runs = self.small.runs(mapped).into_iter().map(|run| (run, 0));
        let runs = runs.chain(self.large.runs(mapped).into_iter().map(|run| (run, SMALL_BYTES + 1)));
        runs.map(|(run, kind)| run.into_iter().map(|piece| self.info(piece, kind)).collect()).collect()
    }

    fn info(&self, (address, tile): (u64, Tile), of: u64) -> TileInfo {
        let (requested, block, kind) = match tile.content {
            Content::Live { requested } => {
                let found = self.space(of).tile(address).map(|(tile, _)| number(tile, of));
                (requested, found, TileKind::Live)
            }
            Content::Pending(number) => {
                let pending = &self.pending[&number];
                (pending.requested, Some(pending.block), TileKind::Pending)
            }
            Content::Free { .. }
            | Content::Held { .. }
            | Content::Warm { .. }
            | Content::Unmapped
            | Content::Coming => (0, None, TileKind::Free),
        };
        TileInfo { address, bytes: tile.bytes, requested, block, kind }
    }

    /// Sweeps everything: tiles, blocks, pending frees and books.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), CheckError> {
        self.small.check().map_err(CheckError)?;
        self.large.check().map_err(CheckError)?;
        let mut books = Books::default();
        let mut pending = 0;
        for (address, tile) in self.small.tiles().chain(self.large.tiles()) {
            match tile.content {
                Content::Unmapped | Content::Coming => {}
                Content::Free { .. } | Content::Held { .. } | Content::Warm { .. } => books.cached += tile.bytes,
                Content::Pending(number) => {
                    pending += 1;
                    books.pending += tile.bytes;
                    let known =
                        self.pending.get(&number).is_some_and(|p| p.address == address && p.bytes == tile.bytes);
                    rule(known, || format!("the pending tile at {address:#x} has no pending free"))?;
                }
                Content::Live { requested } => {
                    rule(requested <= tile.bytes, || format!("the block at {address:#x} is too small"))?;
                    books.live += requested;
                    books.rounding += tile.bytes - requested;
                }
            }
        }
        books.physical = self.mappings().map(|mapping| mapping.bytes).sum();
        rule(pending == self.pending.len(), || "a pending free without a tile".into())?;
        rule(books == self.books, || format!("the books say {:?}, the tiles {books:?}", self.books))?;
        rule(books.balance(), || format!("the books do not balance: {books:?}"))
    }

    fn space_at(&mut self, address: u64) -> Option<&mut Space> {
        [&mut self.small, &mut self.large].into_iter().find(|space| space.has(address))
    }

    fn space(&self, bytes: u64) -> &Space {
        if bytes <= SMALL_BYTES { &self.small } else { &self.large }
    }

    fn space_mut(&mut self, bytes: u64) -> &mut Space {
        if bytes <= SMALL_BYTES { &mut self.small } else { &mut self.large }
    }
}

/// The number of the block that a tile of `bytes` is: that of the tile, and whether it is a large one.
fn number(tile: TileId, bytes: u64) -> BlockId {
    BlockId(tile.0 << 1 | u32::from(bytes > SMALL_BYTES))
}

impl Receive<Freed> for Heap {
    fn receive(&mut self, freed: Freed) {
        self.free(freed);
    }
}

fn rule(holds: bool, broken: impl FnOnce() -> String) -> Result<(), CheckError> {
    if holds { Ok(()) } else { Err(CheckError(broken())) }
}

#[cfg(all(test, not(loom)))]
mod tests;
