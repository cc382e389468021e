//! The sums of memory before each event: live, pending and mapped bytes.
//!
//! They follow from the sums at the end and the changes since, so they are right also when the oldest events are lost.
//! Bytes are those that programs asked for, as events say them.

use std::collections::HashSet;

use crate::{
    BlockState,
    read::{EventAction, LoadedDevice},
};

use super::rules::MOST_BYTES;

/// Which events a trace has of a free. Recorders can be told to leave kinds of events out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Frees {
    /// The request and the completion.
    Both,
    /// The request alone, which stands for the completion too.
    Requested,
    /// The completion alone, which stands for the request too.
    Completed,
}

impl Frees {
    pub(crate) fn of(device: &LoadedDevice) -> Self {
        let trace = &device.trace;
        let has = |wanted| (0..trace.len()).any(|row| trace.action(row) == wanted);
        let waits = || {
            let mut blocks = device.segments.iter().flat_map(|segment| &segment.blocks);
            blocks.any(|block| block.state == BlockState::PendingFree)
        };
        match (has(EventAction::FreeRequested), has(EventAction::FreeCompleted)) {
            (true, false) if !waits() => Self::Requested,
            (false, true) if completes_unasked(device) => Self::Completed,
            _ => Self::Both,
        }
    }
}

/// Whether a block that was handed out in the trace came free in it. In a trace without requests this tells a recorder
/// that leaves them out from a ring that lost them: what came free could have been asked for before the oldest event.
fn completes_unasked(device: &LoadedDevice) -> bool {
    let trace = &device.trace;
    let mut handed_out = HashSet::new();
    (0..trace.len()).any(|row| match trace.action(row) {
        EventAction::Alloc => {
            handed_out.insert(trace.addresses()[row]);
            false
        }
        EventAction::FreeCompleted => handed_out.contains(&trace.addresses()[row]),
        _ => false,
    })
}

/// Sums before each event and, as the last entry, at the end.
#[derive(Debug)]
pub(crate) struct Curves {
    /// Bytes of blocks that the program holds.
    pub(crate) live: Vec<u64>,
    /// Bytes of blocks that were freed and wait.
    pub(crate) pending: Vec<u64>,
    /// Bytes of segments.
    pub(crate) reserved: Vec<u64>,
    /// Sums that would have been negative: more came to be free, or was returned, than the trace explains.
    pub(crate) negative: u64,
}

#[derive(Clone, Copy, Default)]
struct Sums {
    live: i64,
    pending: i64,
    reserved: i64,
}

impl Curves {
    pub(crate) fn of(device: &LoadedDevice, frees: Frees) -> Self {
        let trace = &device.trace;
        let mut sums = Self::at_the_end(device, frees);
        let length = trace.len() + 1;
        let mut curves =
            Self { live: vec![0; length], pending: vec![0; length], reserved: vec![0; length], negative: 0 };
        curves.set(length - 1, sums);
        for row in (0..trace.len()).rev() {
            let bytes = trace.bytes()[row].min(MOST_BYTES) as i64;
            undo(&mut sums, trace.action(row), bytes, frees);
            curves.set(row, sums);
        }
        curves
    }

    fn at_the_end(device: &LoadedDevice, frees: Frees) -> Sums {
        let mut sums = Sums::default();
        for segment in &device.segments {
            sums.reserved = sums.reserved.saturating_add(segment.total_bytes.min(MOST_BYTES) as i64);
            for block in &segment.blocks {
                let bytes = block.requested_bytes.min(MOST_BYTES) as i64;
                match block.state {
                    BlockState::Allocated => sums.live = sums.live.saturating_add(bytes),
                    BlockState::PendingFree if frees != Frees::Completed => {
                        sums.pending = sums.pending.saturating_add(bytes);
                    }
                    BlockState::PendingFree => sums.live = sums.live.saturating_add(bytes),
                    BlockState::Inactive => {}
                }
            }
        }
        sums
    }

    fn set(&mut self, row: usize, sums: Sums) {
        let mut clamp = |value: i64| {
            self.negative += u64::from(value < 0);
            value.max(0) as u64
        };
        let (live, pending, reserved) = (clamp(sums.live), clamp(sums.pending), clamp(sums.reserved));
        (self.live[row], self.pending[row], self.reserved[row]) = (live, pending, reserved);
    }

    /// Bytes that are not free at a row: live and pending.
    pub(crate) fn active(&self, row: usize) -> u64 {
        self.live[row].saturating_add(self.pending[row])
    }
}

fn undo(sums: &mut Sums, action: EventAction, bytes: i64, frees: Frees) {
    use EventAction::*;
    let add = |sum: &mut i64, bytes: i64| *sum = sum.saturating_add(bytes);
    match (action, frees) {
        (Alloc, _) => add(&mut sums.live, -bytes),
        (FreeRequested, Frees::Both) => {
            add(&mut sums.pending, -bytes);
            add(&mut sums.live, bytes);
        }
        (FreeCompleted, Frees::Both) => add(&mut sums.pending, bytes),
        (FreeRequested | FreeCompleted | Free, _) => add(&mut sums.live, bytes),
        (SegmentAlloc | SegmentMap, _) => add(&mut sums.reserved, -bytes),
        (SegmentFree | SegmentUnmap, _) => add(&mut sums.reserved, bytes),
        _ => {}
    }
}
