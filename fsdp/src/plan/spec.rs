//! What a plan is made from, and the checks that need only the numbers in it.
//!
//! Invariant: after [`PlanSpec::check`] succeeded, every sum of unit bytes that the plan needs fits in 64 bits, and the
//! step can be built with the slots given.

use super::error::PlanError;

/// The largest number of operations in one step.
pub const MAX_OPERATIONS: u64 = 1 << 20;

/// One unit: parameters that are gathered, used and freed together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitSpec {
    /// The name that errors and listings use.
    pub name: String,
    /// Bytes of the flat unit, padded by the caller to a multiple of ranks × element alignment.
    pub padded_bytes: u64,
}

impl UnitSpec {
    /// A unit of `padded_bytes` bytes.
    pub fn new(name: impl Into<String>, padded_bytes: u64) -> UnitSpec {
        UnitSpec { name: name.into(), padded_bytes }
    }
}

/// When the backward pass gathers a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackwardPrefetch {
    /// Just before its own backward: the least memory, and no overlap.
    None,
    /// Before the backward of the unit that is used just ahead of it.
    Pre,
}

/// Which passes a step has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passes {
    /// Forward alone, with no optimizer.
    Forward,
    /// Backward alone, with no unit resident at the start and no optimizer.
    Backward,
    /// Forward and backward each round, then the optimizer.
    Training,
}

/// What a plan is made from. Made by [`PlanSpec::new`]; change the fields that differ from the defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanSpec {
    /// The units in order of forward use.
    pub units: Vec<UnitSpec>,
    /// The number of ranks that share each unit.
    pub ranks: u32,
    /// Micro-batches per rank in the step. Default 1.
    pub rounds: u32,
    /// The number of slots. Default 3.
    pub slots: u32,
    /// How many units the forward pass gathers ahead; 0 for none. Default 1.
    pub forward_prefetch: u32,
    /// When the backward pass gathers. Default [`BackwardPrefetch::Pre`].
    pub backward_prefetch: BackwardPrefetch,
    /// The passes of a step. Default [`Passes::Training`].
    pub passes: Passes,
    /// A unit used again within this many compute operations is not gathered again if the slots allow it. Default 3:
    /// two units at each turn.
    pub keep_distance: u32,
    /// The largest peak of leased bytes that is acceptable. Default none.
    pub max_unsharded_bytes: Option<u64>,
}

impl PlanSpec {
    /// A spec of one training round with the default settings.
    pub fn new(units: Vec<UnitSpec>, ranks: u32) -> PlanSpec {
        PlanSpec {
            units,
            ranks,
            rounds: 1,
            slots: 3,
            forward_prefetch: 1,
            backward_prefetch: BackwardPrefetch::Pre,
            passes: Passes::Training,
            keep_distance: 3,
            max_unsharded_bytes: None,
        }
    }

    /// The size of a slot in bytes: the padded bytes of the largest unit.
    pub(super) fn slot_bytes(&self) -> u64 {
        self.units.iter().map(|unit| unit.padded_bytes).max().unwrap_or(0)
    }

    /// How many units ahead of a backward its gather is issued.
    pub(super) fn backward_depth(&self) -> usize {
        match self.backward_prefetch {
            BackwardPrefetch::None => 0,
            BackwardPrefetch::Pre => 1,
        }
    }

    pub(super) fn has_forward(&self) -> bool {
        matches!(self.passes, Passes::Forward | Passes::Training)
    }

    pub(super) fn has_backward(&self) -> bool {
        matches!(self.passes, Passes::Backward | Passes::Training)
    }

    /// Refuses what cannot be planned, but for the byte budget.
    pub(super) fn check(&self) -> Result<(), PlanError> {
        self.check_counts()?;
        self.check_units()?;
        self.check_slots()
    }

    fn check_counts(&self) -> Result<(), PlanError> {
        if self.units.is_empty() {
            return Err(PlanError::NoUnits);
        }
        if self.ranks == 0 {
            return Err(PlanError::NoRanks);
        }
        if self.rounds == 0 {
            return Err(PlanError::NoRounds);
        }
        // Each round has at most two gathers, a forward, a backward and a reduce of each unit.
        let operations = (self.units.len() as u64).saturating_mul(5 * u64::from(self.rounds) + 1);
        if operations > MAX_OPERATIONS {
            return Err(PlanError::TooManyOperations { operations, limit: MAX_OPERATIONS });
        }
        Ok(())
    }

    fn check_units(&self) -> Result<(), PlanError> {
        for unit in &self.units {
            let (name, padded_bytes) = (&unit.name, unit.padded_bytes);
            if padded_bytes == 0 {
                return Err(PlanError::EmptyUnit { unit: name.clone() });
            }
            if !padded_bytes.is_multiple_of(u64::from(self.ranks)) {
                return Err(PlanError::UnevenUnit { unit: name.clone(), padded_bytes, ranks: self.ranks });
            }
        }
        // No total in the plan exceeds one slot for each unit and two more.
        match self.slot_bytes().checked_mul(self.units.len() as u64 + 2) {
            Some(_) => Ok(()),
            None => Err(PlanError::TooManyBytes),
        }
    }

    /// The forward of the first unit and the backward of the last are where the most slots are needed.
    fn check_slots(&self) -> Result<(), PlanError> {
        let last = self.units.len() - 1;
        let forward = if self.has_forward() { 1 + last.min(self.forward_prefetch as usize) } else { 0 };
        let backward = if self.has_backward() { 2 + last.min(self.backward_depth()) } else { 0 };
        let (slots, needed) = (self.slots as usize, forward.max(backward));
        if needed <= slots {
            return Ok(());
        }
        // The first operation that finds no slot: a gather, or else the backward for its gradients.
        let unit = if slots < forward {
            slots
        } else if slots + 1 < backward {
            last - slots
        } else {
            last
        };
        Err(PlanError::TooFewSlots {
            unit: self.units[unit].name.clone(),
            slots: self.slots,
            slots_needed: needed as u64,
            missing_bytes: (needed - slots) as u64 * self.slot_bytes(),
        })
    }
}
