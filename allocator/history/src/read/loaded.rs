//! A snapshot as it was read.

use std::collections::BTreeMap;

use super::{Compression, Part, ReadError, Symbols, TextId, Trace};
use crate::{DeviceNotes, Segment, Stage};

/// What a file says.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Loaded {
    /// Devices by index.
    pub devices: Vec<LoadedDevice>,
    /// Pinned host memory, by index of the device that it was allocated for (`host_segments`, `host_traces`).
    pub host: Vec<LoadedDevice>,
    /// The texts, frames and stacks that everything here refers to.
    pub symbols: Symbols,
    /// Settings of the allocator, by name and in the order of the file (`allocator_settings`).
    pub settings: Vec<(TextId, Setting)>,
    /// Marks of the program on the time line (`external_annotations`).
    pub annotations: Vec<LoadedAnnotation>,
    /// What only this project's recorder writes (`recorder`).
    pub recorder: Option<Recorder>,
    /// How often keys came that this crate does not know. They were left out.
    pub unknown_keys: BTreeMap<(Part, TextId), u64>,
    /// Protocol of the pickle; 0 if it is none, but JSON.
    pub protocol: u8,
    /// How the file was compressed.
    pub compression: Option<Compression>,
    /// Why reading ended before the end of the file, or what was left out; only with
    /// [`Options::salvage`](super::Options::salvage).
    pub damage: Option<ReadError>,
}

/// One device.
#[derive(Clone, Default, Debug)]
#[non_exhaustive]
pub struct LoadedDevice {
    /// Its memory when the snapshot was taken, in the order of the file.
    pub segments: Vec<Segment>,
    /// Its events, oldest first.
    pub trace: Trace,
    /// What only this project's recorder writes.
    pub notes: Option<DeviceNotes>,
}

/// A mark on the time line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoadedAnnotation {
    /// Name of the scope, e.g. `Optimizer.step#AdamW.step`.
    pub name: TextId,
    /// Whether the scope begins or ends here.
    pub stage: Stage,
    /// Index of the device.
    pub device: u64,
    /// When, microseconds.
    pub time_us: u64,
}

/// Value of a setting.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum Setting {
    /// A truth value.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// A text.
    Text(TextId),
    /// Numbers by name, e.g. by size class.
    Map(Vec<(TextId, i64)>),
}

/// What this project's recorder adds, but for the notes of devices.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Recorder {
    /// Version of what it adds.
    pub version: u64,
    /// Who wrote the file.
    pub writer: TextId,
    /// Settings of the allocator, name and value.
    pub settings: Vec<(TextId, TextId)>,
    /// Texts of the span paths that events and notes refer to by index. Entry 0 is the root, with no text.
    pub span_paths: Vec<TextId>,
}

impl Loaded {
    /// Value of a setting of the allocator.
    #[must_use]
    pub fn setting(&self, name: &str) -> Option<&Setting> {
        self.settings.iter().find(|(key, _)| self.symbols.text(*key) == name).map(|(_, value)| value)
    }

    /// Number of events of all devices, host memory not counted.
    #[must_use]
    pub fn events(&self) -> usize {
        self.devices.iter().map(|device| device.trace.len()).sum()
    }
}
