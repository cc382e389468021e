//! Threads that run the bodies of operations.
//!
//! A body gets copies of its operands, so when and where it runs cannot change what it computes. It starts at the
//! earliest when its operation starts; the engine asks for the outcome when the operation ends, and runs the body
//! itself if no thread has taken it by then. No lock of the cluster is ever taken here.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex};

use crate::OperandBytes;

/// What a body wrote: index of the operand, and its new content.
pub(super) type Written = Vec<(usize, OperandBytes)>;
/// What a body wrote, or what it said when it panicked.
pub(super) type Outcome = Result<Written, String>;
/// A body with its operands.
pub(super) type Task = Box<dyn FnOnce() -> Written + Send>;

thread_local! {
    static IN_BODY: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread runs a body: one that called its device would wait for itself.
pub(super) fn in_body() -> bool {
    IN_BODY.get()
}

/// What a panic said.
pub(super) fn panic_message(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "(no text)".to_owned())
}

/// One body: waiting, running or done.
pub(super) struct Job {
    state: Mutex<JobState>,
    done: Condvar,
}

enum JobState {
    Waiting(Task),
    Running,
    Done(Outcome),
}

impl Job {
    /// The outcome; runs the body here if no thread has begun it. To be asked once.
    pub(super) fn finish(&self) -> Outcome {
        self.run();
        let mut state = self.state.lock();
        loop {
            match std::mem::replace(&mut *state, JobState::Running) {
                JobState::Done(outcome) => return outcome,
                other => *state = other,
            }
            self.done.wait(&mut state);
        }
    }

    /// Runs the body unless someone else has begun it.
    fn run(&self) {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, JobState::Running) {
            JobState::Waiting(task) => {
                drop(state);
                let before = IN_BODY.replace(true);
                let outcome = catch_unwind(AssertUnwindSafe(task)).map_err(|payload| panic_message(&*payload));
                IN_BODY.set(before);
                *self.state.lock() = JobState::Done(outcome);
                self.done.notify_all();
            }
            other => *state = other,
        }
    }
}

/// The threads; they start with the first body and end when the pool is dropped.
pub(super) struct Pool {
    workers: usize,
    queue: Option<Arc<Queue>>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    jobs: VecDeque<Arc<Job>>,
    closed: bool,
}

impl Pool {
    pub(super) fn new(workers: usize) -> Self {
        Pool { workers, queue: None }
    }

    /// Hands a body to the threads.
    pub(super) fn submit(&mut self, task: Task) -> Arc<Job> {
        let job = Arc::new(Job { state: Mutex::new(JobState::Waiting(task)), done: Condvar::new() });
        if self.workers > 0 {
            let queue = self.queue.get_or_insert_with(|| start(self.workers));
            queue.state.lock().jobs.push_back(job.clone());
            queue.changed.notify_one();
        }
        job
    }
}

impl Drop for Pool {
    /// Lets the threads end on their own: one of them may be the thread that drops the pool.
    fn drop(&mut self) {
        if let Some(queue) = &self.queue {
            queue.state.lock().closed = true;
            queue.changed.notify_all();
        }
    }
}

fn start(workers: usize) -> Arc<Queue> {
    let queue = Arc::new(Queue::default());
    for index in 0..workers {
        let queue = queue.clone();
        let builder = thread::Builder::new().name(format!("body-{index}"));
        // With fewer threads, or none, the engine runs the bodies itself.
        if builder.spawn(move || work(&queue)).is_err() {
            break;
        }
    }
    queue
}

fn work(queue: &Queue) {
    let mut state = queue.state.lock();
    loop {
        if let Some(job) = state.jobs.pop_front() {
            drop(state);
            job.run();
            drop(job);
            state = queue.state.lock();
        } else if state.closed {
            return;
        } else {
            queue.changed.wait(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_the_same_with_and_without_threads() {
        for workers in [0, 3] {
            let mut pool = Pool::new(workers);
            let jobs: Vec<_> = (0u8..50)
                .map(|index| pool.submit(Box::new(move || vec![(usize::from(index), OperandBytes::filled(3, index))])))
                .collect();
            for (index, job) in jobs.iter().enumerate() {
                let written = job.finish().unwrap();
                assert_eq!(written[0].0, index);
                assert_eq!(written[0].1.as_bytes(), [u8::try_from(index).unwrap(); 3]);
            }
        }
    }

    #[test]
    fn a_panic_is_an_outcome() {
        for workers in [0, 1] {
            let mut pool = Pool::new(workers);
            let job = pool.submit(Box::new(|| panic!("no {}", 1)));
            assert_eq!(job.finish().unwrap_err(), "no 1");
            assert!(!in_body());
        }
    }
}
