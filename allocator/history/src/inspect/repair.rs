//! From what could be read of a file to a snapshot that makes sense.
//!
//! Written again, a snapshot has the protocol and the batches that viewers take, whatever it had before. A file that
//! ends too early needs more: its segments are of a moment that its trace does not reach, so they are worked out anew.

use crate::{
    read::{Loaded, ReadError},
    state::rules::Rules,
};

use super::{rebuild, slice::segments};

/// A snapshot that was mended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Repaired {
    /// The snapshot, which [`Loaded::write_to`] writes.
    pub loaded: Loaded,
    /// The device whose trace is cut, and whose segments therefore are those where it ends.
    pub cut: Option<usize>,
    /// What ended the file.
    pub damage: Option<ReadError>,
}

/// Mends a snapshot that was read with [`Options::salvage`](crate::read::Options::salvage).
#[must_use]
pub fn repair(mut loaded: Loaded) -> Repaired {
    let damage = loaded.damage.take();
    let cut = damage.as_ref().and_then(|_| cut(&loaded));
    if let Some(index) = cut {
        let rules = Rules::of(&loaded);
        let memory = rebuild::at_the_end(&loaded.devices[index], &rules);
        loaded.devices[index].segments = segments(&memory, &loaded.devices[index]);
    }
    loaded.compression = None;
    Repaired { loaded, cut, damage }
}

/// The device whose trace is not whole: the last one with events, unless something was read that follows the traces.
fn cut(loaded: &Loaded) -> Option<usize> {
    let follows = !loaded.settings.is_empty() || !loaded.annotations.is_empty() || loaded.recorder.is_some();
    (0..loaded.devices.len()).rev().find(|&index| !loaded.devices[index].trace.is_empty()).filter(|_| !follows)
}
