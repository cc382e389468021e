//! A lock that leans to one thread, which then enters and leaves with plain loads and stores.
//!
//! Whoever enters [`STREAK`] times in a row makes the latch *lean* to itself. From then on it says that it is inside, looks
//! whether the latch still leans to it, and is in. Anyone else takes the slow lock, says that the latch leans to nobody,
//! and waits until the thread that it leant to has left. So each of the two writes one place and then reads the
//! other, with a barrier in between: the one who comes often passes a light one, the other pays for both.
//!
//! 1. A thread writes that it is inside **before** it looks whether the latch leans to it.
//! 2. Another one writes that it leans to nobody **before** it looks whether anyone is inside, and does so under the slow
//!    lock, which it keeps while it is in.
//! 3. Each thread that a latch ever leans to has a flag of its own, which is never another one's: a thread that was
//!    stopped on its way in may come back much later and take its flag down. There are few; then it leans no more.
//!
//! Each time that a latch stops leaning, it takes twice as many entries in a row to make it lean again: threads that share
//! one pay for the heavy barrier seldom. `tests/loom.rs` checks it, and finds two threads inside when a rule is left out.
#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, heavy_barrier, light_barrier, pause};

/// Entries in a row that make a latch lean.
#[cfg(not(loom))]
const STREAK: u32 = 32;
#[cfg(loom)]
const STREAK: u32 = 0;
/// The most that are asked for.
const STREAK_MAX: u32 = 1 << 20;
/// Threads that a latch ever leans to.
const FLAGS: usize = 4;

/// The number of a thread, from 1.
fn this_thread() -> u64 {
    // Numbers need no model: whatever they are, they differ.
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    thread_local! {
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    #[cfg(loom)]
    return loom_number(&NEXT);
    #[cfg(not(loom))]
    match NUMBER.get() {
        0 => {
            NUMBER.set(NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
            NUMBER.get()
        }
        number => number,
    }
}

/// Threads of a model share the thread that runs it.
#[cfg(loom)]
fn loom_number(next: &std::sync::atomic::AtomicU64) -> u64 {
    loom::thread_local! {
        static NUMBER: Cell<u64> = Cell::new(0);
    }
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        }
        number.get()
    })
}

/// Who entered last, and how often in a row.
#[derive(Debug)]
struct Streak {
    thread: u64,
    entries: u32,
    needed: u32,
    /// The threads that have a flag.
    leant_to: [u64; FLAGS],
}

/// Alone on its cache lines: whoever is inside writes its flag and the value at each entry, and those who only look to whom
/// the latch leans must not be in the way.
#[repr(align(128))]
struct Apart<T>(T);

/// A value behind such a lock.
pub(crate) struct Latch<T> {
    /// The number of the thread that it leans to, times [`FLAGS`], plus the number of its flag; 0 for nobody. Changed under
    /// the slow lock.
    leans_to: Apart<AtomicU64>,
    inside: Apart<[AtomicBool; FLAGS]>,
    slow: Mutex<Streak>,
    value: UnsafeCell<T>,
}

// SAFETY: the guard is the only way to the value, and one thread at a time has a guard (rules 1 to 3 of the module).
unsafe impl<T: Send> Sync for Latch<T> {}

/// Being inside.
pub(crate) struct LatchGuard<'a, T> {
    latch: &'a Latch<T>,
    way: Way<'a>,
    /// A guard is as good as the only reference to the value: it is shared between threads only if the value may be.
    value: PhantomData<&'a mut T>,
}

enum Way<'a> {
    /// The latch leans to us: the number of our flag.
    Leaning(usize),
    /// With the slow lock, held for its drop.
    Slow(MutexGuard<'a, Streak>),
}

impl<T> Latch<T> {
    pub(crate) fn new(value: T) -> Self {
        #[cfg(not(loom))]
        crate::barrier::offer();
        Latch {
            leans_to: Apart(AtomicU64::new(0)),
            inside: Apart(std::array::from_fn(|_| AtomicBool::new(false))),
            slow: Mutex::new(Streak { thread: 0, entries: 0, needed: STREAK, leant_to: [0; FLAGS] }),
            value: UnsafeCell::new(value),
        }
    }

    /// Enters, waiting for others to leave.
    #[inline]
    pub(crate) fn lock(&self) -> LatchGuard<'_, T> {
        match self.lean_in() {
            Some(way) => LatchGuard { latch: self, way, value: PhantomData },
            None => self.lock_slowly(),
        }
    }

    /// Enters if nobody is inside.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<LatchGuard<'_, T>> {
        if let Some(way) = self.lean_in() {
            return Some(LatchGuard { latch: self, way, value: PhantomData });
        }
        let mut streak = self.slow.try_lock()?;
        self.stop_leaning(&mut streak);
        (!self.is_somebody_inside()).then(|| self.enter(streak))
    }

    /// Enters if nobody is inside, and the latch does not lean to somebody else: that one comes back, most likely.
    #[inline]
    pub(crate) fn try_lock_kindly(&self) -> Option<LatchGuard<'_, T>> {
        match self.lean_in() {
            Some(way) => Some(LatchGuard { latch: self, way, value: PhantomData }),
            None if self.leans_to.0.load(Ordering::Relaxed) == 0 => self.try_lock(),
            None => None,
        }
    }

    /// Enters if the latch leans to this thread, which is not inside yet.
    #[inline]
    fn lean_in<'a>(&self) -> Option<Way<'a>> {
        let leans_to = self.leans_to.0.load(Ordering::Relaxed);
        if leans_to / FLAGS as u64 != this_thread() {
            return None;
        }
        let flag = leans_to as usize % FLAGS;
        if self.inside.0[flag].load(Ordering::Relaxed) {
            return None;
        }
        self.inside.0[flag].store(true, Ordering::Relaxed);
        light_barrier();
        if self.leans_to.0.load(Ordering::Relaxed) == leans_to {
            return Some(Way::Leaning(flag));
        }
        self.inside.0[flag].store(false, Ordering::Release);
        None
    }

    #[cold]
    fn lock_slowly(&self) -> LatchGuard<'_, T> {
        let mut streak = self.slow.lock();
        self.stop_leaning(&mut streak);
        while self.is_somebody_inside() {
            pause();
        }
        self.enter(streak)
    }

    /// Makes the latch lean to nobody. The thread that it leant to may still be inside.
    fn stop_leaning(&self, streak: &mut Streak) {
        if self.leans_to.0.load(Ordering::Relaxed) != 0 {
            self.leans_to.0.store(0, Ordering::Relaxed);
            heavy_barrier();
            streak.needed = streak.needed.saturating_mul(2).min(STREAK_MAX);
            streak.entries = 0;
        }
    }

    /// Whether a thread is inside that it leant to. One that has only looked in goes away by itself.
    fn is_somebody_inside(&self) -> bool {
        self.inside.0.iter().any(|inside| inside.load(Ordering::Acquire))
    }

    fn enter<'a>(&'a self, mut streak: MutexGuard<'a, Streak>) -> LatchGuard<'a, T> {
        let thread = this_thread();
        if streak.thread != thread {
            (streak.thread, streak.entries) = (thread, 0);
        }
        streak.entries += 1;
        LatchGuard { latch: self, way: Way::Slow(streak), value: PhantomData }
    }

    /// Leans to the thread that leaves, if it has come often enough.
    #[cold]
    fn lean(&self, streak: &mut Streak) {
        let flag = streak.leant_to.iter().position(|&known| known == streak.thread || known == 0);
        if let Some(flag) = flag {
            streak.leant_to[flag] = streak.thread;
            // Only that thread reads it to go in, and it is this one.
            self.leans_to.0.store(streak.thread * FLAGS as u64 + flag as u64, Ordering::Relaxed);
        }
        streak.entries = 0;
    }
}

impl<T> Deref for LatchGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: whoever has the guard is alone inside (rules 1 to 3).
        unsafe { &*self.latch.value.get() }
    }
}

impl<T> DerefMut for LatchGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: whoever has the guard is alone inside (rules 1 to 3), and has it to himself here.
        unsafe { &mut *self.latch.value.get() }
    }
}

impl<T> Drop for LatchGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        match &mut self.way {
            Way::Leaning(flag) => self.latch.inside.0[*flag].store(false, Ordering::Release),
            // The lock is released behind this.
            Way::Slow(streak) if streak.entries > streak.needed => self.latch.lean(streak),
            Way::Slow(_) => {}
        }
    }
}

impl<T> fmt::Debug for Latch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Latch").finish_non_exhaustive()
    }
}
