//! Finding tiles of one range by address.
//!
//! The range is cut into cells, none larger than a granule. The directory names the first tile that starts in each cell;
//! a bit for each cell tells those in which one does. A large tile starts in one cell and is listed once, so an entry
//! changes only where a tile comes or goes.

use super::TileId;

#[derive(Debug)]
pub(super) struct Directory {
    start: u64,
    /// Logarithm of the bytes of a cell.
    shift: u32,
    /// By cell: one more than the number of the first tile that starts in it; 0 for none. Zeros take no memory.
    first: Vec<u32>,
    /// A bit for each cell: whether a tile starts in it.
    taken: Vec<u64>,
}

impl Directory {
    /// Of a range without tiles. Cells are the largest power of two that divides the granularity.
    pub(super) fn new(start: u64, bytes: u64, granularity: u64) -> Self {
        let shift = granularity.trailing_zeros();
        let cells = usize::try_from(bytes >> shift).expect("a range fits the address space");
        Directory { start, shift, first: vec![0; cells], taken: vec![0; cells.div_ceil(64)] }
    }

    fn cell(&self, address: u64) -> usize {
        ((address - self.start) >> self.shift) as usize
    }

    /// A tile starts at `address` from now on. `start` tells where others do.
    #[inline]
    pub(super) fn insert(&mut self, tile: TileId, address: u64, start: impl Fn(TileId) -> u64) {
        let cell = self.cell(address);
        let entry = &mut self.first[cell];
        match *entry {
            0 => self.taken[cell / 64] |= 1 << (cell % 64),
            other if start(TileId(other - 1)) < address => return,
            _ => {}
        }
        *entry = tile.0 + 1;
    }

    /// The tile at `address` is about to be part of the one before. `after` is the next one, and where it starts.
    #[inline]
    pub(super) fn remove(&mut self, tile: TileId, address: u64, after: Option<(TileId, u64)>) {
        let cell = self.cell(address);
        if self.first[cell] != tile.0 + 1 {
            return;
        }
        match after.filter(|&(_, next)| self.cell(next) == cell) {
            Some((next, _)) => self.first[cell] = next.0 + 1,
            None => {
                self.first[cell] = 0;
                self.taken[cell / 64] &= !(1 << (cell % 64));
            }
        }
    }

    /// The first tile that starts in the cell of `address`, or else in the last cell before in which one does.
    pub(super) fn first_near(&self, address: u64) -> Option<TileId> {
        let cell = self.cell(address);
        let mut word = cell / 64;
        let mut bits = self.taken[word] & (u64::MAX >> (63 - cell % 64));
        while bits == 0 {
            word = word.checked_sub(1)?;
            bits = self.taken[word];
        }
        let found = word * 64 + 63 - bits.leading_zeros() as usize;
        Some(TileId(self.first[found] - 1))
    }
}
