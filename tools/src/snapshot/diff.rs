//! `highwater snapshot diff`: the live memory of two snapshots, stack by stack.

use std::fmt::Write;

use highwater::history::inspect::{At, Change, ChangeKind, Diff, diff, size};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::why::json::site as site_json;

use super::arguments::DiffArgs;
use super::input::{Opened, open};
use super::{Told, style, text};

/// Tells how the second differs from the first.
pub(super) fn run(arguments: &DiffArgs) -> Result<(), Failure> {
    let (first, second) = (open(&arguments.first)?, open(&arguments.second)?);
    let (before, after) = (first.at(arguments.device, &arguments.at)?, second.at(arguments.device, &arguments.at)?);
    let found = diff(&before, &after);
    let json = json!({
        "before": text::moment_json(&first, &before),
        "after": text::moment_json(&second, &after),
        "changes": found.changes.iter().take(usize::from(arguments.top)).map(change_json).collect::<Vec<_>>(),
        "left_out": found.changes.len().saturating_sub(usize::from(arguments.top)),
        "alike": found.alike,
    });
    let sides = [(&first, &before), (&second, &after)];
    Told { text: words(sides, &found, arguments.top.into()), json }.print(arguments.json)
}

fn name(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Added => "added",
        ChangeKind::Grown => "grown",
        ChangeKind::Shrunk => "shrunk",
        ChangeKind::Gone => "gone",
        _ => "changed",
    }
}

/// A difference with its sign.
fn signed(before: u64, after: u64) -> String {
    let sign = if after < before { '-' } else { '+' };
    format!("{sign}{}", size(after.abs_diff(before)))
}

fn words(sides: [(&Opened, &At<'_>); 2], found: &Diff, top: usize) -> String {
    let style = style();
    let mut out = String::new();
    for (opened, at) in sides {
        let _ = writeln!(out, "{}\n    {}", style.strong(&text::moment(opened, at)), text::sums(&at.sums()));
    }
    let all = signed(found.before.live_bytes, found.after.live_bytes);
    let _ = writeln!(out, "\n{all} live; {} stacks differ, {} are alike", found.changes.len(), found.alike);
    for change in found.changes.iter().take(top) {
        let &Change { bytes_before, bytes_after, blocks_before, blocks_after, .. } = change;
        let phase = change.site.phase.map_or(String::new(), |phase| format!("  [{phase}]"));
        let _ = writeln!(
            out,
            "    {:>12}  {:<6}  {} in {blocks_before} -> {} in {blocks_after}  {}{phase}",
            signed(bytes_before, bytes_after),
            name(change.kind),
            size(bytes_before),
            size(bytes_after),
            change.site.site
        );
    }
    if found.changes.len() > top {
        let _ =
            writeln!(out, "{}", style.faint(&format!("    and {} more; --top shows them", found.changes.len() - top)));
    }
    for (opened, at) in sides {
        text::tell_notes(&mut out, &text::notes(opened, at.faults()), style);
    }
    out
}

fn change_json(change: &Change) -> Value {
    json!({
        "change": name(change.kind),
        "site": site_json(&change.site),
        "bytes_before": change.bytes_before,
        "bytes_after": change.bytes_after,
        "blocks_before": change.blocks_before,
        "blocks_after": change.blocks_after,
    })
}
