//! The page that shows the allocator's state at each event.
//!
//! The viewer goes back from the segments of the snapshot each time an event is chosen. It stops with an error if a
//! block has no segment to be drawn in, or if something that must be there is not; here every event is tried.

use super::{
    ViewerError, Violations,
    annotate::{Device, Event, Kind},
};
use crate::{
    ReplayFault,
    replay::{Replay, Run},
};

pub(super) fn draw(index: usize, device: &Device, violations: &mut Violations) {
    let mut replay = Replay::default();
    let mut note = |place: &dyn Fn() -> String, result: Result<(), ReplayFault>| {
        if let Err(fault) = result {
            violations.add(ViewerError::State { device: index, place: place(), fault });
        }
    };
    for segment in &device.segments {
        let run = Run { bytes: segment.bytes, stream: segment.stream };
        note(&|| format!("the segment at {:#x}", segment.address), replay.add_segment(segment.address, run));
    }
    for block in device.segments.iter().flat_map(|segment| &segment.blocks) {
        note(&|| format!("the block at {:#x}", block.address), replay.add_block(block.address, block.bytes));
    }
    for (number, event) in device.events.iter().enumerate().rev() {
        note(&|| format!("event {number}"), undo(&mut replay, event));
    }
}

fn undo(replay: &mut Replay, event: &Event) -> Result<(), ReplayFault> {
    let &Event { kind, address, bytes, stream } = event;
    match kind {
        Kind::Alloc => {
            // The viewer does not mind if the block is not there.
            replay.undo_alloc(address);
            Ok(())
        }
        Kind::FreeRequested => replay.undo_free_requested(address),
        Kind::FreeCompleted | Kind::Free => replay.add_block(address, bytes),
        Kind::SegmentAlloc => replay.undo_segment_alloc(address),
        Kind::SegmentFree => replay.add_segment(address, Run { bytes, stream }),
        Kind::SegmentMap => replay.undo_map(address, bytes),
        Kind::SegmentUnmap => replay.undo_unmap(address, Run { bytes, stream }),
        Kind::Other => Ok(()),
    }
}
