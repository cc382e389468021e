//! The workloads of one thread, each with an allocator of its own.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use highwater::device::Device;
use highwater::{Allocator, Settings, Stream};

use super::free_device::FreeDevice;
use crate::bench::workloads::{Churn, Live};
use crate::replay::counters::Counters;
use crate::replay::report::{Percentiles, ratio_of};

/// Bytes that are taken from the C library for the yardstick.
const MALLOC_BYTES: usize = 64;
/// Bytes of the block that other streams use.
const SHARED_BYTES: usize = 1 << 20;
/// The longest that the end of what streams were given is waited for: nothing.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// How much is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rounds {
    /// Batches of which the median counts.
    pub(super) batches: usize,
    /// Pairs of a batch: of the yardstick and of the hot pair.
    pub(super) pairs: usize,
    /// Pairs before the first batch.
    pub(super) warm_up: usize,
    /// Blocks of a batch that other streams use.
    pub(super) shared: usize,
    /// Blocks of a batch that go from one thread to another.
    pub(super) handed_over: usize,
    /// Steps of each thread.
    pub(super) thread_steps: usize,
    /// The churns.
    pub(super) churns: [Churn; 3],
}

impl Rounds {
    /// Those of the command.
    pub(super) const FULL: Rounds = Rounds {
        batches: 11,
        pairs: 200_000,
        warm_up: 1000,
        shared: 50_000,
        handed_over: 100_000,
        thread_steps: 200_000,
        churns: Churn::COMPARED,
    };
}

/// What everything is measured on.
pub(super) struct Bench {
    /// The GPU; without one each allocator gets a device that costs nothing.
    pub(super) gpu: Option<Arc<dyn Device>>,
    pub(super) settings: Settings,
    pub(super) rounds: Rounds,
}

/// What came of a churn.
pub(super) struct Churned {
    /// Host time of a free and an allocation together.
    pub(super) ns: f64,
    /// The peak of live bytes by that of physical ones.
    pub(super) utilization: f64,
}

/// What came of blocks that other streams use.
pub(super) struct Shared {
    /// Host time of the allocation, the notes and the free together.
    pub(super) ns: f64,
    /// Most physical bytes.
    pub(super) reserved_bytes: u64,
    /// Fences that were recorded for the blocks of the batches that count.
    pub(super) fences: u64,
}

impl Bench {
    /// A new allocator.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn allocator(&self) -> Result<Allocator, highwater::Error> {
        let device = self.gpu.clone().unwrap_or_else(|| FreeDevice::new());
        Ok(Allocator::with_settings(device, self.settings.clone())?)
    }

    /// The yardstick: taking memory from the C library and giving it back, ns a pair.
    pub(super) fn malloc_pair(&self) -> f64 {
        let pair = || {
            black_box(Vec::<u8>::with_capacity(MALLOC_BYTES));
            Ok::<(), std::convert::Infallible>(())
        };
        let Ok(ns) = self.pairs(pair);
        ns
    }

    /// An allocation of so many bytes and its free, over and over: ns a pair.
    ///
    /// # Errors
    /// When there is no memory, or the device fails.
    pub(super) fn hot_pair(&self, bytes: usize) -> Result<f64, highwater::Error> {
        let stream = self.allocator()?.create_stream("hot pair")?;
        self.pairs(|| {
            black_box(&stream.alloc::<u8>(bytes)?);
            Ok(())
        })
    }

    fn pairs<E>(&self, mut pair: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
        let Rounds { batches, pairs, warm_up, .. } = self.rounds;
        (0..warm_up).try_for_each(|_| pair())?;
        median_ns(batches, pairs, || (0..pairs).try_for_each(|_| pair()))
    }

    /// Blocks of random sizes that come and go.
    ///
    /// # Errors
    /// When there is no memory, or the device fails.
    pub(super) fn churn(&self, churn: Churn) -> Result<Churned, highwater::Error> {
        let allocator = self.allocator()?;
        let mut live = Live::new(churn.slots, streams(&allocator, churn.streams)?);
        let draws = churn.draws();
        let (before, measured) = draws.split_at(churn.warm_up());
        before.iter().try_for_each(|draw| live.step(draw))?;
        let start = Instant::now();
        measured.iter().try_for_each(|draw| live.step(draw))?;
        let ns = ns_each(start.elapsed(), measured.len());
        let counters = Counters::of(&allocator);
        Ok(Churned { ns, utilization: ratio_of(counters.peak_live_bytes, counters.peak_reserved_bytes) })
    }

    /// Host times of the single allocations of a churn, ns; the clock that is read for each is part of it.
    ///
    /// # Errors
    /// When there is no memory, or the device fails.
    pub(super) fn single_allocations(&self, churn: Churn) -> Result<Percentiles, highwater::Error> {
        let mut live = Live::new(churn.slots, streams(&self.allocator()?, churn.streams)?);
        let draws = churn.draws();
        let (before, measured) = draws.split_at(churn.warm_up());
        before.iter().try_for_each(|draw| live.step(draw))?;
        let mut times = Vec::with_capacity(measured.len());
        for draw in measured {
            live.free(draw);
            let start = Instant::now();
            live.fill(draw)?;
            times.push(start.elapsed().as_nanos() as u64);
        }
        Ok(Percentiles::of(times))
    }

    /// Blocks that so many other streams use as well.
    ///
    /// # Errors
    /// When there is no memory, or the device fails.
    pub(super) fn record_stream(&self, users: usize) -> Result<Shared, highwater::Error> {
        let Rounds { batches, shared, .. } = self.rounds;
        let allocator = self.allocator()?;
        let owner = allocator.create_stream("owner")?;
        let users = streams(&allocator, users)?;
        let (mut times, mut fences) = (Vec::with_capacity(batches), 0);
        // The first one grows the heap, and does not count.
        for batch in 0..=batches {
            let fences_before = allocator.memory_stats().fences_recorded;
            let start = Instant::now();
            for _ in 0..shared {
                let buffer = owner.alloc::<u8>(SHARED_BYTES)?;
                users.iter().for_each(|user| buffer.record_stream(user));
            }
            let ns = ns_each(start.elapsed(), shared);
            if batch > 0 {
                times.push(ns);
                fences += allocator.memory_stats().fences_recorded - fences_before;
            }
            for user in &users {
                user.record()?.wait(LONGEST_WAIT)?;
            }
        }
        let reserved_bytes = Counters::of(&allocator).peak_reserved_bytes;
        Ok(Shared { ns: median(times), reserved_bytes, fences })
    }
}

/// So many new streams.
///
/// # Errors
/// When the device fails.
pub(super) fn streams(allocator: &Allocator, count: usize) -> Result<Vec<Stream>, highwater::Error> {
    (0..count).map(|index| Ok(allocator.create_stream(&format!("stream {index}"))?)).collect()
}

/// The median of batches of so many operations, ns an operation.
///
/// # Errors
/// The first of a batch.
pub(super) fn median_ns<E>(
    batches: usize,
    operations: usize,
    mut batch: impl FnMut() -> Result<(), E>,
) -> Result<f64, E> {
    let mut times = Vec::with_capacity(batches);
    for _ in 0..batches {
        let start = Instant::now();
        batch()?;
        times.push(ns_each(start.elapsed(), operations));
    }
    Ok(median(times))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn ns_each(all: Duration, operations: usize) -> f64 {
    all.as_nanos() as f64 / operations as f64
}
