//! The folder that a run writes into: one of the user's choice, or the next free `runs/N`.
//!
//! Nothing in a folder is ever written over.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::checkout;
use crate::failure::InputError;

/// A folder that was empty when the run began.
#[derive(Debug)]
pub(crate) struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// Refuses an `--out` that exists and is not an empty folder; makes nothing.
    pub(crate) fn check(out: &Path) -> Result<(), InputError> {
        match fs::read_dir(out).map(|mut entries| entries.next().is_none()) {
            Ok(true) => Ok(()),
            Ok(false) => Err(InputError::OutNotEmpty(out.to_owned())),
            // A link that leads nowhere is there, and cannot be made into a folder.
            Err(error) if error.kind() == ErrorKind::NotFound && out.symlink_metadata().is_err() => Ok(()),
            Err(_) if !out.is_dir() => Err(InputError::OutNotAFolder(out.to_owned())),
            Err(error) => Err(failed(out, &error)),
        }
    }

    /// Makes the folder `out`, or without it the next free `runs/N` of the checkout around `start`, else of `start`.
    pub(crate) fn create(out: Option<&Path>, start: &Path) -> Result<Self, InputError> {
        let Some(out) = out else {
            let root = checkout::root(start);
            return Self::next(&root.as_deref().unwrap_or(start).join("runs"));
        };
        // Once more: time has passed since the first look.
        Self::check(out)?;
        fs::create_dir_all(out).map_err(|error| failed(out, &error))?;
        Ok(RunFolder { path: out.to_owned() })
    }

    /// Makes the folder with the number after the largest in `runs`.
    fn next(runs: &Path) -> Result<Self, InputError> {
        fs::create_dir_all(runs).map_err(|error| failed(runs, &error))?;
        loop {
            let path = runs.join((largest(runs)? + 1).to_string());
            match fs::create_dir(&path) {
                Ok(()) => return Ok(RunFolder { path }),
                // Another run took the number in between.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(&path, &error)),
            }
        }
    }

    /// The folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the memory history goes.
    pub(crate) fn snapshot(&self) -> PathBuf {
        self.path.join("snapshot.pickle")
    }

    /// Where the executed operations go.
    pub(crate) fn timeline(&self) -> PathBuf {
        self.path.join("timeline.json")
    }

    /// Where the numbers of each step go.
    pub(crate) fn metrics(&self) -> PathBuf {
        self.path.join("metrics.jsonl")
    }
}

fn failed(path: &Path, error: &io::Error) -> InputError {
    InputError::OutFailed { path: path.to_owned(), reason: error.to_string() }
}

/// The largest number among the names in `runs`, 0 without any.
fn largest(runs: &Path) -> Result<u64, InputError> {
    let entries = fs::read_dir(runs).map_err(|error| failed(runs, &error))?;
    let mut largest = 0;
    for entry in entries {
        let name = entry.map_err(|error| failed(runs, &error))?.file_name();
        let number = name.to_str().and_then(|name| name.parse::<u64>().ok());
        // The very largest number has none after it.
        largest = largest.max(number.filter(|&number| number < u64::MAX).unwrap_or(0));
    }
    Ok(largest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    fn created(start: &Path) -> PathBuf {
        RunFolder::create(None, start).unwrap().path().to_owned()
    }

    #[test]
    fn runs_are_numbered_after_the_largest() {
        let scratch = Scratch::new();
        let runs = scratch.path().join("runs");
        assert_eq!(created(scratch.path()), runs.join("1"));
        assert_eq!(created(scratch.path()), runs.join("2"));
        fs::create_dir(runs.join("9")).unwrap();
        scratch.write("runs/notes", "no number");
        scratch.write("runs/11", "a file takes its number too");
        assert_eq!(created(scratch.path()), runs.join("12"));
    }

    #[test]
    fn runs_lie_in_the_root_of_a_checkout() {
        let scratch = Scratch::new();
        scratch.write("Cargo.toml", "[workspace]\n");
        scratch.write("allocator/src/lib.rs", "");
        assert_eq!(created(&scratch.path().join("allocator/src")), scratch.path().join("runs/1"));
    }

    #[test]
    fn a_chosen_folder_is_new_or_empty() {
        let scratch = Scratch::new();
        let out = scratch.path().join("deep/out");
        assert_eq!(RunFolder::check(&out), Ok(()));
        assert!(!out.exists(), "checking makes nothing");
        assert_eq!(RunFolder::create(Some(&out), scratch.path()).unwrap().path(), out);
        assert_eq!(RunFolder::check(&out), Ok(()), "it is empty");
        let file = scratch.write("deep/out/file", "");
        assert_eq!(RunFolder::check(&out), Err(InputError::OutNotEmpty(out.clone())));
        assert!(RunFolder::create(Some(&out), scratch.path()).is_err());
        assert_eq!(RunFolder::check(&file), Err(InputError::OutNotAFolder(file)));
    }

    #[cfg(unix)]
    #[test]
    fn a_link_that_leads_nowhere_is_no_folder() {
        let scratch = Scratch::new();
        let link = scratch.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        assert_eq!(RunFolder::check(&link), Err(InputError::OutNotAFolder(link)));
    }
}
