//! The workloads of several threads.

use std::sync::Barrier;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use highwater::{Allocator, Buffer, Stream};

use super::bench::{Bench, median_ns, streams};
use crate::bench::workloads::{Churn, Live};

/// The churn of one thread; the seed is that of the first.
const OF_A_THREAD: Churn = Churn { slots: 256, streams: 1, low: 512, high: 4 << 20, steps: 0, seed: 1000 };
/// Steps of a thread before it is ready.
const WARM_UP: usize = 4096;

/// Bytes of a block that one thread allocates and another frees.
const BYTES: usize = 512;
/// Blocks that go to the other thread at once, and how many such parcels there are: handing over must cost little beside
/// what is measured, and the one thread must not be far ahead of the other.
const PARCEL: usize = 512;
const PARCELS: usize = 8;

type Parcel = Vec<Buffer<u8>>;

impl Bench {
    /// So many threads, each with blocks of random sizes on its own stream: millions of steps a second, all together. A
    /// step is a free and an allocation; all begin at once, and the slowest thread says how long it took.
    ///
    /// # Errors
    /// When there is no memory, or the device fails.
    pub(super) fn threads(&self, count: usize) -> Result<f64, highwater::Error> {
        let allocator = self.allocator()?;
        let (ready, steps) = (Barrier::new(count), self.rounds.thread_steps);
        let of_each = thread::scope(|scope| {
            let workers = streams(&allocator, count)?.into_iter().enumerate().map(|(index, stream)| {
                let ready = &ready;
                scope.spawn(move || thread_of_its_own(stream, index as u64, steps, ready))
            });
            // All have to run before the first is waited for.
            let workers: Vec<_> = workers.collect();
            let join = |worker: thread::ScopedJoinHandle<'_, _>| worker.join().expect("a measurement does not panic");
            workers.into_iter().map(join).collect::<Result<Vec<Duration>, highwater::Error>>()
        })?;
        let slowest = of_each.into_iter().max().unwrap_or_default();
        Ok((count * steps) as f64 / slowest.as_secs_f64() / 1e6)
    }

    /// One thread allocates on a stream, another frees: ns a block, from the first allocation to the last free.
    ///
    /// # Errors
    /// When there is no memory, or the device fails.
    pub(super) fn cross_thread_free(&self) -> Result<f64, highwater::Error> {
        let allocator = self.allocator()?;
        let parcels = self.rounds.handed_over.div_ceil(PARCEL);
        hand_over(&allocator, PARCELS)?;
        median_ns(self.rounds.batches, parcels * PARCEL, || hand_over(&allocator, parcels))
    }
}

/// What one thread does, and how long it took once all were ready.
fn thread_of_its_own(stream: Stream, index: u64, steps: usize, ready: &Barrier) -> Result<Duration, highwater::Error> {
    let draws = Churn { seed: OF_A_THREAD.seed + index, ..OF_A_THREAD }.first_draws(WARM_UP + steps);
    let mut live = Live::new(OF_A_THREAD.slots, vec![stream]);
    let (before, measured) = draws.split_at(WARM_UP);
    let warm = before.iter().try_for_each(|draw| live.step(draw));
    // Also where it failed: the others wait for it.
    ready.wait();
    warm?;
    let start = Instant::now();
    measured.iter().try_for_each(|draw| live.step(draw))?;
    Ok(start.elapsed())
}

/// So many parcels of new blocks, which another thread frees.
fn hand_over(allocator: &Allocator, parcels: usize) -> Result<(), highwater::Error> {
    let stream = allocator.default_stream();
    let (full, to_free) = channel();
    let (empty, to_fill) = channel();
    (0..PARCELS).for_each(|_| empty.send(Parcel::with_capacity(PARCEL)).expect("the other end is here"));
    thread::scope(|scope| {
        scope.spawn(move || free_all(&to_free, &empty));
        fill_all(&stream, parcels, &to_fill, full)
    })
}

fn fill_all(
    stream: &Stream,
    parcels: usize,
    to_fill: &Receiver<Parcel>,
    full: Sender<Parcel>,
) -> Result<(), highwater::Error> {
    for _ in 0..parcels {
        let mut parcel = to_fill.recv().expect("the other thread gives all parcels back");
        for _ in 0..PARCEL {
            parcel.push(stream.alloc::<u8>(BYTES)?);
        }
        full.send(parcel).expect("the other thread is there until this one is done");
    }
    Ok(())
}

fn free_all(to_free: &Receiver<Parcel>, empty: &Sender<Parcel>) {
    for mut parcel in to_free {
        parcel.clear();
        // Nobody fills the last ones again.
        let _ = empty.send(parcel);
    }
}
