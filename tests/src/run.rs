//! Runs of the tick model on a simulated cluster.

use std::sync::Arc;

use highwater::Allocator;
use highwater::device::sim::{Executed, Hazard, Mode, SimCluster, SimConfig, SimDevice};
use highwater::device::{CostModel, Device};
use highwater_fsdp::group::LocalGroup;
use highwater_fsdp::plan::{OpIndex, Plan, PlanSpec};
use highwater_fsdp::run::{ModelError, Runner, padded_elements, plan_spec};
use highwater_kernels::host::AdamW;

use crate::{TickModel, Ticks};

/// A training to be run: everything but the plan's options.
#[derive(Clone, Debug)]
pub struct Scene {
    /// Elements of each unit.
    pub elements: Vec<usize>,
    /// Ranks.
    pub ranks: u32,
    /// Durations.
    pub ticks: Ticks,
    /// Steps.
    pub steps: u64,
    /// How the order of execution is decided.
    pub mode: Mode,
    /// What calls cost the host, ns each; 0 puts the host infinitely far ahead.
    pub host_ns: u64,
}

impl Scene {
    /// Units of equal size, timed, the host infinitely far ahead.
    #[must_use]
    pub fn uniform(units: usize, ranks: u32, ticks: Ticks) -> Self {
        Scene { elements: vec![1024; units], ranks, ticks, steps: 1, mode: Mode::Timed, host_ns: 0 }
    }

    /// The default spec for a plan of this scene.
    #[must_use]
    pub fn spec(&self) -> PlanSpec {
        plan_spec(&TickModel::layouts(&self.elements), self.ranks)
    }

    /// Bytes that cross a rank's link when a unit is gathered or reduced; units must be of equal size for exact ticks.
    fn link_bytes(&self) -> u64 {
        let ranks = u64::from(self.ranks);
        padded_elements(self.elements[0], self.ranks) as u64 * 4 / ranks * (ranks - 1)
    }

    fn config(&self) -> SimConfig {
        let rate = (self.link_bytes() * 1000).checked_div(self.ticks.communication_ns).unwrap_or(0);
        let host = self.host_ns;
        let cost =
            CostModel { link_bytes_per_us: rate, launch_ns: host, record_ns: host, wait_ns: host, ..CostModel::free() };
        SimConfig {
            cost,
            mode: self.mode,
            timeline: true,
            workers: 0,
            granularity_bytes: 1 << 16,
            ..SimConfig::default()
        }
    }

    /// Runs the plan.
    ///
    /// # Errors
    /// The first rank's error, if any rank has one.
    pub fn run(&self, plan: &Plan) -> Result<Ran, ModelError> {
        self.run_with(plan, |_| {})
    }

    /// Runs the plan; `prepare` sees each device after its rank is set up, before its first step.
    ///
    /// # Errors
    /// The first rank's error, if any rank has one.
    pub fn run_with(&self, plan: &Plan, prepare: impl Fn(&SimDevice) + Sync) -> Result<Ran, ModelError> {
        let cluster = SimCluster::new(self.ranks, self.config());
        let plan = Arc::new(plan.clone());
        let results = cluster.run(|device| self.rank(&cluster, &device, plan.clone(), &prepare));
        let ranks = results.into_iter().collect::<Result<Vec<Rank>, ModelError>>()?;
        let timeline = cluster.take_timeline();
        Ok(Ran { plan: (*plan).clone(), timeline, hazards: cluster.hazards(), ranks })
    }

    fn rank(
        &self,
        cluster: &SimCluster,
        device: &Arc<SimDevice>,
        plan: Arc<Plan>,
        prepare: &(impl Fn(&SimDevice) + Sync),
    ) -> Result<Rank, ModelError> {
        let allocator = Allocator::new(device.clone())?;
        let rank = device.properties().ordinal;
        let inputs: Vec<f32> = (0..plan.spec().rounds).map(|round| (round * self.ranks + rank) as f32).collect();
        let model = TickModel::new(&allocator, &self.elements, self.ticks, &inputs)?;
        let group = LocalGroup::new(cluster, device, "sharding", self.ranks);
        let adamw = AdamW { lr: 0.01, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.01 };
        let mut runner = Runner::new(&allocator, group, model, plan, adamw)?;
        prepare(device);
        let before = device.counters();
        for _ in 0..self.steps {
            runner.step()?;
        }
        let host_synchronizations = device.counters().host_synchronizations - before.host_synchronizations;
        let driver_memory_calls = device.counters().driver_memory_calls() - before.driver_memory_calls();
        let (unsharded_bytes, peak_unsharded_bytes) = (runner.unsharded_bytes(), runner.peak_unsharded_bytes());
        assert!(runner.communication().is_open() && !runner.compute().is_open(), "collectives wait for other ranks");
        let shards = runner.read_shards()?;
        let stats = allocator.memory_stats();
        let (waits_inserted, host_stalls) = (stats.waits_inserted, stats.host_stalls);
        drop(runner);
        allocator.check()?;
        let live_bytes_at_end = allocator.memory_stats().live.now;
        Ok(Rank {
            shards,
            peak_unsharded_bytes,
            unsharded_bytes,
            host_synchronizations,
            driver_memory_calls,
            waits_inserted,
            host_stalls,
            live_bytes_at_end,
        })
    }
}

/// What one rank came to.
#[derive(Clone, Debug)]
pub struct Rank {
    /// Its parameters by unit, with padding.
    pub shards: Vec<Vec<f32>>,
    /// The most bytes leased in slots.
    pub peak_unsharded_bytes: u64,
    /// Bytes leased in slots after the last step.
    pub unsharded_bytes: u64,
    /// Host synchronisations inside the steps.
    pub host_synchronizations: u64,
    /// Driver memory calls inside the steps.
    pub driver_memory_calls: u64,
    /// Waits that the allocator put on streams, beside those of the plan, in the whole run.
    pub waits_inserted: u64,
    /// How often the allocator blocked the host in the whole run.
    pub host_stalls: u64,
    /// Bytes in use when everything was dropped.
    pub live_bytes_at_end: u64,
}

/// When an operation of the plan was executed, ns after the first gather of the run began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interval {
    /// Its first kernel's start.
    pub start_ns: u64,
    /// Its last kernel's end.
    pub end_ns: u64,
}

/// A run.
#[derive(Debug)]
pub struct Ran {
    /// The plan that was run.
    pub plan: Plan,
    /// Everything that was executed.
    pub timeline: Vec<Executed>,
    /// Races.
    pub hazards: Vec<Hazard>,
    /// By rank.
    pub ranks: Vec<Rank>,
}

impl Ran {
    /// What one rank executed for the plan, in order of submission: (step, operation, what).
    pub fn planned(&self, rank: u32) -> Vec<(u64, OpIndex, &Executed)> {
        let mut found: Vec<&Executed> =
            self.timeline.iter().filter(|executed| executed.device == rank && executed.tag > 0).collect();
        found.sort_by_key(|executed| executed.id);
        found.into_iter().map(|executed| ((executed.tag >> 32) - 1, OpIndex(executed.tag as u32), executed)).collect()
    }

    /// When an operation was executed.
    ///
    /// # Panics
    /// When it was not.
    #[must_use]
    pub fn interval(&self, rank: u32, step: u64, op: OpIndex) -> Interval {
        let origin = self.timeline.iter().filter(|e| e.tag > 0).map(|e| e.start_ns).min().unwrap_or(0);
        let parts =
            || self.planned(rank).into_iter().filter(move |part| (part.0, part.1) == (step, op)).map(|part| part.2);
        let start = parts().map(|executed| executed.start_ns).min().expect("the operation was executed");
        let end = parts().map(|executed| executed.end_ns).max().expect("the operation was executed");
        Interval { start_ns: start - origin, end_ns: end - origin }
    }

    /// The parameters of all ranks by unit, without padding, as bits.
    #[must_use]
    pub fn parameters(&self, elements: &[usize]) -> Vec<Vec<u32>> {
        let unit = |(index, &elements): (usize, &usize)| {
            let all = self.ranks.iter().flat_map(|rank| rank.shards[index].iter().map(|value| value.to_bits()));
            all.take(elements).collect()
        };
        elements.iter().enumerate().map(unit).collect()
    }
}
