//! The integers of the core, each with its meaning, and the rounding of requests.

/// Blocks start and end on multiples of this, bytes: the alignment that the allocator promises.
pub const ROUNDING_BYTES: u64 = 512;

/// Requests up to this size, bytes, live apart from larger ones, so that a long-lived small block does not cut a hole
/// into the room of large ones.
pub const SMALL_BYTES: u64 = 1 << 20;

/// A stream, as the core knows it: a small number, used again only after all work of its former holder is complete.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamIndex(pub u32);

/// A point in a stream: how many marks (submissions, frees) it has seen so far. 0 is before everything.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Position(pub u64);

/// A block that a heap has given out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockId(pub u32);

/// A handle of physical memory, as its device names it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageId(pub u64);

/// `bytes` rounded up to a multiple of [`ROUNDING_BYTES`], at least one; `None` on overflow.
#[must_use]
pub fn rounded(bytes: u64) -> Option<u64> {
    bytes.max(1).checked_next_multiple_of(ROUNDING_BYTES)
}
