//! The lock of a heap, and the messages of those who would not wait for it.
//!
//! Whoever sends a message tries the lock first: free, and the message is delivered on the spot; busy, and it goes into
//! the inbox, to be delivered by whoever holds the lock. No message is stranded:
//!
//! 1. The sender puts the message into the inbox **before** it tries the lock a second time.
//! 2. The holder looks into the inbox **after** it has released the lock, and comes back if there is something.
//!
//! If the sender's second try fails, somebody holds the lock at that moment, and looks into the inbox afterwards. Each
//! of the two writes one place and then reads the other, so each needs a sequentially consistent fence in between.
//! `tests/loom.rs` checks it, and finds the stranded message when either step is left out.

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::sync::{AtomicUsize, Mutex, MutexGuard, Ordering, fence};

/// What takes messages of type `M`.
pub trait Receive<M> {
    /// Takes one. It must not enter the station it stands in.
    fn receive(&mut self, message: M);
}

/// A state, its lock and its inbox.
pub struct Station<S, M> {
    state: Mutex<S>,
    inbox: Mutex<Vec<M>>,
    /// Messages in the inbox. Raised inside the inbox's lock.
    waiting: AtomicUsize,
}

impl<S: Receive<M>, M> Station<S, M> {
    /// A station with nobody in it.
    #[must_use]
    pub fn new(state: S) -> Self {
        Station { state: Mutex::new(state), inbox: Mutex::new(Vec::new()), waiting: AtomicUsize::new(0) }
    }

    /// Enters, waiting for others to leave; all messages are delivered first.
    pub fn enter(&self) -> StationGuard<'_, S, M> {
        let mut state = self.state.lock();
        self.deliver(&mut state);
        StationGuard { station: self, state: Some(state) }
    }

    /// Enters if nobody is inside; all messages are delivered first.
    pub fn try_enter(&self) -> Option<StationGuard<'_, S, M>> {
        let mut state = self.state.try_lock()?;
        self.deliver(&mut state);
        Some(StationGuard { station: self, state: Some(state) })
    }

    /// Looks at the state as it is, delivering nothing: for checks.
    pub fn peek<R>(&self, look: impl FnOnce(&S) -> R) -> R {
        look(&self.state.lock())
    }

    /// Delivers `message` now, or leaves it for the one who is inside. Never waits.
    pub fn send(&self, message: M) {
        if let Some(mut inside) = self.try_enter() {
            inside.receive(message);
            return;
        }
        {
            let mut inbox = self.inbox.lock();
            inbox.push(message);
            self.waiting.store(inbox.len(), Ordering::Release);
        }
        fence(Ordering::SeqCst);
        drop(self.try_enter());
    }

    /// Whether the inbox holds anything that was put there by a sender who found the lock taken by us: asked after each
    /// unlock.
    fn has_messages(&self) -> bool {
        fence(Ordering::SeqCst);
        self.waiting.load(Ordering::Acquire) > 0
    }

    fn deliver(&self, state: &mut S) {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return;
        }
        let messages = {
            let mut inbox = self.inbox.lock();
            self.waiting.store(0, Ordering::Release);
            std::mem::take(&mut *inbox)
        };
        for message in messages {
            state.receive(message);
        }
    }
}

impl<S, M> fmt::Debug for Station<S, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Station").finish_non_exhaustive()
    }
}

/// Being inside a [`Station`].
pub struct StationGuard<'a, S: Receive<M>, M> {
    station: &'a Station<S, M>,
    /// `None` only while leaving.
    state: Option<MutexGuard<'a, S>>,
}

impl<S: Receive<M>, M> StationGuard<'_, S, M> {
    /// Delivers what was sent since this station was entered: for those who stay inside and look again.
    pub fn deliver(&mut self) {
        let state = self.state.as_mut().expect("the state is given up only by drop");
        self.station.deliver(state);
    }
}

impl<S: Receive<M>, M> Deref for StationGuard<'_, S, M> {
    type Target = S;

    fn deref(&self) -> &S {
        self.state.as_ref().expect("the state is given up only by drop")
    }
}

impl<S: Receive<M>, M> DerefMut for StationGuard<'_, S, M> {
    fn deref_mut(&mut self) -> &mut S {
        self.state.as_mut().expect("the state is given up only by drop")
    }
}

impl<S: Receive<M>, M> Drop for StationGuard<'_, S, M> {
    fn drop(&mut self) {
        self.state = None;
        while self.station.has_messages() {
            let Some(mut state) = self.station.state.try_lock() else { break };
            self.station.deliver(&mut state);
        }
    }
}

impl<S: Receive<M>, M> fmt::Debug for StationGuard<'_, S, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StationGuard").finish_non_exhaustive()
    }
}
