//! A small training with calls that fail, and which operation of the plan each call belongs to.

use std::sync::Arc;

use highwater::device::sim::{ExecutedKind, Mode, SimCluster, SimConfig, SimDevice};
use highwater::device::{CallCounters, Device, DeviceCall};
use highwater::{Allocator, Settings};
use highwater_fsdp::group::LocalGroup;
use highwater_fsdp::plan::{Op, OpKind, Plan};
use highwater_fsdp::run::{Runner, plan_spec};
use highwater_fsdp::transformer::{Config, MicroBatch, Transformer};
use highwater_kernels::host::AdamW;

pub(crate) type TransformerRunner = Runner<Transformer, LocalGroup>;

/// What a step calls of the device, once its memory is there.
pub(crate) const CALLS: [DeviceCall; 4] =
    [DeviceCall::Launch, DeviceCall::Record, DeviceCall::Wait, DeviceCall::Collective];

pub(crate) fn config(ranks: u32) -> Config {
    Config {
        layers: 2,
        width: 4,
        heads: 2,
        sequence: 3,
        micro_batch: 1,
        rounds: 2,
        global_tokens: 6 * ranks as usize,
        seed: 11,
        attention: true,
    }
}

pub(crate) fn plan(ranks: u32) -> Arc<Plan> {
    let config = config(ranks);
    let mut spec = plan_spec(&config.units(), ranks);
    spec.rounds = config.rounds;
    Plan::new(&spec).unwrap().into()
}

pub(crate) fn cluster(ranks: u32, mode: Mode) -> SimCluster {
    SimCluster::new(ranks, SimConfig { mode, workers: 0, timeline: true, ..SimConfig::default() })
}

/// One rank, ready for its first step.
pub(crate) struct Rank {
    pub(crate) device: Arc<SimDevice>,
    pub(crate) allocator: Allocator,
    pub(crate) runner: TransformerRunner,
}

impl Rank {
    pub(crate) fn new(cluster: &SimCluster, device: &Arc<SimDevice>, ranks: u32) -> Self {
        let allocator = Allocator::with_settings(device.clone(), Settings::default()).unwrap();
        let group = LocalGroup::new(cluster, device, "sharding", ranks);
        let model = Transformer::new(&allocator, config(ranks)).unwrap();
        let adamw = AdamW { lr: 0.01, ..AdamW::default() };
        let runner = Runner::new(&allocator, group, model, plan(ranks), adamw).unwrap();
        Rank { device: device.clone(), allocator, runner }
    }

    /// Loads what every rank reads in `step`.
    pub(crate) fn load(&mut self, step: u8) {
        let rank = self.device.properties().ordinal as u8;
        let text = |round: u8| [0, 1, 2, 3].map(|byte| 50 * round + 20 * step + 3 * rank + 7 * byte);
        let texts = [text(0), text(1)];
        let micro_batches = texts.each_ref().map(|text| MicroBatch { sequences: vec![&text[..]] });
        let stream = self.runner.compute().clone();
        self.runner.model_mut().load(&stream, &micro_batches).unwrap();
    }

    /// Loads and issues a step that has to work.
    pub(crate) fn step(&mut self, step: u8) {
        self.load(step);
        self.runner.step().unwrap();
    }
}

/// The operations that make each call of a steady step: for the nth call of a kind the place of its operation.
pub(crate) struct Owners {
    plan: Arc<Plan>,
    launches: Vec<usize>,
}

impl Owners {
    /// Launches are those that an undisturbed second step was seen to make; all else follows from the plan.
    pub(crate) fn new(ranks: u32) -> Self {
        let cluster = cluster(ranks, Mode::Timed);
        let counted = cluster.run(|device| {
            let mut rank = Rank::new(&cluster, &device, ranks);
            rank.step(0);
            rank.load(1);
            let before = device.counters();
            rank.runner.step().unwrap();
            made(&device.counters(), &before)
        });
        cluster.settle().unwrap();
        let mut executed = cluster.take_timeline();
        executed.sort_by_key(|executed| executed.id);
        let kernels = executed.iter().filter(|executed| {
            executed.device == 0 && executed.tag >> 32 == 2 && executed.kind == ExecutedKind::Kernel
        });
        let launches = kernels.map(|executed| executed.tag as u32 as usize).collect();
        let owners = Owners { plan: plan(ranks), launches };
        let expected = CALLS.map(|call| owners.of(call).len() as u64);
        assert_eq!(counted, vec![expected; ranks as usize], "{CALLS:?} of a step are those of the plan and the model");
        owners
    }

    /// For the nth call of this kind (from 0), its operation's place in the plan.
    pub(crate) fn of(&self, call: DeviceCall) -> Vec<usize> {
        let times = |op: &Op| match call {
            DeviceCall::Record => usize::from(op.signals),
            DeviceCall::Wait => op.waits.len(),
            _ => usize::from(matches!(op.kind, OpKind::Gather { .. } | OpKind::Reduce { .. })),
        };
        match call {
            DeviceCall::Launch => self.launches.clone(),
            _ => self.plan.ops().iter().enumerate().flat_map(|(index, op)| vec![index; times(op)]).collect(),
        }
    }

    /// Name of the operation at a place, and of its unit.
    pub(crate) fn names(&self, index: usize) -> (&'static str, String) {
        let op = &self.plan.ops()[index];
        (op.kind.name(), self.plan.spec().units[op.unit.index()].name.clone())
    }

    /// The place of the first operation that changes parameters.
    pub(crate) fn first_optimize(&self) -> usize {
        self.plan.ops().iter().position(|op| op.kind == OpKind::Optimize).unwrap()
    }
}

/// How often each of [`CALLS`] was made; nothing else was.
fn made(after: &CallCounters, before: &CallCounters) -> [u64; 4] {
    assert_eq!(after.host_synchronizations, before.host_synchronizations, "a step waits for nothing");
    for &call in DeviceCall::ALL {
        let made = after.of(call) - before.of(call);
        assert_eq!(made > 0, CALLS.contains(&call), "{made} calls of {call}");
    }
    CALLS.map(|call| after.of(call) - before.of(call))
}
