//! Memory that was freed and waits for streams.

use std::collections::BTreeMap;

use crate::{
    PendingWait, StackId,
    state::{
        curves::Frees,
        pending::{Waits, stream_name},
        sites::{self, Key},
    },
};

use super::{At, SiteBytes};

/// Work of a stream that freed memory waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WaitedFor {
    /// The stream, by its name if it has one.
    pub stream: String,
    /// The first position in the stream's order that a block of the group waits for.
    pub first_position: u64,
    /// The last one: when the stream is past it, none of the group waits for the stream any more.
    pub last_position: u64,
}

/// Pending blocks of one stack that belong to one stream and wait for the same streams.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PendingGroup {
    /// The stream that owns the memory.
    pub owner: String,
    /// The streams that are waited for, if the recorder noted them; PyTorch's snapshots do not say.
    pub waits_for: Vec<String>,
    /// What exactly is waited for, if the recorder noted it: at failures, and of what still waits at the end.
    pub events: Vec<WaitedFor>,
    /// Where the blocks were allocated. Its bytes are as taken.
    pub site: SiteBytes,
    /// How long the one that waits longest has waited, microseconds; `None` if its free is not in the trace, or has no
    /// time.
    pub oldest_us: Option<u64>,
    /// How long the one that was freed last has waited, microseconds.
    pub newest_us: Option<u64>,
}

/// All pending memory of a device at a moment.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Pending {
    /// Bytes of pending blocks, as taken.
    pub bytes: u64,
    /// Number of pending blocks.
    pub blocks: u64,
    /// The groups, the most bytes first.
    pub groups: Vec<PendingGroup>,
    /// Whether the trace says what waits: with one event for each free instead of two it does not.
    pub is_known: bool,
}

/// What the blocks of a group have in common: owner, streams as [`Waits::streams`] tells them, and stack.
type Together = (u64, Vec<(bool, u64)>, Key);

/// What is gathered of a group.
#[derive(Default)]
struct Gathered {
    bytes: u64,
    blocks: u64,
    /// Ages of the free requests that are in the trace.
    ages: Vec<u64>,
    /// First and last position by stream.
    positions: BTreeMap<u64, (u64, u64)>,
}

impl At<'_> {
    /// What was freed and waits, by stream and stack.
    #[must_use]
    pub fn pending(&self) -> Pending {
        let device = self.source();
        let waits = Waits::before(device, self.row);
        let trace = &device.trace;
        let now = trace.times_us().get(self.row).or(trace.times_us().last()).copied().unwrap_or(0);
        let mut groups: BTreeMap<Together, Gathered> = BTreeMap::new();
        for (&address, held) in self.memory.blocks.iter().filter(|(_, held)| held.pending) {
            let owner = self.memory.segment_at(address).map_or(0, |(_, segment)| segment.stream);
            let streams = waits.streams(&self.memory, address, held);
            let size = if held.stack == StackId::EMPTY { held.requested } else { 0 };
            let group = groups.entry((owner, streams, (held.stack, size))).or_default();
            group.bytes += held.bytes;
            group.blocks += 1;
            let freed = held.freed.map(|row| trace.times_us()[row as usize]);
            group.ages.extend(freed.filter(|_| trace.is_timed()).map(|freed| now.saturating_sub(freed)));
            for &PendingWait { stream, position, .. } in waits.exact(address) {
                let range = group.positions.entry(stream).or_insert((position, position));
                *range = (range.0.min(position), range.1.max(position));
            }
        }
        let told = groups.into_iter().map(|((owner, streams, key), group)| self.told(owner, &streams, key, &group));
        let mut groups: Vec<PendingGroup> = told.collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.site.bytes));
        let sums = self.sums();
        let is_known = Frees::of(device) == Frees::Both;
        Pending { bytes: sums.pending_bytes, blocks: sums.pending_blocks, groups, is_known }
    }

    fn told(&self, owner: u64, streams: &[(bool, u64)], key: Key, group: &Gathered) -> PendingGroup {
        let device = self.source();
        let waits_for = streams.iter().filter(|stream| stream.0).map(|&(_, stream)| stream_name(device, stream));
        let events = group.positions.iter().map(|(&stream, &(first_position, last_position))| WaitedFor {
            stream: stream_name(device, stream),
            first_position,
            last_position,
        });
        PendingGroup {
            owner: stream_name(device, owner),
            waits_for: waits_for.collect(),
            events: events.collect(),
            site: sites::site(self.loaded, key, group.bytes, group.blocks),
            oldest_us: group.ages.iter().copied().max(),
            newest_us: group.ages.iter().copied().min(),
        }
    }
}
