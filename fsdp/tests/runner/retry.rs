//! A rank alone tries a failed step again.

use std::collections::BTreeMap;

use highwater::device::DeviceCall;
use highwater::device::sim::Mode;

use crate::training::{CALLS, Owners, Rank, cluster};

const SEEDS: u64 = 4;

fn modes() -> impl Iterator<Item = Mode> {
    (0..SEEDS).map(|seed| Mode::Adversarial { seed }).chain([Mode::Timed])
}

/// Three steps, of which the second fails `failures.len()` times before it works. The parameters, as bits.
fn train(mode: Mode, failures: &[(DeviceCall, u64)], place: &str) -> Vec<u32> {
    let cluster = cluster(1, mode);
    let device = cluster.device(0);
    let mut rank = Rank::new(&cluster, &device, 1);
    rank.step(0);
    rank.load(1);
    for &(call, nth) in failures {
        device.fail_nth(call, nth);
        rank.runner.step().expect_err(place);
        assert_eq!(rank.runner.unsharded_bytes(), 0, "{place}");
        rank.allocator.check().unwrap();
    }
    rank.runner.step().unwrap_or_else(|error| panic!("{place}: {error}"));
    rank.step(2);
    let shards = rank.runner.read_shards().unwrap();
    assert!(shards.iter().flatten().all(|value| value.is_finite()), "{place}");
    cluster.settle().unwrap();
    assert_eq!(cluster.hazards(), [], "{place}");
    rank.allocator.check().unwrap();
    shards.iter().flatten().map(|value| value.to_bits()).collect()
}

#[test]
fn a_failed_step_can_be_tried_again() {
    let owners = Owners::new(1);
    let undisturbed = train(Mode::Timed, &[], "undisturbed");
    let mut same: BTreeMap<bool, usize> = BTreeMap::new();
    for mode in modes() {
        assert!(train(mode, &[], "undisturbed") == undisturbed, "{mode:?}");
        for call in CALLS {
            for (index, operation) in owners.of(call).into_iter().enumerate() {
                let nth = index as u64 + 1;
                let place = format!("{call} number {nth}, operation {operation}, {mode:?}");
                let found = train(mode, &[(call, nth)], &place);
                let before_optimizer = operation < owners.first_optimize();
                if before_optimizer {
                    assert!(found == undisturbed, "{place}");
                }
                *same.entry(before_optimizer).or_default() += 1;
            }
        }
    }
    assert!(same[&true] > 100 && same[&false] > 10, "{same:?}");
}

#[test]
fn a_step_can_fail_several_times() {
    let undisturbed = train(Mode::Timed, &[], "undisturbed");
    for mode in modes() {
        let failures = [(DeviceCall::Launch, 25), (DeviceCall::Collective, 3), (DeviceCall::Launch, 1)];
        assert!(train(mode, &failures, "three failures") == undisturbed, "{mode:?}");
        // The third failure is in the two records and two waits with which the step after an error begins.
        for (call, nth) in
            [(DeviceCall::Record, 1), (DeviceCall::Record, 2), (DeviceCall::Wait, 1), (DeviceCall::Wait, 2)]
        {
            for interrupted in [30, 60] {
                let failures = [(DeviceCall::Launch, interrupted), (call, nth)];
                let place = format!("{failures:?}, {mode:?}");
                assert!(train(mode, &failures, &place) == undisturbed, "{place}");
            }
        }
    }
}
