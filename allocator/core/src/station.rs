//! The lock of a heap, and the messages of those who would not wait for it.
//!
//! Whoever sends a message enters if he can do so at once, and delivers it on the spot. Otherwise he leaves it in the
//! inbox, for whoever enters next: each delivers all messages before he does anything else. So a message is never seen too
//! late by anyone who looks: who wants memory, or to know of it, enters.
//!
//! The lock leans to the thread that uses it alone ([`Latch`](crate::latch)). A sender does not make it lean away.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::latch::{Latch, LatchGuard};
use crate::sync::{AtomicUsize, Mutex, Ordering};

/// What takes messages of type `M`.
pub trait Receive<M> {
    /// Takes one. It must not enter the station it stands in.
    fn receive(&mut self, message: M);
}

/// A state, its lock and its inbox.
pub struct Station<S, M> {
    state: Latch<Inside<S, M>>,
    inbox: Inbox<M>,
}

/// What senders write. On cache lines of its own: they must not slow down who is inside.
#[repr(align(128))]
struct Inbox<M> {
    messages: Mutex<Vec<M>>,
    /// How many there are. Changed inside the lock.
    waiting: AtomicUsize,
}

/// What is behind the lock.
struct Inside<S, M> {
    state: S,
    /// The inbox of the last time, empty: senders get it back, so that they seldom allocate.
    emptied: Vec<M>,
}

impl<S: Receive<M>, M> Station<S, M> {
    /// A station with nobody in it.
    #[must_use]
    pub fn new(state: S) -> Self {
        Station {
            state: Latch::new(Inside { state, emptied: Vec::new() }),
            inbox: Inbox { messages: Mutex::new(Vec::new()), waiting: AtomicUsize::new(0) },
        }
    }

    /// Enters, waiting for others to leave; all messages are delivered first.
    #[inline]
    pub fn enter(&self) -> StationGuard<'_, S, M> {
        let mut inside = StationGuard { station: self, state: self.state.lock() };
        inside.deliver();
        inside
    }

    /// Enters if nobody is inside; all messages are delivered first.
    #[inline]
    pub fn try_enter(&self) -> Option<StationGuard<'_, S, M>> {
        let mut inside = StationGuard { station: self, state: self.state.try_lock()? };
        inside.deliver();
        Some(inside)
    }

    /// Enters if that takes no time, and takes the station from nobody who uses it alone. Never waits: who is not let in
    /// [leaves](Station::leave) his message.
    #[inline]
    pub fn enter_as_sender(&self) -> Option<StationGuard<'_, S, M>> {
        let mut inside = StationGuard { station: self, state: self.state.try_lock_kindly()? };
        inside.deliver();
        Some(inside)
    }

    /// Leaves `message` for the one who enters next.
    #[cold]
    pub fn leave(&self, message: M) {
        let mut messages = self.inbox.messages.lock();
        messages.push(message);
        self.inbox.waiting.store(messages.len(), Ordering::Release);
    }

    #[cold]
    fn deliver(&self, inside: &mut Inside<S, M>) {
        let Inside { state, emptied: messages } = inside;
        {
            let mut left = self.inbox.messages.lock();
            self.inbox.waiting.store(0, Ordering::Release);
            std::mem::swap(&mut *left, messages);
        }
        messages.drain(..).for_each(|message| state.receive(message));
    }
}

impl<S, M> fmt::Debug for Station<S, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Station").finish_non_exhaustive()
    }
}

/// Being inside a [`Station`].
///
/// Threads share it only if they may share the state:
///
/// ```compile_fail,E0277
/// use highwater_core::{Receive, StationGuard};
///
/// struct State(std::cell::Cell<u32>);
///
/// impl Receive<()> for State {
///     fn receive(&mut self, (): ()) {}
/// }
///
/// fn shared<T: Sync>() {}
/// shared::<StationGuard<'static, State, ()>>();
/// ```
pub struct StationGuard<'a, S: Receive<M>, M> {
    station: &'a Station<S, M>,
    state: LatchGuard<'a, Inside<S, M>>,
}

impl<S: Receive<M>, M> StationGuard<'_, S, M> {
    /// Delivers what was sent since this station was entered: for those who stay inside and look again.
    #[inline]
    pub fn deliver(&mut self) {
        if self.station.inbox.waiting.load(Ordering::Acquire) > 0 {
            self.station.deliver(&mut self.state);
        }
    }
}

impl<S: Receive<M>, M> Deref for StationGuard<'_, S, M> {
    type Target = S;

    #[inline]
    fn deref(&self) -> &S {
        &self.state.state
    }
}

impl<S: Receive<M>, M> DerefMut for StationGuard<'_, S, M> {
    #[inline]
    fn deref_mut(&mut self) -> &mut S {
        &mut self.state.state
    }
}

impl<S: Receive<M>, M> fmt::Debug for StationGuard<'_, S, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StationGuard").finish_non_exhaustive()
    }
}
