//! The one trait that stands between the allocator and a GPU.

use std::any::Any;
use std::fmt;

use crate::{Address, DeviceResult, HostMemory, Operation};

/// A stream, named by the driver's own id: unique within the process, never used twice, and not a handle, so a stream
/// that is destroyed and another that is created at the same handle are never taken for each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId(pub u64);

/// A point in a stream's queue, recorded once when it is made. It is released by [`Device::release_fence`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FenceHandle(pub u64);

/// A piece of physical device memory. It is mapped whole, never split or merged, and may be mapped at two addresses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageHandle(pub u64);

/// What a device is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Properties {
    /// Name for people, e.g. `simulated H200`.
    pub name: String,
    /// Index of the device in its process or cluster.
    pub ordinal: u32,
    /// Physical memory, bytes.
    pub total_bytes: u64,
    /// Sizes of handles and alignment of mappings are multiples of this, bytes.
    pub granularity_bytes: u64,
}

/// Physical memory at one moment, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryInfo {
    /// Bytes that no handle holds.
    pub free: u64,
    /// Bytes in all.
    pub total: u64,
}

/// What a process has of a device's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessMemory {
    /// Number of the process, as the driver tells it: from inside of a container it may be another one than the process
    /// itself knows.
    pub pid: u32,
    /// Its memory, with its context and all libraries, bytes.
    pub bytes: u64,
    /// Whether it is known to be this process.
    pub is_own: bool,
}

/// How a bounded host wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Waited {
    /// The fence is complete.
    Complete,
    /// The time given was over first; the fence may complete later.
    TimedOut,
}

macro_rules! device_calls {
    ($($variant:ident => $name:literal),* $(,)?) => {
        /// The calls of [`Device`] that reach the driver: the unit of fault injection and of counting.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum DeviceCall {
            $(#[doc = concat!("`", $name, "`.")] $variant,)*
        }

        impl DeviceCall {
            /// Every call, in declaration order.
            pub const ALL: &'static [DeviceCall] = &[$(DeviceCall::$variant,)*];

            /// The name of the [`Device`] method.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(DeviceCall::$variant => $name,)* }
            }
        }
    };
}

device_calls! {
    CreateStream => "create_stream",
    DestroyStream => "destroy_stream",
    Record => "record",
    Query => "query",
    Wait => "wait",
    Synchronize => "synchronize",
    Elapsed => "elapsed_ns",
    BeginCapture => "begin_capture",
    EndCapture => "end_capture",
    Reserve => "reserve",
    Unreserve => "unreserve",
    Create => "create",
    Map => "map",
    SetAccess => "set_access",
    Unmap => "unmap",
    Release => "release",
    MemoryInfo => "memory_info",
    Launch => "launch",
    CopyToDevice => "copy_to_device",
    CopyToHost => "copy_to_host",
    Collective => "collective",
}

impl fmt::Display for DeviceCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How often each call reached the driver since the device was made, and how long the host stood still for it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CallCounters {
    pub(crate) calls: [u64; DeviceCall::ALL.len()],
    /// Calls that blocked the host until device work completed: `synchronize` on an incomplete fence, pageable copies.
    pub host_synchronizations: u64,
    /// Host time spent in them, ns.
    pub host_blocked_ns: u64,
    /// Fences given back. Not a call that can fail, so it is none of [`DeviceCall`].
    pub fences_released: u64,
}

impl CallCounters {
    /// How often `call` was made (a call that failed counts too).
    #[must_use]
    pub fn of(&self, call: DeviceCall) -> u64 {
        self.calls[call as usize]
    }

    /// Calls that change what memory is reserved, mapped or held: none of them belongs in a steady state.
    #[must_use]
    pub fn driver_memory_calls(&self) -> u64 {
        use DeviceCall::{Create, Map, Release, Reserve, SetAccess, Unmap, Unreserve};
        [Reserve, Unreserve, Create, Map, SetAccess, Unmap, Release].iter().map(|&call| self.of(call)).sum()
    }

    pub(crate) fn count(&mut self, call: DeviceCall) {
        self.calls[call as usize] += 1;
    }
}

/// A GPU, as far as the allocator needs one.
///
/// Rules that every implementation keeps, and that `tests/contract.rs` checks:
///
/// - Work on one stream executes in the order of submission; work on two streams is ordered only by
///   [`record`](Device::record) and [`wait`](Device::wait).
/// - Nothing but [`synchronize`](Device::synchronize) and copies from or to pageable host memory waits for device work.
/// - A call that returns an error has changed nothing, except that a fault makes every later call fail with
///   [`DeviceError::Poisoned`](crate::DeviceError::Poisoned). A fence whose work failed never counts as complete.
/// - While a stream of the device captures, `record`, `query`, `synchronize` and `wait` are refused with
///   [`DeviceError::CaptureViolation`](crate::DeviceError::CaptureViolation), and the capture is spoilt by the attempt:
///   ask [`is_capturing`](Device::is_capturing) first.
///
/// All sizes are bytes and all times are ns. Whoever needs one kind of device casts down: a `dyn Device` is `dyn Any`.
pub trait Device: Any + Send + Sync + fmt::Debug {
    /// What this device is.
    fn properties(&self) -> &Properties;

    /// The host's clock, ns. Monotonic; on the simulated device it is virtual.
    fn now_ns(&self) -> u64;

    /// Calls so far.
    fn counters(&self) -> CallCounters;

    /// The stream that exists without being created.
    fn default_stream(&self) -> StreamId;

    /// A new stream; `name` is for people (timelines, errors).
    fn create_stream(&self, name: &str) -> DeviceResult<StreamId>;

    /// Forgets a stream. Work already submitted to it still executes.
    fn destroy_stream(&self, stream: StreamId) -> DeviceResult<()>;

    /// A fence after everything submitted to `stream` so far.
    fn record(&self, stream: StreamId) -> DeviceResult<FenceHandle>;

    /// Whether the host may regard the fence's work as complete. Never blocks.
    fn query(&self, fence: FenceHandle) -> DeviceResult<bool>;

    /// Work submitted to `stream` from now on executes after `fence`. Never blocks the host.
    fn wait(&self, stream: StreamId, fence: FenceHandle) -> DeviceResult<()>;

    /// Blocks the host until `fence` is complete, or `timeout_ns` is over.
    fn synchronize(&self, fence: FenceHandle, timeout_ns: Option<u64>) -> DeviceResult<Waited>;

    /// Device time from `start` to `end`, ns (0 when `end` came first).
    ///
    /// # Errors
    /// When one of them is not complete.
    fn elapsed_ns(&self, start: FenceHandle, end: FenceHandle) -> DeviceResult<u64>;

    /// Gives a fence back. Waits already submitted on it keep their meaning.
    fn release_fence(&self, fence: FenceHandle);

    /// Starts recording `stream`'s work into a graph instead of executing it.
    fn begin_capture(&self, stream: StreamId) -> DeviceResult<()>;

    /// Ends the capture of `stream`.
    ///
    /// # Errors
    /// [`DeviceError::CaptureViolation`](crate::DeviceError::CaptureViolation) when a forbidden call spoilt it.
    fn end_capture(&self, stream: StreamId) -> DeviceResult<()>;

    /// Whether any stream of the device captures. Harmless during a capture.
    fn is_capturing(&self) -> bool;

    /// Reserves `bytes` of address space, aligned to the granularity. Nothing is mapped there yet.
    fn reserve(&self, bytes: u64) -> DeviceResult<Address>;

    /// Gives reserved address space back; nothing may be mapped in it.
    fn unreserve(&self, address: Address, bytes: u64) -> DeviceResult<()>;

    /// Takes `bytes` of physical memory (a multiple of the granularity). The content is undefined.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`](crate::DeviceError::OutOfMemory).
    fn create(&self, bytes: u64) -> DeviceResult<PageHandle>;

    /// Maps a handle, whole, at `address` inside reserved space. Not accessible before [`set_access`](Device::set_access).
    fn map(&self, page: PageHandle, address: Address) -> DeviceResult<()>;

    /// Makes `[address, address + bytes)` readable and writable; it must consist of whole mappings.
    fn set_access(&self, address: Address, bytes: u64) -> DeviceResult<()>;

    /// Removes the mappings that make up `[address, address + bytes)`. The host must have seen all work on them complete.
    fn unmap(&self, address: Address, bytes: u64) -> DeviceResult<()>;

    /// Gives a handle back; its memory is free when its last mapping is gone.
    fn release(&self, page: PageHandle) -> DeviceResult<()>;

    /// Free and total physical memory.
    fn memory_info(&self) -> DeviceResult<MemoryInfo>;

    /// The processes that have memory of the device; none where nothing tells. It may take milliseconds, and is no call of
    /// the driver's: nothing is counted, and nothing fails.
    fn processes(&self) -> Vec<ProcessMemory> {
        Vec::new()
    }

    /// Submits an operation.
    fn launch(&self, stream: StreamId, operation: Operation) -> DeviceResult<()>;

    /// Copies `bytes` from `source` (from its byte `offset` on) to `destination`. Pinned memory: asynchronous, and the
    /// memory must not be changed before the copy is complete. Pageable memory: blocks the host until it is.
    fn copy_to_device(
        &self,
        stream: StreamId,
        destination: Address,
        source: &HostMemory,
        offset: u64,
        bytes: u64,
    ) -> DeviceResult<()>;

    /// Copies `bytes` from `source` into `destination` (from its byte `offset` on), blocking as
    /// [`copy_to_device`](Device::copy_to_device) does.
    fn copy_to_host(
        &self,
        stream: StreamId,
        destination: &HostMemory,
        offset: u64,
        source: Address,
        bytes: u64,
    ) -> DeviceResult<()>;
}
