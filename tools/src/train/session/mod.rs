//! One training on the simulated cluster: a thread for each rank, and one that tells what they see.
//!
//! Ranks run one at a time, by virtual host time, so the whole run is a function of the job. A step is issued without
//! waiting for anything; then the losses of the step before are waited for. So the host is at most two steps ahead, and
//! what is shown is a step late.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use highwater::Allocator;
use highwater::device::sim::{Executed, ExecutedKind, SimCluster, SimConfig, SimDevice};
use highwater::device::{CostModel, Device, DeviceError};
use highwater::history::Snapshot;
use highwater_fsdp::group::LocalGroup;
use highwater_fsdp::plan::{Plan, PlanError, PlanSpec, predicted_peak_bytes};
use highwater_fsdp::run::{ModelError, RunError, Runner, plan_spec};
use highwater_fsdp::transformer::{Config, LossReading, MicroBatch, Transformer};
use highwater_kernels::host::AdamW;

use super::batches::Batches;

/// The longest time that a rank waits for the losses of a step, virtual.
const LOSS_TIMEOUT: Duration = Duration::from_secs(60);

/// Steps at the beginning and at the end whose operations are kept.
const TIMELINE_STEPS: u64 = 3;

/// What is to be trained.
pub(crate) struct Job {
    /// Simulated GPUs.
    pub(crate) ranks: u32,
    /// Layers.
    pub(crate) layers: usize,
    /// Width of the residual stream.
    pub(crate) width: usize,
    /// Attention heads.
    pub(crate) heads: usize,
    /// Tokens of a sequence.
    pub(crate) seq: usize,
    /// Sequences of a step, over all ranks.
    pub(crate) batch: usize,
    /// Sequences of a micro-batch.
    pub(crate) micro_batch: usize,
    /// Steps.
    pub(crate) steps: u64,
    /// Learning rate.
    pub(crate) lr: f64,
    /// Seed of parameters and batches.
    pub(crate) seed: u64,
    /// Whether attention does anything.
    pub(crate) attention: bool,
    /// The text.
    pub(crate) corpus: Arc<[u8]>,
}

/// One step, as it is seen.
pub(crate) struct StepSeen {
    /// Its number, from 0.
    pub(crate) step: u64,
    /// Mean loss over its tokens, nats.
    pub(crate) loss: f64,
    /// Virtual time when the loss was on every host, ns.
    pub(crate) device_ns: u64,
    /// The most bytes in use so far, largest over ranks.
    pub(crate) peak_live_bytes: u64,
    /// The most physical bytes held so far, largest over ranks.
    pub(crate) peak_reserved_bytes: u64,
}

/// What a training came to.
pub(crate) struct Outcome {
    /// By step, nats.
    pub(crate) losses: Vec<f64>,
    /// The plan that every rank followed.
    pub(crate) plan: Plan,
    /// Bytes leased in slots, as counted.
    pub(crate) peak_unsharded_bytes: u64,
    /// The same by formula.
    pub(crate) peak_unsharded_predicted_bytes: u64,
    /// Largest over ranks.
    pub(crate) peak_live_bytes: u64,
    /// Largest over ranks.
    pub(crate) peak_reserved_bytes: u64,
    /// Calls that blocked the host inside a step, per step and rank.
    pub(crate) host_syncs_per_step: f64,
    /// (step − step with communication taking no time) ÷ communication alone.
    pub(crate) exposed_comm_fraction: f64,
    /// A step's virtual time, ns.
    pub(crate) step_ns: u64,
    /// Over all parameters in order, without padding.
    pub(crate) parameters_digest: u64,
    /// All ranks' memory at the end.
    pub(crate) snapshot: Snapshot,
    /// The operations of the first and last steps.
    pub(crate) timeline: Vec<Executed>,
}

/// Why a training stopped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SessionError {
    /// The plan was refused.
    #[error("planning: {0}")]
    Plan(#[from] PlanError),
    /// A rank failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The model, its batches or its losses.
    #[error("rank {rank}: {source}")]
    Model {
        /// The rank.
        rank: u32,
        /// Why.
        source: ModelError,
    },
    /// The cluster.
    #[error("the simulated cluster: {0}")]
    Device(#[from] DeviceError),
}

/// A rank's losses of one step.
struct Report {
    rank: u32,
    step: u64,
    losses: Vec<f32>,
    device_ns: u64,
    peak_live_bytes: u64,
    peak_reserved_bytes: u64,
}

/// A rank when all its steps are done.
struct Finished {
    allocator: Allocator,
    runner: Runner<Transformer, LocalGroup>,
    host_syncs: u64,
}

impl Job {
    /// Micro-batches of a rank in a step.
    fn rounds(&self) -> usize {
        self.batch / self.micro_batch / self.ranks as usize
    }

    fn config(&self) -> Config {
        Config {
            layers: self.layers,
            width: self.width,
            heads: self.heads,
            sequence: self.seq,
            micro_batch: self.micro_batch,
            rounds: u32::try_from(self.rounds()).expect("rounds were checked"),
            global_tokens: self.batch * self.seq,
            seed: self.seed,
            attention: self.attention,
        }
    }

    fn adamw(&self) -> AdamW {
        AdamW { lr: self.lr, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.01 }
    }

    fn spec(&self) -> PlanSpec {
        let mut spec = plan_spec(&self.config().units(), self.ranks);
        spec.rounds = self.config().rounds;
        spec
    }
}

/// The plan that every rank will follow, verified.
pub(crate) fn plan(job: &Job) -> Result<Plan, SessionError> {
    let plan = Plan::new(&job.spec())?;
    plan.verify()?;
    Ok(plan)
}

/// Trains by a plan of [`plan`]; `seen` is called once a step, in order, one step late.
pub(crate) fn train(job: &Job, plan: Plan, seen: &mut (dyn FnMut(&StepSeen) + Send)) -> Result<Outcome, SessionError> {
    let plan = Arc::new(plan);
    let (step_ns, exposed_comm_fraction) = exposure(job, &plan)?;

    let config = SimConfig { timeline: true, ..SimConfig::default() };
    let run = Run::new(job, plan.clone(), config, job.steps);
    let (ranks, told) = run.go(seen)?;
    let timeline = windows(run.cluster.take_timeline(), job.steps);
    let host_syncs: u64 = ranks.iter().map(|rank| rank.host_syncs).sum();
    Ok(Outcome {
        peak_unsharded_bytes: ranks.iter().map(|rank| rank.runner.peak_unsharded_bytes()).max().unwrap_or(0),
        peak_unsharded_predicted_bytes: predicted_peak_bytes(plan.spec())?,
        peak_live_bytes: told.peak_live_bytes,
        peak_reserved_bytes: told.peak_reserved_bytes,
        losses: told.losses,
        host_syncs_per_step: host_syncs as f64 / (job.steps * u64::from(job.ranks)) as f64,
        exposed_comm_fraction,
        step_ns,
        parameters_digest: digest(&ranks, job)?,
        snapshot: snapshot(&ranks),
        timeline,
        plan: (*plan).clone(),
    })
}

/// The memory of all ranks; the device number is the rank.
fn snapshot(ranks: &[Finished]) -> Snapshot {
    let mut snapshot = Snapshot::new();
    for (index, rank) in ranks.iter().enumerate() {
        rank.allocator.add_to_snapshot(&mut snapshot, index);
    }
    snapshot
}

/// One run of all ranks.
struct Run<'a> {
    job: &'a Job,
    plan: Arc<Plan>,
    cluster: SimCluster,
    batches: Batches,
    steps: u64,
}

/// What the telling thread gathers.
#[derive(Default)]
struct Seen {
    losses: Vec<f64>,
    peak_live_bytes: u64,
    peak_reserved_bytes: u64,
}

impl<'a> Run<'a> {
    fn new(job: &'a Job, plan: Arc<Plan>, config: SimConfig, steps: u64) -> Self {
        Run {
            job,
            plan,
            cluster: SimCluster::new(job.ranks, config),
            batches: Batches::new(job.corpus.clone(), job.seq, job.batch, job.seed),
            steps,
        }
    }

    fn go(&self, seen: &mut (dyn FnMut(&StepSeen) + Send)) -> Result<(Vec<Finished>, Seen), SessionError> {
        let (reports, arriving) = channel();
        // The first failure is the cause; what other ranks see is mostly that nothing moves any more.
        let first_failure = Mutex::new(None);
        std::thread::scope(|scope| {
            let teller = scope.spawn(|| tell(self.job, arriving, seen));
            let ranks = self.cluster.run(|device| {
                let reports = reports.clone();
                let outcome = self.rank(&device, &reports);
                outcome.map_err(|error| first_failure.lock().expect("nobody panics").get_or_insert(error).to_string())
            });
            drop(reports);
            let told = teller.join().expect("telling does not panic");
            match first_failure.into_inner().expect("nobody panics") {
                Some(error) => Err(error),
                None => Ok((ranks.into_iter().flatten().collect(), told)),
            }
        })
    }

    /// What one rank does.
    fn rank(&self, device: &Arc<SimDevice>, reports: &Sender<Report>) -> Result<Finished, SessionError> {
        let rank = device.properties().ordinal;
        let model_error = |source: ModelError| SessionError::Model { rank, source };
        let allocator = Allocator::new(device.clone()).map_err(|error| model_error(error.into()))?;
        let model = Transformer::new(&allocator, self.job.config()).map_err(model_error)?;
        let group = LocalGroup::new(&self.cluster, device, "sharding", self.job.ranks);
        let mut runner = Runner::new(&allocator, group, model, self.plan.clone(), self.job.adamw())?;
        let compute = runner.compute().clone();
        let mut host_syncs = 0;
        let mut reading: Option<LossReading> = None;
        for step in 0..self.steps {
            let _span = tracing::info_span!("step", step).entered();
            let micro_batches = self.micro_batches(rank, step);
            runner.model_mut().load(&compute, &micro_batches).map_err(model_error)?;
            let before = device.counters().host_synchronizations;
            runner.step()?;
            host_syncs += device.counters().host_synchronizations - before;
            let next = runner.model_mut().read_losses(&compute).map_err(model_error)?;
            if let Some(reading) = reading.replace(next) {
                self.report(device, &allocator, rank, step - 1, &reading, reports)?;
            }
            self.watch(rank, step);
        }
        if let Some(reading) = reading {
            self.report(device, &allocator, rank, self.steps - 1, &reading, reports)?;
        }
        Ok(Finished { allocator, runner, host_syncs })
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
        device: &SimDevice,
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
            losses,
            device_ns: device.now_ns(),
            peak_live_bytes: stats.live.peak,
            peak_reserved_bytes: stats.reserved.peak,
        };
        // Nobody listens any more only when another rank has failed: that failure is what is told.
        let _ = reports.send(report);
        Ok(())
    }

    /// Keeps the operations of the first and last steps only. After step s has been issued, step s − 1 is complete on
    /// this rank, and step s − 2 on all.
    fn watch(&self, rank: u32, step: u64) {
        let last = self.steps.saturating_sub(TIMELINE_STEPS);
        if rank == 0 && step == TIMELINE_STEPS + 1 && step + 1 < last {
            self.cluster.set_timeline(false);
        }
        if rank == 0 && step + 1 == last {
            self.cluster.set_timeline(true);
        }
    }
}

/// Joins the ranks' reports into steps, in order.
fn tell(job: &Job, arriving: Receiver<Report>, seen: &mut (dyn FnMut(&StepSeen) + Send)) -> Seen {
    let mut all = Seen::default();
    let mut waiting: BTreeMap<u64, Vec<Report>> = BTreeMap::new();
    for report in arriving {
        let step = report.step;
        let reports = waiting.entry(step).or_default();
        reports.push(report);
        if reports.len() < job.ranks as usize {
            continue;
        }
        let mut reports = waiting.remove(&step).expect("it is complete");
        reports.sort_by_key(|report| report.rank);
        // In the order of micro-batches, whatever the number of ranks.
        let rounds = 0..job.rounds();
        let loss = rounds.flat_map(|round| reports.iter().map(move |report| f64::from(report.losses[round]))).sum();
        let most = |of: fn(&Report) -> u64| reports.iter().map(of).max().unwrap_or(0);
        all.losses.push(loss);
        all.peak_live_bytes = all.peak_live_bytes.max(most(|report| report.peak_live_bytes));
        all.peak_reserved_bytes = all.peak_reserved_bytes.max(most(|report| report.peak_reserved_bytes));
        seen(&StepSeen {
            step,
            loss,
            device_ns: most(|report| report.device_ns),
            peak_live_bytes: all.peak_live_bytes,
            peak_reserved_bytes: all.peak_reserved_bytes,
        });
    }
    all
}

/// A step's virtual time, and the part of communication that it does not hide: measured on runs without arithmetic.
fn exposure(job: &Job, plan: &Arc<Plan>) -> Result<(u64, f64), SessionError> {
    let whole = Steps::measure(job, plan, CostModel::default())?;
    let silent = Steps::measure(job, plan, CostModel::default().without_communication())?;
    let exposed = whole.step_ns.saturating_sub(silent.step_ns);
    let fraction = if whole.communication_ns == 0 { 0.0 } else { exposed as f64 / whole.communication_ns as f64 };
    Ok((whole.step_ns, fraction))
}

/// A step in the steady state.
struct Steps {
    step_ns: u64,
    /// All collectives of a step, one after the other, on one rank.
    communication_ns: u64,
}

impl Steps {
    /// Steps before the measured ones, and those measured.
    const WARM_UP: u64 = 2;
    const MEASURED: u64 = 4;

    fn measure(job: &Job, plan: &Arc<Plan>, cost: CostModel) -> Result<Self, SessionError> {
        let config = SimConfig { cost, bodies: false, timeline: true, workers: 0, ..SimConfig::default() };
        let run = Run::new(job, plan.clone(), config, Self::WARM_UP + Self::MEASURED);
        run.go(&mut |_| {})?;
        let timeline = run.cluster.take_timeline();
        let of_rank_0 = |step: u64| timeline.iter().filter(move |e| e.device == 0 && step_of(e) == Some(step));
        let end = |step| of_rank_0(step).map(|executed| executed.end_ns).max().unwrap_or(0);
        let last = Self::WARM_UP + Self::MEASURED - 1;
        let collectives = of_rank_0(last).filter(|e| matches!(e.kind, ExecutedKind::Collective { .. }));
        Ok(Steps {
            step_ns: (end(last) - end(Self::WARM_UP - 1)) / Self::MEASURED,
            communication_ns: collectives.map(|executed| executed.end_ns - executed.start_ns).sum(),
        })
    }
}

/// The step that an operation belongs to.
fn step_of(executed: &Executed) -> Option<u64> {
    (executed.tag >> 32).checked_sub(1)
}

/// The operations of the first and last steps, with the copies around them.
fn windows(timeline: Vec<Executed>, steps: u64) -> Vec<Executed> {
    let last = steps.saturating_sub(TIMELINE_STEPS);
    let wanted = |step: u64| step < TIMELINE_STEPS || step >= last;
    let end_of_first =
        timeline.iter().filter(|e| step_of(e).is_some_and(|step| step < TIMELINE_STEPS)).map(|e| e.end_ns).max();
    let start_of_last =
        timeline.iter().filter(|e| step_of(e).is_some_and(|step| step >= last)).map(|e| e.start_ns).min();
    let inside = |executed: &Executed| match step_of(executed) {
        Some(step) => wanted(step),
        None => {
            end_of_first.is_some_and(|end| executed.start_ns <= end)
                || start_of_last.is_some_and(|start| executed.end_ns >= start)
        }
    };
    timeline.into_iter().filter(inside).collect()
}

/// FNV-1a over the bits of all parameters in order, without padding.
fn digest(ranks: &[Finished], job: &Job) -> Result<u64, SessionError> {
    let shards = ranks.iter().map(|rank| rank.runner.read_shards()).collect::<Result<Vec<_>, _>>()?;
    let mut digest = 0xcbf2_9ce4_8422_2325_u64;
    for (index, unit) in job.config().units().iter().enumerate() {
        let whole = shards.iter().flat_map(|shards| &shards[index]).take(unit.elements);
        for byte in whole.flat_map(|parameter| parameter.to_bits().to_le_bytes()) {
            digest = (digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    Ok(digest)
}
