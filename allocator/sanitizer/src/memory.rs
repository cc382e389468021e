//! Which physical bytes and which buffer an address means, and who touched them.
//!
//! Invariants: no two buffers that are live or remembered as freed share an address. A page that was released and has no
//! mapping has no shadow: what is created later under its name is new.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use highwater_device::{Address, ByteRange, PageHandle};

use crate::order::Op;
use crate::race::BufferInfo;
use crate::shadow::Shadow;

/// What the bytes are part of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Place {
    /// A page, by offset.
    Page(PageHandle),
    /// Device memory that was mapped unseen, by address.
    Elsewhere,
    /// Host memory with this id, by offset.
    Host(u64),
}

/// Bytes of one place.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) place: Place,
    /// Offsets in the place.
    pub(crate) range: Range<u64>,
    /// The address or the offset that the program uses for the first byte.
    pub(crate) address: u64,
    /// The start of the mapping; 0 when there is none.
    pub(crate) via: u64,
}

#[derive(Clone, Copy)]
struct Mapping {
    page: PageHandle,
    bytes: u64,
}

#[derive(Clone, Copy)]
struct Page {
    bytes: u64,
    mappings: u32,
    released: bool,
}

/// The memory of one device.
#[derive(Default)]
pub(crate) struct Memory {
    pages: BTreeMap<PageHandle, Page>,
    mappings: BTreeMap<u64, Mapping>,
    shadows: BTreeMap<Place, Shadow>,
    live: BTreeMap<u64, Arc<BufferInfo>>,
    freed: BTreeMap<u64, Arc<BufferInfo>>,
    /// How many shadows there may be before it is looked for those that say nothing any more.
    sweep_at: usize,
}

/// Shadows among which it is not looked.
const FEW: usize = 256;

impl Memory {
    pub(crate) fn created(&mut self, page: PageHandle, bytes: u64) {
        self.pages.insert(page, Page { bytes, mappings: 0, released: false });
        self.shadows.remove(&Place::Page(page));
    }

    pub(crate) fn mapped(&mut self, page: PageHandle, address: Address) {
        let Some(known) = self.pages.get_mut(&page) else { return };
        known.mappings += 1;
        self.mappings.insert(address.0, Mapping { page, bytes: known.bytes });
    }

    /// The pages that are mapped in a range, with the addresses of the mappings.
    pub(crate) fn mappings_in(&self, range: ByteRange) -> Vec<(u64, PageHandle)> {
        let end = range.address.0.saturating_add(range.bytes);
        self.mappings.range(range.address.0..end).map(|(&address, mapping)| (address, mapping.page)).collect()
    }

    pub(crate) fn unmapped(&mut self, range: ByteRange) {
        for (address, page) in self.mappings_in(range) {
            self.mappings.remove(&address);
            if let Some(known) = self.pages.get_mut(&page) {
                known.mappings -= 1;
            }
            self.forget_if_gone(page);
        }
    }

    pub(crate) fn released(&mut self, page: PageHandle) {
        if let Some(known) = self.pages.get_mut(&page) {
            known.released = true;
        }
        self.forget_if_gone(page);
    }

    fn forget_if_gone(&mut self, page: PageHandle) {
        if self.pages.get(&page).is_some_and(|known| known.released && known.mappings == 0) {
            self.pages.remove(&page);
            self.shadows.remove(&Place::Page(page));
        }
    }

    /// Addresses that may mean something else from now on.
    pub(crate) fn unreserved(&mut self, range: ByteRange) {
        remove_overlapping(&mut self.freed, range);
    }

    /// The physical bytes of a range of addresses, in the order of the addresses.
    pub(crate) fn resolve(&self, range: ByteRange) -> Vec<Piece> {
        let (mut next, end) = (range.address.0, range.address.0.saturating_add(range.bytes));
        let before = self.mappings.range(..=next).next_back();
        let first = before.filter(|(start, mapping)| **start + mapping.bytes > next).map_or(next, |(&start, _)| start);
        let elsewhere = |from, to| Piece { place: Place::Elsewhere, range: from..to, address: from, via: 0 };
        let mut pieces = Vec::new();
        for (&start, mapping) in self.mappings.range(first..end) {
            if next < start {
                pieces.push(elsewhere(next, start));
                next = start;
            }
            let until = end.min(start + mapping.bytes);
            let (place, range) = (Place::Page(mapping.page), next - start..until - start);
            pieces.push(Piece { place, range, address: next, via: start });
            next = until;
        }
        if next < end {
            pieces.push(elsewhere(next, end));
        }
        pieces
    }

    /// Pages and other pieces of memory of which something is known.
    pub(crate) fn places(&self) -> usize {
        self.shadows.len()
    }

    pub(crate) fn shadow(&self, place: Place) -> Option<&Shadow> {
        self.shadows.get(&place)
    }

    pub(crate) fn shadow_mut(&mut self, place: Place) -> &mut Shadow {
        self.shadows.entry(place).or_default()
    }

    /// Forgets shadows of which everything is over, when there are many: nobody says when host memory goes away.
    pub(crate) fn sweep(&mut self, is_over: impl Fn(&Op) -> bool) {
        if self.shadows.len() > self.sweep_at.max(FEW) {
            self.shadows.retain(|_, shadow| !shadow.uses(|used| !is_over(&used.op)).is_empty());
            self.sweep_at = 2 * self.shadows.len();
        }
    }

    pub(crate) fn allocated(&mut self, buffer: &Arc<BufferInfo>) {
        remove_overlapping(&mut self.freed, buffer.range);
        self.live.insert(buffer.range.address.0, buffer.clone());
    }

    /// The buffer that starts at an address is given back.
    pub(crate) fn freed(&mut self, address: Address) -> Option<Arc<BufferInfo>> {
        let buffer = self.live.remove(&address.0)?;
        self.freed.insert(address.0, buffer.clone());
        Some(buffer)
    }

    /// The first live buffer that has a byte of the range.
    pub(crate) fn live_buffer(&self, range: ByteRange) -> Option<&Arc<BufferInfo>> {
        overlapping(&self.live, range)
    }

    /// The first buffer that was freed, had a byte of the range, and whose bytes were given to nobody since.
    pub(crate) fn freed_buffer(&self, range: ByteRange) -> Option<&Arc<BufferInfo>> {
        overlapping(&self.freed, range)
    }
}

fn overlapping(buffers: &BTreeMap<u64, Arc<BufferInfo>>, range: ByteRange) -> Option<&Arc<BufferInfo>> {
    let before = buffers.range(..=range.address.0).next_back().map(|(_, buffer)| buffer);
    before.filter(|buffer| buffer.range.overlaps(range)).or_else(|| {
        let end = range.address.0.saturating_add(range.bytes);
        buffers.range(range.address.0..end).next().map(|(_, buffer)| buffer)
    })
}

fn remove_overlapping(buffers: &mut BTreeMap<u64, Arc<BufferInfo>>, range: ByteRange) {
    while let Some(address) = overlapping(buffers, range).map(|buffer| buffer.range.address.0) {
        buffers.remove(&address);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use highwater_history::Context;

    use super::*;

    fn range(address: u64, bytes: u64) -> ByteRange {
        ByteRange::new(Address(address), bytes)
    }

    fn pieces(memory: &Memory, address: u64, bytes: u64) -> Vec<(Place, Range<u64>, u64)> {
        let pieces = memory.resolve(range(address, bytes));
        pieces.into_iter().map(|piece| (piece.place, piece.range, piece.address)).collect()
    }

    #[test]
    fn an_address_means_the_page_that_is_mapped_there() {
        let mut memory = Memory::default();
        let [a, b] = [PageHandle(1), PageHandle(2)];
        for (page, at) in [(a, 1000), (b, 1100)] {
            memory.created(page, 100);
            memory.mapped(page, Address(at));
        }
        memory.mapped(a, Address(2000));
        let (on_a, on_b) = (Place::Page(a), Place::Page(b));
        assert_eq!(pieces(&memory, 1050, 100), [(on_a, 50..100, 1050), (on_b, 0..50, 1100)]);
        assert_eq!(pieces(&memory, 2010, 20), [(on_a, 10..30, 2010)], "an alias has the same bytes");
        let gap = Place::Elsewhere;
        assert_eq!(pieces(&memory, 990, 20), [(gap, 990..1000, 990), (on_a, 0..10, 1000)]);
        assert_eq!(pieces(&memory, 1190, 20), [(on_b, 90..100, 1190), (gap, 1200..1210, 1200)]);
        memory.unmapped(range(1000, 200));
        assert_eq!(pieces(&memory, 1050, 10), [(gap, 1050..1060, 1050)]);
    }

    #[test]
    fn a_page_is_forgotten_with_its_last_mapping_and_not_before() {
        let mut memory = Memory::default();
        let (page, place) = (PageHandle(1), Place::Page(PageHandle(1)));
        memory.created(page, 100);
        memory.mapped(page, Address(1000));
        memory.mapped(page, Address(2000));
        memory.shadow_mut(place);
        memory.unmapped(range(1000, 100));
        memory.released(page);
        assert!(memory.shadow(place).is_some());
        memory.unmapped(range(2000, 100));
        assert!(memory.shadow(place).is_none());
        memory.shadow_mut(place);
        memory.created(page, 100);
        assert!(memory.shadow(place).is_none(), "what is created anew is new");
    }

    #[test]
    fn buffers_are_found_by_any_of_their_bytes_and_freed_ones_until_the_bytes_are_given_out() {
        let mut memory = Memory::default();
        let (allocated, stream) = (Context::here(), Arc::<str>::from("s"));
        let buffer = |at, bytes| {
            let (stream, freed) = (stream.clone(), OnceLock::new());
            Arc::new(BufferInfo { range: range(at, bytes), allocated, stream, freed })
        };
        memory.allocated(&buffer(1000, 100));
        memory.allocated(&buffer(1200, 100));
        let at = |found: Option<&Arc<BufferInfo>>| found.map(|buffer| buffer.range.address.0);
        assert_eq!(at(memory.live_buffer(range(1099, 1))), Some(1000));
        assert_eq!(at(memory.live_buffer(range(1100, 100))), None);
        assert_eq!(at(memory.live_buffer(range(1100, 101))), Some(1200));
        assert!(memory.freed(Address(1000)).is_some() && memory.freed(Address(1000)).is_none());
        assert_eq!(at(memory.live_buffer(range(1000, 100))), None);
        assert_eq!(at(memory.freed_buffer(range(1000, 100))), Some(1000));
        memory.allocated(&buffer(1050, 10));
        assert_eq!(at(memory.freed_buffer(range(1000, 100))), None);
        memory.freed(Address(1200));
        memory.unreserved(range(1000, 1000));
        assert_eq!(at(memory.freed_buffer(range(1200, 100))), None);
    }
}
