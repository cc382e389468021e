//! A snapshot in a file, whole or not at all.

use std::{
    fs::{self, File},
    io::{self, BufWriter},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use crate::{Snapshot, WriteError};

/// Buffer between the writer and the file, bytes.
const BUFFER_BYTES: usize = 1 << 20;

/// Why a snapshot could not be saved. The file that was at the path before, if any, is unchanged.
#[derive(Debug, thiserror::Error)]
#[error("cannot save the snapshot to {}: {source}", path.display())]
pub struct SaveError {
    /// Where it was to be saved.
    pub path: PathBuf,
    /// What failed.
    #[source]
    pub source: WriteError,
}

impl Snapshot {
    /// Saves it at `path`, in place of what was there. It is written to a file beside it first, which then takes the
    /// name, so a reader sees the old file or the new one, never a part, even if the machine stops half way.
    ///
    /// # Errors
    /// If it cannot be written (see [`write_to`](Self::write_to)), or the file cannot be made or renamed.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), SaveError> {
        save(path.as_ref(), |file| self.write_to(file))
    }
}

#[cfg(feature = "inspect")]
impl crate::read::Loaded {
    /// Saves it at `path` as a pickle of protocol 4, whole or not at all, in place of what was there.
    ///
    /// # Errors
    /// If the file cannot be made, written or renamed.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), SaveError> {
        save(path.as_ref(), |file| self.write_to(file))
    }
}

fn save(path: &Path, write: impl FnOnce(BufWriter<&File>) -> Result<(), WriteError>) -> Result<(), SaveError> {
    let buffered = |file: &File| write(BufWriter::with_capacity(BUFFER_BYTES, file));
    replace_file(path, buffered).map_err(|source| SaveError { path: path.to_owned(), source })
}

/// Makes the file at `path` anew, whole or not at all: it is written beside its place, and takes the name when it is
/// whole. Behind a symbolic link the file that it points to is replaced. What is no file (a device, a pipe) stays, and is
/// written to. `write` has to flush what it buffers.
///
/// # Errors
/// If `write` fails, or the file cannot be made or renamed. What was there before is unchanged then.
pub fn replace_file<E: From<io::Error>>(path: &Path, write: impl FnOnce(&File) -> Result<(), E>) -> Result<(), E> {
    let there = fs::metadata(path).map(|there| there.file_type());
    if there.as_ref().is_ok_and(|there| !there.is_file() && !there.is_dir()) {
        return write(&File::options().write(true).open(path)?);
    }
    let path = if there.is_ok_and(|there| there.is_file()) { &fs::canonicalize(path)? } else { path };
    let beside = name_beside(path)?;
    write_and_rename(write, &beside, path).inspect_err(|_| {
        // The first error is the one to report; the file may never have been made.
        let _ = fs::remove_file(&beside);
    })
}

fn write_and_rename<E: From<io::Error>>(
    write: impl FnOnce(&File) -> Result<(), E>,
    beside: &Path,
    path: &Path,
) -> Result<(), E> {
    let file = File::create_new(beside)?;
    write(&file)?;
    file.sync_all()?;
    drop(file);
    fs::rename(beside, path)?;
    // If this fails the new file is there all the same; only a crash right now could bring the old one back.
    let _ = sync_folder(path);
    Ok(())
}

/// A name in the folder of `path` that no other save uses.
fn name_beside(path: &Path) -> io::Result<PathBuf> {
    static SAVES: AtomicU64 = AtomicU64::new(0);
    let not_a_file = || io::Error::new(io::ErrorKind::InvalidInput, "the path names no file");
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().ok_or_else(not_a_file)?);
    name.push(format!(".{}.{}.part", std::process::id(), SAVES.fetch_add(1, Ordering::Relaxed)));
    Ok(path.with_file_name(name))
}

/// Makes the rename last, where folders can be synchronised.
fn sync_folder(path: &Path) -> io::Result<()> {
    if cfg!(unix) {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}
