//! A loop that prefetches, as programs write it: a stream of its own brings batches of any length from pinned memory into
//! buffers that are new each time, and the stream that computes uses them, and layers of its own. The host is a few steps
//! ahead, and frees batches that are still used. Now and then it waits for all, and looks at all batches at once, without
//! layers, as a validation does: so first the one stream needs the most memory, then the other.

use std::collections::VecDeque;
use std::time::Duration;

use highwater::{Allocator, Buffer, Fence, HostBuffer, Stream};
use highwater_kernels as kernels;

use super::slowdown::median;
use super::{AnyDevice, AnyError, with};
use crate::bench::workloads::Lcg;
use crate::replay::counters::Counters;

/// The longest that a step is waited for.
const LONGEST: Duration = Duration::from_secs(60);

/// How much is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Prefetch {
    /// Batches in pinned memory, which come again and again in a random order.
    pub(super) batches: usize,
    /// Their bytes are at least the one and below the other; the logarithm is uniform.
    pub(super) low_bytes: u64,
    pub(super) high_bytes: u64,
    /// How often a step reads its batch, and how many layers it keeps.
    pub(super) passes: usize,
    pub(super) layers: usize,
    /// Steps between two looks at all batches.
    pub(super) period: usize,
    /// Steps that are measured, and steps before.
    pub(super) steps: usize,
    pub(super) warm_up: usize,
    /// Steps that the host is ahead.
    pub(super) ahead: usize,
    /// Runs of each kind, in turn.
    pub(super) repeats: usize,
    /// Whether the device computes, so that the result can be looked at.
    pub(super) check: bool,
}

/// What came of it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Prefetched {
    /// Time of a step, ns.
    pub(super) step_ns: f64,
    /// Most physical bytes, and most bytes in use as asked for.
    pub(super) reserved_bytes: u64,
    pub(super) peak_live_bytes: u64,
    pub(super) pages_moved: u64,
}

impl Prefetch {
    /// Those of the command.
    pub(super) const FULL: Prefetch = Prefetch {
        batches: 16,
        low_bytes: 4 << 20,
        high_bytes: 64 << 20,
        passes: 24,
        layers: 4,
        period: 40,
        steps: 400,
        warm_up: 40,
        ahead: 4,
        repeats: 3,
        check: true,
    };

    /// The loop with lending, and without: the median times, and the most that a run held.
    ///
    /// # Errors
    /// When there is no memory, the device fails, or the result is wrong.
    pub(super) fn measure(&self, device: &AnyDevice) -> Result<[Prefetched; 2], AnyError> {
        let mut runs = [Vec::new(), Vec::new()];
        for _ in 0..self.repeats {
            for (lending, runs) in ["lending:True", "lending:False"].into_iter().zip(&mut runs) {
                runs.push(self.run(device, lending)?);
            }
        }
        Ok(runs.map(|runs| Prefetched {
            step_ns: median(runs.iter().map(|run| run.step_ns).collect()),
            ..*runs.iter().max_by_key(|run| run.reserved_bytes).expect("there is a run")
        }))
    }

    fn run(&self, device: &AnyDevice, lending: &str) -> Result<Prefetched, AnyError> {
        let allocator = Allocator::with_settings(device.clone(), with(&[lending.to_owned()])?)?;
        let lanes = Lanes::new(&allocator, self)?;
        let mut random = Lcg::new(5);
        let (mut ends, mut expected, mut start_ns) = (VecDeque::new(), 0, 0);
        for step in 0..self.warm_up + self.steps {
            if step == self.warm_up {
                start_ns = device.now_ns();
            }
            let batch = random.next() as usize % self.batches;
            expected += value(batch) * self.passes;
            ends.push_back(lanes.step(batch, self)?);
            let is_last = step % self.period == self.period - 1;
            wait_for_all_but(&mut ends, if is_last { 0 } else { self.ahead })?;
            if is_last {
                ends.push_back(lanes.look_at_all()?);
                wait_for_all_but(&mut ends, 0)?;
                expected += (0..self.batches).map(value).sum::<usize>();
            }
        }
        wait_for_all_but(&mut ends, 0)?;
        let step_ns = (device.now_ns() - start_ns) as f64 / self.steps as f64;
        let Counters { peak_live_bytes, peak_reserved_bytes, pages_moved, .. } = Counters::of(&allocator);
        if self.check {
            lanes.check(&allocator, expected)?;
        }
        let pages_moved = pages_moved.unwrap_or_default();
        Ok(Prefetched { step_ns, reserved_bytes: peak_reserved_bytes, peak_live_bytes, pages_moved })
    }
}

/// Waits for the first of some steps.
fn wait_for_all_but(ends: &mut VecDeque<Fence>, last: usize) -> Result<(), AnyError> {
    while ends.len() > last {
        ends.pop_front().expect("there are some").wait(LONGEST)?;
    }
    Ok(())
}

/// What every element of a batch is.
fn value(batch: usize) -> usize {
    batch % 7 + 1
}

/// The two streams, and what lives as long as the loop.
struct Lanes {
    loader: Stream,
    compute: Stream,
    hosts: Vec<HostBuffer<f32>>,
    /// Where each step adds the beginning of what it has computed.
    sum: Buffer<f32>,
}

impl Lanes {
    fn new(allocator: &Allocator, sizes: &Prefetch) -> Result<Self, AnyError> {
        let (loader, compute) = (allocator.create_stream("loader")?, allocator.create_stream("compute")?);
        let mut random = Lcg::new(4);
        let host = |batch| -> Result<HostBuffer<f32>, AnyError> {
            let bytes = random.log_uniform(sizes.low_bytes, sizes.high_bytes);
            let host = allocator.pinned(bytes as usize / size_of::<f32>());
            host.write(|elements: &mut [f32]| elements.fill(value(batch) as f32))?;
            Ok(host)
        };
        let hosts = (0..sizes.batches).map(host).collect::<Result<_, _>>()?;
        let sum = compute.alloc(sizes.low_bytes as usize / size_of::<f32>())?;
        kernels::fill(&compute, 0.0, sum.view())?;
        Ok(Lanes { loader, compute, hosts, sum })
    }

    /// Brings a batch into a buffer that is new.
    fn bring(&self, batch: usize) -> Result<Buffer<f32>, AnyError> {
        let host = &self.hosts[batch];
        let buffer = self.loader.alloc(host.len())?;
        self.loader.copy_to_device(host, &buffer)?;
        Ok(buffer)
    }

    /// Adds the last elements of a buffer, which its last handle holds.
    fn add(&self, buffer: &Buffer<f32>) -> Result<(), AnyError> {
        let last = buffer.slice(buffer.len() - self.sum.len()..);
        Ok(kernels::accumulate(&self.compute, last, self.sum.view())?)
    }

    /// Brings a batch, computes with it, and frees everything; the end of the step.
    fn step(&self, batch: usize, sizes: &Prefetch) -> Result<Fence, AnyError> {
        let compute = &self.compute;
        let batch = self.bring(batch)?;
        compute.wait(&self.loader.record()?)?;
        let layers = (0..sizes.layers).map(|_| compute.alloc::<f32>(batch.len())).collect::<Result<Vec<_>, _>>()?;
        kernels::fill(compute, 0.0, layers[0].view())?;
        for _ in 0..sizes.passes {
            kernels::accumulate(compute, batch.view(), layers[0].view())?;
        }
        for pair in layers.windows(2) {
            kernels::copy(compute, pair[0].view(), pair[1].view())?;
        }
        self.add(&layers[sizes.layers - 1])?;
        Ok(compute.record()?)
    }

    /// Brings all batches, looks at each once, and frees them; the end of it.
    fn look_at_all(&self) -> Result<Fence, AnyError> {
        let batches = (0..self.hosts.len()).map(|batch| self.bring(batch)).collect::<Result<Vec<_>, _>>()?;
        self.compute.wait(&self.loader.record()?)?;
        batches.iter().try_for_each(|batch| self.add(batch))?;
        Ok(self.compute.record()?)
    }

    /// Looks at the sum.
    fn check(&self, allocator: &Allocator, expected: usize) -> Result<(), AnyError> {
        let found = allocator.pinned::<f32>(self.sum.len());
        self.compute.copy_to_host(&self.sum, &found)?;
        found.wait(LONGEST)?;
        let wrong = found.read(|found| found.iter().filter(|&&found| found != expected as f32).count())?;
        if wrong > 0 {
            return Err(format!("{wrong} elements of the sum over all batches are wrong").into());
        }
        Ok(())
    }
}
