//! What one rank does, on whatever device.
//!
//! A step is issued without waiting for anything; then the losses of the step before are waited for. So the host is at
//! most two steps ahead, and what is shown is a step late.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use highwater::device::Device;
use highwater::{Allocator, Buffer, HostBuffer};
use highwater_fsdp::group::ProcessGroup;
use highwater_fsdp::plan::Plan;
use highwater_fsdp::run::{ModelError, Runner, UnitLayout};
use highwater_fsdp::transformer::{LossReading, MicroBatch, Transformer};

use super::tell::Report;
use super::{Job, SessionError};
use crate::train::batches::Batches;

/// The longest time that a rank waits for the losses of a step, by the device's clock.
const LOSS_TIMEOUT: Duration = Duration::from_secs(60);

/// Steps in which memory is still mapped.
const WARM_UP_STEPS: u64 = 2;

/// A group that a rank can be a member of.
pub(super) trait Group: ProcessGroup + Send + 'static {}

impl<G: ProcessGroup + Send + 'static> Group for G {}

/// What all ranks of a process have in common.
pub(super) struct Crew<'a> {
    pub(super) job: &'a Job,
    pub(super) plan: Arc<Plan>,
    pub(super) batches: Batches,
    pub(super) steps: u64,
    /// Whether a rank tells the losses of all ranks, which it gathers, or its own.
    pub(super) gathers_losses: bool,
    /// Whether the device has bytes and arithmetic; without, only times mean anything.
    pub(super) computes: bool,
}

/// A rank when all its steps are done.
pub(super) struct Finished<G> {
    pub(super) rank: u32,
    pub(super) allocator: Allocator,
    pub(super) runner: Runner<Transformer, G>,
    pub(super) host_syncs: u64,
    pub(super) late_driver_memory_calls: u64,
    pub(super) parameters_digest: u64,
}

impl<'a> Crew<'a> {
    pub(super) fn new(job: &'a Job, plan: &Arc<Plan>, steps: u64) -> Self {
        let batches = Batches::new(job.corpus.clone(), job.seq, job.batch, job.seed);
        Crew { job, plan: plan.clone(), batches, steps, gathers_losses: false, computes: true }
    }

    /// Trains as one rank; `watch` is called after each step has been issued.
    pub(super) fn run<G: Group>(
        &self,
        device: Arc<dyn Device>,
        group: G,
        reports: &Sender<Report>,
        mut watch: impl FnMut(u64) -> Result<(), SessionError>,
    ) -> Result<Finished<G>, SessionError> {
        let rank = group.rank();
        let model_error = |source: ModelError| SessionError::Model { rank, source };
        let allocator = Allocator::new(device.clone()).map_err(|error| model_error(error.into()))?;
        let model = Transformer::new(&allocator, self.job.config()).map_err(model_error)?;
        let mut runner = Runner::new(&allocator, group, model, self.plan.clone(), self.job.adamw())?;
        let compute = runner.compute().clone();
        let (mut host_syncs, mut early_memory_calls) = (0, 0);
        let mut reading: Option<LossReading> = None;
        let gathering = self.gathers_losses.then(|| Gathering::new(&allocator, &runner, self.job)).transpose();
        let gathering = gathering.map_err(model_error)?;
        for step in 0..self.steps {
            let _span = tracing::info_span!("step", step).entered();
            let micro_batches = self.micro_batches(rank, step);
            runner.model_mut().load(&compute, &micro_batches).map_err(model_error)?;
            let before = device.counters().host_synchronizations;
            runner.step()?;
            host_syncs += device.counters().host_synchronizations - before;
            let next = match &gathering {
                Some(gathering) => gathering.read(&runner, step).map_err(model_error)?,
                None => runner.model_mut().read_losses(&compute).map_err(model_error)?,
            };
            if let Some(reading) = reading.replace(next) {
                self.report(&allocator, rank, step - 1, &reading, reports)?;
            }
            if step < WARM_UP_STEPS {
                early_memory_calls = device.counters().driver_memory_calls();
            }
            watch(step)?;
        }
        if let Some(reading) = reading {
            self.report(&allocator, rank, self.steps - 1, &reading, reports)?;
        }
        let late_driver_memory_calls = device.counters().driver_memory_calls() - early_memory_calls;
        let parameters_digest = if self.computes { self.compared_digest(&allocator, &runner)? } else { 0 };
        Ok(Finished { rank, allocator, runner, host_syncs, late_driver_memory_calls, parameters_digest })
    }

    /// The digest of all parameters, which is the same on every rank.
    fn compared_digest<G: Group>(
        &self,
        allocator: &Allocator,
        runner: &Runner<Transformer, G>,
    ) -> Result<u64, SessionError> {
        let own = digest(&runner.read_units()?, &self.job.config().units());
        let all = digests(allocator, runner, own, self.job.ranks);
        let all = all.map_err(|source| SessionError::Model { rank: runner.rank(), source })?;
        if all.iter().any(|&other| other != own) {
            return Err(SessionError::Diverged(all));
        }
        Ok(own)
    }

    /// The micro-batches of a rank in a step: number k of the step goes to rank k mod ranks.
    fn micro_batches(&self, rank: u32, step: u64) -> Vec<MicroBatch<'_>> {
        let size = self.job.micro_batch;
        let micro_batch = |round: usize| {
            let number = round * self.job.ranks as usize + rank as usize;
            let sequences = (number * size..(number + 1) * size).map(|index| self.batches.sequence(step, index));
            MicroBatch { sequences: sequences.collect() }
        };
        (0..self.job.rounds()).map(micro_batch).collect()
    }

    /// Waits for the losses of a step and sends them.
    fn report(
        &self,
        allocator: &Allocator,
        rank: u32,
        step: u64,
        reading: &LossReading,
        reports: &Sender<Report>,
    ) -> Result<(), SessionError> {
        let losses = reading.wait(LOSS_TIMEOUT).map_err(|source| SessionError::Model { rank, source })?;
        let stats = allocator.memory_stats();
        let report = Report {
            rank,
            step,
            losses: losses.chunks_exact(self.job.rounds()).map(<[f32]>::to_vec).collect(),
            device_ns: allocator.device().now_ns(),
            peak_live_bytes: stats.live.peak,
            peak_reserved_bytes: stats.reserved.peak,
        };
        // Nobody listens any more only when another rank has failed: that failure is what is told.
        let _ = reports.send(report);
        Ok(())
    }
}

/// The losses of all ranks, gathered behind each step.
struct Gathering {
    all: Buffer<f32>,
    /// Used in turns: those of a step are read while the next one is under way.
    turns: [Arc<HostBuffer<f32>>; 2],
}

impl Gathering {
    fn new<G: Group>(allocator: &Allocator, runner: &Runner<Transformer, G>, job: &Job) -> Result<Self, ModelError> {
        let elements = job.rounds() * job.ranks as usize;
        let turn = || Arc::new(allocator.pinned(elements));
        Ok(Gathering { all: runner.communication().alloc(elements)?, turns: [turn(), turn()] })
    }

    fn read<G: Group>(&self, runner: &Runner<Transformer, G>, step: u64) -> Result<LossReading, ModelError> {
        let turn = &self.turns[usize::from(!step.is_multiple_of(2))];
        runner.gather(runner.model().losses(), self.all.view())?;
        runner.communication().copy_to_host(&self.all, turn)?;
        Ok(LossReading::new(turn.clone()))
    }
}

/// The digests of all ranks, in their order. A digest travels as four whole numbers that `f32` holds exactly.
fn digests<G: Group>(
    allocator: &Allocator,
    runner: &Runner<Transformer, G>,
    own: u64,
    ranks: u32,
) -> Result<Vec<u64>, ModelError> {
    const PARTS: usize = 4;
    let elements = PARTS * ranks as usize;
    let (stream, part) = (runner.communication(), |digest: u64, index: usize| (digest >> (16 * index)) as u16);
    let (sent, received) = (allocator.pinned::<f32>(PARTS), allocator.pinned::<f32>(elements));
    sent.write(|parts| {
        for (index, place) in parts.iter_mut().enumerate() {
            *place = f32::from(part(own, index));
        }
    })?;
    let (mine, all) = (stream.alloc(PARTS)?, stream.alloc(elements)?);
    stream.copy_to_device(&sent, &mine)?;
    runner.gather(mine.view(), all.view())?;
    stream.copy_to_host(&all, &received)?;
    received.wait(LOSS_TIMEOUT)?;
    let whole = |parts: &[f32]| parts.iter().rev().fold(0, |digest, &part| digest << 16 | part as u64);
    Ok(received.read(|parts| parts.chunks_exact(PARTS).map(whole).collect())?)
}

/// FNV-1a over the bits of all parameters in order, without padding.
fn digest(units: &[Vec<f32>], layouts: &[UnitLayout]) -> u64 {
    let whole = units.iter().zip(layouts).flat_map(|(unit, layout)| &unit[..layout.elements]);
    let bytes = whole.flat_map(|parameter| parameter.to_bits().to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| (digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
