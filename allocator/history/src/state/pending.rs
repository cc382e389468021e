//! Freed memory that waits: for which streams, and for what of them.

use std::collections::BTreeMap;

use crate::PendingWait;
use crate::read::{EventAction, LoadedDevice};

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

/// What the recorder noted of pending blocks before an event: exactly what they wait for, or the uses on other streams.
#[derive(Debug)]
pub(crate) struct Waits<'a> {
    device: &'a LoadedDevice,
    /// What blocks wait for, by address.
    exact: BTreeMap<u64, Vec<PendingWait>>,
    /// Uses: time and stream, by address.
    uses: BTreeMap<u64, Vec<(u64, u64)>>,
}

impl<'a> Waits<'a> {
    /// Those of the blocks that are pending before the event of a row.
    pub(crate) fn before(device: &'a LoadedDevice, row: usize) -> Self {
        let mut uses: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
        for note in device.notes.iter().flat_map(|notes| &notes.stream_uses) {
            uses.entry(note.fact.address).or_default().push((note.time_us, note.fact.stream));
        }
        let mut exact = at_failure(device, row);
        for (address, waits) in at_the_end(device, row) {
            exact.entry(address).or_insert(waits);
        }
        Self { device, exact, uses }
    }

    /// Exactly what a pending block waits for; nothing if that is not known.
    pub(crate) fn exact(&self, address: u64) -> &[PendingWait] {
        self.exact.get(&address).map_or(&[], Vec::as_slice)
    }

    /// The streams that a block waits for, each with `true`; if none is known, the one that owns it, with `false`.
    pub(crate) fn streams(&self, memory: &Memory, address: u64, held: &Held) -> Vec<(bool, u64)> {
        let mut streams: Vec<(bool, u64)> = match self.exact(address) {
            [] => self.users(address, held),
            waits => waits.iter().map(|wait| (true, wait.stream)).collect(),
        };
        if streams.is_empty() {
            streams.extend(memory.segment_at(address).map(|(_, segment)| (false, segment.stream)));
        }
        streams.sort_unstable();
        streams.dedup();
        streams
    }

    /// The streams that used a block while it was in use.
    fn users(&self, address: u64, held: &Held) -> Vec<(bool, u64)> {
        let times = self.device.trace.times_us();
        let born = held.born.and_then(|row| times.get(row as usize)).copied().unwrap_or(0);
        let freed = held.freed.and_then(|row| times.get(row as usize)).copied().unwrap_or(u64::MAX);
        let used = self.uses.get(&address).into_iter().flatten();
        used.filter(|(time, _)| (born..=freed).contains(time)).map(|&(_, stream)| (true, stream)).collect()
    }
}

/// What was noted when the request of a row failed: it has the failure's time.
fn at_failure(device: &LoadedDevice, row: usize) -> BTreeMap<u64, Vec<PendingWait>> {
    let trace = &device.trace;
    let mut waits: BTreeMap<u64, Vec<PendingWait>> = BTreeMap::new();
    if row < trace.len() && trace.action(row) == EventAction::OutOfMemory {
        let notes = device.notes.iter().flat_map(|notes| &notes.awaited);
        for note in notes.filter(|note| note.time_us == trace.times_us()[row]) {
            waits.entry(note.fact.address).or_default().push(note.fact);
        }
    }
    waits
}

/// What was noted at the end, of blocks that have waited since before a row. How far their fences are is known of the end
/// alone.
fn at_the_end(device: &LoadedDevice, row: usize) -> BTreeMap<u64, Vec<PendingWait>> {
    use EventAction::{FreeCompleted, FreeRequested, Snapshot};
    let mut waits: BTreeMap<u64, Vec<PendingWait>> = BTreeMap::new();
    for &wait in device.notes.iter().flat_map(|notes| &notes.pending_waits) {
        waits.entry(wait.address).or_default().push(wait);
    }
    // A trace is long, and most have nothing noted.
    if waits.is_empty() {
        return waits;
    }
    let trace = &device.trace;
    let mut is_end = true;
    for row in row..trace.len() {
        is_end &= trace.action(row) == Snapshot;
        // A block whose free is requested or completed later is another one, or waits from then on.
        if matches!(trace.action(row), FreeRequested | FreeCompleted) {
            waits.remove(&trace.addresses()[row]);
        }
    }
    if !is_end {
        waits.values_mut().flatten().for_each(|wait| (wait.fence, wait.held_by) = (None, None));
    }
    waits
}
