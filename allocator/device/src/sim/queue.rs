//! What stands in a stream, and what can happen next.
//!
//! A stream counts its entries (operations and waits): `submitted` in all, `completed` of them are behind. A fence is
//! a number of entries: it is complete once that many are. At most one operation of a stream runs at a time.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::collective::CollectiveBody;
use super::default_stream::StreamKind;
use super::memory::Piece;
use super::pool::Job;
use crate::{ExecutedKind, FenceHandle, HostBody, HostMemory, Operand, OperandBytes, StreamId};

/// A step that a device can take. Ordered as timed mode takes them: by time, ends before starts, device, stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Event {
    pub(super) at_ns: u64,
    pub(super) kind: EventKind,
    pub(super) device: usize,
    pub(super) stream: usize,
    /// The communicator, when its current collective moves on all ranks together.
    pub(super) communicator: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum EventKind {
    End,
    Start,
}

/// A stream and its queue.
pub(super) struct Stream {
    pub(super) device: usize,
    pub(super) name: Arc<str>,
    pub(super) kind: StreamKind,
    pub(super) destroyed: bool,
    pub(super) queue: VecDeque<Entry>,
    pub(super) submitted: u64,
    pub(super) completed: u64,
    pub(super) running: Option<Running>,
    /// The step of the head or of the running operation that is enabled now (a collective's stands at its
    /// communicator).
    pub(super) event: Option<Event>,
    /// Fences that are not complete, by position.
    pub(super) fences: VecDeque<PendingFence>,
    /// Streams whose head waits for this one.
    pub(super) waiters: Vec<usize>,
    /// The last operation submitted.
    pub(super) last_operation: Option<u64>,
    /// What the waits passed since the last operation stood for.
    pub(super) waited: Vec<u64>,
    /// Implicit waits in the queue so far: for each stream the last position that is waited for.
    pub(super) implied: BTreeMap<usize, u64>,
}

impl Stream {
    pub(super) fn new(device: usize, name: &str, kind: StreamKind) -> Self {
        Stream {
            device,
            name: name.into(),
            kind,
            destroyed: false,
            queue: VecDeque::new(),
            submitted: 0,
            completed: 0,
            running: None,
            event: None,
            fences: VecDeque::new(),
            waiters: Vec::new(),
            last_operation: None,
            waited: Vec::new(),
            implied: BTreeMap::new(),
        }
    }

    /// Whether everything submitted has completed.
    pub(super) fn is_idle(&self) -> bool {
        self.completed == self.submitted
    }

    /// Operations that run or are queued, in order: name and operands.
    pub(super) fn unfinished(&self) -> impl Iterator<Item = (&str, &[Operand])> {
        let running = self.running.iter().map(|running| &running.operation);
        let queued = self.queue.iter().filter_map(|entry| match entry {
            Entry::Operation(operation) => Some(&**operation),
            Entry::Wait(_) => None,
        });
        running.chain(queued).map(|operation| (&*operation.name, &operation.operands[..]))
    }
}

/// The id of the stream at an index. Id 0 is nobody's.
pub(super) fn stream_id(index: usize) -> StreamId {
    StreamId(index as u64 + 1)
}

/// The index of a stream that was made.
pub(super) fn stream_index(id: StreamId) -> usize {
    usize::try_from(id.0 - 1).expect("it came from an index")
}

pub(super) struct PendingFence {
    pub(super) position: u64,
    pub(super) fence: FenceHandle,
    /// The number of the injected failure: the fence breaks the device instead of completing.
    pub(super) fails: Option<u64>,
}

/// A fence that has not been released.
pub(super) struct Fence {
    pub(super) device: usize,
    pub(super) stream: usize,
    pub(super) position: u64,
    pub(super) completed_ns: Option<u64>,
    pub(super) last_operation: Option<u64>,
}

pub(super) enum Entry {
    Wait(WaitEntry),
    Operation(Box<Queued>),
}

/// Nothing behind it starts before `stream` has completed `position` entries. It does not need its fence any more.
pub(super) struct WaitEntry {
    pub(super) stream: usize,
    pub(super) position: u64,
    pub(super) last_operation: Option<u64>,
}

/// An operation in a queue.
pub(super) struct Queued {
    pub(super) id: u64,
    pub(super) name: Cow<'static, str>,
    pub(super) tag: u64,
    pub(super) kind: ExecutedKind,
    pub(super) submitted_ns: u64,
    pub(super) duration_ns: u64,
    pub(super) operands: Vec<Operand>,
    pub(super) work: Work,
}

/// What an operation does with bytes.
pub(super) enum Work {
    Nothing,
    Kernel(HostBody),
    ToDevice(HostPiece),
    ToHost(HostPiece),
    Collective(Part),
}

pub(super) struct HostPiece {
    pub(super) memory: HostMemory,
    pub(super) offset: usize,
}

/// One rank's part of a collective.
pub(super) struct Part {
    pub(super) communicator: usize,
    pub(super) sequence: u64,
    /// The operand that goes to each rank.
    pub(super) sends: Vec<usize>,
    pub(super) body: Option<CollectiveBody>,
}

/// An operation that has started. `operation.work` has become `effect`.
pub(super) struct Running {
    pub(super) operation: Queued,
    pub(super) start_ns: u64,
    pub(super) waited: Vec<u64>,
    pub(super) pieces: Vec<Piece>,
    pub(super) effect: Effect,
}

/// What happens to bytes when the operation ends.
pub(super) enum Effect {
    Nothing,
    Body(Arc<Job>),
    ToDevice(OperandBytes),
    ToHost(HostPiece, OperandBytes),
}
