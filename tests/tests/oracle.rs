//! The allocator beside a model that predicts it: random programs, and the ones that found bugs.

use highwater::device::DeviceCall;
use highwater_tests::oracle::{Op, Relief, Setup, Tally, program, run, shrink};
use proptest::collection::vec;
use proptest::prelude::*;

const GRANULE: u64 = 256 << 10;

/// A device of 16 granules and an allocator that may have all of it.
const SETUP: Setup =
    Setup { granules: 16, granularity_bytes: GRANULE, limit_bytes: 16 * GRANULE, timeout_ns: 1_000_000_000_000 };

/// Runs a program that has to go as predicted; one that does not is told as short as it can be.
#[track_caller]
fn as_predicted(setup: &Setup, steps: &[Op]) -> Tally {
    run(setup, steps).unwrap_or_else(|failure| {
        let (steps, failure) = shrink(setup, steps).unwrap_or((steps.to_vec(), failure));
        panic!("{failure}\nlet setup = {setup:?};\nlet program = {steps:#?};")
    })
}

#[test]
fn random_programs_go_as_predicted() {
    let mut all = Tally::default();
    for seed in 0..100 {
        let (setup, steps) = program(seed, 250);
        all.add(&as_predicted(&setup, &steps));
    }
    assert_eq!(all.rungs.remove("move"), Some(0), "where nothing is lent, nothing moves");
    for (rung, met) in &all.rungs {
        assert!(*met > 0, "no request was met at {rung}: {all:?}");
    }
    for outcome in ["Done", "Address", "Is", "Bytes", "Capturing", "OtherStream", "TimedOut", "Failed", "OutOfMemory"] {
        assert!(all.outcomes.contains_key(outcome), "no step came to {outcome}: {all:?}");
    }
}

fn index() -> impl Strategy<Value = usize> {
    0..16_usize
}

fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => (1..7_u64).prop_map(|granules| granules * GRANULE),
        3 => 1..3 * GRANULE,
        2 => (1 << 20) - 600..(1 << 20) + 600_u64,
        1 => Just(0),
        1 => 15 * GRANULE..18 * GRANULE,
        1 => Just(u64::MAX / 2),
    ]
}

fn call() -> impl Strategy<Value = DeviceCall> {
    use DeviceCall::{Create, Launch, Map, Query, Record, Release, SetAccess, Synchronize, Unmap, Wait};
    proptest::sample::select(vec![Create, Launch, Map, Query, Record, Release, SetAccess, Synchronize, Unmap, Wait])
}

fn relief() -> impl Strategy<Value = Relief> {
    prop_oneof![
        Just(Relief::FreeFirst),
        Just(Relief::FreeAll),
        (index(), bytes()).prop_map(|(stream, bytes)| Relief::Allocate { stream, bytes }),
        index().prop_map(|stream| Relief::Capture { stream }),
    ]
}

fn memory_step() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (index(), bytes()).prop_map(|(stream, bytes)| Op::Alloc { stream, bytes }),
        2 => (index(), bytes()).prop_map(|(stream, bytes)| Op::AllocRaw { stream, bytes }),
        9 => (index(), any::<bool>()).prop_map(|(buffer, elsewhere)| Op::Free { buffer, elsewhere }),
        1 => (index(), call()).prop_map(|(buffer, call)| Op::FreeInside { buffer, call }),
        2 => (0..12 * GRANULE).prop_map(|target| Op::Trim { target }),
        2 => index().prop_map(|buffer| Op::Stash { buffer }),
        1 => Just(Op::Unstash),
        1 => relief().prop_map(Op::OnPressure),
        1 => index().prop_map(|callback| Op::EndPressure { callback }),
        1 => (call(), 1..4_u64).prop_map(|(call, nth)| Op::Fail { call, nth }),
        1 => (1..5_u64).prop_map(|granules| Op::Hog { granules }),
        2 => Just(Op::Unhog),
        1 => Just(Op::ResetPeaks),
    ]
}

fn stream_step() -> impl Strategy<Value = Op> {
    let ns = || prop_oneof![Just(0), 1..2000_u64];
    prop_oneof![
        8 => (index(), vec(index(), 0..3), ns()).prop_map(|(stream, operands, ns)| Op::Launch { stream, operands, ns }),
        3 => (index(), index()).prop_map(|(buffer, stream)| Op::RecordStream { buffer, stream }),
        2 => (index(), proptest::option::of(index()), index())
            .prop_map(|(buffer, stream, fence)| Op::RecordUse { buffer, stream, fence }),
        2 => (index(), vec(index(), 1..3), ns()).prop_map(|(buffer, streams, ns)| Op::Guards { buffer, streams, ns }),
        1 => index().prop_map(|buffer| Op::Escape { buffer }),
        3 => index().prop_map(|stream| Op::Record { stream }),
        3 => (index(), index()).prop_map(|(stream, fence)| Op::Wait { stream, fence }),
        1 => index().prop_map(|fence| Op::Ask { fence }),
        1 => (index(), ns()).prop_map(|(fence, timeout_ns)| Op::HostWait { fence, timeout_ns }),
        1 => index().prop_map(|fence| Op::DropFence { fence }),
        3 => ns().prop_map(|ns| Op::HostWork { ns }),
        3 => Just(Op::CreateStream),
        2 => index().prop_map(|stream| Op::DropStream { stream }),
        1 => index().prop_map(|stream| Op::BeginCapture { stream }),
        2 => index().prop_map(|capture| Op::EndCapture { capture }),
        1 => index().prop_map(|capture| Op::DropCapture { capture }),
        2 => index().prop_map(|graph| Op::DropGraph { graph }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_program_goes_as_predicted(
        steps in vec(prop_oneof![memory_step(), stream_step()], 1..120),
        limit_bytes in 6 * GRANULE..16 * GRANULE,
        timeout_ns in prop_oneof![3 => Just(1_000_000_000_000), 1 => 0..3000_u64],
    ) {
        let setup = Setup { limit_bytes, timeout_ns, ..SETUP };
        prop_assert_eq!(run(&setup, &steps).err(), None);
    }
}

/// Two callbacks that ask for memory called each other without end.
#[test]
fn what_callbacks_ask_for_calls_no_callback() {
    let ask = Op::OnPressure(Relief::Allocate { stream: 0, bytes: 2 * GRANULE });
    let fill = Op::Alloc { stream: 0, bytes: 16 * GRANULE };
    as_predicted(&SETUP, &[fill, ask.clone(), ask, Op::Alloc { stream: 0, bytes: GRANULE }]);
}

/// The peak of physical memory counted what the device had refused.
#[test]
fn what_the_device_refuses_leaves_no_peak() {
    as_predicted(&SETUP, &[Op::Hog { granules: 14 }, Op::Alloc { stream: 0, bytes: 7 * GRANULE }]);
    let fail = Op::Fail { call: DeviceCall::Create, nth: 2 };
    as_predicted(&SETUP, &[fail, Op::Alloc { stream: 0, bytes: 7 * GRANULE }]);
}

/// A handle that was created, and then could not be mapped nor taken back, counted twice.
#[test]
fn a_handle_that_strays_counts_once() {
    let fail = |call| Op::Fail { call, nth: 1 };
    let request = Op::Alloc { stream: 0, bytes: 7 * GRANULE };
    as_predicted(&SETUP, &[fail(DeviceCall::Map), fail(DeviceCall::Release), request.clone(), request]);
}

/// What another thread freed while a request stood inside the heap was not searched before the request gave up.
#[test]
fn a_free_during_a_request_is_searched_by_it() {
    let setup = Setup { limit_bytes: 9 * GRANULE, ..SETUP };
    let steps = [
        Op::Alloc { stream: 0, bytes: 4 * GRANULE },
        Op::FreeInside { buffer: 0, call: DeviceCall::Release },
        Op::Alloc { stream: 0, bytes: 2 * GRANULE },
        Op::Alloc { stream: 0, bytes: GRANULE },
        Op::Free { buffer: 1, elsewhere: false },
        Op::Alloc { stream: 0, bytes: 3 * GRANULE + 512 },
    ];
    let tally = as_predicted(&setup, &steps);
    assert_eq!((tally.rungs["return_cached"], tally.counts["out_of_memory"]), (1, 0));
}

/// The last request of it has to wait twice, for 1000 ns in all: a handle of what it waited for first will not go, nor does
/// it when it is tried again.
fn two_waits() -> Vec<Op> {
    let half = |stream| Op::Alloc { stream, bytes: 8 * GRANULE };
    let used_for = |stream, ns| Op::Launch { stream, operands: vec![0], ns };
    let free = || Op::Free { buffer: 0, elsewhere: false };
    let fails = |nth| Op::Fail { call: DeviceCall::Unmap, nth };
    let streams = [Op::CreateStream, Op::CreateStream, half(1), half(2)];
    let uses = [used_for(1, 100), free(), used_for(2, 1000), free(), fails(1), fails(9), half(0)];
    streams.into_iter().chain(uses).collect()
}

#[test]
fn a_handle_that_would_not_go_is_made_up_for_by_another_wait() {
    let tally = as_predicted(&SETUP, &two_waits());
    assert_eq!((tally.rungs["host_wait_others"], tally.counts["host_stalls"]), (1, 2));
    assert_eq!(tally.counts["host_stall_ns"], 1000);
}

#[test]
fn all_waits_of_a_request_share_its_time() {
    let setup = Setup { timeout_ns: 950, ..SETUP };
    let tally = as_predicted(&setup, &two_waits());
    assert_eq!((tally.counts["out_of_memory"], tally.counts["host_stall_ns"]), (1, 950));
}

/// A free handle was as young as the free memory beside it, and was waited for that much longer.
#[test]
fn a_handle_is_not_as_young_as_its_neighbours() {
    let half = |stream| Op::Alloc { stream, bytes: 8 * GRANULE };
    let steps = [
        Op::CreateStream,
        Op::CreateStream,
        half(1),
        half(1),
        // The first half is free once its own stream has done this; the second is used by another stream, for a shorter
        // time, and its own stream goes on for a longer one.
        Op::Launch { stream: 1, operands: vec![0], ns: 100 },
        Op::Free { buffer: 0, elsewhere: false },
        Op::Record { stream: 1 },
        Op::Launch { stream: 2, operands: vec![0], ns: 10 },
        Op::Launch { stream: 1, operands: vec![], ns: 1000 },
        Op::Free { buffer: 0, elsewhere: false },
        half(0),
    ];
    let tally = as_predicted(&SETUP, &steps);
    assert_eq!((tally.rungs["host_wait_others"], tally.counts["host_stall_ns"]), (1, 100));
}

/// What waits beside a live block keeps its handle, and was not waited for before a request was refused: free, it would
/// have been half of the request's place, with room for the other half.
#[test]
fn what_waits_beside_a_live_block_is_waited_for() {
    let setup = Setup { limit_bytes: 3 * GRANULE, ..SETUP };
    let steps = [
        Op::CreateStream,
        // Two blocks in one handle; another stream uses the second.
        Op::Alloc { stream: 0, bytes: 2 * GRANULE },
        Op::Free { buffer: 0, elsewhere: false },
        Op::Alloc { stream: 0, bytes: GRANULE },
        Op::Alloc { stream: 0, bytes: GRANULE },
        Op::Launch { stream: 1, operands: vec![1], ns: 100 },
        Op::Free { buffer: 1, elsewhere: false },
        Op::Alloc { stream: 0, bytes: 2 * GRANULE },
    ];
    let tally = as_predicted(&setup, &steps);
    assert_eq!((tally.rungs["host_wait_others"], tally.counts["out_of_memory"]), (1, 0));
}
