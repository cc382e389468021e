//! Counters of calls, without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{CallCounters, DeviceCall};

/// What a [`CallCounters`] is read from.
#[derive(Default)]
pub(super) struct Tally {
    calls: [AtomicU64; DeviceCall::ALL.len()],
    pub(super) host_synchronizations: AtomicU64,
    pub(super) host_blocked_ns: AtomicU64,
    pub(super) fences_released: AtomicU64,
}

impl Tally {
    pub(super) fn count(&self, call: DeviceCall) {
        self.calls[call as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The host stood still for `ns`.
    pub(super) fn blocked(&self, ns: u64) {
        self.host_synchronizations.fetch_add(1, Ordering::Relaxed);
        self.host_blocked_ns.fetch_add(ns, Ordering::Relaxed);
    }

    pub(super) fn read(&self) -> CallCounters {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CallCounters {
            calls: std::array::from_fn(|index| load(&self.calls[index])),
            host_synchronizations: load(&self.host_synchronizations),
            host_blocked_ns: load(&self.host_blocked_ns),
            fences_released: load(&self.fences_released),
        }
    }
}
