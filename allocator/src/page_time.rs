//! How much time the calls of the driver for memory may take, and have taken.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a program may spend on moving pages before it has run for long, ns.
const CREDIT_NS: u64 = 50_000_000;

/// The time for pages: a part of the time since the allocator was made.
#[derive(Debug)]
pub(crate) struct PageTime {
    /// From 0 to 1; at 1 there is no bound.
    part: f64,
    start_ns: u64,
    spent_ns: AtomicU64,
}

impl PageTime {
    pub(crate) fn new(part: f64, start_ns: u64) -> Self {
        PageTime { part, start_ns, spent_ns: AtomicU64::new(0) }
    }

    /// Calls were made from one time to another.
    pub(crate) fn spent(&self, from_ns: u64, to_ns: u64) {
        self.spent_ns.fetch_add(to_ns.saturating_sub(from_ns), Ordering::Relaxed);
    }

    /// Whether more was spent than there is: then free memory stays where it is, as long as there is other memory.
    pub(crate) fn is_overdrawn(&self, now_ns: u64) -> bool {
        self.all_ns(now_ns).saturating_add(CREDIT_NS) < self.spent_ns.load(Ordering::Relaxed)
    }

    /// What is left now, ns.
    pub(crate) fn left_ns(&self, now_ns: u64) -> u64 {
        let all = self.all_ns(now_ns);
        if all == u64::MAX { all } else { all.saturating_sub(self.spent_ns.load(Ordering::Relaxed)) }
    }

    /// What there is in all, ns.
    fn all_ns(&self, now_ns: u64) -> u64 {
        if self.part >= 1.0 {
            return u64::MAX;
        }
        (now_ns.saturating_sub(self.start_ns) as f64 * self.part) as u64
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn time_comes_with_time_and_goes_with_calls() {
        let time = PageTime::new(0.01, 5_000);
        assert_eq!(time.left_ns(5_000), 0);
        assert_eq!(time.left_ns(105_000), 1_000);
        time.spent(105_000, 105_700);
        assert_eq!(time.left_ns(105_000), 300);
        time.spent(105_700, 109_700);
        assert_eq!(time.left_ns(109_700), 0, "what was overdrawn");
        time.spent(0, CREDIT_NS);
        assert!(time.is_overdrawn(109_700) && !time.is_overdrawn(600_000));
        assert_eq!(PageTime::new(1.0, 0).left_ns(0), u64::MAX);
    }
}
