//! `highwater bench moves`: what pages that move cost the work beside them, and what they are worth to a loop that
//! prefetches (`docs/benchmarks.md`).
//!
//! `slowdown` has the kernel that runs while pages move, `prefetch` the loop, `report` what is told.

mod prefetch;
mod report;
mod slowdown;

use std::error::Error;
use std::sync::Arc;

use highwater::Settings;
use highwater::device::cuda::{CudaConfig, CudaDevice};
use highwater::device::sim::{SimConfig, SimDevice};
use highwater_kernels as kernels;

use crate::cli::{BenchMovesArgs, Device};
use crate::doctor::{self, Need};
use crate::failure::{Failure, InputError};
use crate::{output, settings};
use prefetch::Prefetch;
use report::Report;
use slowdown::Slowdown;

type AnyDevice = Arc<dyn highwater::device::Device>;
type AnyError = Box<dyn Error + Send + Sync>;

/// What everything is measured on, and how much.
struct Bench {
    device: AnyDevice,
    slowdown: Slowdown,
    prefetch: Prefetch,
}

/// Measures and tells what came of it.
///
/// # Errors
/// When the settings in the environment are bad, there is no GPU where one is asked for, or a measurement fails.
pub(crate) fn run(arguments: &BenchMovesArgs) -> Result<(), Failure> {
    // Refused before anything is started.
    drop(with(&[])?);
    if arguments.device == Device::Cuda {
        doctor::require(Need::Training)?;
    }
    let report = bench(arguments.device).and_then(|bench| Report::measure(&bench)).map_err(Failure::bench)?;
    output::print(&if arguments.json { report.json() } else { report.text() }).map_err(Failure::Print)
}

fn bench(device: Device) -> Result<Bench, AnyError> {
    let (slowdown, prefetch) = (Slowdown::FULL, Prefetch::FULL);
    Ok(match device {
        Device::Sim => {
            // Every run is the same, and no bytes are moved: there is nothing to look at.
            let device = SimDevice::new(SimConfig { bodies: false, workers: 0, ..SimConfig::default() });
            Bench { device, slowdown, prefetch: Prefetch { repeats: 1, check: false, ..prefetch } }
        }
        Device::Cuda => {
            let device = CudaDevice::new(CudaConfig { timing: true, ..CudaConfig::default() })?;
            kernels::cuda::prepare(&device)?;
            Bench { device, slowdown, prefetch }
        }
    })
}

/// The environment's settings, with these above them.
fn with(pairs: &[String]) -> Result<Settings, InputError> {
    settings::above_environment(pairs.iter().cloned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOWDOWN: Slowdown = Slowdown { kernels: 30, rounds: 2, moves: 100, ..Slowdown::FULL };

    const PREFETCH: Prefetch = Prefetch {
        low_bytes: 1 << 20,
        high_bytes: 24 << 20,
        passes: 2,
        period: 15,
        steps: 60,
        warm_up: 6,
        repeats: 1,
        ..Prefetch::FULL
    };

    fn device(bodies: bool) -> AnyDevice {
        SimDevice::new(SimConfig { bodies, workers: 0, ..SimConfig::default() })
    }

    fn measured() -> Report {
        let prefetch = Prefetch { check: false, ..PREFETCH };
        Report::measure(&Bench { device: device(false), slowdown: SLOWDOWN, prefetch }).unwrap()
    }

    #[test]
    fn every_handle_moves_for_a_price_and_the_kernel_beside_does_not_notice() {
        let report = measured();
        assert_eq!(report.moves, 200);
        // By the model mapping takes 33 µs, and removing an old mapping 21.
        let times = report.move_us;
        assert!((54.0..56.0).contains(&times.p50) && times.p50 <= times.p99 && times.p99 <= times.max, "{times:?}");
        // Two buffers are read and one is written, at 4.2 TB/s.
        assert!((766.0..768.0).contains(&report.kernel_us_alone), "{} us", report.kernel_us_alone);
        assert!(report.slowdown_percent.abs() < 0.01, "{} %", report.slowdown_percent);
    }

    #[test]
    fn a_kernel_that_stands_still_while_pages_move_is_slower() {
        // So short that the queue runs dry during a move.
        let slowdown = Slowdown { buffer_bytes: 4 << 20, ..SLOWDOWN };
        let slowed = slowdown.measure(&device(false)).unwrap();
        assert!(slowed.moving_ns > 1.5 * slowed.alone_ns, "{} and {}", slowed.moving_ns, slowed.alone_ns);
    }

    #[test]
    fn a_loop_that_prefetches_holds_less_where_pages_move_and_no_byte_is_wrong() {
        let [on, off] = PREFETCH.measure(&device(true)).unwrap();
        assert!(on.pages_moved > 0 && off.pages_moved == 0, "{on:?} {off:?}");
        assert!(on.reserved_bytes < off.reserved_bytes, "{on:?} {off:?}");
        assert_eq!(on.peak_live_bytes, off.peak_live_bytes);
        assert!((on.peak_live_bytes..).contains(&on.reserved_bytes));
        assert!(on.step_ns < 1.01 * off.step_ns, "{on:?} {off:?}");
    }

    #[test]
    fn a_sum_that_is_wrong_is_told() {
        // A device that does not compute leaves what was there.
        let told = PREFETCH.measure(&device(false)).unwrap_err().to_string();
        assert!(told.contains("of the sum over all batches are wrong"), "{told}");
    }

    #[test]
    fn machines_get_every_key_and_the_same_at_every_run() {
        let told = measured().json();
        assert_eq!(told, measured().json());
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        for key in ["kernel_us_alone", "kernel_us_moving", "slowdown_percent", "moves", "prefetch_peak_live_bytes"] {
            assert!(told[key].is_number(), "{key}: {told}");
        }
        for part in ["p50", "p99", "max"] {
            assert!(told["move_us"][part].is_number(), "{part}: {told}");
        }
        for key in ["prefetch_step_us", "prefetch_reserved_bytes"] {
            assert!(told[key]["lending_on"].is_number() && told[key]["lending_off"].is_number(), "{key}: {told}");
        }
    }
}
