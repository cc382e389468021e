//! The state of a cluster, and how its streams move on.
//!
//! Invariants between calls:
//! - `events` holds exactly the steps that are enabled: the end of each running operation, and the start of each head
//!   of a stream whose waits are done; each stands also at its stream, or at its communicator;
//! - `devices[d].running` names the streams of `d` on which an operation runs;
//! - a device with a fault has no events, no queued work and no blocked host.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::thread::ThreadId;

use super::adversary::Adversary;
use super::collective::Group;
use super::default_stream::StreamKind;
use super::faults::Injections;
use super::memory::{Memory, Piece};
use super::pool::Pool;
use super::queue::{Entry, Event, EventKind, Fence, PendingFence, Running, Stream, Work, stream_id};
use super::timeline::Hazard;
use super::{Mode, SimConfig};
use crate::{CallCounters, DeviceCall, DeviceError, Executed, FenceHandle, StreamId};

/// Everything that the cluster's lock protects.
pub(super) struct State {
    pub(super) config: SimConfig,
    /// The time up to which the devices have been simulated, ns or steps.
    pub(super) now_ns: u64,
    pub(super) devices: Vec<DeviceState>,
    /// One for each device.
    pub(super) hosts: Vec<Host>,
    /// The host whose code runs, during a run.
    pub(super) baton: Option<usize>,
    /// Whether a run is under way.
    pub(super) in_session: bool,
    /// The first rank that panicked in this run.
    pub(super) first_panic: Option<usize>,
    /// All streams ever made, by index.
    pub(super) streams: Vec<Stream>,
    pub(super) events: BTreeSet<Event>,
    pub(super) fences: BTreeMap<FenceHandle, Fence>,
    pub(super) groups: Vec<Group>,
    pub(super) adversary: Option<Adversary>,
    pub(super) keep_timeline: bool,
    pub(super) timeline: Vec<Executed>,
    pub(super) hazards: Vec<Hazard>,
    next_fence: u64,
    next_operation: u64,
    /// Streams whose head may have changed.
    changed: VecDeque<usize>,
    pub(super) pool: Pool,
}

/// One device.
pub(super) struct DeviceState {
    pub(super) memory: Memory,
    pub(super) streams: Vec<usize>,
    /// The default streams of threads, where each has another.
    pub(super) thread_streams: Vec<(ThreadId, usize)>,
    pub(super) running: BTreeSet<usize>,
    pub(super) counters: CallCounters,
    pub(super) fault: Option<DeviceError>,
    pub(super) injections: Injections,
    /// Streams that capture, each with the call that spoilt its capture.
    pub(super) captures: BTreeMap<StreamId, Option<DeviceCall>>,
}

/// The host of one device.
pub(super) struct Host {
    pub(super) clock_ns: u64,
    pub(super) status: HostStatus,
}

pub(super) enum HostStatus {
    /// It can go on; when it was blocked, how that ended.
    Runnable(Option<Wake>),
    Blocked(Blocked),
    /// Its part of the run is over.
    Finished,
}

/// What a host waits for: that `stream` has completed `position` entries.
#[derive(Clone, Copy)]
pub(super) struct Blocked {
    pub(super) device: usize,
    pub(super) stream: usize,
    pub(super) position: u64,
    pub(super) deadline_ns: Option<u64>,
}

/// How blocking ended.
pub(super) enum Wake {
    Complete,
    TimedOut,
    Fault(DeviceError),
}

impl State {
    pub(super) fn new(devices: u32, config: SimConfig) -> Self {
        let adversary = match config.mode {
            Mode::Timed => None,
            Mode::Adversarial { seed } => Some(Adversary::new(seed)),
        };
        let mut state = State {
            now_ns: 0,
            devices: Vec::new(),
            hosts: Vec::new(),
            baton: None,
            in_session: false,
            first_panic: None,
            streams: Vec::new(),
            events: BTreeSet::new(),
            fences: BTreeMap::new(),
            groups: Vec::new(),
            adversary,
            keep_timeline: config.timeline,
            timeline: Vec::new(),
            hazards: Vec::new(),
            next_fence: 1,
            next_operation: 0,
            changed: VecDeque::new(),
            pool: Pool::new(config.workers),
            config,
        };
        for ordinal in 0..devices {
            state.devices.push(DeviceState {
                memory: Memory::new(ordinal, state.config.memory_bytes, state.config.granularity_bytes),
                streams: Vec::new(),
                thread_streams: Vec::new(),
                running: BTreeSet::new(),
                counters: CallCounters::default(),
                fault: None,
                injections: Injections::default(),
                captures: BTreeMap::new(),
            });
            state.hosts.push(Host { clock_ns: 0, status: HostStatus::Runnable(None) });
            let kind = state.config.default_stream.kind_of_first();
            state.add_stream(ordinal as usize, "default", kind);
        }
        state
    }

    pub(super) fn add_stream(&mut self, device: usize, name: &str, kind: StreamKind) -> StreamId {
        let index = self.streams.len();
        self.streams.push(Stream::new(device, name, kind));
        self.devices[device].streams.push(index);
        stream_id(index)
    }

    /// A number for an operation that is about to be submitted.
    pub(super) fn next_operation(&mut self) -> u64 {
        let id = self.next_operation;
        self.next_operation += 1;
        id
    }

    /// Puts an operation or a wait at the end of a queue, behind what its stream has to wait for implicitly.
    pub(super) fn submit(&mut self, stream: usize, entry: Entry) {
        self.order_implicitly(stream);
        self.push(stream, entry);
    }

    /// Puts an operation or a wait at the end of a queue.
    pub(super) fn push(&mut self, stream: usize, entry: Entry) {
        let queue = &mut self.streams[stream];
        if let Entry::Operation(operation) = &entry {
            queue.last_operation = Some(operation.id);
        }
        queue.submitted += 1;
        queue.queue.push_back(entry);
        if queue.queue.len() == 1 && queue.running.is_none() {
            self.changed.push_back(stream);
            self.update_heads();
        }
    }

    /// A fence after everything that stands in the queue.
    pub(super) fn record(&mut self, stream: usize) -> FenceHandle {
        let handle = FenceHandle(self.next_fence);
        self.next_fence += 1;
        self.order_implicitly(stream);
        let queue = &mut self.streams[stream];
        let (device, position, last_operation) = (queue.device, queue.submitted, queue.last_operation);
        let fails = self.devices[device].injections.fence_is_due();
        queue.fences.push_back(PendingFence { position, fence: handle, fails });
        self.fences.insert(handle, Fence { device, stream, position, completed_ns: None, last_operation });
        self.complete_fences(stream);
        handle
    }

    /// Takes one enabled step.
    pub(super) fn step(&mut self, event: Event) {
        self.events.remove(&event);
        self.now_ns = match self.config.mode {
            Mode::Timed => self.now_ns.max(event.at_ns),
            Mode::Adversarial { .. } => self.now_ns + 1,
        };
        let streams = match event.communicator {
            None => {
                self.streams[event.stream].event = None;
                vec![event.stream]
            }
            Some(communicator) => {
                let group = &mut self.groups[communicator];
                group.event = None;
                group.ready().expect("a collective moves with all its parts")
            }
        };
        match event.kind {
            EventKind::Start => self.start(&streams, event.communicator),
            EventKind::End => self.end(&streams, event.communicator),
        }
        self.update_heads();
    }

    /// When an operation that starts now ends. Time means nothing in adversarial mode.
    fn end_after(&self, duration_ns: u64) -> u64 {
        match self.config.mode {
            Mode::Timed => self.now_ns.saturating_add(duration_ns),
            Mode::Adversarial { .. } => 0,
        }
    }

    fn enable_at(&self) -> u64 {
        self.end_after(0)
    }

    // ---- starting

    /// Starts the operations at the heads of `streams`: one, or all parts of a collective.
    fn start(&mut self, streams: &[usize], communicator: Option<usize>) {
        let mut heads = Vec::with_capacity(streams.len());
        for &stream in streams {
            match self.resolve_head(stream) {
                Ok(pieces) => heads.push(pieces),
                Err(fault) => return self.poison(self.streams[stream].device, &fault),
            }
        }
        let mut operations = Vec::with_capacity(streams.len());
        for &stream in streams {
            let Some(Entry::Operation(operation)) = self.streams[stream].queue.pop_front() else {
                unreachable!("a start is enabled for an operation at the head only");
            };
            operations.push(*operation);
        }
        let at_ns = self.end_after(operations[0].duration_ns);
        let effects = match communicator {
            None => vec![self.begin(self.streams[streams[0]].device, &mut operations[0], &heads[0])],
            Some(_) => self.begin_collective(streams, &mut operations, &heads),
        };
        for (((&stream, operation), pieces), effect) in streams.iter().zip(operations).zip(heads).zip(effects) {
            self.find_hazards(stream, &operation, &pieces);
            let start_ns = self.now_ns;
            let queue = &mut self.streams[stream];
            let waited = std::mem::take(&mut queue.waited);
            queue.running = Some(Running { operation, start_ns, waited, pieces, effect });
            self.devices[queue.device].running.insert(stream);
        }
        let device = self.streams[streams[0]].device;
        let event = Event { at_ns, kind: EventKind::End, device, stream: streams[0], communicator };
        self.enable(event);
    }

    fn enable(&mut self, event: Event) {
        match event.communicator {
            None => self.streams[event.stream].event = Some(event),
            Some(communicator) => self.groups[communicator].event = Some(event),
        }
        self.events.insert(event);
    }

    /// Where the operands of the head are, physically.
    fn resolve_head(&self, stream: usize) -> Result<Vec<Piece>, DeviceError> {
        let queue = &self.streams[stream];
        let Some(Entry::Operation(operation)) = queue.queue.front() else {
            unreachable!("a start is enabled for an operation at the head only");
        };
        let mut pieces = Vec::with_capacity(operation.operands.len());
        for (index, operand) in operation.operands.iter().enumerate() {
            self.devices[queue.device].memory.resolve(index, operand.range, &mut pieces).map_err(|address| {
                DeviceError::IllegalAddress {
                    operation: operation.name.to_string(),
                    stream: queue.name.to_string(),
                    address,
                }
            })?;
        }
        Ok(pieces)
    }

    // ---- ending

    /// Ends what runs on `streams`: one operation, or all parts of a collective.
    fn end(&mut self, streams: &[usize], communicator: Option<usize>) {
        if let Some(communicator) = communicator {
            let group = &mut self.groups[communicator];
            group.rounds.remove(&group.done);
            group.done += 1;
        }
        for &stream in streams {
            let running = self.streams[stream].running.take().expect("an end is enabled for a running operation only");
            let device = self.streams[stream].device;
            self.devices[device].running.remove(&stream);
            if let Err(message) = self.commit(device, running.effect, &running.pieces) {
                let fault = DeviceError::BodyPanicked {
                    operation: running.operation.name.to_string(),
                    stream: self.streams[stream].name.to_string(),
                    message,
                };
                self.poison(device, &fault);
                continue;
            }
            if self.keep_timeline {
                self.timeline.push(Executed {
                    id: running.operation.id,
                    device: device as u32,
                    stream: stream_id(stream),
                    stream_name: self.streams[stream].name.clone(),
                    name: running.operation.name,
                    tag: running.operation.tag,
                    submitted_ns: running.operation.submitted_ns,
                    start_ns: running.start_ns,
                    end_ns: self.now_ns,
                    kind: running.operation.kind,
                    operands: running.operation.operands,
                    waited: running.waited,
                });
            }
            self.advance(stream);
            self.changed.push_back(stream);
        }
        if let Some(communicator) = communicator {
            self.enable_collective(communicator);
        }
    }

    /// One more entry of `stream` is behind.
    fn advance(&mut self, stream: usize) {
        self.streams[stream].completed += 1;
        self.changed.extend(std::mem::take(&mut self.streams[stream].waiters));
        self.complete_fences(stream);
    }

    fn complete_fences(&mut self, stream: usize) {
        let queue = &mut self.streams[stream];
        while queue.fences.front().is_some_and(|pending| pending.position <= queue.completed) {
            let pending = queue.fences.pop_front().expect("there is a first one");
            if let Some(nth) = pending.fails {
                let device = queue.device;
                return self.poison(device, &DeviceError::Injected { call: DeviceCall::Record, nth });
            }
            // A fence that was released is gone.
            if let Some(fence) = self.fences.get_mut(&pending.fence) {
                fence.completed_ns = Some(self.now_ns);
            }
        }
    }

    // ---- heads

    /// Passes waits that are done, and enables the operations behind them.
    fn update_heads(&mut self) {
        while let Some(stream) = self.changed.pop_front() {
            if self.streams[stream].running.is_some() || self.streams[stream].event.is_some() {
                continue;
            }
            match self.streams[stream].queue.front() {
                None => {}
                Some(Entry::Wait(wait)) => {
                    let (target, last_operation) = (wait.stream, wait.last_operation);
                    if self.streams[target].completed < wait.position {
                        self.streams[target].waiters.push(stream);
                        continue;
                    }
                    self.streams[stream].queue.pop_front();
                    self.streams[stream].waited.extend(last_operation);
                    self.advance(stream);
                    self.changed.push_back(stream);
                }
                Some(Entry::Operation(operation)) => {
                    if let Work::Collective(part) = &operation.work {
                        let (communicator, sequence) = (part.communicator, part.sequence);
                        self.arrive_at_head(stream, communicator, sequence);
                    } else {
                        let device = self.streams[stream].device;
                        let at_ns = self.enable_at();
                        self.enable(Event { at_ns, kind: EventKind::Start, device, stream, communicator: None });
                    }
                }
            }
        }
    }

    fn arrive_at_head(&mut self, stream: usize, communicator: usize, sequence: u64) {
        let group = &mut self.groups[communicator];
        let rank = group.handle.rank_of(self.streams[stream].device).expect("checked when it was submitted");
        let round = group.rounds.get_mut(&sequence).expect("a collective that has not ended is known");
        round[rank].as_mut().expect("it was submitted").at_head = true;
        self.enable_collective(communicator);
    }

    /// Enables the start of the communicator's next collective, when all ranks are there.
    fn enable_collective(&mut self, communicator: usize) {
        let group = &self.groups[communicator];
        if group.event.is_some() || group.broken {
            return;
        }
        if let Some(streams) = group.ready() {
            let (at_ns, stream) = (self.enable_at(), streams[0]);
            let device = self.streams[stream].device;
            self.enable(Event { at_ns, kind: EventKind::Start, device, stream, communicator: Some(communicator) });
        }
    }
}
