//! How fast a training goes on the wall's clock.

use std::time::{Duration, Instant};

/// The times at which steps were seen.
#[derive(Debug)]
pub(crate) struct Pace {
    tokens_per_step: u64,
    began: Instant,
    first: Option<Instant>,
    last: Instant,
    steps: u64,
}

impl Pace {
    /// A training of steps with so many tokens, that begins at `now`.
    pub(crate) fn new(tokens_per_step: u64, now: Instant) -> Self {
        Pace { tokens_per_step, began: now, first: None, last: now, steps: 0 }
    }

    /// One more step was seen; gives the time since the training began.
    pub(crate) fn see(&mut self, now: Instant) -> Duration {
        self.first.get_or_insert(now);
        self.last = now;
        self.steps += 1;
        now - self.began
    }

    /// Tokens a second between the first step seen and the last, so without what comes before the first. Of one step
    /// alone, since the beginning. 0 if no time has passed.
    pub(crate) fn tokens_per_s(&self) -> f64 {
        let (since, steps) = match self.first {
            Some(first) if self.steps > 1 => (first, self.steps - 1),
            _ => (self.began, self.steps),
        };
        let seconds = (self.last - since).as_secs_f64();
        if seconds > 0.0 { (steps * self.tokens_per_step) as f64 / seconds } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_before_the_first_step_does_not_count() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut pace = Pace::new(100, began);
        assert_eq!(pace.tokens_per_s(), 0.0);
        assert_eq!(pace.see(at(10)), Duration::from_secs(10));
        assert_eq!(pace.tokens_per_s(), 10.0);
        pace.see(at(11));
        assert_eq!(pace.see(at(14)), Duration::from_secs(14));
        assert_eq!(pace.tokens_per_s(), 50.0);
    }
}
