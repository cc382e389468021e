//! From a spec to the list of operations, with slots and leases but without waits.
//!
//! The compute operations of all rounds make a line of *uses*. A *residency* is a stay of one unit in a slot: from the
//! use before which its gather is issued to its last use. Residencies of one unit never overlap.
//!
//! Invariant: no use needs more slots than the spec has. [`PlanSpec::check`] makes this true before units are kept, and
//! keeping looks at every use that it makes heavier.

use super::op::{Lane, Op, OpKind, SlotIndex, UnitIndex};
use super::slots::SlotPool;
use super::spec::{Passes, PlanSpec};

/// The operations of a step. The spec must have passed its check.
pub(super) fn operations(spec: &PlanSpec) -> Vec<Op> {
    let uses = uses(spec);
    let residencies = keep_near(spec, &uses, single_use_residencies(spec, &uses));
    let mut list = OpList::new(spec);
    let mut gathers = residencies.iter().peekable();
    for (place, one) in uses.iter().enumerate() {
        while let Some(residency) = gathers.next_if(|residency| residency.issue == place) {
            list.gather(residency, uses[residency.first].round);
        }
        list.compute(place, one);
    }
    debug_assert!(gathers.next().is_none(), "every residency is gathered");
    list.optimize(spec);
    list.ops
}

/// One forward or backward of a unit.
#[derive(Debug, Clone, Copy)]
struct Use {
    backward: bool,
    unit: UnitIndex,
    round: u32,
}

/// A stay of a unit in a slot. All but the unit are places in the line of uses.
#[derive(Debug, Clone, Copy)]
struct Residency {
    unit: UnitIndex,
    /// The use before which the gather is issued.
    issue: usize,
    first: usize,
    last: usize,
}

fn uses(spec: &PlanSpec) -> Vec<Use> {
    let units = 0..spec.units.len() as u32;
    let mut uses = Vec::new();
    for round in 0..spec.rounds {
        let one = |backward| move |unit| Use { backward, unit: UnitIndex(unit), round };
        if spec.has_forward() {
            uses.extend(units.clone().map(one(false)));
        }
        if spec.has_backward() {
            uses.extend(units.clone().rev().map(one(true)));
        }
    }
    uses
}

/// One residency for each use, in order of use, gathered as early as the prefetch depth of its pass says.
fn single_use_residencies(spec: &PlanSpec, uses: &[Use]) -> Vec<Residency> {
    let last_unit = spec.units.len() - 1;
    let residency = |(place, one): (usize, &Use)| {
        let (depth, uses_before_in_pass) = if one.backward {
            (spec.backward_depth(), last_unit - one.unit.index())
        } else {
            (spec.forward_prefetch as usize, one.unit.index())
        };
        let issue = place - depth.min(uses_before_in_pass);
        Residency { unit: one.unit, issue, first: place, last: place }
    };
    uses.iter().enumerate().map(residency).collect()
}

/// Joins residencies of a unit whose uses are near each other, nearest first, while the slots suffice.
fn keep_near(spec: &PlanSpec, uses: &[Use], mut residencies: Vec<Residency>) -> Vec<Residency> {
    let mut load = slots_needed(uses, &residencies);
    let mut kept_from = vec![None; uses.len()];
    for (from, to) in near_pairs(spec, uses) {
        // From its gather on, the second residency is counted already.
        let idle = from + 1..residencies[to].issue;
        if load[idle.clone()].iter().all(|needed| *needed < spec.slots) {
            load[idle].iter_mut().for_each(|needed| *needed += 1);
            kept_from[to] = Some(from);
        }
    }
    // A later use extends an earlier residency; from the back, so that chains join into their first.
    for place in (0..uses.len()).rev() {
        if let Some(from) = kept_from[place] {
            residencies[from].last = residencies[place].last;
        }
    }
    residencies.retain(|residency| kept_from[residency.first].is_none());
    residencies
}

/// Slots in use at the issue of each use: residencies, and one for the gradients of a backward.
fn slots_needed(uses: &[Use], residencies: &[Residency]) -> Vec<u32> {
    let (mut starts, mut ends) = (vec![0; uses.len()], vec![0; uses.len()]);
    for residency in residencies {
        starts[residency.issue] += 1;
        ends[residency.last] += 1;
    }
    let mut resident = 0;
    let load = uses.iter().enumerate().map(|(place, one)| {
        resident += starts[place];
        let needed = resident + u32::from(one.backward);
        resident -= ends[place];
        needed
    });
    load.collect()
}

/// Pairs of uses of one unit, one after the other and near enough to keep the unit, the nearest first.
fn near_pairs(spec: &PlanSpec, uses: &[Use]) -> Vec<(usize, usize)> {
    if spec.passes != Passes::Training {
        return Vec::new();
    }
    let mut last_use = vec![None; spec.units.len()];
    let mut pairs = Vec::new();
    for (to, one) in uses.iter().enumerate() {
        if let Some(from) = last_use[one.unit.index()].replace(to)
            && to - from <= spec.keep_distance as usize
        {
            pairs.push((from, to));
        }
    }
    pairs.sort_by_key(|(from, to)| (to - from, *from));
    pairs
}

/// The list under construction, with the slots as they are leased and released by it.
struct OpList {
    ops: Vec<Op>,
    pool: SlotPool,
    /// Where each unit is, and the place of the last use of its residency.
    resident: Vec<Option<(SlotIndex, usize)>>,
}

impl OpList {
    fn new(spec: &PlanSpec) -> OpList {
        OpList { ops: Vec::new(), pool: SlotPool::new(spec.slots), resident: vec![None; spec.units.len()] }
    }

    fn push(&mut self, kind: OpKind, unit: UnitIndex, round: u32, releases: Option<SlotIndex>) {
        let op = Op { kind, unit, round, releases, waits: Vec::new(), signals: false };
        if let Some(slot) = releases {
            self.pool.release(slot, op.lane());
        }
        self.ops.push(op);
    }

    fn lease(&mut self, writer: Lane) -> SlotIndex {
        self.pool.lease(writer).expect("no use needs more slots than the spec has")
    }

    fn gather(&mut self, residency: &Residency, round: u32) {
        let into = self.lease(Lane::Communication);
        let before = self.resident[residency.unit.index()].replace((into, residency.last));
        debug_assert!(before.is_none(), "unit {} is gathered while it is resident", residency.unit);
        self.push(OpKind::Gather { into }, residency.unit, round, None);
    }

    fn compute(&mut self, place: usize, one: &Use) {
        let resident = &mut self.resident[one.unit.index()];
        let (parameters, last) = resident.expect("a unit is gathered before its use");
        let releases = (last == place).then_some(parameters);
        if releases.is_some() {
            *resident = None;
        }
        if one.backward {
            // The gradients take their slot before the parameters leave theirs.
            let gradients = self.lease(Lane::Compute);
            self.push(OpKind::Backward { parameters, gradients }, one.unit, one.round, releases);
            self.push(OpKind::Reduce { gradients }, one.unit, one.round, Some(gradients));
        } else {
            self.push(OpKind::Forward { parameters }, one.unit, one.round, releases);
        }
    }

    /// The later half of the units, while the last reduce runs; then the first half in the order in which the next
    /// step gathers, so that its first gather runs beside the rest.
    fn optimize(&mut self, spec: &PlanSpec) {
        if spec.passes != Passes::Training {
            return;
        }
        let units = spec.units.len() as u32;
        let half = units.div_ceil(2);
        for unit in (half..units).chain(0..half) {
            self.push(OpKind::Optimize, UnitIndex(unit), spec.rounds - 1, None);
        }
    }
}
