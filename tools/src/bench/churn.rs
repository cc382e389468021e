//! How full memory is, and how long a request takes, when blocks of random sizes come and go.
//!
//! On the simulated device: times are those of the allocator, with driver calls at the price that they have on an H200.

use std::time::Instant;

use highwater::device::Device;
use highwater::device::sim::{SimConfig, SimDevice};
use highwater::{Allocator, Settings, Stream};
use serde::Serialize;

use super::workloads::{Churn, Live};
use crate::cli::BenchChurnArgs;
use crate::failure::Failure;
use crate::output;
use crate::replay::counters::Counters;
use crate::replay::meter::Meter;
use crate::replay::report::ratio_of;
use crate::settings;

/// What came of one workload.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Churned {
    slots: usize,
    streams: usize,
    /// Sizes are at least the one and below the other, bytes.
    low_bytes: u64,
    high_bytes: u64,
    peak_live_bytes: u64,
    peak_reserved_bytes: u64,
    utilization: f64,
    /// Host time of a free and an allocation together.
    ns_per_pair: f64,
    driver_memory_calls: u64,
    page_seconds: f64,
    host_stalls: u64,
}

/// Measures the workloads and prints a line for each.
///
/// # Errors
/// When the settings in the environment are bad, or a measurement fails.
pub(crate) fn run(arguments: &BenchChurnArgs) -> Result<(), Failure> {
    let settings = settings::above_environment([])?;
    for churn in Churn::COMPARED {
        let churned = measure(churn, settings.clone()).map_err(Failure::bench)?;
        let line = match arguments.json {
            true => serde_json::to_string(&churned).expect("numbers are JSON") + "\n",
            false => format!(
                "{:>6} blocks of {} to {} B, {} streams: utilization {:.4}, {:.0} ns, {} driver memory calls ({:.3} s)\n",
                churned.slots,
                churned.low_bytes,
                churned.high_bytes,
                churned.streams,
                churned.utilization,
                churned.ns_per_pair,
                churned.driver_memory_calls,
                churned.page_seconds,
            ),
        };
        output::print(&line).map_err(Failure::Print)?;
    }
    Ok(())
}

fn measure(churn: Churn, settings: Settings) -> Result<Churned, highwater::Error> {
    let device = SimDevice::new(SimConfig { bodies: false, workers: 0, ..SimConfig::default() });
    let meter = Meter::new(device);
    let allocator = Allocator::with_settings(meter.clone(), settings)?;
    let streams = (0..churn.streams).map(|index| allocator.create_stream(&format!("stream {index}")));
    let streams: Vec<Stream> = streams.collect::<Result<_, _>>()?;
    let mut live = Live::new(churn.slots, streams);
    let draws = churn.draws();
    let (before, measured) = draws.split_at(churn.warm_up());
    before.iter().try_for_each(|draw| live.step(draw))?;
    let (start, before) = (Instant::now(), meter.read());
    measured.iter().try_for_each(|draw| live.step(draw))?;
    let real_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let after = meter.read();
    let ns = real_ns.saturating_sub(after.real_ns - before.real_ns) + (after.host_ns - before.host_ns);
    let counters = Counters::of(&allocator);
    Ok(Churned {
        slots: churn.slots,
        streams: churn.streams,
        low_bytes: churn.low,
        high_bytes: churn.high,
        peak_live_bytes: counters.peak_live_bytes,
        peak_reserved_bytes: counters.peak_reserved_bytes,
        utilization: ratio_of(counters.peak_live_bytes, counters.peak_reserved_bytes),
        ns_per_pair: ratio_of(ns, measured.len() as u64),
        driver_memory_calls: meter.counters().driver_memory_calls(),
        page_seconds: after.page_ns as f64 / 1e9,
        host_stalls: counters.host_stalls,
    })
}

/// How full memory is, for comparison.
#[cfg(test)]
pub(super) fn utilization(churn: Churn, settings: Settings) -> Result<f64, highwater::Error> {
    Ok(measure(churn, settings)?.utilization)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_churn_counts_what_the_draws_say() {
        let churn = Churn { slots: 64, streams: 2, low: 512, high: 8 << 20, steps: 500, seed: 5 };
        let (mut live, mut held, mut peak) = (vec![0; 64], 0, 0);
        for draw in churn.draws() {
            held = held - live[draw.slot] + draw.bytes;
            live[draw.slot] = draw.bytes;
            peak = peak.max(held);
        }
        let churned = measure(churn, Settings::default()).unwrap();
        assert_eq!(churned.peak_live_bytes, peak);
        assert!(churned.peak_reserved_bytes >= peak && churned.driver_memory_calls > 0);
        assert!(churned.utilization > 0.5 && churned.utilization <= 1.0);
    }
}
