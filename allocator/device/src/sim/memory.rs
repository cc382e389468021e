//! The memory of one device: address space, physical pages, mappings, and the bytes.
//!
//! Invariants:
//! - `held_bytes` is the sum of the sizes of all pages, and with what other processes have no more than all of it;
//! - addresses are never given out twice, and a gap follows each reservation: a stale or overrunning address faults.
//!
//! Each method checks all arguments before it changes anything.

use std::collections::BTreeMap;

use crate::error::invalid;
use crate::mappings::Mappings;
use crate::{
    Address, ByteRange, DeviceCall, DeviceError, DeviceResult, MemoryInfo, OperandBytes, PageHandle, ProcessMemory,
};

/// Bytes that nobody has written (a NaN pattern for every float format).
pub(super) const UNWRITTEN: u8 = 0xFF;
/// Bytes are stored in pieces of this size, each only once it is written.
const CHUNK_BYTES: u64 = 64 << 10;
/// Address space of a device, bytes.
const SPACE_BYTES: u64 = 1 << 46;
/// The number of the process that uses the devices.
const OWN_PID: u32 = 1;

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
    /// What other processes have, by their number.
    others: BTreeMap<u32, u64>,
    next_page: u64,
    next_address: u64,
    end_address: u64,
    mappings: Mappings,
    contents: BTreeMap<PageHandle, Content>,
}

/// The bytes of a page.
struct Content {
    bytes: u64,
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
            others: BTreeMap::new(),
            next_page: (u64::from(ordinal) << 40) + 1,
            next_address,
            end_address: next_address + SPACE_BYTES,
            mappings: Mappings::new(granularity_bytes),
            contents: BTreeMap::new(),
        }
    }

    pub(super) fn info(&self) -> MemoryInfo {
        let others: u64 = self.others.values().sum();
        MemoryInfo { free: self.total_bytes - self.held_bytes - others, total: self.total_bytes }
    }

    /// Another process has so much of the memory from now on.
    pub(super) fn occupy(&mut self, pid: u32, bytes: u64) {
        assert!(pid != OWN_PID, "process {pid} is this one");
        let before = self.others.remove(&pid).unwrap_or(0);
        let free = self.info().free;
        assert!(bytes <= free, "{bytes} bytes for process {pid}, which had {before}: {free} bytes are left for it");
        if bytes > 0 {
            self.others.insert(pid, bytes);
        }
    }

    /// Who has how much.
    pub(super) fn processes(&self) -> Vec<ProcessMemory> {
        let own = ProcessMemory { pid: OWN_PID, bytes: self.held_bytes, is_own: true };
        let others = self.others.iter().map(|(&pid, &bytes)| ProcessMemory { pid, bytes, is_own: false });
        [own].into_iter().chain(others).collect()
    }

    pub(super) fn reserve(&mut self, bytes: u64) -> DeviceResult<Address> {
        self.mappings.check_size(DeviceCall::Reserve, bytes)?;
        let start = self.next_address;
        let end = start.checked_add(bytes).filter(|&end| end < self.end_address);
        let end = end.ok_or_else(|| invalid(DeviceCall::Reserve, format!("no {bytes} bytes of addresses left")))?;
        self.next_address = end + self.granularity_bytes;
        self.mappings.reserved(Address(start), bytes);
        Ok(Address(start))
    }

    pub(super) fn unreserve(&mut self, address: Address, bytes: u64) -> DeviceResult<()> {
        self.mappings.check_unreserve(address, bytes)?;
        self.mappings.unreserved(address);
        Ok(())
    }

    pub(super) fn create(&mut self, bytes: u64) -> DeviceResult<PageHandle> {
        self.mappings.check_size(DeviceCall::Create, bytes)?;
        let free = self.info().free;
        if bytes > free {
            return Err(DeviceError::OutOfMemory { requested: bytes, free });
        }
        let page = PageHandle(self.next_page);
        self.next_page += 1;
        self.held_bytes += bytes;
        self.mappings.created(page, bytes);
        self.contents.insert(page, Content { bytes, chunks: BTreeMap::new() });
        Ok(page)
    }

    pub(super) fn map(&mut self, page: PageHandle, address: Address) -> DeviceResult<()> {
        self.mappings.check_map(page, address)?;
        self.mappings.mapped(page, address);
        Ok(())
    }

    pub(super) fn set_access(&mut self, range: ByteRange) -> DeviceResult<()> {
        let whole = self.mappings.whole_mappings(DeviceCall::SetAccess, range)?;
        self.mappings.made_accessible(&whole);
        Ok(())
    }

    /// Whether the range may be unmapped.
    pub(super) fn check_unmap(&self, range: ByteRange) -> DeviceResult<()> {
        self.mappings.whole_mappings(DeviceCall::Unmap, range).map(drop)
    }

    /// Removes mappings; nothing may use them.
    pub(super) fn unmap(&mut self, range: ByteRange) -> DeviceResult<()> {
        let whole = self.mappings.whole_mappings(DeviceCall::Unmap, range)?;
        let gone = self.mappings.unmapped(&whole);
        self.forget(gone);
        Ok(())
    }

    pub(super) fn release(&mut self, page: PageHandle) -> DeviceResult<()> {
        self.mappings.check_page(DeviceCall::Release, page)?;
        let gone = self.mappings.released(page);
        self.forget(gone);
        Ok(())
    }

    /// How many mappings begin in the range: what a call on all of them costs.
    pub(super) fn count_mappings(&self, range: ByteRange) -> u64 {
        self.mappings.count(range)
    }

    /// Adds the physical pieces of `range` to `pieces`.
    ///
    /// # Errors
    /// The first address that is not mapped and accessible.
    pub(super) fn resolve(&self, operand: usize, range: ByteRange, pieces: &mut Vec<Piece>) -> Result<(), Address> {
        let mut next = range.address;
        let end = range.end();
        while next < end {
            let (start, mapping) = self.mappings.at(next).ok_or(next)?;
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
            self.contents[&piece.page].read(piece.offset, target);
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
            self.contents.get_mut(&piece.page).expect("a page in use exists").write(piece.offset, source);
            rest = after;
        }
    }

    fn forget(&mut self, gone: impl IntoIterator<Item = PageHandle>) {
        for page in gone {
            self.held_bytes -= self.contents.remove(&page).expect("every page has a content").bytes;
        }
    }
}

impl Content {
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
        memory.set_access(ByteRange::new(start, 1 << 18)).unwrap();
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
        assert_eq!(memory.contents[&page].chunks.len(), 0);
        assert_eq!(memory.info().free, 0);
        let piece = Piece { operand: 0, page, offset: 140 << 30, bytes: 3 };
        memory.write(0, &content(&[1, 2, 3]), &[piece]);
        assert_eq!(memory.contents[&page].chunks.len(), 1);
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
