//! Moments of a trace, as people name them.

use crate::{
    Stage,
    read::{Loaded, LoadedDevice},
    state::{
        curves::{Curves, Frees},
        failures,
    },
};

/// A moment of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum When {
    /// The failed request if there is one, else the end.
    FailureOrEnd,
    /// Before the last request that failed, of those that were not made good if there are any.
    OutOfMemory,
    /// When the most memory was in use, live and pending; the first time.
    Peak,
    /// The end of the trace.
    End,
    /// Before the event of this index; the number of events is the end.
    Event(usize),
    /// Microseconds since the first event of the file, before the first event that is not earlier.
    SinceStart(u64),
    /// The first begin of a scope of the program with this name: an annotation, or a span of this project's recorder.
    Mark(String),
}

/// Why a trace has no such moment.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WhenError {
    /// No request failed.
    #[error("no request failed on device {device}")]
    NoFailure {
        /// Index of the device.
        device: usize,
    },
    /// The index is past the end.
    #[error("device {device} has {events} events, and none with the index {event}")]
    NoEvent {
        /// Index of the device.
        device: usize,
        /// Number of events.
        events: usize,
        /// The index.
        event: usize,
    },
    /// Events have no times.
    #[error("the events of device {device} have no times")]
    NoTimes {
        /// Index of the device.
        device: usize,
    },
    /// No scope has the name.
    #[error("no scope is called {name:?} on device {device}")]
    NoMark {
        /// Index of the device.
        device: usize,
        /// The name.
        name: String,
    },
    /// There is no such device.
    #[error("device {device} has neither events nor memory")]
    NoDevice {
        /// Index of the device.
        device: usize,
    },
}

/// The device with the most events; the first of those with memory if none has events. `None` if there is neither.
#[must_use]
pub fn busiest(loaded: &Loaded) -> Option<usize> {
    let used = |&index: &usize| is_used(&loaded.devices[index]);
    let weight = |&index: &usize| (loaded.devices[index].trace.len(), std::cmp::Reverse(index));
    (0..loaded.devices.len()).filter(used).max_by_key(weight)
}

pub(super) fn is_used(device: &LoadedDevice) -> bool {
    !device.trace.is_empty() || !device.segments.is_empty()
}

/// Time of the first event of the file, microseconds. Files without times have 0.
pub(super) fn start_us(loaded: &Loaded) -> u64 {
    loaded.devices.iter().filter_map(|device| device.trace.times_us().first()).copied().min().unwrap_or(0)
}

/// The index of the event before which memory is looked at; at most the number of events.
///
/// # Errors
/// If the snapshot has no such device, or its trace no such moment.
pub fn row(loaded: &Loaded, index: usize, when: &When) -> Result<usize, WhenError> {
    let device = loaded.devices.get(index).filter(|device| is_used(device));
    let device = device.ok_or(WhenError::NoDevice { device: index })?;
    let trace = &device.trace;
    let failure = || failures::last(&failures::failures(trace));
    match when {
        When::FailureOrEnd => Ok(failure().unwrap_or(trace.len())),
        When::OutOfMemory => failure().ok_or(WhenError::NoFailure { device: index }),
        When::Peak => Ok(peak(&Curves::of(device, Frees::of(device)))),
        When::End => Ok(trace.len()),
        &When::Event(event) if event <= trace.len() => Ok(event),
        &When::Event(event) => Err(WhenError::NoEvent { device: index, events: trace.len(), event }),
        &When::SinceStart(since) => row_at(device, index, start_us(loaded).saturating_add(since)),
        When::Mark(name) => mark(loaded, index, name),
    }
}

/// The first row whose event is not before a time.
pub(super) fn row_at(device: &LoadedDevice, index: usize, time_us: u64) -> Result<usize, WhenError> {
    let trace = &device.trace;
    if !trace.is_timed() {
        return Err(WhenError::NoTimes { device: index });
    }
    Ok(trace.times_us().partition_point(|&time| time < time_us))
}

/// The first row before which the most was in use.
pub(super) fn peak(curves: &Curves) -> usize {
    let rows = 0..curves.live.len();
    rows.max_by_key(|&row| (curves.active(row), std::cmp::Reverse(row))).expect("the end is one")
}

fn mark(loaded: &Loaded, index: usize, name: &str) -> Result<usize, WhenError> {
    let device = &loaded.devices[index];
    let called = |mark: &&crate::read::LoadedAnnotation| {
        mark.stage == Stage::Start && loaded.symbols.text(mark.name) == name && mark.device == index as u64
    };
    if let Some(mark) = loaded.annotations.iter().find(called) {
        return row_at(device, index, mark.time_us);
    }
    let paths = loaded.recorder.iter().flat_map(|recorder| &recorder.span_paths);
    let within: Vec<bool> =
        paths.map(|&path| loaded.symbols.text(path).split('/').any(|span| span.trim() == name)).collect();
    let inside = |row: &usize| within.get(device.trace.span(*row) as usize) == Some(&true);
    let found = (0..device.trace.len()).find(inside);
    found.ok_or_else(|| WhenError::NoMark { device: index, name: name.to_owned() })
}
