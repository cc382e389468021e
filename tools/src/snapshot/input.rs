//! What `highwater snapshot` is given: files with snapshots, plain or compressed, or stdin.

use std::borrow::Cow;
use std::path::Path;

use highwater::history::inspect::{At, When, WhenError, busiest};
use highwater::history::read::{self, Loaded, ReadError};

use crate::failure::{Failure, InputError};
use crate::input;

/// A snapshot, and what its file is called.
pub(super) struct Opened {
    /// Name of the file.
    pub(super) place: String,
    /// What it says, as far as it is good.
    pub(super) loaded: Loaded,
}

/// The pickle in a file.
///
/// # Errors
/// When it is neither a pickle nor unpacks to one.
pub(super) fn pickle<'a>(path: &Path, file: &'a [u8]) -> Result<Cow<'a, [u8]>, Failure> {
    let most = read::Options::default().max_unpacked_bytes;
    let refused = |error| input::no_snapshot(path, &error);
    let pickle = read::unpack(file, most).map_err(refused)?;
    match pickle.first() {
        Some(0x80) => Ok(pickle),
        Some(_) if read::is_json(&pickle) => {
            let reason = "this is JSON, and only pickles are checked; `highwater snapshot repair` makes one".to_owned();
            Err(InputError::NoSnapshot { place: input::place(path), reason }.into())
        }
        Some(_) => Err(refused(ReadError::NotAPickle(pickle[..pickle.len().min(4)].to_vec())).into()),
        None => Err(refused(ReadError::Truncated { offset: 0 }).into()),
    }
}

/// Reads a snapshot, of a damaged one what is good.
pub(super) fn open(path: &Path) -> Result<Opened, Failure> {
    Ok(Opened { loaded: input::snapshot(path)?, place: input::place(path) })
}

/// Refuses a place to write to that a snapshot is read from.
pub(super) fn not_over(out: &Path, snapshot: &Path) -> Result<(), Failure> {
    if input::is_same(out, snapshot) { Err(InputError::OverSnapshot(out.to_owned()).into()) } else { Ok(()) }
}

impl Opened {
    /// The device to look at: the one that is asked for, else the one with the most events.
    pub(super) fn device(&self, asked: Option<usize>) -> Result<usize, Failure> {
        let device = asked.or_else(|| busiest(&self.loaded));
        Ok(device.ok_or_else(|| input::nothing_in(&self.place))?)
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
