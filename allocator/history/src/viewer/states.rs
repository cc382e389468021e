//! The page that shows the allocator's state at each event.
//!
//! The viewer goes back from the segments of the snapshot each time an event is chosen. It stops with an error if a
//! block has no segment to be drawn in, or if something that must be there is not; here every event is tried.

use super::{
    ViewerError,
    annotate::{Device, Event, Kind},
};
use crate::{
    ReplayFault,
    replay::{Replay, Run},
};

pub(super) fn draw(index: usize, device: &Device) -> Result<(), ViewerError> {
    let mut replay = Replay::default();
    let fails = |place: String| move |fault| ViewerError::State { device: index, place, fault };
    for segment in &device.segments {
        let run = Run { bytes: segment.bytes, stream: segment.stream };
        let place = format!("the segment at {:#x}", segment.address);
        replay.add_segment(segment.address, run).map_err(fails(place))?;
    }
    for block in device.segments.iter().flat_map(|segment| &segment.blocks) {
        replay.add_block(block.address, block.bytes).map_err(fails(format!("the block at {:#x}", block.address)))?;
    }
    for (number, event) in device.events.iter().enumerate().rev() {
        undo(&mut replay, event).map_err(|fault| fails(format!("event {number}"))(fault))?;
    }
    Ok(())
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
