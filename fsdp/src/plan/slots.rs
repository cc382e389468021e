//! Which slot a new lease gets.
//!
//! Invariant: a slot is in the free list exactly while nobody leases it. Slots that the step has not used yet are not
//! listed; they are handed out in the order of their numbers.

use super::op::{Lane, SlotIndex};

/// The slots of one step under construction.
#[derive(Debug)]
pub(super) struct SlotPool {
    /// Free slots, the one released longest ago first, each with the lane of its last reader.
    free: Vec<(SlotIndex, Lane)>,
    /// The number of slots used so far.
    used: u32,
    limit: u32,
}

impl SlotPool {
    pub(super) fn new(limit: u32) -> SlotPool {
        SlotPool { free: Vec::new(), used: 0, limit }
    }

    /// A slot that `writer` will write, if one is free: the lane's own oldest (no wait), else one not used yet, else
    /// the oldest of all.
    pub(super) fn lease(&mut self, writer: Lane) -> Option<SlotIndex> {
        if let Some(own) = self.free.iter().position(|(_, reader)| *reader == writer) {
            return Some(self.free.remove(own).0);
        }
        if self.used < self.limit {
            self.used += 1;
            return Some(SlotIndex(self.used - 1));
        }
        (!self.free.is_empty()).then(|| self.free.remove(0).0)
    }

    /// Takes back a slot whose last reader was issued on `reader`.
    pub(super) fn release(&mut self, slot: SlotIndex, reader: Lane) {
        debug_assert!(self.free.iter().all(|(free, _)| *free != slot), "slot {slot} was released twice");
        self.free.push((slot, reader));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_lane_first_then_unused_then_oldest() {
        let mut pool = SlotPool::new(3);
        let (a, b) = (pool.lease(Lane::Communication).unwrap(), pool.lease(Lane::Communication).unwrap());
        pool.release(a, Lane::Compute);
        pool.release(b, Lane::Communication);
        assert_eq!(pool.lease(Lane::Communication), Some(b), "its own lane left it");
        assert_eq!(pool.lease(Lane::Communication), Some(SlotIndex(2)), "not used yet");
        pool.release(b, Lane::Compute);
        assert_eq!(pool.lease(Lane::Communication), Some(a), "released longest ago");
        assert_eq!(pool.lease(Lane::Communication), Some(b));
        assert_eq!(pool.lease(Lane::Communication), None);
    }
}
