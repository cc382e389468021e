//! Freed memory that waits, by stream.

use std::collections::BTreeMap;

use crate::state::pending::{Uses, stream_name};

use super::evidence::Evidence;
use super::verdict::PendingStream;

/// Pending bytes: by the streams that are waited for if the recorder noted their uses, else by the owner. A block that
/// two streams hold counts at both.
pub(super) fn by_stream(e: &Evidence) -> Vec<PendingStream> {
    let device = e.device();
    let uses = Uses::of(device);
    let mut sums: BTreeMap<(bool, u64), (u64, u64)> = BTreeMap::new();
    for (&address, held) in e.memory.blocks.iter().filter(|(_, held)| held.pending) {
        for stream in uses.streams(&e.memory, address, held) {
            let sum = sums.entry(stream).or_default();
            (sum.0, sum.1) = (sum.0 + held.bytes, sum.1 + 1);
        }
    }
    let told = sums.into_iter().map(|((waited_for, stream), (bytes, blocks))| PendingStream {
        stream: stream_name(device, stream),
        waited_for,
        bytes,
        blocks,
    });
    let mut told: Vec<_> = told.collect();
    told.sort_by_key(|stream| std::cmp::Reverse(stream.bytes));
    told
}
