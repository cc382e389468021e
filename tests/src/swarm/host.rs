//! The host of one rank: carries a program's steps out, keeps the oracle informed, and judges every answer.
//!
//! The program orders its own data by fences, and nothing else: that memory is not somebody else's yet is left to the
//! allocator.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use highwater::device::sim::Communicator;
use highwater::device::{Device, DeviceCall, DeviceError};
use highwater::{AllocError, Allocator, Fence, Graph, Policy, PressureGuard, Settings, Stream, StreamError};

use super::bytes::Wrong;
use super::oracle::{Clock, OpId, Oracle};
use super::pieces::{HeldTable, Piece};
use super::places::{AliasPage, Capturing, HostSlot};
use super::program::{Action, Config, Program};
use super::verdict::{Coverage, Failure, Rule, Transcript};
use super::watched::Watched;

/// As long as it takes.
pub(super) const LONG: Duration = Duration::from_secs(10_000_000);
/// Steps between two looks at the books.
const CHECK_EVERY: usize = 8;

/// A stream, with the oracle's number.
#[derive(Clone)]
pub(super) struct Lane {
    pub(super) number: usize,
    pub(super) allocator: usize,
    pub(super) stream: Stream,
}

/// A fence, with what it comes after.
#[derive(Clone)]
pub(super) struct Mark {
    pub(super) fence: Fence,
    pub(super) clock: Clock,
}

/// Why a step did not do what it says. Most of that is allowed: [`Host::judge`] decides.
pub(super) enum Trouble {
    Alloc(AllocError),
    Stream(StreamError),
    Device(DeviceError),
    Broken(Failure),
}

impl From<AllocError> for Trouble {
    fn from(error: AllocError) -> Self {
        Trouble::Alloc(error)
    }
}

impl From<StreamError> for Trouble {
    fn from(error: StreamError) -> Self {
        Trouble::Stream(error)
    }
}

impl From<DeviceError> for Trouble {
    fn from(error: DeviceError) -> Self {
        Trouble::Device(error)
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Trouble::Broken(failure)
    }
}

/// One rank's host.
pub(super) struct Host<'a> {
    pub(super) program: &'a Program,
    pub(super) rank: u8,
    pub(super) device: Arc<Watched>,
    pub(super) communicator: Communicator,
    pub(super) allocators: Vec<Allocator>,
    pub(super) lanes: Vec<Lane>,
    /// Streams that were replaced while no last fence could be recorded.
    pub(super) kept: Vec<Lane>,
    /// Streams of pieces that are freed inside a call: not closed there.
    pub(super) graveyard: Vec<Stream>,
    pub(super) last_marks: BTreeMap<usize, Mark>,
    pub(super) op_marks: BTreeMap<OpId, Mark>,
    pub(super) fences: Vec<(usize, Mark)>,
    pub(super) pieces: Vec<Piece>,
    pub(super) pool: Arc<Mutex<Vec<Piece>>>,
    pub(super) held: HeldTable,
    pub(super) callbacks: Vec<PressureGuard>,
    pub(super) callbacks_ran: Arc<AtomicU64>,
    pub(super) capture: Option<Capturing>,
    pub(super) graphs: Vec<Graph>,
    pub(super) copies: Vec<HostSlot>,
    pub(super) aliases: Vec<AliasPage>,
    pub(super) oracle: Oracle,
    pub(super) wrong: Arc<Mutex<Vec<Wrong>>>,
    pub(super) met: Coverage,
    pub(super) transcript: Transcript,
    /// What the step said so far.
    pub(super) said: String,
    /// What all steps said, if somebody wants to read it.
    pub(super) story: Option<Vec<String>>,
    /// The step at hand.
    pub(super) step: usize,
    pub(super) fence_armed: bool,
    pub(super) poisoned: bool,
    pub(super) ever_captured: bool,
    /// Whether another rank may break down, so that nothing is sure to end.
    pub(super) lenient: bool,
}

impl<'a> Host<'a> {
    /// The world of a rank: allocators and streams.
    pub(super) fn new(
        program: &'a Program,
        rank: u8,
        device: Arc<Watched>,
        communicator: Communicator,
        tell: bool,
    ) -> Result<Self, Failure> {
        let config = &program.config;
        let settings = settings(config)?;
        let broken = |error: &dyn std::fmt::Display| Failure::new(Rule::Error, format!("at the start: {error}"));
        let mut allocators = Vec::new();
        for _ in 0..config.allocators {
            let allocator = Allocator::with_settings(device.clone(), settings.clone());
            allocators.push(allocator.map_err(|error| broken(&error))?);
        }
        let (mut oracle, mut lanes) = (Oracle::default(), Vec::new());
        for index in 0..config.streams.max(config.allocators) {
            let allocator = usize::from(index % config.allocators);
            let stream = if index == 0 && config.default_stream {
                allocators[0].default_stream()
            } else {
                allocators[allocator].create_stream(&format!("s{index}")).map_err(|error| broken(&error))?
            };
            lanes.push(Lane { number: oracle.add_stream(stream.id()), allocator, stream });
        }
        let fails = |action: &Action| matches!(action, Action::FailFence { .. });
        let lenient = config.ranks > 1 && program.steps.iter().any(|step| fails(&step.action));
        Ok(Host {
            program,
            rank,
            device,
            communicator,
            allocators,
            lanes,
            kept: Vec::new(),
            graveyard: Vec::new(),
            last_marks: BTreeMap::new(),
            op_marks: BTreeMap::new(),
            fences: Vec::new(),
            pieces: Vec::new(),
            pool: Arc::default(),
            held: HeldTable::default(),
            callbacks: Vec::new(),
            callbacks_ran: Arc::default(),
            capture: None,
            graphs: Vec::new(),
            copies: Vec::new(),
            aliases: Vec::new(),
            oracle,
            wrong: Arc::default(),
            met: Coverage::default(),
            transcript: Transcript::default(),
            said: String::new(),
            story: tell.then(Vec::new),
            step: 0,
            fence_armed: false,
            poisoned: false,
            ever_captured: false,
            lenient,
        })
    }

    /// Carries all steps of the rank out.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub(super) fn run(&mut self) -> Result<(), Failure> {
        for (index, step) in self.program.steps.iter().enumerate() {
            self.step = index;
            let mine = step.rank % self.program.config.ranks == self.rank;
            if mine || matches!(step.action, Action::Collective { .. }) {
                let result = self.guarded(|host| host.act(&step.action));
                if result? {
                    self.met.add(step.action.kind().name(), 1);
                }
                self.close_step(index)?;
            }
            if index % CHECK_EVERY == 0 {
                self.check()?;
            }
        }
        Ok(())
    }

    /// Does something, catches its panic and judges its trouble. Whether it went through.
    pub(super) fn guarded(&mut self, act: impl FnOnce(&mut Self) -> Result<(), Trouble>) -> Result<bool, Failure> {
        let step = Some(self.step);
        let result = catch_unwind(AssertUnwindSafe(|| act(self))).unwrap_or_else(|payload| {
            let text = payload.downcast_ref::<String>().cloned();
            let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err(Failure::new(Rule::Panic, text.unwrap_or_default()).into())
        });
        match result {
            Ok(()) => Ok(true),
            Err(trouble) => self.judge(trouble).map(|()| false).map_err(|failure| Failure { step, ..failure }),
        }
    }

    fn close_step(&mut self, index: usize) -> Result<(), Failure> {
        let said = std::mem::take(&mut self.said);
        self.transcript.note(&said);
        if let Some(story) = &mut self.story {
            story.push(format!("{index:4}  {}  {said}", self.program.steps[index]));
        }
        if !self.device.has_hook() {
            self.graveyard.clear();
        }
        let wrong = self.look_for_wrong_bytes();
        wrong.map_err(|failure| Failure { step: Some(index), ..failure })
    }

    /// Says something for the transcript and the story.
    pub(super) fn say(&mut self, text: impl AsRef<str>) {
        self.said.push_str(text.as_ref());
        self.said.push_str("; ");
    }

    fn look_for_wrong_bytes(&self) -> Result<(), Failure> {
        let wrong = lock(&self.wrong);
        // Bodies run side by side: the first by number, not by time.
        match wrong.iter().min_by_key(|wrong| wrong.op) {
            None => Ok(()),
            Some(wrong) => Err(Failure::new(Rule::Bytes, wrong.describe(&self.oracle))),
        }
    }

    /// The books of all allocators, and the device's.
    pub(super) fn check(&mut self) -> Result<(), Failure> {
        let step = Some(self.step);
        self.look_for_wrong_bytes().map_err(|failure| Failure { step, ..failure })?;
        let books = |what: String| Failure { step, ..Failure::new(Rule::Books, what) };
        let mut reserved: u64 = self.aliases.iter().map(|alias| alias.held_bytes()).sum();
        for allocator in &self.allocators {
            allocator.check().map_err(books)?;
            let stats = allocator.memory_stats();
            let parts =
                stats.live.now + stats.rounding_bytes + stats.pending_bytes + stats.cached_bytes + stats.stray_bytes;
            if parts != stats.reserved.now {
                return Err(books(format!("the parts are {parts} bytes: {stats:?}")));
            }
            self.met.add("stray handles", stats.stray_bytes);
            reserved += stats.reserved.now;
            self.transcript.note(&format!("{stats:?}"));
        }
        match self.device.sim().memory_info() {
            Ok(info) if info.total - info.free != reserved => {
                Err(books(format!("the device gave {} bytes away, {reserved} are held", info.total - info.free)))
            }
            Ok(_) => Ok(()),
            Err(error) => self.judge(error.into()).map_err(|failure| Failure { step, ..failure }),
        }
    }

    /// Whether a trouble is one that the program, its faults or its captures call for.
    pub(super) fn judge(&mut self, trouble: Trouble) -> Result<(), Failure> {
        let refuse = |rule, error: &dyn std::fmt::Display| Err(Failure::new(rule, error.to_string()));
        match trouble {
            Trouble::Broken(failure) => Err(failure),
            Trouble::Alloc(AllocError::Device { source, .. }) => self.judge_device(source),
            Trouble::Alloc(error) => refuse(Rule::Error, &error),
            Trouble::Device(source) | Trouble::Stream(StreamError::Device { source, .. }) => self.judge_device(source),
            Trouble::Stream(error @ StreamError::Capturing { .. }) => {
                // On a broken device a capture cannot even be ended.
                let broken = (self.fence_armed || self.lenient) && self.device.sim().memory_info().is_err();
                if self.capture.is_none() && !(broken && self.device.is_capturing()) {
                    return refuse(Rule::Error, &error);
                }
                self.met.add("refused while capturing", 1);
                self.say("refused while capturing");
                Ok(())
            }
            // Only collectives open streams here.
            Trouble::Stream(StreamError::HeldUp { .. }) if self.program.config.ranks > 1 => {
                self.met.add("held up by an open stream", 1);
                self.say("held up");
                Ok(())
            }
            Trouble::Stream(StreamError::HostBufferBusy) => {
                self.met.add("host memory busy", 1);
                self.say("busy");
                Ok(())
            }
            Trouble::Stream(StreamError::TimedOut { .. }) if self.lenient => Ok(()),
            Trouble::Stream(error @ StreamError::TimedOut { .. }) => refuse(Rule::Stuck, &error),
            Trouble::Stream(error) => refuse(Rule::Error, &error),
        }
    }

    fn judge_device(&mut self, error: DeviceError) -> Result<(), Failure> {
        self.say(error.to_string());
        match error {
            DeviceError::Poisoned { fault } => match *fault {
                DeviceError::Injected { call: DeviceCall::Record, .. } if self.fence_armed => self.break_down(),
                DeviceError::Deadlock { .. } if self.lenient => self.break_down(),
                fault => Err(Failure::new(Rule::Fault, fault.to_string())),
            },
            DeviceError::Injected { call, .. } if self.device.fired().contains_key(&call) => Ok(()),
            DeviceError::Injected { call: DeviceCall::Record, .. } if self.fence_armed => self.break_down(),
            DeviceError::Deadlock { .. } if self.lenient => self.break_down(),
            error @ DeviceError::Deadlock { .. } => Err(Failure::new(Rule::Stuck, error.to_string())),
            error => Err(Failure::new(Rule::Fault, error.to_string())),
        }
    }

    fn break_down(&mut self) -> Result<(), Failure> {
        if !self.poisoned {
            self.met.add("device broken by a fence", 1);
        }
        self.poisoned = true;
        Ok(())
    }

    // ---- streams and fences

    /// A stream of the allocator.
    pub(super) fn lane(&self, allocator: usize, index: u8) -> Lane {
        let of: Vec<&Lane> = self.lanes.iter().filter(|lane| lane.allocator == allocator).collect();
        of[usize::from(index) % of.len()].clone()
    }

    /// Any stream.
    pub(super) fn any_lane(&self, index: u8) -> Lane {
        self.lanes[usize::from(index) % self.lanes.len()].clone()
    }

    /// Whether the stream captures: what it is given is not executed.
    pub(super) fn captures(&self, lane: &Lane) -> bool {
        self.capture.as_ref().is_some_and(|capturing| capturing.lane == lane.number)
    }

    /// Records a fence.
    pub(super) fn record(&mut self, lane: &Lane) -> Result<Mark, Trouble> {
        let fence = lane.stream.record()?;
        Ok(Mark { fence, clock: self.oracle.fence(lane.number) })
    }

    /// Puts a wait on a stream.
    pub(super) fn wait(&mut self, lane: &Lane, mark: &Mark) -> Result<(), Trouble> {
        self.device.by_program(|| lane.stream.wait(&mark.fence))?;
        self.oracle.waited(lane.number, &mark.clock);
        Ok(())
    }

    /// Blocks the host.
    pub(super) fn host_wait(&mut self, mark: &Mark, timeout: Duration) -> Result<(), Trouble> {
        mark.fence.wait(timeout)?;
        self.told(mark);
        Ok(())
    }

    /// The host knows that a fence is complete.
    pub(super) fn told(&mut self, mark: &Mark) {
        let now_ns = self.device.now_ns();
        self.oracle.told(self.step, now_ns, &mark.clock);
    }

    /// Makes sure that a stream comes after an operation.
    pub(super) fn put_after(&mut self, lane: &Lane, op: OpId) -> Result<(), Trouble> {
        if self.oracle.is_after(lane.number, op) {
            return Ok(());
        }
        let mark = self.mark_behind(op)?;
        self.wait(lane, &mark)
    }

    /// A fence behind an operation: the one that was recorded then, or one recorded now.
    pub(super) fn mark_behind(&mut self, op: OpId) -> Result<Mark, Trouble> {
        if let Some(mark) = self.op_marks.get(&op) {
            return Ok(mark.clone());
        }
        let number = self.oracle.stream_of(op);
        let known = self.lanes.iter().chain(&self.kept).find(|lane| lane.number == number).cloned();
        match known {
            Some(lane) => self.record(&lane),
            None => Ok(self.last_marks[&number].clone()),
        }
    }

    /// What the run met, by the allocators' own counts and the device's.
    pub(super) fn count_what_was_met(&mut self) {
        for allocator in &self.allocators {
            let stats = allocator.memory_stats();
            for (rung, requests) in &stats.requests_by_rung {
                self.met.add(&format!("rung {rung}"), *requests);
            }
            self.met.add("out of memory", stats.out_of_memory);
            self.met.add("wait inserted", stats.waits_inserted);
            self.met.add("host stall", stats.host_stalls);
            self.met.add("handle returned", stats.handles_released);
            self.met.add("handle moved", stats.pages_moved);
            self.met.add("handle came back", stats.pages_moved - stats.pages_remapped);
        }
        for (call, times) in self.device.fired() {
            self.met.add(&format!("failed {call}"), times);
        }
        self.met.add("callback ran", self.callbacks_ran.load(Ordering::Relaxed));
    }
}

fn settings(config: &Config) -> Result<Settings, Failure> {
    let policy = if config.waits_first { Policy::Wait } else { Policy::Grow };
    let page_time = f64::from(config.page_percent) / 100.0;
    let mut builder = Settings::builder().history_kib(config.history_kib).lending(config.lending);
    builder = builder.policy(policy).page_time(page_time);
    if let Some(percent) = config.limit_percent {
        builder = builder.memory_limit_bytes(config.memory_bytes() * u64::from(percent) / 100);
    }
    if let Some(ns) = config.host_wait_ns {
        builder = builder.host_wait_timeout(Duration::from_nanos(ns));
    }
    builder.build().map_err(|error| Failure::new(Rule::Error, error.to_string()))
}

/// The lock, also after a panic that is a failure of its own.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
