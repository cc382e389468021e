//! What a replay runs on: the simulated device, or a GPU.
//!
//! On the simulated device an operation lasts exactly as long as it should, pauses of the host are virtual, and driver
//! calls have their price. On a GPU a stream is kept busy by writing to a buffer of the replay's own, as often as takes the
//! time; pauses are real, and driver calls take what they take.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use highwater::device::cuda::{CudaConfig, CudaDevice};
use highwater::device::sim::{Hazard, SimCluster, SimConfig, SimDevice};
use highwater::device::{Cost, CostModel, Device, DeviceCall, Executed, StreamId};
use highwater::{Allocator, Buffer, Fence, Stream};

use super::drive::{Options, WorkError};
use super::meter::{Meter, Reading};

/// Bytes of the buffer that keeps the streams of a GPU busy.
const SCRATCH_BYTES: u64 = 256 << 20;
/// What a GPU writes in a ns, bytes, and what a launch takes at least, ns: of an H200.
const WRITTEN_BYTES_PER_NS: u64 = 4;
const LAUNCH_NS: u64 = 2500;
/// Pauses of the host up to this are spent awake.
const AWAKE: Duration = Duration::from_micros(200);
/// The longest that the end of all work is waited for.
const LONGEST_WORK: Duration = Duration::from_secs(600);

/// What a replay runs on.
pub(crate) enum Machine {
    /// The simulated device.
    Simulated(Simulated),
    /// GPU 0.
    Gpu(Box<Gpu>),
}

/// The simulated device.
pub(crate) struct Simulated {
    device: Arc<SimDevice>,
    cluster: SimCluster,
    meter: Arc<Meter>,
    watch: Watch,
    start_ns: u64,
}

/// A GPU.
pub(crate) struct Gpu {
    device: Arc<CudaDevice>,
    cost: CostModel,
    /// What is written to keep streams busy, and when the first work may begin.
    scratch: Option<(Buffer<f32>, Fence)>,
}

/// A pause of the host that has begun.
pub(crate) struct Pause {
    ns: u64,
    from: Instant,
}

/// What was seen of the device's work when all of it has ended.
pub(crate) struct Seen {
    /// From the start to the end of the last operation, ns.
    pub(crate) makespan_ns: u64,
    /// Time that streams stood still although they had something to do, ns; not seen on a GPU.
    pub(crate) waited_ns: u64,
    /// Races on memory; not seen on a GPU.
    pub(crate) hazards: Vec<Hazard>,
}

impl Machine {
    /// A new simulated device.
    pub(crate) fn simulated(options: &Options) -> Self {
        let cost = options.cost.clone();
        let config = SimConfig { cost, bodies: options.verify, timeline: true, workers: 0, ..SimConfig::default() };
        let device = SimDevice::new(config);
        let (cluster, meter) = (device.cluster(), Meter::new(device.clone()));
        Machine::Simulated(Simulated { device, cluster, meter, watch: Watch::default(), start_ns: 0 })
    }

    /// GPU 0.
    ///
    /// # Errors
    /// When there is none, or a kernel cannot be compiled.
    pub(crate) fn gpu(options: &Options) -> Result<Self, WorkError> {
        let device = CudaDevice::new(CudaConfig { timing: true, ..CudaConfig::default() })?;
        highwater_kernels::cuda::prepare(&device)?;
        Ok(Machine::Gpu(Box::new(Gpu { device, cost: options.cost.clone(), scratch: None })))
    }

    /// The device for the allocator.
    pub(crate) fn device(&self) -> Arc<dyn Device> {
        match self {
            Machine::Simulated(simulated) => simulated.meter.clone(),
            Machine::Gpu(gpu) => gpu.device.clone(),
        }
    }

    /// The streams are there, and the program begins.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn begin(&mut self, allocator: &Allocator) -> Result<(), WorkError> {
        match self {
            Machine::Simulated(simulated) => simulated.start_ns = simulated.device.now_ns(),
            Machine::Gpu(gpu) => {
                let stream = allocator.create_stream("replay")?;
                let scratch = stream.alloc::<f32>(SCRATCH_BYTES as usize / size_of::<f32>())?;
                highwater_kernels::fill(&stream, 0.0, scratch.view())?;
                let begun = stream.record()?;
                begun.wait(LONGEST_WORK)?;
                gpu.scratch = Some((scratch, begun));
            }
        }
        Ok(())
    }

    /// Bytes that the replay itself holds of the allocator.
    pub(crate) fn own_bytes(&self) -> u64 {
        match self {
            Machine::Gpu(gpu) if gpu.scratch.is_some() => SCRATCH_BYTES,
            Machine::Gpu(_) | Machine::Simulated(_) => 0,
        }
    }

    /// What calls have cost so far; on a GPU only those on memory, by the model.
    pub(crate) fn read(&self) -> Reading {
        match self {
            Machine::Simulated(simulated) => simulated.meter.read(),
            Machine::Gpu(gpu) => gpu.priced(),
        }
    }

    /// The host's clock, ns.
    pub(crate) fn now_ns(&self) -> u64 {
        match self {
            Machine::Simulated(simulated) => simulated.device.now_ns(),
            Machine::Gpu(gpu) => gpu.device.now_ns(),
        }
    }

    /// Keeps a stream busy before it does anything else.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn hold_up(&self, stream: &Stream, ns: u64) -> Result<(), WorkError> {
        match self {
            Machine::Simulated(_) => Ok(stream.launch("behind", Cost::exact(ns)).submit()?),
            Machine::Gpu(gpu) => gpu.busy(stream, ns),
        }
    }

    /// What an operation of `ns` takes beside its submission: nothing where that says how long it lasts.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn last(&self, stream: &Stream, ns: u64) -> Result<(), WorkError> {
        match self {
            Machine::Simulated(_) => Ok(()),
            Machine::Gpu(gpu) => gpu.busy(stream, ns),
        }
    }

    /// The host has something else to do for `ns`: on a GPU what is done until [`rest`](Machine::rest) counts.
    pub(crate) fn pause(&self, ns: u64) -> Pause {
        Pause { ns, from: Instant::now() }
    }

    /// Waits until a pause is over.
    pub(crate) fn rest(&self, pause: &Pause) {
        match self {
            Machine::Simulated(simulated) => simulated.device.host_work(pause.ns),
            Machine::Gpu(_) => {
                let end = Duration::from_nanos(pause.ns);
                if let Some(asleep) = end.saturating_sub(pause.from.elapsed()).checked_sub(AWAKE) {
                    std::thread::sleep(asleep);
                }
                while pause.from.elapsed() < end {
                    std::hint::spin_loop();
                }
            }
        }
    }

    /// Looks at what was executed since the last time.
    pub(crate) fn look(&mut self) {
        if let Machine::Simulated(simulated) = self {
            simulated.watch.look(simulated.cluster.take_timeline());
        }
    }

    /// Waits for the end of all work.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn finish<'a>(&mut self, lanes: impl Iterator<Item = &'a Stream>) -> Result<Seen, WorkError> {
        match self {
            Machine::Simulated(simulated) => {
                simulated.cluster.settle()?;
                simulated.watch.look(simulated.cluster.take_timeline());
                let Watch { waited_ns, last_ns, .. } = simulated.watch;
                let makespan_ns = last_ns.saturating_sub(simulated.start_ns);
                Ok(Seen { makespan_ns, waited_ns, hazards: simulated.cluster.hazards() })
            }
            Machine::Gpu(gpu) => {
                let (_, begun) = gpu.scratch.as_ref().expect("it has begun");
                let mut makespan_ns = 0;
                for stream in lanes {
                    let end = stream.record()?;
                    end.wait(LONGEST_WORK)?;
                    makespan_ns = makespan_ns.max(end.elapsed_ns_since(begun)?);
                }
                Ok(Seen { makespan_ns, waited_ns: 0, hazards: Vec::new() })
            }
        }
    }

    /// The device, for tests that go past the allocator.
    #[cfg(test)]
    pub(super) fn cluster(&self) -> &SimCluster {
        match self {
            Machine::Simulated(simulated) => &simulated.cluster,
            Machine::Gpu(_) => panic!("tests have no GPU"),
        }
    }
}

impl Gpu {
    fn priced(&self) -> Reading {
        let counters = self.device.counters();
        let CostModel { reserve_ns, create_ns, map_ns, set_access_ns, unmap_ns, release_ns, .. } = self.cost;
        let prices = [
            (DeviceCall::Reserve, reserve_ns),
            (DeviceCall::Unreserve, reserve_ns),
            (DeviceCall::Create, create_ns),
            (DeviceCall::Map, map_ns),
            (DeviceCall::SetAccess, set_access_ns),
            (DeviceCall::Unmap, unmap_ns),
            (DeviceCall::Release, release_ns),
        ];
        let page_ns = prices.iter().map(|&(call, price_ns)| counters.of(call) * price_ns).sum();
        // Real time holds what calls take: nothing comes on top.
        Reading { real_ns: 0, host_ns: 0, page_ns, page_calls: counters.driver_memory_calls() }
    }

    fn busy(&self, stream: &Stream, ns: u64) -> Result<(), WorkError> {
        let (scratch, _) = self.scratch.as_ref().expect("it has begun");
        let whole_ns = LAUNCH_NS + SCRATCH_BYTES / WRITTEN_BYTES_PER_NS;
        let mut left_ns = ns;
        while left_ns >= LAUNCH_NS {
            let write_ns = left_ns.min(whole_ns) - LAUNCH_NS;
            let elements = (write_ns * WRITTEN_BYTES_PER_NS) as usize / size_of::<f32>();
            highwater_kernels::fill(stream, 0.0, scratch.slice(..elements.clamp(1, scratch.len())))?;
            left_ns -= LAUNCH_NS + write_ns;
        }
        Ok(())
    }
}

/// What is learnt from operations that were executed.
#[derive(Default)]
struct Watch {
    ends_ns: BTreeMap<StreamId, u64>,
    waited_ns: u64,
    last_ns: u64,
}

impl Watch {
    /// `timeline` holds what came since the last look, of each stream in order.
    fn look(&mut self, timeline: Vec<Executed>) {
        for executed in timeline {
            let end_ns = self.ends_ns.entry(executed.stream).or_default();
            self.waited_ns += executed.start_ns.saturating_sub((*end_ns).max(executed.submitted_ns));
            *end_ns = executed.end_ns;
            self.last_ns = self.last_ns.max(executed.end_ns);
        }
    }
}
