//! The simulated device, with a moment inside a call at which another thread may do something.

use std::fmt;
use std::sync::{Arc, Mutex};

use highwater::device::sim::SimDevice;
use highwater::device::{
    Address, CallCounters, Device, DeviceCall, DeviceResult, FenceHandle, HostMemory, MemoryInfo, Operation,
    PageHandle, Properties, StreamId, Waited,
};

type Hook = Box<dyn FnOnce() + Send>;

/// The device.
pub(super) struct SteppedDevice {
    inner: Arc<SimDevice>,
    hook: Mutex<Option<(DeviceCall, Hook)>>,
}

impl SteppedDevice {
    pub(super) fn new(inner: Arc<SimDevice>) -> Arc<Self> {
        Arc::new(SteppedDevice { inner, hook: Mutex::new(None) })
    }

    /// Another thread runs `hook` at the next `call`, before the device acts; the caller stands still meanwhile.
    pub(super) fn arm(&self, call: DeviceCall, hook: impl FnOnce() + Send + 'static) {
        *self.hook.lock().expect("no hook panics under the lock") = Some((call, Box::new(hook)));
    }

    pub(super) fn is_armed(&self) -> bool {
        self.hook.lock().expect("no hook panics under the lock").is_some()
    }

    /// Forgets the hook; what it owned is dropped here.
    pub(super) fn disarm(&self) {
        let hook = self.hook.lock().expect("no hook panics under the lock").take();
        drop(hook);
    }

    fn reach(&self, call: DeviceCall) {
        let due = self.hook.lock().expect("no hook panics under the lock").take_if(|(at, _)| *at == call);
        if let Some((_, hook)) = due {
            std::thread::scope(|scope| scope.spawn(hook).join()).expect("a free does not panic");
        }
    }
}

impl fmt::Debug for SteppedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

macro_rules! pass_on {
    ($(fn $name:ident(&self $(, $argument:ident: $kind:ty)*) $(-> $answer:ty)? $(, $call:ident)?;)*) => {
        $(fn $name(&self $(, $argument: $kind)*) $(-> $answer)? {
            $(self.reach(DeviceCall::$call);)?
            self.inner.$name($($argument),*)
        })*
    };
}

impl Device for SteppedDevice {
    pass_on! {
        fn properties(&self) -> &Properties;
        fn now_ns(&self) -> u64;
        fn counters(&self) -> CallCounters;
        fn default_stream(&self) -> StreamId;
        fn release_fence(&self, fence: FenceHandle);
        fn is_capturing(&self) -> bool;
        fn create_stream(&self, name: &str) -> DeviceResult<StreamId>;
        fn destroy_stream(&self, stream: StreamId) -> DeviceResult<()>;
        fn record(&self, stream: StreamId) -> DeviceResult<FenceHandle>;
        fn query(&self, fence: FenceHandle) -> DeviceResult<bool>;
        fn wait(&self, stream: StreamId, fence: FenceHandle) -> DeviceResult<()>;
        fn synchronize(&self, fence: FenceHandle, timeout_ns: Option<u64>) -> DeviceResult<Waited>;
        fn elapsed_ns(&self, start: FenceHandle, end: FenceHandle) -> DeviceResult<u64>;
        fn begin_capture(&self, stream: StreamId) -> DeviceResult<()>;
        fn end_capture(&self, stream: StreamId) -> DeviceResult<()>;
        fn reserve(&self, bytes: u64) -> DeviceResult<Address>;
        fn unreserve(&self, address: Address, bytes: u64) -> DeviceResult<()>;
        fn create(&self, bytes: u64) -> DeviceResult<PageHandle>, Create;
        fn map(&self, page: PageHandle, address: Address) -> DeviceResult<()>, Map;
        fn set_access(&self, address: Address, bytes: u64) -> DeviceResult<()>, SetAccess;
        fn unmap(&self, address: Address, bytes: u64) -> DeviceResult<()>, Unmap;
        fn release(&self, page: PageHandle) -> DeviceResult<()>, Release;
        fn memory_info(&self) -> DeviceResult<MemoryInfo>;
        fn launch(&self, stream: StreamId, operation: Operation) -> DeviceResult<()>;
        fn copy_to_device(
            &self, stream: StreamId, destination: Address, source: &HostMemory, offset: u64, bytes: u64
        ) -> DeviceResult<()>;
        fn copy_to_host(
            &self, stream: StreamId, destination: &HostMemory, offset: u64, source: Address, bytes: u64
        ) -> DeviceResult<()>;
    }
}
