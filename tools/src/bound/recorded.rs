//! What the allocator that was recorded held, by its own events.

use highwater::history::read::{EventAction, LoadedDevice};

/// Physical memory held at the peak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    /// Bytes.
    pub(crate) peak_bytes: u64,
    /// Whether it had expandable segments.
    pub(crate) expandable: bool,
}

impl Held {
    /// From the segments at the end, backwards through the events.
    pub(crate) fn of(device: &LoadedDevice) -> Self {
        let mut held: u64 = device.segments.iter().map(|segment| segment.total_bytes).sum();
        let mut peak_bytes = held;
        let mut expandable = device.segments.iter().any(|segment| segment.expandable);
        for event in device.trace.events().rev() {
            match event.action {
                EventAction::SegmentAlloc | EventAction::SegmentMap => held = held.saturating_sub(event.bytes),
                EventAction::SegmentFree | EventAction::SegmentUnmap => held += event.bytes,
                _ => {}
            }
            expandable |= matches!(event.action, EventAction::SegmentMap | EventAction::SegmentUnmap);
            peak_bytes = peak_bytes.max(held);
        }
        Held { peak_bytes, expandable }
    }
}
