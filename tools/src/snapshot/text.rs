//! Words and lines that several answers have.

use std::fmt::Write;

use highwater::history::SegmentKind;
use highwater::history::inspect::{At, SiteBytes, Sums, size};
use serde_json::{Value, json};

use crate::why::text::Style;

use super::input::Opened;

/// A duration for people: `1.234 s`, `5.6 ms`, `7 us`.
pub(crate) fn duration(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} us"),
        1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{:.3} s", us as f64 / 1e6),
    }
}

/// So many of something: `1 block`, `2 blocks`.
pub(super) fn count(number: u64, one: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {one}s") }
}

/// The moment that is looked at.
pub(super) fn moment(opened: &Opened, at: &At<'_>) -> String {
    let events = opened.loaded.devices[at.device()].trace.len();
    let row = at.row();
    let place = if row == events {
        format!("the end, after {}", count(events as u64, "event"))
    } else {
        format!("before event {row}")
    };
    let time = at.since_start_us().map_or(String::new(), |us| format!(", {} after the first", duration(us)));
    format!("{}: device {}, {place}{time}", opened.place, at.device())
}

/// Where the bytes are, on one line.
pub(super) fn sums(sums: &Sums) -> String {
    format!(
        "{} live in {}, {} rounding, {} pending in {}, {} cached; {} reserved in {}",
        size(sums.live_bytes),
        count(sums.live_blocks, "block"),
        size(sums.rounding_bytes),
        size(sums.pending_bytes),
        sums.pending_blocks,
        size(sums.cached_bytes),
        size(sums.reserved_bytes),
        count(sums.segments, "segment")
    )
}

/// A line for a site.
pub(super) fn site(text: &mut String, site: &SiteBytes) {
    let phase = site.phase.map_or(String::new(), |phase| format!("  [{phase}]"));
    let _ = writeln!(text, "    {:>12} {:>14}  {}{phase}", size(site.bytes), count(site.blocks, "block"), site.site);
}

/// A pool, where it is not the common one.
pub(super) fn pool(pool: (u64, u64)) -> String {
    if pool == (0, 0) { String::new() } else { format!(", pool ({}, {})", pool.0, pool.1) }
}

/// What a segment serves.
pub(super) fn kind(kind: SegmentKind) -> &'static str {
    match kind {
        SegmentKind::Large => "large",
        SegmentKind::Small => "small",
    }
}

/// What is wrong with the evidence.
pub(super) fn notes(opened: &Opened, faults: u64) -> Vec<String> {
    let damage = opened.loaded.damage.as_ref();
    let damage = damage.map(|damage| format!("the file is damaged, and was read as far as it goes: {damage}"));
    let faults = (faults > 0)
        .then(|| format!("{faults} events or blocks fit nothing that was there; sums may be off by theirs"));
    damage.into_iter().chain(faults).collect()
}

/// Notes for people.
pub(super) fn tell_notes(text: &mut String, notes: &[String], style: Style) {
    for note in notes {
        let _ = writeln!(text, "{}", style.faint(&format!("note: {note}")));
    }
}

/// Where the bytes are, for machines.
pub(super) fn sums_json(sums: &Sums) -> Value {
    json!({
        "live_bytes": sums.live_bytes,
        "rounding_bytes": sums.rounding_bytes,
        "pending_bytes": sums.pending_bytes,
        "cached_bytes": sums.cached_bytes,
        "reserved_bytes": sums.reserved_bytes,
        "live_blocks": sums.live_blocks,
        "pending_blocks": sums.pending_blocks,
        "segments": sums.segments,
    })
}

/// An object about a moment, for machines.
pub(super) fn moment_json(opened: &Opened, at: &At<'_>) -> Value {
    json!({
        "file": opened.place,
        "device": at.device(),
        "event": at.row(),
        "since_start_us": at.since_start_us(),
        "memory": sums_json(&at.sums()),
        "notes": notes(opened, at.faults()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit_that_fits() {
        let told = [999, 1_000, 59_949, 999_999, 1_234_567].map(duration);
        assert_eq!(told, ["999 us", "1.0 ms", "59.9 ms", "1000.0 ms", "1.235 s"]);
    }
}
