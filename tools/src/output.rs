//! The standard output.

use std::io::{self, ErrorKind, Write};

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
