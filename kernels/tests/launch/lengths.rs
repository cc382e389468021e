//! Operands of a wrong length are refused before anything is submitted.

use highwater::Settings;
use highwater::device::sim::{SimConfig, SimDevice};
use highwater::device::{Device, DeviceCall};
use highwater::{Allocator, StreamError};
use highwater_kernels::KernelError;

use crate::cases::{all_cases, kernels};
use crate::operands::{Bench, Case, Data};

fn launches(bench: &Bench) -> u64 {
    bench.device.counters().of(DeviceCall::Launch)
}

/// Launches with one operand replaced; nothing may be submitted.
fn refusal(bench: &Bench, case: &Case, index: usize, other: &Data) -> KernelError {
    let mut tensors = bench.upload_all(&case.data());
    tensors[index] = bench.upload(other);
    let (before, calls) = (launches(bench), bench.device.counters());
    let refused = (case.launch)(&bench.stream, &tensors);
    assert_eq!(launches(bench), before, "{}: something was submitted", case.kernel);
    assert_eq!(bench.device.counters(), calls, "{}: the device was called", case.kernel);
    refused.expect_err(&case.what)
}

#[test]
fn one_element_too_many_is_refused_by_name() {
    let bench = Bench::new(SimConfig::default());
    let mut refused = Vec::new();
    for case in all_cases(0) {
        for (index, operand) in case.operands.iter().enumerate() {
            let Some(named) = operand.named_when_long else { continue };
            let error = refusal(&bench, &case, index, &operand.data.longer());
            let KernelError::Length { kernel, operand: found, expected, given } = &error else {
                panic!("{}: {error}", case.what)
            };
            assert_eq!((*kernel, *found), (case.kernel, named), "{}: {} is too long", case.what, operand.name);
            if named == operand.name {
                assert_eq!((*given, *expected), (operand.data.bits().len() + 1, operand.data.bits().len()));
            }
            let text = format!("{kernel}: {named} has {given} elements, the shape says {expected}");
            assert_eq!(error.to_string(), text);
            refused.push(case.kernel);
        }
    }
    let without = kernels().into_iter().filter(|kernel| !refused.contains(kernel)).collect::<Vec<_>>();
    assert_eq!(without, ["fill", "scale"], "only an operation on one operand has nothing to compare");
}

#[test]
fn one_element_too_few_is_refused() {
    let bench = Bench::new(SimConfig::default());
    for case in all_cases(0) {
        for (index, operand) in case.operands.iter().enumerate() {
            let (Some(named), Some(shorter)) = (operand.named_when_long, operand.data.shorter()) else { continue };
            let error = refusal(&bench, &case, index, &shorter);
            let right = matches!(error, KernelError::Length { kernel, operand, .. }
                if kernel == case.kernel && operand == named);
            assert!(right, "{}: {} is too short: {error}", case.what, operand.name);
        }
    }
}

#[test]
fn an_operand_of_another_allocator_is_refused() {
    let bench = Bench::new(SimConfig::default());
    let other = Allocator::with_settings(SimDevice::new(SimConfig::default()), Settings::default()).unwrap();
    let (own, foreign) = (bench.stream.alloc::<f32>(4).unwrap(), other.default_stream().alloc::<f32>(4).unwrap());
    let before = launches(&bench);
    let refused = highwater_kernels::copy(&bench.stream, foreign.view(), own.view()).unwrap_err();
    assert!(matches!(refused, KernelError::Stream(StreamError::OtherAllocator { .. })), "{refused}");
    assert_eq!(launches(&bench), before);
}
