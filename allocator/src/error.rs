//! What can go wrong: one enum for each family of calls, and one that holds them all.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use highwater_device::{DeviceError, DeviceResult};

/// Any error of this crate.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A request for memory.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// Work on a stream.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A raw pointer.
    #[error(transparent)]
    Pointer(#[from] PointerError),
    /// A setting.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

/// Why a request for memory failed.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// Every rung of the ladder was tried.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),
    /// The number of elements times their size does not fit 64 bits.
    #[error("{elements} elements of {element_bytes} bytes are more than 2^64 bytes")]
    TooLarge {
        /// Elements asked for.
        elements: usize,
        /// Bytes of one.
        element_bytes: usize,
    },
    /// A device call failed for another reason than memory.
    #[error("allocating {requested} bytes: {source}{}", Note(source))]
    Device {
        /// Bytes asked for.
        requested: u64,
        /// What the device said.
        source: DeviceError,
    },
}

/// Why work on a stream failed.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// A device call failed.
    #[error("{doing}: {source}{}", Note(source))]
    Device {
        /// What was being done, and on which stream.
        doing: String,
        /// What the device said.
        source: DeviceError,
    },
    /// In launch-blocking mode: what the call submitted was executed, and failed.
    #[error("operation {operation:?} on {stream:?} failed: {source}")]
    Failed {
        /// The operation.
        operation: String,
        /// The stream's name.
        stream: String,
        /// What the device said; boxed, so that the other errors stay small.
        source: Box<DeviceError>,
    },
    /// Something that would break a capture was asked for while a stream of the device captures.
    #[error("{doing} is not possible while a stream of the device captures: do it before the capture begins")]
    Capturing {
        /// What was asked for.
        doing: String,
    },
    /// Lengths that have to be equal are not.
    #[error("{what}: {left} and {right} elements")]
    LengthMismatch {
        /// Which two.
        what: &'static str,
        /// The first.
        left: usize,
        /// The second.
        right: usize,
    },
    /// Host memory is still read or written by a copy.
    #[error("the host buffer is still used by a copy that has not completed: wait for it first (HostBuffer::wait)")]
    HostBufferBusy,
    /// Work did not complete in the time given.
    #[error("{doing}: not complete after {waited:?}")]
    TimedOut {
        /// What was waited for.
        doing: String,
        /// How long.
        waited: Duration,
    },
    /// Memory was to be used behind work that may wait for more than this GPU, and that did not complete in time. Nothing
    /// was submitted.
    #[error(
        "{doing}: that work comes after open stream {open:?}, which may wait for another rank or the host, and is not \
         complete after {waited:?}. No wait is put behind it: order the streams with fences of the program \
         (Stream::record, Stream::wait), or allocate the memory on the stream that uses it first"
    )]
    HeldUp {
        /// What was to be ordered, and after which stream.
        doing: String,
        /// The open stream that holds the work up.
        open: String,
        /// How long the host waited for it.
        waited: Duration,
    },
    /// A fence of another stream than the one that is named.
    #[error("the fence was not recorded on {stream:?}")]
    OtherStream {
        /// The stream that is named.
        stream: String,
    },
    /// Something of a GPU was asked for where the device is none.
    #[error("{doing} takes a GPU, and the device is {device:?}: open a `CudaDevice`")]
    NotCuda {
        /// What was asked for.
        doing: String,
        /// The name of the device.
        device: String,
    },
    /// A stream of another context of the driver.
    #[error("stream {stream:?} belongs to another context than the device: open the device with `with_context`")]
    OtherContext {
        /// The stream.
        stream: String,
    },
    /// The per-thread default stream, which is another stream in each thread.
    #[error("stream {stream:?} is the per-thread default stream, another one in each thread: make a stream for it")]
    PerThreadStream {
        /// The stream.
        stream: String,
    },
    /// Things of two allocators do not mix.
    #[error("{what} belongs to another allocator")]
    OtherAllocator {
        /// What does.
        what: &'static str,
    },
}

/// Adds what was being done to a device's error.
pub(crate) trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, StreamError>;
}

impl<T> Doing<T> for DeviceResult<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T, StreamError> {
        self.map_err(|source| StreamError::Device { doing: what(), source })
    }
}

/// What is added to a device's error that work of an earlier call caused: who did it, and how to find the place. All
/// errors of this crate say it in these words.
struct Note<'a>(&'a DeviceError);

impl fmt::Display for Note<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.failed_work().is_none() {
            return Ok(());
        }
        f.write_str("; this error is asynchronous: ")?;
        match self.0.failed_operation() {
            Some((operation, stream)) => write!(f, "operation {operation:?} on {stream:?}, submitted earlier, failed")?,
            None => f.write_str("work submitted earlier failed")?,
        }
        write!(
            f,
            ", and the call that returns the error only noticed it. Set launch_blocking:True in {} and the call that \
             submits the failing work returns the error",
            crate::settings::VARIABLE
        )
    }
}

/// Why a raw pointer was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PointerError {
    /// No raw block starts at the address.
    #[error("no raw block starts at {address:#x}: it was freed before, or never allocated here")]
    Unknown {
        /// The address.
        address: u64,
    },
}

/// Why settings were refused. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// Not `key:value`.
    #[error("setting {text:?}: expected key:value, settings separated by commas")]
    Syntax {
        /// What stands there.
        text: String,
    },
    /// No such key.
    #[error("unknown setting {key:?}; known are {known}")]
    UnknownKey {
        /// The key.
        key: String,
        /// All keys.
        known: String,
    },
    /// A value outside of what is valid.
    #[error("setting {key}: {value:?} is not valid; expected {expected}")]
    Value {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
        /// What is valid.
        expected: &'static str,
    },
    /// The device did not tell its memory.
    #[error("asking the device for its memory: {source}")]
    Device {
        /// What it said.
        source: DeviceError,
    },
}

/// Bytes by stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamBytes {
    /// The stream's name.
    pub stream: String,
    /// Bytes.
    pub bytes: u64,
}

/// Live blocks that one line of the program asked for on one stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LiveSite {
    /// The stream's name.
    pub stream: String,
    /// The source file.
    pub file: &'static str,
    /// The line.
    pub line: u32,
    /// Blocks.
    pub blocks: u64,
    /// Their bytes, as asked for.
    pub bytes: u64,
}

/// Why a request failed, as `highwater why` tells it of a snapshot taken at the failure: the cause to look at first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cause {
    /// What it is called, e.g. `F1`.
    pub id: String,
    /// What it means, in a few words.
    pub title: &'static str,
    /// Bytes that it accounts for.
    pub bytes: u64,
    /// Whether the request would have fitted without it.
    pub sufficient: bool,
    /// What was measured.
    pub evidence: String,
    /// What to do about it, with its bytes.
    pub advice: Option<String>,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cause { id, title, bytes, sufficient, evidence, advice } = self;
        let sufficient = if *sufficient { "sufficient, " } else { "" };
        write!(f, "cause {id}, {title} ({sufficient}explains {}): {evidence}", Size(*bytes))?;
        advice.as_ref().map_or(Ok(()), |advice| write!(f, "; to do: {advice}"))
    }
}

/// What was where when a request could not be met. All sizes are bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutOfMemory {
    /// Asked for.
    pub requested: u64,
    /// The stream that asked.
    pub stream: String,
    /// The most that the allocator may hold: the device's memory, or the limit that was set.
    pub capacity: u64,
    /// Memory of the device.
    pub device_total: u64,
    /// Held by the allocator: `live + rounding + pending + cached + stray`.
    pub physical: u64,
    /// In use, as asked for.
    pub live: u64,
    /// The same by the stream that it was asked for on.
    pub live_by_stream: Vec<StreamBytes>,
    /// The lines that hold the most of it, the largest first, at most five: what to look at when the request that failed
    /// is not the one that took the memory.
    pub live_sites: Vec<LiveSite>,
    /// Live blocks that were not looked at for `live_sites`: those beyond the first 65536.
    pub live_blocks_unseen: u64,
    /// In use beyond what was asked for.
    pub rounding: u64,
    /// Freed, and still used by other streams.
    pub pending: u64,
    /// The same by the stream that is waited for (a block that waits for two counts at both).
    pub pending_by_stream: Vec<StreamBytes>,
    /// Free in the heaps.
    pub cached: u64,
    /// The same by the stream whose heap it is.
    pub cached_by_stream: Vec<StreamBytes>,
    /// In handles that the device would not take back so far.
    pub stray: u64,
    /// The largest free piece of the stream that asked.
    pub largest_free: u64,
    /// Free on the device, if it could be asked.
    pub device_free: Option<u64>,
    /// Why the last attempt to map more failed.
    pub refused: String,
    /// The snapshot that was written at the error, or why it could not be
    /// ([`black_box`](crate::SettingsBuilder::black_box)).
    pub snapshot: Option<Result<PathBuf, String>>,
    /// Why, if that can be told (feature `why`; of the first 16 failures of an allocator).
    pub cause: Option<Cause>,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by_stream = |list: &[StreamBytes]| {
            let parts: Vec<String> =
                list.iter().map(|entry| format!("{} {}", entry.stream, Size(entry.bytes))).collect();
            if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
        };
        let limit = match self.capacity < self.device_total {
            true => format!(", {} allowed,", Size(self.capacity)),
            false => String::new(),
        };
        write!(
            f,
            "out of memory: {} requested on stream {:?}; of {} capacity{} {} are live{}, {} rounding, {} pending{}, \
             {} cached{} (largest free piece of the stream {})",
            Size(self.requested),
            self.stream,
            Size(self.device_total.max(self.capacity)),
            limit,
            Size(self.live),
            by_stream(&self.live_by_stream),
            Size(self.rounding),
            Size(self.pending),
            by_stream(&self.pending_by_stream),
            Size(self.cached),
            by_stream(&self.cached_by_stream),
            Size(self.largest_free),
        )?;
        if self.stray > 0 {
            write!(f, ", {} in handles that the device would not take back", Size(self.stray))?;
        }
        if let Some(free) = self.device_free {
            write!(f, "; {} free on the device", Size(free))?;
        }
        write!(f, "; {}", self.refused)?;
        self.write_sites(f)?;
        if let Some(cause) = &self.cause {
            write!(f, "; {cause}")?;
        }
        match &self.snapshot {
            Some(Ok(path)) => write!(f, "; highwater why {} tells more", path.display()),
            Some(Err(why)) => write!(f, "; no snapshot of it could be written: {why}"),
            None => Ok(()),
        }
    }
}

impl OutOfMemory {
    fn write_sites(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, LiveSite { stream, file, line, blocks, bytes }) in self.live_sites.iter().enumerate() {
            let before = if index == 0 { "; most of what is live was asked for at" } else { "," };
            let plural = if *blocks == 1 { "" } else { "s" };
            write!(f, "{before} {file}:{line} ({} in {blocks} block{plural} on {stream})", Size(*bytes))?;
        }
        if self.live_blocks_unseen > 0 {
            write!(f, " ({} more blocks were not looked at)", self.live_blocks_unseen)?;
        }
        Ok(())
    }
}

/// Bytes for people: exact below 1 KiB, else with three digits.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
        if self.0 < 1024 {
            return write!(f, "{} B", self.0);
        }
        let (mut value, mut unit) = (self.0 as f64 / 1024.0, 0);
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        write!(f, "{value:.2} {}", UNITS[unit])
    }
}
