//! One of two ranks fails in the middle of a step.

use highwater::Settings;
use highwater::device::sim::{Mode, SimCluster, SimConfig};
use highwater::device::{Device, DeviceCall, DeviceError};
use highwater::{Allocator, StreamError};
use highwater_fsdp::group::LocalGroup;
use highwater_fsdp::plan::Plan;
use highwater_fsdp::run::{RunError, Runner, plan_spec};
use highwater_kernels::host::AdamW;

use crate::scripted::{Scripted, layouts};
use crate::training::{CALLS, Owners, Rank, cluster};

const RANKS: u32 = 2;

/// The words of an operation's error: rank, step, operation, unit, and why.
fn words(error: &RunError) -> (u32, u64, &'static str, String, String) {
    let RunError::Operation { rank, step, operation, unit, source } = error else { panic!("{error}") };
    (*rank, *step, operation, unit.clone(), source.to_string())
}

/// Waits for the rank that went on, however long: it has finished, or the device says that it never will. Whether the
/// latter.
fn is_stuck(rank: &Rank, place: &str) -> bool {
    let fence = rank.device.record(rank.runner.compute().id()).unwrap();
    let waited = rank.device.synchronize(fence, None);
    let shards = rank.runner.read_shards();
    match waited {
        Ok(_) => {
            assert!(shards.unwrap().iter().flatten().all(|value| value.is_finite()), "{place}");
            false
        }
        Err(error) => {
            assert!(matches!(error, DeviceError::Deadlock { .. }), "{place}: {error}");
            let shards = shards.unwrap_err();
            assert!(matches!(shards, RunError::Rank { .. }) && shards.to_string().contains("deadlock"), "{shards}");
            true
        }
    }
}

#[test]
fn every_failed_call_names_its_operation_and_hangs_nobody() {
    let owners = Owners::new(RANKS);
    let mut stuck = 0;
    for call in CALLS {
        let places = owners.of(call);
        assert!(places.len() > 8, "{call}");
        for nth in (1..=20).chain([places.len() as u64]).filter(|&nth| nth <= places.len() as u64) {
            let failing = (nth % 2) as u32;
            let mode = if nth % 3 == 0 { Mode::Adversarial { seed: nth } } else { Mode::Timed };
            let place = format!("{call} number {nth} on rank {failing}, {mode:?}");
            let cluster = cluster(RANKS, mode);
            let ended = cluster.run(|device| {
                let mut rank = Rank::new(&cluster, &device, RANKS);
                rank.step(0);
                rank.load(1);
                if device.properties().ordinal == failing {
                    device.fail_nth(call, nth);
                    let error = rank.runner.step().unwrap_err();
                    assert_eq!(rank.runner.unsharded_bytes(), 0, "{place}");
                    rank.allocator.check().unwrap();
                    let (operation, unit) = owners.names(places[nth as usize - 1]);
                    let (found_rank, step, found_operation, found_unit, why) = words(&error);
                    assert_eq!((found_rank, step), (failing, 1), "{place}");
                    assert_eq!((found_operation, found_unit), (operation, unit), "{place}");
                    assert!(why.contains(&format!("injected failure of {call} number {nth}")), "{place}: {why}");
                    false
                } else {
                    rank.runner.step().unwrap();
                    let stuck = is_stuck(&rank, &place);
                    drop(rank.runner);
                    rank.allocator.check().unwrap();
                    stuck
                }
            });
            stuck += ended.into_iter().filter(|&stuck| stuck).count();
        }
    }
    assert!(stuck > 0, "some failures leave the other rank without an answer");
}

#[test]
fn a_bounded_wait_for_a_rank_that_stopped_times_out() {
    let cluster = cluster(RANKS, Mode::Timed);
    cluster.run(|device| {
        let mut rank = Rank::new(&cluster, &device, RANKS);
        rank.step(0);
        rank.load(1);
        if device.properties().ordinal == 0 {
            device.fail_nth(DeviceCall::Collective, 2);
            rank.runner.step().unwrap_err();
        } else {
            rank.runner.step().unwrap();
            let RunError::Rank { source, .. } = rank.runner.read_shards().unwrap_err() else { panic!("not a wait") };
            let timed_out = source.downcast_ref::<StreamError>();
            assert!(matches!(timed_out, Some(StreamError::TimedOut { .. })), "{source}");
            rank.allocator.check().unwrap();
        }
    });
}

/// Every call of a step fails once: nothing is leased then, and all memory but the resident goes back.
#[test]
fn m13_after_an_error_nothing_is_leased() {
    let owners = Owners::new(1);
    for call in CALLS {
        for (index, place) in owners.of(call).into_iter().enumerate() {
            let nth = index as u64 + 1;
            let cluster = cluster(1, Mode::Timed);
            let device = cluster.device(0);
            let mut rank = Rank::new(&cluster, &device, 1);
            rank.step(0);
            assert_eq!(rank.runner.unsharded_bytes(), 0);
            rank.load(1);
            device.fail_nth(call, nth);
            let error = rank.runner.step().unwrap_err();
            assert_eq!(rank.runner.unsharded_bytes(), 0, "{call} number {nth}, operation {place}: {error}");
            assert_eq!(rank.runner.compute().tag(), 0, "what comes after the step is not the step's");
            rank.allocator.check().unwrap();
            drop(rank.runner);
            rank.allocator.check().unwrap();
            assert_eq!(rank.allocator.memory_stats().live.now, 0, "{call} number {nth}");
        }
    }
}

#[test]
fn m13_after_an_error_of_the_model_nothing_is_leased() {
    let elements = [300, 200, 100];
    for (unit, round) in [(0, 0), (1, 0), (2, 1), (0, 1)] {
        for backward in [false, true] {
            let cluster = SimCluster::new(1, SimConfig::default());
            let device = cluster.device(0);
            let allocator = Allocator::with_settings(device.clone(), Settings::default()).unwrap();
            let mut spec = plan_spec(&layouts(&elements), 1);
            spec.rounds = 2;
            let group = LocalGroup::new(&cluster, &device, "sharding", 1);
            let plan = Plan::new(&spec).unwrap().into();
            let model = Scripted::new(&elements, 0, 1);
            let mut runner = Runner::new(&allocator, group, model, plan, AdamW::default()).unwrap();
            let broken = Some((unit, round));
            let model = runner.model_mut();
            (model.broken_forward, model.broken_backward) = if backward { (None, broken) } else { (broken, None) };
            let name = if backward { "backward" } else { "forward" };
            for _ in 0..2 {
                let error = runner.step().unwrap_err();
                assert_eq!(runner.unsharded_bytes(), 0);
                assert_eq!(words(&error), (0, 0, name, format!("unit_{unit}"), format!("a broken {name}")));
                let text = format!("rank 0, step 0, {name} of unit \"unit_{unit}\": a broken {name}");
                assert_eq!(error.to_string(), text);
            }
            let model = runner.model_mut();
            (model.broken_forward, model.broken_backward) = (None, None);
            runner.step().unwrap();
            assert_eq!(runner.unsharded_bytes(), 0);
            assert!(runner.read_shards().unwrap().iter().flatten().all(|value| value.is_finite()));
        }
    }
}

#[test]
fn a_fault_of_the_device_ends_all_further_steps() {
    let cluster = cluster(1, Mode::Timed);
    let device = cluster.device(0);
    let mut rank = Rank::new(&cluster, &device, 1);
    rank.step(0);
    rank.load(1);
    device.fail_fence(3);
    // The step may be submitted before the fault is seen; the wait sees it.
    let issued = rank.runner.step();
    let error = issued.and_then(|()| rank.runner.read_shards().map(drop)).unwrap_err();
    assert_eq!(rank.runner.unsharded_bytes(), 0, "{error}");
    for _ in 0..2 {
        let again = rank.runner.step().unwrap_err();
        let (RunError::Rank { source, .. } | RunError::Operation { source, .. }) = &again else { panic!("{again}") };
        assert!(source.downcast_ref::<StreamError>().is_some(), "{again}");
        assert!(again.to_string().contains("poisoned"), "{again}");
        assert_eq!(rank.runner.unsharded_bytes(), 0);
    }
    rank.allocator.check().unwrap();
}
