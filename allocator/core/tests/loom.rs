//! Every interleaving of a free from elsewhere with the thread that holds the heap.
//!
//! Run with `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo test -p highwater-core --test loom --release`.

#![cfg(loom)]

use highwater_core::{Clock, Demand, Position, Receive, Station, StreamIndex};
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
