//! The page that shows memory over time: its height, without the picture.

use std::collections::BTreeMap;

use super::annotate::{Device, Kind};

#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Timeline {
    pub(super) end_bytes: u64,
    pub(super) peak_bytes: u64,
}

/// Adds up the timeline of a device. A block that is freed without having been allocated in the trace was there from
/// its start, and so was one that is in use in the snapshot; a pending block of the snapshot whose allocation is not in
/// the trace is not drawn.
pub(super) fn draw(device: &Device) -> Timeline {
    let mut live = BTreeMap::new();
    let mut initial = 0u64;
    for event in &device.events {
        match event.kind {
            Kind::Alloc => {
                live.insert(event.address, event.bytes);
            }
            Kind::Free | Kind::FreeCompleted if live.remove(&event.address).is_none() => {
                initial = initial.saturating_add(event.bytes);
            }
            _ => {}
        }
    }
    let blocks = device.segments.iter().flat_map(|segment| &segment.blocks);
    for block in blocks.filter(|block| !block.pending && !live.contains_key(&block.address)) {
        initial = initial.saturating_add(block.requested_bytes);
    }
    live.clear();
    let (mut now, mut peak) = (initial, initial);
    for event in &device.events {
        match event.kind {
            Kind::Alloc => {
                live.insert(event.address, event.bytes);
                now = now.saturating_add(event.bytes);
                peak = peak.max(now);
            }
            Kind::Free | Kind::FreeCompleted => {
                let bytes = live.remove(&event.address).unwrap_or(event.bytes);
                now = now.saturating_sub(bytes);
            }
            _ => {}
        }
    }
    Timeline { end_bytes: now, peak_bytes: peak }
}
