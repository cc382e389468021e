//! Each inconsistency that can be planted is found.

use highwater_history::{
    Action, BlockState, CheckError, Context, Frame, MappedRange, Record, ReplayFault, Segment, Snapshot, StackId,
    TraceAction, TraceEvent, TraceFault,
};

use crate::world::{PAGE, small};

fn planted(plant: impl FnOnce(&mut Snapshot)) -> CheckError {
    let mut snapshot = small().snapshot();
    assert_eq!(snapshot.check(), Ok(()));
    plant(&mut snapshot);
    snapshot.check().expect_err("planted")
}

/// Index of the first event of a kind.
fn first(snapshot: &Snapshot, name: &str) -> usize {
    snapshot.devices[0].trace.iter().position(|event| event.action.name() == name).expect("it is in the small world")
}

fn fault(plant: impl FnOnce(&mut Snapshot)) -> TraceFault {
    match planted(plant) {
        CheckError::Impossible { fault, .. } => fault,
        other => panic!("another error: {other}"),
    }
}

#[test]
fn sums_are_checked() {
    let what = |error| match error {
        CheckError::WrongSum { what, .. } => what,
        other => panic!("another error: {other}"),
    };
    assert_eq!(what(planted(|s| s.devices[0].segments[0].allocated_bytes += 512)), "allocated_size");
    assert_eq!(what(planted(|s| s.devices[0].segments[0].active_bytes -= 512)), "active_size");
    assert_eq!(what(planted(|s| s.devices[0].segments[0].requested_bytes += 1)), "requested_size");
    let allocated_now = planted(|s| {
        let blocks = &mut s.devices[0].segments[0].blocks;
        let pending = blocks.iter_mut().find(|block| block.state == BlockState::PendingFree);
        pending.expect("one is pending").state = BlockState::Allocated;
    });
    assert_eq!(what(allocated_now), "allocated_size");
}

#[test]
fn blocks_must_tile_their_segment() {
    let not_tiled = |error| matches!(error, CheckError::NotTiled { .. });
    assert!(not_tiled(planted(|s| s.devices[0].segments[0].blocks[1].address += 512)));
    assert!(not_tiled(planted(|s| s.devices[0].segments[0].blocks.truncate(3))));
    assert!(not_tiled(planted(|s| s.devices[0].segments[0].blocks.rotate_left(1))));
    let too_long = planted(|s| s.devices[0].segments[0].blocks.last_mut().expect("not empty").bytes += 1);
    assert!(matches!(too_long, CheckError::BlockOutside { .. }));
    let inactive = planted(|s| s.devices[0].segments[0].blocks.last_mut().expect("not empty").requested_bytes = 1);
    assert!(matches!(inactive, CheckError::WrongRequest { .. }));
}

#[test]
fn segments_must_be_in_order_and_apart() {
    let swapped = planted(|s| s.devices[0].segments.swap(0, 1));
    assert!(matches!(swapped, CheckError::SegmentsOverlap { .. }));
    let twice = planted(|s| {
        let copy = s.devices[0].segments[0].clone();
        s.devices[0].segments.insert(0, copy);
    });
    assert!(matches!(twice, CheckError::SegmentsOverlap { .. }));
    let halves = planted(|s| {
        let segments = &mut s.devices[0].segments;
        let mut second = segments[0].clone();
        let split =
            segments[0].blocks.iter().position(|block| block.address % PAGE == 0 && block.address > second.address);
        assert_eq!(split, None, "the last block reaches over both pages and is cut");
        let last = segments[0].blocks.last_mut().expect("not empty");
        last.bytes -= PAGE;
        second.blocks = vec![last.clone()];
        second.blocks[0].bytes = PAGE;
        second.blocks[0].address = last.address + last.bytes;
        segments[0].total_bytes -= PAGE;
        second.address = second.blocks[0].address;
        second.total_bytes = PAGE;
        (second.allocated_bytes, second.active_bytes, second.requested_bytes) = (0, 0, 0);
        segments.insert(1, second);
    });
    assert!(matches!(halves, CheckError::SegmentsTouch { .. }), "{halves}");
}

#[test]
fn numbers_must_be_exact_in_the_viewer() {
    let too_large = |error| matches!(error, CheckError::TooLarge { .. });
    assert!(too_large(planted(|s| s.devices[0].segments[0].stream = 1 << 53)));
    assert!(too_large(planted(|s| s.devices[0].trace[0].address = 1 << 53)));
    assert!(too_large(planted(|s| s.devices[0].trace[0].bytes = u64::MAX)));
    assert!(matches!(planted(|s| s.devices[0].segments[0].total_bytes = u64::MAX), CheckError::BadRange { .. }));
}

#[test]
fn times_must_not_go_back() {
    let back = planted(|s| s.devices[0].trace[4].time_us = 0);
    assert_eq!(back, CheckError::TimeGoesBack { device: 0, event: 4 });
}

#[test]
fn a_free_must_have_its_block() {
    let removed = fault(|s| {
        let completed = s.devices[0].trace.iter().rposition(|event| event.action == TraceAction::FreeCompleted);
        s.devices[0].trace.remove(completed.expect("it is there"));
    });
    assert_eq!(removed, TraceFault::Replay(ReplayFault::NoBlock));
    let twice = fault(|s| {
        let index = first(s, "free_requested");
        let event = s.devices[0].trace[index];
        s.devices[0].trace.insert(index, event);
    });
    assert_eq!(twice, TraceFault::FreeOutOfOrder);
    let never_requested = fault(|s| {
        let index = first(s, "free_requested");
        s.devices[0].trace.remove(index);
    });
    assert_eq!(never_requested, TraceFault::FreeOutOfOrder);
}

#[test]
fn an_allocation_must_be_live_afterwards() {
    let forgotten = fault(|s| {
        let index = first(s, "free_requested");
        s.devices[0].trace.drain(index..index + 2);
    });
    assert_eq!(forgotten, TraceFault::NeverLive);
    let size = fault(|s| {
        let index = first(s, "alloc");
        s.devices[0].trace[index].bytes += 1;
    });
    assert_eq!(size, TraceFault::WrongSize(1000));
}

#[test]
fn two_live_blocks_must_not_overlap() {
    let overlap = fault(|s| {
        // The completed block lay over the one after it.
        let index = first(s, "free_completed");
        s.devices[0].trace[index].bytes = PAGE / 8 + 1;
    });
    assert!(matches!(overlap, TraceFault::Occupied(_)), "{overlap}");
}

#[test]
fn live_blocks_must_be_in_mapped_memory() {
    let unmapped = fault(|s| {
        // The memory of the first block is mapped only after it was allocated.
        let event = s.devices[0].trace.remove(0);
        let time_us = s.devices[0].trace[5].time_us;
        s.devices[0].trace.insert(6, TraceEvent { time_us, ..event });
    });
    assert!(matches!(unmapped, TraceFault::Replay(ReplayFault::BlockOutside(_))), "{unmapped}");
    let outside = fault(|s| {
        let index = first(s, "free_completed");
        s.devices[0].trace[index].address += 100 * PAGE;
    });
    assert!(matches!(outside, TraceFault::Replay(ReplayFault::BlockOutside(_))), "{outside}");
}

#[test]
fn live_blocks_must_end_in_mapped_memory() {
    let record = |action| Record { time_ns: 0, action, context: Context::here() };
    let checked = |bytes| {
        let (address, stream) = (PAGE, 1);
        let mut snapshot = Snapshot::new();
        snapshot.add_records(
            0,
            [
                record(Action::SegmentMap { address, bytes: PAGE, stream }),
                record(Action::Alloc { address, bytes, rounded_bytes: bytes, stream }),
                record(Action::Freed { address, bytes, stream }),
            ],
        );
        let mapped = MappedRange { address, bytes: PAGE, stream, stack: StackId::EMPTY };
        snapshot.device_mut(0).segments = Segment::runs(vec![mapped], vec![]).expect("consistent");
        snapshot.check()
    };
    assert_eq!(checked(PAGE), Ok(()));
    let fault = TraceFault::Replay(ReplayFault::BlockOutside(PAGE));
    let expected = CheckError::Impossible { device: 0, event: 3, action: "free_completed", address: PAGE, fault };
    assert_eq!(checked(PAGE + 1), Err(expected));
}

#[test]
fn maps_must_lead_to_the_segments() {
    let not_unmapped = fault(|s| {
        let index = first(s, "segment_unmap");
        s.devices[0].trace.remove(index);
    });
    assert_eq!(not_unmapped, TraceFault::Replay(ReplayFault::NotMapped));
    let still_mapped = fault(|s| {
        let index = first(s, "segment_unmap");
        s.devices[0].trace[index].address -= PAGE;
    });
    assert!(matches!(still_mapped, TraceFault::Replay(ReplayFault::SegmentOverlap(_))));
}

#[test]
fn references_must_be_in_the_tables() {
    let foreign = {
        let mut other = Snapshot::new();
        let frame = |line| Frame { filename: "f".into(), line, name: "n".into() };
        (0..50).map(|line| other.stacks.intern(&[frame(line)])).last().expect("not empty")
    };
    let unknown = |error| matches!(error, CheckError::Unknown { what: "stack", .. });
    assert!(unknown(planted(|s| s.devices[0].trace[0].stack = foreign)));
    assert!(unknown(planted(|s| s.devices[0].segments[0].stack = foreign)));
    assert!(unknown(planted(|s| s.devices[0].segments[0].blocks[0].stack = foreign)));
    assert!(unknown(planted(|s| s.devices[0].notes.rungs[0].stack = foreign)));
    assert_ne!(foreign, StackId::EMPTY);
    let span = planted(|s| s.devices[0].notes.stalls[0].span = 9);
    assert_eq!(span, CheckError::Unknown { what: "span path", number: 9 });
}
