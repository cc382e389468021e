//! What to try when no free memory of the stream fits, and in which order.

use std::fmt;

/// One rung: an action that may make room. After each the heap is searched again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Rung {
    /// The stream's own free memory: no action, just the search.
    OwnFree,
    /// Ask the fences that the stream's own pending frees wait for.
    OwnPending,
    /// Bring free handles together, of any heap, whose last uses are complete or proven to come first.
    Move,
    /// Put waits on the stream, so that it comes after just the frees that suffice; then after the last uses of free
    /// handles of other heaps, and bring those together.
    Order,
    /// Map more memory.
    Grow,
    /// Ask the program to free something.
    Callbacks,
    /// Unmap free memory whose last use the host has seen complete, of every heap, and grow.
    ReturnCached,
    /// Block the host, for a bounded time, until just the frees that suffice are complete.
    HostWaitOwn,
    /// Block the host, for a bounded time, until free memory of other heaps can be unmapped, or own memory is free beside
    /// which less has to be mapped, and grow.
    HostWaitOthers,
}

impl Rung {
    /// Every rung, bottom up. Where memory is preferred to waits, [`Rung::Order`] comes after [`Rung::Grow`].
    pub const ALL: [Rung; 9] = [
        Rung::OwnFree,
        Rung::OwnPending,
        Rung::Move,
        Rung::Order,
        Rung::Grow,
        Rung::Callbacks,
        Rung::ReturnCached,
        Rung::HostWaitOwn,
        Rung::HostWaitOthers,
    ];

    /// The name in statistics: lower case, with underscores.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Rung::OwnFree => "own_free",
            Rung::OwnPending => "own_pending",
            Rung::Move => "move",
            Rung::Order => "order",
            Rung::Grow => "grow",
            Rung::Callbacks => "callbacks",
            Rung::ReturnCached => "return_cached",
            Rung::HostWaitOwn => "host_wait_own",
            Rung::HostWaitOthers => "host_wait_others",
        }
    }

    /// Whether the action asks, records or waits for fences, which would break a capture.
    #[must_use]
    pub fn touches_fences(self) -> bool {
        !matches!(self, Rung::OwnFree | Rung::Grow | Rung::Callbacks)
    }
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What is preferred where free memory is there, but a stream would have to wait for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// The stream waits, on the device. Memory stays as small as what is in use.
    Wait,
    /// Memory grows as long as it can. No stream waits that need not.
    #[default]
    Grow,
}

/// One climb: search, then [`next`](Ladder::next) for the action to take before searching again, until the search
/// succeeds or there is no rung left.
#[derive(Debug)]
pub struct Ladder {
    policy: Policy,
    standing_on: usize,
}

impl Ladder {
    /// At the bottom: own free memory is searched first.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Ladder { policy, standing_on: 0 }
    }

    /// Where the climb stands: the rung whose search comes next or succeeded.
    #[must_use]
    pub fn rung(&self) -> Rung {
        self.at(self.standing_on).expect("the climb stands on a rung")
    }

    /// The next rung, or `None` at the top: the request cannot be met. While a stream of the device captures, no rung
    /// that touches fences is offered.
    pub fn next(&mut self, capturing: bool) -> Option<Rung> {
        loop {
            let rung = self.at(self.standing_on + 1)?;
            self.standing_on += 1;
            if !(capturing && rung.touches_fences()) {
                return Some(rung);
            }
        }
    }

    fn at(&self, place: usize) -> Option<Rung> {
        Some(match (*Rung::ALL.get(place)?, self.policy) {
            (Rung::Order, Policy::Grow) => Rung::Grow,
            (Rung::Grow, Policy::Grow) => Rung::Order,
            (rung, _) => rung,
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_capture_is_offered_no_fence() {
        let mut ladder = Ladder::new(Policy::Wait);
        let climbed: Vec<Rung> = std::iter::from_fn(|| ladder.next(true)).collect();
        assert_eq!(climbed, [Rung::Grow, Rung::Callbacks]);
    }

    #[test]
    fn the_policy_says_whether_memory_or_waits_come_first() {
        let mut ladder = Ladder::new(Policy::Grow);
        let climbed: Vec<Rung> = std::iter::from_fn(|| ladder.next(false)).collect();
        assert_eq!(climbed[1..4], [Rung::Move, Rung::Grow, Rung::Order]);
    }

    #[test]
    fn waiting_comes_last() {
        let mut ladder = Ladder::new(Policy::Wait);
        let climbed: Vec<Rung> = std::iter::from_fn(|| ladder.next(false)).collect();
        assert_eq!(climbed, Rung::ALL[1..]);
        assert_eq!(ladder.rung(), Rung::HostWaitOthers);
    }
}
