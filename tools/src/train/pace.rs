//! How fast a training goes on the wall's clock.

use std::time::{Duration, Instant};

/// The times at which steps were seen.
#[derive(Debug)]
pub(crate) struct Pace {
    tokens_per_step: u64,
    began: Instant,
    first: Option<Instant>,
    /// The last one, and the one before.
    last: Instant,
    before: Instant,
    steps: u64,
}

impl Pace {
    /// A training of steps with so many tokens, that begins at `now`.
    pub(crate) fn new(tokens_per_step: u64, now: Instant) -> Self {
        Pace { tokens_per_step, began: now, first: None, last: now, before: now, steps: 0 }
    }

    /// One more step was seen; gives the time since the training began.
    pub(crate) fn see(&mut self, now: Instant) -> Duration {
        self.first.get_or_insert(now);
        self.before = std::mem::replace(&mut self.last, now);
        self.steps += 1;
        now - self.began
    }

    /// Tokens a second between the first step seen and the last but one: without what comes before the first, and the
    /// last is seen together with the one before it. Of one or two steps, since the beginning. 0 if no time has passed.
    pub(crate) fn tokens_per_s(&self) -> f64 {
        let (since, until, steps) = match self.first {
            Some(first) if self.steps > 2 => (first, self.before, self.steps - 2),
            _ => (self.began, self.last, self.steps),
        };
        let seconds = (until - since).as_secs_f64();
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
        pace.see(at(16));
        assert_eq!(pace.tokens_per_s(), 12.5);
        assert_eq!(pace.see(at(16)), Duration::from_secs(16));
        assert_eq!(pace.tokens_per_s(), 100.0 / 6.0, "two are seen together");
        pace.see(at(20));
        pace.see(at(20));
        assert_eq!(pace.tokens_per_s(), 30.0);
    }
}
