//! The device that the swarm's allocators get: the simulated one, with a log of what is mapped where and when, failures
//! that can be disarmed, a free in the middle of a call, and, for canaries, a defect.
//!
//! Lock: `inner`, a leaf; it is never held while the device is called.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use highwater::device::sim::{Collective, SimDevice};
use highwater::device::{
    Address, CallCounters, Device, DeviceCall, DeviceResult, FenceHandle, HostMemory, MemoryInfo, Operation,
    PageHandle, Properties, StreamId, Waited,
};

/// What a canary breaks: the swarm has to find it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Defect {
    /// Every third wait that the allocator puts on a stream is lost. Those of the program are not.
    LostWaits,
    /// A fence that is asked says every third time that it is complete, whether it is or not.
    HastyFences,
    /// Every third handle that is to be released is kept, and nobody is told.
    LeakedHandles,
}

/// A handle that was mapped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mapped {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) page: PageHandle,
    /// When, by the device's clock.
    pub(super) from_ns: u64,
    /// When it was unmapped, if it was.
    pub(super) until_ns: Option<u64>,
}

type Hook = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Inner {
    armed: Vec<(DeviceCall, u64)>,
    fired: BTreeMap<DeviceCall, u64>,
    hook: Option<(DeviceCall, Hook)>,
    pages: BTreeMap<PageHandle, u64>,
    mapped: Vec<Mapped>,
    /// Ranges of addresses reserved now.
    reserved: u64,
    /// Calls that the defect looks at.
    seen: u64,
    /// Whether the program itself calls.
    by_program: bool,
}

/// The watched device.
pub(super) struct Watched {
    sim: Arc<SimDevice>,
    defect: Option<Defect>,
    inner: Mutex<Inner>,
}

impl Watched {
    pub(super) fn new(sim: Arc<SimDevice>, defect: Option<Defect>) -> Arc<Self> {
        Arc::new(Watched { sim, defect, inner: Mutex::default() })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("nobody panics with the lock")
    }

    /// The simulated device.
    pub(super) fn sim(&self) -> &Arc<SimDevice> {
        &self.sim
    }

    /// The `nth` call of a kind from now on fails.
    pub(super) fn fail_call(&self, call: DeviceCall, nth: u64) {
        self.inner().armed.push((call, nth));
    }

    /// No call fails on request any more, and nothing happens in the middle of one.
    pub(super) fn disarm(&self) {
        let hook = {
            let mut inner = self.inner();
            inner.armed.clear();
            inner.hook.take()
        };
        drop(hook);
    }

    /// Failures that have happened, by call.
    pub(super) fn fired(&self) -> BTreeMap<DeviceCall, u64> {
        self.inner().fired.clone()
    }

    /// Runs `hook` at the next `call`, before the device acts. What was to run before is dropped.
    pub(super) fn during(&self, call: DeviceCall, hook: impl FnOnce() + Send + 'static) {
        let before = self.inner().hook.replace((call, Box::new(hook)));
        drop(before);
    }

    /// Whether something is to run in a call that has not come.
    pub(super) fn has_hook(&self) -> bool {
        self.inner().hook.is_some()
    }

    /// Handles, mapped now or before, in the order of the calls.
    pub(super) fn mapped(&self) -> Vec<Mapped> {
        self.inner().mapped.clone()
    }

    /// Ranges of addresses that are reserved.
    pub(super) fn reserved(&self) -> u64 {
        self.inner().reserved
    }

    /// Does something of the program's own, which no defect spoils.
    pub(super) fn by_program<R>(&self, act: impl FnOnce() -> R) -> R {
        self.inner().by_program = true;
        let result = act();
        self.inner().by_program = false;
        result
    }

    /// Submits a part of a collective.
    pub(super) fn collective(&self, stream: StreamId, collective: Collective) -> DeviceResult<()> {
        self.before(DeviceCall::Collective);
        self.sim.collective(stream, collective)
    }

    fn before(&self, call: DeviceCall) {
        let hook = self.inner().hook.take_if(|(at, _)| *at == call);
        if let Some((_, hook)) = hook {
            hook();
        }
        let mut inner = self.inner();
        let mut due = false;
        inner.armed.retain_mut(|(armed, left)| {
            if *armed == call {
                *left -= 1;
                due |= *left == 0;
            }
            *left > 0
        });
        if due {
            *inner.fired.entry(call).or_default() += 1;
            drop(inner);
            self.sim.fail_nth(call, 1);
        }
    }

    /// Whether the defect strikes at this call.
    fn strikes(&self, defect: Defect) -> bool {
        if self.defect != Some(defect) {
            return false;
        }
        let mut inner = self.inner();
        if inner.by_program {
            return false;
        }
        inner.seen += 1;
        inner.seen.is_multiple_of(3)
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.sim.fmt(f)
    }
}

macro_rules! pass_on {
    ($($call:ident: fn $name:ident(&self $(, $argument:ident: $kind:ty)*) -> $answer:ty;)*) => {
        $(fn $name(&self $(, $argument: $kind)*) -> $answer {
            self.before(DeviceCall::$call);
            self.sim.$name($($argument),*)
        })*
    };
}

impl Device for Watched {
    fn properties(&self) -> &Properties {
        self.sim.properties()
    }

    fn now_ns(&self) -> u64 {
        self.sim.now_ns()
    }

    fn counters(&self) -> CallCounters {
        self.sim.counters()
    }

    fn default_stream(&self) -> StreamId {
        self.sim.default_stream()
    }

    fn release_fence(&self, fence: FenceHandle) {
        self.sim.release_fence(fence);
    }

    fn is_capturing(&self) -> bool {
        self.sim.is_capturing()
    }

    fn query(&self, fence: FenceHandle) -> DeviceResult<bool> {
        self.before(DeviceCall::Query);
        let complete = self.sim.query(fence)?;
        Ok(complete || self.strikes(Defect::HastyFences))
    }

    fn wait(&self, stream: StreamId, fence: FenceHandle) -> DeviceResult<()> {
        self.before(DeviceCall::Wait);
        if self.strikes(Defect::LostWaits) { Ok(()) } else { self.sim.wait(stream, fence) }
    }

    fn reserve(&self, bytes: u64) -> DeviceResult<Address> {
        self.before(DeviceCall::Reserve);
        let address = self.sim.reserve(bytes)?;
        self.inner().reserved += 1;
        Ok(address)
    }

    fn unreserve(&self, address: Address, bytes: u64) -> DeviceResult<()> {
        self.before(DeviceCall::Unreserve);
        self.sim.unreserve(address, bytes)?;
        self.inner().reserved -= 1;
        Ok(())
    }

    fn create(&self, bytes: u64) -> DeviceResult<PageHandle> {
        self.before(DeviceCall::Create);
        let page = self.sim.create(bytes)?;
        self.inner().pages.insert(page, bytes);
        Ok(page)
    }

    fn map(&self, page: PageHandle, address: Address) -> DeviceResult<()> {
        self.before(DeviceCall::Map);
        self.sim.map(page, address)?;
        let from_ns = self.sim.now_ns();
        let mut inner = self.inner();
        let bytes = inner.pages[&page];
        inner.mapped.push(Mapped { address: address.0, bytes, page, from_ns, until_ns: None });
        Ok(())
    }

    fn unmap(&self, address: Address, bytes: u64) -> DeviceResult<()> {
        self.before(DeviceCall::Unmap);
        self.sim.unmap(address, bytes)?;
        let now_ns = self.sim.now_ns();
        for mapped in &mut self.inner().mapped {
            if mapped.until_ns.is_none() && (address.0..address.0 + bytes).contains(&mapped.address) {
                mapped.until_ns = Some(now_ns);
            }
        }
        Ok(())
    }

    fn release(&self, page: PageHandle) -> DeviceResult<()> {
        self.before(DeviceCall::Release);
        if self.strikes(Defect::LeakedHandles) { Ok(()) } else { self.sim.release(page) }
    }

    pass_on! {
        CreateStream: fn create_stream(&self, name: &str) -> DeviceResult<StreamId>;
        DestroyStream: fn destroy_stream(&self, stream: StreamId) -> DeviceResult<()>;
        Record: fn record(&self, stream: StreamId) -> DeviceResult<FenceHandle>;
        Synchronize: fn synchronize(&self, fence: FenceHandle, timeout_ns: Option<u64>) -> DeviceResult<Waited>;
        Elapsed: fn elapsed_ns(&self, start: FenceHandle, end: FenceHandle) -> DeviceResult<u64>;
        BeginCapture: fn begin_capture(&self, stream: StreamId) -> DeviceResult<()>;
        EndCapture: fn end_capture(&self, stream: StreamId) -> DeviceResult<()>;
        SetAccess: fn set_access(&self, address: Address, bytes: u64) -> DeviceResult<()>;
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
