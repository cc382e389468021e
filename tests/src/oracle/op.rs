//! What a program does with the allocator, as data: lists of it are generated, shrunk and printed.
//!
//! Things are named by an index into what is there at the time, modulo its length; where nothing is there, nothing is
//! done. So any part of a list is a program too. `Debug` prints what a test can be made of.

use highwater::device::DeviceCall;

/// The world that a program runs in. All sizes are bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setup {
    /// Physical memory of the device, in granules.
    pub granules: u64,
    /// The granularity of mappings.
    pub granularity_bytes: u64,
    /// The limit that is set.
    pub limit_bytes: u64,
    /// How long one request may block the host, ns.
    pub timeout_ns: u64,
}

/// What a pressure callback does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relief {
    /// Frees the buffer that was stashed first.
    FreeFirst,
    /// Frees everything that is stashed.
    FreeAll,
    /// Asks for memory on a stream, and stashes it.
    Allocate {
        /// The stream.
        stream: usize,
        /// Bytes asked for.
        bytes: u64,
    },
    /// Begins a capture of a stream, or ends the one that was begun first.
    Capture {
        /// The stream.
        stream: usize,
    },
}

/// One step of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Asks for a buffer.
    Alloc {
        /// The stream.
        stream: usize,
        /// Bytes asked for.
        bytes: u64,
    },
    /// Asks for memory by address.
    AllocRaw {
        /// The stream.
        stream: usize,
        /// Bytes asked for.
        bytes: u64,
    },
    /// Frees a buffer, or a raw block.
    Free {
        /// The buffer.
        buffer: usize,
        /// Whether another thread does.
        elsewhere: bool,
    },
    /// Frees a buffer from another thread, while the next memory call of a request stands still inside the heap.
    FreeInside {
        /// The buffer.
        buffer: usize,
        /// Where the request stands then.
        call: DeviceCall,
    },
    /// Submits an operation.
    Launch {
        /// The stream.
        stream: usize,
        /// The buffers that it touches.
        operands: Vec<usize>,
        /// How long it runs, ns.
        ns: u64,
    },
    /// Says that a stream uses a buffer, until the free.
    RecordStream {
        /// The buffer.
        buffer: usize,
        /// The stream.
        stream: usize,
    },
    /// Says that a stream uses a buffer, until a fence.
    RecordUse {
        /// The buffer.
        buffer: usize,
        /// The stream; the fence's own when it still lives.
        stream: Option<usize>,
        /// The fence.
        fence: usize,
    },
    /// Opens guards over a buffer, submits past the allocator, and closes them, the last one first.
    Guards {
        /// The buffer.
        buffer: usize,
        /// One guard on each.
        streams: Vec<usize>,
        /// How long the operation of each runs, ns.
        ns: u64,
    },
    /// Asks for a buffer's address.
    Escape {
        /// The buffer.
        buffer: usize,
    },
    /// Records a fence.
    Record {
        /// The stream.
        stream: usize,
    },
    /// Makes a stream wait for a fence.
    Wait {
        /// The stream.
        stream: usize,
        /// The fence.
        fence: usize,
    },
    /// Asks whether a fence is complete.
    Ask {
        /// The fence.
        fence: usize,
    },
    /// Blocks the host for a fence.
    HostWait {
        /// The fence.
        fence: usize,
        /// For how long at most, ns.
        timeout_ns: u64,
    },
    /// Forgets a fence.
    DropFence {
        /// The fence.
        fence: usize,
    },
    /// The host does something else.
    HostWork {
        /// For how long, ns.
        ns: u64,
    },
    /// Returns free memory.
    Trim {
        /// What may still be held, bytes.
        target: u64,
    },
    /// Creates a stream.
    CreateStream,
    /// Lets go of a stream. The first one stays.
    DropStream {
        /// The stream.
        stream: usize,
    },
    /// Begins a capture.
    BeginCapture {
        /// The stream.
        stream: usize,
    },
    /// Ends a capture, for its graph.
    EndCapture {
        /// The capture.
        capture: usize,
    },
    /// Throws a capture away.
    DropCapture {
        /// The capture.
        capture: usize,
    },
    /// Drops a graph.
    DropGraph {
        /// The graph.
        graph: usize,
    },
    /// Puts a buffer where pressure callbacks find it.
    Stash {
        /// The buffer.
        buffer: usize,
    },
    /// Takes the buffer that was stashed first back.
    Unstash,
    /// Registers a pressure callback.
    OnPressure(Relief),
    /// Takes a pressure callback away.
    EndPressure {
        /// The callback.
        callback: usize,
    },
    /// Makes the nth of the calls from now fail.
    Fail {
        /// The call.
        call: DeviceCall,
        /// 1 is the next.
        nth: u64,
    },
    /// Somebody else takes memory of the device.
    Hog {
        /// Granules.
        granules: u64,
    },
    /// Somebody else gives memory back.
    Unhog,
    /// Forgets the peaks.
    ResetPeaks,
}

/// An index into a list of `len`, modulo; `None` when it is empty.
pub(super) fn pick(len: usize, index: usize) -> Option<usize> {
    (len > 0).then(|| index % len)
}
