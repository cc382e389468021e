//! `highwater snapshot`: what memory was when, what waits, what differs; parts, repairs, checks and other formats.

mod arguments;
mod at;
mod check;
mod diff;
mod export;
mod frag;
mod growth;
mod input;
mod make;
mod pending;
mod summary;
pub(crate) mod text;

use serde_json::Value;

pub(crate) use arguments::SnapshotArgs;

use arguments::SnapshotWhat;

use crate::failure::Failure;
use crate::output;
use crate::why::is_colourful;
use crate::why::text::Style;

/// Does what is asked for.
///
/// # Errors
/// When a file is no snapshot, has not what is asked for, or the result cannot be written.
pub(crate) fn run(arguments: &SnapshotArgs) -> Result<(), Failure> {
    match &arguments.what {
        SnapshotWhat::Summary(arguments) => summary::run(arguments),
        SnapshotWhat::At(arguments) => at::run(arguments),
        SnapshotWhat::Growth(arguments) => growth::run(arguments),
        SnapshotWhat::Pending(arguments) => pending::run(arguments),
        SnapshotWhat::Frag(arguments) => frag::run(arguments),
        SnapshotWhat::Diff(arguments) => diff::run(arguments),
        SnapshotWhat::Slice(arguments) => make::slice(arguments),
        SnapshotWhat::Repair(arguments) => make::repair(arguments),
        SnapshotWhat::Check(arguments) => check::run(arguments),
        SnapshotWhat::Export(arguments) => export::run(arguments),
    }
}

/// What is said about a file: for people, and for machines.
struct Told {
    text: String,
    json: Value,
}

impl Told {
    fn print(&self, json: bool) -> Result<(), Failure> {
        let text = if json { &format!("{}\n", self.json) } else { &self.text };
        output::print(text).map_err(Failure::Print)
    }
}

/// Colours for people at a terminal.
fn style() -> Style {
    Style { color: is_colourful(), growth: true }
}
