//! Whether a snapshot makes sense.
//!
//! A wrong snapshot is worse than none: the viewer shows a blank page, and a tool that looks for a cause finds a wrong
//! one. [`Snapshot::check`] proves that the segments add up and that the trace leads to them.

use std::collections::BTreeMap;

use crate::{
    Block, BlockState, DeviceHistory, Segment, Snapshot, StackId, TraceAction, TraceEvent,
    replay::{Replay, ReplayFault, Run},
};

/// Numbers from here on are not exact in the viewer, which keeps them as floating point.
pub(crate) const NUMBER_LIMIT: u64 = 1 << 53;

/// What is wrong with a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// A range is empty or goes past the end of the address space.
    #[error("the range of {bytes} bytes at {address:#x} is empty or goes past the end of the address space")]
    BadRange {
        /// Its address.
        address: u64,
        /// Its bytes.
        bytes: u64,
    },
    /// Segments share memory, or are not in the order of their addresses.
    #[error("the segments at {first:#x} and {second:#x} overlap or are out of order")]
    SegmentsOverlap {
        /// Address of the one that comes first.
        first: u64,
        /// Address of the one that comes after.
        second: u64,
    },
    /// Neighbours of one stream are two segments. The viewer cannot replay that.
    #[error("the segments at {first:#x} and {second:#x} touch and have one stream, so they must be one segment")]
    SegmentsTouch {
        /// Address of the first.
        first: u64,
        /// Address of the second.
        second: u64,
    },
    /// Blocks share memory.
    #[error("the blocks at {first:#x} and {second:#x} overlap")]
    BlocksOverlap {
        /// Address of the first.
        first: u64,
        /// Address of the second.
        second: u64,
    },
    /// A block is not inside a segment, or has no bytes.
    #[error("the block at {address:#x} has no bytes or is not inside one segment")]
    BlockOutside {
        /// Its address.
        address: u64,
    },
    /// The blocks of a segment do not lie one after another from its start to its end.
    #[error("the segment at {segment:#x} should have a block, or its end, at {expected:#x}, and has it at {found:#x}")]
    NotTiled {
        /// Address of the segment.
        segment: u64,
        /// Where the next block had to start, or the last one to end.
        expected: u64,
        /// Where it does.
        found: u64,
    },
    /// A sum of a segment is not the sum of its blocks.
    #[error("the segment at {segment:#x} says {what} = {stated} bytes, and its blocks have {found}")]
    WrongSum {
        /// Address of the segment.
        segment: u64,
        /// Which sum, by its key in the file.
        what: &'static str,
        /// The sum that the segment has.
        stated: u64,
        /// The sum of its blocks.
        found: u64,
    },
    /// More was asked for than a block has, or something was asked for by an inactive block.
    #[error("the block at {address:#x} has {bytes} bytes, and {requested_bytes} were requested of it")]
    WrongRequest {
        /// Address of the block.
        address: u64,
        /// Its bytes.
        bytes: u64,
        /// Bytes requested.
        requested_bytes: u64,
    },
    /// A number is too large for the viewer.
    #[error("{what} = {value} is not below 2^53, so the viewer would change it")]
    TooLarge {
        /// What it is, by its key in the file.
        what: &'static str,
        /// The number.
        value: u64,
    },
    /// A time is before the one of the event ahead of it.
    #[error("event {event} of device {device} is earlier than the one before it")]
    TimeGoesBack {
        /// Index of the device.
        device: usize,
        /// Index of the event.
        event: usize,
    },
    /// An event cannot have happened, given what came after it.
    #[error("event {event} of device {device} ({action} at {address:#x}): {fault}")]
    Impossible {
        /// Index of the device.
        device: usize,
        /// Index of the event.
        event: usize,
        /// What the event is, by its name in the file.
        action: &'static str,
        /// Its address.
        address: u64,
        /// Why it cannot be.
        fault: TraceFault,
    },
    /// A stack or a span path is not in the snapshot's tables.
    #[error("the {what} {number} is not in the snapshot's table")]
    Unknown {
        /// `stack` or `span path`.
        what: &'static str,
        /// Its number.
        number: u32,
    },
}

/// Why an event of a trace cannot have happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceFault {
    /// It cannot be undone.
    #[error(transparent)]
    Replay(#[from] ReplayFault),
    /// The block that was allocated is not live afterwards.
    #[error("the block is not live afterwards, and no free of it is recorded")]
    NeverLive,
    /// The block was free already.
    #[error("the block at {0:#x} is live in its place afterwards")]
    Occupied(u64),
    /// The free of the block was requested twice, or completed without being requested.
    #[error("the block is already freed before this, or never asked to be")]
    FreeOutOfOrder,
    /// The event's size is not the size of the block.
    #[error("its size is not the size that was requested of the block, which is {0} bytes")]
    WrongSize(u64),
}

impl Snapshot {
    /// Tests that blocks tile their segments and add up, that segments are in order and apart, and that the trace of
    /// each device, undone from its end, starts from exactly these segments, never has two live blocks in one place,
    /// nor one outside a segment. Times must not go back, and every number of a segment or an event must be below 2^53
    /// (the writer refuses larger ones wherever they are).
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), CheckError> {
        for (index, device) in self.devices.iter().enumerate() {
            check_segments(&device.segments)?;
            check_times(index, &device.trace)?;
            check_trace(index, device)?;
            self.check_references(device)?;
        }
        Ok(())
    }

    fn check_references(&self, device: &DeviceHistory) -> Result<(), CheckError> {
        let known = |stack: StackId| match self.stacks.frame_ids(stack) {
            Some(_) => Ok(()),
            None => Err(CheckError::Unknown { what: "stack", number: stack.0 }),
        };
        for segment in &device.segments {
            known(segment.stack)?;
            segment.blocks.iter().try_for_each(|block| known(block.stack))?;
        }
        let events = device.trace.iter().map(|event| (event.stack, event.span));
        for (stack, span) in events.chain(device.notes.places()) {
            known(stack)?;
            if span as usize >= self.span_paths.len() {
                return Err(CheckError::Unknown { what: "span path", number: span });
            }
        }
        Ok(())
    }
}

fn check_number(what: &'static str, value: u64) -> Result<(), CheckError> {
    if value < NUMBER_LIMIT { Ok(()) } else { Err(CheckError::TooLarge { what, value }) }
}

fn check_segments(segments: &[Segment]) -> Result<(), CheckError> {
    for segment in segments {
        let (address, bytes) = (segment.address, segment.total_bytes);
        check_number("stream", segment.stream)?;
        let end = address.checked_add(bytes).filter(|_| bytes > 0).ok_or(CheckError::BadRange { address, bytes })?;
        check_number("address", end)?;
        check_blocks(segment, end)?;
        check_sums(segment)?;
    }
    for pair in segments.windows(2) {
        let (first, second) = (&pair[0], &pair[1]);
        let end = first.address + first.total_bytes;
        if second.address < end {
            return Err(CheckError::SegmentsOverlap { first: first.address, second: second.address });
        }
        if second.address == end && second.stream == first.stream && first.expandable && second.expandable {
            return Err(CheckError::SegmentsTouch { first: first.address, second: second.address });
        }
    }
    Ok(())
}

fn check_blocks(segment: &Segment, end: u64) -> Result<(), CheckError> {
    let mut expected = segment.address;
    for block in &segment.blocks {
        if block.address != expected {
            return Err(CheckError::NotTiled { segment: segment.address, expected, found: block.address });
        }
        if block.bytes == 0 || block.bytes > end - block.address {
            return Err(CheckError::BlockOutside { address: block.address });
        }
        let most = if block.state == BlockState::Inactive { 0 } else { block.bytes };
        if block.requested_bytes > most {
            let &Block { address, bytes, requested_bytes, .. } = block;
            return Err(CheckError::WrongRequest { address, bytes, requested_bytes });
        }
        expected += block.bytes;
    }
    if expected == end {
        Ok(())
    } else {
        Err(CheckError::NotTiled { segment: segment.address, expected: end, found: expected })
    }
}

fn check_sums(segment: &Segment) -> Result<(), CheckError> {
    let (mut allocated, mut active, mut requested) = (0, 0, 0);
    for block in segment.blocks.iter().filter(|block| block.state != BlockState::Inactive) {
        active += block.bytes;
        requested += block.requested_bytes;
        if block.state == BlockState::Allocated {
            allocated += block.bytes;
        }
    }
    let sums = [
        ("allocated_size", segment.allocated_bytes, allocated),
        ("active_size", segment.active_bytes, active),
        ("requested_size", segment.requested_bytes, requested),
    ];
    match sums.into_iter().find(|(_, stated, found)| stated != found) {
        Some((what, stated, found)) => Err(CheckError::WrongSum { segment: segment.address, what, stated, found }),
        None => Ok(()),
    }
}

fn check_times(device: usize, trace: &[TraceEvent]) -> Result<(), CheckError> {
    let mut latest = 0;
    for (event, &TraceEvent { time_us, bytes, stream, .. }) in trace.iter().enumerate() {
        check_number("time_us", time_us)?;
        check_number("size", bytes)?;
        check_number("stream", stream)?;
        if time_us < latest {
            return Err(CheckError::TimeGoesBack { device, event });
        }
        latest = time_us;
    }
    Ok(())
}

fn check_trace(device: usize, history: &DeviceHistory) -> Result<(), CheckError> {
    let mut undo = Undo::new(&history.segments)?;
    for (index, event) in history.trace.iter().enumerate().rev() {
        check_number("addr", event.address)?;
        undo.event(event).map_err(|fault| CheckError::Impossible {
            device,
            event: index,
            action: event.action.name(),
            address: event.address,
            fault,
        })?;
    }
    Ok(())
}

/// The replay, and what is known of the blocks that it does not keep.
struct Undo {
    replay: Replay,
    /// Bytes requested of each live block, and whether its free has been requested at the time.
    live: BTreeMap<u64, (u64, bool)>,
}

impl Undo {
    fn new(segments: &[Segment]) -> Result<Self, CheckError> {
        let mut undo = Self { replay: Replay::default(), live: BTreeMap::new() };
        for segment in segments {
            let run = Run { bytes: segment.total_bytes, stream: segment.stream };
            undo.replay.add_segment(segment.address, run).expect("segments have been checked to be apart");
            for block in segment.blocks.iter().filter(|block| block.state != BlockState::Inactive) {
                undo.replay.add_block(block.address, block.bytes).expect("blocks have been checked to be inside");
                undo.live.insert(block.address, (block.requested_bytes, block.state == BlockState::PendingFree));
            }
        }
        Ok(undo)
    }

    fn event(&mut self, event: &TraceEvent) -> Result<(), TraceFault> {
        let &TraceEvent { address, bytes, stream, .. } = event;
        match event.action {
            TraceAction::Alloc { .. } => {
                self.replay.undo_alloc(address).ok_or(TraceFault::NeverLive)?;
                let (requested, pending) = self.live.remove(&address).expect("kept with the replay");
                same_size(bytes, requested)?;
                if pending { Err(TraceFault::FreeOutOfOrder) } else { Ok(()) }
            }
            TraceAction::FreeRequested => {
                self.replay.undo_free_requested(address)?;
                let (requested, pending) = self.live.get_mut(&address).expect("kept with the replay");
                same_size(bytes, *requested)?;
                if std::mem::replace(pending, false) { Ok(()) } else { Err(TraceFault::FreeOutOfOrder) }
            }
            TraceAction::FreeCompleted => self.undo_free(address, bytes),
            TraceAction::SegmentMap => Ok(self.replay.undo_map(address, bytes)?),
            TraceAction::SegmentUnmap => Ok(self.replay.undo_unmap(address, Run { bytes, stream })?),
            TraceAction::SegmentAlloc => Ok(self.replay.undo_segment_alloc(address)?),
            TraceAction::SegmentFree => Ok(self.replay.add_segment(address, Run { bytes, stream })?),
            TraceAction::OutOfMemory { .. } | TraceAction::Snapshot => Ok(()),
        }
    }

    fn undo_free(&mut self, address: u64, bytes: u64) -> Result<(), TraceFault> {
        if let Some(block) = self.replay.block_over(address, bytes.max(1)) {
            return Err(TraceFault::Occupied(block));
        }
        self.replay.add_block(address, bytes)?;
        let (start, run) = self.replay.segment_at(address).expect("the block was added inside one");
        if address - start + bytes > run.bytes {
            return Err(ReplayFault::BlockOutside(address).into());
        }
        self.live.insert(address, (bytes, true));
        Ok(())
    }
}

fn same_size(event: u64, block: u64) -> Result<(), TraceFault> {
    if event == block { Ok(()) } else { Err(TraceFault::WrongSize(block)) }
}
