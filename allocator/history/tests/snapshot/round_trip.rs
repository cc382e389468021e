//! What is written opens in the viewer and shows what happened.

use highwater_history::{
    Action, Context, MappedRange, Record, Segment, Snapshot, StackId, TraceAction, TraceEvent, WriteError,
    viewer::{self, ViewerError, ViewerSummary},
};
use proptest::prelude::*;

use crate::world::{PAGE, World, small, steps, written};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn any_history_opens(steps in steps(400)) {
        let world = World::run(&steps, 1 << 20);
        let snapshot = world.snapshot();
        prop_assert_eq!(snapshot.check(), Ok(()));
        let summary = viewer::check(&written(&snapshot)).expect("opens");
        prop_assert_eq!(world.dropped(), 0);
        prop_assert_eq!(summary.segments, snapshot.devices[0].segments.len());
        prop_assert_eq!(summary.blocks, world.live_blocks());
        prop_assert_eq!(summary.live_bytes, world.live_bytes);
        prop_assert_eq!(summary.peak_bytes, world.peak_bytes);
    }

    #[test]
    fn a_history_that_lost_its_beginning_opens(steps in steps(400), records in 1usize..40) {
        let world = World::run(&steps, records * size_of::<Record>());
        let snapshot = world.snapshot();
        prop_assert_eq!(snapshot.check(), Ok(()));
        let summary = viewer::check(&written(&snapshot)).expect("opens");
        prop_assert_eq!(summary.blocks, world.live_blocks());
    }
}

#[test]
fn an_empty_snapshot_opens() {
    assert_eq!(viewer::check(&written(&Snapshot::new())), Ok(ViewerSummary::default()));
    let mut idle = Snapshot::new();
    idle.device_mut(3);
    assert_eq!(viewer::check(&written(&idle)), Ok(ViewerSummary::default()));
}

#[test]
fn a_small_snapshot_shows_what_happened() {
    let summary = viewer::check(&written(&small().snapshot())).expect("opens");
    let expected = ViewerSummary {
        devices: 1,
        segments: 2,
        ignored_segments: 0,
        blocks: 3,
        // 17 are recorded; the free at once is two of them.
        events: 16,
        live_bytes: 1002 + 1003 + 77,
        peak_bytes: 1000 + 1001 + 1002 + 1003 + 77,
    };
    assert_eq!(summary, expected);
}

#[test]
fn lists_of_any_length_are_added_in_batches() {
    for count in [999, 1000, 1001, 2500, 130_000] {
        let mut snapshot = Snapshot::new();
        let record = Record { time_ns: 0, action: Action::Snapshot, context: Context::here() };
        snapshot.add_records(0, std::iter::repeat_n(record, count));
        let bytes = written(&snapshot);
        assert_eq!(viewer::check(&bytes).map(|summary| summary.events), Ok(count));
        let per_event = bytes.len() / count;
        assert!(per_event < 60, "everything in these events is shared, but each takes {per_event} bytes");
    }
}

#[test]
fn many_blocks_of_one_stack_share_it() {
    let size = |count: u64| {
        let mut world = World::new(1 << 24);
        for page in 0..8 {
            world.step(crate::world::Step::Map { stream: 0, page });
        }
        for slot in 0..count {
            world.step(crate::world::Step::Alloc { stream: 0, slot, bytes: 100 });
        }
        let snapshot = world.snapshot();
        assert_eq!(snapshot.stacks.len(), 3);
        written(&snapshot).len()
    };
    let per_block = (size(64) - size(32)) / 32;
    // An event, a block and the inactive block after it, all of integers and references.
    assert!(per_block < 150, "{per_block} bytes");
}

#[test]
fn the_largest_numbers_keep_their_value_and_larger_ones_are_refused() {
    let top = (1 << 53) - 1;
    let event = TraceEvent {
        action: TraceAction::OutOfMemory { device_free_bytes: top },
        address: 0,
        bytes: top,
        stream: top,
        time_us: top,
        stack: StackId::EMPTY,
        span: 0,
    };
    let mut snapshot = Snapshot::new();
    snapshot.device_mut(0).trace.push(event);
    assert_eq!(snapshot.check(), Ok(()));
    assert_eq!(viewer::check(&written(&snapshot)).map(|summary| summary.events), Ok(1));

    snapshot.device_mut(0).trace[0].stream = top + 1;
    let refused = snapshot.write_to(std::io::sink());
    assert!(matches!(refused, Err(WriteError::NumberTooLarge(number)) if number == top + 1), "{refused:?}");
}

#[test]
fn a_stack_of_another_snapshot_is_an_error() {
    let mut other = small().snapshot();
    let foreign = other.devices.remove(0).trace.remove(0).stack;
    let mut snapshot = Snapshot::new();
    snapshot.device_mut(0).trace.push(TraceEvent {
        action: TraceAction::Snapshot,
        address: 0,
        bytes: 0,
        stream: 0,
        time_us: 0,
        stack: foreign,
        span: 0,
    });
    assert!(matches!(snapshot.write_to(std::io::sink()), Err(WriteError::UnknownStack(_))));
}

/// If all is on stream 0 the viewer does not join what an unmap gives back with the segments of the snapshot. Records
/// of whole handles do not need it; a record of several at once does.
#[test]
fn records_of_whole_handles_open_even_if_all_is_on_stream_0() {
    let opens = |maps: &[(u64, u64)], stream| {
        let record = |action| Record { time_ns: 0, action, context: Context::here() };
        let map = |&(address, bytes): &(u64, u64)| record(Action::SegmentMap { address, bytes, stream });
        let mut snapshot = Snapshot::new();
        snapshot.add_records(0, maps.iter().map(map));
        snapshot.add_records(0, [record(Action::SegmentUnmap { address: 2 * PAGE, bytes: PAGE, stream })]);
        let left = MappedRange { address: PAGE, bytes: PAGE, stream, stack: StackId::EMPTY };
        snapshot.device_mut(0).segments = Segment::runs(vec![left], vec![]).expect("consistent");
        assert_eq!(snapshot.check(), Ok(()));
        viewer::check(&written(&snapshot))
    };
    let (whole_handles, at_once) = ([(PAGE, PAGE), (2 * PAGE, PAGE)], [(PAGE, 2 * PAGE)]);
    assert!(opens(&whole_handles, 0).is_ok());
    assert!(opens(&whole_handles, 1).is_ok());
    assert!(opens(&at_once, 1).is_ok());
    assert!(matches!(opens(&at_once, 0), Err(ViewerError::State { .. })));
}
