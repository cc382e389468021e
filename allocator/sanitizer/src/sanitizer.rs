//! The handle: one lock around the state, and what happens to races that were found.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use highwater_device::{Access, Address, ByteRange, Device, HostMemory, Operand, StreamId};
use highwater_history::{Context, SpanPath};
use parking_lot::Mutex;

use crate::here::Here;
use crate::race::Race;
use crate::reports::Reports;
use crate::state::{OpenUse, State};
use crate::watched::Watched;

/// What happens when a race is found. It is collected in any case.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum OnRace {
    /// Nothing more: somebody will call [`Sanitizer::take_races`].
    Collect,
    /// It is told to `tracing`, as an error.
    #[default]
    Log,
    /// It is told to `tracing`, and [`Sanitizer::raise`] panics, which the allocator calls when it has done what it was
    /// asked for.
    Panic,
}

/// How a sanitizer behaves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// What happens when a race is found.
    pub on_race: OnRace,
    /// Most ranges of bytes that are told apart in one page. Past that the oldest knowledge is dropped, and counted: a
    /// race may be missed then, and none is invented.
    pub ranges_per_page: usize,
    /// Most races that are kept until they are taken; more of them are counted alone.
    pub races: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config { on_race: OnRace::default(), ranges_per_page: 1 << 14, races: 256 }
    }
}

/// What was seen so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Operations, allocations among them.
    pub operations: u64,
    /// Races that were found, each as often as it was.
    pub races: u64,
    /// Uses that were forgotten because there were too many: races with them are missed.
    pub dropped: u64,
    /// Pages and pieces of host memory of which something is known now.
    pub places: usize,
}

/// The sanitizer of one device. Clones are the same one.
///
/// The streams of the device are named by their ids. What is submitted past the library is declared by
/// [`access`](Sanitizer::access), an order that is made past it by [`ordered`](Sanitizer::ordered) and
/// [`host_saw`](Sanitizer::host_saw).
#[derive(Clone)]
pub struct Sanitizer {
    inner: Arc<Inner>,
}

struct Inner {
    on_race: OnRace,
    state: Mutex<State>,
    reports: Mutex<Reports>,
    races: AtomicU64,
    /// The race to panic with.
    raised: Mutex<Option<Race>>,
}

impl Sanitizer {
    /// A sanitizer that has seen nothing.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let state = Mutex::new(State::new(config.ranges_per_page));
        let reports = Mutex::new(Reports::new(config.races));
        let (races, raised) = (AtomicU64::new(0), Mutex::new(None));
        Sanitizer { inner: Arc::new(Inner { on_race: config.on_race, state, reports, races, raised }) }
    }

    /// The device, seen: all calls of this device through the answer are known here.
    pub fn watch(&self, device: Arc<dyn Device>) -> Arc<Watched> {
        Arc::new(Watched::new(device, self.clone()))
    }

    /// The races that were found since the last call, in the order of their discovery. Two that differ in nothing but
    /// their bytes are one.
    #[must_use]
    pub fn take_races(&self) -> Vec<Race> {
        self.inner.reports.lock().take()
    }

    /// What was seen so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let races = self.inner.races.load(Ordering::Relaxed);
        let state = self.inner.state.lock();
        Counters { operations: state.operations, races, dropped: state.dropped, places: state.memory.places() }
    }

    /// The name of a stream in reports.
    pub fn name_stream(&self, stream: StreamId, name: &str) {
        self.inner.state.lock().order.name(stream, name);
    }

    /// Work that was just submitted to a stream past the library, e.g. a kernel that got a raw pointer.
    #[track_caller]
    pub fn access(&self, stream: StreamId, name: impl Into<Cow<'static, str>>, range: ByteRange, access: Access) {
        self.submitted(stream, name, &[Operand { range, access }], Some(Context::here()));
        self.raise();
    }

    /// The same for any number of operands, and a line of the program if one is known.
    pub fn submitted(
        &self,
        stream: StreamId,
        name: impl Into<Cow<'static, str>>,
        operands: &[Operand],
        context: Option<Context>,
    ) {
        let touches: Vec<_> = operands.iter().map(|&operand| operand.into()).collect();
        self.update(|state| {
            let op = state.begin(stream, name.into(), context);
            state.submitted(&op, &touches)
        });
    }

    /// Work that is about to be submitted to a stream; [`close`](Sanitizer::close) it behind the submission. What is
    /// ordered before the stream in between still counts.
    pub fn open(
        &self,
        stream: StreamId,
        name: impl Into<Cow<'static, str>>,
        operand: Operand,
        context: Context,
    ) -> OpenUse {
        let mut state = self.inner.state.lock();
        let op = state.begin(stream, name.into(), Some(context));
        state.open(&op, &[operand.into()])
    }

    /// The work of an open use has been submitted.
    pub fn close(&self, open: OpenUse) {
        self.update(|state| state.close(open));
    }

    /// A buffer was given to its owner: bytes that anybody may still use are a race.
    pub fn allocated(&self, stream: StreamId, range: ByteRange, context: Context) {
        self.update(|state| state.allocated(stream, range, context));
    }

    /// The buffer at this address is about to be given back.
    pub fn freed(&self, address: Address) {
        self.inner.state.lock().freed(address, SpanPath::current());
    }

    /// The host is about to touch these bytes of host memory.
    #[track_caller]
    pub fn host_access(&self, memory: &HostMemory, range: Range<u64>, access: Access) {
        let caller = Context::here();
        let context = Here::current().unwrap_or(caller);
        self.update(|state| state.host_access(memory.id(), range, access, Some(context)));
        self.raise();
    }

    /// What `after` is given from now on comes after everything that `before` was given so far. For an order that is made
    /// past the library.
    pub fn ordered(&self, before: StreamId, after: StreamId) {
        self.inner.state.lock().order.ordered(before, after);
    }

    /// The host has seen everything complete that a stream was given so far. For waits past the library.
    pub fn host_saw(&self, stream: StreamId) {
        self.inner.state.lock().order.host_saw_all(stream);
    }

    /// Panics with a race that was found since the last call, if races are to panic, unless the thread unwinds already.
    /// For places where a panic leaves nothing half done.
    ///
    /// # Panics
    /// As [`OnRace::Panic`] says.
    #[track_caller]
    pub fn raise(&self) {
        if self.inner.on_race == OnRace::Panic && !std::thread::panicking() {
            let raised = self.inner.raised.lock().take();
            if let Some(race) = raised {
                panic!("{race}");
            }
        }
    }

    /// Changes the state without a race.
    pub(crate) fn with<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        change(&mut self.inner.state.lock())
    }

    /// Changes the state, and tells the races that this shows when the state is no longer locked.
    pub(crate) fn update(&self, change: impl FnOnce(&mut State) -> Vec<Race>) {
        let races = self.with(change);
        if !races.is_empty() {
            self.tell(&races);
        }
    }

    #[cold]
    fn tell(&self, races: &[Race]) {
        self.inner.races.fetch_add(races.len() as u64, Ordering::Relaxed);
        let mut reports = self.inner.reports.lock();
        let new: Vec<&Race> = races.iter().filter(|race| reports.add(race)).collect();
        drop(reports);
        if self.inner.on_race == OnRace::Collect {
            return;
        }
        for race in &new {
            tracing::error!("{race}");
        }
        if let (OnRace::Panic, Some(race)) = (self.inner.on_race, new.first()) {
            self.inner.raised.lock().get_or_insert_with(|| (*race).clone());
        }
    }
}

impl fmt::Debug for Sanitizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sanitizer").field("on_race", &self.inner.on_race).finish_non_exhaustive()
    }
}
