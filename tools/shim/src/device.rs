//! The GPU with the program's streams: what [`CudaDevice`] is, and streams that it does not own.
//!
//! - A stream of the program is adopted: [`create_stream`](Device::create_stream) takes over the one that was named with
//!   [`naming`] in this thread.
//! - A per-thread default stream can be named by its own thread alone. It has a *shadow*, a stream of the device that is
//!   held back by it whenever a fence is recorded. Another thread records behind the legacy default stream instead:
//!   that comes after everything in all streams that are not non-blocking, and per-thread ones are not.
//! - A stream that the program destroys leaves its last fence with one stream for all of them, the *grave*: a fence for
//!   a destroyed stream is recorded there.
//!
//! The map of special streams is held (shared) while a fence is recorded and exclusively while a stream is buried, so no
//! record meets a handle that the program has destroyed.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use highwater::device::cuda::CudaDevice;
use highwater::device::{
    Address, CallCounters, Device, DeviceCall, DeviceError, DeviceResult, FenceHandle, HostMemory, MemoryInfo,
    Operation, PageHandle, ProcessMemory, Properties, StreamId, Waited,
};
use parking_lot::RwLock;

use crate::ffi;

/// A stream that is not recorded under its own id.
#[derive(Clone, Copy, Debug)]
enum Special {
    /// A per-thread default stream, and its shadow.
    PerThread { shadow: StreamId },
    /// Destroyed by the program.
    Buried,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct ProgramDevice {
    gpu: Arc<CudaDevice>,
    special: RwLock<BTreeMap<StreamId, Special>>,
    grave: OnceLock<StreamId>,
}

thread_local! {
    /// The handle of the stream that the next `create_stream` of this thread adopts.
    static NAMED: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Runs `create`, whose `create_stream` adopts `stream`.
pub(crate) fn naming<R>(stream: usize, create: impl FnOnce() -> R) -> R {
    NAMED.set(Some(stream));
    let created = create();
    NAMED.set(None);
    created
}

impl ProgramDevice {
    pub(crate) fn new(gpu: Arc<CudaDevice>) -> Self {
        ProgramDevice { gpu, special: RwLock::default(), grave: OnceLock::new() }
    }

    /// The handle of the context.
    pub(crate) fn context(&self) -> usize {
        ffi::context_handle(self.gpu.context())
    }

    /// Says which stream of the device stands for destroyed ones. Before anything is buried.
    pub(crate) fn set_grave(&self, grave: StreamId) {
        self.grave.set(grave).expect("there is one grave");
    }

    fn grave(&self) -> StreamId {
        *self.grave.get().expect("it is dug before streams are adopted")
    }

    /// The program is about to destroy a stream: its last fence is left with the grave, and its handle is not used again.
    /// It is done past the device, which leaves fences alone while any stream captures: this is one that does not.
    ///
    /// # Errors
    /// When nothing stands for the stream's work now. The device has forgotten the stream all the same.
    pub(crate) fn bury(&self, stream: StreamId, handle: usize) -> DeviceResult<()> {
        let mut special = self.special.write();
        let followed = self
            .follow(self.grave(), handle)
            .or_else(|error| if ffi::synchronize_stream(handle) == ffi::SUCCESS { Ok(()) } else { Err(error) });
        special.insert(stream, Special::Buried);
        let forgotten = self.gpu.destroy_stream(stream);
        followed.and(forgotten)
    }

    /// Holds a stream of the device back until everything that another stream was given so far is complete.
    fn follow(&self, follower: StreamId, leader: usize) -> DeviceResult<()> {
        let follower = self.gpu.cuda_stream(follower).expect("a shadow and the grave live as long as they are needed");
        ffi::hold_back(&follower, leader).map_err(|answer| DeviceError::Driver {
            call: DeviceCall::Record,
            name: format!("CUDA error {answer}"),
            text: "a stream of the program could not be followed".into(),
        })
    }

    fn adopt(&self, stream: usize, name: &str) -> DeviceResult<StreamId> {
        if stream != ffi::PER_THREAD {
            return self.gpu.adopt_stream(&ffi::borrow_stream(self.gpu.context(), stream), name);
        }
        let call = DeviceCall::CreateStream;
        let what = "the driver does not tell the id of the thread's default stream";
        let id = ffi::stream_id(stream).ok_or_else(|| DeviceError::InvalidValue { call, what: what.into() })?;
        let shadow = self.gpu.create_stream(name)?;
        self.special.write().insert(StreamId(id), Special::PerThread { shadow });
        Ok(StreamId(id))
    }

    /// Brings the shadow of a per-thread stream behind it.
    fn shadow_behind(&self, stream: StreamId, shadow: StreamId) -> DeviceResult<()> {
        let own = ffi::stream_id(ffi::PER_THREAD) == Some(stream.0);
        let leader = if own { ffi::PER_THREAD } else { ffi::LEGACY };
        self.follow(shadow, leader)
    }
}

impl Device for ProgramDevice {
    fn properties(&self) -> &Properties {
        self.gpu.properties()
    }

    fn now_ns(&self) -> u64 {
        self.gpu.now_ns()
    }

    fn counters(&self) -> CallCounters {
        self.gpu.counters()
    }

    fn default_stream(&self) -> StreamId {
        self.gpu.default_stream()
    }

    fn create_stream(&self, name: &str) -> DeviceResult<StreamId> {
        match NAMED.take() {
            Some(stream) => self.adopt(stream, name),
            None => self.gpu.create_stream(name),
        }
    }

    fn destroy_stream(&self, stream: StreamId) -> DeviceResult<()> {
        let special = self.special.write().remove(&stream);
        match special {
            None => self.gpu.destroy_stream(stream),
            Some(Special::PerThread { shadow }) => self.gpu.destroy_stream(shadow),
            Some(Special::Buried) => Ok(()),
        }
    }

    fn record(&self, stream: StreamId) -> DeviceResult<FenceHandle> {
        let special = self.special.read();
        match special.get(&stream) {
            None => self.gpu.record(stream),
            Some(Special::Buried) => self.gpu.record(self.grave()),
            Some(&Special::PerThread { shadow }) => {
                if self.gpu.is_capturing() {
                    return Err(DeviceError::CaptureViolation { call: DeviceCall::Record });
                }
                self.shadow_behind(stream, shadow)?;
                self.gpu.record(shadow)
            }
        }
    }

    fn query(&self, fence: FenceHandle) -> DeviceResult<bool> {
        self.gpu.query(fence)
    }

    fn wait(&self, stream: StreamId, fence: FenceHandle) -> DeviceResult<()> {
        self.gpu.wait(stream, fence)
    }

    fn synchronize(&self, fence: FenceHandle, timeout_ns: Option<u64>) -> DeviceResult<Waited> {
        self.gpu.synchronize(fence, timeout_ns)
    }

    fn elapsed_ns(&self, start: FenceHandle, end: FenceHandle) -> DeviceResult<u64> {
        self.gpu.elapsed_ns(start, end)
    }

    fn release_fence(&self, fence: FenceHandle) {
        self.gpu.release_fence(fence);
    }

    fn begin_capture(&self, stream: StreamId) -> DeviceResult<()> {
        self.gpu.begin_capture(stream)
    }

    fn end_capture(&self, stream: StreamId) -> DeviceResult<()> {
        self.gpu.end_capture(stream)
    }

    // The legacy default stream is always adopted, and it tells of captures on per-thread streams too.
    fn is_capturing(&self) -> bool {
        self.gpu.is_capturing()
    }

    fn reserve(&self, bytes: u64) -> DeviceResult<Address> {
        self.gpu.reserve(bytes)
    }

    fn unreserve(&self, address: Address, bytes: u64) -> DeviceResult<()> {
        self.gpu.unreserve(address, bytes)
    }

    fn create(&self, bytes: u64) -> DeviceResult<PageHandle> {
        self.gpu.create(bytes)
    }

    fn map(&self, page: PageHandle, address: Address) -> DeviceResult<()> {
        self.gpu.map(page, address)
    }

    fn set_access(&self, address: Address, bytes: u64) -> DeviceResult<()> {
        self.gpu.set_access(address, bytes)
    }

    fn unmap(&self, address: Address, bytes: u64) -> DeviceResult<()> {
        self.gpu.unmap(address, bytes)
    }

    fn release(&self, page: PageHandle) -> DeviceResult<()> {
        self.gpu.release(page)
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        self.gpu.memory_info()
    }

    fn processes(&self) -> Vec<ProcessMemory> {
        self.gpu.processes()
    }

    fn launch(&self, stream: StreamId, operation: Operation) -> DeviceResult<()> {
        self.gpu.launch(stream, operation)
    }

    fn copy_to_device(
        &self,
        stream: StreamId,
        destination: Address,
        source: &HostMemory,
        offset: u64,
        bytes: u64,
    ) -> DeviceResult<()> {
        self.gpu.copy_to_device(stream, destination, source, offset, bytes)
    }

    fn copy_to_host(
        &self,
        stream: StreamId,
        destination: &HostMemory,
        offset: u64,
        source: Address,
        bytes: u64,
    ) -> DeviceResult<()> {
        self.gpu.copy_to_host(stream, destination, offset, source, bytes)
    }
}
