//! The peak of leased bytes from the sizes alone, without a plan.
//!
//! Let `n` be the number of units, `d` the forward depth, `p` the backward depth (0 or 1), `K` the number of units kept
//! at a turn (0 in a lone pass), and `W(a, b)` the bytes of units `a ..= b`. At the issue of the forward of unit `i`
//! these units are in slots: itself, the `d` after it, those that wait for the backward if `i >= n-K`, and those kept
//! from the round before if `i < K`. At a backward of unit `i`: itself, the `p` before it, those that wait for their
//! backward if `i >= n-K`, those kept for the next round if `i < K`, and its gradients. These are always neighbours:
//!
//! ```text
//! forward(i)  = W(a, b)                a = n-K if i >= n-K, else i
//!                                      b = max(min(i+d, n-1), K-1 if i < K and it is not the first round)
//! backward(i) = W(a, b) + W(i, i)      a = min(max(i-p, 0), n-K if i >= n-K)
//!                                      b = max(i, K-1 if i < K and it is not the last round)
//! peak        = max over i of forward(i), backward(i)
//! ```
//!
//! With uniform units of `P` bytes: forward `(1+d)·P`, backward with three slots and prefetch `3P`, and with two slots
//! and none `2P`.

use super::error::PlanError;
use super::spec::{Passes, PlanSpec, UnitSpec};

/// The peak of leased bytes of the plan made from `spec`, computed from the sizes alone. The budget is not looked at.
///
/// # Errors
/// Those of [`Plan::new`](super::Plan::new), but for [`PlanError::OverBudget`].
pub fn predicted_peak_bytes(spec: &PlanSpec) -> Result<u64, PlanError> {
    spec.check()?;
    Ok(peak(spec).bytes)
}

/// Refuses a checked spec whose peak exceeds its budget.
pub(super) fn check_budget(spec: &PlanSpec) -> Result<(), PlanError> {
    let Some(budget_bytes) = spec.max_unsharded_bytes else { return Ok(()) };
    let Peak { bytes: peak_bytes, unit } = peak(spec);
    match peak_bytes.checked_sub(budget_bytes) {
        None | Some(0) => Ok(()),
        Some(missing_bytes) => {
            let unit = spec.units[unit].name.clone();
            Err(PlanError::OverBudget { unit, peak_bytes, budget_bytes, missing_bytes })
        }
    }
}

/// The largest total, and the unit whose forward or backward reaches it first.
struct Peak {
    bytes: u64,
    unit: usize,
}

fn peak(spec: &PlanSpec) -> Peak {
    let windows = Windows::new(spec);
    let units = 0..spec.units.len();
    let mut totals: Vec<(usize, u64)> = Vec::new();
    // In issue order; the rounds after the second forward only repeat what was there.
    if spec.has_forward() {
        totals.extend(units.clone().map(|i| (i, windows.forward_bytes(i, false))));
    }
    if spec.has_backward() {
        totals.extend(units.clone().rev().map(|i| (i, windows.backward_bytes(i))));
    }
    if spec.has_forward() && spec.rounds > 1 {
        totals.extend(units.map(|i| (i, windows.forward_bytes(i, true))));
    }
    let first = Peak { bytes: 0, unit: 0 };
    totals.into_iter().fold(first, |peak, (unit, bytes)| if bytes > peak.bytes { Peak { bytes, unit } } else { peak })
}

struct Windows<'a> {
    units: &'a [UnitSpec],
    /// Total bytes of the units before each.
    bytes_before: Vec<u64>,
    forward_depth: usize,
    backward_depth: usize,
    /// Units kept at a turn.
    kept: usize,
    /// Whether there is a turn from one round to the next.
    next_round: bool,
}

impl Windows<'_> {
    fn new(spec: &PlanSpec) -> Windows<'_> {
        let mut bytes_before = vec![0];
        for unit in &spec.units {
            bytes_before.push(bytes_before[bytes_before.len() - 1] + unit.padded_bytes);
        }
        let kept = match spec.passes {
            Passes::Forward | Passes::Backward => 0,
            Passes::Training => {
                let near = spec.keep_distance.div_ceil(2) as usize;
                near.min(spec.units.len()).min(spec.slots as usize - 1)
            }
        };
        Windows {
            units: &spec.units,
            bytes_before,
            forward_depth: spec.forward_prefetch as usize,
            backward_depth: spec.backward_depth(),
            kept,
            next_round: spec.rounds > 1,
        }
    }

    fn forward_bytes(&self, i: usize, later_round: bool) -> u64 {
        let last = self.units.len() - 1;
        let low = self.low_kept(i).unwrap_or(i);
        let high = i.saturating_add(self.forward_depth).min(last);
        self.bytes(low, if later_round { high.max(self.high_kept(i)) } else { high })
    }

    fn backward_bytes(&self, i: usize) -> u64 {
        let ahead = i.saturating_sub(self.backward_depth);
        let low = self.low_kept(i).map_or(ahead, |kept| kept.min(ahead));
        let high = if self.next_round { self.high_kept(i) } else { i };
        self.bytes(low, high) + self.bytes(i, i)
    }

    /// The first unit that waits in a slot for its backward, at the turn from forward to backward.
    fn low_kept(&self, i: usize) -> Option<usize> {
        let low = self.units.len() - self.kept;
        (i >= low).then_some(low)
    }

    /// The last unit that waits in a slot for the next forward, at the turn between rounds; `i` itself if none does.
    fn high_kept(&self, i: usize) -> usize {
        if i < self.kept { self.kept - 1 } else { i }
    }

    fn bytes(&self, low: usize, high: usize) -> u64 {
        self.bytes_before[high + 1] - self.bytes_before[low]
    }
}
