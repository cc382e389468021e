//! One communicator whose calls never block for long.
//!
//! A call may answer that it is in progress; it is asked again until it succeeds, fails, or has no time left. After a
//! failure the communicator is aborted, and every later call gives the same answer. Aborting and ending run on a thread
//! of their own, which is left to itself when it takes too long.
//!
//! Lock: one, held during a call.

use std::fmt;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::super::GroupError;
use super::library::{Answer, Comm, IN_PROGRESS, Nccl, SUCCESS};

/// The longest pause between two questions.
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// How long the end of a communicator may take before it is left to itself.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// A communicator.
pub(super) struct Communicator {
    nccl: &'static Nccl,
    rank: u32,
    timeout: Duration,
    state: Mutex<State>,
}

struct State {
    /// `None` after a failure.
    comm: Option<Comm>,
    sequence: u64,
    failed: Option<GroupError>,
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Communicator").field("rank", &self.rank).finish_non_exhaustive()
    }
}

impl Communicator {
    /// Joins the group with this id, on the context that is bound to this thread. Returns when all have.
    pub(super) fn join(
        nccl: &'static Nccl,
        ranks: u32,
        rank: u32,
        id: [u8; 128],
        timeout: Duration,
    ) -> Result<Self, GroupError> {
        let (answer, comm) = nccl.init(ranks, rank, id);
        let state = State { comm, sequence: 0, failed: None };
        let communicator = Communicator { nccl, rank, timeout, state: Mutex::new(state) };
        let settled = communicator.settle(&mut communicator.state.lock(), "joining the group", answer);
        settled.map(|()| communicator)
    }

    /// Makes a call. Its number counts from 0.
    pub(super) fn call(
        &self,
        operation: &'static str,
        act: impl FnOnce(&Nccl, &Comm) -> Answer,
    ) -> Result<(), GroupError> {
        let state = &mut *self.state.lock();
        let comm = match (&state.failed, &state.comm) {
            (Some(failed), _) => return Err(failed.clone()),
            (None, comm) => comm.as_ref().expect("it is there until a failure"),
        };
        let answer = act(self.nccl, comm);
        self.settle(state, operation, answer)?;
        state.sequence += 1;
        Ok(())
    }

    /// Waits until the call that gave `answer` is done.
    fn settle(&self, state: &mut State, operation: &'static str, answer: Answer) -> Result<(), GroupError> {
        let settled = match &state.comm {
            Some(comm) => settle(answer, self.timeout, || self.nccl.progress(comm)),
            None if answer == SUCCESS => Err(Unsettled::Failed(IN_PROGRESS)),
            None => Err(Unsettled::Failed(answer)),
        };
        let (rank, sequence) = (self.rank, state.sequence);
        settled.map_err(|unsettled| {
            let error = match unsettled {
                Unsettled::Late => {
                    GroupError::Timeout { rank, operation, sequence, waited: self.timeout, missing: Vec::new() }
                }
                Unsettled::Failed(answer) => {
                    GroupError::Nccl { rank, operation, sequence, text: self.nccl.text(answer) }
                }
            };
            state.failed = Some(error.clone());
            if let Some(comm) = state.comm.take() {
                let nccl = self.nccl;
                bounded(END_TIMEOUT, move || nccl.abort(comm));
            }
            error
        })
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        let Some(comm) = self.state.get_mut().comm.take() else { return };
        let nccl = self.nccl;
        bounded(END_TIMEOUT, move || {
            let answer = nccl.finalize(&comm);
            match settle(answer, END_TIMEOUT / 2, || nccl.progress(&comm)) {
                Ok(()) => nccl.destroy(comm),
                Err(_) => nccl.abort(comm),
            }
        });
    }
}

/// Why a call is not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Unsettled {
    Late,
    Failed(Answer),
}

/// Asks until a call is done that answered `answer`.
fn settle(answer: Answer, timeout: Duration, mut progress: impl FnMut() -> Answer) -> Result<(), Unsettled> {
    if !matches!(answer, SUCCESS | IN_PROGRESS) {
        return Err(Unsettled::Failed(answer));
    }
    let start = Instant::now();
    let mut pause = Duration::from_micros(1);
    loop {
        match progress() {
            SUCCESS => return Ok(()),
            IN_PROGRESS if start.elapsed() >= timeout => return Err(Unsettled::Late),
            IN_PROGRESS => thread::sleep(pause),
            answer => return Err(Unsettled::Failed(answer)),
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Runs something on a thread of its own, and waits for it for a time. Whether it came to its end.
fn bounded<R: Send + 'static>(timeout: Duration, act: impl FnOnce() -> R + Send + 'static) -> bool {
    let (done, is_done) = mpsc::channel();
    let run = move || {
        act();
        // Nobody may be there any more.
        let _ = done.send(());
    };
    thread::Builder::new().name("nccl-end".into()).spawn(run).is_ok() && is_done.recv_timeout(timeout).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);
    const BAD: Answer = 6;

    #[test]
    fn a_call_is_asked_about_until_it_is_done() {
        let mut answers = [IN_PROGRESS, IN_PROGRESS, SUCCESS].into_iter();
        assert_eq!(settle(IN_PROGRESS, LONG, || answers.next().unwrap()), Ok(()));
        assert_eq!(answers.next(), None);
        // Success is of the call alone, what it began may still go on.
        let mut answers = [IN_PROGRESS, BAD].into_iter();
        assert_eq!(settle(SUCCESS, LONG, || answers.next().unwrap()), Err(Unsettled::Failed(BAD)));
    }

    #[test]
    fn a_call_that_fails_is_not_asked_about() {
        assert_eq!(settle(BAD, LONG, || panic!("it is over")), Err(Unsettled::Failed(BAD)));
    }

    #[test]
    fn a_call_that_is_never_done_ends_in_time() {
        assert_eq!(settle(IN_PROGRESS, Duration::from_millis(3), || IN_PROGRESS), Err(Unsettled::Late));
    }

    #[test]
    fn an_end_that_hangs_is_left_to_itself() {
        let (hold, held) = mpsc::channel::<()>();
        assert!(!bounded(Duration::from_millis(3), move || held.recv()));
        assert!(bounded(LONG, || ()));
        drop(hold);
    }
}
