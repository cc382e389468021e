//! The sums at each event of a trace, and stacks as text. The life of each block is in [`timeline`](crate::timeline).

use crate::{
    StackId,
    read::{FrameId, Loaded, LoadedDevice},
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
