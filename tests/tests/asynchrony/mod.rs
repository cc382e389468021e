//! What asynchronous work does to time, to data, to errors and to memory: small programs on the simulated device, each with
//! the timeline or the error that it must have.
//!
//! The names of the tests begin with the number of the lesson. 1: why work is asynchronous. 2: two clocks (2.1), streams
//! (2.2), overlap (2.3), order (2.4). 3: nothing has been done yet (3.1), what blocks the host (3.2), copies (3.3),
//! measuring (3.4). 7: pitfalls: the wrong clock (7.1), late errors (7.2), memory (7.3), no order (7.4). A tick is 1 ns.
//! Operations last as many ticks as they say, a copy between host and device one tick a byte; what calls take is said by
//! each test.

mod copies;
mod default_streams;
mod errors;
mod measuring;
mod memory;
mod overlap;
mod waiting;

use std::sync::Arc;

use highwater::device::sim::{SimConfig, SimDevice};
use highwater::device::{Cost, CostModel, Device};
use highwater::{Allocator, Buffer, Settings, Stream};

/// Granularity of the device, bytes.
const GRANULE: usize = 64 << 10;

/// A device on which no call takes time.
fn config() -> SimConfig {
    SimConfig {
        cost: CostModel { host_link_bytes_per_us: 1000, ..CostModel::free() },
        timeline: true,
        workers: 0,
        memory_bytes: 16 * GRANULE as u64,
        granularity_bytes: GRANULE as u64,
        ..SimConfig::default()
    }
}

/// The same, where each launch and each copy takes the host one tick.
fn with_launches() -> SimConfig {
    let config = config();
    SimConfig { cost: CostModel { launch_ns: 1, ..config.cost }, ..config }
}

/// An allocator and its device.
struct World {
    device: Arc<SimDevice>,
    allocator: Allocator,
}

impl World {
    fn new(config: SimConfig) -> Self {
        Self::with(config, Settings::default())
    }

    fn with(config: SimConfig, settings: Settings) -> Self {
        let device = SimDevice::new(config);
        let allocator = Allocator::with_settings(device.clone(), settings).unwrap();
        World { device, allocator }
    }

    fn stream(&self, name: &str) -> Stream {
        self.allocator.create_stream(name).unwrap()
    }

    /// The host's time.
    fn now(&self) -> u64 {
        self.device.now_ns()
    }

    /// The host computes.
    fn host(&self, ticks: u64) {
        self.device.host_work(ticks);
    }

    /// How often the host was blocked, and for how many ticks.
    fn blocked(&self) -> (u64, u64) {
        let counters = self.device.counters();
        (counters.host_synchronizations, counters.host_blocked_ns)
    }

    /// Executes what is left. The timeline since the last call is `expected`: stream, operation, start, end; in the order
    /// of starts, and of submission.
    #[track_caller]
    fn expect(&self, expected: &[(&str, &str, u64, u64)]) {
        self.device.cluster().settle().unwrap();
        let timeline = self.device.cluster().take_timeline();
        let executed: Vec<_> =
            timeline.iter().map(|done| (&*done.stream_name, &*done.name, done.start_ns, done.end_ns)).collect();
        assert_eq!(executed, expected);
    }

    /// No two operations touched the same bytes at the same time.
    #[track_caller]
    fn expect_no_races(&self) {
        let hazards = self.device.cluster().hazards();
        assert!(hazards.is_empty(), "{hazards:?}");
    }
}

/// An operation without memory.
fn idle(stream: &Stream, name: &'static str, ticks: u64) {
    stream.launch(name, Cost::exact(ticks)).submit().unwrap();
}

/// An operation that writes `value` to every byte.
fn fill(stream: &Stream, name: &'static str, buffer: &Buffer<u8>, value: u8, ticks: u64) {
    let launch = stream.launch(name, Cost::exact(ticks)).write(buffer);
    launch.body(move |operands| operands[0].as_bytes_mut().fill(value)).submit().unwrap();
}

/// An operation that copies within the device.
fn copy(stream: &Stream, name: &'static str, from: &Buffer<u8>, to: &Buffer<u8>, ticks: u64) {
    let launch = stream.launch(name, Cost::exact(ticks)).read(from).write(to);
    let body = launch.body(|operands| {
        let (source, target) = operands.split_at_mut(1);
        target[0].as_bytes_mut().copy_from_slice(source[0].as_bytes());
    });
    body.submit().unwrap();
}
