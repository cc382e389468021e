//! `highwater snapshot pending`: memory that was freed and waits.

use std::fmt::Write;

use highwater::history::inspect::{At, Pending, PendingGroup, When, size};
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
        let pending = at.pending();
        let mut json = text::moment_json(&opened, &at);
        json["pending_bytes"] = pending.bytes.into();
        json["pending_blocks"] = pending.blocks.into();
        json["is_known"] = pending.is_known.into();
        json["groups"] = pending.groups.iter().take(usize::from(arguments.top)).map(group_json).collect();
        Told { text: words(&opened, &at, &pending, arguments.top.into()), json }.print(arguments.json)?;
    }
    Ok(())
}

fn words(opened: &Opened, at: &At<'_>, pending: &Pending, top: usize) -> String {
    let style = style();
    let mut out = format!("{}\n", style.strong(&text::moment(opened, at)));
    let _ = match pending.blocks {
        0 if pending.is_known => writeln!(out, "Nothing waits."),
        0 => writeln!(out, "The trace has one event for each free instead of two: it does not say what waits."),
        1 => writeln!(out, "{} in 1 block was freed and waits", size(pending.bytes)),
        blocks => writeln!(out, "{} in {blocks} blocks were freed and wait", size(pending.bytes)),
    };
    for group in pending.groups.iter().take(top) {
        tell(&mut out, group);
    }
    if pending.groups.len() > top {
        let _ = writeln!(
            out,
            "{}",
            style.faint(&format!("    and {} more groups; --top shows them", pending.groups.len() - top))
        );
    }
    if !pending.groups.is_empty() && pending.groups.iter().all(|group| group.waits_for.is_empty()) {
        let note = "who is waited for is not in the file: PyTorch does not record it".to_owned();
        text::tell_notes(&mut out, &[note], style);
    }
    text::tell_notes(&mut out, &text::notes(opened, at.faults()), style);
    out
}

fn tell(out: &mut String, group: &PendingGroup) {
    text::site(out, &group.site);
    let age = match (group.oldest_us, group.newest_us) {
        (Some(oldest), Some(newest)) if oldest != newest => {
            format!(", freed {} to {} ago", text::duration(newest), text::duration(oldest))
        }
        (Some(oldest), _) => format!(", freed {} ago", text::duration(oldest)),
        _ => String::new(),
    };
    let waits = match &group.waits_for[..] {
        [] => String::new(),
        streams => format!(", waits for {}", streams.join(" and ")),
    };
    let _ = writeln!(out, "{:27}belongs to {}{waits}{age}", "", group.owner);
    for event in &group.events {
        let _ = match event.first_position == event.last_position {
            true => writeln!(out, "{:27}until {} has passed position {}", "", event.stream, event.last_position),
            false => writeln!(
                out,
                "{:27}until {} has passed positions {} to {}",
                "", event.stream, event.first_position, event.last_position
            ),
        };
    }
}

fn group_json(group: &PendingGroup) -> Value {
    let events = group.events.iter().map(|event| {
        json!({
            "stream": event.stream,
            "first_position": event.first_position,
            "last_position": event.last_position,
        })
    });
    json!({
        "owner": group.owner,
        "waits_for": group.waits_for,
        "events": events.collect::<Vec<_>>(),
        "site": site_json(&group.site),
        "bytes": group.site.bytes,
        "blocks": group.site.blocks,
        "oldest_us": group.oldest_us,
        "newest_us": group.newest_us,
    })
}
