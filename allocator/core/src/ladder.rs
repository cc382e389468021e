//! What to try when no free memory of the stream fits, and in which order.

use std::fmt;

/// One rung: an action that may make room. After each the heap is searched again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Rung {
    /// The stream's own free memory: no action, just the search.
    OwnFree,
    /// Ask the fences that the stream's own pending frees wait for.
    OwnPending,
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
    /// Every rung, bottom up.
    pub const ALL: [Rung; 7] = [
        Rung::OwnFree,
        Rung::OwnPending,
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
        matches!(self, Rung::OwnPending | Rung::ReturnCached | Rung::HostWaitOwn | Rung::HostWaitOthers)
    }
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One climb: search, then [`next`](Ladder::next) for the action to take before searching again, until the search
/// succeeds or there is no rung left.
#[derive(Debug, Default)]
pub struct Ladder {
    standing_on: usize,
}

impl Ladder {
    /// At the bottom: own free memory is searched first.
    #[must_use]
    pub fn new() -> Self {
        Ladder { standing_on: 0 }
    }

    /// Where the climb stands: the rung whose search comes next or succeeded.
    #[must_use]
    pub fn rung(&self) -> Rung {
        Rung::ALL[self.standing_on]
    }

    /// The next rung, or `None` at the top: the request cannot be met. While a stream of the device captures, no rung
    /// that touches fences is offered.
    pub fn next(&mut self, capturing: bool) -> Option<Rung> {
        loop {
            let rung = *Rung::ALL.get(self.standing_on + 1)?;
            self.standing_on += 1;
            if !(capturing && rung.touches_fences()) {
                return Some(rung);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_capture_is_offered_no_fence() {
        let mut ladder = Ladder::new();
        let climbed: Vec<Rung> = std::iter::from_fn(|| ladder.next(true)).collect();
        assert_eq!(climbed, [Rung::Grow, Rung::Callbacks]);
    }

    #[test]
    fn waiting_comes_last() {
        let mut ladder = Ladder::new();
        let climbed: Vec<Rung> = std::iter::from_fn(|| ladder.next(false)).collect();
        assert_eq!(climbed, Rung::ALL[1..]);
        assert_eq!(ladder.rung(), Rung::HostWaitOthers);
    }
}
