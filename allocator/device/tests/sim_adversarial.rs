//! Adversarial mode: it replays, it explores, and a program that is ordered rightly never notices it.

mod support;

use std::collections::BTreeSet;

use highwater_device::sim::{Mode, SimConfig, SimDevice};
use highwater_device::{Access, Address, Body, ByteRange, Device, Operand, Operation};
use proptest::prelude::*;
use support::{adversarial, copy, fill, idle, memory, names, streams, ticks};

/// Unordered work on four streams over one cell.
fn unordered(config: SimConfig) -> (Vec<highwater_device::sim::Executed>, Vec<u8>, usize) {
    let device = SimDevice::new(config);
    let all: [_; 4] = streams(&device);
    let cell = memory(&device, 1);
    for round in 0..10 {
        for (index, &stream) in all.iter().enumerate() {
            let value = (16 * index + round) as u8;
            device.launch(stream, fill("fill", 1, cell.offset(8 * index as u64), 16, value)).unwrap();
        }
    }
    device.cluster().settle().unwrap();
    (device.cluster().take_timeline(), device.read_memory(cell, 64), device.cluster().hazards().len())
}

#[test]
fn one_seed_is_one_execution_for_any_number_of_workers() {
    for seed in 0..10 {
        let first = unordered(adversarial(seed));
        for workers in [0, 1, 3] {
            assert_eq!(unordered(SimConfig { workers, ..adversarial(seed) }), first);
        }
    }
}

#[test]
fn seeds_give_many_executions() {
    let runs: Vec<_> = (0..50).map(|seed| unordered(adversarial(seed))).collect();
    let orders: BTreeSet<Vec<u64>> = runs.iter().map(|run| run.0.iter().map(|done| done.id).collect()).collect();
    assert!(orders.len() > 35, "{}", orders.len());
    let outcomes: BTreeSet<&[u8]> = runs.iter().map(|run| &run.1[..]).collect();
    assert!(outcomes.len() > 5, "{}", outcomes.len());
}

#[test]
fn both_orders_of_two_unordered_operations_occur() {
    let orders: BTreeSet<bool> = (0..50)
        .map(|seed| {
            let device = SimDevice::new(adversarial(seed));
            let [first, second] = streams(&device);
            device.launch(first, idle("first", 1, vec![])).unwrap();
            device.launch(second, idle("second", 1, vec![])).unwrap();
            device.cluster().settle().unwrap();
            names(&device.cluster().take_timeline()) == ["first", "second"]
        })
        .collect();
    assert_eq!(orders.len(), 2);
}

#[test]
fn the_host_is_sometimes_ahead_and_sometimes_not() {
    // After each of 40 launches, has it completed?
    let mut always = 0;
    let mut never = 0;
    for seed in 0..50 {
        let device = SimDevice::new(adversarial(seed));
        let [stream] = streams(&device);
        let mut complete = 0;
        for _ in 0..40 {
            device.launch(stream, idle("work", 1, vec![])).unwrap();
            let fence = device.record(stream).unwrap();
            complete += u32::from(device.query(fence).unwrap());
        }
        always += u32::from(complete >= 36);
        never += u32::from(complete <= 4);
    }
    assert!(always > 0 && never > 0, "{always} {never}");
}

#[test]
fn clocks_count_steps_and_never_go_back() {
    for seed in 0..20 {
        let device = SimDevice::new(SimConfig { mode: Mode::Adversarial { seed }, ..SimConfig::default() });
        let [stream] = streams(&device);
        let mut before = device.now_ns();
        for _ in 0..20 {
            device.launch(stream, idle("work", 1_000_000, vec![])).unwrap();
            support::finish(&device, stream);
            let now = device.now_ns();
            assert!(now > before && now < 1_000, "{before} {now}");
            before = now;
        }
    }
}

#[test]
fn a_stream_can_starve() {
    // Both streams get 30 operations; for some seed one is done before the other has begun.
    let starved = (0..100).any(|seed| {
        let device = SimDevice::new(adversarial(seed));
        let [first, second] = streams(&device);
        for _ in 0..30 {
            device.launch(first, idle("first", 1, vec![])).unwrap();
            device.launch(second, idle("second", 1, vec![])).unwrap();
        }
        device.cluster().settle().unwrap();
        let timeline = device.cluster().take_timeline();
        let names = names(&timeline);
        names.iter().take_while(|&&name| name == names[0]).count() >= 25
    });
    assert!(starved);
}

#[test]
fn overlap_means_started_and_not_finished() {
    let mut overlapped = 0;
    for seed in 0..50 {
        let device = SimDevice::new(adversarial(seed));
        let [first, second] = streams(&device);
        let cell = memory(&device, 1);
        device.launch(first, fill("fill", 1, cell, 8, 1)).unwrap();
        device.launch(second, copy("copy", 1, cell, cell.offset(64), 8)).unwrap();
        device.cluster().settle().unwrap();
        let timeline = device.cluster().take_timeline();
        let overlap = timeline[1].start_ns < timeline[0].end_ns;
        assert_eq!(device.cluster().hazards().len(), usize::from(overlap));
        // The copy has the new bytes exactly when it started after the fill had ended.
        let after = timeline[0].name == "fill" && !overlap;
        assert_eq!(device.read_memory(cell.offset(64), 1), [if after { 1 } else { 0xFF }]);
        overlapped += usize::from(overlap);
    }
    assert!((5..45).contains(&overlapped), "{overlapped}");
}

// ---- programs that are ordered rightly

const CELLS: u64 = 5;
const STREAMS: usize = 3;

/// On a stream: writes a cell from another one, or from nothing.
#[derive(Clone, Debug)]
struct Step {
    stream: usize,
    from: Option<u64>,
    to: u64,
    ns: u64,
}

fn step() -> impl Strategy<Value = Step> {
    (0..STREAMS, proptest::option::of(0..CELLS), 0..CELLS, 0..20u64).prop_map(|(stream, from, to, ns)| Step {
        stream,
        from: from.filter(|&from| from != to),
        to,
        ns,
    })
}

fn cell_range(base: Address, cell: u64) -> ByteRange {
    ByteRange::new(base.offset(8 * cell), 8)
}

fn step_operation(base: Address, step: &Step, index: usize) -> Operation {
    let mut operands = vec![Operand { range: cell_range(base, step.to), access: Access::ReadWrite }];
    operands.extend(step.from.map(|from| Operand { range: cell_range(base, from), access: Access::Read }));
    let body = Body::Host(Box::new(move |operands| {
        let from = operands.get(1).map_or(index as u64, |from| from.as_slice::<u64>()[0]);
        let to = &mut operands[0].as_mut_slice::<u64>()[0];
        *to = to.rotate_left(9) ^ from.wrapping_mul(3);
    }));
    Operation { body, ..idle("step", step.ns, operands) }
}

/// Runs the steps; each waits for the earlier ones of other streams with which it conflicts.
fn execute(config: SimConfig, steps: &[Step]) -> (Vec<u8>, usize) {
    let device = SimDevice::new(config);
    let all: [_; STREAMS] = streams(&device);
    let base = memory(&device, 1);
    let mut fences = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let conflicts = |earlier: &Step| {
            let touches = |cell| earlier.to == cell || earlier.from == Some(cell);
            touches(step.to) || step.from == Some(earlier.to)
        };
        for (earlier, &fence) in steps[..index].iter().zip(&fences) {
            if earlier.stream != step.stream && conflicts(earlier) {
                device.wait(all[step.stream], fence).unwrap();
            }
        }
        device.launch(all[step.stream], step_operation(base, step, index)).unwrap();
        fences.push(device.record(all[step.stream]).unwrap());
    }
    device.cluster().settle().unwrap();
    (device.read_memory(base, 8 * CELLS), device.cluster().hazards().len())
}

/// What the steps compute one after the other.
fn reference(steps: &[Step]) -> Vec<u8> {
    let mut cells = [u64::MAX; CELLS as usize];
    for (index, step) in steps.iter().enumerate() {
        let from = step.from.map_or(index as u64, |from| cells[from as usize]);
        let to = &mut cells[step.to as usize];
        *to = to.rotate_left(9) ^ from.wrapping_mul(3);
    }
    cells.iter().flat_map(|cell| cell.to_ne_bytes()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_program_that_is_ordered_computes_the_same_everywhere(
        steps in proptest::collection::vec(step(), 1..30),
        seed in any::<u64>(),
    ) {
        let expected = (reference(&steps), 0);
        for mode in [Mode::Timed, Mode::Adversarial { seed }] {
            prop_assert_eq!(&execute(SimConfig { mode, ..ticks() }, &steps), &expected);
            prop_assert_eq!(&execute(SimConfig { mode, workers: 2, ..SimConfig::default() }, &steps), &expected);
        }
    }
}
