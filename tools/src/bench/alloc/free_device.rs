//! A device that costs nothing, so that what is measured is the allocator.
//!
//! The simulated device has one lock around all its state, also around its clock: with it a measurement is of that lock,
//! and threads take turns at it. Here only the calls that change what memory is reserved, mapped or held reach it. The
//! clock stands still but for the price of those calls. A fence is a number and complete at once, which is true: no
//! stream is given any work, and none is accepted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use highwater::device::sim::{SimConfig, SimDevice};
use highwater::device::{
    Address, CallCounters, Device, DeviceCall, DeviceError, DeviceResult, FenceHandle, HostMemory, MemoryInfo,
    Operation, PageHandle, Properties, StreamId, Waited,
};

/// The device.
#[derive(Debug)]
pub(super) struct FreeDevice {
    memory: Arc<SimDevice>,
    clock_ns: AtomicU64,
    fences: AtomicU64,
}

impl FreeDevice {
    /// With the memory of a simulated device, whose calls have their price in the clock, and take no time.
    pub(super) fn new() -> Arc<Self> {
        let memory = SimDevice::new(SimConfig { bodies: false, workers: 0, ..SimConfig::default() });
        Arc::new(FreeDevice { memory, clock_ns: AtomicU64::new(0), fences: AtomicU64::new(0) })
    }

    /// A call on memory.
    fn page<R>(&self, call: impl FnOnce(&SimDevice) -> R) -> R {
        let done = call(&self.memory);
        self.clock_ns.fetch_max(self.memory.now_ns(), Ordering::Relaxed);
        done
    }
}

/// What is said to work.
fn refused<T>(call: DeviceCall) -> DeviceResult<T> {
    Err(DeviceError::InvalidValue { call, what: "a device that costs nothing does nothing".to_owned() })
}

impl Device for FreeDevice {
    fn properties(&self) -> &Properties {
        self.memory.properties()
    }

    fn now_ns(&self) -> u64 {
        self.clock_ns.load(Ordering::Relaxed)
    }

    fn counters(&self) -> CallCounters {
        self.memory.counters()
    }

    fn default_stream(&self) -> StreamId {
        self.memory.default_stream()
    }

    fn create_stream(&self, name: &str) -> DeviceResult<StreamId> {
        self.memory.create_stream(name)
    }

    fn destroy_stream(&self, stream: StreamId) -> DeviceResult<()> {
        self.memory.destroy_stream(stream)
    }

    fn record(&self, _: StreamId) -> DeviceResult<FenceHandle> {
        Ok(FenceHandle(self.fences.fetch_add(1, Ordering::Relaxed)))
    }

    fn query(&self, _: FenceHandle) -> DeviceResult<bool> {
        Ok(true)
    }

    fn wait(&self, _: StreamId, _: FenceHandle) -> DeviceResult<()> {
        Ok(())
    }

    fn synchronize(&self, _: FenceHandle, _: Option<u64>) -> DeviceResult<Waited> {
        Ok(Waited::Complete)
    }

    fn elapsed_ns(&self, _: FenceHandle, _: FenceHandle) -> DeviceResult<u64> {
        Ok(0)
    }

    fn release_fence(&self, _: FenceHandle) {}

    fn begin_capture(&self, _: StreamId) -> DeviceResult<()> {
        refused(DeviceCall::BeginCapture)
    }

    fn end_capture(&self, _: StreamId) -> DeviceResult<()> {
        refused(DeviceCall::EndCapture)
    }

    fn is_capturing(&self) -> bool {
        false
    }

    fn reserve(&self, bytes: u64) -> DeviceResult<Address> {
        self.page(|memory| memory.reserve(bytes))
    }

    fn unreserve(&self, address: Address, bytes: u64) -> DeviceResult<()> {
        self.page(|memory| memory.unreserve(address, bytes))
    }

    fn create(&self, bytes: u64) -> DeviceResult<PageHandle> {
        self.page(|memory| memory.create(bytes))
    }

    fn map(&self, page: PageHandle, address: Address) -> DeviceResult<()> {
        self.page(|memory| memory.map(page, address))
    }

    fn set_access(&self, address: Address, bytes: u64) -> DeviceResult<()> {
        self.page(|memory| memory.set_access(address, bytes))
    }

    fn unmap(&self, address: Address, bytes: u64) -> DeviceResult<()> {
        self.page(|memory| memory.unmap(address, bytes))
    }

    fn release(&self, page: PageHandle) -> DeviceResult<()> {
        self.page(|memory| memory.release(page))
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        self.memory.memory_info()
    }

    fn launch(&self, _: StreamId, _: Operation) -> DeviceResult<()> {
        refused(DeviceCall::Launch)
    }

    fn copy_to_device(&self, _: StreamId, _: Address, _: &HostMemory, _: u64, _: u64) -> DeviceResult<()> {
        refused(DeviceCall::CopyToDevice)
    }

    fn copy_to_host(&self, _: StreamId, _: &HostMemory, _: u64, _: Address, _: u64) -> DeviceResult<()> {
        refused(DeviceCall::CopyToHost)
    }
}

#[cfg(test)]
mod tests {
    use highwater::device::{Cost, CostModel};
    use highwater::{Allocator, Settings};

    use super::*;

    #[test]
    fn memory_has_its_price_and_nothing_else_moves_the_clock() {
        let device = FreeDevice::new();
        let stream = device.create_stream("a").unwrap();
        for _ in 0..3 {
            let fence = device.record(stream).unwrap();
            device.wait(stream, fence).unwrap();
            assert!(device.query(fence).unwrap());
        }
        assert_eq!(device.now_ns(), 0);
        let bytes = device.properties().granularity_bytes;
        let before_ns = device.memory.now_ns();
        device.reserve(bytes).unwrap();
        assert_eq!(device.now_ns() - before_ns, CostModel::default().reserve_ns);
        assert_eq!(device.counters().driver_memory_calls(), 1);
    }

    /// A fence of this device says nothing about work, so there must be none.
    #[test]
    fn work_is_refused() {
        let allocator = Allocator::with_settings(FreeDevice::new(), Settings::default()).unwrap();
        let stream = allocator.create_stream("a").unwrap();
        let buffer = stream.alloc::<u8>(64).unwrap();
        let told = stream.launch("write", Cost::exact(1)).write(&buffer).submit().unwrap_err().to_string();
        assert!(told.contains("costs nothing"), "{told}");
        assert!(stream.begin_capture().is_err());
    }
}
