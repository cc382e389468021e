//! Which operation waits for which: derived from what the operations access, for any list.
//!
//! Three steps are laid end to end and walked in issue order. For each operation, the last one of the other lane that
//! conflicts with it must be over before it starts. The walk knows how far each lane is ordered behind the other by the
//! waits so far, and adds a wait only when that is not far enough.
//!
//! This is the smallest set of waits. A way round a wait from `y` to `x` would use operations between them only, and
//! those have their waits when `x` is looked at. For the same reason no step depends on more than the one before it,
//! and all steps but the first have the same waits.

use std::collections::BTreeMap;

use super::op::{Access, AccessMode, Lane, Op, OpIndex, Resource, WaitEdge};

/// Gives every operation its waits and signals.
pub(super) fn assign(ops: &mut [Op]) {
    let mut walk = Walk::default();
    let [first, second, third] = [0, 1, 2].map(|step| walk.step(ops, step));
    assert_eq!(second, third, "all steps but the first have the same waits");
    for ((op, waits), first) in ops.iter_mut().zip(second).zip(first) {
        debug_assert!(first.iter().eq(waits.iter().filter(|wait| !wait.previous_step)), "step 0 only skips waits");
        op.waits = waits;
    }
    mark_signals(ops);
}

/// Lets exactly those operations signal that are waited for.
pub(super) fn mark_signals(ops: &mut [Op]) {
    let mut signals = vec![false; ops.len()];
    for wait in ops.iter().flat_map(|op| &op.waits) {
        signals[wait.on.index()] = true;
    }
    for (op, signals) in ops.iter_mut().zip(signals) {
        op.signals = signals;
    }
}

/// The last accesses of one resource by each lane, as places in the unrolled list.
#[derive(Default)]
struct LastAccess {
    read: [Option<usize>; Lane::COUNT],
    write: [Option<usize>; Lane::COUNT],
}

impl LastAccess {
    fn conflict(&self, lane: Lane, mode: AccessMode) -> Option<usize> {
        let write = self.write[lane.index()];
        match mode {
            AccessMode::Read => write,
            AccessMode::Write => write.max(self.read[lane.index()]),
        }
    }

    fn record(&mut self, lane: Lane, mode: AccessMode, place: usize) {
        match mode {
            AccessMode::Read => self.read[lane.index()] = Some(place),
            AccessMode::Write => self.write[lane.index()] = Some(place),
        }
    }
}

#[derive(Default)]
struct Walk {
    last: BTreeMap<Resource, LastAccess>,
    /// For each lane, the last place of the other lane that is over before anything more runs on it. A lane knows its
    /// own past by its order, so with two lanes this one number is the whole vector clock.
    ordered_after: [Option<usize>; Lane::COUNT],
}

impl Walk {
    /// The waits of each operation of step number `step`.
    fn step(&mut self, ops: &[Op], step: usize) -> Vec<Vec<WaitEdge>> {
        let base = step * ops.len();
        let waits = ops.iter().enumerate().map(|(index, op)| {
            let wait = self.visit(op, base + index);
            wait.map(|place| WaitEdge { on: OpIndex((place % ops.len()) as u32), previous_step: place < base })
        });
        waits.map(|wait| wait.into_iter().collect()).collect()
    }

    /// The place that `op` must wait for, if that is not known to be over.
    fn visit(&mut self, op: &Op, place: usize) -> Option<usize> {
        let lane = op.lane();
        let conflict = |access: Access| self.last.get(&access.resource)?.conflict(lane.other(), access.mode);
        let needed = op.accesses().filter_map(conflict).max();
        let known = &mut self.ordered_after[lane.index()];
        let wait = if needed > *known { needed } else { None };
        *known = needed.max(*known);
        for access in op.accesses() {
            self.last.entry(access.resource).or_default().record(lane, access.mode, place);
        }
        wait
    }
}
