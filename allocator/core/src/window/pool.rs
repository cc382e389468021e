//! The spare handles that a window is filled with, largest first.

use std::collections::BTreeSet;

use super::{Piece, Spare, Supply};

/// Spare handles that are not yet taken, by size.
pub(super) struct Pool<'a> {
    spares: &'a [Spare],
    create: Option<u64>,
    /// Whether nothing is mapped beyond what is needed.
    exact: bool,
    /// (bytes, number): of one size the one that is listed first is taken first.
    left: BTreeSet<(u64, usize)>,
}

impl<'a> Pool<'a> {
    pub(super) fn new(supply: &Supply<'a>, used: impl Fn(&Spare, usize) -> bool) -> Self {
        let left = supply.spares.iter().enumerate().filter(|&(number, spare)| !used(spare, number));
        let left = left.map(|(number, spare)| (spare.bytes, number)).collect();
        Pool { spares: supply.spares, create: supply.create, exact: supply.blind, left }
    }

    /// What is mapped at `to`, where `wanted` bytes are missing and at most `room` fit.
    ///
    /// The largest spare handle that is not too large comes first; one that is too small to be worth a mapping is left
    /// for the end, so that a larger one, of which a part stays free, goes before it.
    pub(super) fn piece(&mut self, to: u64, wanted: u64, room: u64, granularity: u64) -> Option<Piece> {
        let worth = self.create.unwrap_or(granularity).min(wanted);
        let below = self.largest(wanted.min(room));
        let above = self.left.range((wanted + 1, 0)..).next().copied();
        let above = above.filter(|&(bytes, _)| bytes <= room && !self.exact);
        let taken = below.filter(|&(bytes, _)| bytes >= worth).or(above).or(below);
        if let Some((bytes, number)) = taken {
            self.left.remove(&(bytes, number));
            return Some(Piece::Move { spare: self.spares[number], to });
        }
        let granules = self.create?.min(wanted).min(room) / granularity;
        if granules == 0 {
            return None;
        }
        Some(Piece::Create { to, bytes: granularity * granules })
    }

    /// Of the largest that are not above `most`, the first.
    fn largest(&self, most: u64) -> Option<(u64, usize)> {
        let &(bytes, _) = self.left.range(..=(most, usize::MAX)).next_back()?;
        self.left.range((bytes, 0)..).next().copied()
    }
}
