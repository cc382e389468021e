//! What became free lately, so that it is known of each handle by itself since when nobody uses it.
//!
//! Free tiles that lie side by side are one tile, which is as young as its youngest part: a large free tile, of which a
//! corner was freed just now, says nothing of all the other handles in it. Writing the truth into each handle at each free
//! would cost the free; so frees leave a trail, and who looks for handles follows it first.

use std::collections::VecDeque;

use crate::Position;

/// The most entries. Older ones are forgotten but for the latest position among them.
const KEPT: usize = 512;

/// A stretch of memory that became free.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// The position of the owner after which nobody uses it.
    pub(crate) since: Position,
}

/// The stretches that became free, since it was last followed.
#[derive(Debug, Default)]
pub(crate) struct Trail {
    steps: VecDeque<Step>,
    /// The latest position of those that were forgotten.
    forgotten: Position,
}

impl Trail {
    /// A stretch became free.
    #[inline]
    pub(crate) fn leave(&mut self, step: Step) {
        if self.steps.len() == KEPT
            && let Some(oldest) = self.steps.pop_front()
        {
            self.forgotten = self.forgotten.max(oldest.since);
        }
        self.steps.push_back(step);
    }

    /// All that is kept, and from now on no more.
    pub(crate) fn follow(&mut self) -> impl Iterator<Item = Step> + '_ {
        self.steps.drain(..)
    }

    /// Whatever is not among the steps was free before this position, or told otherwise.
    pub(crate) fn forgotten(&self) -> Position {
        self.forgotten
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_forgotten_counts_as_late_as_the_latest_of_it() {
        let mut trail = Trail::default();
        // Messages come late: positions do not only grow.
        let since = |number: u64| Position(if number == 0 { 100 } else { number % 100 });
        let step = |number: u64| Step { address: number * 512, bytes: 512, since: since(number) };
        let all = KEPT as u64 + 7;
        (0..all).for_each(|number| trail.leave(step(number)));
        assert_eq!(trail.forgotten(), Position(100));
        assert_eq!(trail.follow().map(|step| step.address / 512).collect::<Vec<_>>(), (7..all).collect::<Vec<_>>());
        assert_eq!((trail.follow().count(), trail.forgotten()), (0, Position(100)));
    }
}
