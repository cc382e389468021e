//! One simulated device: the calls of [`Device`], their checks and their costs.
//!
//! A call takes its host time first and then acts, after everything that was due by then. Order of the answers: a fault
//! of the device, a failure on request, a capture that forbids the call, bad arguments. A call that is refused has
//! changed nothing but the counters and the clock.

use std::fmt;
use std::sync::Arc;

use super::SimConfig;
use super::cluster::{Shared, SimCluster, Turn};
use super::collective::Collective;
use super::default_stream::{DefaultStream, StreamKind};
use super::engine::{Blocked, State, Wake};
use super::queue::{Entry, HostPiece, WaitEntry, Work, stream_id};
use super::submit::{Submitted, submit_collective};
use crate::error::invalid;
use crate::operation::{check_disjoint, check_operands};
use crate::{
    Access, Address, Body, ByteRange, CallCounters, Device, DeviceCall, DeviceError, DeviceResult, ExecutedKind,
    FenceHandle, HostMemory, MemoryInfo, Operand, Operation, PageHandle, ProcessMemory, Properties, StreamId, Waited,
};

/// A simulated device. Several handles may stand for one device. Ids of streams, fences and pages are unique in the
/// cluster, not in the process: so a program that runs again gets the same ones.
///
/// It is stricter than a GPU: unmapping memory that queued work uses is a fault, memory that nobody wrote is `0xFF`,
/// pageable copies block, and an operation that touches memory that is not mapped poisons the device. Captures are
/// checked, but what a stream captures is dropped: graphs cannot be replayed here yet. The body of an operation must
/// not call a device, nor own anything that does so when it is dropped.
///
/// A fault is sticky. The call that causes it, or that is blocked when it happens, returns the fault itself; every
/// later call that can fail returns [`DeviceError::Poisoned`] with the fault inside. Queued work is dropped.
///
/// # Example
/// Two streams, ordered by a fence:
/// ```
/// use highwater_device::sim::{SimConfig, SimDevice};
/// use highwater_device::{Access, Body, ByteRange, Cost, Device, Operand, Operation, Waited};
///
/// # fn main() -> Result<(), highwater_device::DeviceError> {
/// let device = SimDevice::new(SimConfig::default());
/// let bytes = device.properties().granularity_bytes;
/// let address = device.reserve(bytes)?;
/// let page = device.create(bytes)?;
/// device.map(page, address)?;
/// device.set_access(address, bytes)?;
///
/// let add = |value: u32, access| Operation {
///     name: "add".into(),
///     tag: 0,
///     cost: Cost::kernel(4, 16),
///     operands: vec![Operand { range: ByteRange::new(address, 16), access }],
///     body: Body::Host(Box::new(move |operands| {
///         for element in operands[0].as_mut_slice::<u32>() {
///             *element = element.wrapping_add(value);
///         }
///     })),
/// };
/// let (first, second) = (device.create_stream("first")?, device.create_stream("second")?);
/// device.launch(first, add(5, Access::Write))?; // 0xFFFF_FFFF + 5
/// let written = device.record(first)?;
/// device.wait(second, written)?;
/// device.launch(second, add(10, Access::ReadWrite))?;
///
/// let done = device.record(second)?;
/// assert!(!device.query(done)?, "nothing has run yet");
/// assert_eq!(device.synchronize(done, None)?, Waited::Complete);
/// assert_eq!(device.read_memory(address, 4), 14u32.to_ne_bytes());
/// assert!(device.cluster().hazards().is_empty());
/// # Ok(())
/// # }
/// ```
pub struct SimDevice {
    shared: Arc<Shared>,
    index: usize,
    properties: Properties,
    /// `None` where each thread has another.
    default_stream: Option<StreamId>,
}

impl fmt::Debug for SimDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDevice").field("ordinal", &self.index).finish_non_exhaustive()
    }
}

impl SimDevice {
    /// The device of a new cluster that has only this one.
    ///
    /// # Panics
    /// As [`SimCluster::new`].
    #[must_use]
    pub fn new(config: SimConfig) -> Arc<SimDevice> {
        SimCluster::new(1, config).device(0)
    }

    /// The cluster that the device belongs to.
    #[must_use]
    pub fn cluster(&self) -> SimCluster {
        SimCluster::from_shared(self.shared.clone())
    }

    /// Makes the `nth` of the calls of this kind from now on fail, once; 1 is the next. `create` then says that memory
    /// is out, every other call [`DeviceError::Injected`]. The failed call changes nothing.
    ///
    /// # Panics
    /// When `nth` is 0.
    pub fn fail_nth(&self, call: DeviceCall, nth: u64) {
        assert!(nth > 0, "calls are counted from 1");
        self.shared.lock().devices[self.index].injections.fail_call(call, nth);
    }

    /// Makes the fence of the `nth` record from now on fail, once; 1 is the next. The record succeeds. Once the work
    /// before the fence has ended, the device is poisoned ([`DeviceError::Injected`]) and the fence never completes.
    ///
    /// # Panics
    /// When `nth` is 0.
    pub fn fail_fence(&self, nth: u64) {
        assert!(nth > 0, "records are counted from 1");
        self.shared.lock().devices[self.index].injections.fail_fence(nth);
    }

    /// Another process has `bytes` of this device's memory from now on; 0 when it is gone.
    ///
    /// # Panics
    /// When so much is not free, or `pid` is 1, which is this process.
    pub fn occupy(&self, pid: u32, bytes: u64) {
        self.shared.lock().devices[self.index].memory.occupy(pid, bytes);
    }

    /// The host computes for `ns`. In adversarial mode it only gives way to devices and other hosts.
    ///
    /// # Panics
    /// During a run, on a thread that is not one of its own.
    pub fn host_work(&self, ns: u64) {
        let turn = self.shared.enter(self.index, DeviceCall::Launch, |_| ns);
        assert!(turn.is_ok(), "while a run is under way only its own threads may use the devices");
    }

    /// The bytes that completed work has left in memory, for tests: no time passes, nothing is ordered.
    ///
    /// # Panics
    /// When an address is not mapped and accessible.
    #[must_use]
    pub fn read_memory(&self, address: Address, bytes: u64) -> Vec<u8> {
        let state = self.shared.lock();
        let memory = &state.devices[self.index].memory;
        let mut pieces = Vec::new();
        let resolved = memory.resolve(0, ByteRange::new(address, bytes), &mut pieces);
        assert_eq!(resolved, Ok(()), "the first bad address");
        memory.read(0, bytes, &pieces).as_bytes().to_vec()
    }

    /// A new stream of a kind, whatever the kind of those that [`create_stream`](Device::create_stream) makes.
    ///
    /// # Errors
    /// When a second legacy default stream is asked for; else as [`Device::create_stream`].
    pub fn create_stream_of_kind(&self, name: &str, kind: StreamKind) -> DeviceResult<StreamId> {
        let call = DeviceCall::CreateStream;
        self.call(
            call,
            |state| state.config.cost.stream_ns,
            |turn| {
                if kind == StreamKind::Legacy && turn.state.has_legacy(self.index) {
                    return Err(invalid(call, "the device has a legacy default stream"));
                }
                Ok(turn.state.add_stream(self.index, name, kind))
            },
        )
    }

    /// Submits this rank's part of a collective. It starts when all ranks' parts are at the heads of their streams and
    /// the communicator's earlier collectives have ended.
    ///
    /// # Errors
    /// [`DeviceError::CollectiveMismatch`] when it does not agree with the part of another rank: every device of the
    /// communicator is then poisoned. Else as [`Device::launch`].
    pub fn collective(&self, stream: StreamId, collective: Collective) -> DeviceResult<()> {
        self.call(
            DeviceCall::Collective,
            |state| state.config.cost.launch_ns,
            |turn| submit_collective(&mut turn.state, self.index, stream, collective),
        )
    }

    pub(super) fn attach(shared: Arc<Shared>, ordinal: u32) -> Self {
        let index = ordinal as usize;
        let state = shared.lock();
        let properties = Properties {
            name: "simulated H200".to_owned(),
            ordinal,
            total_bytes: state.config.memory_bytes,
            granularity_bytes: state.config.granularity_bytes,
        };
        // The first stream of a device is made with it.
        let first = stream_id(state.devices[index].streams[0]);
        let default_stream = (state.config.default_stream != DefaultStream::PerThread).then_some(first);
        drop(state);
        SimDevice { shared, index, properties, default_stream }
    }

    /// Spends host time, takes the turn, counts the call, and acts unless a fault or a failure is in the way.
    fn call<R>(
        &self,
        call: DeviceCall,
        cost_ns: impl FnOnce(&State) -> u64,
        act: impl FnOnce(&mut Turn<'_>) -> DeviceResult<R>,
    ) -> DeviceResult<R> {
        let mut turn = self.shared.enter(self.index, call, cost_ns)?;
        let device = &mut turn.state.devices[self.index];
        device.counters.count(call);
        let failure = device.injections.call_is_due(call);
        turn.state.check_fault(self.index)?;
        match failure {
            Some(nth) => Err(DeviceError::Injected { call, nth }),
            None => act(&mut turn),
        }
    }

    /// Submits a copy; from or to pageable memory it blocks.
    fn copy(
        &self,
        call: DeviceCall,
        stream: StreamId,
        range: ByteRange,
        host: &HostMemory,
        offset: u64,
    ) -> DeviceResult<()> {
        let launch_ns = |state: &State| state.config.cost.launch_ns;
        self.call(call, launch_ns, |turn| {
            let state = &mut *turn.state;
            let index = state.stream_of(self.index, stream, call)?;
            if offset.checked_add(range.bytes).is_none_or(|end| end > host.len()) {
                let what = format!("{} bytes at {offset} are not in host memory of {} bytes", range.bytes, host.len());
                return Err(invalid(call, what));
            }
            let piece = HostPiece { memory: host.clone(), offset: offset as usize };
            let (name, kind, access, work) = match call {
                DeviceCall::CopyToDevice => {
                    ("copy_to_device", ExecutedKind::CopyToDevice, Access::Write, Work::ToDevice(piece))
                }
                _ => ("copy_to_host", ExecutedKind::CopyToHost, Access::Read, Work::ToHost(piece)),
            };
            let operands = vec![Operand { range, access }];
            check_operands(call, &operands)?;
            state.forbid_implicit_order(self.index, index, call)?;
            if state.devices[self.index].captures.contains_key(&stream) {
                return Ok(());
            }
            let duration_ns = state.config.cost.host_copy_ns(range.bytes);
            let submitted = Submitted { name: name.into(), tag: 0, kind, duration_ns, operands, work };
            state.enqueue(index, submitted);
            if host.is_pinned() {
                return Ok(());
            }
            let position = state.streams[index].submitted;
            match turn.block(Blocked { device: self.index, stream: index, position, deadline_ns: None }) {
                Wake::Complete => Ok(()),
                Wake::Fault(fault) => Err(fault),
                Wake::TimedOut => unreachable!("there is no deadline"),
            }
        })
    }
}

impl Device for SimDevice {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn now_ns(&self) -> u64 {
        self.shared.lock().hosts[self.index].clock_ns
    }

    fn counters(&self) -> CallCounters {
        self.shared.lock().devices[self.index].counters.clone()
    }

    fn default_stream(&self) -> StreamId {
        self.default_stream.unwrap_or_else(|| self.shared.lock().thread_stream(self.index))
    }

    fn create_stream(&self, name: &str) -> DeviceResult<StreamId> {
        self.call(
            DeviceCall::CreateStream,
            |state| state.config.cost.stream_ns,
            |turn| {
                let kind = turn.state.config.default_stream.kind_of_created();
                Ok(turn.state.add_stream(self.index, name, kind))
            },
        )
    }

    fn destroy_stream(&self, stream: StreamId) -> DeviceResult<()> {
        let call = DeviceCall::DestroyStream;
        self.call(
            call,
            |state| state.config.cost.stream_ns,
            |turn| {
                let index = turn.state.stream_of(self.index, stream, call)?;
                if turn.state.is_default(self.index, index) {
                    return Err(invalid(call, "the default stream cannot be destroyed"));
                }
                if turn.state.devices[self.index].captures.contains_key(&stream) {
                    return Err(invalid(call, format!("{stream:?} captures")));
                }
                turn.state.streams[index].destroyed = true;
                Ok(())
            },
        )
    }

    fn record(&self, stream: StreamId) -> DeviceResult<FenceHandle> {
        let call = DeviceCall::Record;
        self.call(
            call,
            |state| state.config.cost.record_ns,
            |turn| {
                turn.state.forbid_in_capture(self.index, call)?;
                let index = turn.state.stream_of(self.index, stream, call)?;
                Ok(turn.state.record(index))
            },
        )
    }

    fn query(&self, fence: FenceHandle) -> DeviceResult<bool> {
        let call = DeviceCall::Query;
        self.call(
            call,
            |state| state.config.cost.query_ns,
            |turn| {
                turn.state.forbid_in_capture(self.index, call)?;
                Ok(turn.state.completed_ns(self.index, fence, call)?.is_some())
            },
        )
    }

    fn wait(&self, stream: StreamId, fence: FenceHandle) -> DeviceResult<()> {
        let call = DeviceCall::Wait;
        self.call(
            call,
            |state| state.config.cost.wait_ns,
            |turn| {
                let state = &mut *turn.state;
                state.forbid_in_capture(self.index, call)?;
                let index = state.stream_of(self.index, stream, call)?;
                state.completed_ns(self.index, fence, call)?;
                let fence = &state.fences[&fence];
                let wait =
                    WaitEntry { stream: fence.stream, position: fence.position, last_operation: fence.last_operation };
                state.submit(index, Entry::Wait(wait));
                Ok(())
            },
        )
    }

    fn synchronize(&self, fence: FenceHandle, timeout_ns: Option<u64>) -> DeviceResult<Waited> {
        let call = DeviceCall::Synchronize;
        self.call(
            call,
            |_| 0,
            |turn| {
                turn.state.forbid_in_capture(self.index, call)?;
                let cost_ns = turn.state.config.cost.synchronize_ns;
                let complete = turn.state.completed_ns(self.index, fence, call)?.is_some();
                if !complete {
                    if timeout_ns == Some(0) {
                        return Ok(Waited::TimedOut);
                    }
                    let start_ns = turn.state.hosts[turn.host].clock_ns;
                    let deadline_ns = timeout_ns.map(|timeout_ns| start_ns.saturating_add(timeout_ns));
                    let (stream, position) = (turn.state.fences[&fence].stream, turn.state.fences[&fence].position);
                    match turn.block(Blocked { device: self.index, stream, position, deadline_ns }) {
                        Wake::Complete => {}
                        Wake::TimedOut => return Ok(Waited::TimedOut),
                        Wake::Fault(fault) => return Err(fault),
                    }
                }
                let host = turn.host;
                turn.state.charge(host, cost_ns);
                Ok(Waited::Complete)
            },
        )
    }

    fn elapsed_ns(&self, start: FenceHandle, end: FenceHandle) -> DeviceResult<u64> {
        let call = DeviceCall::Elapsed;
        self.call(
            call,
            |_| 0,
            |turn| {
                let time = |fence: FenceHandle| {
                    let time = turn.state.completed_ns(self.index, fence, call)?;
                    time.ok_or_else(|| invalid(call, format!("{fence:?} is not complete")))
                };
                let (start_ns, end_ns) = (time(start)?, time(end)?);
                Ok(end_ns.saturating_sub(start_ns))
            },
        )
    }

    fn release_fence(&self, fence: FenceHandle) {
        let mut state = self.shared.lock();
        if state.fences.get(&fence).is_some_and(|known| known.device == self.index) {
            state.fences.remove(&fence);
            state.devices[self.index].counters.fences_released += 1;
        }
    }

    fn begin_capture(&self, stream: StreamId) -> DeviceResult<()> {
        let call = DeviceCall::BeginCapture;
        self.call(
            call,
            |_| 0,
            |turn| {
                let index = turn.state.stream_of(self.index, stream, call)?;
                turn.state.check_capturable(index)?;
                let captures = &mut turn.state.devices[self.index].captures;
                if captures.contains_key(&stream) {
                    return Err(invalid(call, format!("{stream:?} captures already")));
                }
                captures.insert(stream, None);
                Ok(())
            },
        )
    }

    fn end_capture(&self, stream: StreamId) -> DeviceResult<()> {
        let call = DeviceCall::EndCapture;
        self.call(
            call,
            |_| 0,
            |turn| match turn.state.devices[self.index].captures.remove(&stream) {
                None => Err(invalid(call, format!("{stream:?} does not capture"))),
                Some(None) => Ok(()),
                Some(Some(call)) => Err(DeviceError::CaptureViolation { call }),
            },
        )
    }

    fn is_capturing(&self) -> bool {
        !self.shared.lock().devices[self.index].captures.is_empty()
    }

    fn reserve(&self, bytes: u64) -> DeviceResult<Address> {
        self.call(
            DeviceCall::Reserve,
            |state| state.config.cost.reserve_ns,
            |turn| turn.state.devices[self.index].memory.reserve(bytes),
        )
    }

    fn unreserve(&self, address: Address, bytes: u64) -> DeviceResult<()> {
        self.call(
            DeviceCall::Unreserve,
            |state| state.config.cost.reserve_ns,
            |turn| turn.state.devices[self.index].memory.unreserve(address, bytes),
        )
    }

    fn create(&self, bytes: u64) -> DeviceResult<PageHandle> {
        let created = self.call(
            DeviceCall::Create,
            |state| state.config.cost.create_ns,
            |turn| turn.state.devices[self.index].memory.create(bytes),
        );
        created.map_err(|error| match error {
            // A failure on request looks like the one that happens.
            DeviceError::Injected { .. } => {
                let free = self.shared.lock().devices[self.index].memory.info().free;
                DeviceError::OutOfMemory { requested: bytes, free }
            }
            other => other,
        })
    }

    fn map(&self, page: PageHandle, address: Address) -> DeviceResult<()> {
        self.call(
            DeviceCall::Map,
            |state| state.config.cost.map_ns,
            |turn| turn.state.devices[self.index].memory.map(page, address),
        )
    }

    fn set_access(&self, address: Address, bytes: u64) -> DeviceResult<()> {
        let cost_ns = |state: &State| {
            state.config.cost.set_access_ns
                * state.devices[self.index].memory.count_mappings(ByteRange::new(address, bytes))
        };
        self.call(DeviceCall::SetAccess, cost_ns, |turn| {
            turn.state.devices[self.index].memory.set_access(ByteRange::new(address, bytes))
        })
    }

    fn unmap(&self, address: Address, bytes: u64) -> DeviceResult<()> {
        let call = DeviceCall::Unmap;
        let cost_ns = |state: &State| {
            state.config.cost.unmap_ns * state.devices[self.index].memory.count_mappings(ByteRange::new(address, bytes))
        };
        self.call(call, cost_ns, |turn| {
            let state = &mut *turn.state;
            state.devices[self.index].memory.check_unmap(ByteRange::new(address, bytes))?;
            if let Some(fault) = state.use_of(self.index, ByteRange::new(address, bytes)) {
                state.poison(self.index, &fault);
                return Err(fault);
            }
            state.devices[self.index].memory.unmap(ByteRange::new(address, bytes))
        })
    }

    fn release(&self, page: PageHandle) -> DeviceResult<()> {
        self.call(
            DeviceCall::Release,
            |state| state.config.cost.release_ns,
            |turn| turn.state.devices[self.index].memory.release(page),
        )
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        self.call(
            DeviceCall::MemoryInfo,
            |state| state.config.cost.memory_info_ns,
            |turn| Ok(turn.state.devices[self.index].memory.info()),
        )
    }

    fn processes(&self) -> Vec<ProcessMemory> {
        self.shared.lock().devices[self.index].memory.processes()
    }

    fn launch(&self, stream: StreamId, operation: Operation) -> DeviceResult<()> {
        let call = DeviceCall::Launch;
        self.call(
            call,
            |state| state.config.cost.launch_ns,
            |turn| {
                let state = &mut *turn.state;
                let index = state.stream_of(self.index, stream, call)?;
                check_operands(call, &operation.operands)?;
                check_disjoint(call, &operation.operands)?;
                let work = match operation.body {
                    Body::Nothing => Work::Nothing,
                    Body::Host(body) => Work::Kernel(body),
                    Body::Driver(_) => return Err(invalid(call, "the simulated device has no driver to submit to")),
                };
                state.forbid_implicit_order(self.index, index, call)?;
                if state.devices[self.index].captures.contains_key(&stream) {
                    return Ok(());
                }
                let submitted = Submitted {
                    name: operation.name,
                    tag: operation.tag,
                    kind: ExecutedKind::Kernel,
                    duration_ns: state.config.cost.kernel_ns(operation.cost),
                    operands: operation.operands,
                    work,
                };
                state.enqueue(index, submitted);
                Ok(())
            },
        )
    }

    fn copy_to_device(
        &self,
        stream: StreamId,
        destination: Address,
        source: &HostMemory,
        offset: u64,
        bytes: u64,
    ) -> DeviceResult<()> {
        self.copy(DeviceCall::CopyToDevice, stream, ByteRange { address: destination, bytes }, source, offset)
    }

    fn copy_to_host(
        &self,
        stream: StreamId,
        destination: &HostMemory,
        offset: u64,
        source: Address,
        bytes: u64,
    ) -> DeviceResult<()> {
        self.copy(DeviceCall::CopyToHost, stream, ByteRange { address: source, bytes }, destination, offset)
    }
}
