//! Proves a finished plan sound. Shares nothing with the code that made it but the operations themselves.
//!
//! Four steps are laid end to end. *Order*: a vector clock for each operation, joined over its lane and its waits, must
//! order every two conflicting accesses, and no single wait may be without effect. *Content*: since all conflicts are
//! ordered as issued, running the list in issue order on symbols shows what each operation reads under any timing.

use std::collections::BTreeMap;

use super::Plan;
use super::error::PlanFault;
use super::op::{Access, AccessMode, Edge, Lane, Op, OpIndex, OpKind, Resource, SlotIndex, UnitIndex, WaitEdge};
use super::spec::Passes;

/// The first step has no past; the others must all be alike.
const STEPS: usize = 4;

/// Checks everything; see [`Plan::verify`].
pub(super) fn verify(plan: &Plan) -> Result<(), PlanFault> {
    check_passes(plan)?;
    check_waits(plan)?;
    let clocks = Clocks::new(plan.ops());
    check_conflicts(&clocks)?;
    check_edges_needed(plan, &clocks)?;
    check_contents(plan)
}

/// The forwards and backwards are those of the passes, in their order. Updates are counted by their effect.
fn check_passes(plan: &Plan) -> Result<(), PlanFault> {
    let units = plan.spec().units.len() as u32;
    let of_pass = |op: &Op| matches!(op.kind, OpKind::Forward { .. } | OpKind::Backward { .. });
    let mut found = plan.ops().iter().zip(0..).filter(|(op, _)| of_pass(op));
    let mut expect = |name: &str, unit: u32, round: u32| match found.next() {
        Some((op, _)) if op.kind.name() == name && op.unit == UnitIndex(unit) && op.round == round => Ok(()),
        Some((_, at)) => Err(PlanFault::WrongOrder { op: OpIndex(at) }),
        None => Err(PlanFault::WrongOrder { op: OpIndex(plan.ops().len() as u32) }),
    };
    for round in 0..plan.spec().rounds {
        if plan.spec().passes != Passes::Backward {
            (0..units).try_for_each(|unit| expect("forward", unit, round))?;
        }
        if plan.spec().passes != Passes::Forward {
            (0..units).rev().try_for_each(|unit| expect("backward", unit, round))?;
        }
    }
    found.next().map_or(Ok(()), |(_, at)| Err(PlanFault::WrongOrder { op: OpIndex(at) }))
}

/// Each wait is for a fence of the other lane that is recorded by then; each fence is waited for.
fn check_waits(plan: &Plan) -> Result<(), PlanFault> {
    let ops = plan.ops();
    let mut awaited = vec![false; ops.len()];
    for edge in plan.edges() {
        let usable = |from: &Op| {
            from.signals && from.lane() != ops[edge.to.index()].lane() && (edge.previous_step || edge.from < edge.to)
        };
        if !ops.get(edge.from.index()).is_some_and(usable) {
            return Err(PlanFault::BadWait { edge });
        }
        awaited[edge.from.index()] = true;
    }
    match ops.iter().zip(&awaited).position(|(op, awaited)| op.signals && !awaited) {
        Some(op) => Err(PlanFault::RedundantSignal { op: OpIndex(op as u32) }),
        None => Ok(()),
    }
}

/// For each lane, how many of its operations are over.
type Clock = [usize; Lane::COUNT];

fn join(a: Clock, b: Clock) -> Clock {
    std::array::from_fn(|lane| a[lane].max(b[lane]))
}

/// The unrolled list. A place is an index in it.
struct Clocks<'a> {
    ops: &'a [Op],
    /// What is over before each place starts, not counting its own waits.
    lane_before: Vec<Clock>,
    /// What is over when each place is over, itself included.
    after: Vec<Clock>,
}

impl Clocks<'_> {
    fn new(ops: &[Op]) -> Clocks<'_> {
        let mut clocks = Clocks { ops, lane_before: Vec::new(), after: Vec::new() };
        let mut lanes = [Clock::default(); Lane::COUNT];
        for place in 0..STEPS * ops.len() {
            let op = &ops[place % ops.len()];
            let lane = op.lane().index();
            clocks.lane_before.push(lanes[lane]);
            let mut clock = op.waits.iter().fold(lanes[lane], |clock, wait| join(clock, clocks.waited(place, wait)));
            clock[lane] += 1;
            lanes[lane] = clock;
            clocks.after.push(clock);
        }
        clocks
    }

    fn op(&self, place: usize) -> &Op {
        &self.ops[place % self.ops.len()]
    }

    fn index(&self, place: usize) -> OpIndex {
        OpIndex((place % self.ops.len()) as u32)
    }

    /// What is over once the wait of `place` is; nothing if it is for a step before the first.
    fn waited(&self, place: usize, wait: &WaitEdge) -> Clock {
        self.source(place, wait).map_or(Clock::default(), |from| self.after[from])
    }

    fn source(&self, place: usize, wait: &WaitEdge) -> Option<usize> {
        let same_step = place - place % self.ops.len() + wait.on.index();
        if wait.previous_step { same_step.checked_sub(self.ops.len()) } else { Some(same_step) }
    }

    /// Whether `from` is over according to `clock`.
    fn over(&self, from: usize, clock: Clock) -> bool {
        let lane = self.op(from).lane().index();
        clock[lane] >= self.after[from][lane]
    }
}

/// Every access comes after the last conflicting one of the other lane, and so after all before that.
fn check_conflicts(clocks: &Clocks<'_>) -> Result<(), PlanFault> {
    let mut last: BTreeMap<(Resource, Lane, AccessMode), usize> = BTreeMap::new();
    for to in 0..clocks.after.len() {
        let op = clocks.op(to);
        for Access { resource, mode } in op.accesses() {
            for other_mode in [AccessMode::Read, AccessMode::Write] {
                if (mode, other_mode) == (AccessMode::Read, AccessMode::Read) {
                    continue;
                }
                let conflict = last.get(&(resource, op.lane().other(), other_mode));
                if let Some(from) = conflict.filter(|from| !clocks.over(**from, clocks.after[to])) {
                    return Err(PlanFault::Unordered { from: clocks.index(*from), to: clocks.index(to), resource });
                }
            }
        }
        last.extend(op.accesses().map(|access| ((access.resource, op.lane(), access.mode), to)));
    }
    Ok(())
}

/// Each wait joins two conflicting operations that nothing else orders, so without it these two are unordered.
fn check_edges_needed(plan: &Plan, clocks: &Clocks<'_>) -> Result<(), PlanFault> {
    let last_step = (STEPS - 1) * plan.ops().len();
    for (to, op) in plan.ops().iter().enumerate() {
        let place = last_step + to;
        for (number, wait) in op.waits.iter().enumerate() {
            let from = &plan.ops()[wait.on.index()];
            let conflict = op.accesses().any(|access| from.accesses().any(|earlier| access.conflicts(earlier)));
            let others = op.waits.iter().enumerate().filter(|(other, _)| *other != number);
            let known =
                others.fold(clocks.lane_before[place], |clock, (_, other)| join(clock, clocks.waited(place, other)));
            let source = clocks.source(place, wait).expect("the last step has a step before it");
            if !conflict || clocks.over(source, known) {
                let edge = Edge { from: wait.on, to: OpIndex(to as u32), previous_step: wait.previous_step };
                return Err(PlanFault::RedundantWait { edge });
            }
        }
    }
    Ok(())
}

/// What is in a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    Parameters { unit: UnitIndex, version: usize },
    Gradients { unit: UnitIndex, round: u32, version: usize },
}

/// The gradients of one step, of rounds `0 .. rounds`, added up in order.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Sum {
    step: usize,
    rounds: u32,
}

/// The memory of one rank as symbols.
struct Memory {
    /// What each leased slot holds.
    slots: BTreeMap<SlotIndex, Content>,
    /// How often each parameter shard has been updated.
    versions: Vec<usize>,
    sums: Vec<Option<Sum>>,
}

/// Runs the list on symbols, step after step.
fn check_contents(plan: &Plan) -> Result<(), PlanFault> {
    let units = plan.spec().units.len();
    let mut memory = Memory { slots: BTreeMap::new(), versions: vec![0; units], sums: vec![None; units] };
    for step in 0..STEPS {
        let version = if plan.spec().passes == Passes::Training { step } else { 0 };
        for (op, index) in plan.ops().iter().zip(0..) {
            memory.run(plan, op, OpIndex(index), step, version)?;
        }
        memory.check_end(plan, step, version)?;
    }
    Ok(())
}

impl Memory {
    fn run(&mut self, plan: &Plan, op: &Op, at: OpIndex, step: usize, version: usize) -> Result<(), PlanFault> {
        let (unit, round) = (op.unit, op.round);
        let parameters_of_unit = Content::Parameters { unit, version };
        let gradients_of_unit = Content::Gradients { unit, round, version };
        match op.kind {
            OpKind::Gather { into } => {
                let content = Content::Parameters { unit, version: self.versions[unit.index()] };
                self.write(plan, at, into, content)?;
            }
            OpKind::Forward { parameters } => self.read(at, parameters, parameters_of_unit)?,
            OpKind::Backward { parameters, gradients } => {
                self.read(at, parameters, parameters_of_unit)?;
                self.write(plan, at, gradients, gradients_of_unit)?;
            }
            OpKind::Reduce { gradients } => {
                self.read(at, gradients, gradients_of_unit)?;
                if round > 0 {
                    self.read_sum(at, unit, Sum { step, rounds: round })?;
                }
                self.sums[unit.index()] = Some(Sum { step, rounds: round + 1 });
            }
            OpKind::Optimize => {
                self.read_sum(at, unit, Sum { step, rounds: plan.spec().rounds })?;
                self.versions[unit.index()] += 1;
            }
        }
        match op.releases {
            Some(slot) if self.slots.remove(&slot).is_none() => Err(PlanFault::WrongLease { op: at, slot }),
            _ => Ok(()),
        }
    }

    fn write(&mut self, plan: &Plan, op: OpIndex, slot: SlotIndex, content: Content) -> Result<(), PlanFault> {
        if slot.0 >= plan.spec().slots || self.slots.insert(slot, content).is_some() {
            return Err(PlanFault::WrongLease { op, slot });
        }
        Ok(())
    }

    fn read(&self, op: OpIndex, slot: SlotIndex, needed: Content) -> Result<(), PlanFault> {
        if self.slots.get(&slot) == Some(&needed) {
            return Ok(());
        }
        Err(PlanFault::WrongContent { op, resource: Resource::Slot(slot) })
    }

    fn read_sum(&self, op: OpIndex, unit: UnitIndex, needed: Sum) -> Result<(), PlanFault> {
        if self.sums[unit.index()] == Some(needed) {
            return Ok(());
        }
        Err(PlanFault::WrongContent { op, resource: Resource::GradientShard(unit) })
    }

    /// All leases are over, all gradients are summed, each unit is updated once.
    fn check_end(&self, plan: &Plan, step: usize, version: usize) -> Result<(), PlanFault> {
        if let Some(slot) = self.slots.keys().next() {
            return Err(PlanFault::LeaseLeft { slot: *slot });
        }
        let sum = Some(Sum { step, rounds: plan.spec().rounds });
        let updates = if plan.spec().passes == Passes::Training { version + 1 } else { 0 };
        for unit in (0..plan.spec().units.len() as u32).map(UnitIndex) {
            if plan.spec().passes != Passes::Forward && self.sums[unit.index()] != sum {
                return Err(PlanFault::Unfinished { resource: Resource::GradientShard(unit) });
            }
            if self.versions[unit.index()] != updates {
                return Err(PlanFault::Unfinished { resource: Resource::Shard(unit) });
            }
        }
        Ok(())
    }
}
