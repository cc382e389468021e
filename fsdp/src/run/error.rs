//! Why a rank stopped.

use super::ModelError;
use crate::plan::PlanError;

/// Why a rank could not be set up, or could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The plan was refused.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The plan is for other units or another number of ranks.
    #[error("rank {rank}: the plan does not fit: {what}")]
    OtherPlan {
        /// The rank.
        rank: u32,
        /// What differs.
        what: String,
    },
    /// Setting up, or reading the parameters.
    #[error("rank {rank}: {doing}: {source}")]
    Rank {
        /// The rank.
        rank: u32,
        /// What was being done.
        doing: String,
        /// Why it failed.
        source: ModelError,
    },
    /// An operation of a step.
    #[error("rank {rank}, step {step}, {operation} of unit {unit:?}: {source}")]
    Operation {
        /// The rank.
        rank: u32,
        /// The step, from 0.
        step: u64,
        /// The operation, as the plan names it.
        operation: &'static str,
        /// The unit's name.
        unit: String,
        /// Why it failed.
        source: ModelError,
    },
    /// The bytes leased differ from the plan's.
    #[error("rank {rank}, step {step}, operation {index}: {leased} bytes are leased, the plan says {planned}")]
    OffPlan {
        /// The rank.
        rank: u32,
        /// The step, from 0.
        step: u64,
        /// The operation's place in the plan.
        index: usize,
        /// Bytes leased.
        leased: u64,
        /// Bytes planned.
        planned: u64,
    },
}
