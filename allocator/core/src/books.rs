//! Books: the bytes of one heap, and the physical bytes of the whole device.

use std::ops::AddAssign;

use crate::sync::{AtomicU64, Ordering, raise};

/// The bytes of a heap (or of several, added up): `live + rounding + pending + cached = physical`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Books {
    /// Asked for and in use.
    pub live: u64,
    /// Given out beyond what was asked for.
    pub rounding: u64,
    /// Freed, and still used by other streams.
    pub pending: u64,
    /// Free to be given out.
    pub cached: u64,
    /// Mapped.
    pub physical: u64,
}

impl Books {
    /// Whether the parts add up to the whole.
    #[must_use]
    pub fn balance(&self) -> bool {
        self.live + self.rounding + self.pending + self.cached == self.physical
    }
}

impl AddAssign for Books {
    fn add_assign(&mut self, other: Books) {
        self.live += other.live;
        self.rounding += other.rounding;
        self.pending += other.pending;
        self.cached += other.cached;
        self.physical += other.physical;
    }
}

/// Physical bytes would pass the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shortage {
    /// Bytes asked for.
    pub requested: u64,
    /// Bytes left below the limit.
    pub left: u64,
}

/// The physical bytes of all heaps of a device, with their peak.
///
/// Physical memory is *claimed* below the limit first, then *created*, handle by handle. Only what was created counts as
/// held: a claim that comes to nothing leaves no peak behind.
#[derive(Debug)]
pub struct Ledger {
    limit: u64,
    claimed: AtomicU64,
    physical: Gauge,
}

#[derive(Debug)]
struct Gauge {
    now: AtomicU64,
    peak: AtomicU64,
    /// Everything that ever came.
    total: AtomicU64,
}

impl Gauge {
    fn new() -> Self {
        Gauge { now: AtomicU64::new(0), peak: AtomicU64::new(0), total: AtomicU64::new(0) }
    }

    fn add(&self, bytes: u64) {
        self.total.fetch_add(bytes, Ordering::Relaxed);
        raise(&self.peak, self.now.fetch_add(bytes, Ordering::AcqRel) + bytes);
    }

    fn subtract(&self, bytes: u64) {
        let before = self.now.fetch_sub(bytes, Ordering::AcqRel);
        debug_assert!(before >= bytes, "more bytes went away than came");
    }

    fn read(&self) -> GaugeReading {
        GaugeReading {
            now: self.now.load(Ordering::Acquire),
            peak: self.peak.load(Ordering::Acquire),
            total: self.total.load(Ordering::Relaxed),
        }
    }
}

/// A quantity over time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GaugeReading {
    /// Its value now.
    pub now: u64,
    /// The most that it ever was.
    pub peak: u64,
    /// The sum of everything that was ever added.
    pub total: u64,
}

impl Ledger {
    /// Nothing mapped; at most `limit` bytes ever will be.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Ledger { limit, claimed: AtomicU64::new(0), physical: Gauge::new() }
    }

    /// The limit, bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes that can still be claimed.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.limit - self.claimed.load(Ordering::Acquire)
    }

    /// Claims `bytes` of physical memory before they are created.
    ///
    /// # Errors
    /// When the limit would be passed; nothing is claimed then.
    pub fn claim(&self, bytes: u64) -> Result<(), Shortage> {
        let fits = |claimed: u64| claimed.checked_add(bytes).filter(|&sum| sum <= self.limit);
        match self.claimed.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits) {
            Ok(_) => Ok(()),
            Err(claimed) => Err(Shortage { requested: bytes, left: self.limit - claimed }),
        }
    }

    /// `bytes` that were claimed are held from now on.
    pub fn created(&self, bytes: u64) {
        self.physical.add(bytes);
    }

    /// `bytes` that were claimed are not going to be created.
    pub fn unclaim(&self, bytes: u64) {
        let before = self.claimed.fetch_sub(bytes, Ordering::AcqRel);
        debug_assert!(before >= bytes, "more bytes were given up than claimed");
    }

    /// Gives `bytes` that were held back.
    pub fn give_back(&self, bytes: u64) {
        self.physical.subtract(bytes);
        self.unclaim(bytes);
    }

    /// The bytes held.
    #[must_use]
    pub fn physical(&self) -> GaugeReading {
        self.physical.read()
    }

    /// Forgets the peak: it starts again from what is held now.
    pub fn reset_peak(&self) {
        self.physical.peak.store(self.physical.now.load(Ordering::Acquire), Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_limit_holds_and_a_refusal_claims_nothing() {
        let ledger = Ledger::new(100);
        ledger.claim(60).unwrap();
        assert_eq!(ledger.claim(41), Err(Shortage { requested: 41, left: 40 }));
        ledger.claim(40).unwrap();
        ledger.created(100);
        ledger.give_back(100);
        assert_eq!(ledger.physical(), GaugeReading { now: 0, peak: 100, total: 100 });
        assert_eq!(ledger.left(), 100);
    }

    #[test]
    fn what_was_claimed_and_not_created_was_never_held() {
        let ledger = Ledger::new(100);
        ledger.claim(100).unwrap();
        ledger.created(20);
        ledger.unclaim(80);
        assert_eq!(ledger.physical(), GaugeReading { now: 20, peak: 20, total: 20 });
        assert_eq!(ledger.left(), 80);
    }
}
