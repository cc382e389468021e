//! A plan in virtual time: integer ticks, each lane a queue, everything submitted at time 0.
//!
//! Only lanes and waits order the operations, as on a device. An operation starts when the one before it in its lane is
//! over and all operations that it waits for are over.

use super::Plan;
use super::error::PlanError;
use super::op::{Lane, Op, OpIndex, OpKind};

/// How long the operations of one unit take, in ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnitTicks {
    /// One forward.
    pub forward: u64,
    /// One backward.
    pub backward: u64,
    /// One gather.
    pub gather: u64,
    /// One reduce.
    pub reduce: u64,
    /// One optimizer update.
    pub optimize: u64,
}

/// How long the operations of each unit take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Durations {
    /// By unit, in the order of the plan.
    pub units: Vec<UnitTicks>,
}

impl Durations {
    /// The same for each of `units` units.
    pub fn uniform(units: usize, ticks: UnitTicks) -> Durations {
        Durations { units: vec![ticks; units] }
    }

    fn of(&self, op: &Op) -> u64 {
        let ticks = &self.units[op.unit.index()];
        match op.kind {
            OpKind::Gather { .. } => ticks.gather,
            OpKind::Forward { .. } => ticks.forward,
            OpKind::Backward { .. } => ticks.backward,
            OpKind::Reduce { .. } => ticks.reduce,
            OpKind::Optimize => ticks.optimize,
        }
    }

    fn without_communication(&self) -> Durations {
        let silent = |ticks: &UnitTicks| UnitTicks { gather: 0, reduce: 0, ..*ticks };
        Durations { units: self.units.iter().map(silent).collect() }
    }
}

/// When an operation runs, in ticks from the submission of the first step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    /// The first tick.
    pub start: u64,
    /// The first tick after it.
    pub end: u64,
}

/// A share of a time, kept as two integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ratio {
    /// The part, in ticks.
    pub part: u64,
    /// The whole, in ticks.
    pub whole: u64,
}

impl Ratio {
    /// The share as a number; 0 of a whole of 0.
    pub fn as_f64(self) -> f64 {
        if self.whole == 0 { 0.0 } else { self.part as f64 / self.whole as f64 }
    }
}

/// When every operation of some steps runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeline {
    ops_per_step: usize,
    intervals: Vec<Interval>,
    span: u64,
    span_without_communication: u64,
    communication: u64,
}

impl Timeline {
    /// When the operation ran in step number `step`, counted from 0.
    pub fn interval(&self, step: u32, op: OpIndex) -> Option<Interval> {
        if op.index() >= self.ops_per_step {
            return None;
        }
        self.intervals.get((step as usize).checked_mul(self.ops_per_step)?.checked_add(op.index())?).copied()
    }

    /// All operations in issue order, step by step.
    pub fn intervals(&self) -> &[Interval] {
        &self.intervals
    }

    /// Ticks from the submission to the end of the last operation.
    pub fn span(&self) -> u64 {
        self.span
    }

    /// The span if gathers and reduces took no time, in ticks.
    pub fn span_without_communication(&self) -> u64 {
        self.span_without_communication
    }

    /// Ticks of all gathers and reduces together.
    pub fn communication(&self) -> u64 {
        self.communication
    }

    /// The share of the communication that compute does not hide: what it adds to the span, by what it takes.
    pub fn exposed_communication(&self) -> Ratio {
        Ratio { part: self.span - self.span_without_communication, whole: self.communication }
    }
}

/// Runs the plan; see [`Plan::timeline`].
pub(super) fn simulate(plan: &Plan, durations: &Durations, steps: u32) -> Result<Timeline, PlanError> {
    let units = plan.spec().units.len();
    if durations.units.len() != units {
        return Err(PlanError::Durations { given: durations.units.len(), units });
    }
    check_total(plan.ops(), durations, steps)?;
    let intervals = run(plan.ops(), durations, steps);
    let silent = run(plan.ops(), &durations.without_communication(), steps);
    let communication: u64 =
        plan.ops().iter().filter(|op| op.lane() == Lane::Communication).map(|op| durations.of(op)).sum();
    Ok(Timeline {
        ops_per_step: plan.ops().len(),
        span: span(&intervals),
        span_without_communication: span(&silent),
        communication: communication * u64::from(steps),
        intervals,
    })
}

/// No time in a timeline exceeds the sum of all durations: at each moment something runs.
fn check_total(ops: &[Op], durations: &Durations, steps: u32) -> Result<(), PlanError> {
    let step = ops.iter().try_fold(0_u64, |sum, op| sum.checked_add(durations.of(op)));
    step.and_then(|step| step.checked_mul(u64::from(steps))).map(|_| ()).ok_or(PlanError::TooManyTicks)
}

fn run(ops: &[Op], durations: &Durations, steps: u32) -> Vec<Interval> {
    let mut intervals: Vec<Interval> = Vec::new();
    let mut lane_free = [0; Lane::COUNT];
    for _ in 0..steps {
        let base = intervals.len();
        for op in ops {
            let mut start = lane_free[op.lane().index()];
            for wait in &op.waits {
                let place = base + wait.on.index();
                let place = if wait.previous_step { place.checked_sub(ops.len()) } else { Some(place) };
                start = start.max(place.map_or(0, |place| intervals[place].end));
            }
            let end = start + durations.of(op);
            lane_free[op.lane().index()] = end;
            intervals.push(Interval { start, end });
        }
    }
    intervals
}

fn span(intervals: &[Interval]) -> u64 {
    intervals.iter().map(|interval| interval.end).max().unwrap_or(0)
}
