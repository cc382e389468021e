//! The most bytes that were ever live at once, without a counter that all streams write.
//!
//! Each heap has a *share* of the peak, and the shares add up to it. A heap whose live bytes stay within its share cannot make
//! the sum of all exceed the peak, so it asks nobody. One that goes beyond it *settles*: what others have left of their
//! shares is collected, the peak is raised by what that does not cover, and what it does not need is divided among all.
//! Nobody waits for a heap that somebody else is in.
//!
//! One thread at a time, the peak is exact. What a thread allocates while another one settles may be counted a request later.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::shared::Shared;

/// The peak of live bytes of all heaps.
#[derive(Debug, Default)]
pub(crate) struct Peak(Mutex<u64>);

impl Peak {
    pub(crate) fn bytes(&self) -> u64 {
        *self.0.lock()
    }
}

/// One heap's part of the peak, bytes. Alone on its cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Share {
    /// Written by whoever is inside the heap.
    live: AtomicU64,
    /// Of those, freed by messages that are on their way.
    leaving: AtomicU64,
    /// Written by whoever settles.
    bytes: AtomicU64,
}

impl Share {
    /// So many bytes of the heap are live now.
    #[inline]
    pub(crate) fn set_live(&self, bytes: u64) {
        self.live.store(bytes, Ordering::Release);
    }

    /// A message is about to be sent that frees so many bytes.
    pub(crate) fn leave(&self, bytes: u64) {
        self.leaving.fetch_add(bytes, Ordering::AcqRel);
    }

    /// It has arrived, and they are not live any more.
    pub(crate) fn arrive(&self, bytes: u64) {
        self.leaving.fetch_sub(bytes, Ordering::AcqRel);
    }

    fn live(&self) -> u64 {
        self.live.load(Ordering::Acquire).saturating_sub(self.leaving.load(Ordering::Acquire))
    }

    /// Whether more is live than the share.
    #[inline]
    pub(crate) fn is_exceeded(&self) -> bool {
        self.live() > self.bytes.load(Ordering::Acquire)
    }

    /// Makes the share what is live: what was left of it, and what was beyond it.
    fn collect(&self) -> (u64, u64) {
        let live = self.live();
        let before = self.bytes.swap(live, Ordering::AcqRel);
        (before.saturating_sub(live), live.saturating_sub(before))
    }
}

impl Shared {
    /// A heap went beyond its share.
    #[cold]
    pub(crate) fn settle_peak(&self) {
        let mut peak = self.peak.0.lock();
        let slots = self.slots();
        let (mut left, mut over) = (0, 0);
        for slot in &slots {
            let (more_left, more_over) = slot.share.collect();
            left += more_left;
            over += more_over;
        }
        *peak += over.saturating_sub(left);
        let mut rest = left.saturating_sub(over);
        for (slot, heaps) in slots.iter().zip((1..=slots.len() as u64).rev()) {
            let part = rest.div_ceil(heaps);
            slot.share.bytes.fetch_add(part, Ordering::AcqRel);
            rest -= part;
        }
    }

    /// The peak starts again from what is live now.
    pub(crate) fn reset_live_peak(&self) {
        let mut peak = self.peak.0.lock();
        let slots = self.slots();
        for slot in &slots {
            let _ = slot.share.collect();
        }
        *peak = slots.iter().map(|slot| slot.share.bytes.load(Ordering::Acquire)).sum();
    }
}
