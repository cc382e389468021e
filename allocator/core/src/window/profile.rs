//! What stretches of a run hold, so that what any window of it holds is a difference of two sums.

use super::{Ghost, GhostState, Search};
use crate::space::bounds;
use crate::tiles::{Content, Tile};

/// What stretches of a run hold, added up; all but counts in bytes.
#[derive(Clone, Copy, Default)]
pub(super) struct Sums {
    /// Nothing usable is mapped.
    pub(super) missing: u64,
    /// Stretches of such addresses.
    pub(super) holes: u64,
    /// In spare handles that are here already, or come back here.
    pub(super) spare: u64,
    /// Old mappings that are removed.
    pub(super) removed: u64,
    /// Old mappings that are in the way.
    pub(super) blocked: u64,
}

/// A run as stretches of one kind each, so that what a window holds is a difference of two sums.
pub(super) struct Profile {
    /// Where the stretches start, and where the last one ends.
    pub(super) edges: Vec<u64>,
    /// What each stretch holds in each of its granules, or once.
    kinds: Vec<Sums>,
    /// What all stretches before hold.
    before: Vec<Sums>,
    granule: u64,
}

impl Profile {
    pub(super) fn new<G: Fn(Ghost) -> GhostState>(search: &Search<'_, G>, run: &[(u64, Tile)]) -> Self {
        let granule = search.space.granularity();
        let mut profile = Profile { edges: Vec::new(), kinds: Vec::new(), before: vec![Sums::default()], granule };
        for &(start, tile) in run {
            let end = start + tile.bytes;
            if tile.content != Content::Unmapped {
                let handles = search.space.mappings_in(start, end);
                let whole = handles.filter(|mapping| mapping.address + mapping.bytes <= end);
                let spare = if search.supply.blind { 0 } else { whole.map(|mapping| mapping.bytes).sum() };
                profile.push(start, Sums { spare, ..Sums::default() });
                continue;
            }
            let mut from = start;
            for ghost in search.space.ghosts_in(start, end) {
                let kind = match ((search.ghost_state)(ghost), search.spare_of(ghost)) {
                    (GhostState::Gone, _) => continue,
                    (_, Some(_)) => Sums { spare: ghost.bytes, ..Sums::default() },
                    (GhostState::Over, None) => Sums { missing: ghost.bytes, removed: 1, ..Sums::default() },
                    (GhostState::Used, None) => Sums { blocked: 1, ..Sums::default() },
                };
                profile.hole(from, ghost.address);
                profile.push(ghost.address, kind);
                from = ghost.address + ghost.bytes;
            }
            profile.hole(from, end);
        }
        let (_, end) = bounds(run);
        profile.edges.push(end);
        profile
    }

    fn hole(&mut self, from: u64, to: u64) {
        if from < to {
            self.push(from, Sums { missing: to - from, holes: 1, ..Sums::default() });
        }
    }

    fn push(&mut self, start: u64, kind: Sums) {
        let last = *self.before.last().expect("there is one from the beginning");
        self.edges.push(start);
        self.kinds.push(kind);
        self.before.push(Sums {
            missing: last.missing + kind.missing,
            holes: last.holes + kind.holes,
            spare: last.spare + kind.spare,
            removed: last.removed + kind.removed,
            blocked: last.blocked + kind.blocked,
        });
    }

    /// What the stretches that `start..end` touches hold: those at its ends wholly, but for the bytes that are missing.
    pub(super) fn sums(&self, start: u64, end: u64) -> Sums {
        let first = self.edges.partition_point(|&edge| edge <= start) - 1;
        let last = self.edges.partition_point(|&edge| edge < end);
        let (from, to) = (self.before[first], self.before[last]);
        let outside = self.outside(first, self.edges[first], start / self.granule * self.granule)
            + self.outside(last - 1, end.next_multiple_of(self.granule), self.edges[last]);
        Sums {
            missing: to.missing - from.missing - outside,
            holes: to.holes - from.holes,
            spare: to.spare - from.spare,
            removed: to.removed - from.removed,
            blocked: to.blocked - from.blocked,
        }
    }

    /// The bytes of `from..to` that are missing in a stretch, of which they are a part.
    fn outside(&self, stretch: usize, from: u64, to: u64) -> u64 {
        if self.kinds[stretch].missing > 0 { to.saturating_sub(from) } else { 0 }
    }
}
