//! Freed memory that waits, by stream.

use std::collections::BTreeMap;

use crate::read::LoadedDevice;

use super::evidence::Evidence;
use super::verdict::PendingStream;

/// A stream by its name, if the recorder knows one.
pub(super) fn stream_name(device: &LoadedDevice, stream: u64) -> String {
    let names = device.notes.iter().flat_map(|notes| &notes.streams);
    match names.into_iter().find(|name| name.stream == stream) {
        Some(name) => format!("stream {stream} ({})", name.name),
        None => format!("stream {stream:#x}").replace("0x0", "0"),
    }
}

/// Pending bytes: by the streams that are waited for if the recorder noted their uses, else by the owner. A block that
/// two streams hold counts at both.
pub(super) fn by_stream(e: &Evidence) -> Vec<PendingStream> {
    let device = e.device();
    let times = device.trace.times_us();
    let mut uses: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    for note in device.notes.iter().flat_map(|notes| &notes.stream_uses) {
        uses.entry(note.fact.address).or_default().push((note.time_us, note.fact.stream));
    }
    let mut sums: BTreeMap<(bool, u64), (u64, u64)> = BTreeMap::new();
    for (address, held) in e.memory.blocks.iter().filter(|(_, held)| held.pending) {
        let born = held.born.and_then(|row| times.get(row as usize)).copied().unwrap_or(0);
        let freed = held.freed.and_then(|row| times.get(row as usize)).copied().unwrap_or(u64::MAX);
        let used = uses.get(address).into_iter().flatten().filter(|(time, _)| (born..=freed).contains(time));
        let mut streams: Vec<(bool, u64)> = used.map(|&(_, stream)| (true, stream)).collect();
        if streams.is_empty() {
            streams.extend(e.memory.segment_at(*address).map(|(_, segment)| (false, segment.stream)));
        }
        streams.sort_unstable();
        streams.dedup();
        for stream in streams {
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
