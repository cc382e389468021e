//! The bytes leased in slots, counted as a step is issued.

/// A counter of leased bytes: up when the writer of a slot is issued, down when its last reader is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Leases {
    now: u64,
    peak: u64,
}

impl Leases {
    pub(super) fn lease(&mut self, bytes: u64) {
        self.now += bytes;
        self.peak = self.peak.max(self.now);
    }

    /// # Panics
    /// When more is released than was leased.
    pub(super) fn release(&mut self, bytes: u64) {
        self.now = self.now.checked_sub(bytes).expect("what is released was leased before");
    }

    pub(super) fn now(&self) -> u64 {
        self.now
    }

    pub(super) fn peak(&self) -> u64 {
        self.peak
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_stays() {
        let mut leases = Leases::default();
        leases.lease(3);
        leases.lease(4);
        leases.release(3);
        leases.lease(2);
        assert_eq!((leases.now(), leases.peak()), (6, 7));
    }
}
