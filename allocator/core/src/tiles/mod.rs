//! Tiles: what ranges of addresses are cut into, and how they are found.
//!
//! The tiles of a range lie side by side, without gap or overlap; neighbours that [`join`] are one tile. Each has a
//! number of its own and is linked to its neighbours, so that cutting a tile, joining two and changing what one holds
//! take the same time however many there are. Tiles are found
//!
//! - by number: whoever holds a block holds the number of its tile, which stays the same as long as the block lives;
//! - by size, if they are free ([`Sizes`]);
//! - one after the other, if they are unmapped;
//! - by address: each range has a [`Directory`].

mod directory;
mod sizes;

use std::collections::BTreeMap;

use slab::Slab;

use crate::{Position, ROUNDING_BYTES};
use directory::Directory;
use sizes::Sizes;

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
    /// Free in the same way, and still apart from its neighbours: the block that was freed last.
    Warm { since: Position },
    /// Freed, waiting: the number of the pending free.
    Pending(u64),
    /// Given out, to somebody who asked for so many bytes.
    Live { requested: u64 },
}

/// One tile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tile {
    pub(crate) bytes: u64,
    pub(crate) content: Content,
}

/// The number of a tile.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct TileId(pub(crate) u32);

/// A link to a tile, or to none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Link(u32);

impl Link {
    const NONE: Link = Link(u32::MAX);

    fn to(tile: TileId) -> Self {
        Link(tile.0)
    }

    fn tile(self) -> Option<TileId> {
        (self != Link::NONE).then_some(TileId(self.0))
    }
}

#[derive(Debug)]
struct Record {
    address: u64,
    bytes: u64,
    content: Content,
    /// The neighbours in the range.
    before: Link,
    after: Link,
    /// The children in the tree of free tiles of this class of sizes.
    left: Link,
    right: Link,
    /// Number of the range.
    range: u32,
}

type Records = Slab<Record>;

fn record(records: &Records, tile: TileId) -> &Record {
    &records[tile.0 as usize]
}

fn record_mut(records: &mut Records, tile: TileId) -> &mut Record {
    &mut records[tile.0 as usize]
}

#[derive(Debug)]
struct Range {
    start: u64,
    bytes: u64,
    directory: Directory,
}

/// All tiles of a space.
#[derive(Debug)]
pub(crate) struct Tiles {
    granularity: u64,
    records: Records,
    sizes: Sizes,
    /// Those that are unmapped, by address.
    holes: BTreeMap<u64, TileId>,
    /// By number: the order in which they came.
    ranges: Vec<Range>,
    /// Their numbers in the order of addresses.
    order: Vec<u32>,
}

impl Tiles {
    /// None. Unmapped tiles will start and end on multiples of `granularity`, bytes.
    pub(crate) fn new(granularity: u64) -> Self {
        Tiles {
            granularity,
            records: Slab::new(),
            sizes: Sizes::new(),
            holes: BTreeMap::new(),
            ranges: Vec::new(),
            order: Vec::new(),
        }
    }

    /// Adds a range, as one unmapped tile.
    pub(crate) fn add_range(&mut self, start: u64, bytes: u64) {
        let number = u32::try_from(self.ranges.len()).expect("fewer than 2^32 ranges");
        let place = self.order.partition_point(|&other| self.ranges[other as usize].start < start);
        self.order.insert(place, number);
        let directory = Directory::new(start, bytes, self.granularity);
        self.ranges.push(Range { start, bytes, directory });
        let hole = self.add(Record {
            address: start,
            bytes,
            content: Content::Unmapped,
            before: Link::NONE,
            after: Link::NONE,
            left: Link::NONE,
            right: Link::NONE,
            range: number,
        });
        self.list(hole);
    }

    /// The ranges (address, bytes), in the order of addresses.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.order.iter().map(|&number| &self.ranges[number as usize]).map(|range| (range.start, range.bytes))
    }

    /// Whether an address lies in one of the ranges.
    pub(crate) fn has(&self, address: u64) -> bool {
        self.range_of(address).is_some()
    }

    fn range_of(&self, address: u64) -> Option<&Range> {
        let behind = self.order.partition_point(|&number| self.ranges[number as usize].start <= address);
        let range = &self.ranges[self.order[behind.checked_sub(1)?] as usize];
        (address - range.start < range.bytes).then_some(range)
    }

    /// The address of a tile, and the tile.
    pub(crate) fn get(&self, tile: TileId) -> (u64, Tile) {
        let record = record(&self.records, tile);
        (record.address, Tile { bytes: record.bytes, content: record.content })
    }

    /// The tile behind another one, in the same range.
    pub(crate) fn after(&self, tile: TileId) -> Option<TileId> {
        record(&self.records, tile).after.tile()
    }

    /// The tile before another one, in the same range.
    pub(crate) fn before(&self, tile: TileId) -> Option<TileId> {
        record(&self.records, tile).before.tile()
    }

    /// The tile that an address lies in.
    pub(crate) fn containing(&self, address: u64) -> Option<TileId> {
        let range = self.range_of(address)?;
        let start = |tile| record(&self.records, tile).address;
        let known = range.directory.first_near(address)?;
        if start(known) > address {
            return self.before(known);
        }
        let later = |tile: &TileId| self.after(*tile).filter(|&next| start(next) <= address);
        std::iter::successors(Some(known), later).last()
    }

    /// The tile that starts at an address.
    pub(crate) fn at(&self, address: u64) -> Option<TileId> {
        self.containing(address).filter(|&tile| record(&self.records, tile).address == address)
    }

    /// A tile and those behind it, to the end of the range.
    pub(crate) fn from(&self, tile: TileId) -> impl Iterator<Item = TileId> + '_ {
        std::iter::successors(Some(tile), |&tile| self.after(tile))
    }

    /// The tiles of each range, in the order of addresses.
    pub(crate) fn by_range(&self) -> impl Iterator<Item = impl Iterator<Item = (u64, Tile)> + '_> + '_ {
        self.ranges().map(|(start, _)| {
            let first = self.at(start).expect("a range starts with a tile");
            self.from(first).map(|tile| self.get(tile))
        })
    }

    /// All tiles with their numbers, in no order.
    pub(crate) fn all(&self) -> impl Iterator<Item = (TileId, u64, Tile)> + '_ {
        self.records.iter().map(|(number, record)| {
            (TileId(number as u32), record.address, Tile { bytes: record.bytes, content: record.content })
        })
    }

    /// What a tile holds, if there is one of this number.
    pub(crate) fn find(&self, tile: TileId) -> Option<(u64, Tile)> {
        self.records.contains(tile.0 as usize).then(|| self.get(tile))
    }

    /// The unmapped tiles, in the order of addresses.
    pub(crate) fn holes(&self) -> impl Iterator<Item = TileId> + '_ {
        self.holes.values().copied()
    }

    /// The smallest free tile of at least so many bytes, the lowest address first.
    pub(crate) fn best_free(&self, bytes: u64) -> Option<TileId> {
        self.sizes.best(&self.records, bytes)
    }

    /// The free tiles of at least so many bytes, by size and then by address.
    pub(crate) fn free_from(&self, bytes: u64) -> Vec<TileId> {
        self.sizes.from(&self.records, bytes)
    }

    /// Length of the largest free tile, bytes.
    pub(crate) fn largest_free(&self) -> u64 {
        self.sizes.largest(&self.records).map_or(0, |tile| record(&self.records, tile).bytes)
    }

    /// Gives the first `bytes` of a free tile another content, which joins no neighbour; the rest stays free.
    pub(crate) fn split_off(&mut self, tile: TileId, bytes: u64, content: Content) {
        self.unlist(tile);
        if record(&self.records, tile).bytes > bytes {
            let rest = self.cut(tile, bytes);
            self.list(rest);
        }
        record_mut(&mut self.records, tile).content = content;
    }

    /// Changes what a tile holds that is neither free nor unmapped, before and after: it joins no neighbour.
    #[inline]
    pub(crate) fn set(&mut self, tile: TileId, content: Content) {
        record_mut(&mut self.records, tile).content = content;
    }

    /// Changes what a tile holds, and joins it with neighbours of its new kind. The number of what it becomes.
    pub(crate) fn turn(&mut self, mut tile: TileId, content: Content) -> TileId {
        self.unlist(tile);
        let mut content = content;
        let here = record(&self.records, tile);
        let (before, after) = (here.before.tile(), here.after.tile());
        if let Some(before) = before
            && let Some(joined) = join(record(&self.records, before).content, content)
        {
            self.unlist(before);
            self.swallow(before, tile);
            (tile, content) = (before, joined);
        }
        if let Some(after) = after
            && let Some(joined) = join(content, record(&self.records, after).content)
        {
            self.unlist(after);
            self.swallow(tile, after);
            content = joined;
        }
        record_mut(&mut self.records, tile).content = content;
        self.list(tile);
        tile
    }

    /// Changes what a part of one tile holds, and joins it with neighbours of its new kind.
    pub(crate) fn carve(&mut self, address: u64, bytes: u64, content: Content) {
        let tile = self.containing(address).expect("what is carved lies in a range");
        let (start, old) = self.get(tile);
        assert!(address + bytes <= start + old.bytes, "what is carved lies in one tile");
        self.unlist(tile);
        let part = if start < address { self.cut(tile, address - start) } else { tile };
        if address + bytes < start + old.bytes {
            let rest = self.cut(part, bytes);
            self.list(rest);
        }
        if part != tile {
            self.list(tile);
        }
        // On no list any more, whatever it held.
        record_mut(&mut self.records, part).content = Content::Coming;
        self.turn(part, content);
    }

    /// Cuts a tile that is not listed in two; both hold the same. The second.
    fn cut(&mut self, tile: TileId, bytes: u64) -> TileId {
        let first = record_mut(&mut self.records, tile);
        let second = Record {
            address: first.address + bytes,
            bytes: first.bytes - bytes,
            content: first.content,
            before: Link::to(tile),
            after: first.after,
            left: Link::NONE,
            right: Link::NONE,
            range: first.range,
        };
        first.bytes = bytes;
        let after = second.after.tile();
        let new = self.add(second);
        record_mut(&mut self.records, tile).after = Link::to(new);
        if let Some(after) = after {
            record_mut(&mut self.records, after).before = Link::to(new);
        }
        new
    }

    /// Makes the tile behind `tile` a part of it. Neither is listed.
    fn swallow(&mut self, tile: TileId, behind: TileId) {
        let gone = record(&self.records, behind);
        let (address, after, range) = (gone.address, gone.after, gone.range);
        let start = |tile: TileId| record(&self.records, tile).address;
        self.ranges[range as usize].directory.remove(behind, address, after.tile().map(|next| (next, start(next))));
        let gone = self.records.remove(behind.0 as usize);
        let grown = record_mut(&mut self.records, tile);
        grown.bytes += gone.bytes;
        grown.after = gone.after;
        if let Some(after) = gone.after.tile() {
            record_mut(&mut self.records, after).before = Link::to(tile);
        }
    }

    fn add(&mut self, new: Record) -> TileId {
        let (address, range) = (new.address, new.range as usize);
        let number = self.records.insert(new);
        let tile =
            TileId(u32::try_from(number).ok().filter(|&n| n < Link::NONE.0 >> 1).expect("fewer than 2^31 tiles"));
        self.ranges[range].directory.insert(tile, address, |other| record(&self.records, other).address);
        tile
    }

    /// A tile can be found from now on by what it holds.
    fn list(&mut self, tile: TileId) {
        let Record { content, address, .. } = *record(&self.records, tile);
        match content {
            Content::Free { .. } => self.sizes.insert(&mut self.records, tile),
            Content::Unmapped => drop(self.holes.insert(address, tile)),
            _ => {}
        }
    }

    fn unlist(&mut self, tile: TileId) {
        let Record { content, address, .. } = *record(&self.records, tile);
        match content {
            Content::Free { .. } => self.sizes.remove(&mut self.records, tile),
            Content::Unmapped => drop(self.holes.remove(&address)),
            _ => {}
        }
    }

    /// Checks what the module's documentation says; the first broken rule in words.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut seen = 0;
        for ((start, length), tiles) in self.ranges().zip(self.by_range()) {
            seen += self.check_range(start, length, tiles)?;
        }
        if seen != self.records.len() {
            return Err(format!("{} tiles, of which {seen} lie in ranges", self.records.len()));
        }
        for (tile, address, _) in self.all() {
            if self.at(address) != Some(tile) {
                return Err(format!("the directory does not find the tile at {address:#x}"));
            }
        }
        let free = self.all().filter(|(_, _, tile)| matches!(tile.content, Content::Free { .. }));
        let mut free: Vec<(u64, u64)> = free.map(|(_, address, tile)| (tile.bytes, address)).collect();
        free.sort_unstable();
        if free != self.sizes.check(&self.records)? {
            return Err("the index of free tiles does not list the free tiles".into());
        }
        let unmapped = self.all().filter(|(_, _, tile)| tile.content == Content::Unmapped);
        let unmapped: BTreeMap<u64, TileId> = unmapped.map(|(tile, address, _)| (address, tile)).collect();
        match unmapped == self.holes {
            true => Ok(()),
            false => Err("the index of unmapped tiles does not list the unmapped tiles".into()),
        }
    }

    fn check_range(&self, start: u64, length: u64, tiles: impl Iterator<Item = (u64, Tile)>) -> Result<usize, String> {
        let mut expected = start;
        let mut before: Option<Content> = None;
        let mut seen = 0;
        for (address, tile) in tiles {
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
            (expected, before, seen) = (address + tile.bytes, Some(tile.content), seen + 1);
        }
        if expected != start + length {
            return Err(format!("the tiles end at {expected:#x}, the range at {:#x}", start + length));
        }
        Ok(seen)
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
