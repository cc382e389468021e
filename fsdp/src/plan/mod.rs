//! The plan of one training step: the list of operations that every rank issues, decided before the step.
//!
//! A *unit* is one flat range of parameters. It is whole only inside a *slot*, a buffer as large as the largest unit;
//! between steps each rank keeps just its shard. A step is a walk over five operations:
//!
//! | operation | lane | reads | writes |
//! |---|---|---|---|
//! | gather (all-gather) | communication | parameter shard | slot |
//! | forward | compute | slot | |
//! | backward | compute | slot with the parameters | another slot, with the gradients |
//! | reduce (reduce-scatter) | communication | slot with the gradients | gradient shard: stored in round 0, added later |
//! | optimize | compute | gradient shard, parameter shard | parameter shard |
//!
//! A *lane* is one stream of the device: it runs its operations in issue order. All order between the two lanes is
//! written in the plan as waits for fences, so the host may run any distance ahead.
//!
//! # Issue order
//! - Forward with depth `d`: the gathers of units `i+1 ..= i+d` are issued before the forward of unit `i`.
//! - Backward, [`BackwardPrefetch::Pre`]: the gather of unit `i-1` is issued before the backward of unit `i`.
//! - The reduce of unit `i` is issued right after its backward, so before the gather of unit `i-2`.
//! - The optimizer runs once, after the last backward: first the later half of the units, whose gradients are there
//!   while the last reduce still runs; then the others in forward order, beside the next step's first gather.
//! - Prefetch never crosses from one pass into the next; what is near a turn stays resident instead.
//!
//! # What stays resident at a turn
//! The order of use turns round twice: from forward to backward, and from one round's backward to the next round's
//! forward. There the unit that is `j` places from the turn is used again `2j + 1` compute operations later. A unit
//! skips its second gather if that distance is at most `keep_distance`, nearest units first, as long as no compute
//! operation then needs more than `slots` slots (parameters in use, prefetched or kept, plus one for gradients).
//! This comes to the same number of units at each turn:
//!
//! ```text
//! K = min(units, (keep_distance + 1) / 2, slots - 1)      (integer division)
//! ```
//!
//! Keeping never takes a slot that a prefetch of the plan needs. Nothing stays resident across the optimizer, and
//! the two lone passes ([`Passes::Forward`], [`Passes::Backward`]) keep nothing.
//!
//! # Which slot
//! Of the free slots, the one whose last use was on the lane that will write it (no wait is needed then), the one
//! released longest ago if there are several; without such a slot, the one released longest ago. Slots not yet used
//! in the step count as released before all others. With three slots the gradients of unit `i-1` thus take the slot
//! that the parameters of unit `i` have just left, and the gather of unit `i-2` the one that the reduce of unit `i`
//! leaves. Assignment starts afresh each step, so all steps are the same.
//!
//! # Leased bytes
//! A slot is leased when the operation that writes it is issued, and released when its last reader is issued. An
//! operation that does both leases first. The bytes are the unit's padded bytes, not the size of the slot. The
//! largest total is [`Plan::peak_bytes`]; [`predicted_peak_bytes`] computes the same number from the sizes alone.
//!
//! # Example
//! ```
//! use highwater_fsdp::plan::{Plan, PlanSpec, UnitSpec};
//!
//! let units = (0..12).map(|layer| UnitSpec::new(format!("layer{layer}"), 4096)).collect();
//! let mut spec = PlanSpec::new(units, 8);
//! spec.rounds = 2;
//! let plan = Plan::new(&spec)?;
//! assert_eq!(plan.peak_bytes(), 3 * 4096);
//! plan.verify()?;
//! # Ok::<(), highwater_fsdp::plan::PlanError>(())
//! ```
//!
//! # Proof
//! [`Plan::verify`] shows for a built plan that all conflicting accesses are ordered, that no wait could be left out,
//! and that every read finds what it expects. [`Plan::without_wait`] makes the broken plans that it must refuse.

mod build;
mod display;
mod error;
mod fingerprint;
mod leases;
mod op;
mod predict;
mod slots;
mod spec;
mod timeline;
mod verify;
mod waits;

#[cfg(test)]
mod tests;

pub use error::{PlanError, PlanFault};
pub use op::{Access, AccessMode, Edge, Lane, Op, OpIndex, OpKind, Resource, SlotIndex, UnitIndex, WaitEdge};
pub use predict::predicted_peak_bytes;
pub use spec::{BackwardPrefetch, MAX_OPERATIONS, Passes, PlanSpec, UnitSpec};
pub use timeline::{Durations, Interval, Ratio, Timeline, UnitTicks};

/// The operations of one step of one rank, in issue order. All ranks and all steps have the same plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    spec: PlanSpec,
    ops: Vec<Op>,
}

impl Plan {
    /// Plans one step.
    ///
    /// # Errors
    /// Refuses a spec that makes no sense ([`PlanError::NoUnits`] and the like), one with too few slots
    /// ([`PlanError::TooFewSlots`]), and one whose peak exceeds its budget ([`PlanError::OverBudget`]).
    pub fn new(spec: &PlanSpec) -> Result<Plan, PlanError> {
        spec.check()?;
        predict::check_budget(spec)?;
        let mut ops = build::operations(spec);
        waits::assign(&mut ops);
        Ok(Plan { spec: spec.clone(), ops })
    }

    /// What the plan was made from.
    pub fn spec(&self) -> &PlanSpec {
        &self.spec
    }

    /// The operations in issue order.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// The operation at `index`, if there is one.
    pub fn op(&self, index: OpIndex) -> Option<&Op> {
        self.ops.get(index.index())
    }

    /// The size of each slot in bytes: the padded bytes of the largest unit.
    pub fn slot_bytes(&self) -> u64 {
        self.spec.slot_bytes()
    }

    /// The bytes leased in slots after the issue of each operation, in issue order. The last is 0.
    pub fn leased_bytes(&self) -> impl Iterator<Item = u64> {
        leases::walk(&self.spec.units, &self.ops).map(|lease| lease.after_bytes)
    }

    /// The largest number of bytes leased in slots at any moment of the issue, found by walking the list.
    pub fn peak_bytes(&self) -> u64 {
        leases::walk(&self.spec.units, &self.ops).map(|lease| lease.during_bytes).max().unwrap_or(0)
    }

    /// Every wait of the plan as an edge, by waiting operation.
    pub fn edges(&self) -> impl Iterator<Item = Edge> {
        self.ops.iter().zip(0..).flat_map(|(op, to)| {
            op.waits.iter().map(move |wait| Edge { from: wait.on, to: OpIndex(to), previous_step: wait.previous_step })
        })
    }

    /// The same plan with one wait left out, for tests that must notice. The plan comes back as it was if it has no
    /// such wait.
    pub fn without_wait(&self, edge: Edge) -> Plan {
        let mut plan = self.clone();
        if let Some(op) = plan.ops.get_mut(edge.to.index()) {
            op.waits.retain(|wait| *wait != WaitEdge { on: edge.from, previous_step: edge.previous_step });
        }
        waits::mark_signals(&mut plan.ops);
        plan
    }

    /// Proves the plan sound over several steps: every conflicting pair of accesses is ordered by the lanes and the
    /// waits, no wait is implied by the others, every read finds the unit, round and version that it expects (so each
    /// gather reads what the optimizer of the step before wrote), and all leases end within the step.
    ///
    /// # Errors
    /// [`PlanError::Unsound`] with the first fault found. A plan from [`Plan::new`] has none.
    pub fn verify(&self) -> Result<(), PlanError> {
        verify::verify(self).map_err(PlanError::from)
    }

    /// A number that differs, but for chance, when any part of the plan differs: units, sizes, order, slots, waits.
    /// Equal on all platforms; ranks compare it before they start.
    pub fn fingerprint(&self) -> u64 {
        fingerprint::fingerprint(&self.spec, &self.ops)
    }

    /// Runs `steps` steps of the plan in virtual time, with everything submitted at time 0.
    ///
    /// # Errors
    /// [`PlanError::Durations`] if `durations` is not for this number of units, [`PlanError::TooManyTicks`] if the
    /// sum of all durations does not fit in 64 bits.
    pub fn timeline(&self, durations: &Durations, steps: u32) -> Result<Timeline, PlanError> {
        timeline::simulate(self, durations, steps)
    }
}
