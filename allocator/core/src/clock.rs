//! What is known of the progress of one stream.
//!
//! Positions count *marks*: a mark is set **after** each submission, and before each record. A fence *covers* a position
//! when the position was read **before** the fence was recorded: whoever set the mark had submitted its work earlier, so the
//! work is before the fence. The same holds for what a stream is known to come after: read before the record, so it is
//! never more than the fence's queue really contains; published after a wait was submitted, so whoever reads it finds
//! the wait already in the queue. Nothing else counts as proof; in particular not the implicit order of a default
//! stream, and not work submitted past this API.
//!
//! Each clock has one short lock, a leaf: nothing is called while it is held.

use std::collections::VecDeque;

use crate::sync::{AtomicU64, Mutex, Ordering, raise};
use crate::{Position, StreamIndex};

/// What a fence proves once it is complete or waited for: taken before the fence is recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stamp {
    /// The stream that the fence is recorded on.
    pub stream: StreamIndex,
    /// The position that the fence covers.
    pub covered: Position,
    /// For each stream (by index) the position that came before: the order that the stream itself has inherited.
    pub known: Vec<Position>,
}

impl Stamp {
    /// Every position that is passed when the fence is.
    pub fn passed(&self) -> impl Iterator<Item = (StreamIndex, Position)> + '_ {
        let own = (self.stream, self.covered);
        let inherited = self.known.iter().zip(0..).map(|(&position, index)| (StreamIndex(index), position));
        std::iter::once(own)
            .chain(inherited.filter(move |&(stream, position)| stream != own.0 && position > Position(0)))
    }
}

/// What it takes to learn when a position has been passed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Demand {
    /// Nothing: it is known to be complete.
    Complete,
    /// A fence that covers it is in the queue.
    Fenced,
    /// A fence has to be recorded.
    Record,
}

/// The progress of one stream. `F` is a fence (cheap to clone).
#[derive(Debug)]
pub struct Clock<F> {
    stream: StreamIndex,
    marks: AtomicU64,
    completed: AtomicU64,
    inner: Mutex<Inner<F>>,
}

#[derive(Debug)]
struct Inner<F> {
    /// By stream: everything submitted from now on comes after that position.
    known: Vec<Position>,
    /// Incomplete fences, oldest first, with strictly growing positions.
    fences: VecDeque<Entry<F>>,
    /// The last position for which a fence was demanded and could not be recorded.
    owed: Position,
}

#[derive(Debug)]
struct Entry<F> {
    covered: Position,
    fence: F,
    /// Somebody waits for it: a later fence does not replace it.
    demanded: bool,
}

impl<F: Clone> Clock<F> {
    /// A stream at position 0.
    #[must_use]
    pub fn new(stream: StreamIndex) -> Self {
        let inner = Inner { known: Vec::new(), fences: VecDeque::new(), owed: Position(0) };
        Clock { stream, marks: AtomicU64::new(0), completed: AtomicU64::new(0), inner: Mutex::new(inner) }
    }

    /// The stream.
    #[must_use]
    pub fn stream(&self) -> StreamIndex {
        self.stream
    }

    /// Sets a mark: call it **after** the work that it stands for has been submitted.
    pub fn mark(&self) -> Position {
        Position(self.marks.fetch_add(1, Ordering::AcqRel) + 1)
    }

    /// A position after all work that was submitted before this call, for those who would set a mark where many are set:
    /// it writes nothing. It is the next mark's, and passed by every fence that is recorded after the next mark.
    ///
    /// The work is before each fence that covers the position: such a fence was recorded after that mark was set, and
    /// whoever submits behind the fence sees the mark, and gets a later position.
    #[inline]
    #[must_use]
    pub fn upcoming(&self) -> Position {
        Position(self.marks.load(Ordering::Acquire) + 1)
    }

    /// The last mark.
    #[must_use]
    pub fn now(&self) -> Position {
        Position(self.marks.load(Ordering::Acquire))
    }

    /// The position up to which everything is known to be complete.
    #[must_use]
    pub fn completed(&self) -> Position {
        Position(self.completed.load(Ordering::Acquire))
    }

    /// What a fence recorded next will cover. Call it **before** the record.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        let inner = self.inner.lock();
        Stamp { stream: self.stream, covered: self.now(), known: inner.known.clone() }
    }

    /// A fence was recorded; `stamp` was taken before.
    ///
    /// # Panics
    /// When the stamp is another stream's.
    pub fn recorded(&self, stamp: &Stamp, fence: F) {
        assert_eq!(stamp.stream, self.stream, "a stamp belongs to the stream it was taken from");
        // Given back after the lock: the end of a fence may call the device.
        let mut replaced = None;
        let mut inner = self.inner.lock();
        // Two threads may record at once: an older stamp adds nothing to a newer one.
        let newest = inner.fences.back().map_or(self.completed(), |last| last.covered);
        if newest < stamp.covered {
            if inner.fences.back().is_some_and(|last| !last.demanded) {
                replaced = inner.fences.pop_back();
            }
            inner.fences.push_back(Entry { covered: stamp.covered, fence, demanded: false });
        }
        if inner.owed <= stamp.covered {
            let owed = std::mem::take(&mut inner.owed);
            if let Some(entry) = inner.fences.iter_mut().find(|entry| owed > Position(0) && entry.covered >= owed) {
                entry.demanded = true;
            }
        }
        drop(inner);
        drop(replaced);
    }

    /// Somebody waits for `position` to be passed: the oldest fence that covers it is kept from now on.
    pub fn demand(&self, position: Position) -> Demand {
        if self.completed() >= position {
            return Demand::Complete;
        }
        let mut inner = self.inner.lock();
        match inner.fences.iter_mut().find(|entry| entry.covered >= position) {
            Some(entry) => {
                entry.demanded = true;
                Demand::Fenced
            }
            None => {
                inner.owed = inner.owed.max(position);
                Demand::Record
            }
        }
    }

    /// Whether a fence is demanded that nobody has recorded yet.
    #[must_use]
    pub fn owes_fence(&self) -> bool {
        let owed = self.inner.lock().owed;
        owed > self.completed()
    }

    /// The oldest incomplete fence, to ask whether it is complete.
    #[must_use]
    pub fn oldest(&self) -> Option<(Position, F)> {
        self.inner.lock().fences.front().map(|entry| (entry.covered, entry.fence.clone()))
    }

    /// The oldest incomplete fence that covers `position`.
    #[must_use]
    pub fn fence_covering(&self, position: Position) -> Option<F> {
        self.inner.lock().fences.iter().find(|entry| entry.covered >= position).map(|entry| entry.fence.clone())
    }

    /// The host has seen that everything up to `position` is complete. Returns the fences that are of no use any more.
    pub fn complete(&self, position: Position) -> Vec<F> {
        if self.completed() >= position {
            return Vec::new();
        }
        raise(&self.completed, position.0);
        let mut inner = self.inner.lock();
        let done = inner.fences.iter().take_while(|entry| entry.covered <= position).count();
        inner.fences.drain(..done).map(|entry| entry.fence).collect()
    }

    /// A wait for the fence of `stamp` was submitted to this stream. Call it **after** the wait.
    pub fn waited(&self, stamp: &Stamp) {
        let mut inner = self.inner.lock();
        for (stream, position) in stamp.passed() {
            let index = stream.0 as usize;
            if inner.known.len() <= index {
                inner.known.resize(index + 1, Position(0));
            }
            inner.known[index] = inner.known[index].max(position);
        }
    }

    /// Whether everything that is submitted to this stream from now on provably comes after `position` of `stream`.
    #[must_use]
    pub fn is_after(&self, stream: StreamIndex, position: Position) -> bool {
        stream == self.stream || self.inner.lock().known.get(stream.0 as usize).is_some_and(|&known| known >= position)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const S: StreamIndex = StreamIndex(0);
    const T: StreamIndex = StreamIndex(1);

    fn record(clock: &Clock<u32>, fence: u32) -> Stamp {
        let stamp = clock.stamp();
        clock.recorded(&stamp, fence);
        stamp
    }

    #[test]
    fn a_fence_covers_marks_that_were_set_before_its_stamp() {
        let clock = Clock::new(S);
        let before = clock.mark();
        let stamp = clock.stamp();
        let between = clock.mark();
        clock.recorded(&stamp, 1);
        assert_eq!(clock.demand(before), Demand::Fenced);
        assert_eq!(clock.demand(between), Demand::Record);
    }

    #[test]
    fn a_demanded_fence_stays_and_an_idle_one_is_replaced() {
        let clock = Clock::new(S);
        let first = clock.mark();
        record(&clock, 1);
        let _ = clock.demand(first);
        clock.mark();
        record(&clock, 2);
        clock.mark();
        record(&clock, 3);
        assert_eq!(clock.oldest(), Some((first, 1)));
        assert_eq!(clock.complete(first), [1]);
        assert_eq!(clock.oldest(), Some((Position(3), 3)));
    }

    #[test]
    fn a_fence_that_could_not_be_recorded_is_owed() {
        let clock = Clock::new(S);
        let position = clock.mark();
        assert_eq!(clock.demand(position), Demand::Record);
        assert!(clock.owes_fence());
        record(&clock, 1);
        assert!(!clock.owes_fence());
        clock.mark();
        record(&clock, 2);
        assert_eq!(clock.oldest(), Some((position, 1)), "the owed fence counts as demanded");
    }

    #[test]
    fn an_older_stamp_adds_nothing_to_a_newer_one() {
        let clock = Clock::new(S);
        clock.mark();
        let older = clock.stamp();
        let newer = clock.mark();
        record(&clock, 2);
        clock.recorded(&older, 1);
        assert_eq!(clock.oldest(), Some((newer, 2)));
        assert_eq!(clock.complete(newer), [2]);
        clock.recorded(&older, 3);
        assert_eq!(clock.oldest(), None, "a fence that nobody can end would be asked for ever");
    }

    #[test]
    fn order_is_inherited_through_waits() {
        let (s, t, u) = (Clock::new(S), Clock::new(T), Clock::<u32>::new(StreamIndex(2)));
        let point = s.mark();
        t.waited(&record(&s, 1));
        assert!(t.is_after(S, point));
        assert!(!u.is_after(S, point));
        t.mark();
        u.waited(&record(&t, 2));
        assert!(u.is_after(S, point) && u.is_after(T, Position(1)));
        let later = s.mark();
        assert!(!u.is_after(S, later));
    }

    #[test]
    fn completion_never_goes_back() {
        let clock = Clock::<u32>::new(S);
        clock.mark();
        clock.mark();
        let _ = clock.complete(Position(2));
        let _ = clock.complete(Position(1));
        assert_eq!(clock.completed(), Position(2));
        assert_eq!(clock.demand(Position(2)), Demand::Complete);
    }
}
