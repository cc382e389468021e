//! `highwater snapshot check`: whether the viewer opens a file, and what it would stumble over.

use std::fmt::Write;

use highwater::history::read::Compression;
use highwater::history::viewer::{self, ViewerSummary, Violations};
use serde_json::{Value, json};

use crate::failure::Failure;

use super::arguments::CheckArgs;
use super::{Told, input, style, text};

/// Checks each file.
///
/// # Errors
/// When a file is no pickle, or one does not open.
pub(super) fn run(arguments: &CheckArgs) -> Result<(), Failure> {
    let mut wrong = 0;
    for path in &arguments.files {
        let (place, file) = (crate::input::place(path), crate::input::bytes(path)?);
        let pickle = input::pickle(path, &file)?;
        let found = viewer::check_all(&pickle);
        wrong += usize::from(found.is_err());
        let packed = Compression::of(&file);
        Told { text: words(&place, &found, packed), json: json_of(&place, &found, packed) }.print(arguments.json)?;
    }
    match wrong {
        0 => Ok(()),
        _ => Err(Failure::NotViewable { wrong, files: arguments.files.len() }),
    }
}

fn words(place: &str, found: &Result<ViewerSummary, Violations>, packed: Option<Compression>) -> String {
    let mut out = String::new();
    match found {
        Ok(summary) => {
            let _ = writeln!(
                out,
                "{place}: opens; of {} it shows {} and {}",
                text::count(summary.devices as u64, "device"),
                text::count(summary.events as u64, "event"),
                text::count(summary.segments as u64, "segment")
            );
            if summary.ignored_segments > 0 {
                let _ = writeln!(
                    out,
                    "{place}: {} segments of no device that has a trace are left out",
                    summary.ignored_segments
                );
            }
        }
        Err(violations) => {
            for violation in &violations.list {
                let _ = writeln!(out, "{place}: {violation}");
            }
            if violations.more > 0 {
                let _ = writeln!(out, "{place}: and {} more", violations.more);
            }
        }
    }
    if packed.is_some() {
        text::tell_notes(
            &mut out,
            &[format!("{place} has to be unpacked first: the viewer does not do that")],
            style(),
        );
    }
    out
}

fn json_of(place: &str, found: &Result<ViewerSummary, Violations>, packed: Option<Compression>) -> Value {
    let violations = found.as_ref().err();
    let lines = violations.iter().flat_map(|violations| &violations.list).map(ToString::to_string);
    let summary = found.as_ref().ok();
    json!({
        "file": place,
        "opens": found.is_ok(),
        "compression": packed.map(|packed| format!("{packed:?}").to_lowercase()),
        "violations": lines.collect::<Vec<_>>(),
        "more": violations.map_or(0, |violations| violations.more),
        "events": summary.map(|summary| summary.events),
        "segments": summary.map(|summary| summary.segments),
        "devices": summary.map(|summary| summary.devices),
        "ignored_segments": summary.map(|summary| summary.ignored_segments),
    })
}
