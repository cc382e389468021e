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

/// The bytes of all heaps of a device, with their peaks.
#[derive(Debug)]
pub struct Ledger {
    limit: u64,
    physical: Gauge,
    live: Gauge,
}

#[derive(Debug)]
struct Gauge {
    now: AtomicU64,
    peak: AtomicU64,
}

impl Gauge {
    fn new() -> Self {
        Gauge { now: AtomicU64::new(0), peak: AtomicU64::new(0) }
    }

    fn add(&self, bytes: u64) {
        let now = self.now.fetch_add(bytes, Ordering::AcqRel) + bytes;
        raise(&self.peak, now);
    }

    fn subtract(&self, bytes: u64) {
        let before = self.now.fetch_sub(bytes, Ordering::AcqRel);
        debug_assert!(before >= bytes, "more bytes went away than came");
    }

    fn now(&self) -> u64 {
        self.now.load(Ordering::Acquire)
    }
}

/// What a [`Ledger`] says at one moment, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LedgerTotals {
    /// Mapped now.
    pub physical: u64,
    /// Most that was ever mapped at once.
    pub physical_peak: u64,
    /// Asked for and in use now.
    pub live: u64,
    /// Most that was ever in use at once.
    pub live_peak: u64,
}

impl Ledger {
    /// Nothing mapped; at most `limit` bytes ever will be.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Ledger { limit, physical: Gauge::new(), live: Gauge::new() }
    }

    /// The limit, bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Claims `bytes` of physical memory before they are created.
    ///
    /// # Errors
    /// When the limit would be passed; nothing is claimed then.
    pub fn claim(&self, bytes: u64) -> Result<(), Shortage> {
        let mut now = self.physical.now();
        loop {
            let left = self.limit.saturating_sub(now);
            if bytes > left {
                return Err(Shortage { requested: bytes, left });
            }
            match self.physical.now.compare_exchange(now, now + bytes, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    raise(&self.physical.peak, now + bytes);
                    return Ok(());
                }
                Err(seen) => now = seen,
            }
        }
    }

    /// Gives `bytes` of physical memory back: unmapped, or claimed and not created.
    pub fn give_back(&self, bytes: u64) {
        self.physical.subtract(bytes);
    }

    /// `bytes` asked for are in use from now on.
    pub fn born(&self, bytes: u64) {
        self.live.add(bytes);
    }

    /// `bytes` asked for are no longer in use.
    pub fn died(&self, bytes: u64) {
        self.live.subtract(bytes);
    }

    /// Everything at once. The four numbers are read one after the other.
    #[must_use]
    pub fn totals(&self) -> LedgerTotals {
        LedgerTotals {
            physical: self.physical.now(),
            physical_peak: self.physical.peak.load(Ordering::Acquire),
            live: self.live.now(),
            live_peak: self.live.peak.load(Ordering::Acquire),
        }
    }

    /// Forgets the peaks: they start again from what is in use now.
    pub fn reset_peaks(&self) {
        for gauge in [&self.physical, &self.live] {
            gauge.peak.store(gauge.now(), Ordering::Release);
        }
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
        ledger.give_back(100);
        let totals = ledger.totals();
        assert_eq!((totals.physical, totals.physical_peak), (0, 100));
    }
}
