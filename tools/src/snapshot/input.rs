//! What `highwater snapshot` is given: files with snapshots, plain or compressed, or stdin.

use std::borrow::Cow;
use std::fs;
use std::io::Read;
use std::path::Path;

use highwater::history::inspect::{At, When, WhenError, busiest};
use highwater::history::read::{self, Loaded};

use crate::failure::{Failure, InputError};

/// A snapshot, and what its file is called.
pub(super) struct Opened {
    /// Name of the file.
    pub(super) place: String,
    /// What it says, as far as it is good.
    pub(super) loaded: Loaded,
}

/// The bytes of a file, or of stdin if the path is `-`, and its name.
pub(super) fn bytes(path: &Path) -> Result<(String, Vec<u8>), Failure> {
    let place = if path.as_os_str() == "-" { "stdin".to_owned() } else { path.display().to_string() };
    let read = if path.as_os_str() == "-" {
        let mut bytes = Vec::new();
        std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        fs::read(path)
    };
    match read {
        Ok(bytes) => Ok((place, bytes)),
        Err(error) => Err(InputError::Unreadable { path: place.into(), reason: error.to_string() }.into()),
    }
}

/// The pickle in a file.
///
/// # Errors
/// When it is neither a pickle nor unpacks to one.
pub(super) fn pickle<'a>(place: &str, file: &'a [u8]) -> Result<Cow<'a, [u8]>, Failure> {
    let most = read::Options::default().max_unpacked_bytes;
    let pickle = read::unpack(file, most).map_err(|error| refused(place, &error))?;
    match pickle.first() {
        Some(0x80) => Ok(pickle),
        Some(_) => Err(refused(place, &read::ReadError::NotAPickle(pickle[..pickle.len().min(4)].to_vec()))),
        None => Err(refused(place, &read::ReadError::Truncated { offset: 0 })),
    }
}

/// Reads a snapshot, of a damaged one what is good.
pub(super) fn open(path: &Path) -> Result<Opened, Failure> {
    let (place, bytes) = bytes(path)?;
    let loaded = read::read(&bytes, &read::Options::default().salvaging()).map_err(|error| refused(&place, &error))?;
    Ok(Opened { place, loaded })
}

fn refused(place: &str, error: &read::ReadError) -> Failure {
    InputError::NoSnapshot { place: place.to_owned(), reason: error.to_string() }.into()
}

impl Opened {
    /// The device to look at: the one that is asked for, else the one with the most events.
    pub(super) fn device(&self, asked: Option<usize>) -> Result<usize, Failure> {
        let reason = || "the snapshot has neither events nor memory: was recording on?".to_owned();
        let nothing = || InputError::NoSnapshot { place: self.place.clone(), reason: reason() };
        match asked {
            Some(device) => Ok(device),
            None => Ok(busiest(&self.loaded).ok_or_else(nothing)?),
        }
    }

    /// The memory at a moment of the device that is asked for; else of the one with the most events, and for a request
    /// that failed, of the first one with such a request.
    pub(super) fn at(&self, asked: Option<usize>, when: &When) -> Result<At<'_>, Failure> {
        let device = self.device(asked)?;
        let failed = |error: WhenError| match error {
            WhenError::NoFailure { .. } if asked.is_none() => {
                let others = (0..self.loaded.devices.len()).filter(|&other| other != device);
                others.filter_map(|other| At::of(&self.loaded, other, when).ok()).next().ok_or(error)
            }
            _ => Err(error),
        };
        At::of(&self.loaded, device, when).or_else(failed).map_err(|error| self.no_moment(&error))
    }

    /// What to say of a moment that is not there.
    pub(super) fn no_moment(&self, error: &WhenError) -> Failure {
        let place = self.place.clone();
        match error {
            &WhenError::NoDevice { device } => InputError::NoDevice { device, place }.into(),
            other => InputError::NoMoment { reason: other.to_string(), place }.into(),
        }
    }
}
