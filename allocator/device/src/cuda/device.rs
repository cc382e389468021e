//! The contract's calls, on one GPU.
//!
//! Order of the answers, as on the simulated device: a fault of the device, a capture that forbids the call, bad
//! arguments. The registries have locks of their own; none is held while the host waits for device work.

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, CudaStream};
use parking_lot::Mutex;

use super::counters::Tally;
use super::driver::{self, Event};
use super::fences::Fences;
use super::in_flight::InFlight;
use super::memory::Memory;
use super::nvml;
use super::streams::{Known, Streams};
use super::timeline::{Described, Timeline};
use crate::error::invalid;
use crate::operation::{check_disjoint, check_operands};
use crate::{
    Access, Address, Body, ByteRange, CallCounters, Device, DeviceCall, DeviceError, DeviceResult, Executed,
    ExecutedKind, FenceHandle, HostBody, HostMemory, MemoryInfo, Operand, OperandBytes, Operation, PageHandle,
    ProcessMemory, Properties, StreamId, Waited,
};

/// The library that everything begins with.
const DRIVER: &str = "the CUDA driver (libcuda.so)";

/// Errors after which a context does nothing any more.
const STICKY: &[&str] = &[
    "CUDA_ERROR_DEINITIALIZED",
    "CUDA_ERROR_ECC_UNCORRECTABLE",
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "CUDA_ERROR_CONTEXT_IS_DESTROYED",
    "CUDA_ERROR_ASSERT",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "CUDA_ERROR_INVALID_ADDRESS_SPACE",
    "CUDA_ERROR_INVALID_PC",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_UNKNOWN",
];

/// The longest pause between two looks at a fence that is waited for with a deadline.
const LONGEST_PAUSE: Duration = Duration::from_micros(50);

/// Where all devices of the process count time from, so that their times can be compared.
static EPOCH: OnceLock<Instant> = OnceLock::new();

/// How a GPU is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CudaConfig {
    /// Which GPU, as the driver counts them.
    pub ordinal: u32,
    /// Whether fences take the time, so that [`Device::elapsed_ns`] works. A record then costs about 1.4 µs, not 0.3.
    pub timing: bool,
}

/// A GPU, through its primary context. Several devices may be opened on one GPU: each has streams and pages of its own,
/// and they share memory and faults.
///
/// The default stream of the device is one that it makes, not the driver's: the legacy default stream orders itself
/// with others without telling, and the per-thread one is another stream in each thread.
///
/// Operations with a host body ([`Body::Host`]) copy their operands to the host and back, and run on a thread of the
/// driver; while their stream captures they are left out.
///
/// A fault is sticky: the call that meets it returns it, every later one [`DeviceError::Poisoned`].
pub struct CudaDevice {
    // In the order in which they must go.
    extensions: Mutex<BTreeMap<TypeId, Arc<dyn Any + Send + Sync>>>,
    in_flight: Mutex<InFlight>,
    timeline: Timeline,
    fences: Fences,
    streams: Streams,
    memory: Mutex<Memory>,
    tally: Tally,
    fault: Arc<OnceLock<DeviceError>>,
    properties: Properties,
    default_stream: StreamId,
    timing: bool,
    epoch: Instant,
    context: Arc<CudaContext>,
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDevice").field("properties", &self.properties).finish_non_exhaustive()
    }
}

/// # Errors
/// [`DeviceError::Missing`] when there is no driver.
pub(super) fn check_present() -> DeviceResult<()> {
    if driver::present() {
        return Ok(());
    }
    let what = "install an NVIDIA driver of version 580 or later, or use the simulated device";
    Err(DeviceError::Missing { library: DRIVER.into(), what: what.into() })
}

/// How many GPUs there are; the driver is present.
pub(super) fn count() -> DeviceResult<u32> {
    let call = DeviceCall::MemoryInfo;
    let none = cudarc::driver::sys::CUresult::CUDA_ERROR_NO_DEVICE;
    match cudarc::driver::result::init().and_then(|()| CudaContext::device_count()) {
        Err(error) if error.0 == none => Ok(0),
        counted => Ok(u32::try_from(counted.map_err(cudarc_error(call))?).unwrap_or(0)),
    }
}

/// The error of a call of cudarc.
fn cudarc_error(call: DeviceCall) -> impl Fn(cudarc::driver::DriverError) -> DeviceError {
    move |error| driver::error(call, error.0)
}

impl CudaDevice {
    /// Opens a GPU.
    ///
    /// # Errors
    /// [`DeviceError::Missing`] when there is no driver or no such GPU; the driver's error otherwise.
    pub fn new(config: CudaConfig) -> DeviceResult<Arc<CudaDevice>> {
        check_present()?;
        let call = DeviceCall::CreateStream;
        let context =
            CudaContext::new(config.ordinal as usize).map_err(|error| match driver::error(call, error.0) {
                DeviceError::Driver { name, text, .. } => DeviceError::Missing {
                    library: format!("GPU {}", config.ordinal),
                    what: format!(
                        "{text} ({name}); nvidia-smi lists the GPUs, use one of those or the simulated device"
                    ),
                },
                other => other,
            })?;
        Self::with_context(context, config)
    }

    /// Opens the GPU of a context that the program has already.
    ///
    /// # Errors
    /// The driver's.
    pub fn with_context(context: Arc<CudaContext>, config: CudaConfig) -> DeviceResult<Arc<CudaDevice>> {
        let call = DeviceCall::CreateStream;
        context.bind_to_thread().map_err(cudarc_error(call))?;
        let ordinal = u32::try_from(context.ordinal()).expect("ordinals are counted by i32");
        let granularity_bytes = driver::granularity_bytes(ordinal)?;
        let (_, total_bytes) = driver::memory_info()?;
        let name = context.name().map_err(cudarc_error(call))?;
        let streams = Streams::default();
        let stream = context.new_stream().map_err(cudarc_error(call))?;
        let default_stream = streams.add(stream, "default")?;
        Ok(Arc::new(CudaDevice {
            extensions: Mutex::default(),
            in_flight: Mutex::default(),
            timeline: Timeline::new(),
            fences: Fences::new(config.timing),
            streams,
            memory: Mutex::new(Memory::new(ordinal, granularity_bytes)),
            tally: Tally::default(),
            fault: Arc::new(OnceLock::new()),
            properties: Properties { name, ordinal, total_bytes, granularity_bytes },
            default_stream,
            timing: config.timing,
            epoch: *EPOCH.get_or_init(Instant::now),
            context,
        }))
    }

    /// The context.
    #[must_use]
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Major and minor of the architecture: 9 and 0 for `sm_90`.
    ///
    /// # Errors
    /// The driver's.
    pub fn compute_capability(&self) -> DeviceResult<(i32, i32)> {
        self.context.compute_capability().map_err(cudarc_error(DeviceCall::MemoryInfo))
    }

    /// A stream that was made elsewhere, from now on one of this device's. It is kept alive until it is destroyed here.
    ///
    /// # Errors
    /// When it belongs to another context, is known already, or is the per-thread default stream.
    pub fn adopt_stream(&self, stream: &Arc<CudaStream>, name: &str) -> DeviceResult<StreamId> {
        self.call(DeviceCall::CreateStream, || self.streams.adopt(&self.context, stream, name))
    }

    /// The driver's id of a stream, which [`StreamId`] holds.
    ///
    /// # Errors
    /// The driver's.
    pub fn id_of(&self, stream: &CudaStream) -> DeviceResult<StreamId> {
        self.bind(DeviceCall::CreateStream)?;
        driver::stream_id(DeviceCall::CreateStream, stream).map(StreamId)
    }

    /// The id of a stream that this device knows, without asking the driver: harmless while the stream captures.
    #[must_use]
    pub fn known_id_of(&self, stream: &CudaStream) -> Option<StreamId> {
        self.streams.id_of(stream)
    }

    /// Whether a stream captures, whoever began it.
    #[must_use]
    pub fn captures(&self, stream: StreamId) -> bool {
        let call = DeviceCall::BeginCapture;
        self.bind(call).is_ok() && self.streams.get(call, stream).is_ok_and(|known| driver::is_capturing(&known.stream))
    }

    /// A stream for calls past this crate; `None` when the device does not know it.
    #[must_use]
    pub fn cuda_stream(&self, stream: StreamId) -> Option<Arc<CudaStream>> {
        self.streams.expose(stream)
    }

    /// Begins or ends to keep the operations that are submitted. Beginning learns how the clocks differ, on a stream of
    /// its own: it waits for no work.
    ///
    /// # Errors
    /// The driver's.
    pub fn set_timeline(&self, on: bool) -> DeviceResult<()> {
        let call = DeviceCall::Elapsed;
        if !on {
            self.timeline.turn_off();
            return Ok(());
        }
        self.bind(call)?;
        let new_stream = || self.context.new_stream().map_err(cudarc_error(call));
        self.timeline.turn_on(new_stream, || self.now_ns())
    }

    /// The operations that were kept since the last call, in the order of their ends. Blocks the host until they are
    /// complete.
    ///
    /// # Errors
    /// The driver's.
    pub fn take_timeline(&self) -> DeviceResult<Vec<Executed>> {
        self.bind(DeviceCall::Elapsed)?;
        self.timeline.take()
    }

    /// What a crate above keeps for this device (loaded modules, handles of libraries), made at the first call. It goes
    /// before the device does.
    ///
    /// # Errors
    /// Those of `make`; the next call tries again.
    pub fn extension<T: Any + Send + Sync, E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        let known = self.extensions.lock().get(&TypeId::of::<T>()).cloned();
        let kept = match known {
            Some(known) => known,
            // Made outside of the lock: it may ask for another extension. The first one stays.
            None => {
                let made: Arc<dyn Any + Send + Sync> = Arc::new(make()?);
                self.extensions.lock().entry(TypeId::of::<T>()).or_insert(made.clone()).clone()
            }
        };
        Ok(kept.downcast().expect("it is kept by its type"))
    }

    /// Whatever a stream that the device does not know is given from now on executes after `fence`. Never blocks the
    /// host.
    ///
    /// # Errors
    /// While a stream of the device captures, or the driver's.
    pub fn hold_back(&self, stream: &CudaStream, fence: FenceHandle) -> DeviceResult<()> {
        let call = DeviceCall::Wait;
        self.call(call, || {
            self.streams.forbid_in_capture(call)?;
            self.fences.event(call, fence)?.hold_back(call, stream)
        })
    }

    /// Binds the context to the thread. An error that cudarc keeps there for the program's next call is left to it.
    fn bind(&self, call: DeviceCall) -> DeviceResult<()> {
        let waiting = self.context.check_err();
        let bound = self.context.bind_to_thread().map_err(cudarc_error(call));
        self.context.record_err(waiting);
        bound
    }

    /// Makes a call: counts it, refuses it after a fault, and keeps a fault that it meets.
    fn call<R>(&self, call: DeviceCall, act: impl FnOnce() -> DeviceResult<R>) -> DeviceResult<R> {
        self.tally.count(call);
        self.check_fault()?;
        // As in `bind`, around calls of cudarc too.
        let waiting = self.context.check_err();
        let done = self.bind(call).and_then(|()| act());
        self.context.record_err(waiting);
        done.inspect_err(|error| {
            if matches!(error, DeviceError::Driver { name, .. } if STICKY.contains(&&**name)) {
                // Another thread may have met it first; that one is the cause.
                let _ = self.fault.set(error.clone());
            }
        })
    }

    /// Refuses what a fault leaves no sense.
    fn check_fault(&self) -> DeviceResult<()> {
        match self.fault.get() {
            Some(fault) => Err(DeviceError::Poisoned { fault: Box::new(fault.clone()) }),
            None => Ok(()),
        }
    }

    /// Makes a call that is no business of a capture, not even one of a stream that the device does not know.
    fn beside_captures<R>(&self, call: DeviceCall, act: impl FnOnce() -> DeviceResult<R>) -> DeviceResult<R> {
        self.call(call, || driver::beside_captures(call, act))
    }

    fn copy(
        &self,
        call: DeviceCall,
        stream: StreamId,
        (device, operand_access): (ByteRange, Access),
        (host, offset): (&HostMemory, u64),
    ) -> DeviceResult<()> {
        self.beside_captures(call, || {
            if !host.is_pinned() {
                self.streams.forbid_in_capture(call)?;
            }
            let known = self.streams.get(call, stream)?;
            let operands = vec![Operand { range: device, access: operand_access }];
            check_operands(call, &operands)?;
            let bytes = device.bytes;
            if offset.checked_add(bytes).is_none_or(|end| end > host.len()) {
                return Err(invalid(call, format!("{bytes} bytes from byte {offset} on leave {} bytes", host.len())));
            }
            if bytes == 0 {
                return Ok(());
            }
            let kind = if operand_access.writes() { ExecutedKind::CopyToDevice } else { ExecutedKind::CopyToHost };
            let described = Described { name: call.name().into(), tag: 0, kind, operands };
            self.timed(stream, &known, described, || match operand_access.writes() {
                true => driver::copy_to_device(&known.stream, device.address, host, offset, bytes),
                false => driver::copy_to_host(&known.stream, host, offset, device.address, bytes),
            })
            .and_then(
                |()| if host.is_pinned() { self.keep(stream, &known, host) } else { self.wait_for_copy(call, &known) },
            )
            .inspect_err(|_| self.in_flight.lock().keep_for_good(host))
        })
    }

    /// Keeps host memory until the copy that was just submitted is complete.
    fn keep(&self, stream: StreamId, known: &Known, host: &HostMemory) -> DeviceResult<()> {
        let mut in_flight = self.in_flight.lock();
        if self.streams.is_capturing() {
            if driver::is_capturing(&known.stream) {
                in_flight.keep_for_good(host);
                return Ok(());
            }
            return in_flight.keep(stream, &known.stream, host);
        }
        let done = in_flight.complete();
        let kept = in_flight.keep(stream, &known.stream, host);
        drop(in_flight);
        drop(done);
        kept
    }

    /// A copy of pageable memory ends before the call does.
    fn wait_for_copy(&self, call: DeviceCall, known: &Known) -> DeviceResult<()> {
        let start = Instant::now();
        let event = Event::new(call, false)?;
        event.record(call, &known.stream)?;
        event.synchronize(call)?;
        self.tally.blocked(nanoseconds(start.elapsed()));
        Ok(())
    }

    fn timed(
        &self,
        stream: StreamId,
        known: &Known,
        described: Described,
        submit: impl FnOnce() -> DeviceResult<()>,
    ) -> DeviceResult<()> {
        if self.timeline.is_on() && !self.streams.is_capturing() {
            let device = self.properties.ordinal;
            return self.timeline.around(stream, known, device, || self.now_ns(), described, submit);
        }
        submit()
    }

    /// Runs a body on the host, on copies of the operands: to the host, the body, and back.
    fn run_on_host(
        &self,
        stream: StreamId,
        known: &Known,
        operation: (&str, &[Operand]),
        body: HostBody,
    ) -> DeviceResult<()> {
        let operands = operation.1;
        let memory: Vec<HostMemory> = operands.iter().map(|operand| HostMemory::pinned(operand.range.bytes)).collect();
        self.submit_on_host(stream, known, operation, body, &memory).inspect_err(|_| {
            // Nobody knows which copies are under way.
            memory.iter().for_each(|memory| self.in_flight.lock().keep_for_good(memory));
        })
    }

    fn submit_on_host(
        &self,
        stream: StreamId,
        known: &Known,
        (name, operands): (&str, &[Operand]),
        body: HostBody,
        memory: &[HostMemory],
    ) -> DeviceResult<()> {
        for (operand, memory) in operands.iter().zip(memory).filter(|(operand, _)| operand.range.bytes > 0) {
            let ByteRange { address, bytes } = operand.range;
            driver::copy_to_host(&known.stream, memory, 0, address, bytes)?;
        }
        let task = {
            let (memory, fault) = (memory.to_vec(), self.fault.clone());
            let (operation, stream) = (name.to_owned(), known.name.to_string());
            move || {
                let mut copies: Vec<OperandBytes> = memory.iter().map(copy_of).collect();
                let run = std::panic::AssertUnwindSafe(|| body(&mut copies));
                if let Err(panic) = std::panic::catch_unwind(run) {
                    let message = panic.downcast_ref::<&str>().map(ToString::to_string);
                    let message = message.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
                    let _ = fault.set(DeviceError::BodyPanicked { operation, stream, message });
                    return;
                }
                for (memory, copy) in memory.iter().zip(&copies) {
                    memory.write(|target: &mut [u8]| target.copy_from_slice(copy.as_bytes()));
                }
            }
        };
        driver::run_on_host(&known.stream, Box::new(task))?;
        for (operand, memory) in operands.iter().zip(memory).filter(|(operand, _)| operand.range.bytes > 0) {
            let ByteRange { address, bytes } = operand.range;
            if operand.access.writes() {
                driver::copy_to_device(&known.stream, address, memory, 0, bytes)?;
            }
            self.keep(stream, known, memory)?;
        }
        Ok(())
    }
}

fn copy_of(memory: &HostMemory) -> OperandBytes {
    memory.read(|content: &[u8]| {
        let mut copy = OperandBytes::filled(content.len(), 0);
        copy.as_bytes_mut().copy_from_slice(content);
        copy
    })
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Device for CudaDevice {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn now_ns(&self) -> u64 {
        nanoseconds(self.epoch.elapsed())
    }

    fn counters(&self) -> CallCounters {
        self.tally.read()
    }

    fn default_stream(&self) -> StreamId {
        self.default_stream
    }

    fn create_stream(&self, name: &str) -> DeviceResult<StreamId> {
        let call = DeviceCall::CreateStream;
        self.call(call, || {
            let stream = self.context.new_stream().map_err(cudarc_error(call))?;
            self.streams.add(stream, name)
        })
    }

    fn destroy_stream(&self, stream: StreamId) -> DeviceResult<()> {
        let call = DeviceCall::DestroyStream;
        self.call(call, || match stream == self.default_stream {
            true => Err(invalid(call, "the default stream cannot be destroyed")),
            false => self.streams.forget(stream),
        })
    }

    fn record(&self, stream: StreamId) -> DeviceResult<FenceHandle> {
        let call = DeviceCall::Record;
        self.call(call, || {
            self.streams.forbid_in_capture(call)?;
            let known = self.streams.get(call, stream)?;
            let fence = self.fences.record(|event| event.record(call, &known.stream))?;
            if self.timeline.is_on() {
                self.timeline.recorded(stream, fence);
            }
            Ok(fence)
        })
    }

    fn query(&self, fence: FenceHandle) -> DeviceResult<bool> {
        let call = DeviceCall::Query;
        self.beside_captures(call, || {
            self.streams.forbid_in_capture(call)?;
            let complete = self.fences.event(call, fence)?.query(call)?;
            // A host body that panics is no fault to the driver.
            self.check_fault()?;
            Ok(complete)
        })
    }

    fn wait(&self, stream: StreamId, fence: FenceHandle) -> DeviceResult<()> {
        let call = DeviceCall::Wait;
        self.call(call, || {
            self.streams.forbid_in_capture(call)?;
            let known = self.streams.get(call, stream)?;
            self.fences.event(call, fence)?.hold_back(call, &known.stream)?;
            if self.timeline.is_on() {
                self.timeline.waits(stream, fence);
            }
            Ok(())
        })
    }

    fn synchronize(&self, fence: FenceHandle, timeout_ns: Option<u64>) -> DeviceResult<Waited> {
        let call = DeviceCall::Synchronize;
        self.beside_captures(call, || {
            self.streams.forbid_in_capture(call)?;
            let event = self.fences.event(call, fence)?;
            if event.query(call)? {
                self.check_fault()?;
                return Ok(Waited::Complete);
            }
            if timeout_ns == Some(0) {
                return Ok(Waited::TimedOut);
            }
            let start = Instant::now();
            let waited = match timeout_ns {
                None => event.synchronize(call).map(|()| Waited::Complete),
                Some(timeout_ns) => wait_until(event, start, Duration::from_nanos(timeout_ns)),
            };
            self.tally.blocked(nanoseconds(start.elapsed()));
            let waited = waited?;
            self.check_fault()?;
            Ok(waited)
        })
    }

    fn elapsed_ns(&self, start: FenceHandle, end: FenceHandle) -> DeviceResult<u64> {
        let call = DeviceCall::Elapsed;
        self.call(call, || {
            let (start_event, end_event) = (self.fences.event(call, start)?, self.fences.event(call, end)?);
            if !self.timing {
                return Err(invalid(call, "this device was opened without timing; set `CudaConfig::timing`"));
            }
            for (fence, event) in [(start, &start_event), (end, &end_event)] {
                if !event.query(call)? {
                    return Err(invalid(call, format!("{fence:?} is not complete")));
                }
            }
            Ok(u64::try_from(start_event.elapsed_ns(call, end_event)?).unwrap_or(0))
        })
    }

    fn release_fence(&self, fence: FenceHandle) {
        if self.fences.release(fence) {
            self.tally.fences_released.fetch_add(1, Ordering::Relaxed);
            if self.timeline.is_on() {
                self.timeline.released(fence);
            }
        }
    }

    fn begin_capture(&self, stream: StreamId) -> DeviceResult<()> {
        self.call(DeviceCall::BeginCapture, || self.streams.begin_capture(stream))
    }

    fn end_capture(&self, stream: StreamId) -> DeviceResult<()> {
        self.call(DeviceCall::EndCapture, || self.streams.end_capture(stream))
    }

    fn is_capturing(&self) -> bool {
        self.streams.is_capturing()
    }

    fn reserve(&self, bytes: u64) -> DeviceResult<Address> {
        self.beside_captures(DeviceCall::Reserve, || self.memory.lock().reserve(bytes))
    }

    fn unreserve(&self, address: Address, bytes: u64) -> DeviceResult<()> {
        self.beside_captures(DeviceCall::Unreserve, || self.memory.lock().unreserve(address, bytes))
    }

    fn create(&self, bytes: u64) -> DeviceResult<PageHandle> {
        self.beside_captures(DeviceCall::Create, || self.memory.lock().create(bytes))
    }

    fn map(&self, page: PageHandle, address: Address) -> DeviceResult<()> {
        self.beside_captures(DeviceCall::Map, || self.memory.lock().map(page, address))
    }

    fn set_access(&self, address: Address, bytes: u64) -> DeviceResult<()> {
        self.beside_captures(DeviceCall::SetAccess, || self.memory.lock().set_access(address, bytes))
    }

    fn unmap(&self, address: Address, bytes: u64) -> DeviceResult<()> {
        self.beside_captures(DeviceCall::Unmap, || self.memory.lock().unmap(address, bytes))
    }

    fn release(&self, page: PageHandle) -> DeviceResult<()> {
        self.beside_captures(DeviceCall::Release, || self.memory.lock().release(page))
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        self.beside_captures(DeviceCall::MemoryInfo, || self.memory.lock().info())
    }

    fn processes(&self) -> Vec<ProcessMemory> {
        // As in `bind`: what waits there is the program's.
        let waiting = self.context.check_err();
        let uuid = self.context.uuid();
        self.context.record_err(waiting);
        uuid.map_or_else(|_| Vec::new(), |uuid| nvml::processes(uuid.bytes.map(|byte| byte as u8)))
    }

    fn launch(&self, stream: StreamId, operation: Operation) -> DeviceResult<()> {
        let call = DeviceCall::Launch;
        self.call(call, || {
            let known = self.streams.get(call, stream)?;
            let Operation { name, tag, operands, body, .. } = operation;
            check_operands(call, &operands)?;
            check_disjoint(call, &operands)?;
            let described = |operands| Described { name: name.clone(), tag, kind: ExecutedKind::Kernel, operands };
            match body {
                Body::Nothing => Ok(()),
                Body::Driver(body) => {
                    self.timed(stream, &known, described(operands), || body(driver::handle(&known.stream)))
                }
                Body::Host(_) if self.streams.captures(stream) || driver::is_capturing(&known.stream) => Ok(()),
                Body::Host(body) => self.timed(stream, &known, described(operands.clone()), || {
                    self.run_on_host(stream, &known, (&*name, &*operands), body)
                }),
            }
        })
    }

    fn copy_to_device(
        &self,
        stream: StreamId,
        destination: Address,
        source: &HostMemory,
        offset: u64,
        bytes: u64,
    ) -> DeviceResult<()> {
        let device = (ByteRange::new(destination, bytes), Access::Write);
        self.copy(DeviceCall::CopyToDevice, stream, device, (source, offset))
    }

    fn copy_to_host(
        &self,
        stream: StreamId,
        destination: &HostMemory,
        offset: u64,
        source: Address,
        bytes: u64,
    ) -> DeviceResult<()> {
        let device = (ByteRange::new(source, bytes), Access::Read);
        self.copy(DeviceCall::CopyToHost, stream, device, (destination, offset))
    }
}

/// Looks at an event again and again, at first without a pause.
fn wait_until(event: &Event, start: Instant, timeout: Duration) -> DeviceResult<Waited> {
    let mut pause = Duration::from_micros(1);
    loop {
        if event.query(DeviceCall::Synchronize)? {
            return Ok(Waited::Complete);
        }
        let waited = start.elapsed();
        if waited >= timeout {
            return Ok(Waited::TimedOut);
        }
        if waited < LONGEST_PAUSE {
            std::hint::spin_loop();
            continue;
        }
        std::thread::sleep(pause.min(timeout - waited));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
