//! The whole course of a trace: sums at each event, the life of each block, and stacks as text.

use std::collections::BTreeMap;

use crate::{
    BlockState, StackId,
    read::{EventAction, FrameId, Loaded, LoadedDevice},
    state::{
        curves::{self, Frees},
        pending::stream_name,
        sites,
    },
};

/// The sums before each event and, as the last entry, at the end. Bytes are those that programs asked for.
#[derive(Debug)]
pub struct Curves(curves::Curves);

impl Curves {
    /// The sums of a device.
    #[must_use]
    pub fn of(device: &LoadedDevice) -> Self {
        Self(curves::Curves::of(device, Frees::of(device)))
    }

    /// Bytes of blocks that the program holds.
    #[must_use]
    pub fn live_bytes(&self) -> &[u64] {
        &self.0.live
    }

    /// Bytes of blocks that were freed and wait.
    #[must_use]
    pub fn pending_bytes(&self) -> &[u64] {
        &self.0.pending
    }

    /// Bytes of segments.
    #[must_use]
    pub fn reserved_bytes(&self) -> &[u64] {
        &self.0.reserved
    }
}

/// The life of one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BlockLife {
    /// Its address.
    pub address: u64,
    /// Its bytes, as asked for.
    pub bytes: u64,
    /// The stream that owns it.
    pub stream: u64,
    /// Where it was allocated.
    pub stack: StackId,
    /// Event that allocated it; `None` if it was there before the trace.
    pub born: Option<usize>,
    /// Event that gave it back; `None` if it is live at the end, or was given back before the trace.
    pub freed: Option<usize>,
    /// Whether it was given back before the trace, and waited at its start.
    pub freed_before: bool,
    /// Event after which its memory is free; `None` if it is not at the end. Where a trace has one event for a free it
    /// is that one.
    pub completed: Option<usize>,
}

/// Every block of a device, those from before the trace first, then in the order of their allocation.
#[must_use]
pub fn lives(device: &LoadedDevice) -> Vec<BlockLife> {
    let (trace, frees) = (&device.trace, Frees::of(device));
    let (mut lives, mut before): (Vec<BlockLife>, Vec<BlockLife>) = (Vec::new(), Vec::new());
    // Where the block of an address is: among those of the trace, or among those from before.
    let mut current: BTreeMap<u64, (bool, usize)> = BTreeMap::new();
    for row in 0..trace.len() {
        let event = trace.event(row);
        let (address, bytes, stream, stack) = (event.address, event.bytes, event.stream, event.stack);
        let freed_before = event.action == EventAction::FreeCompleted && frees == Frees::Both;
        let new = BlockLife { address, bytes, stream, stack, born: None, freed: None, freed_before, completed: None };
        let (freed, completed) = match event.action {
            EventAction::Alloc => {
                current.insert(address, (true, lives.len()));
                lives.push(BlockLife { born: Some(row), ..new });
                continue;
            }
            EventAction::FreeRequested => (true, frees != Frees::Both),
            EventAction::FreeCompleted => (frees != Frees::Both, true),
            EventAction::Free => (true, true),
            _ => continue,
        };
        let (of_trace, index) = *current.entry(address).or_insert_with(|| {
            before.push(new);
            (false, before.len() - 1)
        });
        let life = if of_trace { &mut lives[index] } else { &mut before[index] };
        if freed {
            life.freed = Some(row);
        }
        if completed {
            life.completed = Some(row);
            current.remove(&address);
        }
    }
    for segment in &device.segments {
        let blocks = segment.blocks.iter().filter(|block| block.state != BlockState::Inactive);
        before.extend(blocks.filter(|block| !current.contains_key(&block.address)).map(|block| BlockLife {
            address: block.address,
            bytes: block.requested_bytes,
            stream: segment.stream,
            stack: block.stack,
            born: None,
            freed: None,
            freed_before: block.state == BlockState::PendingFree && frees == Frees::Both,
            completed: None,
        }));
    }
    before.extend(lives);
    before
}

/// A frame as one line: `file:line in function`.
#[must_use]
pub fn frame_text(loaded: &Loaded, frame: FrameId) -> String {
    sites::line(loaded, frame)
}

/// The innermost line of a stack that is the program's own; blocks without a stack are named by their bytes.
#[must_use]
pub fn site_text(loaded: &Loaded, stack: StackId, bytes: u64) -> String {
    sites::site(loaded, (stack, bytes), bytes, 1).site
}

/// A stream, by its name if the recorder knows one.
#[must_use]
pub fn stream_text(device: &LoadedDevice, stream: u64) -> String {
    stream_name(device, stream)
}
