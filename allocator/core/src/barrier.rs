//! Two barriers of unequal price, which together are as two sequentially consistent fences.
//!
//! Of two threads that each write one place and then read the other, one at least sees what the other wrote if both pass a
//! fence in between. Linux can make all threads of a process pass one (`membarrier`, since 4.14): then the one who comes
//! often needs none of his own, only the compiler's word to keep the order. Elsewhere both pass a fence.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU8, Ordering, compiler_fence, fence};

/// What the operating system offers.
static OFFER: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const FENCES: u8 = 1;
const MEMBARRIER: u8 = 2;

/// The barrier of the one who comes often.
#[inline]
pub(crate) fn light_barrier() {
    match OFFER.load(Ordering::Relaxed) {
        MEMBARRIER => compiler_fence(Ordering::SeqCst),
        _ => fence(Ordering::SeqCst),
    }
}

/// The barrier of the one who seldom comes: some microseconds.
#[cold]
pub(crate) fn heavy_barrier() {
    fence(Ordering::SeqCst);
    // Who passed the light one before the offer was known has passed a fence.
    if offer() == MEMBARRIER {
        call(EXPEDITED).or_else(|| call(REGISTER).and_then(|()| call(EXPEDITED))).expect("membarrier is registered");
    }
}

/// Asks the operating system, the first time.
pub(crate) fn offer() -> u8 {
    match OFFER.load(Ordering::Relaxed) {
        UNKNOWN => {
            let offer = if call(REGISTER).is_some() { MEMBARRIER } else { FENCES };
            OFFER.store(offer, Ordering::Relaxed);
            offer
        }
        known => known,
    }
}

/// `MEMBARRIER_CMD_PRIVATE_EXPEDITED` of `linux/membarrier.h`.
const EXPEDITED: i32 = 1 << 3;
/// `MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED`, which has to come before.
const REGISTER: i32 = 1 << 4;

/// `None` when the system refuses.
#[cfg(target_os = "linux")]
fn call(command: i32) -> Option<()> {
    // SAFETY: the call takes numbers alone, and no memory of ours.
    let answer = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    (answer == 0).then_some(())
}

#[cfg(not(target_os = "linux"))]
fn call(_: i32) -> Option<()> {
    None
}
