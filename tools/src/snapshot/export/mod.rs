//! `highwater snapshot export`: snapshots in formats of others.
//!
//! A file is there whole or not at all.

mod folded;
mod json;
#[cfg(feature = "parquet")]
mod parquet;
mod perfetto;
mod sqlite;
mod tables;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use highwater::history::replace_file;

use crate::failure::{Failure, InputError};
use crate::input::is_standard;
use crate::output;

use super::arguments::{ExportArgs, Format};
use super::input::{Opened, not_over, open};

/// Buffer between a writer and its file, bytes.
const BUFFER_BYTES: usize = 1 << 20;

/// Writes the file.
pub(super) fn run(arguments: &ExportArgs) -> Result<(), Failure> {
    let out = &arguments.out;
    not_over(out, &arguments.file)?;
    let opened = open(&arguments.file)?;
    // There is nothing to write without a device.
    opened.device(None)?;
    match arguments.format {
        Format::Perfetto => to_text(out, |file| perfetto::write(&opened, arguments.min_bytes, file)),
        Format::Json => to_text(out, |file| json::write(&opened, file)),
        Format::Folded => {
            let at = opened.at(arguments.device, &arguments.at)?;
            to_text(out, |file| folded::write(&at, file))
        }
        Format::Sqlite => to_file("sqlite", out, |file| tables::write(&opened, file)),
        Format::Parquet => to_parquet(&opened, out),
    }
}

#[cfg(feature = "parquet")]
fn to_parquet(opened: &Opened, out: &Path) -> Result<(), Failure> {
    to_file("parquet", out, |file| parquet::write(opened, BufWriter::with_capacity(BUFFER_BYTES, file)))
}

#[cfg(not(feature = "parquet"))]
fn to_parquet(_: &Opened, _: &Path) -> Result<(), Failure> {
    Err(InputError::NoParquet.into())
}

/// Writes text to a file, or to stdout if the path is `-`.
fn to_text(out: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    if is_standard(out) {
        let mut stdout = BufWriter::new(io::stdout().lock());
        return match write(&mut stdout).and_then(|()| stdout.flush()) {
            // Whoever reads has read enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            done => done.map_err(Failure::Print),
        };
    }
    replace(out, |file| {
        let mut file = BufWriter::with_capacity(BUFFER_BYTES, file);
        write(&mut file)?;
        file.flush()
    })
}

/// Writes a file that is no text.
fn to_file(format: &'static str, out: &Path, write: impl FnOnce(&File) -> io::Result<()>) -> Result<(), Failure> {
    if is_standard(out) {
        return Err(InputError::NeedsAFile { format }.into());
    }
    replace(out, write)
}

/// Makes a file whole, or not at all, and tells of it.
fn replace(out: &Path, write: impl FnOnce(&File) -> io::Result<()>) -> Result<(), Failure> {
    replace_file(out, write).map_err(|error| Failure::write(out, error))?;
    output::print(&format!("{}\n", output::written(out))).map_err(Failure::Print)
}
