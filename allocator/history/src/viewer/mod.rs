//! Whether the viewer of PyTorch opens a snapshot file, found out without a browser.
//!
//! [`check`] does what the viewer's page does with a file, in the same steps and with the same tolerance: it unpickles
//! it with the same few opcodes (`unpickle`), numbers streams and joins frees (`annotate`), draws the timeline
//! (`timeline`) and goes back through the allocator's states (`states`). Where the page would throw, or would draw
//! something false without saying so, there is an error here. [`check_all`] goes on and finds all of them.
//!
//! Files come from anywhere, so nothing here panics or recurses, whatever the bytes, and memory stays within a small
//! multiple of the file's size.

mod annotate;
mod states;
mod timeline;
mod unpickle;
mod value;

use crate::ReplayFault;

/// What the viewer would show.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ViewerSummary {
    /// Devices that can be chosen: those with events or segments.
    pub devices: usize,
    /// Segments of those devices.
    pub segments: usize,
    /// Segments that are left out without a word: they name no device, or one without a trace.
    pub ignored_segments: usize,
    /// Blocks in use or pending, in those segments.
    pub blocks: usize,
    /// Events, with a free that completes at once counted as one.
    pub events: usize,
    /// Bytes that the timelines end with: requested by live and pending blocks, of all devices.
    pub live_bytes: u64,
    /// The highest point of the timelines, bytes: the sum of each device's.
    pub peak_bytes: u64,
}

/// Why the viewer would not show a file, or would show something false.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ViewerError {
    /// The viewer does not know an opcode.
    #[error("unknown opcode {opcode:#04x} at byte {offset}")]
    UnknownOpcode {
        /// The opcode.
        opcode: u8,
        /// Where it stands.
        offset: usize,
    },
    /// The viewer reads protocols 2 to 4.
    #[error("pickle protocol {version} at byte {offset}; the viewer reads 2 to 4")]
    Protocol {
        /// The version.
        version: u8,
        /// Where it stands.
        offset: usize,
    },
    /// The file ends in the middle of something.
    #[error("the file ends in the middle of the instruction at byte {offset}")]
    Truncated {
        /// Where the last instruction begins.
        offset: usize,
    },
    /// An opcode does not find what it needs.
    #[error("the opcode at byte {offset} needs {needs}")]
    Malformed {
        /// Where the opcode stands.
        offset: usize,
        /// What it needs.
        needs: &'static str,
    },
    /// The items are the arguments of one call, which overflows the stack of a browser.
    #[error("the opcode at byte {offset} adds {items} items at once; browsers stop at about 120000")]
    TooManyAtOnce {
        /// Where the opcode stands.
        offset: usize,
        /// Number of items.
        items: usize,
    },
    /// The viewer would change an integer without saying so.
    #[error("the integer at byte {offset} is not exact in the viewer (2^53 or more)")]
    Inexact {
        /// Where it stands.
        offset: usize,
    },
    /// A value that the viewer needs is missing or of another type.
    #[error("{place} needs {}", crate::scan::wanted(key, kind))]
    Needs {
        /// Where, e.g. `event 3 of device 0`.
        place: String,
        /// The key; empty if it is the part itself.
        key: &'static str,
        /// The type.
        kind: &'static str,
    },
    /// Lists are shared in such a way that the file stands for more events and blocks than it has bytes.
    #[error("the file shares lists so that it has more events and blocks than bytes")]
    Inflated,
    /// The viewer throws if events have categories and none is `unknown`.
    #[error("events have categories, and none of them is \"unknown\"")]
    Categories,
    /// The state of the allocator cannot be drawn.
    #[error("the states of device {device} cannot be drawn at {place}: {fault}")]
    State {
        /// Index of the device.
        device: usize,
        /// Where: an event, or the segments of the snapshot.
        place: String,
        /// Why.
        fault: ReplayFault,
    },
}

/// Everything that keeps the viewer from showing a file as it is.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Violations {
    /// What is wrong, in the order in which the viewer would come upon it; at most 1,000.
    pub list: Vec<ViewerError>,
    /// How many more there are.
    pub more: u64,
}

/// Most violations that are kept.
const MOST_VIOLATIONS: usize = 1000;

impl Violations {
    fn add(&mut self, violation: ViewerError) {
        if self.list.len() < MOST_VIOLATIONS { self.list.push(violation) } else { self.more += 1 }
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.list.len() as u64 + self.more
    }
}

/// Loads a file as the viewer would.
///
/// # Errors
/// The first thing at which the viewer would stop, or show something false.
pub fn check(bytes: &[u8]) -> Result<ViewerSummary, ViewerError> {
    check_all(bytes).map_err(|violations| violations.list.into_iter().next().expect("there is one"))
}

/// Loads a file as the viewer would, but goes on where it would stop, as far as that makes sense: an event or a segment
/// that is wrong is left out, and states are only gone through if none was.
///
/// # Errors
/// All that [`check`] finds one of.
pub fn check_all(bytes: &[u8]) -> Result<ViewerSummary, Violations> {
    let mut violations = Violations::default();
    match load(bytes, &mut violations) {
        Ok(summary) if violations.list.is_empty() => Ok(summary),
        Ok(_) => Err(violations),
        Err(last) => {
            violations.add(last);
            Err(violations)
        }
    }
}

/// Loads a file; the error is what cannot be gone on after.
fn load(bytes: &[u8], violations: &mut Violations) -> Result<ViewerSummary, ViewerError> {
    let (heap, top) = unpickle::unpickle(bytes, violations)?;
    let loaded = annotate::annotate(&heap, top, bytes.len(), violations)?;
    let mut summary = ViewerSummary { ignored_segments: loaded.ignored_segments, ..ViewerSummary::default() };
    for (index, device) in loaded.devices.iter().enumerate() {
        let timeline = timeline::draw(device);
        if loaded.is_whole {
            states::draw(index, device, violations);
        }
        summary.devices += usize::from(!device.events.is_empty() || !device.segments.is_empty());
        summary.segments += device.segments.len();
        summary.blocks += device.segments.iter().map(|segment| segment.blocks.len()).sum::<usize>();
        summary.events += device.events.len();
        summary.live_bytes = summary.live_bytes.saturating_add(timeline.end_bytes);
        summary.peak_bytes = summary.peak_bytes.saturating_add(timeline.peak_bytes);
    }
    Ok(summary)
}
