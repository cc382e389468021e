//! The device is told the work of an operation, and what it reads and writes.

use highwater::device::sim::{Executed, ExecutedKind};
use highwater::device::{Access, CostModel};

use crate::cases::all_cases;
use crate::operands::{Bench, Case, TIMEOUT};

/// Runs a case; what the device executed for it.
fn executed(bench: &Bench, case: &Case) -> Executed {
    let tensors = bench.upload_all(&case.data());
    let _uploads = bench.device.cluster().take_timeline();
    (case.launch)(&bench.stream, &tensors).unwrap();
    bench.stream.record().unwrap().wait(TIMEOUT).unwrap();
    let mut timeline = bench.device.cluster().take_timeline();
    assert_eq!(timeline.len(), 1, "{}: one operation each", case.what);
    timeline.remove(0)
}

#[test]
fn the_duration_is_that_of_the_work() {
    // One FLOP a ns and memory for nothing; then the other way round.
    let arithmetic = Bench::with_cost(CostModel { flops_per_us: 1000, ..CostModel::free() });
    let memory = Bench::with_cost(CostModel { memory_bytes_per_us: 1000, ..CostModel::free() });
    for case in all_cases(0) {
        let measured = [&arithmetic, &memory].map(|bench| {
            let executed = executed(bench, &case);
            executed.end_ns - executed.start_ns
        });
        assert_eq!(measured, [case.work.flops, case.work.bytes], "{} ({})", case.kernel, case.what);
    }
}

#[test]
fn a_kernel_lasts_as_its_slower_side() {
    let cost = CostModel { flops_per_us: 3000, memory_bytes_per_us: 7000, kernel_latency_ns: 40, ..CostModel::free() };
    let bench = Bench::with_cost(cost);
    for case in all_cases(0) {
        let executed = executed(&bench, &case);
        let expected = case.work.flops.div_ceil(3).max(case.work.bytes.div_ceil(7)).max(40);
        assert_eq!(executed.end_ns - executed.start_ns, expected, "{} ({})", case.kernel, case.what);
    }
}

#[test]
fn operands_are_declared_in_order_with_their_access() {
    let bench = Bench::with_cost(CostModel::default());
    bench.stream.set_tag(17);
    for case in all_cases(0) {
        let executed = executed(&bench, &case);
        assert_eq!((&*executed.name, executed.tag, &executed.kind), (case.kernel, 17, &ExecutedKind::Kernel));
        let declared: Vec<(Access, u64)> = executed.operands.iter().map(|o| (o.access, o.range.bytes)).collect();
        let expected: Vec<(Access, u64)> =
            case.operands.iter().map(|o| (o.access, 4 * o.data.bits().len() as u64)).collect();
        assert_eq!(declared, expected, "{} ({})", case.kernel, case.what);
    }
}
