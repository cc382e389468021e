//! Files that commands are given, plain or compressed, or stdin.

use std::fs;
use std::io::Read;
use std::path::Path;

use highwater::history::inspect::{Repaired, repair};
use highwater::history::read::{self, Loaded, ReadError};

use crate::failure::InputError;

/// Whether a path stands for stdin, or as a place to write to for stdout.
pub(crate) fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// What a path is called.
pub(crate) fn place(path: &Path) -> String {
    if is_standard(path) { "stdin".to_owned() } else { path.display().to_string() }
}

/// The bytes of a file, or of stdin if the path is `-`.
///
/// # Errors
/// When it cannot be read, is a folder, or nothing is in it.
pub(crate) fn bytes(path: &Path) -> Result<Vec<u8>, InputError> {
    if path.is_dir() {
        return Err(InputError::Folder(path.to_owned()));
    }
    let mut bytes = Vec::new();
    let read =
        if is_standard(path) { std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes) } else { fs::read(path) };
    let bytes = read.map_err(|error| InputError::Unreadable { path: place(path).into(), reason: error.to_string() })?;
    if bytes.is_empty() { Err(InputError::Empty { place: place(path) }) } else { Ok(bytes) }
}

/// The snapshot at a path, or of stdin if the path is `-`. One that is damaged is read as far as it goes.
///
/// # Errors
/// When it cannot be read, or is no snapshot.
pub(crate) fn snapshot(path: &Path) -> Result<Loaded, InputError> {
    as_it_is(path).map(mended)
}

/// As [`snapshot`], with the segments of the file also where the trace does not lead to them.
///
/// # Errors
/// As those of [`snapshot`].
pub(crate) fn as_it_is(path: &Path) -> Result<Loaded, InputError> {
    salvage(&bytes(path)?).map_err(|error| no_snapshot(path, &error))
}

/// What is good of a file.
///
/// # Errors
/// If nothing is.
pub(crate) fn salvage(file: &[u8]) -> Result<Loaded, ReadError> {
    read::read(file, &read::Options::default().salvaging())
}

/// A snapshot whose file is cut, with the memory that there was where its trace ends now. Its segments are of a later
/// moment: going back from there would lead to states that never were.
pub(crate) fn mended(loaded: Loaded) -> Loaded {
    let compression = loaded.compression;
    let Repaired { mut loaded, damage, .. } = repair(loaded);
    (loaded.compression, loaded.damage) = (compression, damage);
    loaded
}

/// What to say of a file that is no snapshot.
pub(crate) fn no_snapshot(path: &Path, error: &ReadError) -> InputError {
    InputError::NoSnapshot { place: place(path), reason: error.to_string() }
}

/// What to say of a snapshot that holds nothing.
pub(crate) fn nothing_in(place: &str) -> InputError {
    let reason = "the snapshot has neither events nor memory: was recording on?".to_owned();
    InputError::NoSnapshot { place: place.to_owned(), reason }
}

/// Whether two paths are one file, also through links.
pub(crate) fn is_same(a: &Path, b: &Path) -> bool {
    matches!((fs::canonicalize(a), fs::canonicalize(b)), (Ok(a), Ok(b)) if a == b)
}
