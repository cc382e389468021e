//! The keys and values that have a meaning in a snapshot, with fixed numbers.
//!
//! A table of texts that starts with [`ALL`] gives each word the number of its constant, so that a key is recognised
//! by comparing numbers.

macro_rules! words {
    ($($name:ident = $text:literal,)*) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "the names become those of constants")]
        enum Index { $($name,)* }

        $(pub(super) const $name: u32 = Index::$name as u32;)*

        /// The texts, in the order of their numbers.
        pub(super) const ALL: &[&str] = &[$($text,)*];
    };
}

words! {
    // Of events. The actions come first, in the order of their codes.
    ALLOC = "alloc",
    FREE_REQUESTED = "free_requested",
    FREE_COMPLETED = "free_completed",
    FREE = "free",
    SEGMENT_ALLOC = "segment_alloc",
    SEGMENT_FREE = "segment_free",
    SEGMENT_MAP = "segment_map",
    SEGMENT_UNMAP = "segment_unmap",
    OOM = "oom",
    SNAPSHOT = "snapshot",
    ANNOTATE = "annotate",
    WORKSPACE_SNAPSHOT = "workspace_snapshot",
    ACTION = "action",
    ADDR = "addr",
    SIZE = "size",
    STREAM = "stream",
    TIME_US = "time_us",
    FRAMES = "frames",
    COMPILE_CONTEXT = "compile_context",
    NOT_COMPILED = "N/A",
    USER_METADATA = "user_metadata",
    EMPTY = "",
    POOL_ID = "pool_id",
    DEVICE_FREE = "device_free",
    ROUNDED_SIZE = "rounded_size",
    SPAN = "span",
    CATEGORY = "category",
    FORWARD_FRAMES = "forward_frames",
    INTERNAL_METADATA = "internal_metadata",
    // Of frames.
    NAME = "name",
    FILENAME = "filename",
    LINE = "line",
    // Of segments and blocks.
    DEVICE = "device",
    ADDRESS = "address",
    TOTAL_SIZE = "total_size",
    ALLOCATED_SIZE = "allocated_size",
    ACTIVE_SIZE = "active_size",
    REQUESTED_SIZE = "requested_size",
    SEGMENT_TYPE = "segment_type",
    SMALL = "small",
    SEGMENT_POOL_ID = "segment_pool_id",
    IS_EXPANDABLE = "is_expandable",
    BLOCKS = "blocks",
    STATE = "state",
    ACTIVE_ALLOCATED = "active_allocated",
    ACTIVE_PENDING_FREE = "active_pending_free",
    ACTIVE_AWAITING_FREE = "active_awaiting_free",
    INACTIVE = "inactive",
    HISTORY = "history",
    REAL_SIZE = "real_size",
    // Of the whole.
    SEGMENTS = "segments",
    DEVICE_TRACES = "device_traces",
    ALLOCATOR_SETTINGS = "allocator_settings",
    EXTERNAL_ANNOTATIONS = "external_annotations",
    HOST_SEGMENTS = "host_segments",
    HOST_TRACES = "host_traces",
    RECORDER = "recorder",
    // Of annotations.
    STAGE = "stage",
    START = "START",
    END = "END",
    // Of what this recorder adds.
    VERSION = "version",
    WRITER = "writer",
    SETTINGS = "settings",
    SPAN_PATHS = "span_paths",
    DEVICES = "devices",
    CAPACITY_BYTES = "capacity_bytes",
    OTHER_BYTES = "other_bytes",
    HISTORY_CAPACITY_BYTES = "history_capacity_bytes",
    HISTORY_DROPPED = "history_dropped",
    STREAMS = "streams",
    PENDING_WAITS = "pending_waits",
    STREAM_USES = "stream_uses",
    PENDING_FREES = "pending_frees",
    RUNGS = "rungs",
    STALLS = "stalls",
    WAITS_INSERTED = "waits_inserted",
    POSITION = "position",
    EXACT = "exact",
    WAITS = "waits",
    RUNG = "rung",
    STALL_NS = "stall_ns",
    FOR_STREAM = "for_stream",
    LIMIT_BYTES = "limit_bytes",
    GRANULARITY_BYTES = "granularity_bytes",
    OPEN = "open",
    AWAITED = "awaited",
    FENCE = "fence",
    HELD_BY = "held_by",
    UNRECORDED = "unrecorded",
    RECORDED = "recorded",
    COMPLETE = "complete",
    DEVICE_MEMORY = "device_memory",
    TOTAL_BYTES = "total_bytes",
    FREE_BYTES = "free_bytes",
    HELD_BYTES = "held_bytes",
    PROCESSES = "processes",
    PID = "pid",
    OWN = "own",
}

/// The words that no event has as a key.
pub(super) const OF_OTHERS: std::ops::Range<u32> = NAME..ALL.len() as u32;
