//! What a snapshot holds, in numbers.

use std::collections::BTreeMap;

use crate::{
    SegmentKind,
    read::{Compression, Loaded, LoadedDevice, Part},
    state::{
        curves::{Curves, Frees},
        memory::Memory,
        pending::stream_name,
        rules::Rules,
        sites,
    },
};

use super::{
    SiteBytes, Sums,
    moment::{is_used, peak, start_us},
};

/// What a file holds.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Summary {
    /// Protocol of the pickle; 0 if it is none, but JSON.
    pub protocol: u8,
    /// How the file was compressed.
    pub compression: Option<Compression>,
    /// Who wrote it, if it says so: this project's recorder does.
    pub writer: Option<String>,
    /// Devices with events or memory.
    pub devices: Vec<DeviceSummary>,
    /// Pinned host memory, by the device that it was allocated for.
    pub host: Vec<DeviceSummary>,
    /// Number of marks of the program on the time line.
    pub annotations: u64,
    /// Keys that are not known, with how often they came.
    pub unknown_keys: Vec<(Part, String, u64)>,
    /// Why reading ended before the end of the file.
    pub damage: Option<String>,
}

/// What is known of one device.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeviceSummary {
    /// Index of the device.
    pub device: usize,
    /// Its name, if the recorder told it.
    pub name: Option<String>,
    /// Its memory, bytes, if the recorder told it.
    pub capacity_bytes: Option<u64>,
    /// Number of events.
    pub events: u64,
    /// Number of events by what they are about, as files call it; the most first.
    pub events_by_kind: Vec<(String, u64)>,
    /// From the first event of the file to the first and to the last of the device, microseconds, if events have times.
    pub span_us: Option<(u64, u64)>,
    /// Events that the recorder lost to newer ones, if it told.
    pub dropped: Option<u64>,
    /// Where the bytes are at the end.
    pub end: Sums,
    /// The most live and pending bytes at once, as asked for.
    pub peak_bytes: u64,
    /// The first event before which there were so many.
    pub peak_event: u64,
    /// The most bytes of segments at once.
    pub peak_reserved_bytes: u64,
    /// By stream and pool, at the end; the most reserved first.
    pub streams: Vec<StreamSummary>,
    /// The lines that hold the most live memory at the end.
    pub top_stacks: Vec<SiteBytes>,
}

/// The memory of one stream in one pool.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StreamSummary {
    /// The stream, by its name if it has one.
    pub stream: String,
    /// Private pool; (0, 0) is the common one.
    pub pool: (u64, u64),
    /// Where the bytes are.
    pub sums: Sums,
    /// Bytes of segments for small requests.
    pub small_bytes: u64,
    /// Number of allocations in the trace.
    pub allocations: u64,
}

/// What a snapshot holds, with at most `top` stacks a device.
#[must_use]
pub fn summary(loaded: &Loaded, top: usize) -> Summary {
    let of = |devices: &[LoadedDevice]| {
        let used = (0..devices.len()).filter(|&index| is_used(&devices[index]));
        used.map(|index| device(loaded, &devices[index], index, top)).collect()
    };
    let text = |id| loaded.symbols.text(id).to_owned();
    Summary {
        protocol: loaded.protocol,
        compression: loaded.compression,
        writer: loaded.recorder.as_ref().map(|recorder| text(recorder.writer)),
        devices: of(&loaded.devices),
        host: of(&loaded.host),
        annotations: loaded.annotations.len() as u64,
        unknown_keys: loaded.unknown_keys.iter().map(|(&(part, key), &count)| (part, text(key), count)).collect(),
        damage: loaded.damage.as_ref().map(ToString::to_string),
    }
}

fn device(loaded: &Loaded, device: &LoadedDevice, index: usize, top: usize) -> DeviceSummary {
    let (trace, frees) = (&device.trace, Frees::of(device));
    let memory = Memory::before(device, &Rules::of(loaded), frees, trace.len());
    let curves = Curves::of(device, frees);
    let peak = peak(&curves);
    let start = start_us(loaded);
    let span = trace.times_us().first().zip(trace.times_us().last()).filter(|_| trace.is_timed());
    let notes = device.notes.as_ref();
    DeviceSummary {
        device: index,
        name: notes.map(|notes| notes.name.clone()).filter(|name| !name.is_empty()),
        capacity_bytes: notes.and_then(|notes| notes.capacity_bytes),
        events: trace.len() as u64,
        events_by_kind: kinds(loaded, device),
        span_us: span.map(|(&first, &last)| (first.saturating_sub(start), last.saturating_sub(start))),
        dropped: notes.map(|notes| notes.history_dropped),
        end: Sums::of(&memory),
        peak_bytes: curves.active(peak),
        peak_event: peak as u64,
        peak_reserved_bytes: curves.reserved.iter().copied().max().unwrap_or(0),
        streams: streams(device, &memory),
        top_stacks: sites::top(loaded, &memory, top, |held| !held.pending),
    }
}

fn kinds(loaded: &Loaded, device: &LoadedDevice) -> Vec<(String, u64)> {
    let mut counts = BTreeMap::new();
    for row in 0..device.trace.len() {
        *counts.entry(device.trace.action(row).text()).or_insert(0_u64) += 1;
    }
    let mut kinds: Vec<_> =
        counts.into_iter().map(|(text, count)| (loaded.symbols.text(text).to_owned(), count)).collect();
    kinds.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    kinds
}

fn streams(device: &LoadedDevice, memory: &Memory) -> Vec<StreamSummary> {
    let mut parts: BTreeMap<(u64, (u64, u64)), (Memory, u64)> = BTreeMap::new();
    for (&address, &segment) in &memory.segments {
        let (part, small) = parts.entry((segment.stream, segment.pool)).or_default();
        part.segments.insert(address, segment);
        let blocks = memory.blocks.range(address..address + segment.bytes);
        part.blocks.extend(blocks.map(|(&address, &held)| (address, held)));
        *small += if segment.kind == SegmentKind::Small { segment.bytes } else { 0 };
    }
    let trace = &device.trace;
    let mut allocations: BTreeMap<(u64, (u64, u64)), u64> = BTreeMap::new();
    for row in 0..trace.len() {
        if trace.action(row) == crate::read::EventAction::Alloc {
            *allocations.entry((trace.streams()[row], trace.pool(row))).or_default() += 1;
        }
    }
    // A stream that holds nothing at the end may have allocated.
    for &key in allocations.keys() {
        parts.entry(key).or_default();
    }
    let told = parts.into_iter().map(|(key, (part, small_bytes))| StreamSummary {
        stream: stream_name(device, key.0),
        pool: key.1,
        sums: Sums::of(&part),
        small_bytes,
        allocations: allocations.get(&key).copied().unwrap_or(0),
    });
    let mut told: Vec<_> = told.collect();
    told.sort_by_key(|stream| std::cmp::Reverse(stream.sums.reserved_bytes));
    told
}
