//! A snapshot, read and explained: what `view` and `tui` show.

use std::fs;
use std::io::Read;
use std::path::Path;

use highwater::history::read::{self, Loaded};
use highwater::history::why::{Options, Verdict, explain};

use crate::failure::{Failure, InputError};

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
    let unreadable =
        |error: std::io::Error| InputError::Unreadable { path: path.to_owned(), reason: error.to_string() };
    let bytes = if path.as_os_str() == "-" {
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        fs::read(path)
    };
    let wrong = |reason: String| InputError::Snapshot { path: path.to_owned(), reason };
    let options = read::Options::default().salvaging();
    let loaded = read::read(&bytes.map_err(unreadable)?, &options).map_err(|error| wrong(error.to_string()))?;
    let mut options = Options::default();
    options.capacity_bytes = capacity_bytes;
    options.top = 10;
    let verdicts = explain(&loaded, &options);
    if verdicts.is_empty() {
        return Err(wrong("the snapshot has neither events nor memory: was recording on?".to_owned()).into());
    }
    let place = if path.as_os_str() == "-" { "stdin".into() } else { path.display().to_string() };
    Ok(Opened { place, loaded, verdicts })
}
