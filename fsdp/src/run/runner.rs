//! The runner: issues a plan's operations on two streams.

use std::sync::Arc;

use highwater::{Allocator, Buffer, Fence, Stream, View};
use highwater_kernels as kernels;
use highwater_kernels::host::{AdamW, Update};

use super::leases::Leases;
use super::shard::{Shard, padded_elements, read_back};
use super::{Model, ModelError, RunError, UnitLayout};
use crate::group::ProcessGroup;
use crate::plan::{Lane, Op, OpKind, Plan, PlanSpec, SlotIndex, UnitSpec};

/// One rank of a sharded training.
pub struct Runner<M, G> {
    allocator: Allocator,
    model: M,
    group: G,
    plan: Arc<Plan>,
    units: Vec<UnitLayout>,
    compute: Stream,
    communication: Stream,
    slots: Vec<Buffer<f32>>,
    shards: Vec<Shard>,
    adamw: AdamW,
    /// Fences of the step before, by operation.
    previous: Vec<Option<Fence>>,
    step: u64,
    leases: Leases,
    /// Whether the last step ended with an error: the fences of the step before say nothing then.
    interrupted: bool,
}

/// A spec for a plan of `units` on `ranks` ranks: the units, padded.
#[must_use]
pub fn plan_spec(units: &[UnitLayout], ranks: u32) -> PlanSpec {
    let bytes = |unit: &UnitLayout| (padded_elements(unit.elements, ranks) * size_of::<f32>()) as u64;
    PlanSpec::new(units.iter().map(|unit| UnitSpec::new(&*unit.name, bytes(unit))).collect(), ranks)
}

impl<M: Model, G: ProcessGroup> Runner<M, G> {
    /// Allocates shards and slots, and copies the initial parameters to the device; waits for the copies. Compute runs
    /// on the allocator's default stream.
    ///
    /// The plan is taken as it is. A plan that was altered may compute wrong results; [`Plan::verify`] tells.
    ///
    /// # Errors
    /// When the plan is for other units or ranks, or memory or a copy fails.
    pub fn new(allocator: &Allocator, group: G, model: M, plan: Arc<Plan>, adamw: AdamW) -> Result<Self, RunError> {
        let (rank, ranks) = (group.rank(), group.ranks());
        let units = model.units();
        let fitting = plan_spec(&units, ranks);
        if (&plan.spec().units, plan.spec().ranks) != (&fitting.units, ranks) {
            let what = format!("it is for {} units on {} ranks", plan.spec().units.len(), plan.spec().ranks);
            return Err(RunError::OtherPlan { rank, what });
        }
        let failed = |doing: String| move |source: ModelError| RunError::Rank { rank, doing, source };
        let compute = allocator.default_stream();
        let communication = allocator
            .create_stream("communication")
            .map_err(|error| failed("creating the communication stream".into())(error.into()))?;
        communication.mark_open();
        let shards = units.iter().enumerate().map(|(index, unit)| {
            let mut parameters = vec![0.0; padded_elements(unit.elements, ranks)];
            model.initialize(index, &mut parameters[..unit.elements]);
            let own = parameters.len() / ranks as usize;
            let own = &parameters[rank as usize * own..][..own];
            Shard::new(allocator, &compute, own).map_err(failed(format!("setting up unit {:?}", unit.name)))
        });
        let shards = shards.collect::<Result<_, _>>()?;
        let slot_elements = usize::try_from(plan.slot_bytes()).expect("a slot fits memory") / size_of::<f32>();
        let slots = (0..plan.spec().slots).map(|_| communication.alloc(slot_elements));
        let slots = slots.collect::<Result<_, _>>();
        let slots = slots.map_err(|error| failed("allocating slots".into())(error.into()))?;
        let previous = vec![None; plan.ops().len()];
        let runner = Runner {
            allocator: allocator.clone(),
            model,
            group,
            plan,
            units,
            compute,
            communication,
            slots,
            shards,
            adamw,
            previous,
            step: 0,
            leases: Leases::default(),
            interrupted: false,
        };
        runner.join().map_err(failed("joining the streams".into()))?;
        Ok(runner)
    }

    /// The communication lane comes after all that compute was given so far. The other way round follows: a step's first
    /// compute waits for a gather of that step, which is behind everything on the communication lane.
    fn join(&self) -> Result<(), ModelError> {
        Ok(self.communication.wait(&self.compute.record()?)?)
    }

    /// Issues one step. Returns when everything is submitted; nothing is waited for.
    ///
    /// Work of step s (from 0) carries the tag (s + 1) · 2³² + the operation's place in the plan; all else carries 0.
    ///
    /// # Errors
    /// When an operation fails, or the leases are not as planned. No slot is leased then. A rank
    /// that is alone may try the step again; what the optimizer has updated already stays updated. With several ranks
    /// the others have issued collectives that would be paired wrongly: end the run on all.
    pub fn step(&mut self) -> Result<(), RunError> {
        if self.interrupted {
            let rank = self.group.rank();
            let doing = "joining the streams after an error".to_owned();
            self.join().map_err(|source| RunError::Rank { rank, doing, source })?;
            self.interrupted = false;
        }
        let issued = self.issue_all();
        self.compute.set_tag(0);
        self.communication.set_tag(0);
        match issued {
            Ok(fences) => {
                self.previous = fences;
                self.step += 1;
                Ok(())
            }
            Err(error) => {
                self.interrupted = true;
                self.previous.fill(None);
                self.leases.release(self.leases.now());
                Err(error)
            }
        }
    }

    /// Issues the plan's operations in order; the fences of those that signal.
    fn issue_all(&mut self) -> Result<Vec<Option<Fence>>, RunError> {
        let plan = self.plan.clone();
        let mut fences = vec![None; plan.ops().len()];
        for ((index, op), planned) in plan.ops().iter().enumerate().zip(plan.leased_bytes()) {
            self.lane(op.lane()).set_tag(((self.step + 1) << 32) | index as u64);
            self.count_leases(op);
            fences[index] = self.issue(op, &fences).map_err(|source| self.failed(op, source))?;
            if self.leases.now() != planned {
                let (rank, step, leased) = (self.group.rank(), self.step, self.leases.now());
                return Err(RunError::OffPlan { rank, step, index, leased, planned });
            }
        }
        Ok(fences)
    }

    fn failed(&self, op: &Op, source: ModelError) -> RunError {
        let (rank, step, operation) = (self.group.rank(), self.step, op.kind.name());
        RunError::Operation { rank, step, operation, unit: self.units[op.unit.index()].name.clone(), source }
    }

    /// In host issue order: a lease begins with its writer and ends with its last reader.
    fn count_leases(&mut self, op: &Op) {
        let bytes = self.plan.spec().units[op.unit.index()].padded_bytes;
        if op.leases().is_some() {
            self.leases.lease(bytes);
        }
        if op.releases.is_some() {
            self.leases.release(bytes);
        }
    }

    /// Waits, work, fence: all on the operation's lane.
    fn issue(&mut self, op: &Op, fences: &[Option<Fence>]) -> Result<Option<Fence>, ModelError> {
        // The recorder keeps it with whatever is allocated inside.
        let _span =
            tracing::info_span!("op", kind = op.kind.name(), unit = &*self.units[op.unit.index()].name).entered();
        for wait in &op.waits {
            let known = if wait.previous_step { &self.previous } else { fences };
            // The first step has none before it.
            if let Some(fence) = &known[wait.on.index()] {
                self.lane(op.lane()).wait(fence)?;
            }
        }
        self.work(op)?;
        Ok(if op.signals { Some(self.lane(op.lane()).record()?) } else { None })
    }

    fn work(&mut self, op: &Op) -> Result<(), ModelError> {
        let unit = op.unit.index();
        let shard = &self.shards[unit];
        match op.kind {
            OpKind::Gather { into } => {
                self.group.all_gather(&self.communication, shard.parameters.view(), self.padded(into, unit))?;
            }
            OpKind::Forward { parameters } => {
                let parameters = whole(&self.slots, parameters, self.units[unit].elements);
                self.model.forward(unit, op.round, &self.compute, parameters)?;
            }
            OpKind::Backward { parameters, gradients } => {
                let elements = self.units[unit].elements;
                let padded = self.padded(gradients, unit);
                if padded.len() > elements {
                    kernels::fill(&self.compute, 0.0, padded.slice(elements..))?;
                }
                let parameters = whole(&self.slots, parameters, elements);
                let gradients = whole(&self.slots, gradients, elements);
                self.model.backward(unit, op.round, &self.compute, parameters, gradients)?;
            }
            OpKind::Reduce { gradients } => {
                let update = if op.round == 0 { Update::Store } else { Update::Accumulate };
                let gradients = self.padded(gradients, unit);
                self.group.reduce_scatter(&self.communication, gradients, shard.gradients.view(), update)?;
            }
            OpKind::Optimize => shard.optimize(&self.compute, self.adamw, self.step + 1)?,
        }
        Ok(())
    }

    fn lane(&self, lane: Lane) -> &Stream {
        match lane {
            Lane::Compute => &self.compute,
            Lane::Communication => &self.communication,
        }
    }

    /// A unit with its padding in a slot.
    fn padded(&self, slot: SlotIndex, unit: usize) -> View<'_, f32> {
        whole(&self.slots, slot, padded_elements(self.units[unit].elements, self.group.ranks()))
    }

    /// The plan.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The most bytes that were leased in slots at once so far.
    #[must_use]
    pub fn peak_unsharded_bytes(&self) -> u64 {
        self.leases.peak()
    }

    /// Bytes that are leased in slots now: 0 between steps.
    #[must_use]
    pub fn unsharded_bytes(&self) -> u64 {
        self.leases.now()
    }

    /// The stream that the model computes on.
    #[must_use]
    pub fn compute(&self) -> &Stream {
        &self.compute
    }

    /// Which rank this is.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.group.rank()
    }

    /// The stream that the collectives run on.
    #[must_use]
    pub fn communication(&self) -> &Stream {
        &self.communication
    }

    /// The model, to ask for its loss.
    #[must_use]
    pub fn model(&self) -> &M {
        &self.model
    }

    /// The model, to give it a batch or ask for its loss.
    pub fn model_mut(&mut self) -> &mut M {
        &mut self.model
    }

    /// Gathers something that is no unit: every rank's `own`, in rank order, into `all`, on the communication stream,
    /// after everything that compute was given so far. Every rank must do so at the same place.
    ///
    /// # Errors
    /// When the lengths do not fit, or the device fails.
    pub fn gather(&self, own: View<'_, f32>, all: View<'_, f32>) -> Result<(), RunError> {
        let gathered = self.join().and_then(|()| Ok(self.group.all_gather(&self.communication, own, all)?));
        let failed =
            |source| RunError::Rank { rank: self.group.rank(), doing: "gathering beside the plan".into(), source };
        gathered.map_err(failed)
    }

    /// All parameters by unit, padding included, gathered from all ranks and copied to the host; waits for everything
    /// before. Every rank must do so at the same place.
    ///
    /// # Errors
    /// When memory, a collective or a copy fails.
    pub fn read_units(&self) -> Result<Vec<Vec<f32>>, RunError> {
        let read = |(shard, unit): (&Shard, &UnitLayout)| {
            let elements = shard.parameters.len() * self.group.ranks() as usize;
            let whole = self.communication.alloc(elements).map_err(|error| self.reading(unit, error.into()))?;
            self.gather(shard.parameters.view(), whole.view())?;
            read_back(&self.allocator, &self.communication, &whole).map_err(|error| self.reading(unit, error))
        };
        self.shards.iter().zip(&self.units).map(read).collect()
    }

    fn reading(&self, unit: &UnitLayout, source: ModelError) -> RunError {
        RunError::Rank { rank: self.group.rank(), doing: format!("reading unit {:?}", unit.name), source }
    }

    /// This rank's parameters by unit, padding included, copied to the host; waits for everything before.
    ///
    /// # Errors
    /// When a copy fails.
    pub fn read_shards(&self) -> Result<Vec<Vec<f32>>, RunError> {
        let read = |(shard, unit): (&Shard, &UnitLayout)| {
            let parameters = read_back(&self.allocator, &self.compute, &shard.parameters);
            parameters.map_err(|error| self.reading(unit, error))
        };
        self.shards.iter().zip(&self.units).map(read).collect()
    }
}

/// The first elements of a slot.
fn whole(slots: &[Buffer<f32>], slot: SlotIndex, elements: usize) -> View<'_, f32> {
    slots[slot.index()].slice(..elements)
}
