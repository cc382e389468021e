//! One training: a thread for each rank, and one that tells what they see.
//!
//! [`rank`] is what one rank does, whatever the device; [`simulated`] and [`gpu`] make devices and groups and run the
//! ranks; [`tell`] joins what they report.

mod gpu;
mod measure;
mod rank;
mod simulated;
mod tell;

use std::sync::Arc;

use highwater::device::{DeviceError, Executed};
use highwater::history::Snapshot;
use highwater_fsdp::group::GroupError;
use highwater_fsdp::plan::{Plan, PlanError, PlanSpec, predicted_peak_bytes};
use highwater_fsdp::run::{ModelError, RunError, plan_spec};
use highwater_fsdp::transformer::Config;
use highwater_kernels::cuda::BuildError;
use highwater_kernels::host::AdamW;

use super::machine::Machine;

pub(crate) use tell::StepSeen;

/// Steps at the beginning and at the end whose operations are kept.
const TIMELINE_STEPS: u64 = 3;

/// What is to be trained.
pub(crate) struct Job {
    /// Ranks that share the parameters.
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

/// Which clock times are told by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Clock {
    /// The simulation's.
    Virtual,
    /// The GPU's and the host's.
    Measured,
}

/// What a training came to, as far as the ranks of this process know.
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
    /// Calls that changed what memory is reserved, mapped or held, from the third step on, over all ranks.
    pub(crate) late_driver_memory_calls: u64,
    /// The clock of the two below, and of the timeline.
    pub(crate) clock: Clock,
    /// Virtual: (step − step with communication taking no time) ÷ communication alone. Measured: the time for
    /// which computation stands still because of collectives ÷ the time of collectives.
    pub(crate) exposed_comm_fraction: f64,
    /// A step's time, ns.
    pub(crate) step_ns: u64,
    /// Over all parameters in order, without padding.
    pub(crate) parameters_digest: u64,
    /// The ranks' memory at the end.
    pub(crate) snapshot: Snapshot,
    /// The operations of the first and last steps.
    pub(crate) timeline: Vec<Track>,
}

/// Operations that belong together in a timeline. The device number is the rank.
#[derive(Debug)]
pub(crate) struct Track {
    /// What stands behind the rank's name; nothing where there is one track.
    pub(crate) label: &'static str,
    /// The operations.
    pub(crate) operations: Vec<Executed>,
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
    /// The group could not be formed.
    #[error("forming the group: {0}")]
    Group(#[from] GroupError),
    /// A device.
    #[error("the device: {0}")]
    Device(#[from] DeviceError),
    /// A rank ended without a word: a mistake of this program.
    #[error("rank {rank} panicked; what it said stands above")]
    Panicked {
        /// The rank.
        rank: u32,
    },
    /// The kernels.
    #[error("the kernels: {0}")]
    Kernels(#[from] BuildError),
    /// The ranks do not hold the same parameters.
    #[error("the ranks end with different parameters: {}", .0.iter().map(|digest| format!("{digest:016x}")).collect::<Vec<_>>().join(", "))]
    Diverged(Vec<u64>),
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
pub(crate) fn train(
    job: &Job,
    machine: &Machine,
    plan: Plan,
    seen: &mut (dyn FnMut(&StepSeen) + Send),
) -> Result<Outcome, SessionError> {
    let plan = Arc::new(plan);
    match machine {
        Machine::Simulated => simulated::train(job, &plan, seen),
        Machine::Threads => gpu::train_threads(job, &plan, seen),
        Machine::Nccl(place) => gpu::train_nccl(job, &plan, place, seen),
    }
}

/// What the ends of all ranks of this process come to, but for times.
fn outcome<G: rank::Group>(
    job: &Job,
    plan: &Plan,
    ranks: &[rank::Finished<G>],
    told: tell::Told,
    times: Times,
) -> Result<Outcome, SessionError> {
    let host_syncs: u64 = ranks.iter().map(|rank| rank.host_syncs).sum();
    let mut snapshot = Snapshot::new();
    for (index, rank) in ranks.iter().enumerate() {
        rank.allocator.add_to_snapshot(&mut snapshot, index);
    }
    Ok(Outcome {
        peak_unsharded_bytes: ranks.iter().map(|rank| rank.runner.peak_unsharded_bytes()).max().unwrap_or(0),
        peak_unsharded_predicted_bytes: predicted_peak_bytes(plan.spec())?,
        peak_live_bytes: told.peak_live_bytes,
        peak_reserved_bytes: told.peak_reserved_bytes,
        losses: told.losses,
        host_syncs_per_step: host_syncs as f64 / (job.steps * ranks.len() as u64) as f64,
        late_driver_memory_calls: ranks.iter().map(|rank| rank.late_driver_memory_calls).sum(),
        clock: times.clock,
        exposed_comm_fraction: times.exposed_comm_fraction,
        step_ns: times.step_ns,
        parameters_digest: ranks.first().map_or(0, |rank| rank.parameters_digest),
        snapshot,
        timeline: times.timeline,
        plan: plan.clone(),
    })
}

/// How long things took.
struct Times {
    clock: Clock,
    exposed_comm_fraction: f64,
    step_ns: u64,
    timeline: Vec<Track>,
}
