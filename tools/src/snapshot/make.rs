//! `highwater snapshot slice` and `repair`: snapshots made of snapshots.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use highwater::history::inspect::{self, Repaired, row};
use highwater::history::read::Loaded;
use highwater::history::viewer;
use serde_json::json;

use crate::failure::{Failure, InputError};
use crate::input::is_standard;

use super::arguments::{RepairArgs, SliceArgs};
use super::input::{not_over, open};
use super::{Told, style, text};

/// Writes a part.
pub(super) fn slice(arguments: &SliceArgs) -> Result<(), Failure> {
    check_out(&arguments.out, &arguments.file)?;
    let opened = open(&arguments.file)?;
    let device = opened.device(arguments.device)?;
    let no_moment = |error| opened.no_moment(&error);
    let of = |when| row(&opened.loaded, device, when).map_err(no_moment);
    let (from, to) = (of(&arguments.from)?, of(&arguments.to)?);
    if to < from {
        return Err(InputError::Backwards { from, to }.into());
    }
    let part = inspect::slice(&opened.loaded, device, &arguments.from, &arguments.to).map_err(no_moment)?;
    let opens = save(&part, &arguments.out)?;
    let events = part.events();
    let mut words = format!("{}: events {from} to {to} of device {device}", arguments.out.display());
    if events != to - from {
        let _ = write!(words, ", {events} with those of other devices");
    }
    words.push('\n');
    let mut notes = text::notes(&opened, 0);
    notes.extend(opens);
    text::tell_notes(&mut words, &notes, style());
    let json = json!({
        "file": opened.place,
        "out": arguments.out.display().to_string(),
        "device": device,
        "from": from,
        "to": to,
        "events": events,
        "notes": notes,
    });
    Told { text: words, json }.print(arguments.json)
}

/// Writes what is good of a file.
pub(super) fn repair(arguments: &RepairArgs) -> Result<(), Failure> {
    check_out(&arguments.out, &arguments.file)?;
    let (place, file) = (crate::input::place(&arguments.file), crate::input::as_it_is(&arguments.file)?);
    let unknown: u64 = file.unknown_keys.values().sum();
    let Repaired { loaded, cut, damage, .. } = inspect::repair(file);
    let opens = save(&loaded, &arguments.out)?;
    let segments: usize = loaded.devices.iter().map(|device| device.segments.len()).sum();
    let out = arguments.out.display();
    let mut words = format!(
        "{out}: {}, {}\n",
        text::count(loaded.events() as u64, "event"),
        text::count(segments as u64, "segment")
    );
    let mut notes = Vec::new();
    if let Some(damage) = &damage {
        notes.push(format!("what comes after this is lost: {damage}"));
    }
    if let Some(device) = cut {
        notes.push(format!("the segments of device {device} are those where its trace ends now"));
    }
    if unknown > 0 {
        notes.push(format!("{unknown} keys that are not known were left out"));
    }
    notes.extend(opens);
    text::tell_notes(&mut words, &notes, style());
    let json = json!({
        "file": place,
        "out": out.to_string(),
        "events": loaded.events(),
        "segments": segments,
        "damage": damage.map(|damage| damage.to_string()),
        "cut_device": cut,
        "unknown_keys": unknown,
        "notes": notes,
    });
    Told { text: words, json }.print(arguments.json)
}

/// Refuses stdout, which cannot be looked at, and the file that is read.
fn check_out(out: &Path, file: &Path) -> Result<(), Failure> {
    if is_standard(out) {
        return Err(InputError::NeedsAFile { format: "a snapshot" }.into());
    }
    not_over(out, file)
}

/// Saves a snapshot and looks at it as the viewer would. What the viewer does not like about it, if anything.
fn save(snapshot: &Loaded, path: &Path) -> Result<Option<String>, Failure> {
    snapshot.save(path).map_err(|error| Failure::write(path, error.source))?;
    let written = fs::read(path).map_err(|error| Failure::write(path, error))?;
    Ok(viewer::check(&written).err().map(|error| format!("the viewer does not open it: {error}")))
}
