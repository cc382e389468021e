//! A device that is another device, and notes what its calls cost: in host time of the device's clock, and in real time.
//!
//! So the time of a request can be told apart into that of the allocator and that of the driver. On the simulated device
//! the driver's part is what the cost model says, not what simulating it takes.
//!
//! Only the thread that replays calls it; the counters are atomic because a device is shared.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use highwater::device::{
    Address, CallCounters, Device, DeviceResult, FenceHandle, HostMemory, MemoryInfo, Operation, PageHandle,
    Properties, StreamId, Waited,
};

/// The device, metered.
#[derive(Debug)]
pub(crate) struct Meter {
    device: Arc<dyn Device>,
    real_ns: AtomicU64,
    host_ns: AtomicU64,
    page_ns: AtomicU64,
    page_calls: AtomicU64,
}

/// What the calls so far have cost.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Reading {
    /// Real time inside of the device, ns.
    pub(crate) real_ns: u64,
    /// Host time of the device's clock, ns.
    pub(crate) host_ns: u64,
    /// The same for the calls that change what memory is reserved, mapped or held.
    pub(crate) page_ns: u64,
    /// How many of those there were.
    pub(crate) page_calls: u64,
}

impl Meter {
    /// Meters `device`.
    pub(crate) fn new(device: Arc<dyn Device>) -> Arc<Self> {
        let zero = AtomicU64::default;
        Arc::new(Meter { device, real_ns: zero(), host_ns: zero(), page_ns: zero(), page_calls: zero() })
    }

    /// What was measured so far.
    pub(crate) fn read(&self) -> Reading {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Reading {
            real_ns: read(&self.real_ns),
            host_ns: read(&self.host_ns),
            page_ns: read(&self.page_ns),
            page_calls: read(&self.page_calls),
        }
    }

    /// A call that costs host time. Returns what it did and what it took.
    fn call<R>(&self, call: impl FnOnce(&dyn Device) -> R) -> (R, u64) {
        let real = Instant::now();
        let start_ns = self.device.now_ns();
        let done = call(&*self.device);
        let took_ns = self.device.now_ns() - start_ns;
        add(&self.host_ns, took_ns);
        add(&self.real_ns, elapsed_ns(real));
        (done, took_ns)
    }

    /// A call that changes what memory is reserved, mapped or held.
    fn page<R>(&self, call: impl FnOnce(&dyn Device) -> R) -> R {
        let (done, took_ns) = self.call(call);
        add(&self.page_ns, took_ns);
        add(&self.page_calls, 1);
        done
    }
}

fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

fn elapsed_ns(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

impl Device for Meter {
    fn properties(&self) -> &Properties {
        self.device.properties()
    }

    fn now_ns(&self) -> u64 {
        let real = Instant::now();
        let now_ns = self.device.now_ns();
        add(&self.real_ns, elapsed_ns(real));
        now_ns
    }

    fn counters(&self) -> CallCounters {
        self.device.counters()
    }

    fn default_stream(&self) -> StreamId {
        self.device.default_stream()
    }

    fn create_stream(&self, name: &str) -> DeviceResult<StreamId> {
        self.call(|device| device.create_stream(name)).0
    }

    fn destroy_stream(&self, stream: StreamId) -> DeviceResult<()> {
        self.call(|device| device.destroy_stream(stream)).0
    }

    fn record(&self, stream: StreamId) -> DeviceResult<FenceHandle> {
        self.call(|device| device.record(stream)).0
    }

    fn query(&self, fence: FenceHandle) -> DeviceResult<bool> {
        self.call(|device| device.query(fence)).0
    }

    fn wait(&self, stream: StreamId, fence: FenceHandle) -> DeviceResult<()> {
        self.call(|device| device.wait(stream, fence)).0
    }

    fn synchronize(&self, fence: FenceHandle, timeout_ns: Option<u64>) -> DeviceResult<Waited> {
        self.call(|device| device.synchronize(fence, timeout_ns)).0
    }

    fn elapsed_ns(&self, start: FenceHandle, end: FenceHandle) -> DeviceResult<u64> {
        self.call(|device| device.elapsed_ns(start, end)).0
    }

    fn release_fence(&self, fence: FenceHandle) {
        self.call(|device| device.release_fence(fence)).0
    }

    fn begin_capture(&self, stream: StreamId) -> DeviceResult<()> {
        self.call(|device| device.begin_capture(stream)).0
    }

    fn end_capture(&self, stream: StreamId) -> DeviceResult<()> {
        self.call(|device| device.end_capture(stream)).0
    }

    fn is_capturing(&self) -> bool {
        self.call(Device::is_capturing).0
    }

    fn reserve(&self, bytes: u64) -> DeviceResult<Address> {
        self.page(|device| device.reserve(bytes))
    }

    fn unreserve(&self, address: Address, bytes: u64) -> DeviceResult<()> {
        self.page(|device| device.unreserve(address, bytes))
    }

    fn create(&self, bytes: u64) -> DeviceResult<PageHandle> {
        self.page(|device| device.create(bytes))
    }

    fn map(&self, page: PageHandle, address: Address) -> DeviceResult<()> {
        self.page(|device| device.map(page, address))
    }

    fn set_access(&self, address: Address, bytes: u64) -> DeviceResult<()> {
        self.page(|device| device.set_access(address, bytes))
    }

    fn unmap(&self, address: Address, bytes: u64) -> DeviceResult<()> {
        self.page(|device| device.unmap(address, bytes))
    }

    fn release(&self, page: PageHandle) -> DeviceResult<()> {
        self.page(|device| device.release(page))
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        self.call(Device::memory_info).0
    }

    fn launch(&self, stream: StreamId, operation: Operation) -> DeviceResult<()> {
        self.call(|device| device.launch(stream, operation)).0
    }

    fn copy_to_device(
        &self,
        stream: StreamId,
        destination: Address,
        source: &HostMemory,
        offset: u64,
        bytes: u64,
    ) -> DeviceResult<()> {
        self.call(|device| device.copy_to_device(stream, destination, source, offset, bytes)).0
    }

    fn copy_to_host(
        &self,
        stream: StreamId,
        destination: &HostMemory,
        offset: u64,
        source: Address,
        bytes: u64,
    ) -> DeviceResult<()> {
        self.call(|device| device.copy_to_host(stream, destination, offset, source, bytes)).0
    }
}

#[cfg(test)]
mod tests {
    use highwater::device::CostModel;
    use highwater::device::sim::{SimConfig, SimDevice};

    use super::*;

    #[test]
    fn calls_on_memory_are_told_apart_and_cost_what_the_model_says() {
        let meter = Meter::new(SimDevice::new(SimConfig::default()));
        let bytes = meter.properties().granularity_bytes;
        let address = meter.reserve(2 * bytes).unwrap();
        for index in 0..2 {
            let page = meter.create(bytes).unwrap();
            meter.map(page, address.offset(index * bytes)).unwrap();
        }
        // One call, two handles.
        meter.set_access(address, 2 * bytes).unwrap();
        let CostModel { reserve_ns, create_ns, map_ns, set_access_ns, record_ns, .. } = CostModel::default();
        let page_ns = reserve_ns + 2 * (create_ns + map_ns + set_access_ns);
        let reading = meter.read();
        assert_eq!((reading.page_ns, reading.host_ns, reading.page_calls), (page_ns, page_ns, 6));
        assert_eq!(meter.counters().driver_memory_calls(), reading.page_calls);
        meter.record(meter.default_stream()).unwrap();
        let after = meter.read();
        assert_eq!((after.page_ns, after.host_ns, after.page_calls), (page_ns, page_ns + record_ns, 6));
        assert!(after.real_ns > reading.real_ns);
    }
}
