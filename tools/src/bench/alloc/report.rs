//! What is told: one object for machines, or a table for people.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;

use super::bench::{Bench, median_ns};
use super::history_kib;
use crate::replay::report::Percentiles;

/// Sizes of the hot pair, bytes.
const HOT_BYTES: [usize; 3] = [512, 1 << 20, 64 << 20];
/// How many threads there are at once.
const THREADS: [usize; 5] = [1, 2, 4, 8, 16];
/// How many other streams use a block.
const USERS: [usize; 2] = [1, 2];

/// What came of all workloads. Times are ns of the host.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Report {
    /// The GPU, or that it costs nothing.
    pub(super) device: String,
    /// Whether the history is recorded.
    pub(super) recorder: &'static str,
    /// Threads that run at once here.
    pub(super) cores: usize,
    /// How many batches a median is of.
    pub(super) batches: usize,
    /// Taking 64 bytes from the C library and giving them back: the yardstick.
    pub(super) malloc_pair_ns: f64,
    /// Reading the clock once.
    pub(super) clock_ns: f64,
    /// An allocation and its free, by bytes.
    pub(super) hot_pair_ns: BTreeMap<usize, f64>,
    /// A free and an allocation among many blocks, by blocks and streams.
    pub(super) churn_ns: BTreeMap<String, f64>,
    /// The peak of live bytes by that of physical ones.
    pub(super) churn_utilization: BTreeMap<String, f64>,
    /// Millions of frees with an allocation each a second, over all threads, by threads.
    pub(super) threads_mops: BTreeMap<usize, f64>,
    /// A block that one thread allocates and another one frees.
    pub(super) cross_thread_free_ns: f64,
    /// An allocation of 1 MiB that other streams use, and its free, by their number.
    pub(super) record_stream_ns: BTreeMap<usize, f64>,
    /// The physical memory that took, bytes.
    pub(super) record_stream_reserved_bytes: BTreeMap<usize, u64>,
    /// Fences that the device recorded for all of these.
    pub(super) events_recorded: u64,
    /// Frees that waited for them.
    pub(super) frees_recorded: u64,
    /// A single allocation of the first churn, with the clock that was read for it.
    pub(super) alloc_ns: Percentiles,
}

impl Report {
    /// Runs all workloads, one after the other.
    ///
    /// # Errors
    /// When there is no memory, or the device fails.
    pub(super) fn measure(bench: &Bench) -> Result<Self, highwater::Error> {
        let mut report = Report {
            device: bench.gpu.as_ref().map_or("one that costs nothing".into(), |gpu| gpu.properties().name.clone()),
            recorder: if history_kib(&bench.settings) == 0 { "off" } else { "on" },
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            batches: bench.rounds.batches,
            malloc_pair_ns: bench.malloc_pair(),
            clock_ns: clock_ns(bench),
            hot_pair_ns: by(HOT_BYTES, |bytes| bench.hot_pair(bytes))?,
            churn_ns: BTreeMap::new(),
            churn_utilization: BTreeMap::new(),
            threads_mops: by(THREADS, |threads| bench.threads(threads))?,
            cross_thread_free_ns: bench.cross_thread_free()?,
            record_stream_ns: BTreeMap::new(),
            record_stream_reserved_bytes: BTreeMap::new(),
            events_recorded: 0,
            frees_recorded: 0,
            alloc_ns: bench.single_allocations(bench.rounds.churns[0])?,
        };
        report.churn(bench)?;
        report.record_stream(bench)?;
        Ok(report)
    }

    fn churn(&mut self, bench: &Bench) -> Result<(), highwater::Error> {
        for (name, churn) in ["4096x1", "4096x4", "65536x1"].into_iter().zip(bench.rounds.churns) {
            let churned = bench.churn(churn)?;
            self.churn_ns.insert(name.to_owned(), churned.ns);
            // Small blocks fill any memory.
            if churn.high > 1 << 20 {
                self.churn_utilization.insert(name.to_owned(), churned.utilization);
            }
        }
        Ok(())
    }

    fn record_stream(&mut self, bench: &Bench) -> Result<(), highwater::Error> {
        for users in USERS {
            let shared = bench.record_stream(users)?;
            self.record_stream_ns.insert(users, shared.ns);
            self.record_stream_reserved_bytes.insert(users, shared.reserved_bytes);
            self.events_recorded += shared.fences;
            self.frees_recorded += (bench.rounds.batches * bench.rounds.shared) as u64;
        }
        Ok(())
    }

    /// On one line.
    pub(super) fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers and text are JSON") + "\n"
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "device: {}; recorder {}; {} cores; each pair the median of {} batches\n\n",
            self.device, self.recorder, self.cores, self.batches
        );
        let mut line = |what: &str, value: String| text += &format!("{what:<36}{value}\n");
        line("malloc and free of 64 B", self.of_a_pair(self.malloc_pair_ns));
        for (bytes, &ns) in &self.hot_pair_ns {
            line(&format!("hot pair of {}", size(*bytes)), self.of_a_pair(ns));
        }
        for (name, ns) in &self.churn_ns {
            let full = self.churn_utilization.get(name).map(|part| format!(", utilization {part:.4}"));
            line(&format!("churn {name}"), self.of_a_pair(*ns) + &full.unwrap_or_default());
        }
        for (threads, mops) in &self.threads_mops {
            let s = if *threads == 1 { "" } else { "s" };
            let shared =
                if *threads > self.cores { format!(" (more than the {} cores)", self.cores) } else { "".into() };
            line(&format!("{threads} thread{s} with a stream each"), format!("{mops:>10.2} Mops/s{shared}"));
        }
        line("one thread allocates, another frees", self.of_a_pair(self.cross_thread_free_ns));
        for (users, &ns) in &self.record_stream_ns {
            let reserved = self.record_stream_reserved_bytes[users] >> 20;
            let what =
                format!("1 MiB that {users} more stream{} use{}", plural(*users), if *users == 1 { "s" } else { "" });
            line(&what, self.of_a_pair(ns) + &format!(", {reserved} MiB held"));
        }
        line("  fences recorded for these", format!("{:>10} for {} frees", self.events_recorded, self.frees_recorded));
        let Percentiles { p50, p99, p999, max } = self.alloc_ns;
        let told =
            format!("{p50:>10} ns (99 %: {p99}, 99.9 %: {p999}, longest {max}; {:.0} are the clock)", self.clock_ns);
        line("single allocation of churn 4096x1", told);
        text
    }

    /// A time beside the yardstick.
    fn of_a_pair(&self, ns: f64) -> String {
        format!("{ns:>10.1} ns, {:.1} times malloc", ns / self.malloc_pair_ns)
    }
}

/// A figure for each of some numbers.
fn by<F>(
    numbers: impl IntoIterator<Item = usize>,
    figure: impl Fn(usize) -> Result<F, highwater::Error>,
) -> Result<BTreeMap<usize, F>, highwater::Error> {
    numbers.into_iter().map(|number| Ok((number, figure(number)?))).collect()
}

fn clock_ns(bench: &Bench) -> f64 {
    let pairs = bench.rounds.pairs;
    let Ok(ns) = median_ns(bench.rounds.batches, pairs, || {
        (0..pairs).for_each(|_| {
            std::hint::black_box(Instant::now());
        });
        Ok::<(), std::convert::Infallible>(())
    });
    ns
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

fn size(bytes: usize) -> String {
    match bytes >> 20 {
        0 => format!("{bytes} B"),
        mebibytes => format!("{mebibytes} MiB"),
    }
}
