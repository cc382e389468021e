//! What a report says.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};

use highwater_device::{Access, Address, ByteRange};
use highwater_history::{Context, SpanPath};

/// A buffer, as the sanitizer was told of it.
#[derive(Debug)]
pub struct BufferInfo {
    /// Its bytes, as asked for.
    pub range: ByteRange,
    /// The line that allocated it, and the spans that line was in.
    pub allocated: Context,
    /// Name of the stream that it was allocated on.
    pub stream: Arc<str>,
    pub(crate) freed: OnceLock<SpanPath>,
}

impl BufferInfo {
    /// The spans in which it was given back, if it was. A drop has no line.
    #[must_use]
    pub fn freed_in(&self) -> Option<SpanPath> {
        self.freed.get().copied()
    }
}

/// One of the two that a race is between.
#[derive(Clone, Debug)]
pub struct Side {
    /// Name of the operation.
    pub operation: Cow<'static, str>,
    /// Name of its stream; `None` for the host.
    pub stream: Option<Arc<str>>,
    /// What it does with the bytes.
    pub access: Access,
    /// Where in the program it was submitted, if that is known.
    pub context: Option<Context>,
    /// The buffer that the bytes belonged to when it was submitted.
    pub buffer: Option<Arc<BufferInfo>>,
}

/// A fence that was recorded.
#[derive(Clone, Debug)]
pub struct FencePoint {
    /// Name of its stream.
    pub stream: Arc<str>,
    /// Where it was recorded, if that is known: the allocator records some of its own.
    pub recorded: Option<Context>,
}

/// What kind of mistake it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum RaceKind {
    /// Two streams touch one buffer, and nothing orders them.
    Unordered,
    /// A buffer was freed while a use that nobody recorded was under way, and its bytes were given out again.
    Reuse,
    /// The host touches memory that a stream still uses.
    Host,
    /// Memory was unmapped while a stream still uses it: a mistake of the allocator, or of whoever unmapped it.
    Unmapped,
    /// Work was submitted on a buffer that had been freed before.
    AfterFree,
}

/// The order that is missing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Missing {
    /// A stream has to wait for a fence.
    Wait {
        /// Name of the stream that has to wait.
        waiter: Arc<str>,
        /// A fence that was recorded behind the first operation, and that nobody made the stream wait for.
        covering: Option<FencePoint>,
        /// What the stream waited for instead: a fence that does not come after the first operation.
        waited: Option<(FencePoint, Option<Context>)>,
    },
    /// The use of a stream has to be recorded before the free.
    RecordStream {
        /// Name of the stream.
        stream: Arc<str>,
    },
    /// The host has to wait.
    HostWait {
        /// A fence that was recorded behind the first operation.
        covering: Option<FencePoint>,
    },
    /// The buffer has to live longer.
    LaterFree,
}

/// Two operations that touch the same bytes, one of them writing, and that nothing orders.
#[derive(Clone, Debug)]
pub struct Race {
    /// What kind of mistake it is.
    pub kind: RaceKind,
    /// The bytes: addresses as the second one uses them, or, if they are the host's, offsets in its memory.
    pub range: ByteRange,
    /// Whether the bytes are host memory.
    pub on_host: bool,
    /// The one that was submitted first.
    pub first: Side,
    /// The one that was submitted second.
    pub second: Side,
    /// What would order them.
    pub missing: Missing,
}

impl Race {
    /// The buffer that the bytes belong to, or belonged to.
    #[must_use]
    pub fn buffer(&self) -> Option<&BufferInfo> {
        self.second.buffer.as_deref().or(self.first.buffer.as_deref())
    }
}

/// A line of the program, and its spans.
struct At<'a>(&'a Option<Context>);

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(Context { location, span }) = self.0 else { return f.write_str("at a line that is not known") };
        write!(f, "at {}:{}", location.file(), location.line())?;
        if *span == SpanPath::ROOT { Ok(()) } else { write!(f, " in {span}") }
    }
}

/// Where a fence was recorded.
struct Recorded<'a>(&'a FencePoint);

impl fmt::Display for Recorded<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.recorded {
            Some(_) => At(&self.0.recorded).fmt(f),
            None => f.write_str("by the allocator"),
        }
    }
}

impl fmt::Display for BufferInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { range, allocated, stream, .. } = self;
        write!(f, "{} bytes at {}, allocated on {stream:?} {}", range.bytes, range.address, At(&Some(*allocated)))
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.operation)?;
        match &self.stream {
            Some(stream) => write!(f, " on {stream:?}")?,
            None => f.write_str(" on the host")?,
        }
        let does = match self.access {
            Access::Read => "reads",
            Access::Write => "writes",
            Access::ReadWrite => "reads and writes",
        };
        write!(f, " {does} {}", At(&self.context))
    }
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ByteRange { address, bytes } = self.range;
        let what = match self.kind {
            RaceKind::Unordered => "race",
            RaceKind::Reuse => "memory is used again too early",
            RaceKind::Host => "race with the host",
            RaceKind::Unmapped => "memory is unmapped too early",
            RaceKind::AfterFree => "use after free",
        };
        match self.on_host {
            true => write!(f, "{what}: {bytes} bytes of host memory, from byte {}", address.0)?,
            false => write!(f, "{what}: {bytes} bytes at {address}")?,
        }
        if let Some(buffer) = self.buffer() {
            write!(f, ", of the buffer of {buffer}")?;
        }
        write!(f, "\n  first   {}", self.first)?;
        if let (RaceKind::Reuse, Some(before)) = (self.kind, &self.first.buffer) {
            write!(f, ", of what was then the buffer of {before}")?;
        }
        write!(f, "\n  second  {}\n  missing ", self.second)?;
        self.write_missing(f)
    }
}

impl Race {
    fn write_missing(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Race { first, missing, .. } = self;
        let (operation, stream) = (&first.operation, first.stream.as_deref().unwrap_or("the host"));
        match missing {
            Missing::Wait { waiter, covering, waited } => {
                write!(f, "{waiter:?} has to wait for a fence recorded on {stream:?} after {operation:?}")?;
                if let Some(fence) = covering {
                    write!(f, "; there is one, recorded {}, and it was not waited for", Recorded(fence))?;
                }
                match waited {
                    Some((fence, at)) if &*fence.stream == stream => {
                        write!(
                            f,
                            "; the fence that it waited for {} was recorded too early, {}",
                            At(at),
                            Recorded(fence)
                        )
                    }
                    Some((fence, at)) => {
                        write!(
                            f,
                            "; its last wait, {}, was for a fence of {:?}, which does not cover it",
                            At(at),
                            fence.stream
                        )
                    }
                    None => Ok(()),
                }
            }
            Missing::RecordStream { stream } => {
                write!(f, "`record_stream` of {stream:?} (or `record_use`, or a guard) before the buffer is dropped")?;
                let freed = first.buffer.as_ref().and_then(|buffer| buffer.freed_in());
                match freed.filter(|&span| span != SpanPath::ROOT) {
                    Some(span) => write!(f, ", which happened in {span}"),
                    None => Ok(()),
                }
            }
            Missing::HostWait { covering } => {
                write!(f, "the host has to wait for a fence recorded on {stream:?} after {operation:?}")?;
                match covering {
                    Some(fence) => write!(f, "; there is one, recorded {}", Recorded(fence)),
                    None => Ok(()),
                }
            }
            Missing::LaterFree => f.write_str("the buffer has to be dropped after the last work on it was submitted"),
        }
    }

    /// An address that means an offset in host memory.
    pub(crate) fn host_range(offset: u64, bytes: u64) -> ByteRange {
        ByteRange::new(Address(offset), bytes)
    }
}
