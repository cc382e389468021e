//! A device around another one: it passes every call on, and tells the sanitizer what it means.
//!
//! An operation takes its place in its stream before the call, so that no fence recorded meanwhile by another thread
//! covers less than the device's does; what it touches is noted when the call has succeeded. A fence's clock is read
//! before its record, and a wait counts after it was submitted.

use std::fmt;
use std::sync::Arc;

use highwater_device::{
    Access, Address, ByteRange, CallCounters, Device, DeviceResult, FenceHandle, HostMemory, MemoryInfo, Operation,
    PageHandle, ProcessMemory, Properties, StreamId, Waited,
};

use crate::here::Here;
use crate::sanitizer::Sanitizer;
use crate::state::{Target, Touch};

/// A device whose calls the sanitizer sees. It is not of the kind of the device inside: cast that one down.
pub struct Watched {
    inner: Arc<dyn Device>,
    sanitizer: Sanitizer,
}

impl Watched {
    pub(crate) fn new(inner: Arc<dyn Device>, sanitizer: Sanitizer) -> Self {
        sanitizer.name_stream(inner.default_stream(), "default");
        Watched { inner, sanitizer }
    }

    /// The device inside.
    #[must_use]
    pub fn inner(&self) -> &Arc<dyn Device> {
        &self.inner
    }

    /// Passes a submission on, and notes what it touches.
    fn submit(
        &self,
        stream: StreamId,
        name: std::borrow::Cow<'static, str>,
        touches: &[Touch],
        call: impl FnOnce() -> DeviceResult<()>,
    ) -> DeviceResult<()> {
        let op = self.sanitizer.with(|state| state.begin(stream, name, Here::current()));
        call()?;
        self.sanitizer.update(|state| state.submitted(&op, touches));
        Ok(())
    }

    /// A copy. Of pageable memory it is over when the call returns.
    fn copy(
        &self,
        stream: StreamId,
        name: &'static str,
        (memory, [device, host]): (&HostMemory, [Touch; 2]),
        call: impl FnOnce() -> DeviceResult<()>,
    ) -> DeviceResult<()> {
        self.submit(stream, name.into(), &[device, host], call)?;
        if !memory.is_pinned() {
            self.sanitizer.host_saw(stream);
        }
        Ok(())
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Device for Watched {
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

    fn create_stream(&self, name: &str) -> DeviceResult<StreamId> {
        let stream = self.inner.create_stream(name)?;
        self.sanitizer.name_stream(stream, name);
        Ok(stream)
    }

    fn destroy_stream(&self, stream: StreamId) -> DeviceResult<()> {
        self.inner.destroy_stream(stream)?;
        self.sanitizer.with(|state| state.order.destroyed(stream));
        Ok(())
    }

    fn record(&self, stream: StreamId) -> DeviceResult<FenceHandle> {
        let clock = self.sanitizer.with(|state| state.order.stamp(stream));
        let fence = self.inner.record(stream)?;
        self.sanitizer.with(|state| state.order.recorded(stream, fence, clock, Here::current()));
        Ok(fence)
    }

    fn query(&self, fence: FenceHandle) -> DeviceResult<bool> {
        let complete = self.inner.query(fence)?;
        if complete {
            self.sanitizer.with(|state| state.order.host_saw(fence));
        }
        Ok(complete)
    }

    fn wait(&self, stream: StreamId, fence: FenceHandle) -> DeviceResult<()> {
        self.inner.wait(stream, fence)?;
        self.sanitizer.with(|state| state.order.waited(stream, fence, Here::current()));
        Ok(())
    }

    fn synchronize(&self, fence: FenceHandle, timeout_ns: Option<u64>) -> DeviceResult<Waited> {
        let waited = self.inner.synchronize(fence, timeout_ns)?;
        if waited == Waited::Complete {
            self.sanitizer.with(|state| state.order.host_saw(fence));
        }
        Ok(waited)
    }

    fn elapsed_ns(&self, start: FenceHandle, end: FenceHandle) -> DeviceResult<u64> {
        self.inner.elapsed_ns(start, end)
    }

    fn release_fence(&self, fence: FenceHandle) {
        // Before the device may give the handle to another fence.
        self.sanitizer.with(|state| state.order.released(fence));
        self.inner.release_fence(fence);
    }

    fn begin_capture(&self, stream: StreamId) -> DeviceResult<()> {
        self.inner.begin_capture(stream)?;
        self.sanitizer.with(|state| state.order.captures(stream, true));
        Ok(())
    }

    fn end_capture(&self, stream: StreamId) -> DeviceResult<()> {
        let result = self.inner.end_capture(stream);
        // After most errors it is over too.
        if result.is_ok() || !self.inner.is_capturing() {
            self.sanitizer.with(|state| state.order.captures(stream, false));
        }
        result
    }

    fn is_capturing(&self) -> bool {
        self.inner.is_capturing()
    }

    fn reserve(&self, bytes: u64) -> DeviceResult<Address> {
        self.inner.reserve(bytes)
    }

    fn unreserve(&self, address: Address, bytes: u64) -> DeviceResult<()> {
        self.inner.unreserve(address, bytes)?;
        self.sanitizer.with(|state| state.memory.unreserved(ByteRange::new(address, bytes)));
        Ok(())
    }

    fn create(&self, bytes: u64) -> DeviceResult<PageHandle> {
        let page = self.inner.create(bytes)?;
        self.sanitizer.with(|state| state.memory.created(page, bytes));
        Ok(page)
    }

    fn map(&self, page: PageHandle, address: Address) -> DeviceResult<()> {
        self.inner.map(page, address)?;
        self.sanitizer.with(|state| state.memory.mapped(page, address));
        Ok(())
    }

    fn set_access(&self, address: Address, bytes: u64) -> DeviceResult<()> {
        self.inner.set_access(address, bytes)
    }

    fn unmap(&self, address: Address, bytes: u64) -> DeviceResult<()> {
        self.inner.unmap(address, bytes)?;
        self.sanitizer.update(|state| state.unmapped(ByteRange::new(address, bytes), Here::current()));
        Ok(())
    }

    fn release(&self, page: PageHandle) -> DeviceResult<()> {
        self.inner.release(page)?;
        self.sanitizer.with(|state| state.memory.released(page));
        Ok(())
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        self.inner.memory_info()
    }

    fn processes(&self) -> Vec<ProcessMemory> {
        self.inner.processes()
    }

    fn launch(&self, stream: StreamId, operation: Operation) -> DeviceResult<()> {
        let touches: Vec<Touch> = operation.operands.iter().map(|&operand| operand.into()).collect();
        self.submit(stream, operation.name.clone(), &touches, || self.inner.launch(stream, operation))
    }

    fn copy_to_device(
        &self,
        stream: StreamId,
        destination: Address,
        source: &HostMemory,
        offset: u64,
        bytes: u64,
    ) -> DeviceResult<()> {
        let written = Touch { target: Target::Device(ByteRange::new(destination, bytes)), access: Access::Write };
        let host = Target::Host { memory: source.id(), offset, bytes };
        let read = Touch { target: host, access: Access::Read };
        let call = || self.inner.copy_to_device(stream, destination, source, offset, bytes);
        self.copy(stream, "copy to the device", (source, [written, read]), call)
    }

    fn copy_to_host(
        &self,
        stream: StreamId,
        destination: &HostMemory,
        offset: u64,
        source: Address,
        bytes: u64,
    ) -> DeviceResult<()> {
        let read = Touch { target: Target::Device(ByteRange::new(source, bytes)), access: Access::Read };
        let host = Target::Host { memory: destination.id(), offset, bytes };
        let written = Touch { target: host, access: Access::Write };
        let call = || self.inner.copy_to_host(stream, destination, offset, source, bytes);
        self.copy(stream, "copy to the host", (destination, [read, written]), call)
    }
}
