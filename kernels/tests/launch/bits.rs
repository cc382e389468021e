//! The device gives the bits of the host.

use highwater::device::sim::{Mode, SimConfig};

use crate::cases::all_cases;
use crate::operands::{Bench, Case};

fn assert_same_bits(bench: &Bench, case: &Case) {
    let tensors = bench.upload_all(&case.data());
    (case.launch)(&bench.stream, &tensors).unwrap_or_else(|error| panic!("{}: {error}", case.what));
    for ((operand, tensor), expected) in case.operands.iter().zip(&tensors).zip(case.on_host()) {
        let found = bench.download(tensor);
        assert_eq!(found.bits(), expected.bits(), "{} ({}): {}", case.kernel, case.what, operand.name);
        if !operand.access.writes() {
            assert_eq!(found.bits(), operand.data.bits(), "{} ({}): input {}", case.kernel, case.what, operand.name);
        }
    }
}

#[test]
fn every_kernel_gives_the_bits_of_its_host_function() {
    for seed in 0..3 {
        let bench = Bench::new(SimConfig { workers: 2, ..SimConfig::default() });
        for case in all_cases(seed) {
            assert_same_bits(&bench, &case);
        }
    }
}

#[test]
fn the_same_in_adversarial_order() {
    for seed in 0..4 {
        let mode = Mode::Adversarial { seed };
        let bench = Bench::new(SimConfig { mode, workers: 0, ..SimConfig::default() });
        for case in all_cases(100 + seed) {
            assert_same_bits(&bench, &case);
        }
        assert!(bench.device.cluster().hazards().is_empty());
    }
}

#[test]
fn every_output_changes() {
    // Else equal bits would prove little.
    for case in all_cases(1) {
        let after = case.on_host();
        let changed = case.operands.iter().zip(&after).filter(|(operand, after)| operand.data.bits() != after.bits());
        let written = case.operands.iter().filter(|operand| operand.access.writes() && !operand.data.bits().is_empty());
        assert_eq!(changed.count(), written.count(), "{} ({})", case.kernel, case.what);
    }
}
