//! Why a plan is refused, and what can be wrong with one that is checked.

use super::op::{Edge, OpIndex, Resource, SlotIndex};

/// Why there is no plan, or no answer about one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The spec has no unit.
    #[error("the plan has no units; give at least one")]
    NoUnits,
    /// The spec has no rank.
    #[error("the plan is for 0 ranks; give at least one")]
    NoRanks,
    /// The spec has no round.
    #[error("the plan has 0 rounds; give at least one micro-batch per rank")]
    NoRounds,
    /// A unit has no bytes.
    #[error("unit {unit} has 0 bytes; leave it out")]
    EmptyUnit {
        /// The unit's name.
        unit: String,
    },
    /// A unit cannot be cut into equal shards.
    #[error("unit {unit} has {padded_bytes} B, which is not a multiple of {ranks} ranks; pad it")]
    UnevenUnit {
        /// The unit's name.
        unit: String,
        /// Its bytes.
        padded_bytes: u64,
        /// The ranks that share it.
        ranks: u32,
    },
    /// The units are so large that sums of their bytes overflow.
    #[error("the units are too large: one slot for each does not fit in 64 bits of bytes")]
    TooManyBytes,
    /// The step may have more operations than [`MAX_OPERATIONS`](super::MAX_OPERATIONS).
    #[error("a step of up to {operations} operations is too long (limit {limit}); use fewer units or rounds")]
    TooManyOperations {
        /// The most operations that the step may have.
        operations: u64,
        /// The limit.
        limit: u64,
    },
    /// The step needs more slots than there are.
    #[error(
        "no slot for unit {unit}: the step needs {slots_needed} slots and has {slots}; \
         {missing_bytes} B more are needed, or less prefetch"
    )]
    TooFewSlots {
        /// The first unit that finds no slot.
        unit: String,
        /// The slots of the spec.
        slots: u32,
        /// The slots that the whole step needs.
        slots_needed: u64,
        /// The bytes of the slots that are missing.
        missing_bytes: u64,
    },
    /// The peak of leased bytes exceeds the budget of the spec.
    #[error(
        "the peak of {peak_bytes} B, reached at unit {unit}, exceeds the budget of {budget_bytes} B \
         by {missing_bytes} B"
    )]
    OverBudget {
        /// The unit whose forward or backward is issued at the peak.
        unit: String,
        /// The predicted peak.
        peak_bytes: u64,
        /// The budget.
        budget_bytes: u64,
        /// The peak less the budget.
        missing_bytes: u64,
    },
    /// The durations are for another number of units.
    #[error("durations are given for {given} units, the plan has {units}")]
    Durations {
        /// Units with durations.
        given: usize,
        /// Units of the plan.
        units: usize,
    },
    /// The sum of all durations overflows.
    #[error("the durations of all steps together do not fit in 64 bits of ticks")]
    TooManyTicks,
    /// A check of the plan found it wrong.
    #[error("the plan is unsound: {0}")]
    Unsound(#[from] PlanFault),
}

/// What is wrong with a plan. Operations are named by their index in the step.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanFault {
    /// The forwards and backwards are not those of the passes, in their order.
    #[error("the forwards and backwards differ from the passes at operation {op}")]
    WrongOrder {
        /// The first that differs, or the number of operations if some are missing.
        op: OpIndex,
    },
    /// A wait is for an operation that does not come earlier, is in the same lane, or records no fence.
    #[error("the wait of operation {} for operation {} cannot work", .edge.to, .edge.from)]
    BadWait {
        /// The wait.
        edge: Edge,
    },
    /// Two operations access a resource, one of them writes, and nothing orders them.
    #[error("operations {from} and {to} both use {resource} and nothing orders them")]
    Unordered {
        /// The one issued first.
        from: OpIndex,
        /// The one issued later, in this step or a later one.
        to: OpIndex,
        /// What both use.
        resource: Resource,
    },
    /// A wait orders two operations that the rest of the plan orders already, or that need no order.
    #[error("the wait of operation {} for operation {} is not needed", .edge.to, .edge.from)]
    RedundantWait {
        /// The wait.
        edge: Edge,
    },
    /// A fence is recorded and nobody waits for it.
    #[error("operation {op} records a fence that nobody waits for")]
    RedundantSignal {
        /// The operation.
        op: OpIndex,
    },
    /// An operation reads something else than its unit, round and step call for.
    #[error("operation {op} finds in {resource} something else than it needs")]
    WrongContent {
        /// The reader.
        op: OpIndex,
        /// What it reads.
        resource: Resource,
    },
    /// An operation writes a slot that is still leased, or releases one that is not.
    #[error("operation {op} uses {} against its lease", Resource::Slot(*slot))]
    WrongLease {
        /// The operation.
        op: OpIndex,
        /// The slot.
        slot: SlotIndex,
    },
    /// A slot is still leased at the end of the step.
    #[error("{} is still leased at the end of the step", Resource::Slot(*slot))]
    LeaseLeft {
        /// The slot.
        slot: SlotIndex,
    },
    /// At the end of the step, a unit's gradients are not the sum over all rounds, or its parameters were not updated
    /// once (in a lone pass: were updated).
    #[error("{resource} is not what it must be at the end of the step")]
    Unfinished {
        /// The shard.
        resource: Resource,
    },
}
