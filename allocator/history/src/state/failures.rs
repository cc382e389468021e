//! Requests that failed, and whether the same was tried again and succeeded.

use crate::read::{EventAction, Trace};

/// How many events after a failure a second try is looked for.
const AGAIN_WITHIN: usize = 4096;

/// Rows of failed requests, and whether the same was tried again and succeeded.
pub(crate) fn failures(trace: &Trace) -> Vec<(usize, bool)> {
    let failed = |row: &usize| trace.action(*row) == EventAction::OutOfMemory;
    (0..trace.len()).filter(failed).map(|row| (row, again(trace, row).is_some())).collect()
}

/// The one to look at: the last, of those that were not made good if there are any.
pub(crate) fn last(failures: &[(usize, bool)]) -> Option<usize> {
    let last = failures.iter().rev().find(|failure| !failure.1).or(failures.last());
    last.map(|failure| failure.0)
}

/// The row at which the same is allocated that failed at a row.
pub(crate) fn again(trace: &Trace, row: usize) -> Option<usize> {
    let (bytes, stream) = (trace.bytes()[row], trace.streams()[row]);
    let is_it = |&later: &usize| {
        let allocated = trace.bytes()[later];
        trace.action(later) == EventAction::Alloc
            && trace.streams()[later] == stream
            && (allocated == bytes || allocated.next_multiple_of(512) == bytes)
    };
    (row + 1..trace.len().min(row.saturating_add(AGAIN_WITHIN))).find(is_it)
}
