//! The allocator on the simulated device, driven by the steps of a program.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use highwater::device::sim::{Mode, SimConfig, SimDevice};
use highwater::device::{
    Access, Address, Body, ByteRange, Cost, CostModel, Device, DeviceCall, DeviceError, Operand, Operation, StreamId,
};
use highwater::{
    AllocError, Allocator, Buffer, Capture, Fence, Graph, Policy, PressureGuard, Settings, Stream, StreamError,
};

use super::op::{Op, Relief, Setup, pick};
use super::predict::{Outcome, Shown};
use super::stepped::SteppedDevice;

/// Memory that a program holds.
enum Held {
    Buffer(Buffer<u8>),
    Raw(Address),
}

/// What a program holds.
#[derive(Default)]
struct Program {
    streams: Vec<Stream>,
    buffers: Vec<Held>,
    fences: Vec<(Fence, StreamId)>,
    captures: Vec<Capture>,
    graphs: Vec<Graph>,
    stash: Vec<Held>,
    created: usize,
    /// What callbacks came to.
    log: Vec<Outcome>,
}

/// The allocator with its program.
pub(super) struct Real {
    sim: Arc<SimDevice>,
    device: Arc<SteppedDevice>,
    allocator: Allocator,
    program: Arc<Mutex<Program>>,
    callbacks: Vec<PressureGuard>,
    hogged: Vec<highwater::device::PageHandle>,
}

impl Real {
    pub(super) fn new(setup: &Setup) -> Self {
        let sim = SimDevice::new(SimConfig {
            cost: CostModel::free(),
            mode: Mode::Timed,
            memory_bytes: setup.granules * setup.granularity_bytes,
            granularity_bytes: setup.granularity_bytes,
            workers: 0,
            bodies: false,
            timeline: false,
            ..SimConfig::default()
        });
        let device = SteppedDevice::new(sim.clone());
        let settings = Settings::builder()
            .memory_limit_bytes(setup.limit_bytes)
            .host_wait_timeout(Duration::from_nanos(setup.timeout_ns))
            .lending(false)
            .policy(Policy::Grow)
            .page_time(1.0)
            .history_kib(0)
            .build()
            .expect("the limit is above 0");
        let allocator = Allocator::with_settings(device.clone(), settings).expect("the device tells its memory");
        let program = Program { streams: vec![allocator.default_stream()], ..Program::default() };
        let program = Arc::new(Mutex::new(program));
        Real { sim, device, allocator, program, callbacks: Vec::new(), hogged: Vec::new() }
    }

    fn program(&self) -> MutexGuard<'_, Program> {
        lock(&self.program)
    }

    /// Does a step; what came of it, and of callbacks meanwhile, in order.
    pub(super) fn step(&mut self, op: &Op) -> Vec<Outcome> {
        let outcome = self.answer(op);
        let mut log = std::mem::take(&mut self.program().log);
        log.extend(outcome);
        log
    }

    fn answer(&mut self, op: &Op) -> Option<Outcome> {
        Some(match *op {
            Op::Alloc { stream, bytes } => {
                let stream = self.stream_at(stream);
                let (outcome, held) = alloc(&stream, bytes);
                self.program().buffers.extend(held);
                outcome
            }
            Op::AllocRaw { stream, bytes } => match self.allocator.alloc_raw(&self.stream_at(stream), bytes) {
                Ok(address) => {
                    self.program().buffers.extend((bytes > 0).then_some(Held::Raw(address)));
                    Outcome::Address(address.0)
                }
                Err(error) => refused(error),
            },
            Op::Free { buffer, elsewhere } => {
                let held = self.take_buffer(buffer)?;
                let allocator = self.allocator.clone();
                if elsewhere {
                    std::thread::spawn(move || free(&allocator, held)).join().expect("a free does not panic");
                } else {
                    free(&allocator, held);
                }
                Outcome::Done
            }
            Op::FreeInside { buffer, call } => {
                if self.device.is_armed() {
                    return None;
                }
                let held = Armed { allocator: self.allocator.clone(), held: Some(self.take_buffer(buffer)?) };
                self.device.arm(call, move || drop(held));
                Outcome::Done
            }
            Op::Launch { stream, ref operands, ns } => self.launch(stream, operands, ns)?,
            Op::RecordStream { buffer, stream } => {
                let program = self.program();
                let held = &program.buffers[pick(program.buffers.len(), buffer)?];
                let stream = &program.streams[stream % program.streams.len()];
                match held {
                    Held::Buffer(buffer) => buffer.record_stream(stream),
                    Held::Raw(address) => {
                        self.allocator.record_stream_raw(*address, stream).expect("the block is known");
                    }
                }
                Outcome::Done
            }
            Op::RecordUse { buffer, stream, fence } => {
                let program = self.program();
                let held = &program.buffers[pick(program.buffers.len(), buffer)?];
                let (fence, own) = &program.fences[pick(program.fences.len(), fence)?];
                let stream = match stream {
                    Some(stream) => &program.streams[stream % program.streams.len()],
                    None => program.streams.iter().find(|stream| stream.id() == *own)?,
                };
                let Held::Buffer(buffer) = held else { return None };
                done(buffer.record_use(stream, fence))
            }
            Op::Guards { buffer, ref streams, ns } => self.guards(buffer, streams, ns)?,
            Op::Escape { buffer } => {
                let program = self.program();
                match &program.buffers[pick(program.buffers.len(), buffer)?] {
                    Held::Buffer(buffer) => Outcome::Address(buffer.device_address().0),
                    Held::Raw(address) => Outcome::Address(address.0),
                }
            }
            Op::Record { stream } => {
                let stream = self.stream_at(stream);
                match stream.record() {
                    Ok(fence) => {
                        self.program().fences.push((fence, stream.id()));
                        Outcome::Done
                    }
                    Err(error) => failed(error),
                }
            }
            Op::Wait { stream, fence } => {
                let fence = self.fence(fence)?;
                done(self.stream_at(stream).wait(&fence))
            }
            Op::Ask { fence } => match self.fence(fence)?.is_complete() {
                Ok(complete) => Outcome::Is(complete),
                Err(error) => failed(error),
            },
            Op::HostWait { fence, timeout_ns } => done(self.fence(fence)?.wait(Duration::from_nanos(timeout_ns))),
            Op::DropFence { fence } => {
                let mut program = self.program();
                let at = pick(program.fences.len(), fence)?;
                program.fences.remove(at);
                Outcome::Done
            }
            Op::HostWork { ns } => {
                self.sim.host_work(ns);
                Outcome::Done
            }
            Op::Trim { target } => Outcome::Bytes(self.allocator.trim(target)),
            Op::CreateStream => {
                let mut program = self.program();
                program.created += 1;
                match self.allocator.create_stream(&format!("s{}", program.created)) {
                    Ok(stream) => {
                        program.streams.push(stream);
                        Outcome::Done
                    }
                    Err(error) => failed(error),
                }
            }
            Op::DropStream { stream } => {
                let mut program = self.program();
                let at = 1 + pick(program.streams.len() - 1, stream)?;
                program.streams.remove(at);
                Outcome::Done
            }
            Op::BeginCapture { stream } => begin_capture(&mut self.program(), stream),
            Op::EndCapture { capture } => end_capture(&mut self.program(), capture)?,
            Op::DropCapture { capture } => {
                let mut program = self.program();
                let at = pick(program.captures.len(), capture)?;
                drop(program.captures.remove(at));
                Outcome::Done
            }
            Op::DropGraph { graph } => {
                let mut program = self.program();
                let at = pick(program.graphs.len(), graph)?;
                program.graphs.remove(at);
                Outcome::Done
            }
            Op::Stash { buffer } => {
                let held = self.take_buffer(buffer)?;
                self.program().stash.push(held);
                Outcome::Done
            }
            Op::Unstash => {
                let mut program = self.program();
                if program.stash.is_empty() {
                    return None;
                }
                let held = program.stash.remove(0);
                program.buffers.push(held);
                Outcome::Done
            }
            Op::OnPressure(relief) => {
                let (program, allocator) = (self.program.clone(), self.allocator.clone());
                let callback = move |_| relieve(&allocator, &program, relief);
                self.callbacks.push(self.allocator.on_pressure(callback));
                Outcome::Done
            }
            Op::EndPressure { callback } => {
                let at = pick(self.callbacks.len(), callback)?;
                drop(self.callbacks.remove(at));
                Outcome::Done
            }
            Op::Fail { call, nth } => {
                self.sim.fail_nth(call, nth);
                Outcome::Done
            }
            Op::Hog { granules } => {
                let created = self.sim.create(granules * self.sim.properties().granularity_bytes);
                self.hogged.extend(created.iter());
                Outcome::Is(created.is_ok())
            }
            Op::Unhog => {
                let released = self.sim.release(*self.hogged.last()?).is_ok();
                if released {
                    self.hogged.pop();
                }
                Outcome::Is(released)
            }
            Op::ResetPeaks => {
                self.allocator.reset_peak_memory_stats();
                Outcome::Done
            }
        })
    }

    fn stream_at(&self, index: usize) -> Stream {
        let program = self.program();
        program.streams[index % program.streams.len()].clone()
    }

    fn fence(&self, index: usize) -> Option<Fence> {
        let program = self.program();
        Some(program.fences[pick(program.fences.len(), index)?].0.clone())
    }

    fn take_buffer(&self, index: usize) -> Option<Held> {
        let mut program = self.program();
        let at = pick(program.buffers.len(), index)?;
        Some(program.buffers.remove(at))
    }

    fn launch(&self, stream: usize, operands: &[usize], ns: u64) -> Option<Outcome> {
        let program = self.program();
        let stream = &program.streams[stream % program.streams.len()];
        let mut launch = stream.launch("work", Cost::exact(ns));
        let mut known = Vec::new();
        for &operand in operands {
            let at = pick(program.buffers.len(), operand)?;
            if let Held::Buffer(buffer) = &program.buffers[at]
                && !known.contains(&at)
            {
                known.push(at);
                launch = launch.read_write(buffer);
            }
        }
        Some(done(launch.submit()))
    }

    fn guards(&self, buffer: usize, streams: &[usize], ns: u64) -> Option<Outcome> {
        let program = self.program();
        let Held::Buffer(buffer) = &program.buffers[pick(program.buffers.len(), buffer)?] else { return None };
        let (mut guards, mut outcome) = (Vec::new(), Outcome::Done);
        for &stream in streams {
            match buffer.on(&program.streams[stream % program.streams.len()]) {
                Ok(guard) => guards.push(guard),
                Err(error) => {
                    outcome = failed(error);
                    break;
                }
            }
        }
        for guard in &guards {
            let range = ByteRange::new(guard.address(), guard.len() as u64);
            let operation = Operation {
                name: "past the allocator".into(),
                tag: 0,
                cost: Cost::exact(ns),
                operands: vec![Operand { range, access: Access::ReadWrite }],
                body: Body::Nothing,
            };
            if let Err(error) = self.device.launch(guard.stream().id(), operation) {
                outcome = fault(error);
            }
        }
        while let Some(guard) = guards.pop() {
            drop(guard);
        }
        Some(outcome)
    }

    /// What the statistics and the device's counters say now.
    pub(super) fn shown(&self) -> Shown {
        let stats = self.allocator.memory_stats();
        let counters = self.sim.counters();
        Shown {
            now_ns: self.sim.now_ns(),
            live: stats.live,
            reserved: stats.reserved,
            bytes: [
                ("rounding", stats.rounding_bytes),
                ("pending", stats.pending_bytes),
                ("cached", stats.cached_bytes),
                ("stray", stats.stray_bytes),
            ]
            .into(),
            pending_by_stream: stats.pending_bytes_by_stream,
            rungs: stats.requests_by_rung,
            counts: [
                ("allocations", stats.allocations),
                ("frees", stats.frees),
                ("out_of_memory", stats.out_of_memory),
                ("handles_created", stats.handles_created),
                ("handles_released", stats.handles_released),
                ("waits_inserted", stats.waits_inserted),
                ("pages_moved", stats.pages_moved),
                ("pages_remapped", stats.pages_remapped),
                ("host_stalls", stats.host_stalls),
                ("host_stall_ns", stats.host_stall_ns),
                ("fences_recorded", stats.fences_recorded),
                ("device_blocked", counters.host_synchronizations),
                ("device_blocked_ns", counters.host_blocked_ns),
            ]
            .into(),
            calls: DeviceCall::ALL.iter().map(|&call| (call, counters.of(call))).collect(),
        }
    }

    /// The allocator's own sweep.
    pub(super) fn check(&self) -> Result<(), String> {
        self.allocator.check()
    }

    /// Whoever was to free a block inside a call does it now.
    pub(super) fn disarm(&self) {
        self.device.disarm();
    }

    /// Drops everything that is left, the allocator last; the bytes that the device then holds.
    pub(super) fn end(self) -> Result<u64, String> {
        let Real { sim, device, allocator, program, callbacks, hogged } = self;
        drop(callbacks);
        drop(std::mem::take(&mut *lock(&program)));
        drop((program, device, allocator));
        for page in hogged {
            sim.release(page).map_err(|error| error.to_string())?;
        }
        let info = sim.memory_info().map_err(|error| error.to_string())?;
        Ok(info.total - info.free)
    }
}

/// A block that is freed when this is dropped.
struct Armed {
    allocator: Allocator,
    held: Option<Held>,
}

impl Drop for Armed {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            free(&self.allocator, held);
        }
    }
}

fn lock(program: &Mutex<Program>) -> MutexGuard<'_, Program> {
    program.lock().expect("no step panics")
}

fn free(allocator: &Allocator, held: Held) {
    match held {
        Held::Buffer(buffer) => drop(buffer),
        Held::Raw(address) => allocator.free_raw(address).expect("the block is known"),
    }
}

fn alloc(stream: &Stream, bytes: u64) -> (Outcome, Option<Held>) {
    match stream.alloc::<u8>(usize::try_from(bytes).expect("64 bits")) {
        Ok(buffer) => (Outcome::Address(address_of(&buffer)), Some(Held::Buffer(buffer))),
        Err(error) => (refused(error), None),
    }
}

/// The address of a buffer, without making it known.
fn address_of(buffer: &Buffer<u8>) -> u64 {
    let launch = buffer.stream().launch("address", Cost::exact(0)).read(buffer);
    launch.operands()[0].range.address.0
}

fn begin_capture(program: &mut Program, stream: usize) -> Outcome {
    match program.streams[stream % program.streams.len()].begin_capture() {
        Ok(capture) => {
            program.captures.push(capture);
            Outcome::Done
        }
        Err(error) => failed(error),
    }
}

fn end_capture(program: &mut Program, capture: usize) -> Option<Outcome> {
    let at = pick(program.captures.len(), capture)?;
    Some(match program.captures.remove(at).end() {
        Ok(graph) => {
            program.graphs.push(graph);
            Outcome::Done
        }
        Err(error) => failed(error),
    })
}

/// What a pressure callback does.
fn relieve(allocator: &Allocator, program: &Mutex<Program>, relief: Relief) {
    match relief {
        Relief::FreeFirst => {
            let mut program = lock(program);
            if !program.stash.is_empty() {
                let held = program.stash.remove(0);
                free(allocator, held);
            }
        }
        Relief::FreeAll => {
            let stash = std::mem::take(&mut lock(program).stash);
            stash.into_iter().for_each(|held| free(allocator, held));
        }
        Relief::Allocate { stream, bytes } => {
            let stream = {
                let program = lock(program);
                program.streams[stream % program.streams.len()].clone()
            };
            let (outcome, held) = alloc(&stream, bytes);
            let mut program = lock(program);
            program.log.push(outcome);
            program.stash.extend(held);
        }
        Relief::Capture { stream } => {
            let mut program = lock(program);
            let outcome = match end_capture(&mut program, 0) {
                Some(outcome) => outcome,
                None => begin_capture(&mut program, stream),
            };
            program.log.push(outcome);
        }
    }
}

fn done(result: Result<(), StreamError>) -> Outcome {
    match result {
        Ok(()) => Outcome::Done,
        Err(error) => failed(error),
    }
}

fn failed(error: StreamError) -> Outcome {
    match error {
        StreamError::Capturing { .. } => Outcome::Capturing,
        StreamError::OtherStream { .. } => Outcome::OtherStream,
        StreamError::TimedOut { .. } => Outcome::TimedOut,
        StreamError::Device { source, .. } => fault(source),
        error => Outcome::Unexpected(error.to_string()),
    }
}

fn refused(error: AllocError) -> Outcome {
    match error {
        AllocError::OutOfMemory(mut report) => {
            report.refused.clear();
            report.live_sites.clear();
            report.cause = None;
            Outcome::OutOfMemory(report)
        }
        AllocError::Device { source, .. } => fault(source),
        error => Outcome::Unexpected(error.to_string()),
    }
}

fn fault(error: DeviceError) -> Outcome {
    match error {
        DeviceError::Injected { call, .. } => Outcome::Failed(call),
        // A capture whose end failed twice goes on.
        DeviceError::InvalidValue { call: DeviceCall::BeginCapture, .. } => Outcome::Failed(DeviceCall::BeginCapture),
        error => Outcome::Unexpected(error.to_string()),
    }
}
