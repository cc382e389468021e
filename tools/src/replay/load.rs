//! From a snapshot file to the script of its busiest device.

use std::fs;
use std::path::Path;

use highwater::history::read::{self, Loaded, LoadedDevice};

use super::script::Script;
use crate::failure::InputError;

/// A file, and the program that it recorded.
#[derive(Debug)]
pub(crate) struct Recorded {
    /// What the file says.
    pub(crate) loaded: Loaded,
    /// Index of the device with the most events.
    pub(crate) device: usize,
    /// The program of that device.
    pub(crate) script: Script,
}

impl Recorded {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, is no snapshot, or holds no program.
    pub(crate) fn open(path: &Path) -> Result<Self, InputError> {
        let reading =
            |reason: std::io::Error| InputError::Snapshot { path: path.to_owned(), reason: reason.to_string() };
        let file = fs::read(path).map_err(reading)?;
        let refused = |reason: String| InputError::Snapshot { path: path.to_owned(), reason };
        let loaded = read::read(&file, &read::Options::default()).map_err(|error| refused(error.to_string()))?;
        let busiest = (0..loaded.devices.len()).rev().max_by_key(|&device| loaded.devices[device].trace.len());
        let device = busiest.ok_or_else(|| refused("the snapshot has no device".to_owned()))?;
        let script = Script::of_trace(&loaded.devices[device]).map_err(|error| refused(error.to_string()))?;
        Ok(Recorded { loaded, device, script })
    }

    /// The device with the most events.
    pub(crate) fn device(&self) -> &LoadedDevice {
        &self.loaded.devices[self.device]
    }
}
