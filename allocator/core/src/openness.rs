//! What may hold a stream up beside this GPU.
//!
//! A stream is *closed* as long as its progress depends on nothing but work that was submitted to this GPU, and *open*
//! once it may wait for something else: another rank, the host, whatever nobody here knows of. A wait behind an open
//! stream that only one of two ranks puts can close a circle through both. So before a wait is put on a stream, one has
//! to know what holds its fence up: fences of open streams that it comes after, on whatever way, and that are not
//! complete. These are its *holds*; a fence of an open stream holds itself.
//!
//! Order is claimed late and a hold is feared early. A stamp is taken before the record and order is published after
//! the wait, so that nothing is claimed that is not in the queue. Here it is the other way round: a stream is opened
//! **before** the work that makes it so is submitted, holds are published **before** the wait, and both are read **after**
//! the record: so whatever holds a fence up is among the holds that are read, or came behind it.
//!
//! The lock is a leaf: nothing is called while it is held but the question whether a fence is known to be complete.

use crate::sync::{AtomicBool, Mutex, Ordering};
use crate::{Position, StreamIndex};

/// A fence of an open stream, which others come after.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hold<F> {
    /// The open stream.
    pub stream: StreamIndex,
    /// The position that the fence covers. Of two fences of a stream the one that was recorded later covers more.
    pub position: Position,
    /// The fence.
    pub fence: F,
}

/// What holds a fence up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outlook<F> {
    /// Its own stream, which is open.
    Open,
    /// These fences: with none, its progress depends on this GPU alone.
    Behind(Vec<Hold<F>>),
}

impl<F: Clone> Outlook<F> {
    /// The holds of a fence with this outlook, which was recorded on `stream` and covers `position`: whoever waits for the
    /// fence is held up by them.
    #[must_use]
    pub fn holds(&self, stream: StreamIndex, position: Position, fence: &F) -> Vec<Hold<F>> {
        match self {
            Outlook::Open => vec![Hold { stream, position, fence: fence.clone() }],
            Outlook::Behind(holds) => holds.clone(),
        }
    }
}

/// What may hold one stream up. `F` is a fence (cheap to clone).
#[derive(Debug)]
pub struct Openness<F> {
    open: AtomicBool,
    /// At most one for each open stream, in the order of streams.
    holds: Mutex<Vec<Hold<F>>>,
}

impl<F: Clone> Openness<F> {
    /// A closed stream that waits for nobody.
    #[must_use]
    pub fn new() -> Self {
        Openness { open: AtomicBool::new(false), holds: Mutex::new(Vec::new()) }
    }

    /// Work that may wait for more than this GPU is about to be submitted: call it **before** that.
    pub fn open(&self) {
        self.open.store(true, Ordering::Release);
    }

    /// Whether the stream is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// The stream is about to wait for a fence with these holds: call it **before** the wait is submitted.
    pub fn will_wait(&self, holds: impl IntoIterator<Item = Hold<F>>) {
        let mut mine = self.holds.lock();
        // Given back after the lock: the end of a fence may call the device.
        let mut replaced = Vec::new();
        for hold in holds {
            match mine.binary_search_by_key(&hold.stream, |known| known.stream) {
                Ok(at) if mine[at].position < hold.position => replaced.push(std::mem::replace(&mut mine[at], hold)),
                Ok(_) => replaced.push(hold),
                Err(at) => mine.insert(at, hold),
            }
        }
        drop(mine);
        drop(replaced);
    }

    /// What holds up a fence of this stream that was just recorded: call it **after** the record. `is_over` tells whether
    /// a fence is known to be complete; what is over holds nobody any more.
    pub fn outlook(&self, is_over: impl Fn(&F) -> bool) -> Outlook<F> {
        if self.is_open() {
            return Outlook::Open;
        }
        let mut mine = self.holds.lock();
        let (over, kept) = std::mem::take(&mut *mine).into_iter().partition(|hold: &Hold<F>| is_over(&hold.fence));
        *mine = kept;
        let behind = mine.clone();
        drop(mine);
        drop::<Vec<_>>(over);
        Outlook::Behind(behind)
    }

    /// A new stream takes the place of one whose work is all complete: it is closed, and waits for nobody.
    pub fn renew(&self) {
        self.open.store(false, Ordering::Release);
        let over = std::mem::take(&mut *self.holds.lock());
        drop(over);
    }
}

impl<F: Clone> Default for Openness<F> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const S: StreamIndex = StreamIndex(0);
    const T: StreamIndex = StreamIndex(1);

    fn hold(stream: StreamIndex, position: u64) -> Hold<u64> {
        Hold { stream, position: Position(position), fence: 10 * u64::from(stream.0) + position }
    }

    fn never(_: &u64) -> bool {
        false
    }

    #[test]
    fn a_stream_is_closed_until_it_is_opened_and_stays_open() {
        let stream = Openness::<u64>::new();
        assert!(!stream.is_open());
        assert_eq!(stream.outlook(never), Outlook::Behind(vec![]));
        stream.open();
        stream.open();
        assert!(stream.is_open());
        assert_eq!(stream.outlook(|_| true), Outlook::Open, "whatever is over, more may come");
    }

    #[test]
    fn the_latest_fence_of_each_open_stream_holds_until_it_is_over() {
        let stream = Openness::new();
        stream.will_wait([hold(T, 4)]);
        stream.will_wait([hold(S, 7), hold(T, 3)]);
        stream.will_wait([hold(S, 9)]);
        assert_eq!(stream.outlook(never), Outlook::Behind(vec![hold(S, 9), hold(T, 4)]));
        assert_eq!(stream.outlook(|&fence| fence == 9), Outlook::Behind(vec![hold(T, 4)]));
        assert_eq!(stream.outlook(never), Outlook::Behind(vec![hold(T, 4)]), "it does not come back");
    }

    #[test]
    fn a_new_stream_in_an_old_place_is_closed() {
        let place = Openness::new();
        place.open();
        place.will_wait([hold(S, 1)]);
        place.renew();
        assert_eq!(place.outlook(never), Outlook::Behind(vec![]));
    }
}
