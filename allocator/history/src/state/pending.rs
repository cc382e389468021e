//! Freed memory that waits: for which streams.

use std::collections::BTreeMap;

use crate::read::LoadedDevice;

use super::memory::{Held, Memory};

/// A stream by its name, if the recorder knows one.
#[must_use]
pub fn stream_name(device: &LoadedDevice, stream: u64) -> String {
    let names = device.notes.iter().flat_map(|notes| &notes.streams);
    match names.into_iter().find(|name| name.stream == stream) {
        Some(name) => format!("stream {stream} ({})", name.name),
        None => format!("stream {stream:#x}").replace("0x0", "0"),
    }
}

/// The uses on other streams that the recorder noted: time and stream, by address.
pub(crate) struct Uses<'a> {
    device: &'a LoadedDevice,
    by_address: BTreeMap<u64, Vec<(u64, u64)>>,
}

impl<'a> Uses<'a> {
    pub(crate) fn of(device: &'a LoadedDevice) -> Self {
        let mut by_address: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
        for note in device.notes.iter().flat_map(|notes| &notes.stream_uses) {
            by_address.entry(note.fact.address).or_default().push((note.time_us, note.fact.stream));
        }
        Self { device, by_address }
    }

    /// The streams that a block waits for, each with `true`; if none is known, the one that owns it, with `false`.
    pub(crate) fn streams(&self, memory: &Memory, address: u64, held: &Held) -> Vec<(bool, u64)> {
        let times = self.device.trace.times_us();
        let born = held.born.and_then(|row| times.get(row as usize)).copied().unwrap_or(0);
        let freed = held.freed.and_then(|row| times.get(row as usize)).copied().unwrap_or(u64::MAX);
        let used = self.by_address.get(&address).into_iter().flatten();
        let used = used.filter(|(time, _)| (born..=freed).contains(time));
        let mut streams: Vec<(bool, u64)> = used.map(|&(_, stream)| (true, stream)).collect();
        if streams.is_empty() {
            streams.extend(memory.segment_at(address).map(|(_, segment)| (false, segment.stream)));
        }
        streams.sort_unstable();
        streams.dedup();
        streams
    }
}
