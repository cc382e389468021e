//! What one record of the history holds.
//!
//! A record is 64 bytes, `Copy`, and made of integers alone, so writing one costs a cache line and no allocation.
//! Addresses and sizes are bytes on the device, streams are the ids that the caller gives them, times are nanoseconds
//! on one clock that all records of a history share (since the Unix epoch, or since the start of a simulation).

use core::panic::Location;

use crate::SpanPath;

/// Where in the program something happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Context {
    /// The source line of the caller.
    pub location: &'static Location<'static>,
    /// The `tracing` spans that the thread was in.
    pub span: SpanPath,
}

impl Context {
    /// The caller's line and the current span path. It reads one thread-local and allocates nothing.
    #[must_use]
    #[track_caller]
    pub fn here() -> Self {
        Self { location: Location::caller(), span: SpanPath::current() }
    }
}

/// One entry of the history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// When, nanoseconds.
    pub time_ns: u64,
    /// What happened.
    pub action: Action,
    /// Where in the program.
    pub context: Context,
}

const _: () = assert!(size_of::<Record>() <= 64, "a record fits a cache line");

/// How far the fence is that a freed block waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FenceState {
    /// Nobody has recorded it yet.
    Unrecorded,
    /// It is recorded, and was not seen complete.
    Recorded,
    /// It is complete: the block only has not been taken back yet.
    Complete,
}

impl FenceState {
    /// Its name in files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unrecorded => "unrecorded",
            Self::Recorded => "recorded",
            Self::Complete => "complete",
        }
    }
}

/// What happened.
///
/// The first nine have a counterpart in the snapshots of PyTorch. The others are this recorder's own: they say what
/// those snapshots leave out, and are kept under a key of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Action {
    /// A block was handed out.
    Alloc {
        /// Its address.
        address: u64,
        /// Bytes that the caller asked for.
        bytes: u64,
        /// Bytes that the block takes.
        rounded_bytes: u64,
        /// Stream that owns it.
        stream: u64,
    },
    /// A block was given back while work may still use it.
    FreeRequested {
        /// Its address.
        address: u64,
        /// Bytes that the caller had asked for.
        bytes: u64,
        /// Stream that owns it.
        stream: u64,
    },
    /// A block given back before may be used again.
    FreeCompleted {
        /// Its address.
        address: u64,
        /// Bytes that the caller had asked for.
        bytes: u64,
        /// Stream that owns it.
        stream: u64,
    },
    /// A block was given back and could be used again at once: requested and completed in one record.
    Freed {
        /// Its address.
        address: u64,
        /// Bytes that the caller had asked for.
        bytes: u64,
        /// Stream that owns it.
        stream: u64,
    },
    /// Physical memory was mapped. One record for each handle, so that a later unmap names the same range.
    SegmentMap {
        /// Address of the range.
        address: u64,
        /// Its bytes.
        bytes: u64,
        /// Stream whose heap got it.
        stream: u64,
    },
    /// Physical memory was unmapped. One record for each handle.
    SegmentUnmap {
        /// Address of the range.
        address: u64,
        /// Its bytes.
        bytes: u64,
        /// Stream whose heap had it.
        stream: u64,
    },
    /// A request failed after every way to satisfy it.
    OutOfMemory {
        /// Bytes that the caller asked for.
        bytes: u64,
        /// Stream of the request.
        stream: u64,
        /// Bytes that the device had free.
        device_free_bytes: u64,
    },
    /// A snapshot was taken.
    Snapshot,
    /// A use of a block on a stream that does not own it was recorded.
    StreamUse {
        /// Address of the block.
        address: u64,
        /// Stream that uses it.
        stream: u64,
        /// Whether the end of the use is known exactly; otherwise it is everything on the stream up to the free.
        exact: bool,
    },
    /// A freed block waits for work on other streams.
    Pending {
        /// Address of the block.
        address: u64,
        /// Stream that owns it.
        stream: u64,
        /// Number of (stream, position) pairs that it waits for.
        waits: u32,
    },
    /// A request was satisfied, or failed, at a step of the ladder.
    Rung {
        /// The step.
        rung: Rung,
        /// Bytes of the request.
        bytes: u64,
        /// Stream of the request.
        stream: u64,
    },
    /// The host waited for the device.
    Stall {
        /// Stream of the request that made it wait.
        stream: u64,
        /// How long, nanoseconds.
        stall_ns: u64,
    },
    /// A stream was made to wait, on the device, for another one.
    WaitInserted {
        /// Stream that waits.
        stream: u64,
        /// Stream that it waits for.
        for_stream: u64,
    },
    /// A request failed, and at that time a freed block waited for this. One record for each thing that it waits for,
    /// with the time of the failure.
    Awaited {
        /// Address of the block.
        address: u64,
        /// Stream whose work it waits for.
        stream: u64,
        /// Position in that stream's order up to which it waits.
        position: u64,
        /// How far the fence is that covers the position.
        fence: FenceState,
        /// The open stream that holds the fence up, if one does.
        held_by: Option<u32>,
    },
    /// What the device said of its memory.
    DeviceMemory {
        /// All of it, bytes.
        total_bytes: u64,
        /// Free, bytes.
        free_bytes: u64,
        /// Of the rest, held by this allocator, bytes.
        held_bytes: u64,
    },
    /// A process had memory of the device. One record for each, with the time at which they were asked for.
    Process {
        /// Its number.
        pid: u32,
        /// Its memory, bytes.
        bytes: u64,
        /// Whether it is known to be this process.
        is_own: bool,
    },
}

macro_rules! rungs {
    ($($(#[doc = $doc:literal])* $variant:ident = $code:literal => $name:literal,)*) => {
        /// A step of the ladder: the ways to find memory for a request, in the order in which they are tried.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum Rung {
            $($(#[doc = $doc])* $variant = $code,)*
        }

        impl Rung {
            /// Every step, in order.
            pub const ALL: &'static [Rung] = &[$(Rung::$variant,)*];

            /// The number that stands for the step in files.
            #[must_use]
            pub const fn code(self) -> u8 {
                self as u8
            }

            /// The step of a number.
            #[must_use]
            pub const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($code => Some(Rung::$variant),)*
                    _ => None,
                }
            }

            /// Its name, for people.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Rung::$variant => $name,)*
                }
            }
        }
    };
}

rungs! {
    /// The stream's heap had free memory.
    OwnFree = 0 => "own free",
    /// Frees of the stream's own heap turned out to be complete.
    PendingComplete = 1 => "pending complete",
    /// Pages or blocks of other heaps turned out to be complete.
    OthersComplete = 2 => "others complete",
    /// Memory of other heaps was proven to be used only before this point of the stream.
    Proven = 3 => "proven before",
    /// A wait was put on the stream, so that it comes after the last uses.
    Ordered = 4 => "ordered by a wait",
    /// New physical memory was taken from the device.
    Grow = 5 => "grow",
    /// Callbacks of the program gave memory back.
    Callbacks = 6 => "callbacks",
    /// Cached memory was returned to the device and taken anew.
    CachedReturned = 7 => "cached returned",
    /// The host waited for the work that held enough memory.
    HostWait = 8 => "host wait",
    /// Nothing helped.
    OutOfMemory = 9 => "out of memory",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_holds_the_line_of_the_caller() {
        let context = Context::here();
        assert_eq!(context.location.line(), line!() - 1);
        assert_eq!(context.location.file(), file!());
    }

    #[test]
    fn rung_codes_are_dense_and_come_back() {
        for (index, &rung) in Rung::ALL.iter().enumerate() {
            assert_eq!(usize::from(rung.code()), index);
            assert_eq!(Rung::from_code(rung.code()), Some(rung));
        }
        assert_eq!(Rung::from_code(u8::try_from(Rung::ALL.len()).expect("few rungs")), None);
    }
}
