//! A snapshot, read and explained: what `view` and `tui` show.

use std::path::Path;

use highwater::history::read::Loaded;
use highwater::history::why::{Options, Verdict, explain};

use crate::failure::Failure;
use crate::input;

/// A snapshot with its verdicts.
#[derive(Debug)]
pub(crate) struct Opened {
    /// What it is called.
    pub(crate) place: String,
    /// What it says.
    pub(crate) loaded: Loaded,
    /// A verdict for each device that is in use, the one to look at first in front; never empty.
    pub(crate) verdicts: Vec<Verdict>,
}

/// Reads the snapshot at a path, or from stdin if the path is `-`. One that is damaged is read as far as it goes.
///
/// # Errors
/// When it cannot be read, is no snapshot, or holds neither events nor memory.
pub(crate) fn open(path: &Path, capacity_bytes: Option<u64>) -> Result<Opened, Failure> {
    let (place, loaded) = (input::place(path), input::snapshot(path)?);
    let mut options = Options::default();
    options.capacity_bytes = capacity_bytes;
    options.top = 10;
    let verdicts = explain(&loaded, &options);
    if verdicts.is_empty() {
        return Err(input::nothing_in(&place).into());
    }
    Ok(Opened { place, loaded, verdicts })
}
