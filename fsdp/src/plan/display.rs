//! A plan as a table for people.
//!
//! `{}` shows a plan of up to 64 operations whole, and both ends of a longer one; `{:#}` shows all.

use std::fmt;

use super::op::{Op, OpKind, WaitEdge};
use super::{Plan, leases};

/// The most operations shown by `{}`.
const SHOWN: usize = 64;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = Table::new(self);
        table.header(f)?;
        let count = self.ops().len();
        if f.alternate() || count <= SHOWN {
            return table.lines(f, 0..count);
        }
        table.lines(f, 0..SHOWN / 2)?;
        write!(f, "\n  … {} more operations", count - SHOWN)?;
        table.lines(f, count - SHOWN / 2..count)
    }
}

struct Table<'a> {
    plan: &'a Plan,
    leased_bytes: Vec<u64>,
    name_width: usize,
}

impl Table<'_> {
    fn new(plan: &Plan) -> Table<'_> {
        let units = &plan.spec().units;
        Table {
            plan,
            leased_bytes: leases::walk(units, plan.ops()).map(|lease| lease.after_bytes).collect(),
            name_width: units.iter().map(|unit| unit.name.chars().count()).max().unwrap_or(0).max(4),
        }
    }

    fn header(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (plan, spec) = (self.plan, self.plan.spec());
        let edges = plan.edges().count();
        writeln!(
            f,
            "units {}, ranks {}, rounds {}, slots {} of {} B, peak {} B, operations {}, edges {edges}",
            spec.units.len(),
            spec.ranks,
            spec.rounds,
            spec.slots,
            plan.slot_bytes(),
            plan.peak_bytes(),
            plan.ops().len(),
        )?;
        let width = self.name_width;
        write!(
            f,
            "{:>6}  {:<13}  {:<8}  {:<width$}  {:>5}  {:<8}  {:>14}  {:<6}  waits",
            "op", "lane", "does", "unit", "round", "slot", "leased after", "signal"
        )
    }

    fn lines(&self, f: &mut fmt::Formatter<'_>, range: std::ops::Range<usize>) -> fmt::Result {
        range.into_iter().try_for_each(|index| self.line(f, index))
    }

    fn line(&self, f: &mut fmt::Formatter<'_>, index: usize) -> fmt::Result {
        let op = &self.plan.ops()[index];
        let width = self.name_width;
        write!(
            f,
            "\n{index:>6}  {:<13}  {:<8}  {:<width$}  {:>5}  {:<8}  {:>12} B  {:<6}  {}",
            op.lane(),
            op.kind.name(),
            self.plan.spec().units[op.unit.index()].name,
            op.round,
            slots(op),
            self.leased_bytes[index],
            if op.signals { "yes" } else { "-" },
            waits(op),
        )
    }
}

/// Reads before an arrow, writes after it.
fn slots(op: &Op) -> String {
    match op.kind {
        OpKind::Gather { into } => format!("-> {into}"),
        OpKind::Forward { parameters } => format!("{parameters}"),
        OpKind::Backward { parameters, gradients } => format!("{parameters} -> {gradients}"),
        OpKind::Reduce { gradients } => format!("{gradients} ->"),
        OpKind::Optimize => "-".to_owned(),
    }
}

fn waits(op: &Op) -> String {
    if op.waits.is_empty() {
        return "-".to_owned();
    }
    let wait = |wait: &WaitEdge| format!("{}{}", wait.on, if wait.previous_step { " of the step before" } else { "" });
    op.waits.iter().map(wait).collect::<Vec<_>>().join(", ")
}
