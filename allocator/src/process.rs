//! Which process something was made in.
#![allow(unsafe_code)]

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many forks lie between the first process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// The process that something was made in. In a forked child the driver must not be called: what is dropped there is
/// left alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process(u32);

impl Process {
    pub(crate) fn current() -> Self {
        static WATCH: Once = Once::new();
        WATCH.call_once(|| {
            // SAFETY: the handler is a function of this crate that does nothing but add to an atomic, as a child may.
            let failed = unsafe { libc::pthread_atfork(None, None, Some(count_fork)) };
            assert_eq!(failed, 0, "no memory to be told of forks");
        });
        Process(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this is a child that was forked off since. Asked at each free, so no system call.
    #[inline]
    pub(crate) fn is_forked(self) -> bool {
        self.0 != FORKS.load(Ordering::Relaxed)
    }
}
