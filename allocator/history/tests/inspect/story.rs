//! Random programs, and what a snapshot says as text that can be compared.

use std::{fs, path::Path};

use highwater_history::{
    Segment,
    inspect::frame_text,
    read::{self, Loaded, TextId},
};
use proptest::prelude::*;

use crate::world::{MIB, World};

/// Something that a program does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    Alloc { quarters: u64, stream: u64 },
    Free(usize),
    Request(usize),
    Complete(usize),
    Release,
    Refuse,
}

pub(crate) fn acts(most: usize) -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        5 => (1..50_u64, 0..2_u64).prop_map(|(quarters, stream)| Act::Alloc { quarters, stream }),
        2 => any::<usize>().prop_map(Act::Free),
        1 => any::<usize>().prop_map(Act::Request),
        1 => any::<usize>().prop_map(Act::Complete),
        1 => Just(Act::Release),
        1 => Just(Act::Refuse),
    ];
    prop::collection::vec(act, 1..most)
}

/// Runs a program. Addresses are used again, segments come and go.
pub(crate) fn told(acts: &[Act], expandable: bool) -> World {
    let mut world = World::new();
    world.expandable = expandable;
    let (mut live, mut pending) = (Vec::new(), Vec::new());
    for &act in acts {
        match act {
            Act::Alloc { quarters, stream } => {
                world.stream = stream;
                live.push((world.alloc(quarters * MIB / 4 + 100, &format!("a.py:{quarters} in f")), stream));
            }
            Act::Free(which) if !live.is_empty() => {
                let (address, stream) = live.swap_remove(which % live.len());
                world.stream = stream;
                world.free(address);
            }
            Act::Request(which) if !live.is_empty() => {
                let (address, stream) = live.swap_remove(which % live.len());
                world.stream = stream;
                world.request_free(address);
                pending.push((address, stream));
            }
            Act::Complete(which) if !pending.is_empty() => {
                let (address, stream) = pending.swap_remove(which % pending.len());
                world.stream = stream;
                world.complete(address);
            }
            Act::Release => world.release(),
            Act::Refuse => world.refuse(1 << 40, 5, "a.py:99 in g"),
            _ => {}
        }
    }
    world
}

/// A real trace, as the reader takes it.
pub(crate) fn real(name: &str) -> Loaded {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    let file = fs::read(path).expect("it is there");
    read::read(&file, &read::Options::default()).expect("it is a snapshot")
}

pub(crate) const REAL: [&str; 3] =
    ["oom_cross_stream.pickle.xz", "oom_leak.pickle.xz", "prefetch_record_stream.pickle.xz"];

pub(crate) fn written(loaded: &Loaded) -> Vec<u8> {
    let mut file = Vec::new();
    loaded.write_to(&mut file).expect("memory does not fail");
    file
}

pub(crate) fn read_again(loaded: &Loaded) -> Loaded {
    read::read(&written(loaded), &read::Options::default()).expect("it is a snapshot")
}

/// Everything in a snapshot but the numbers of texts and stacks, a line each.
pub(crate) fn lines(loaded: &Loaded) -> Vec<String> {
    let text = |id: TextId| loaded.symbols.text(id);
    let maybe = |id: Option<TextId>| id.map(text);
    let stack = |stack| {
        let frame = |frame| {
            let more: Vec<_> =
                loaded.symbols.frame_extras(frame).map(|(key, value)| (text(key), text(value))).collect();
            format!("{} {more:?}", frame_text(loaded, frame))
        };
        loaded.symbols.stack(stack).map(frame).collect::<Vec<_>>()
    };
    let mut lines = Vec::new();
    for device in loaded.devices.iter().chain(&loaded.host) {
        for segment in &device.segments {
            let blocks: Vec<_> = segment.blocks.iter().map(|block| (block, stack(block.stack))).collect();
            lines.push(format!("{:?} {:?} {blocks:?}", plain(segment), stack(segment.stack)).replace("StackId", ""));
        }
        let trace = &device.trace;
        for (row, event) in trace.events().enumerate() {
            lines.push(format!(
                "{} {:#x} {} {} {} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {} {:?}",
                text(event.action.text()),
                event.address,
                event.bytes,
                event.stream,
                event.time_us,
                trace.rounded_bytes(row),
                trace.device_free_bytes(row),
                trace.pool(row),
                maybe(trace.compile_context(row)),
                maybe(trace.user_metadata(row)),
                maybe(trace.internal_metadata(row)),
                maybe(trace.category(row)),
                trace.forward_stack(row).map(stack),
                trace.span(row),
                stack(event.stack),
            ));
        }
        lines.push(format!("timed: {}", trace.is_timed()));
        // A device without notes is written as one whose notes are empty.
        let notes = device.notes.clone().unwrap_or_default();
        let uses: Vec<_> = notes.stream_uses.iter().map(|note| (note.time_us, note.span, note.fact)).collect();
        lines.push(format!(
            "{} {:?} {:?} {} {} {:?} {:?} {uses:?}",
            notes.name,
            notes.capacity_bytes,
            notes.other_bytes,
            notes.history_capacity_bytes,
            notes.history_dropped,
            notes.streams,
            notes.pending_waits
        ));
        lines.push(format!("{} {} {}", notes.rungs.len(), notes.stalls.len(), notes.waits_inserted.len()));
    }
    for mark in &loaded.annotations {
        lines.push(format!("{} {:?} {} {}", text(mark.name), mark.stage, mark.device, mark.time_us));
    }
    for (key, value) in &loaded.settings {
        let value = match value {
            read::Setting::Text(value) => text(*value).to_owned(),
            read::Setting::Map(map) => format!("{:?}", map.iter().map(|(k, v)| (text(*k), v)).collect::<Vec<_>>()),
            other => format!("{other:?}"),
        };
        lines.push(format!("{} = {value}", text(*key)));
    }
    if let Some(recorder) = &loaded.recorder {
        let settings: Vec<_> = recorder.settings.iter().map(|&(key, value)| (text(key), text(value))).collect();
        let paths: Vec<_> = recorder.span_paths.iter().map(|&path| text(path)).collect();
        lines.push(format!("{} {} {settings:?} {paths:?}", recorder.version, text(recorder.writer)));
    }
    lines
}

/// A segment without numbers of stacks.
fn plain(segment: &Segment) -> impl std::fmt::Debug {
    let sums = (segment.allocated_bytes, segment.active_bytes, segment.requested_bytes);
    let kind = (!segment.expandable).then_some(segment.kind);
    (segment.address, segment.total_bytes, sums, segment.stream, kind, segment.pool, segment.expandable)
}

/// Segments and the blocks in use in them, without stacks. The stories do not know which mapped segments are small.
pub(crate) fn shape(segments: &[Segment]) -> Vec<String> {
    let blocks = |segment: &Segment| {
        let used = segment.blocks.iter().filter(|block| block.state != highwater_history::BlockState::Inactive);
        used.map(|block| (block.address, block.bytes, block.requested_bytes, block.state)).collect::<Vec<_>>()
    };
    let mut shapes: Vec<_> =
        segments.iter().map(|segment| format!("{:?} {:?}", plain(segment), blocks(segment))).collect();
    shapes.sort();
    shapes
}
