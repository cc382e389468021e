//! Every interleaving of a free from elsewhere with the thread that holds the heap, and of a record with submissions.
//!
//! Run with `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo test -p highwater-core --test loom --release`.

#![cfg(loom)]

use highwater_core::{Clock, Demand, Hold, Openness, Outlook, Position, Receive, Station, StreamIndex};
use loom::sync::Arc;
use loom::thread;

/// Counts what it received.
struct Counter {
    received: usize,
}

impl Receive<usize> for Counter {
    fn receive(&mut self, message: usize) {
        self.received += message;
    }
}

#[test]
fn a_free_from_elsewhere_is_never_stranded() {
    loom::model(|| {
        let station = Arc::new(Station::new(Counter { received: 0 }));
        let senders: Vec<_> = [1, 10]
            .into_iter()
            .map(|message| {
                let station = station.clone();
                thread::spawn(move || station.send(message))
            })
            .collect();
        {
            let _inside = station.enter();
            // A place to be interrupted while inside: loom takes unlocking for no event of its own.
            thread::yield_now();
        }
        for sender in senders {
            sender.join().unwrap();
        }
        // Nobody enters any more: what was not delivered by now never would be. `peek` takes the lock without looking
        // into the inbox.
        assert_eq!(station.peek(|counter| counter.received), 11);
    });
}

#[test]
fn whoever_is_inside_is_alone() {
    loom::model(|| {
        let station = Arc::new(Station::new(Counter { received: 0 }));
        let other = {
            let station = station.clone();
            thread::spawn(move || {
                let mut inside = station.enter();
                let seen = inside.received;
                thread::yield_now();
                inside.received = seen + 1;
            })
        };
        {
            let mut inside = station.enter();
            let seen = inside.received;
            thread::yield_now();
            inside.received = seen + 1;
        }
        other.join().unwrap();
        assert_eq!(station.peek(|counter| counter.received), 2);
    });
}

#[test]
fn a_fence_never_covers_work_submitted_after_its_stamp() {
    use loom::sync::atomic::{AtomicU64, Ordering};
    loom::model(|| {
        let clock = Arc::new(Clock::new(StreamIndex(0)));
        // The driver's queue: how many operations have been submitted.
        let queue = Arc::new(AtomicU64::new(0));
        let submitter = {
            let (clock, queue) = (clock.clone(), queue.clone());
            thread::spawn(move || {
                queue.fetch_add(1, Ordering::AcqRel);
                clock.mark()
            })
        };
        let stamp = clock.stamp();
        let in_the_fence = queue.load(Ordering::Acquire);
        clock.recorded(&stamp, ());
        let position = submitter.join().unwrap();
        assert_eq!(position, Position(1));
        if clock.demand(position) == Demand::Fenced {
            assert_eq!(in_the_fence, 1, "the fence claims an operation that came after it");
        }
    });
}

/// A thread publishes, then submits; another one records, then asks what holds its fence up. The answers, when the
/// fence comes after the submission.
fn outlook_of_a_fence_behind(publish: impl Fn(&Openness<()>) + Send + Sync + Copy + 'static, check: fn(&Outlook<()>)) {
    use loom::sync::atomic::{AtomicU64, Ordering};
    loom::model(move || {
        let openness = Arc::new(Openness::new());
        let queue = Arc::new(AtomicU64::new(0));
        let submitter = {
            let (openness, queue) = (openness.clone(), queue.clone());
            thread::spawn(move || {
                publish(&openness);
                queue.fetch_add(1, Ordering::AcqRel);
            })
        };
        let in_the_fence = queue.load(Ordering::Acquire);
        let outlook = openness.outlook(|()| false);
        if in_the_fence == 1 {
            check(&outlook);
        }
        submitter.join().unwrap();
    });
}

#[test]
fn a_fence_behind_open_work_is_open() {
    outlook_of_a_fence_behind(Openness::open, |outlook| assert_eq!(*outlook, Outlook::Open));
}

#[test]
fn a_fence_behind_a_wait_is_held_up_as_its_stream() {
    let hold = || Hold { stream: StreamIndex(1), position: Position(3), fence: () };
    outlook_of_a_fence_behind(
        move |openness| openness.will_wait([hold()]),
        |outlook| assert!(matches!(outlook, Outlook::Behind(holds) if holds.len() == 1), "{outlook:?}"),
    );
}
