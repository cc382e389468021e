//! The bytes leased in slots while a list of operations is issued.

use super::op::{Op, SlotIndex};
use super::spec::UnitSpec;

/// Leased bytes around the issue of one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Leased {
    /// With what it leases and with what it is about to release.
    pub(super) during_bytes: u64,
    /// With its release done.
    pub(super) after_bytes: u64,
}

/// Walks the list in issue order. A release of a slot that is not leased changes nothing.
pub(super) fn walk<'a>(units: &'a [UnitSpec], ops: &'a [Op]) -> impl Iterator<Item = Leased> + use<'a> {
    let mut leases: Vec<(SlotIndex, u64)> = Vec::new();
    let mut total_bytes = 0;
    ops.iter().map(move |op| {
        if let Some(slot) = op.leases() {
            let unit_bytes = units[op.unit.index()].padded_bytes;
            leases.push((slot, unit_bytes));
            total_bytes += unit_bytes;
        }
        let during_bytes = total_bytes;
        if let Some(at) = leases.iter().position(|(slot, _)| Some(*slot) == op.releases) {
            total_bytes -= leases.swap_remove(at).1;
        }
        Leased { during_bytes, after_bytes: total_bytes }
    })
}
