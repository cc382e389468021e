//! What was executed.

use std::borrow::Cow;
use std::sync::Arc;

use crate::{Operand, StreamId};

/// What kind of operation was executed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ExecutedKind {
    /// A launch.
    Kernel,
    /// A copy from the host.
    CopyToDevice,
    /// A copy to the host.
    CopyToHost,
    /// One rank's part of a collective.
    Collective {
        /// The communicator's name.
        communicator: Arc<str>,
        /// Number of the collective on the communicator, from 0.
        sequence: u64,
    },
}

/// One operation that has ended. Times are ns of the device's clock; on the simulated device they are virtual, and steps
/// in adversarial mode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Executed {
    /// Number of the operation in its cluster (on a GPU: on its device), in order of submission.
    pub id: u64,
    /// Ordinal of the device.
    pub device: u32,
    /// The stream.
    pub stream: StreamId,
    /// The stream's name.
    pub stream_name: Arc<str>,
    /// The operation's name.
    pub name: Cow<'static, str>,
    /// The operation's tag.
    pub tag: u64,
    /// When the host had submitted it.
    pub submitted_ns: u64,
    /// When it started.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// What it was.
    pub kind: ExecutedKind,
    /// The memory that it touched. Of a collective: each range that is sent, once, and last the one received.
    pub operands: Vec<Operand>,
    /// For each wait that stood directly before it on its stream: the last operation before the fence waited for. A
    /// fence with no operation before it gives none.
    pub waited: Vec<u64>,
}
