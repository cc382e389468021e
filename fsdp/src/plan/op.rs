//! The operations of a plan, what they access, and what they wait for.
//!
//! Invariant: lane and accesses follow from the kind, unit and round alone; nothing else says what an operation touches.

use std::fmt;

macro_rules! index {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// The number, to index with.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

index! {
    /// The place of a unit in the order of forward use.
    UnitIndex
}
index! {
    /// The number of a slot.
    SlotIndex
}
index! {
    /// The place of an operation in its step.
    OpIndex
}

/// A stream of the device. Its operations run in issue order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Forward, backward and optimizer.
    Compute,
    /// All-gather and reduce-scatter, on one communicator.
    Communication,
}

impl Lane {
    /// The number of lanes.
    pub(super) const COUNT: usize = 2;

    pub(super) fn index(self) -> usize {
        match self {
            Lane::Compute => 0,
            Lane::Communication => 1,
        }
    }

    pub(super) fn other(self) -> Lane {
        match self {
            Lane::Compute => Lane::Communication,
            Lane::Communication => Lane::Compute,
        }
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Lane::Compute => "compute",
            Lane::Communication => "communication",
        })
    }
}

/// What an operation does, with its slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpKind {
    /// All-gathers the unit's shards into a slot.
    Gather {
        /// The slot written.
        into: SlotIndex,
    },
    /// Forward of the unit.
    Forward {
        /// The slot read.
        parameters: SlotIndex,
    },
    /// Backward of the unit.
    Backward {
        /// The slot read.
        parameters: SlotIndex,
        /// The slot written, never the one read.
        gradients: SlotIndex,
    },
    /// Reduce-scatters the unit's gradients into the gradient shard: stores in round 0, adds later.
    Reduce {
        /// The slot read.
        gradients: SlotIndex,
    },
    /// Updates the unit's parameter shard from its gradient shard.
    Optimize,
}

impl OpKind {
    /// A word for listings.
    pub fn name(self) -> &'static str {
        match self {
            OpKind::Gather { .. } => "gather",
            OpKind::Forward { .. } => "forward",
            OpKind::Backward { .. } => "backward",
            OpKind::Reduce { .. } => "reduce",
            OpKind::Optimize => "optimize",
        }
    }
}

/// Something that two operations may both touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// A slot.
    Slot(SlotIndex),
    /// This rank's part of a unit's parameters.
    Shard(UnitIndex),
    /// This rank's part of a unit's gradients.
    GradientShard(UnitIndex),
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Resource::Slot(slot) => write!(f, "slot {slot}"),
            Resource::Shard(unit) => write!(f, "the parameter shard of unit {unit}"),
            Resource::GradientShard(unit) => write!(f, "the gradient shard of unit {unit}"),
        }
    }
}

/// How a resource is accessed. What is both read and written has two accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AccessMode {
    /// The old content is used.
    Read,
    /// New content is made.
    Write,
}

/// One access of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// What is accessed.
    pub resource: Resource,
    /// How.
    pub mode: AccessMode,
}

impl Access {
    fn read(resource: Resource) -> Option<Access> {
        Some(Access { resource, mode: AccessMode::Read })
    }

    fn write(resource: Resource) -> Option<Access> {
        Some(Access { resource, mode: AccessMode::Write })
    }

    /// Whether the two must be ordered: the same resource, and a write among them.
    pub fn conflicts(self, other: Access) -> bool {
        self.resource == other.resource && (self.mode == AccessMode::Write || other.mode == AccessMode::Write)
    }
}

/// A fence that an operation's lane waits for before the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitEdge {
    /// The operation whose fence it is.
    pub on: OpIndex,
    /// Whether the operation of the step before is meant. The first step skips such a wait.
    pub previous_step: bool,
}

/// A wait with both its ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edge {
    /// The operation that records the fence.
    pub from: OpIndex,
    /// The operation whose lane waits.
    pub to: OpIndex,
    /// Whether `from` belongs to the step before.
    pub previous_step: bool,
}

/// One operation of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Op {
    /// What it does, with its slots.
    pub kind: OpKind,
    /// The unit it works on.
    pub unit: UnitIndex,
    /// The round that needs it: of a gather, the round of the first use; of the optimizer, the last round.
    pub round: u32,
    /// The slot whose lease ends when this operation is issued, if it is the last reader.
    pub releases: Option<SlotIndex>,
    /// What its lane waits for before it.
    pub waits: Vec<WaitEdge>,
    /// Whether a fence is recorded after it.
    pub signals: bool,
}

impl Op {
    /// The lane that it is issued on.
    pub fn lane(&self) -> Lane {
        match self.kind {
            OpKind::Gather { .. } | OpKind::Reduce { .. } => Lane::Communication,
            OpKind::Forward { .. } | OpKind::Backward { .. } | OpKind::Optimize => Lane::Compute,
        }
    }

    /// The slot that it writes, and so leases.
    pub fn leases(&self) -> Option<SlotIndex> {
        match self.kind {
            OpKind::Gather { into } => Some(into),
            OpKind::Backward { gradients, .. } => Some(gradients),
            OpKind::Forward { .. } | OpKind::Reduce { .. } | OpKind::Optimize => None,
        }
    }

    /// Everything that it reads and writes.
    pub fn accesses(&self) -> impl Iterator<Item = Access> + use<> {
        let (shard, gradient_shard) = (Resource::Shard(self.unit), Resource::GradientShard(self.unit));
        let accesses = match self.kind {
            OpKind::Gather { into } => [Access::read(shard), Access::write(Resource::Slot(into)), None],
            OpKind::Forward { parameters } => [Access::read(Resource::Slot(parameters)), None, None],
            OpKind::Backward { parameters, gradients } => {
                [Access::read(Resource::Slot(parameters)), Access::write(Resource::Slot(gradients)), None]
            }
            OpKind::Reduce { gradients } => {
                let added = if self.round > 0 { Access::read(gradient_shard) } else { None };
                [Access::read(Resource::Slot(gradients)), added, Access::write(gradient_shard)]
            }
            OpKind::Optimize => [Access::read(gradient_shard), Access::read(shard), Access::write(shard)],
        };
        accesses.into_iter().flatten()
    }
}
