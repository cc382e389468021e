//! The most bytes that were ever live at once, without a counter that all streams write.
//!
//! Each heap has a *share* of the peak, and what nobody has lies in a *pool*; together they are the peak. A heap whose live
//! bytes stay within its share cannot make the sum of all exceed the peak, so it asks nobody. One that goes beyond it takes
//! from the pool, and one that has much too much puts some back. Only where the pool does not suffice does it *settle*: what
//! others do not need is collected, and the peak is raised by what that does not cover. The less is left, the smaller are
//! the parts that are taken, so that a heap with much leaves something for the others. Nobody waits for a heap that somebody
//! else is in.
//!
//! One thread at a time, the peak is exact. What a thread allocates while another one settles is counted some requests later:
//! those that come while it waits its turn would do nothing but wait.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::shared::Shared;

/// Requests that are let go before a heap tries again to settle.
const LET_GO: u64 = 64;

/// The peak of live bytes of all heaps.
#[derive(Debug, Default)]
pub(crate) struct Peak {
    bytes: Mutex<u64>,
    pool: Pool,
}

/// What no heap has, bytes. Alone on its cache lines: all streams write it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Pool(AtomicU64);

impl Peak {
    pub(crate) fn bytes(&self) -> u64 {
        *self.bytes.lock()
    }
}

impl Pool {
    /// Takes what is needed and a part of the rest; nothing when there is not as much.
    fn take(&self, needed: u64, heaps: u64) -> Option<u64> {
        let with_a_part = |pool: u64| Some(needed + pool.checked_sub(needed)? / (2 * heaps));
        let left = |pool: u64| Some(pool - with_a_part(pool)?);
        let before = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, left).ok()?;
        with_a_part(before)
    }
}

/// One heap's part of the peak, bytes. Alone on its cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Share {
    /// Written by whoever is inside the heap.
    live: AtomicU64,
    /// Written by whoever settles, and by whoever balances this one.
    bytes: AtomicU64,
    /// More of the share than this is not needed. Written by whoever balances this one.
    enough: AtomicU64,
    /// Requests that are still let go, because another thread settles.
    let_go: AtomicU64,
    leaving: Leaving,
}

/// Of the live bytes of a heap, those that are freed by messages on their way. Alone on its cache lines: senders write it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Leaving(AtomicU64);

impl Share {
    /// So many bytes of the heap are live now.
    #[inline]
    pub(crate) fn set_live(&self, bytes: u64) {
        self.live.store(bytes, Ordering::Release);
    }

    /// A message is about to be sent that frees so many bytes.
    pub(crate) fn leave(&self, bytes: u64) {
        self.leaving.0.fetch_add(bytes, Ordering::AcqRel);
    }

    /// It has arrived, and they are not live any more.
    pub(crate) fn arrive(&self, bytes: u64) {
        self.leaving.0.fetch_sub(bytes, Ordering::AcqRel);
    }

    fn live(&self) -> u64 {
        self.live.load(Ordering::Acquire).saturating_sub(self.leaving.0.load(Ordering::Acquire))
    }

    /// Whether more is live than the share, or so little that others may need the rest.
    #[inline]
    pub(crate) fn is_off_balance(&self) -> bool {
        // What is leaving is taken for live, which is looked at again. What is beyond the share is a very large number here.
        let live = self.live.load(Ordering::Acquire);
        self.bytes.load(Ordering::Acquire).wrapping_sub(live) > self.enough.load(Ordering::Relaxed)
    }

    /// Whether this request is let go.
    fn lets_go(&self) -> bool {
        let left = self.let_go.load(Ordering::Relaxed);
        self.let_go.store(left.saturating_sub(1), Ordering::Relaxed);
        left > 0
    }

    /// Makes the share what is live: what was left of it, and what was beyond it.
    fn collect(&self) -> (u64, u64) {
        let live = self.live();
        let before = self.bytes.swap(live, Ordering::AcqRel);
        (before.saturating_sub(live), live.saturating_sub(before))
    }
}

impl Shared {
    /// A heap went beyond its share, or has far too much of it.
    #[cold]
    pub(crate) fn balance_peak(&self, share: &Share) {
        if share.lets_go() {
            return;
        }
        let heaps = self.count_slots();
        let (left, over) = share.collect();
        let took = if over == 0 {
            // Half of it: it will be needed again.
            self.peak.pool.0.fetch_add(left.div_ceil(2), Ordering::AcqRel);
            left / 2
        } else if let Some(took) = self.peak.pool.take(over, heaps) {
            took - over
        } else if let Some(peak) = self.peak.bytes.try_lock() {
            self.settle_peak(peak, over);
            self.peak.pool.take(0, heaps).unwrap_or(0)
        } else {
            // Who settles may have made it less meanwhile.
            let less = |bytes: u64| Some(bytes.saturating_sub(over));
            let _ = share.bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
            share.let_go.store(LET_GO, Ordering::Relaxed);
            return;
        };
        share.bytes.fetch_add(took, Ordering::AcqRel);
        share.enough.store(2 * took, Ordering::Relaxed);
    }

    /// So many bytes are live beyond all shares and the pool, as far as others do not have them.
    fn settle_peak(&self, mut peak: MutexGuard<'_, u64>, over: u64) {
        let (mut left, mut over) = (self.peak.pool.0.swap(0, Ordering::AcqRel), over);
        for slot in self.slots() {
            let (more_left, more_over) = slot.share.collect();
            left += more_left;
            over += more_over;
        }
        *peak += over.saturating_sub(left);
        self.peak.pool.0.fetch_add(left.saturating_sub(over), Ordering::AcqRel);
    }

    /// The peak starts again from what is live now.
    pub(crate) fn reset_live_peak(&self) {
        let mut peak = self.peak.bytes.lock();
        self.peak.pool.0.store(0, Ordering::Release);
        let mut live = 0;
        for slot in self.slots() {
            let _ = slot.share.collect();
            live += slot.share.bytes.load(Ordering::Acquire);
        }
        *peak = live;
    }
}
