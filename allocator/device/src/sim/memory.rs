//! The memory of one device: address space, physical pages, mappings, and the bytes.
//!
//! Invariants:
//! - every mapping lies inside one reservation, and no two mappings overlap;
//! - `Page::mappings` counts the page's mappings; a released page with none does not exist;
//! - `held_bytes` is the sum of the sizes of all pages;
//! - addresses are never given out twice, and a gap follows each reservation: a stale or overrunning address faults.
//!
//! Each method checks all arguments before it changes anything.

use std::collections::BTreeMap;

use crate::{Address, ByteRange, DeviceCall, DeviceError, DeviceResult, MemoryInfo, OperandBytes, PageHandle};

/// Bytes that nobody has written (a NaN pattern for every float format).
pub(super) const UNWRITTEN: u8 = 0xFF;
/// Bytes are stored in pieces of this size, each only once it is written.
const CHUNK_BYTES: u64 = 64 << 10;
/// Address space of a device, bytes.
const SPACE_BYTES: u64 = 1 << 46;

/// Part of an operand that lies in one page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// Index of the operand.
    pub(super) operand: usize,
    pub(super) page: PageHandle,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// The memory of one device.
pub(super) struct Memory {
    granularity_bytes: u64,
    total_bytes: u64,
    held_bytes: u64,
    next_page: u64,
    next_address: u64,
    end_address: u64,
    reservations: BTreeMap<Address, u64>,
    mappings: BTreeMap<Address, Mapping>,
    pages: BTreeMap<PageHandle, Page>,
}

struct Mapping {
    page: PageHandle,
    bytes: u64,
    accessible: bool,
}

struct Page {
    bytes: u64,
    mappings: u32,
    released: bool,
    chunks: BTreeMap<u64, Box<[u8]>>,
}

impl Memory {
    /// The memory of device `ordinal`; addresses and handles are unique in the cluster.
    pub(super) fn new(ordinal: u32, total_bytes: u64, granularity_bytes: u64) -> Self {
        let next_address = (u64::from(ordinal) + 1) * SPACE_BYTES;
        Memory {
            granularity_bytes,
            total_bytes,
            held_bytes: 0,
            next_page: (u64::from(ordinal) << 40) + 1,
            next_address,
            end_address: next_address + SPACE_BYTES,
            reservations: BTreeMap::new(),
            mappings: BTreeMap::new(),
            pages: BTreeMap::new(),
        }
    }

    pub(super) fn info(&self) -> MemoryInfo {
        MemoryInfo { free: self.total_bytes - self.held_bytes, total: self.total_bytes }
    }

    pub(super) fn reserve(&mut self, bytes: u64) -> DeviceResult<Address> {
        self.check_size(DeviceCall::Reserve, bytes)?;
        let start = self.next_address;
        let end = start.checked_add(bytes).filter(|&end| end < self.end_address);
        let end = end.ok_or_else(|| invalid(DeviceCall::Reserve, format!("no {bytes} bytes of addresses left")))?;
        self.next_address = end + self.granularity_bytes;
        self.reservations.insert(Address(start), bytes);
        Ok(Address(start))
    }

    pub(super) fn unreserve(&mut self, address: Address, bytes: u64) -> DeviceResult<()> {
        let call = DeviceCall::Unreserve;
        if self.reservations.get(&address) != Some(&bytes) {
            return Err(invalid(call, format!("{bytes} bytes at {address} are not one whole reservation")));
        }
        if let Some((inside, _)) = self.mappings.range(address..address.offset(bytes)).next() {
            return Err(invalid(call, format!("{inside} is still mapped")));
        }
        self.reservations.remove(&address);
        Ok(())
    }

    pub(super) fn create(&mut self, bytes: u64) -> DeviceResult<PageHandle> {
        self.check_size(DeviceCall::Create, bytes)?;
        let free = self.info().free;
        if bytes > free {
            return Err(DeviceError::OutOfMemory { requested: bytes, free });
        }
        let page = PageHandle(self.next_page);
        self.next_page += 1;
        self.held_bytes += bytes;
        self.pages.insert(page, Page { bytes, mappings: 0, released: false, chunks: BTreeMap::new() });
        Ok(page)
    }

    pub(super) fn map(&mut self, page: PageHandle, address: Address) -> DeviceResult<()> {
        let call = DeviceCall::Map;
        let known = self.pages.get_mut(&page).filter(|known| !known.released);
        let known = known.ok_or_else(|| invalid(call, format!("{page:?} is not a handle")))?;
        if !address.0.is_multiple_of(self.granularity_bytes) {
            return Err(invalid(call, format!("{address} is not aligned to {} bytes", self.granularity_bytes)));
        }
        let end = Address(address.0.saturating_add(known.bytes));
        let reserved = self.reservations.range(..=address).next_back();
        if reserved.is_none_or(|(&start, &bytes)| start.offset(bytes) < end) {
            return Err(invalid(call, format!("{} bytes at {address} are not reserved", known.bytes)));
        }
        let before = self.mappings.range(..end).next_back();
        if let Some((start, _)) = before.filter(|(start, mapping)| start.offset(mapping.bytes) > address) {
            return Err(invalid(call, format!("{} bytes at {address} overlap the mapping at {start}", known.bytes)));
        }
        known.mappings += 1;
        self.mappings.insert(address, Mapping { page, bytes: known.bytes, accessible: false });
        Ok(())
    }

    pub(super) fn set_access(&mut self, address: Address, bytes: u64) -> DeviceResult<()> {
        for start in self.whole_mappings(DeviceCall::SetAccess, address, bytes)? {
            self.mappings.get_mut(&start).expect("it was found just now").accessible = true;
        }
        Ok(())
    }

    /// Removes mappings; nothing may use them.
    pub(super) fn unmap(&mut self, address: Address, bytes: u64) -> DeviceResult<()> {
        for start in self.whole_mappings(DeviceCall::Unmap, address, bytes)? {
            let page = self.mappings.remove(&start).expect("it was found just now").page;
            self.pages.get_mut(&page).expect("a mapping keeps its page").mappings -= 1;
            self.free_if_unused(page);
        }
        Ok(())
    }

    pub(super) fn release(&mut self, page: PageHandle) -> DeviceResult<()> {
        let known = self.pages.get_mut(&page).filter(|known| !known.released);
        known.ok_or_else(|| invalid(DeviceCall::Release, format!("{page:?} is not a handle")))?.released = true;
        self.free_if_unused(page);
        Ok(())
    }

    /// How many mappings begin in the range: what a call on all of them costs.
    pub(super) fn count_mappings(&self, address: Address, bytes: u64) -> u64 {
        self.mappings.range(address..Address(address.0.saturating_add(bytes))).count() as u64
    }

    /// The addresses of the mappings that make up the range.
    pub(super) fn whole_mappings(&self, call: DeviceCall, address: Address, bytes: u64) -> DeviceResult<Vec<Address>> {
        let end = address.0.checked_add(bytes).filter(|_| bytes > 0);
        let end = end.ok_or_else(|| invalid(call, format!("{bytes} bytes at {address} are not a range")))?;
        let mut found = Vec::new();
        let mut next = address;
        while next.0 < end {
            let mapping = self.mappings.get(&next).filter(|mapping| next.0 + mapping.bytes <= end);
            let mapping =
                mapping.ok_or_else(|| invalid(call, format!("no whole mapping of the range begins at {next}")))?;
            found.push(next);
            next = next.offset(mapping.bytes);
        }
        Ok(found)
    }

    /// Adds the physical pieces of `range` to `pieces`.
    ///
    /// # Errors
    /// The first address that is not mapped and accessible.
    pub(super) fn resolve(&self, operand: usize, range: ByteRange, pieces: &mut Vec<Piece>) -> Result<(), Address> {
        let mut next = range.address;
        let end = range.end();
        while next < end {
            let (start, mapping) = self.mappings.range(..=next).next_back().ok_or(next)?;
            let inside = next.0 - start.0;
            if inside >= mapping.bytes || !mapping.accessible {
                return Err(next);
            }
            let bytes = (mapping.bytes - inside).min(end.0 - next.0);
            pieces.push(Piece { operand, page: mapping.page, offset: inside, bytes });
            next = next.offset(bytes);
        }
        Ok(())
    }

    /// The content of the operand, as it is now.
    pub(super) fn read(&self, operand: usize, bytes: u64, pieces: &[Piece]) -> OperandBytes {
        let mut content = OperandBytes::filled(host_size(bytes), UNWRITTEN);
        let mut rest = content.as_bytes_mut();
        for piece in pieces.iter().filter(|piece| piece.operand == operand) {
            let (target, after) = rest.split_at_mut(host_size(piece.bytes));
            self.pages[&piece.page].read(piece.offset, target);
            rest = after;
        }
        content
    }

    /// Gives the operand a new content.
    pub(super) fn write(&mut self, operand: usize, content: &OperandBytes, pieces: &[Piece]) {
        let mut rest = content.as_bytes();
        for piece in pieces.iter().filter(|piece| piece.operand == operand) {
            let (source, after) = rest.split_at(host_size(piece.bytes));
            // Nothing in use can be unmapped, so the page is there.
            self.pages.get_mut(&piece.page).expect("a page in use exists").write(piece.offset, source);
            rest = after;
        }
    }

    fn free_if_unused(&mut self, page: PageHandle) {
        let known = &self.pages[&page];
        if known.released && known.mappings == 0 {
            self.held_bytes -= known.bytes;
            self.pages.remove(&page);
        }
    }

    fn check_size(&self, call: DeviceCall, bytes: u64) -> DeviceResult<()> {
        if bytes > 0 && bytes.is_multiple_of(self.granularity_bytes) {
            return Ok(());
        }
        Err(invalid(call, format!("{bytes} is not a positive multiple of {} bytes", self.granularity_bytes)))
    }
}

impl Page {
    fn read(&self, offset: u64, target: &mut [u8]) {
        for (chunk, inside, range) in chunks(offset, target.len()) {
            if let Some(bytes) = self.chunks.get(&chunk) {
                let length = range.len();
                target[range].copy_from_slice(&bytes[inside..inside + length]);
            }
        }
    }

    fn write(&mut self, offset: u64, source: &[u8]) {
        for (chunk, inside, range) in chunks(offset, source.len()) {
            let bytes =
                self.chunks.entry(chunk).or_insert_with(|| vec![UNWRITTEN; CHUNK_BYTES as usize].into_boxed_slice());
            bytes[inside..inside + range.len()].copy_from_slice(&source[range]);
        }
    }
}

/// Cuts `[offset, offset + length)` at the chunks' borders: chunk, first byte in it, and the part of the range.
fn chunks(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let inside = at % CHUNK_BYTES;
        let bytes = (length - done).min((CHUNK_BYTES - inside) as usize);
        let range = done..done + bytes;
        done += bytes;
        (bytes > 0).then_some((at / CHUNK_BYTES, inside as usize, range))
    })
}

fn host_size(bytes: u64) -> usize {
    usize::try_from(bytes).expect("an operand fits the host's memory")
}

/// The error for an argument that cannot be accepted.
pub(super) fn invalid(call: DeviceCall, what: impl Into<String>) -> DeviceError {
    DeviceError::InvalidValue { call, what: what.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(bytes: &[u8]) -> OperandBytes {
        let mut content = OperandBytes::filled(bytes.len(), 0);
        content.as_bytes_mut().copy_from_slice(bytes);
        content
    }

    #[test]
    fn bytes_cross_chunks_and_pages() {
        let mut memory = Memory::new(0, 1 << 30, 1 << 17);
        let start = memory.reserve(1 << 18).unwrap();
        for index in 0..2 {
            let page = memory.create(1 << 17).unwrap();
            memory.map(page, start.offset(index << 17)).unwrap();
        }
        memory.set_access(start, 1 << 18).unwrap();
        let written: Vec<u8> = (0..200_000u32).map(|index| (index % 251) as u8).collect();
        let range = ByteRange::new(start.offset(1000), written.len() as u64);
        let mut pieces = Vec::new();
        memory.resolve(0, range, &mut pieces).unwrap();
        assert_eq!(pieces.len(), 2);
        memory.write(0, &content(&written), &pieces);
        assert_eq!(memory.read(0, range.bytes, &pieces).as_bytes(), written);

        let mut around = Vec::new();
        memory.resolve(0, ByteRange::new(start.offset(999), 2), &mut around).unwrap();
        assert_eq!(memory.read(0, 2, &around).as_bytes(), [UNWRITTEN, written[0]]);
    }

    #[test]
    fn a_large_device_costs_nothing_until_it_is_written() {
        let mut memory = Memory::new(0, 141 << 30, 2 << 20);
        let page = memory.create(141 << 30).unwrap();
        assert_eq!(memory.pages[&page].chunks.len(), 0);
        assert_eq!(memory.info().free, 0);
        let piece = Piece { operand: 0, page, offset: 140 << 30, bytes: 3 };
        memory.write(0, &content(&[1, 2, 3]), &[piece]);
        assert_eq!(memory.pages[&page].chunks.len(), 1);
    }

    #[test]
    fn reservations_have_a_gap_between_them() {
        let mut memory = Memory::new(1, 1 << 30, 2 << 20);
        let first = memory.reserve(2 << 20).unwrap();
        let second = memory.reserve(2 << 20).unwrap();
        assert!(first.offset(2 << 20) < second);
        memory.unreserve(first, 2 << 20).unwrap();
        assert!(memory.reserve(2 << 20).unwrap() > second, "addresses are not given out twice");
    }
}
