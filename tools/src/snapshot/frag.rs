//! `highwater snapshot frag`: what keeps free memory in pieces.

use std::fmt::Write;

use highwater::history::inspect::{At, Domain, Fragmentation, FreeRun, Pin, PinnedBy, When, size};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::why::json::site as site_json;

use super::arguments::MomentArgs;
use super::input::{Opened, open};
use super::{Told, style, text};

/// Tells each file.
pub(super) fn run(arguments: &MomentArgs) -> Result<(), Failure> {
    let when = arguments.at.clone().unwrap_or(When::FailureOrEnd);
    for path in &arguments.files {
        let opened = open(path)?;
        let at = opened.at(arguments.device, &when)?;
        let found = at.fragmentation(arguments.top.into());
        let mut json = text::moment_json(&opened, &at);
        json["domains"] = found.domains.iter().map(domain_json).collect();
        json["largest_runs"] = found.largest_runs.iter().map(run_json).collect();
        json["pins"] = found.pins.iter().map(pin_json).collect();
        json["pinned_by"] = found.pinned_by.iter().map(by_json).collect();
        Told { text: words(&opened, &at, &found), json }.print(arguments.json)?;
    }
    Ok(())
}

fn words(opened: &Opened, at: &At<'_>, found: &Fragmentation) -> String {
    let style = style();
    let mut out = format!("{}\n{}\n", style.strong(&text::moment(opened, at)), text::sums(&at.sums()));
    let _ = writeln!(out, "\n{}", style.strong("By pool, stream and size of requests"));
    found.domains.iter().for_each(|domain| tell_domain(&mut out, domain));
    if !found.largest_runs.is_empty() {
        let _ = writeln!(out, "\n{}", style.strong("The largest free runs"));
        found.largest_runs.iter().for_each(|run| tell_run(&mut out, run));
    }
    if found.pins.is_empty() {
        let _ = writeln!(out, "\nNo block keeps more than itself from being returned, alone.");
    } else {
        let _ = writeln!(
            out,
            "\n{}",
            style.strong("Blocks that keep free memory from being returned: if one goes, that comes free")
        );
        found.pins.iter().for_each(|pin| tell_pin(&mut out, pin));
    }
    if !found.pinned_by.is_empty() {
        let _ = writeln!(out, "\n{}", style.strong("The same by stack: if all of its blocks go"));
        for by in &found.pinned_by {
            let (freed, kept, held) = (size(by.freed_bytes), size(by.kept_bytes), size(by.site.bytes));
            let _ = writeln!(
                out,
                "    {freed:>12} come free, {kept} of it unused; {held} in {}  {}",
                text::count(by.site.blocks, "block"),
                by.site.site
            );
        }
    }
    text::tell_notes(&mut out, &text::notes(opened, at.faults()), style);
    out
}

fn tell_domain(out: &mut String, domain: &Domain) {
    let _ = writeln!(
        out,
        "    {:>12} reserved in {}  {}{}, {}",
        size(domain.reserved_bytes),
        text::count(domain.segments, "segment"),
        domain.stream,
        text::pool(domain.pool),
        text::kind(domain.kind)
    );
    let _ = writeln!(
        out,
        "                 {} used, {} pending, {} free in {}, the largest {}; {} of it could be returned",
        size(domain.used_bytes),
        size(domain.pending_bytes),
        size(domain.free_bytes),
        text::count(domain.runs, "run"),
        size(domain.largest_run_bytes),
        size(domain.empty_bytes)
    );
}

fn tell_run(out: &mut String, run: &FreeRun) {
    let side = |site: &Option<String>, border: &str| site.clone().unwrap_or_else(|| border.to_owned());
    let _ = writeln!(
        out,
        "    {:>12} at {:#x} of a segment of {}, {}{}; between {} and {}",
        size(run.bytes),
        run.address,
        size(run.segment_bytes),
        run.stream,
        text::pool(run.pool),
        side(&run.before, "its start"),
        side(&run.after, "its end")
    );
}

fn tell_pin(out: &mut String, pin: &Pin) {
    let waits = if pin.is_pending { ", freed and waiting" } else { "" };
    let _ = writeln!(
        out,
        "    {:>12} come free, {} of it unused; a block of {} at {:#x}{waits} in a segment of {}, {}{}",
        size(pin.freed_bytes),
        size(pin.kept_bytes),
        size(pin.site.bytes),
        pin.address,
        size(pin.segment_bytes),
        pin.stream,
        text::pool(pin.pool)
    );
    let _ = writeln!(out, "                 {}", pin.site.site);
}

fn domain_json(domain: &Domain) -> Value {
    json!({
        "pool": [domain.pool.0, domain.pool.1],
        "stream": domain.stream,
        "kind": text::kind(domain.kind),
        "segments": domain.segments,
        "reserved_bytes": domain.reserved_bytes,
        "used_bytes": domain.used_bytes,
        "pending_bytes": domain.pending_bytes,
        "free_bytes": domain.free_bytes,
        "runs": domain.runs,
        "largest_run_bytes": domain.largest_run_bytes,
        "empty_bytes": domain.empty_bytes,
        "page_bytes": domain.page_bytes,
    })
}

fn run_json(run: &FreeRun) -> Value {
    json!({
        "address": run.address,
        "bytes": run.bytes,
        "stream": run.stream,
        "pool": [run.pool.0, run.pool.1],
        "segment_bytes": run.segment_bytes,
        "before": run.before,
        "after": run.after,
    })
}

fn pin_json(pin: &Pin) -> Value {
    json!({
        "address": pin.address,
        "bytes": pin.site.bytes,
        "site": site_json(&pin.site),
        "is_pending": pin.is_pending,
        "stream": pin.stream,
        "pool": [pin.pool.0, pin.pool.1],
        "segment_address": pin.segment_address,
        "segment_bytes": pin.segment_bytes,
        "freed_bytes": pin.freed_bytes,
        "kept_bytes": pin.kept_bytes,
        "run_bytes": pin.run_bytes,
    })
}

fn by_json(by: &PinnedBy) -> Value {
    json!({ "site": site_json(&by.site), "freed_bytes": by.freed_bytes, "kept_bytes": by.kept_bytes })
}
