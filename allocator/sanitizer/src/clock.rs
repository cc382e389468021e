//! Vector clocks over lanes.
//!
//! A lane is the column of one stream. Its ticks number what the stream was given; a clock says up to which tick of each
//! lane everything is known to come before.

/// The column of a stream. It may serve another stream later; its ticks go on then.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Lane(pub(crate) usize);

/// One point of one lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Epoch {
    pub(crate) lane: Lane,
    /// The first operation has 1.
    pub(crate) tick: u64,
}

/// A tick for each lane; lanes that are not there have 0.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct VectorClock {
    ticks: Vec<u64>,
}

impl VectorClock {
    /// The last tick of a lane that comes before.
    pub(crate) fn of(&self, lane: Lane) -> u64 {
        self.ticks.get(lane.0).copied().unwrap_or(0)
    }

    /// Whether a point comes before.
    pub(crate) fn covers(&self, epoch: Epoch) -> bool {
        self.of(epoch.lane) >= epoch.tick
    }

    /// The next tick of a lane.
    pub(crate) fn advance(&mut self, lane: Lane) -> Epoch {
        if self.ticks.len() <= lane.0 {
            self.ticks.resize(lane.0 + 1, 0);
        }
        self.ticks[lane.0] += 1;
        Epoch { lane, tick: self.ticks[lane.0] }
    }

    /// What comes before `other` comes before this too.
    pub(crate) fn join(&mut self, other: &VectorClock) {
        if self.ticks.len() < other.ticks.len() {
            self.ticks.resize(other.ticks.len(), 0);
        }
        for (own, &theirs) in self.ticks.iter_mut().zip(&other.ticks) {
            *own = (*own).max(theirs);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_takes_the_later_tick_of_each_lane() {
        let (a, b) = (Lane(0), Lane(2));
        let (mut left, mut right) = (VectorClock::default(), VectorClock::default());
        let first = left.advance(a);
        left.advance(a);
        let other = right.advance(b);
        assert!(left.covers(first) && !left.covers(other) && !right.covers(first));
        left.join(&right);
        assert_eq!((left.of(a), left.of(Lane(1)), left.of(b)), (2, 0, 1));
        right.join(&left);
        assert_eq!(left, right);
    }
}
