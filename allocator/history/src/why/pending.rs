//! Freed memory that waits, by stream.

use std::collections::BTreeMap;

use crate::state::memory::Held;
use crate::state::pending::stream_name;
use crate::{FenceState, PendingWait};

use super::evidence::Evidence;
use super::verdict::PendingStream;

/// What is pending for one stream.
#[derive(Default)]
struct Sum {
    bytes: u64,
    blocks: u64,
    /// What exactly is waited for, as far as that is known.
    waits: Vec<PendingWait>,
}

/// Pending bytes: by the streams that are waited for if the recorder noted them, else by the owner. A block that two
/// streams hold counts at both.
pub(super) fn by_stream(e: &Evidence) -> Vec<PendingStream> {
    let mut sums: BTreeMap<(bool, u64), Sum> = BTreeMap::new();
    for (&address, held) in blocks(e) {
        for stream in e.waits.streams(&e.memory, address, held) {
            let sum = sums.entry(stream).or_default();
            (sum.bytes, sum.blocks) = (sum.bytes + held.bytes, sum.blocks + 1);
            sum.waits.extend(e.waits.exact(address).iter().filter(|wait| wait.stream == stream.1));
        }
    }
    let told = sums.into_iter().map(|((waited_for, stream), sum)| PendingStream {
        stream: stream_name(e.device(), stream),
        waited_for,
        bytes: sum.bytes,
        blocks: sum.blocks,
        fence: state(e, stream, &sum.waits),
    });
    let mut told: Vec<_> = told.collect();
    told.sort_by_key(|stream| std::cmp::Reverse(stream.bytes));
    told
}

/// The blocks that are pending, by address.
pub(super) fn blocks<'a>(e: &'a Evidence) -> impl Iterator<Item = (&'a u64, &'a Held)> {
    e.memory.blocks.iter().filter(|(_, held)| held.pending)
}

/// Whether it is known of every pending block what exactly it waits for, and how far that is.
pub(super) fn is_exact(e: &Evidence) -> bool {
    let known = |address: &u64| {
        let waits = e.waits.exact(*address);
        !waits.is_empty() && waits.iter().all(|wait| wait.fence.is_some())
    };
    blocks(e).all(|(address, _)| known(address))
}

/// How far the fences of a stream are that are waited for.
fn state(e: &Evidence, stream: u64, waits: &[PendingWait]) -> Option<String> {
    let last = waits.iter().map(|wait| wait.position).max()?;
    let open: Vec<&PendingWait> = waits.iter().filter(|wait| wait.fence != Some(FenceState::Complete)).collect();
    let position = format!("up to position {last}");
    let holder = open.iter().find_map(|wait| wait.held_by);
    Some(match holder {
        _ if open.is_empty() => format!("{position}, which is complete"),
        Some(holder) if holder == stream => format!("{position}; it is open: what it does may depend on other ranks"),
        Some(holder) => format!("{position}, behind open {}", stream_name(e.device(), holder)),
        None if open.iter().any(|wait| wait.fence == Some(FenceState::Unrecorded)) => {
            format!("{position}, for which no fence is recorded yet")
        }
        None if open.iter().all(|wait| wait.fence.is_none()) => position,
        None => format!("{position}, whose fence is recorded and was not seen complete"),
    })
}
