//! A device that lets a test step in at a call.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use highwater::device::sim::SimDevice;
use highwater::device::{
    Address, CallCounters, Device, DeviceCall, DeviceResult, FenceHandle, HostMemory, MemoryInfo, Operation,
    PageHandle, ProcessMemory, Properties, StreamId, Waited,
};

type Hook = Box<dyn FnOnce() + Send>;

/// Where in a call a closure runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moment {
    Before,
    After,
}

/// The simulated device, with a closure that runs once, before or after the next call of one kind.
pub(crate) struct HookedDevice {
    inner: Arc<SimDevice>,
    hook: Mutex<Option<(DeviceCall, Moment, Hook)>>,
    /// Runs each time that a fence turns out not to be complete.
    incomplete: Mutex<Option<Box<dyn FnMut() + Send>>>,
    released: AtomicU64,
}

impl HookedDevice {
    pub(crate) fn new(inner: Arc<SimDevice>) -> Arc<Self> {
        Arc::new(HookedDevice {
            inner,
            hook: Mutex::new(None),
            incomplete: Mutex::new(None),
            released: AtomicU64::new(0),
        })
    }

    /// Fences recorded and not given back, when no record failed.
    pub(crate) fn live_fences(&self) -> u64 {
        self.inner.counters().of(DeviceCall::Record) - self.released.load(Ordering::Relaxed)
    }

    /// Runs `hook` in the next `call`, before the device acts.
    pub(crate) fn before(&self, call: DeviceCall, hook: impl FnOnce() + Send + 'static) {
        *self.hook.lock().unwrap() = Some((call, Moment::Before, Box::new(hook)));
    }

    /// Runs `hook` in the next `call`, after the device has acted and before the caller knows.
    pub(crate) fn after(&self, call: DeviceCall, hook: impl FnOnce() + Send + 'static) {
        *self.hook.lock().unwrap() = Some((call, Moment::After, Box::new(hook)));
    }

    /// Runs `hook` after each query whose answer is no, from now on.
    pub(crate) fn when_incomplete(&self, hook: impl FnMut() + Send + 'static) {
        *self.incomplete.lock().unwrap() = Some(Box::new(hook));
    }

    /// Whether the closure has run.
    pub(crate) fn has_run(&self) -> bool {
        self.hook.lock().unwrap().is_none()
    }

    fn reached(&self, call: DeviceCall, moment: Moment) {
        let hook = self.hook.lock().unwrap().take_if(|(at, when, _)| (*at, *when) == (call, moment));
        if let Some((.., hook)) = hook {
            hook();
        }
    }
}

impl fmt::Debug for HookedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

macro_rules! pass_on {
    ($($call:ident: fn $name:ident(&self $(, $argument:ident: $kind:ty)*) -> $answer:ty;)*) => {
        $(fn $name(&self $(, $argument: $kind)*) -> $answer {
            self.reached(DeviceCall::$call, Moment::Before);
            let answer = self.inner.$name($($argument),*);
            self.reached(DeviceCall::$call, Moment::After);
            answer
        })*
    };
}

impl Device for HookedDevice {
    fn properties(&self) -> &Properties {
        self.inner.properties()
    }

    fn now_ns(&self) -> u64 {
        self.inner.now_ns()
    }

    fn counters(&self) -> CallCounters {
        self.inner.counters()
    }

    fn default_stream(&self) -> StreamId {
        self.inner.default_stream()
    }

    fn release_fence(&self, fence: FenceHandle) {
        self.released.fetch_add(1, Ordering::Relaxed);
        self.inner.release_fence(fence);
    }

    fn is_capturing(&self) -> bool {
        self.inner.is_capturing()
    }

    fn query(&self, fence: FenceHandle) -> DeviceResult<bool> {
        self.reached(DeviceCall::Query, Moment::Before);
        let complete = self.inner.query(fence);
        self.reached(DeviceCall::Query, Moment::After);
        if complete == Ok(false)
            && let Some(hook) = &mut *self.incomplete.lock().unwrap()
        {
            hook();
        }
        complete
    }

    fn processes(&self) -> Vec<ProcessMemory> {
        self.inner.processes()
    }

    pass_on! {
        CreateStream: fn create_stream(&self, name: &str) -> DeviceResult<StreamId>;
        DestroyStream: fn destroy_stream(&self, stream: StreamId) -> DeviceResult<()>;
        Record: fn record(&self, stream: StreamId) -> DeviceResult<FenceHandle>;
        Wait: fn wait(&self, stream: StreamId, fence: FenceHandle) -> DeviceResult<()>;
        Synchronize: fn synchronize(&self, fence: FenceHandle, timeout_ns: Option<u64>) -> DeviceResult<Waited>;
        Elapsed: fn elapsed_ns(&self, start: FenceHandle, end: FenceHandle) -> DeviceResult<u64>;
        BeginCapture: fn begin_capture(&self, stream: StreamId) -> DeviceResult<()>;
        EndCapture: fn end_capture(&self, stream: StreamId) -> DeviceResult<()>;
        Reserve: fn reserve(&self, bytes: u64) -> DeviceResult<Address>;
        Unreserve: fn unreserve(&self, address: Address, bytes: u64) -> DeviceResult<()>;
        Create: fn create(&self, bytes: u64) -> DeviceResult<PageHandle>;
        Map: fn map(&self, page: PageHandle, address: Address) -> DeviceResult<()>;
        SetAccess: fn set_access(&self, address: Address, bytes: u64) -> DeviceResult<()>;
        Unmap: fn unmap(&self, address: Address, bytes: u64) -> DeviceResult<()>;
        Release: fn release(&self, page: PageHandle) -> DeviceResult<()>;
        MemoryInfo: fn memory_info(&self) -> DeviceResult<MemoryInfo>;
        Launch: fn launch(&self, stream: StreamId, operation: Operation) -> DeviceResult<()>;
        CopyToDevice: fn copy_to_device(
            &self, stream: StreamId, destination: Address, source: &HostMemory, offset: u64, bytes: u64
        ) -> DeviceResult<()>;
        CopyToHost: fn copy_to_host(
            &self, stream: StreamId, destination: &HostMemory, offset: u64, source: Address, bytes: u64
        ) -> DeviceResult<()>;
    }
}
