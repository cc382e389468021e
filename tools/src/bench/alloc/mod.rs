//! `highwater bench alloc`: what the host pays for an allocation and its free.
//!
//! The workloads are those that other allocators are measured by (`docs/benchmarks.md` tells each). The files:
//! `free_device` is what they run on without a GPU, `bench` has those of one thread, `threads` those of several, and
//! `report` what is told.

mod bench;
mod free_device;
mod report;
mod threads;

use std::sync::Arc;

use highwater::Settings;
use highwater::device::cuda::{CudaConfig, CudaDevice};
use highwater::device::{Device, DeviceResult};

use crate::cli::{BenchAllocArgs, BenchDevice, Recorder};
use crate::doctor::{self, Need};
use crate::failure::{Failure, InputError};
use crate::{output, settings};
use bench::{Bench, Rounds};
use report::Report;

/// Measures all workloads and tells what came of them.
///
/// # Errors
/// When the settings in the environment are bad, there is no GPU where one is asked for, or a measurement fails.
pub(crate) fn run(arguments: &BenchAllocArgs) -> Result<(), Failure> {
    let settings = recorded(arguments.recorder)?;
    if arguments.device == BenchDevice::Cuda {
        doctor::require(Need::Memory)?;
    }
    let gpu = gpu(arguments.device).map_err(Failure::bench)?;
    let report = Report::measure(&Bench { gpu, settings, rounds: Rounds::FULL }).map_err(Failure::bench)?;
    output::print(&if arguments.json { report.json() } else { report.text() }).map_err(Failure::Print)
}

/// The GPU, if one is asked for.
fn gpu(device: BenchDevice) -> DeviceResult<Option<Arc<dyn Device>>> {
    Ok(match device {
        BenchDevice::Sim => None,
        BenchDevice::Cuda => Some(CudaDevice::new(CudaConfig::default())?),
    })
}

/// The environment's settings, with the recorder as it is asked for.
fn recorded(recorder: Option<Recorder>) -> Result<Settings, InputError> {
    let pair = recorder.map(|recorder| match recorder {
        Recorder::On => format!("history_kib:{}", history_kib(&Settings::default())),
        Recorder::Off => "history_kib:0".to_owned(),
    });
    settings::above_environment(pair)
}

/// Memory for the history of each stream, KiB; 0 records nothing.
fn history_kib(settings: &Settings) -> u64 {
    let kib = settings.pairs().into_iter().find_map(|(key, value)| (key == "history_kib").then_some(value));
    kib.and_then(|kib| kib.parse().ok()).expect("it is one of the settings, and a number")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::workloads::Churn;

    /// Enough that every workload does what it is for.
    const FEW: Rounds = Rounds {
        batches: 3,
        pairs: 50,
        warm_up: 5,
        shared: 40,
        handed_over: 700,
        thread_steps: 200,
        churns: [
            Churn { slots: 64, steps: 300, ..Churn::COMPARED[0] },
            Churn { slots: 64, steps: 300, ..Churn::COMPARED[1] },
            Churn { slots: 128, steps: 300, ..Churn::COMPARED[2] },
        ],
    };

    fn measured(settings: Settings) -> Report {
        Report::measure(&Bench { gpu: None, settings, rounds: FEW }).unwrap()
    }

    fn told(report: &Report) -> serde_json::Value {
        serde_json::from_str(&report.json()).unwrap()
    }

    #[test]
    fn every_figure_is_there_and_none_is_nothing() {
        let told = told(&measured(Settings::default()));
        let keys = |key: &str| match &told[key] {
            serde_json::Value::Object(map) => map.keys().cloned().collect::<Vec<_>>().join(" "),
            other => panic!("{key}: {other}"),
        };
        assert_eq!(keys("hot_pair_ns"), "1048576 512 67108864");
        assert_eq!(keys("churn_ns"), "4096x1 4096x4 65536x1");
        assert_eq!(keys("churn_utilization"), "4096x1 4096x4");
        assert_eq!(keys("threads_mops"), "1 16 2 4 8");
        assert_eq!((keys("record_stream_ns"), keys("record_stream_reserved_bytes")), ("1 2".into(), "1 2".into()));
        assert_eq!(keys("alloc_ns"), "max p50 p99 p999");
        let positive = |value: &serde_json::Value| value.as_f64().is_some_and(|number| number > 0.0);
        for key in ["malloc_pair_ns", "clock_ns", "cross_thread_free_ns", "cores", "batches"] {
            assert!(positive(&told[key]), "{key}: {}", told[key]);
        }
        for key in [
            "hot_pair_ns",
            "churn_ns",
            "churn_utilization",
            "threads_mops",
            "record_stream_ns",
            "record_stream_reserved_bytes",
            "alloc_ns",
        ] {
            assert!(told[key].as_object().unwrap().values().all(positive), "{key}: {}", told[key]);
        }
        assert!(told["churn_utilization"].as_object().unwrap().values().all(|part| part.as_f64().unwrap() <= 1.0));
        let Some([p50, p99, p999, max]) = Some(["p50", "p99", "p999", "max"].map(|key| told["alloc_ns"][key].as_u64()))
        else {
            unreachable!()
        };
        assert!(p50 <= p99 && p99 <= p999 && p999 <= max);
    }

    /// Every free of a block that another stream uses waits for a fence, which many frees may share.
    #[test]
    fn fences_are_counted() {
        let report = measured(Settings::default());
        let frees_times_users = (FEW.batches * FEW.shared * (1 + 2)) as u64;
        let fences = told(&report)["events_recorded"].as_u64().unwrap();
        assert!((1..=frees_times_users).contains(&fences), "{fences} for {frees_times_users}");
    }

    #[test]
    fn the_recorder_is_as_it_is_asked_for() {
        for (asked, kib) in [(Some(Recorder::Off), 0), (Some(Recorder::On), 4096), (None, 4096)] {
            assert_eq!(history_kib(&recorded(asked).unwrap()), kib, "{asked:?}");
        }
        let off = Settings::parse("history_kib:0").unwrap();
        assert_eq!(told(&measured(off))["recorder"], "off");
        assert_eq!(told(&measured(Settings::default()))["recorder"], "on");
    }

    #[test]
    fn people_are_told_which_threads_share_a_core() {
        let mut report = measured(Settings::default());
        report.cores = 2;
        let text = report.text();
        let shared = |threads: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(threads)).expect("there is a line");
            line.contains("more than the 2 cores")
        };
        assert!(
            !shared("1 thread ") && !shared("2 threads ") && shared("4 threads ") && shared("16 threads "),
            "{text}"
        );
        assert!(text.contains("median of 3 batches"), "{text}");
    }

    /// A thread that has no memory leaves it to the others, and must not let them wait for it.
    #[test]
    fn threads_that_fail_end_all_the_same() {
        // Enough for one of them.
        let settings = Settings::parse("memory_limit_bytes:209715200").unwrap();
        let bench = Bench { gpu: None, settings, rounds: FEW };
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(bench.threads(4).is_err()));
        assert_eq!(ended.recv_timeout(std::time::Duration::from_secs(60)), Ok(true));
        let settings = Settings::parse("memory_limit_bytes:1").unwrap();
        assert!(Bench { gpu: None, settings, rounds: FEW }.cross_thread_free().is_err());
    }

    /// The device that costs nothing must not make memory fuller, or emptier, than the simulated one does.
    #[test]
    fn memory_is_as_full_as_on_the_simulated_device() {
        let churn = Churn { slots: 512, steps: 2000, ..Churn::COMPARED[0] };
        let bench = Bench { gpu: None, settings: Settings::default(), rounds: FEW };
        let simulated = crate::bench::churn::utilization(churn, Settings::default()).unwrap();
        assert_eq!(bench.churn(churn).unwrap().utilization, simulated);
    }
}
