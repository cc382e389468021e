//! `highwater snapshot summary`: what files hold.

use std::fmt::Write;

use highwater::history::inspect::{DeviceSummary, StreamSummary, Summary, size, summary};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::why::json::site as site_json;
use crate::why::text::Style;

use super::arguments::SummaryArgs;
use super::input::{Opened, open};
use super::{Told, style, text};

/// Tells each file.
pub(super) fn run(arguments: &SummaryArgs) -> Result<(), Failure> {
    for path in &arguments.files {
        let opened = open(path)?;
        let summary = summary(&opened.loaded, arguments.top.into());
        let told = Told { text: words(&opened, &summary, style()), json: json_of(&opened, &summary) };
        told.print(arguments.json)?;
    }
    Ok(())
}

fn words(opened: &Opened, summary: &Summary, style: Style) -> String {
    let mut out = String::new();
    let by = summary.writer.as_ref().map_or(String::new(), |writer| format!(" by {writer}"));
    let packed = summary.compression.map_or(String::new(), |packed| format!(", {packed:?}").to_lowercase());
    let format = match summary.protocol {
        0 => "JSON".to_owned(),
        protocol => format!("pickle protocol {protocol}"),
    };
    let head = format!("{}: {format}{packed}{by}", opened.place);
    let _ = writeln!(out, "{}", style.strong(&head));
    if summary.annotations > 0 {
        let _ = writeln!(out, "{} of the program on the time line", text::count(summary.annotations, "mark"));
    }
    for (part, key, count) in &summary.unknown_keys {
        let part = format!("{part:?}").to_lowercase();
        let _ = writeln!(
            out,
            "{}",
            style.faint(&format!("note: {part} key {key:?} is not known, and left out {count} times"))
        );
    }
    for device in &summary.devices {
        tell(&mut out, "device", device, style);
    }
    for device in &summary.host {
        tell(&mut out, "pinned host memory for device", device, style);
    }
    if summary.devices.is_empty() && summary.host.is_empty() {
        let _ = writeln!(out, "neither events nor memory: was recording on?");
    }
    text::tell_notes(&mut out, &text::notes(opened, 0), style);
    out
}

fn tell(out: &mut String, what: &str, device: &DeviceSummary, style: Style) {
    let name = device.name.as_ref().map_or(String::new(), |name| format!(" ({name})"));
    let capacity = device.capacity_bytes.map_or(String::new(), |bytes| format!(", {}", size(bytes)));
    let _ = writeln!(out, "\n{}", style.strong(&format!("{what} {}{name}{capacity}", device.device)));
    let span = device
        .span_us
        .map_or(String::new(), |(first, last)| format!(", from {} to {}", text::duration(first), text::duration(last)));
    let dropped = device.dropped.filter(|&dropped| dropped > 0);
    let dropped = dropped.map_or(String::new(), |dropped| format!("; {dropped} older ones were dropped"));
    let _ = writeln!(out, "    {}{span}{dropped}", text::count(device.events, "event"));
    for (kind, count) in &device.events_by_kind {
        let _ = writeln!(out, "    {count:>12}  {kind}");
    }
    if device.events > 0 {
        let _ = writeln!(
            out,
            "    peak: {} in use before event {}; at most {} reserved",
            size(device.peak_bytes),
            device.peak_event,
            size(device.peak_reserved_bytes)
        );
    }
    let _ = writeln!(out, "    at the end: {}", text::sums(&device.end));
    if device.streams.len() > 1 {
        let _ = writeln!(out, "  {}", style.strong("By stream and pool, at the end"));
        for stream in &device.streams {
            let _ = writeln!(
                out,
                "    {:>12} reserved, {:>12} live, {:>12} pending, {:>12} cached  {}{}, {}",
                size(stream.sums.reserved_bytes),
                size(stream.sums.live_bytes),
                size(stream.sums.pending_bytes),
                size(stream.sums.cached_bytes),
                stream.stream,
                text::pool(stream.pool),
                text::count(stream.allocations, "allocation")
            );
        }
    }
    if !device.top_stacks.is_empty() {
        let _ = writeln!(out, "  {}", style.strong("The most live memory, at the end"));
        device.top_stacks.iter().for_each(|site| text::site(out, site));
    }
}

fn json_of(opened: &Opened, summary: &Summary) -> Value {
    let unknown = summary.unknown_keys.iter();
    let unknown = unknown
        .map(|(part, key, count)| json!({ "part": format!("{part:?}").to_lowercase(), "key": key, "count": count }));
    json!({
        "file": opened.place,
        "protocol": summary.protocol,
        "compression": summary.compression.map(|packed| format!("{packed:?}").to_lowercase()),
        "writer": summary.writer,
        "annotations": summary.annotations,
        "unknown_keys": unknown.collect::<Vec<_>>(),
        "damage": summary.damage,
        "devices": summary.devices.iter().map(device_json).collect::<Vec<_>>(),
        "host": summary.host.iter().map(device_json).collect::<Vec<_>>(),
    })
}

fn device_json(device: &DeviceSummary) -> Value {
    let kinds: serde_json::Map<_, _> =
        device.events_by_kind.iter().map(|(kind, count)| (kind.clone(), (*count).into())).collect();
    json!({
        "device": device.device,
        "name": device.name,
        "capacity_bytes": device.capacity_bytes,
        "events": device.events,
        "events_by_kind": kinds,
        "first_us": device.span_us.map(|span| span.0),
        "last_us": device.span_us.map(|span| span.1),
        "dropped": device.dropped,
        "memory": text::sums_json(&device.end),
        "peak_bytes": device.peak_bytes,
        "peak_event": device.peak_event,
        "peak_reserved_bytes": device.peak_reserved_bytes,
        "streams": device.streams.iter().map(stream_json).collect::<Vec<_>>(),
        "top_stacks": device.top_stacks.iter().map(site_json).collect::<Vec<_>>(),
    })
}

fn stream_json(stream: &StreamSummary) -> Value {
    json!({
        "stream": stream.stream,
        "pool": [stream.pool.0, stream.pool.1],
        "memory": text::sums_json(&stream.sums),
        "small_bytes": stream.small_bytes,
        "allocations": stream.allocations,
    })
}
