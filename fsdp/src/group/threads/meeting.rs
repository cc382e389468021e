//! Where the ranks of a process meet, once for each collective.
//!
//! Every rank posts what it wants. The last one to come issues the work of all while the others still stand here, so it
//! may use whatever they posted; nobody goes before it is done. A failure ends the meeting for good: all who are here
//! and all who come later get it. Nobody waits longer than its timeout, but for one that is issuing.
//!
//! Lock: one, held while issuing. A rank that has come cannot run into its timeout then.

use std::time::{Duration, Instant};

use highwater::device::DeviceError;
use parking_lot::{Condvar, Mutex};

/// Why a meeting ended.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub(super) enum Failure {
    /// What was posted does not fit together.
    #[error("{0}")]
    Mismatch(String),
    /// Ranks did not come.
    #[error("ranks {missing:?} did not come within {waited:?}")]
    Timeout { waited: Duration, missing: Vec<u32> },
    /// A rank has left.
    #[error("rank {left} has left the group: {why}")]
    Left { left: u32, why: String },
    /// The work could not be issued.
    #[error("{0}")]
    Device(DeviceError),
}

/// A failure, and the number of the round that it ended.
pub(super) type Ended = (u64, Failure);

/// Where `ranks` ranks meet, each with a `P`.
pub(super) struct Meeting<P> {
    state: Mutex<State<P>>,
    changed: Condvar,
}

struct State<P> {
    /// Rounds that are complete.
    rounds: u64,
    /// Of the round that is under way, by rank.
    posted: Vec<Option<P>>,
    ended: Option<Ended>,
}

impl<P> State<P> {
    /// The first failure stays.
    fn end(&mut self, failure: Failure) -> Ended {
        let rounds = self.rounds;
        self.ended.get_or_insert((rounds, failure)).clone()
    }

    fn missing(&self) -> Vec<u32> {
        (0..).zip(&self.posted).filter(|(_, posted)| posted.is_none()).map(|(rank, _)| rank).collect()
    }
}

impl<P> Meeting<P> {
    pub(super) fn new(ranks: u32) -> Self {
        let posted = (0..ranks).map(|_| None).collect();
        Meeting { state: Mutex::new(State { rounds: 0, posted, ended: None }), changed: Condvar::new() }
    }

    /// Meets the other ranks. Returns when the last one has issued the work of all, by its `issue`, which gets what was
    /// posted, by rank.
    pub(super) fn meet(
        &self,
        rank: u32,
        posted: P,
        timeout: Duration,
        issue: impl FnOnce(&[P]) -> Result<(), Failure>,
    ) -> Result<(), Ended> {
        let start = Instant::now();
        let mut state = self.state.lock();
        if let Some(ended) = &state.ended {
            return Err(ended.clone());
        }
        let round = state.rounds;
        let twice = state.posted[rank as usize].replace(posted).is_some();
        if twice {
            let ended = state.end(Failure::Mismatch(format!("rank {rank} issues two collectives at once")));
            self.changed.notify_all();
            return Err(ended);
        }
        if state.posted.iter().all(Option::is_some) {
            let all: Vec<P> = state.posted.iter_mut().filter_map(Option::take).collect();
            let issued = match issue(&all) {
                Ok(()) => {
                    state.rounds += 1;
                    Ok(())
                }
                Err(failure) => Err(state.end(failure)),
            };
            self.changed.notify_all();
            return issued;
        }
        loop {
            // A round that is complete stays so, whatever came after it.
            if state.rounds > round {
                return Ok(());
            }
            if let Some(ended) = &state.ended {
                return Err(ended.clone());
            }
            let waited = start.elapsed();
            if waited >= timeout {
                let missing = state.missing();
                let ended = state.end(Failure::Timeout { waited: timeout, missing });
                self.changed.notify_all();
                return Err(ended);
            }
            self.changed.wait_for(&mut state, timeout - waited);
        }
    }

    /// Ends the meeting: `rank` comes no more.
    pub(super) fn leave(&self, rank: u32, why: &str) {
        self.state.lock().end(Failure::Left { left: rank, why: why.to_owned() });
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(600);
    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn each_round_is_issued_once_with_what_all_posted_before_anyone_goes_on() {
        for ranks in [1, 2, 5] {
            let meeting = Meeting::new(ranks);
            let issued = AtomicU64::new(0);
            thread::scope(|scope| {
                for rank in 0..ranks {
                    let (meeting, issued) = (&meeting, &issued);
                    scope.spawn(move || {
                        for round in 0..3000 {
                            let issue = |posted: &[(u32, u64)]| {
                                let expected: Vec<_> = (0..ranks).map(|rank| (rank, round)).collect();
                                assert_eq!(posted, expected);
                                issued.fetch_add(1, Ordering::Relaxed);
                                Ok(())
                            };
                            meeting.meet(rank, (rank, round), LONG, issue).unwrap();
                            // Not earlier, and nobody can be further.
                            assert_eq!(issued.load(Ordering::Relaxed), round + 1);
                            // And once more, so that nobody counts on before all have looked.
                            meeting.meet(rank, (rank, round), LONG, |_| Ok(())).unwrap();
                        }
                    });
                }
            });
        }
    }

    #[test]
    fn what_does_not_fit_is_told_to_all_and_for_good() {
        let meeting = Meeting::new(3);
        let failure = Failure::Mismatch("rank 1 differs".into());
        thread::scope(|scope| {
            for rank in 0..3 {
                let (meeting, failure) = (&meeting, &failure);
                scope.spawn(move || {
                    meeting.meet(rank, (), LONG, |_| Ok(())).unwrap();
                    let met = meeting.meet(rank, (), LONG, |_| Err(failure.clone()));
                    assert_eq!(met, Err((1, failure.clone())));
                    let later = meeting.meet(rank, (), LONG, |_| panic!("nothing is issued any more"));
                    assert_eq!(later, Err((1, failure.clone())));
                });
            }
        });
    }

    #[test]
    fn ranks_that_do_not_come_are_named() {
        let meeting = Meeting::new(3);
        let timeout = Failure::Timeout { waited: SHORT, missing: vec![0, 2] };
        assert_eq!(meeting.meet(1, (), SHORT, |_| Ok(())), Err((0, timeout.clone())));
        assert_eq!(meeting.meet(0, (), LONG, |_| Ok(())), Err((0, timeout)), "the late one learns of it");
    }

    #[test]
    fn one_that_leaves_frees_those_that_wait() {
        let meeting = Meeting::new(2);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| meeting.meet(0, (), LONG, |_| Ok(())));
            // It leaves when the other one is there.
            while meeting.state.lock().posted[0].is_none() {
                thread::yield_now();
            }
            meeting.leave(1, "it was dropped");
            let left = Failure::Left { left: 1, why: "it was dropped".into() };
            assert_eq!(waiting.join().unwrap(), Err((0, left)));
        });
    }

    #[test]
    fn one_that_leaves_after_a_round_does_not_take_the_round_back() {
        let meeting = Meeting::new(2);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| meeting.meet(0, (), LONG, |_| Ok(())));
            while meeting.state.lock().posted[0].is_none() {
                thread::yield_now();
            }
            // Rank 1 completes the round and leaves before rank 0 can look.
            let mut state = meeting.state.lock();
            state.rounds += 1;
            state.end(Failure::Left { left: 1, why: "done".into() });
            drop(state);
            meeting.changed.notify_all();
            assert_eq!(waiting.join().unwrap(), Ok(()));
        });
    }

    #[test]
    fn a_rank_that_comes_twice_ends_the_meeting() {
        let meeting = Meeting::new(2);
        thread::scope(|scope| {
            let (meeting, (told, tells)) = (&meeting, mpsc::channel());
            for _ in 0..2 {
                let told = told.clone();
                scope.spawn(move || told.send(meeting.meet(0, (), LONG, |_| Ok(()))).unwrap());
            }
            for _ in 0..2 {
                let (_, failure) = tells.recv().unwrap().unwrap_err();
                assert_eq!(failure, Failure::Mismatch("rank 0 issues two collectives at once".into()));
            }
        });
    }

    #[test]
    fn one_that_issues_is_waited_for() {
        let meeting = Meeting::new(2);
        thread::scope(|scope| {
            let (go, gone) = mpsc::channel::<()>();
            let waiting = scope.spawn(|| meeting.meet(0, (), LONG, |_| Ok(())));
            while meeting.state.lock().posted[0].is_none() {
                thread::yield_now();
            }
            let meeting = &meeting;
            scope.spawn(move || {
                let issue = |_: &[()]| gone.recv().map_err(|_| Failure::Mismatch("never".into()));
                meeting.meet(1, (), SHORT, issue).unwrap();
            });
            assert!(!waiting.is_finished());
            go.send(()).unwrap();
            assert_eq!(waiting.join().unwrap(), Ok(()));
        });
    }
}
