//! Every interleaving of the threads that use a heap, and of a record with submissions.
//!
//! Run with `RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 cargo test -p highwater-core --test loom --release`.

#![cfg(loom)]
#![allow(unsafe_code)]

use highwater_core::{
    Clock, Demand, Handles, Hold, Openness, Outlook, Position, Prepaid, Receive, Station, StreamIndex,
};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// Counts what it received, and how often it was touched: in a cell that loom watches.
struct Counter {
    received: usize,
    touched: UnsafeCell<usize>,
}

impl Counter {
    fn new() -> Self {
        Counter { received: 0, touched: UnsafeCell::new(0) }
    }

    fn touch(&mut self) {
        // SAFETY: nobody else has the counter; loom would say so.
        self.touched.with_mut(|touched| unsafe { *touched += 1 });
    }

    fn touched(&self) -> usize {
        // SAFETY: as above.
        self.touched.with(|touched| unsafe { *touched })
    }
}

impl Receive<usize> for Counter {
    fn receive(&mut self, message: usize) {
        self.received += message;
    }
}

#[test]
fn a_free_from_elsewhere_reaches_whoever_enters_next() {
    loom::model(|| {
        let station = Arc::new(Station::new(Counter::new()));
        // It leans to this thread from now on.
        drop(station.enter());
        let senders: Vec<_> = [1, 10]
            .into_iter()
            .map(|message| {
                let station = station.clone();
                thread::spawn(move || match station.enter_as_sender() {
                    Some(mut inside) => inside.receive(message),
                    None => station.leave(message),
                })
            })
            .collect();
        drop(station.enter());
        for sender in senders {
            sender.join().unwrap();
        }
        assert_eq!(station.enter().received, 11);
    });
}

/// Threads that each enter so many times. loom finds two of them inside: the cell complains.
fn enter_at_once(others: &'static [usize], own: usize) {
    loom::model(move || {
        let station = Arc::new(Station::new(Counter::new()));
        let enter = |station: &Station<Counter, usize>, times: usize| {
            for _ in 0..times {
                station.enter().touch();
            }
        };
        let threads: Vec<_> = others
            .iter()
            .map(|&times| {
                let station = station.clone();
                thread::spawn(move || enter(&station, times))
            })
            .collect();
        enter(&station, own);
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(station.enter().touched(), own + others.iter().sum::<usize>());
    });
}

#[test]
fn a_thread_that_the_lock_leans_to_is_alone_inside() {
    enter_at_once(&[1], 3);
}

#[test]
fn threads_that_the_lock_leans_to_by_turns_are_alone_inside() {
    enter_at_once(&[2], 2);
}

#[test]
fn three_threads_are_alone_inside() {
    enter_at_once(&[1, 1], 2);
}

#[test]
fn whoever_only_tries_does_not_come_in_to_somebody() {
    loom::model(|| {
        let station = Arc::new(Station::new(Counter::new()));
        drop(station.enter());
        let other = {
            let station = station.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    if let Some(mut inside) = station.try_enter() {
                        inside.touch();
                    }
                }
            })
        };
        {
            let mut inside = station.enter();
            assert!(station.try_enter().is_none(), "nor does the thread itself");
            inside.touch();
        }
        other.join().unwrap();
        station.enter().touch();
    });
}

/// What lies behind the lock of a heap whose blocks hold a stream.
#[derive(Default)]
struct Account(Prepaid);

impl Receive<()> for Account {
    fn receive(&mut self, (): ()) {}
}

#[test]
fn no_count_is_left_when_the_last_handle_goes_beside_the_last_free() {
    use loom::sync::atomic::{AtomicUsize, Ordering};
    loom::model(|| {
        let station = Arc::new(Station::<Account, ()>::new(Account::default()));
        let handles = Arc::new(Handles::new());
        handles.add();
        // One of the handle, one of the block.
        let counts = Arc::new(AtomicUsize::new(2));
        let freer = {
            let (station, handles, counts) = (station.clone(), handles.clone(), counts.clone());
            thread::spawn(move || {
                let left = station.enter_as_sender().is_some_and(|mut inside| inside.0.leave(&handles));
                counts.fetch_sub(usize::from(!left), Ordering::AcqRel);
            })
        };
        if handles.remove() {
            let prepaid = station.enter().0.take_all();
            counts.fetch_sub(prepaid, Ordering::AcqRel);
        }
        counts.fetch_sub(1, Ordering::AcqRel);
        freer.join().unwrap();
        assert_eq!(counts.load(Ordering::Acquire), 0, "a stream that nobody needs is kept");
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

#[test]
fn a_position_that_sets_no_mark_is_after_all_that_was_submitted() {
    use loom::sync::Mutex;
    loom::model(|| {
        let clock = Arc::new(Clock::new(StreamIndex(0)));
        // The driver's queue has a lock of its own.
        let queue = Arc::new(Mutex::new(0));
        let submitter = {
            let (clock, queue) = (clock.clone(), queue.clone());
            thread::spawn(move || {
                *queue.lock().unwrap() += 1;
                clock.upcoming()
            })
        };
        let record = || {
            clock.mark();
            let stamp = clock.stamp();
            let in_the_fence = *queue.lock().unwrap();
            clock.recorded(&stamp, ());
            in_the_fence
        };
        let in_the_fence = record();
        let position = submitter.join().unwrap();
        match clock.demand(position) {
            Demand::Complete => panic!("nothing is complete"),
            Demand::Fenced => assert_eq!(in_the_fence, 1, "the fence claims an operation that came after it"),
            Demand::Record => {
                record();
                assert_eq!(clock.demand(position), Demand::Fenced, "the next fence covers it");
            }
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
