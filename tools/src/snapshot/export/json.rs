//! All of a snapshot as one JSON object: stacks, frames and texts once each, events and blocks with the numbers of their
//! stacks.
//!
//! It is written piece by piece: a long trace is never there as a whole.

use std::io::{self, Write};

use highwater::history::inspect::{frame_text, site_text};
use highwater::history::read::{Loaded, LoadedDevice, Setting, TextId};
use highwater::history::{Block, BlockState, DeviceNotes, FenceState, Noted, PendingWait, Segment, StackId, Stage};
use serde_json::{Value, json};

use super::super::input::Opened;
use super::super::text;

/// Version of what is written.
const VERSION: u64 = 1;

/// Writes the object.
pub(super) fn write(opened: &Opened, out: &mut dyn Write) -> io::Result<()> {
    let loaded = &opened.loaded;
    write!(out, "{{\"format\":\"highwater snapshot\",\"version\":{VERSION},\"file\":{},", json!(opened.place))?;
    write!(out, "\"protocol\":{},\"notes\":{},", loaded.protocol, json!(text::notes(opened, 0)))?;
    list(out, "stacks", stacks(loaded).into_iter().map(|stack| stack_json(loaded, stack)))?;
    write!(out, ",\"devices\":")?;
    devices(out, loaded, &loaded.devices)?;
    write!(out, ",\"host\":")?;
    devices(out, loaded, &loaded.host)?;
    write!(out, ",\"settings\":{},", settings(loaded))?;
    let name = |mark: &highwater::history::read::LoadedAnnotation| loaded.symbols.text(mark.name).to_owned();
    list(
        out,
        "annotations",
        loaded.annotations.iter().map(|mark| {
            let stage = if mark.stage == Stage::Start { "start" } else { "end" };
            json!({ "name": name(mark), "stage": stage, "device": mark.device, "time_us": mark.time_us })
        }),
    )?;
    write!(out, ",\"recorder\":{}}}", recorder(loaded))?;
    out.write_all(b"\n")
}

/// A key with a list, an item at a time.
fn list(out: &mut dyn Write, key: &str, items: impl Iterator<Item = Value>) -> io::Result<()> {
    write!(out, "\"{key}\":[")?;
    for (index, item) in items.enumerate() {
        write!(out, "{}{item}", if index == 0 { "\n" } else { ",\n" })?;
    }
    write!(out, "]")
}

/// The stacks that something refers to, by number.
pub(super) fn stacks(loaded: &Loaded) -> Vec<StackId> {
    let mut used = Vec::new();
    for device in loaded.devices.iter().chain(&loaded.host) {
        used.extend_from_slice(device.trace.stacks());
        for segment in &device.segments {
            used.push(segment.stack);
            used.extend(segment.blocks.iter().map(|block| block.stack));
        }
        if let Some(notes) = &device.notes {
            used.extend(notes.stream_uses.iter().map(|note| note.stack));
            used.extend(notes.pending_frees.iter().map(|note| note.stack));
            used.extend(notes.rungs.iter().map(|note| note.stack));
            used.extend(notes.stalls.iter().map(|note| note.stack));
            used.extend(notes.waits_inserted.iter().map(|note| note.stack));
            used.extend(notes.awaited.iter().map(|note| note.stack));
            used.extend(notes.device_memory.iter().map(|note| note.stack));
            used.extend(notes.processes.iter().map(|note| note.stack));
        }
    }
    used.sort_unstable();
    used.dedup();
    used
}

fn stack_json(loaded: &Loaded, stack: StackId) -> Value {
    let frames: Vec<_> = loaded.symbols.stack(stack).map(|frame| frame_text(loaded, frame)).collect();
    let site = (!frames.is_empty()).then(|| site_text(loaded, stack, 0));
    json!({ "stack": stack.index(), "site": site, "frames": frames })
}

fn devices(out: &mut dyn Write, loaded: &Loaded, devices: &[LoadedDevice]) -> io::Result<()> {
    write!(out, "[")?;
    for (index, device) in devices.iter().enumerate() {
        write!(out, "{}{{\"device\":{index},", if index == 0 { "\n" } else { ",\n" })?;
        list(out, "segments", device.segments.iter().map(segment))?;
        write!(out, ",")?;
        list(out, "events", (0..device.trace.len()).map(|row| event(loaded, device, row)))?;
        write!(out, ",\"recorded\":{}}}", device.notes.as_ref().map_or(Value::Null, notes))?;
    }
    write!(out, "]")
}

fn segment(segment: &Segment) -> Value {
    json!({
        "address": segment.address,
        "bytes": segment.total_bytes,
        "allocated_bytes": segment.allocated_bytes,
        "active_bytes": segment.active_bytes,
        "requested_bytes": segment.requested_bytes,
        "stream": segment.stream,
        "kind": text::kind(segment.kind),
        "pool": [segment.pool.0, segment.pool.1],
        "expandable": segment.expandable,
        "stack": segment.stack.index(),
        "blocks": segment.blocks.iter().map(block).collect::<Vec<_>>(),
    })
}

fn block(block: &Block) -> Value {
    json!({
        "address": block.address,
        "bytes": block.bytes,
        "requested_bytes": block.requested_bytes,
        "state": state(block.state),
        "stack": block.stack.index(),
    })
}

/// What a block is.
pub(super) fn state(state: BlockState) -> &'static str {
    match state {
        BlockState::Allocated => "allocated",
        BlockState::PendingFree => "pending",
        BlockState::Inactive => "free",
    }
}

/// An event. Keys that few events have are left out where they say nothing.
fn event(loaded: &Loaded, device: &LoadedDevice, row: usize) -> Value {
    let (trace, event) = (&device.trace, device.trace.event(row));
    let text = |id: TextId| Value::from(loaded.symbols.text(id));
    let mut object = json!({
        "action": text(event.action.text()),
        "address": event.address,
        "bytes": event.bytes,
        "stream": event.stream,
        "time_us": event.time_us,
        "stack": event.stack.index(),
    });
    let pool = Some(trace.pool(row)).filter(|&pool| pool != (0, 0));
    let few = [
        ("pool", pool.map(|pool| json!([pool.0, pool.1]))),
        ("rounded_bytes", trace.rounded_bytes(row).map(Value::from)),
        ("device_free_bytes", trace.device_free_bytes(row).map(Value::from)),
        ("span", Some(trace.span(row)).filter(|&span| span != 0).map(Value::from)),
        ("compile_context", trace.compile_context(row).map(text)),
        ("user_metadata", trace.user_metadata(row).map(text)),
        ("internal_metadata", trace.internal_metadata(row).map(text)),
        ("category", trace.category(row).map(text)),
    ];
    for (key, value) in few {
        if let Some(value) = value {
            object[key] = value;
        }
    }
    object
}

fn notes(notes: &DeviceNotes) -> Value {
    fn noted<T>(notes: &[Noted<T>], fact: impl Fn(&T) -> Value) -> Value {
        let told = notes.iter().map(|note| {
            let mut object = fact(&note.fact);
            object["time_us"] = note.time_us.into();
            object["stack"] = note.stack.index().into();
            object["span"] = note.span.into();
            object
        });
        told.collect()
    }
    let wait = |wait: &PendingWait| {
        json!({
            "address": wait.address,
            "stream": wait.stream,
            "position": wait.position,
            "fence": wait.fence.map(FenceState::name),
            "held_by": wait.held_by,
        })
    };
    let streams =
        notes.streams.iter().map(|stream| json!({ "stream": stream.stream, "name": stream.name, "open": stream.open }));
    json!({
        "name": notes.name,
        "capacity_bytes": notes.capacity_bytes,
        "other_bytes": notes.other_bytes,
        "limit_bytes": notes.limit_bytes,
        "granularity_bytes": notes.granularity_bytes,
        "history_capacity_bytes": notes.history_capacity_bytes,
        "history_dropped": notes.history_dropped,
        "streams": streams.collect::<Vec<_>>(),
        "pending_waits": notes.pending_waits.iter().map(wait).collect::<Vec<_>>(),
        "stream_uses": noted(&notes.stream_uses, |fact| {
            json!({ "address": fact.address, "stream": fact.stream, "exact": fact.exact })
        }),
        "pending_frees": noted(&notes.pending_frees, |fact| {
            json!({ "address": fact.address, "stream": fact.stream, "waits": fact.waits })
        }),
        "rungs": noted(&notes.rungs, |fact| {
            json!({ "rung": fact.rung.name(), "bytes": fact.bytes, "stream": fact.stream })
        }),
        "stalls": noted(&notes.stalls, |fact| json!({ "stream": fact.stream, "stall_ns": fact.stall_ns })),
        "waits_inserted": noted(&notes.waits_inserted, |fact| {
            json!({ "stream": fact.stream, "for_stream": fact.for_stream })
        }),
        "awaited": noted(&notes.awaited, wait),
        "device_memory": noted(&notes.device_memory, |fact| {
            json!({
                "total_bytes": fact.total_bytes,
                "free_bytes": fact.free_bytes,
                "held_bytes": fact.held_bytes,
            })
        }),
        "processes": noted(&notes.processes, |fact| {
            json!({ "pid": fact.pid, "bytes": fact.bytes, "own": fact.is_own })
        }),
    })
}

/// A setting as JSON has it.
pub(super) fn setting(loaded: &Loaded, value: &Setting) -> Value {
    let text = |id| loaded.symbols.text(id);
    match value {
        Setting::Bool(value) => (*value).into(),
        Setting::Int(value) => (*value).into(),
        Setting::Float(value) => (*value).into(),
        Setting::Text(value) => text(*value).into(),
        Setting::Map(map) => map.iter().map(|&(key, value)| (text(key).to_owned(), Value::from(value))).collect(),
        _ => Value::Null,
    }
}

fn settings(loaded: &Loaded) -> Value {
    let pairs = loaded.settings.iter();
    pairs.map(|(key, value)| (loaded.symbols.text(*key).to_owned(), setting(loaded, value))).collect()
}

fn recorder(loaded: &Loaded) -> Value {
    let text = |id| loaded.symbols.text(id);
    let Some(recorder) = &loaded.recorder else { return Value::Null };
    let settings: serde_json::Map<_, _> =
        recorder.settings.iter().map(|&(key, value)| (text(key).to_owned(), text(value).into())).collect();
    json!({
        "version": recorder.version,
        "writer": text(recorder.writer),
        "settings": settings,
        "span_paths": recorder.span_paths.iter().map(|&path| text(path)).collect::<Vec<_>>(),
    })
}
