//! The stage: one allocator on one small simulated device, operations that check bytes, and the sweep at the end.

mod hooked;
mod rng;

use std::sync::{Arc, Mutex};

use highwater::device::sim::{Mode, SimConfig, SimDevice};
use highwater::device::{
    Access, Address, Body, ByteRange, CallCounters, Cost, CostModel, Device, DeviceCall, Operand, OperandBytes,
    Operation,
};
use highwater::{
    AllocError, Allocator, Buffer, MemoryStats, OutOfMemory, Policy, Settings, SettingsBuilder, Stream, View,
};

pub(crate) use hooked::HookedDevice;
pub(crate) use rng::Rng;

/// Granularity of the small device, bytes.
pub(crate) const GRANULE: u64 = 64 << 10;
/// Memory of the small device, in granules: all of it is still a small request (at most 1 MiB).
pub(crate) const GRANULES: u64 = 16;
/// Memory of the small device, bytes.
pub(crate) const MEMORY: u64 = GRANULES * GRANULE;

/// Settings under which memory stays where it is, and a stream waits for memory only if there is no other: what is free
/// when can be told by addresses.
pub(crate) fn still() -> SettingsBuilder {
    Settings::builder().lending(false).policy(Policy::Grow).page_time(1.0)
}

/// `granules` granules, as the length of a buffer of bytes.
pub(crate) fn granules(granules: u64) -> usize {
    (granules * GRANULE) as usize
}

/// A device on which calls take no time and operations last exactly as long as they say.
pub(crate) fn ticks() -> SimConfig {
    SimConfig {
        cost: CostModel::free(),
        workers: 0,
        memory_bytes: MEMORY,
        granularity_bytes: GRANULE,
        ..SimConfig::default()
    }
}

/// The same device, where a seed decides what runs next.
pub(crate) fn adversarial(seed: u64) -> SimConfig {
    SimConfig { mode: Mode::Adversarial { seed }, ..ticks() }
}

/// An allocator and its device. [`end`](World::end) is called by every test.
pub(crate) struct World {
    pub(crate) device: Arc<SimDevice>,
    pub(crate) allocator: Allocator,
    /// What operations found wrong.
    wrong: Arc<Mutex<Vec<String>>>,
}

impl World {
    pub(crate) fn timed() -> Self {
        Self::with(still())
    }

    pub(crate) fn with(settings: SettingsBuilder) -> Self {
        Self::new(ticks(), settings)
    }

    pub(crate) fn new(config: SimConfig, settings: SettingsBuilder) -> Self {
        let device = SimDevice::new(config);
        // With the feature every test is one of the sanitizer too: what the allocator does is ordered.
        #[cfg(feature = "sanitizer")]
        let settings = settings.sanitizer(highwater::sanitizer::OnRace::Collect);
        let allocator = Allocator::with_settings(device.clone(), settings.build().unwrap()).unwrap();
        World { device, allocator, wrong: Arc::default() }
    }

    pub(crate) fn streams<const N: usize>(&self) -> [Stream; N] {
        std::array::from_fn(|index| self.allocator.create_stream(["s", "t", "u", "v", "w"][index]).unwrap())
    }

    pub(crate) fn stats(&self) -> MemoryStats {
        self.allocator.memory_stats()
    }

    pub(crate) fn counters(&self) -> CallCounters {
        self.device.counters()
    }

    /// Requests that were met at a rung.
    pub(crate) fn met_at(&self, rung: &str) -> u64 {
        self.stats().requests_by_rung[rung]
    }

    /// The host's time.
    pub(crate) fn device_ns(&self) -> u64 {
        self.device.now_ns()
    }

    /// Runs the host for `ns`; what ends by then has ended.
    pub(crate) fn pass(&self, ns: u64) {
        self.device.host_work(ns);
    }

    /// An operation that writes `value` to every byte.
    pub(crate) fn fill<'a>(&self, stream: &'a Stream, view: impl Into<View<'a, u8>>, value: u8, ns: u64) {
        let launch = stream.launch("fill", Cost::exact(ns)).write(view);
        launch.body(move |operands| operands[0].as_bytes_mut().fill(value)).submit().unwrap();
    }

    /// An operation that finds `value` in every byte; what it finds else is told by [`end`](World::end).
    pub(crate) fn expect<'a>(&self, stream: &'a Stream, view: impl Into<View<'a, u8>>, value: u8, ns: u64) {
        let launch = stream.launch("expect", Cost::exact(ns)).read(view);
        launch.body(self.verify(stream, value)).submit().unwrap();
    }

    /// An operation that goes past the allocator: it reads and checks.
    pub(crate) fn raw_read(&self, stream: &Stream, address: Address, bytes: u64, value: u8, ns: u64) {
        let operands = vec![Operand { range: ByteRange::new(address, bytes), access: Access::Read }];
        let body = Body::Host(Box::new(self.verify(stream, value)));
        let operation = Operation { name: "raw read".into(), tag: 0, cost: Cost::exact(ns), operands, body };
        self.device_for_calls().launch(stream.id(), operation).unwrap();
    }

    /// The device for calls past the allocator.
    fn device_for_calls(&self) -> &dyn Device {
        #[cfg(feature = "sanitizer")]
        return &**self.allocator.watched_device();
        #[cfg(not(feature = "sanitizer"))]
        &*self.device
    }

    /// The body of [`expect`](World::expect).
    pub(crate) fn verify(&self, stream: &Stream, value: u8) -> impl FnOnce(&mut [OperandBytes]) + Send + use<> {
        let (wrong, name) = (self.wrong.clone(), stream.name().to_owned());
        move |operands| {
            for bytes in operands.iter().map(|operand| operand.as_bytes()) {
                if let Some(at) = bytes.iter().position(|&byte| byte != value) {
                    let found = bytes[at];
                    wrong.lock().unwrap().push(format!("{name}: byte {at} is {found}, expected {value}"));
                }
            }
        }
    }

    /// An operation that uses the buffer for `ns`.
    pub(crate) fn busy<'a>(&self, stream: &'a Stream, view: impl Into<View<'a, u8>>, ns: u64) {
        stream.launch("busy", Cost::exact(ns)).read(view).submit().unwrap();
    }

    /// An operation that uses no memory.
    pub(crate) fn idle(&self, stream: &Stream, ns: u64) {
        stream.launch("idle", Cost::exact(ns)).submit().unwrap();
    }

    /// `bytes` bytes on a stream.
    pub(crate) fn bytes(&self, stream: &Stream, bytes: usize) -> Buffer<u8> {
        stream.alloc(bytes).unwrap()
    }

    /// The report of a request that has to fail.
    pub(crate) fn no_room(&self, stream: &Stream, bytes: usize) -> OutOfMemory {
        match stream.alloc::<u8>(bytes) {
            Err(AllocError::OutOfMemory(report)) => *report,
            other => panic!("expected to be out of memory, got {other:?}"),
        }
    }

    /// The books, by every measure there is.
    #[track_caller]
    pub(crate) fn check(&self) {
        self.allocator.check().unwrap();
        let stats = self.stats();
        let parts =
            stats.live.now + stats.rounding_bytes + stats.pending_bytes + stats.cached_bytes + stats.stray_bytes;
        assert_eq!(parts, stats.reserved.now, "{stats:?}");
        let info = self.device.memory_info().or_else(|_| self.device.memory_info()).unwrap();
        assert_eq!(info.total - info.free, stats.reserved.now, "what the device has given away is what is held");
    }

    /// What operations found wrong so far, and races.
    #[track_caller]
    pub(crate) fn expect_clean(&self) {
        let wrong = self.wrong.lock().unwrap();
        assert!(wrong.is_empty(), "{wrong:?}");
        let hazards = self.device.cluster().hazards();
        assert!(hazards.is_empty(), "{hazards:?}");
        #[cfg(feature = "sanitizer")]
        if let Some(sanitizer) = self.allocator.sanitizer() {
            let races = sanitizer.take_races();
            assert!(races.is_empty(), "{}", races[0]);
            assert_eq!(sanitizer.counters().dropped, 0);
        }
    }

    /// Everything has been dropped: nothing is live, nothing stays pending once work is complete, all memory can go back
    /// to the device, and did by the time the allocator is gone.
    #[track_caller]
    pub(crate) fn end(self) {
        self.check();
        assert_eq!(self.stats().live.now, 0, "something is still live");
        self.device.cluster().settle().unwrap();
        self.expect_clean();
        assert_eq!(self.allocator.trim(0), 0, "memory that cannot be returned: {:?}", self.stats());
        self.check();
        let stats = self.stats();
        assert_eq!((stats.pending_bytes, stats.cached_bytes, stats.stray_bytes), (0, 0, 0));
        self.close();
    }

    /// [`end`](World::end), after a failure of `call` that may still be to come.
    #[track_caller]
    pub(crate) fn end_after_fault(self, call: DeviceCall) {
        if matches!(call, DeviceCall::Reserve | DeviceCall::Unreserve) {
            // The numbers of the two calls differ by the one that failed.
            self.device.cluster().settle().unwrap();
            let World { device, allocator, .. } = self;
            drop(allocator);
            let info = device.memory_info().unwrap();
            assert_eq!(info.free, info.total);
        } else {
            self.end();
        }
    }

    /// Everything has been dropped; drops the allocator too, which gives all memory back.
    #[track_caller]
    pub(crate) fn close(self) {
        #[cfg(feature = "sanitizer")]
        let sanitizer = self.allocator.sanitizer().cloned();
        let World { device, allocator, .. } = self;
        drop(allocator);
        #[cfg(feature = "sanitizer")]
        if let Some(races) = sanitizer.map(|sanitizer| sanitizer.take_races()) {
            assert!(races.is_empty(), "{}", races[0]);
        }
        let info = device.memory_info().unwrap();
        assert_eq!(info.free, info.total, "the end of the allocator left memory behind");
        assert_eq!(device.counters().of(DeviceCall::Reserve), device.counters().of(DeviceCall::Unreserve));
    }
}

/// The address of a buffer, for comparing: read from its text, so that it does not count as given away.
pub(crate) fn address(buffer: &Buffer<u8>) -> u64 {
    let text = format!("{buffer:?}");
    let digits = text.split("at 0x").nth(1).and_then(|rest| rest.split(' ').next());
    u64::from_str_radix(digits.expect("the text names the address"), 16).unwrap()
}
