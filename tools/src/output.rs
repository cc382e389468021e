//! The standard output.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

/// Prints to the standard output. A reader that has gone is no error.
///
/// # Errors
/// When it cannot be written for another reason.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        done => done,
    }
}

/// A file that was written, with its size.
pub(crate) fn written(path: &Path) -> String {
    let bytes = fs::metadata(path).map_or(0, |file| file.len());
    format!("{} ({:.1} MB)", path.display(), bytes as f64 / 1e6)
}
