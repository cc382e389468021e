//! The simulated device: a cluster of GPUs with a virtual clock.
//!
//! Work runs *later* than it is submitted, as on a GPU: an operation reads its operands when it starts and its results
//! are seen when it ends. So a missing wait, memory that is reused too early and a page that is unmapped too early all
//! do what they do on a GPU: they give wrong bytes. Here they are also reported, by [`SimCluster::hazards`] and by
//! sticky faults.
//!
//! - [`Mode::Timed`]: integer ns; every call and every operation costs what the [`CostModel`] says.
//! - [`Mode::Adversarial`]: time orders nothing. A seed decides which enabled step is next, within what streams, waits
//!   and hosts allow.
//!
//! Both replay exactly: the same program gives the same execution, for any number of body threads.
//!
//! The files: `device` answers the calls and `submit` fills the queues; `cluster` runs hosts one at a time; `engine`
//! moves streams on, `effects` their bytes, and `hazards` looks for races; `queue` is what stands in a stream; `memory`
//! holds pages and bytes; `collective` matches the parts of ranks; `default_stream` orders what CUDA's default streams
//! order unasked; `faults` breaks things, `deadlock` tells who waits for whom; `adversary` and `random` choose; `pool`
//! runs bodies; `timeline` tells what raced. There is one lock, the
//! cluster's, around all state.

mod adversary;
mod cluster;
mod collective;
mod deadlock;
mod default_stream;
mod device;
mod effects;
mod engine;
mod faults;
mod hazards;
mod memory;
mod pool;
mod queue;
mod random;
mod submit;
mod timeline;

pub use crate::{Executed, ExecutedKind};
pub use cluster::SimCluster;
pub use collective::{Collective, CollectiveBody, Communicator};
pub use default_stream::{DefaultStream, StreamKind};
pub use device::SimDevice;
pub use timeline::{Hazard, HazardSide};

use crate::CostModel;

/// How the order of execution is decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// By virtual time, ns.
    Timed,
    /// By a generator, among all steps that streams, waits and hosts allow. Clocks count steps.
    Adversarial {
        /// The generator's seed: the same seed gives the same execution.
        seed: u64,
    },
}

/// What a simulated cluster is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SimConfig {
    /// What operations and calls cost. In adversarial mode no cost matters.
    pub cost: CostModel,
    /// How the order of execution is decided.
    pub mode: Mode,
    /// Physical memory of each device, bytes. It takes host memory only where it is written.
    pub memory_bytes: u64,
    /// Granularity of handles and mappings, bytes; a power of two.
    pub granularity_bytes: u64,
    /// Threads that run bodies; 0 runs them on the thread that drives the clock. The result is the same.
    pub workers: usize,
    /// Whether bytes are stored and bodies run; without, only time and order are simulated.
    pub bodies: bool,
    /// Whether executed operations are kept for [`SimCluster::take_timeline`].
    pub timeline: bool,
    /// What the default stream of a device is, and which streams are ordered with it.
    pub default_stream: DefaultStream,
}

impl Default for SimConfig {
    fn default() -> Self {
        SimConfig {
            cost: CostModel::default(),
            mode: Mode::Timed,
            memory_bytes: 141_000_000_000,
            granularity_bytes: 2 << 20,
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            bodies: true,
            timeline: false,
            default_stream: DefaultStream::Plain,
        }
    }
}
