//! Locks and atomics: parking_lot's and the standard library's, or loom's inside a model.
//!
//! loom cannot see inside parking_lot or slab: a model covers the order of lock, unlock and atomic operations, not the
//! lock's own implementation.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(not(loom))]
pub(crate) use parking_lot::{Mutex, MutexGuard};

#[cfg(loom)]
pub(crate) use self::model::{Mutex, MutexGuard};

#[cfg(loom)]
mod model {
    /// loom's mutex with parking_lot's surface: no poisoning, `try_lock` answers an `Option`.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    pub(crate) type MutexGuard<'a, T> = loom::sync::MutexGuard<'a, T>;

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Mutex(loom::sync::Mutex::new(value))
        }

        #[track_caller]
        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("loom stops at the first panic")
        }

        pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }
}

#[cfg(not(loom))]
pub(crate) use crate::barrier::{heavy_barrier, light_barrier};

/// As a fence: what the two are together.
#[cfg(loom)]
pub(crate) fn light_barrier() {
    fence(Ordering::SeqCst);
}

/// As a fence: what the two are together.
#[cfg(loom)]
pub(crate) fn heavy_barrier() {
    fence(Ordering::SeqCst);
}

/// One turn of waiting for another thread that is not waiting itself.
pub(crate) fn pause() {
    #[cfg(not(loom))]
    std::thread::yield_now();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// Raises `cell` to at least `value`.
pub(crate) fn raise(cell: &AtomicU64, value: u64) {
    cell.fetch_max(value, Ordering::AcqRel);
}
