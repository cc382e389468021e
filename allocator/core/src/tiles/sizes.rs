//! Finding free tiles by size: the smallest that is large enough, and of those of its size the one at the lowest address.
//!
//! Sizes are divided into classes, 128 to a power of two, each of one size where sizes are small. A class is a treap of its
//! tiles by size and address, linked through the records themselves; a bitmap tells the classes that have any. Classes
//! hold few tiles each, so a search takes a bounded number of steps in practice, and the logarithm of a class at worst.

use super::{Link, Record, Records, TileId, record, record_mut};
use crate::ROUNDING_BYTES;

/// Logarithm of the number of classes to a power of two.
const FINE: u32 = 7;
/// Sizes below this, in units of the rounding, have a class each.
const EXACT: u64 = 2 << FINE;
/// The largest unit count that a `u64` of bytes has is below 2^55.
const CLASSES: usize = (EXACT + ((55 - FINE as u64 - 1) << FINE)) as usize;
const WORDS: usize = CLASSES.div_ceil(64);

#[derive(Debug)]
pub(super) struct Sizes {
    roots: Box<[Link]>,
    /// A bit for each class: whether it has a tile.
    some: [u64; WORDS],
    /// A bit for each of those words: whether it is not 0.
    words: u128,
}

/// The class of a size, ascending with it.
#[inline]
fn class(bytes: u64) -> usize {
    let units = bytes / ROUNDING_BYTES;
    if units < EXACT {
        return units as usize;
    }
    let exponent = units.ilog2() - FINE;
    ((u64::from(exponent) << FINE) + (units >> exponent)) as usize
}

type Key = (u64, u64);

fn key(records: &Records, tile: TileId) -> Key {
    let Record { bytes, address, .. } = *record(records, tile);
    (bytes, address)
}

/// Whether a tile stands above another one in a treap: a mixture of their numbers decides, which have nothing to do with
/// sizes and addresses. (Knuth's multiplicative hash; being odd, it maps numbers one to one.)
fn is_above(a: TileId, b: TileId) -> bool {
    let rank = |tile: TileId| tile.0.wrapping_mul(0x9e37_79b1);
    rank(a) > rank(b)
}

impl Sizes {
    pub(super) fn new() -> Self {
        const { assert!(WORDS <= 128, "a bit for each word") };
        Sizes { roots: vec![Link::NONE; CLASSES].into(), some: [0; WORDS], words: 0 }
    }

    #[inline]
    pub(super) fn insert(&mut self, records: &mut Records, tile: TileId) {
        let new = record_mut(records, tile);
        let class = class(new.bytes);
        let root = self.roots[class];
        if root == Link::NONE {
            // Most classes have one tile, if any.
            (new.left, new.right) = (Link::NONE, Link::NONE);
            self.some[class / 64] |= 1 << (class % 64);
            self.words |= 1 << (class / 64);
            self.roots[class] = Link::to(tile);
        } else {
            self.roots[class] = insert(records, root, tile);
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, records: &mut Records, tile: TileId) {
        let old = record(records, tile);
        let class = class(old.bytes);
        let alone = self.roots[class] == Link::to(tile) && (old.left, old.right) == (Link::NONE, Link::NONE);
        let root = if alone { Link::NONE } else { remove(records, self.roots[class], tile) };
        self.roots[class] = root;
        if root == Link::NONE {
            self.some[class / 64] &= !(1 << (class % 64));
            if self.some[class / 64] == 0 {
                self.words &= !(1 << (class / 64));
            }
        }
    }

    /// The first tile of at least `bytes`, by size and then by address.
    #[inline]
    pub(super) fn best(&self, records: &Records, bytes: u64) -> Option<TileId> {
        let first = class(bytes);
        let here = least_from(records, self.roots[first], (bytes, 0));
        here.or_else(|| Some(least(records, self.roots[self.next_class(first + 1)?].tile()?)))
    }

    /// The first class from `class` on that has a tile.
    fn next_class(&self, class: usize) -> Option<usize> {
        let (word, bit) = (class / 64, class % 64);
        let rest = self.some.get(word)? & (u64::MAX << bit);
        if rest != 0 {
            return Some(word * 64 + rest.trailing_zeros() as usize);
        }
        let later = self.words & u128::MAX.checked_shl(word as u32 + 1).unwrap_or(0);
        let word = (later != 0).then(|| later.trailing_zeros() as usize)?;
        Some(word * 64 + self.some[word].trailing_zeros() as usize)
    }

    /// The tiles of at least `bytes`, by size and then by address.
    pub(super) fn from(&self, records: &Records, bytes: u64) -> Vec<TileId> {
        let mut found = Vec::new();
        let mut next = self.next_class(class(bytes));
        while let Some(class) = next {
            gather(records, self.roots[class], bytes, &mut found);
            next = self.next_class(class + 1);
        }
        found
    }

    /// The largest tile.
    pub(super) fn largest(&self, records: &Records) -> Option<TileId> {
        let word = self.words.checked_ilog2()? as usize;
        let class = word * 64 + self.some[word].ilog2() as usize;
        let right = |&tile: &TileId| record(records, tile).right.tile();
        std::iter::successors(self.roots[class].tile(), right).last()
    }

    /// All keys in order, if every rule holds.
    pub(super) fn check(&self, records: &Records) -> Result<Vec<Key>, String> {
        let mut keys = Vec::new();
        for (number, &root) in self.roots.iter().enumerate() {
            let from = keys.len();
            collect(records, root, &mut keys)?;
            let marked = self.some[number / 64] >> (number % 64) & 1 == 1;
            if marked != (root != Link::NONE) || keys[from..].iter().any(|&(bytes, _)| class(bytes) != number) {
                return Err(format!("the class {number} of free tiles is not what it says"));
            }
        }
        if (0..WORDS).any(|word| (self.words >> word & 1 == 1) != (self.some[word] != 0)) {
            return Err("the classes of free tiles are not what their summary says".into());
        }
        match keys.is_sorted() {
            true => Ok(keys),
            false => Err("free tiles are not in order".into()),
        }
    }
}

fn insert(records: &mut Records, root: Link, tile: TileId) -> Link {
    let Some(top) = root.tile().filter(|&top| !is_above(tile, top)) else {
        let (left, right) = split(records, root, key(records, tile));
        let new = record_mut(records, tile);
        (new.left, new.right) = (left, right);
        return Link::to(tile);
    };
    if key(records, tile) < key(records, top) {
        let left = insert(records, record(records, top).left, tile);
        record_mut(records, top).left = left;
    } else {
        let right = insert(records, record(records, top).right, tile);
        record_mut(records, top).right = right;
    }
    root
}

/// Removes a tile that is there.
fn remove(records: &mut Records, root: Link, tile: TileId) -> Link {
    let top = root.tile().expect("a free tile is in the treap of its class");
    if top == tile {
        let Record { left, right, .. } = *record(records, tile);
        return merge(records, left, right);
    }
    if key(records, tile) < key(records, top) {
        let left = remove(records, record(records, top).left, tile);
        record_mut(records, top).left = left;
    } else {
        let right = remove(records, record(records, top).right, tile);
        record_mut(records, top).right = right;
    }
    root
}

/// What comes before a key, and what does not.
fn split(records: &mut Records, root: Link, at: Key) -> (Link, Link) {
    let Some(top) = root.tile() else { return (Link::NONE, Link::NONE) };
    if key(records, top) < at {
        let (left, right) = split(records, record(records, top).right, at);
        record_mut(records, top).right = left;
        (root, right)
    } else {
        let (left, right) = split(records, record(records, top).left, at);
        record_mut(records, top).left = right;
        (left, root)
    }
}

/// One treap of two, of which the first comes before the second.
fn merge(records: &mut Records, left: Link, right: Link) -> Link {
    let (Some(a), Some(b)) = (left.tile(), right.tile()) else {
        return if left == Link::NONE { right } else { left };
    };
    if is_above(a, b) {
        let joined = merge(records, record(records, a).right, right);
        record_mut(records, a).right = joined;
        left
    } else {
        let joined = merge(records, left, record(records, b).left);
        record_mut(records, b).left = joined;
        right
    }
}

fn least(records: &Records, root: TileId) -> TileId {
    let left = |&tile: &TileId| record(records, tile).left.tile();
    std::iter::successors(Some(root), left).last().expect("it starts with one")
}

/// The first tile whose key is not below `from`.
fn least_from(records: &Records, root: Link, from: Key) -> Option<TileId> {
    let (mut at, mut found) = (root.tile(), None);
    while let Some(tile) = at {
        let here = record(records, tile);
        if (here.bytes, here.address) >= from {
            (at, found) = (here.left.tile(), Some(tile));
        } else {
            at = here.right.tile();
        }
    }
    found
}

/// Adds the tiles of a treap of at least `bytes`, in order.
fn gather(records: &Records, root: Link, bytes: u64, found: &mut Vec<TileId>) {
    let Some(top) = root.tile() else { return };
    let here = record(records, top);
    if here.bytes >= bytes {
        gather(records, here.left, bytes, found);
        found.push(top);
    }
    gather(records, here.right, bytes, found);
}

/// The keys of a treap in order; an error when a tile stands above its better.
fn collect(records: &Records, root: Link, keys: &mut Vec<Key>) -> Result<(), String> {
    let Some(top) = root.tile() else { return Ok(()) };
    let Record { left, right, .. } = *record(records, top);
    if [left, right].into_iter().filter_map(Link::tile).any(|child| is_above(child, top)) {
        return Err("a treap of free tiles is out of order".into());
    }
    collect(records, left, keys)?;
    keys.push(key(records, top));
    collect(records, right, keys)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn classes_ascend_with_sizes_and_small_ones_are_exact() {
        let sizes = (0..4096).chain((12..55).flat_map(|power| {
            let unit = 1_u64 << power;
            [unit - 1, unit, unit + 1, unit + unit / 32, unit + unit / 32 - 1, unit + unit / 2]
        }));
        let mut sizes: Vec<u64> = sizes.filter(|&units| units < 1 << 55).collect();
        sizes.sort_unstable();
        let classes: Vec<usize> = sizes.iter().map(|units| class(units * ROUNDING_BYTES)).collect();
        assert!(classes.is_sorted() && classes.iter().all(|&class| class < CLASSES));
        assert!((0..EXACT).all(|units| class(units * ROUNDING_BYTES) == units as usize));
        assert_eq!(class(u64::MAX), CLASSES - 1);
        // No class is wider than a part in 32 of its sizes.
        assert_ne!(class((1 << 20) * ROUNDING_BYTES), class(((1 << 20) + (1 << 15)) * ROUNDING_BYTES));
    }
}
