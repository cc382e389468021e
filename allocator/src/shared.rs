//! What all parts of one allocator share.
//!
//! Order of locks: a callback's → a heap's station → the list of slots, a slot's driver, its clock; the registry of
//! streams → the idle places → a slot's driver; a station → the strays. While a station is held, another one is only ever
//! tried. Device calls that touch fences need the [`Gate`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use highwater_core::{Ledger, Rung, StreamIndex};
use highwater_device::Device;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use crate::Settings;
use crate::aliases::Aliases;
use crate::allocation::Allocation;
use crate::heap_state::HeapState;
use crate::page_time::PageTime;
use crate::pages::Stray;
use crate::peak::{Peak, Share};
use crate::process::Process;
use crate::registry::Registry;
use crate::slot::{Driver, Slot};
use crate::stamp::Stamp;

/// A pressure callback: gets the bytes that are needed.
pub(crate) type Callback = Arc<dyn Fn(u64) + Send + Sync>;

/// Leave to touch fences: no stream of the device captures, and none begins to as long as this lives.
pub(crate) struct Gate<'a>(#[expect(dead_code, reason = "held for its drop")] RwLockReadGuard<'a, ()>);

/// One allocator.
pub(crate) struct Shared {
    pub(crate) process: Process,
    /// What is called: with the sanitizer on, the device that it sees.
    pub(crate) device: Arc<dyn Device>,
    /// The device itself.
    #[cfg(feature = "sanitizer")]
    real: Arc<dyn Device>,
    #[cfg(feature = "sanitizer")]
    pub(crate) sanitizer: Option<highwater_sanitizer::Sanitizer>,
    pub(crate) settings: Settings,
    pub(crate) ledger: Ledger,
    pub(crate) peak: Peak,
    pub(crate) counts: Counts,
    pub(crate) callbacks: Mutex<Vec<(u64, Callback)>>,
    pub(crate) strays: Mutex<Vec<Stray>>,
    pub(crate) aliases: Aliases,
    pub(crate) page_time: PageTime,
    pub(crate) raw: DashMap<u64, Allocation>,
    pub(crate) registry: Mutex<Registry>,
    /// They are never removed, so that whoever looks one up takes no lock.
    slots: boxcar::Vec<Arc<Slot>>,
    /// Places whose stream is gone, the longest ago first.
    pub(crate) idle: Mutex<Vec<Arc<Slot>>>,
    /// Places of work of streams that are not known; see [`crate::cuda`].
    #[cfg(feature = "cuda")]
    pub(crate) outside: Mutex<Vec<Arc<Slot>>>,
    /// Held exclusively only while a capture begins.
    pub(crate) captures: RwLock<()>,
}

impl Shared {
    pub(crate) fn new(device: Arc<dyn Device>, settings: Settings, limit: u64) -> Self {
        #[cfg(feature = "sanitizer")]
        let (real, device, sanitizer) = crate::sanitizer::watch(device, &settings);
        let page_time = PageTime::new(settings.page_time(), device.now_ns());
        Shared {
            process: Process::current(),
            device,
            #[cfg(feature = "sanitizer")]
            real,
            #[cfg(feature = "sanitizer")]
            sanitizer,
            settings,
            ledger: Ledger::new(limit),
            peak: Peak::default(),
            counts: Counts::default(),
            callbacks: Mutex::new(Vec::new()),
            strays: Mutex::new(Vec::new()),
            aliases: Aliases::default(),
            page_time,
            raw: DashMap::new(),
            registry: Mutex::new(Registry::default()),
            slots: boxcar::Vec::new(),
            idle: Mutex::new(Vec::new()),
            #[cfg(feature = "cuda")]
            outside: Mutex::new(Vec::new()),
            captures: RwLock::new(()),
        }
    }

    /// The device itself, whoever looks on.
    pub(crate) fn real_device(&self) -> &Arc<dyn Device> {
        #[cfg(feature = "sanitizer")]
        return &self.real;
        #[cfg(not(feature = "sanitizer"))]
        &self.device
    }

    /// Leave to touch fences, unless a stream of the device captures.
    pub(crate) fn gate(&self) -> Option<Gate<'_>> {
        let guard = self.captures.read_recursive();
        (!self.device.is_capturing()).then_some(Gate(guard))
    }

    pub(crate) fn slot(&self, index: StreamIndex) -> &Arc<Slot> {
        &self.slots[index.0 as usize]
    }

    /// All places, in the order of their numbers.
    pub(crate) fn slots(&self) -> impl Iterator<Item = &Arc<Slot>> {
        self.slots.iter().map(|(_, slot)| slot)
    }

    /// How many places there are, at least one.
    pub(crate) fn count_slots(&self) -> u64 {
        self.slots.count().max(1) as u64
    }

    /// A new place for a stream.
    pub(crate) fn add_slot(&self, driver: Driver) -> Arc<Slot> {
        self.add_place(driver.name.clone(), Some(driver))
    }

    /// A new place, of a stream or of none.
    pub(crate) fn add_place(&self, name: Arc<str>, driver: Option<Driver>) -> Arc<Slot> {
        let index = self.slots.push_with(|index| Arc::new(self.new_slot(index, name, driver)));
        self.slots[index].clone()
    }

    fn new_slot(&self, index: usize, name: Arc<str>, driver: Option<Driver>) -> Slot {
        let index = StreamIndex(u32::try_from(index).expect("fewer than 2^32 streams at once"));
        let granularity = self.device.properties().granularity_bytes;
        let (stamp, share) = (Arc::new(Stamp::new(self.device.clone())), Arc::new(Share::default()));
        let history = self.settings.history_bytes();
        let state = HeapState::new(index, granularity, history, stamp.clone(), share.clone());
        Slot::new(name, driver, state, stamp, share)
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("device", &self.device).finish_non_exhaustive()
    }
}

/// How often things happened.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Requests by the rung that met them, but for those that the lowest one met.
    rungs: [AtomicU64; Rung::ALL.len()],
    pub(crate) out_of_memory: AtomicU64,
    pub(crate) waits_inserted: AtomicU64,
    pub(crate) host_stalls: AtomicU64,
    pub(crate) host_stall_ns: AtomicU64,
    /// Free handles that were moved to where a request needed them, and those of them that were mapped anew for it.
    pub(crate) pages_moved: AtomicU64,
    pub(crate) pages_remapped: AtomicU64,
    pub(crate) handles_created: AtomicU64,
    pub(crate) handles_released: AtomicU64,
    pub(crate) fences_recorded: AtomicU64,
}

impl Counts {
    pub(crate) fn met_at(&self, rung: Rung) {
        self.rungs[rung as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn of_rung(&self, rung: Rung) -> u64 {
        self.rungs[rung as usize].load(Ordering::Relaxed)
    }
}

/// Adds to a counter.
pub(crate) fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

/// Adds one to a counter.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
