//! A snapshot: what memory looks like now, and how it came to that.
//!
//! The structs mirror the dictionaries of PyTorch's snapshots, so that its viewer and other tools open the files. Each
//! field names the key that it is written under where the two differ. What PyTorch's snapshots cannot say is in
//! [`DeviceNotes`], written under the key `recorder`, which those tools ignore.
//!
//! Rules for whoever fills one in: see [`Snapshot::check`](crate::Snapshot::check), which tests all of them.

use crate::{FenceState, Rung, StackId, Stacks};

/// Everything in a snapshot file.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Devices in order of their index (keys `segments` and `device_traces`).
    pub devices: Vec<DeviceHistory>,
    /// Settings of the allocator under PyTorch's names (`allocator_settings`).
    pub allocator_settings: AllocatorSettings,
    /// Marks of the program on the time line (`external_annotations`).
    pub annotations: Vec<Annotation>,
    /// This allocator's own settings, name and value (`recorder.settings`).
    pub settings: Vec<(String, String)>,
    /// The stacks that everything here refers to.
    pub stacks: Stacks,
    /// Texts of the span paths that events and notes refer to by index (`recorder.span_paths`). Entry 0 is the root,
    /// with no text.
    pub span_paths: Vec<String>,
}

/// One device: its memory, its events and what this recorder adds.
#[derive(Clone, Default, Debug)]
pub struct DeviceHistory {
    /// Mapped memory at the time of the snapshot, by address.
    pub segments: Vec<Segment>,
    /// The newest events, oldest first.
    pub trace: Vec<TraceEvent>,
    /// What PyTorch's schema has no place for.
    pub notes: DeviceNotes,
}

/// A contiguous run of mapped memory of one stream's heap.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// First address.
    pub address: u64,
    /// Bytes of the run (`total_size`).
    pub total_bytes: u64,
    /// Bytes of blocks in use (`allocated_size`).
    pub allocated_bytes: u64,
    /// Bytes of blocks in use, and of freed ones that still wait (`active_size`).
    pub active_bytes: u64,
    /// Bytes that callers asked for, of those same blocks (`requested_size`).
    pub requested_bytes: u64,
    /// Stream that owns it.
    pub stream: u64,
    /// Whether it serves large or small requests (`segment_type`).
    pub kind: SegmentKind,
    /// Private pool, as PyTorch numbers them; (0, 0) is the common pool (`segment_pool_id`).
    pub pool: (u64, u64),
    /// Whether physical memory is mapped into it piece by piece (`is_expandable`).
    pub expandable: bool,
    /// Where it was made (`frames`).
    pub stack: StackId,
    /// Its blocks by address, with no gap between them.
    pub blocks: Vec<Block>,
}

/// What a segment serves.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum SegmentKind {
    /// Requests above 1 MiB.
    #[default]
    Large,
    /// Requests up to 1 MiB.
    Small,
}

/// A piece of a segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    /// First address.
    pub address: u64,
    /// Bytes that it takes (`size`).
    pub bytes: u64,
    /// Bytes that the caller asked for, 0 if inactive (`requested_size`).
    pub requested_bytes: u64,
    /// Whether it is in use.
    pub state: BlockState,
    /// Where it was allocated (`frames`).
    pub stack: StackId,
}

/// Whether a block is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockState {
    /// In use (`active_allocated`).
    Allocated,
    /// Freed, and waiting for the work that uses it (`active_pending_free`).
    PendingFree,
    /// Free (`inactive`).
    Inactive,
}

/// One event of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceEvent {
    /// What happened.
    pub action: TraceAction,
    /// Of the block or segment; 0 for a snapshot and for out of memory (`addr`).
    pub address: u64,
    /// Bytes of the segment, or that the caller asked for (`size`).
    pub bytes: u64,
    /// Stream that owns the memory, or of the request.
    pub stream: u64,
    /// When, microseconds.
    pub time_us: u64,
    /// Where in the program (`frames`).
    pub stack: StackId,
    /// Index into [`Snapshot::span_paths`] (`span`, this recorder's own).
    pub span: u32,
}

/// What a [`TraceEvent`] is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TraceAction {
    /// A block was handed out (`alloc`).
    Alloc {
        /// Bytes that the block takes, if known (`rounded_size`, this recorder's own).
        rounded_bytes: Option<u64>,
    },
    /// A block was given back (`free_requested`).
    FreeRequested,
    /// A block given back before is free (`free_completed`).
    FreeCompleted,
    /// A whole segment was taken from the device (`segment_alloc`).
    SegmentAlloc,
    /// A whole segment was returned to the device (`segment_free`).
    SegmentFree,
    /// Memory was mapped (`segment_map`).
    SegmentMap,
    /// Memory was unmapped (`segment_unmap`).
    SegmentUnmap,
    /// A request failed (`oom`).
    OutOfMemory {
        /// Bytes that the device had free (`device_free`).
        device_free_bytes: u64,
    },
    /// A snapshot was taken (`snapshot`).
    Snapshot,
}

impl TraceAction {
    /// Its name in the file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alloc { .. } => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::OutOfMemory { .. } => "oom",
            Self::Snapshot => "snapshot",
        }
    }
}

/// Settings under PyTorch's names. The default says what this allocator does.
#[derive(Clone, PartialEq, Debug)]
pub struct AllocatorSettings {
    /// The settings as one text (`PYTORCH_CUDA_ALLOC_CONF`).
    pub text: String,
    /// Blocks above this are not split, bytes; −1 without a limit.
    pub max_split_size: i64,
    /// Part of the device at which cached memory is returned; 0 is never.
    pub garbage_collection_threshold: f64,
    /// Whether memory is mapped piece by piece.
    pub expandable_segments: bool,
}

impl Default for AllocatorSettings {
    fn default() -> Self {
        Self { text: String::new(), max_split_size: -1, garbage_collection_threshold: 0.0, expandable_segments: true }
    }
}

/// A mark on the time line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Annotation {
    /// Name of the scope, e.g. `Optimizer.step`.
    pub name: String,
    /// Whether the scope begins or ends here (`stage`).
    pub stage: Stage,
    /// Index of the device.
    pub device: u32,
    /// When, microseconds.
    pub time_us: u64,
}

/// Which end of a scope an [`Annotation`] is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Its begin (`START`).
    Start,
    /// Its end (`END`).
    End,
}

/// What PyTorch's schema has no place for, of one device (an entry of `recorder.devices`).
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct DeviceNotes {
    /// Name of the device.
    pub name: String,
    /// Memory of the device, bytes, if known (`capacity_bytes`).
    pub capacity_bytes: Option<u64>,
    /// Memory that this allocator does not hold and that is not free, bytes, if known (`other_bytes`): other processes,
    /// driver contexts, communication libraries.
    pub other_bytes: Option<u64>,
    /// The most that the allocator may hold, bytes, if known (`limit_bytes`): the device's memory, or a limit that was set.
    pub limit_bytes: Option<u64>,
    /// The unit in which memory is mapped, bytes, if known (`granularity_bytes`).
    pub granularity_bytes: Option<u64>,
    /// Bytes that the rings of the device may take (`history_capacity_bytes`).
    pub history_capacity_bytes: u64,
    /// Records that the rings lost to newer ones (`history_dropped`).
    pub history_dropped: u64,
    /// Names of the streams.
    pub streams: Vec<StreamName>,
    /// Freed blocks that wait now, and what they wait for (`pending_waits`).
    pub pending_waits: Vec<PendingWait>,
    /// Uses on other streams.
    pub stream_uses: Vec<Noted<StreamUse>>,
    /// Frees that had to wait.
    pub pending_frees: Vec<Noted<PendingFree>>,
    /// How requests found memory.
    pub rungs: Vec<Noted<RungTaken>>,
    /// Host waits.
    pub stalls: Vec<Noted<Stall>>,
    /// Waits put on streams.
    pub waits_inserted: Vec<Noted<WaitInserted>>,
    /// What freed blocks waited for when a request failed; its time is that of the failure.
    pub awaited: Vec<Noted<PendingWait>>,
    /// What the device said of its memory, now and then.
    pub device_memory: Vec<Noted<DeviceMemory>>,
    /// Who had memory of the device, at failures and at the end, where the device told: those of one time together.
    pub processes: Vec<Noted<ProcessMemory>>,
}

impl DeviceNotes {
    /// Stack and span of every note.
    pub(crate) fn places(&self) -> impl Iterator<Item = (StackId, u32)> {
        fn of<T>(notes: &[Noted<T>]) -> impl Iterator<Item = (StackId, u32)> {
            notes.iter().map(|note| (note.stack, note.span))
        }
        of(&self.stream_uses)
            .chain(of(&self.pending_frees))
            .chain(of(&self.rungs))
            .chain(of(&self.stalls))
            .chain(of(&self.waits_inserted))
            .chain(of(&self.awaited))
            .chain(of(&self.device_memory))
            .chain(of(&self.processes))
    }
}

/// Name of a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamName {
    /// The stream.
    pub stream: u64,
    /// Its name, for people.
    pub name: String,
    /// Whether its progress may depend on more than this device (another rank, the host), as far as that is known.
    pub open: bool,
}

/// One thing that a freed block waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PendingWait {
    /// Address of the block (`addr`).
    pub address: u64,
    /// Stream whose work it waits for.
    pub stream: u64,
    /// Position in that stream's order up to which it waits.
    pub position: u64,
    /// How far the fence is that covers the position, if known.
    pub fence: Option<FenceState>,
    /// The open stream that holds the fence up, if one is known to: its progress depends on more than this device.
    pub held_by: Option<u64>,
}

/// A fact with its time and its place in the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Noted<T> {
    /// When, microseconds.
    pub time_us: u64,
    /// Where (`frames`).
    pub stack: StackId,
    /// Index into [`Snapshot::span_paths`].
    pub span: u32,
    /// What.
    pub fact: T,
}

/// A use of a block on a stream that does not own it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamUse {
    /// Address of the block (`addr`).
    pub address: u64,
    /// Stream that uses it.
    pub stream: u64,
    /// Whether the end of the use is known exactly.
    pub exact: bool,
}

/// A free that had to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PendingFree {
    /// Address of the block (`addr`).
    pub address: u64,
    /// Stream that owns it.
    pub stream: u64,
    /// Number of (stream, position) pairs that it waited for.
    pub waits: u32,
}

/// The step of the ladder at which a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RungTaken {
    /// The step, written as its number (`rung`) and its name (`name`).
    pub rung: Rung,
    /// Bytes of the request (`size`).
    pub bytes: u64,
    /// Stream of the request.
    pub stream: u64,
}

/// A host wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stall {
    /// Stream of the request that made the host wait.
    pub stream: u64,
    /// How long, nanoseconds.
    pub stall_ns: u64,
}

/// A wait put on a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaitInserted {
    /// Stream that waits.
    pub stream: u64,
    /// Stream that it waits for.
    pub for_stream: u64,
}

/// What a device said of its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceMemory {
    /// All of it, bytes.
    pub total_bytes: u64,
    /// Free, bytes.
    pub free_bytes: u64,
    /// Held by the allocator, bytes.
    pub held_bytes: u64,
}

impl DeviceMemory {
    /// Neither free nor the allocator's, bytes: other processes, driver contexts, libraries.
    #[must_use]
    pub fn other_bytes(self) -> u64 {
        self.total_bytes.saturating_sub(self.free_bytes).saturating_sub(self.held_bytes)
    }
}

/// What a process had of a device's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessMemory {
    /// Its number, as the driver tells it (`pid`).
    pub pid: u32,
    /// Its memory, with its context and all libraries, bytes (`size`).
    pub bytes: u64,
    /// Whether it is known to be the process that recorded (`own`, left out if not).
    pub is_own: bool,
}

impl Snapshot {
    /// A snapshot of no device.
    #[must_use]
    pub fn new() -> Self {
        Self {
            devices: Vec::new(),
            allocator_settings: AllocatorSettings::default(),
            annotations: Vec::new(),
            settings: Vec::new(),
            stacks: Stacks::new(),
            span_paths: vec![String::new()],
        }
    }

    /// The device of an index. It and those before it are added if they are not there yet.
    pub fn device_mut(&mut self, index: usize) -> &mut DeviceHistory {
        if self.devices.len() <= index {
            self.devices.resize_with(index + 1, DeviceHistory::default);
        }
        &mut self.devices[index]
    }
}

impl Default for Snapshot {
    fn default() -> Self {
        Self::new()
    }
}
