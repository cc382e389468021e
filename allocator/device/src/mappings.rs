//! What is reserved, created and mapped on one device: the checks that every device makes before it acts.
//!
//! Invariants:
//! - every mapping lies inside one reservation, and no two mappings overlap;
//! - a page counts its mappings; a released page with none does not exist.
//!
//! A `check_…` changes nothing; what follows it cannot fail.

use std::collections::BTreeMap;

use crate::error::invalid;
use crate::{Address, ByteRange, DeviceCall, DeviceResult, PageHandle};

/// Reservations, mappings and pages of one device.
pub(crate) struct Mappings {
    granularity_bytes: u64,
    reservations: BTreeMap<Address, u64>,
    mappings: BTreeMap<Address, Mapping>,
    pages: BTreeMap<PageHandle, Page>,
}

/// One page at one address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    /// The page.
    pub(crate) page: PageHandle,
    /// Its size, bytes.
    pub(crate) bytes: u64,
    /// Whether operations may touch it.
    pub(crate) accessible: bool,
}

struct Page {
    bytes: u64,
    mappings: u32,
    released: bool,
}

impl Mappings {
    pub(crate) fn new(granularity_bytes: u64) -> Self {
        Mappings { granularity_bytes, reservations: BTreeMap::new(), mappings: BTreeMap::new(), pages: BTreeMap::new() }
    }

    pub(crate) fn check_size(&self, call: DeviceCall, bytes: u64) -> DeviceResult<()> {
        if bytes > 0 && bytes.is_multiple_of(self.granularity_bytes) {
            return Ok(());
        }
        Err(invalid(call, format!("{bytes} is not a positive multiple of {} bytes", self.granularity_bytes)))
    }

    pub(crate) fn reserved(&mut self, address: Address, bytes: u64) {
        self.reservations.insert(address, bytes);
    }

    pub(crate) fn check_unreserve(&self, address: Address, bytes: u64) -> DeviceResult<()> {
        let call = DeviceCall::Unreserve;
        if self.reservations.get(&address) != Some(&bytes) {
            return Err(invalid(call, format!("{bytes} bytes at {address} are not one whole reservation")));
        }
        match self.mappings.range(address..address.offset(bytes)).next() {
            Some((inside, _)) => Err(invalid(call, format!("{inside} is still mapped"))),
            None => Ok(()),
        }
    }

    pub(crate) fn unreserved(&mut self, address: Address) {
        self.reservations.remove(&address);
    }

    pub(crate) fn created(&mut self, page: PageHandle, bytes: u64) {
        self.pages.insert(page, Page { bytes, mappings: 0, released: false });
    }

    /// The size of the page that may be mapped there, bytes.
    pub(crate) fn check_map(&self, page: PageHandle, address: Address) -> DeviceResult<u64> {
        let call = DeviceCall::Map;
        let bytes = self.check_page(call, page)?;
        if !address.0.is_multiple_of(self.granularity_bytes) {
            return Err(invalid(call, format!("{address} is not aligned to {} bytes", self.granularity_bytes)));
        }
        let end = Address(address.0.saturating_add(bytes));
        let reserved = self.reservations.range(..=address).next_back();
        if reserved.is_none_or(|(&start, &reserved)| start.offset(reserved) < end) {
            return Err(invalid(call, format!("{bytes} bytes at {address} are not reserved")));
        }
        let before = self.mappings.range(..end).next_back();
        match before.filter(|(start, mapping)| start.offset(mapping.bytes) > address) {
            Some((start, _)) => {
                Err(invalid(call, format!("{bytes} bytes at {address} overlap the mapping at {start}")))
            }
            None => Ok(bytes),
        }
    }

    pub(crate) fn mapped(&mut self, page: PageHandle, address: Address) {
        let known = self.pages.get_mut(&page).expect("it was checked");
        known.mappings += 1;
        self.mappings.insert(address, Mapping { page, bytes: known.bytes, accessible: false });
    }

    /// The addresses of the mappings that make up the range.
    pub(crate) fn whole_mappings(&self, call: DeviceCall, range: ByteRange) -> DeviceResult<Vec<Address>> {
        let ByteRange { address, bytes } = range;
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

    pub(crate) fn made_accessible(&mut self, mappings: &[Address]) {
        for start in mappings {
            self.mappings.get_mut(start).expect("it was checked").accessible = true;
        }
    }

    /// Removes mappings; returns the pages that exist no more.
    pub(crate) fn unmapped(&mut self, mappings: &[Address]) -> Vec<PageHandle> {
        let mut gone = Vec::new();
        for start in mappings {
            let page = self.mappings.remove(start).expect("it was checked").page;
            self.pages.get_mut(&page).expect("a mapping keeps its page").mappings -= 1;
            gone.extend(self.forget_if_unused(page));
        }
        gone
    }

    /// The size of a page that is not released, bytes.
    pub(crate) fn check_page(&self, call: DeviceCall, page: PageHandle) -> DeviceResult<u64> {
        let known = self.pages.get(&page).filter(|known| !known.released);
        Ok(known.ok_or_else(|| invalid(call, format!("{page:?} is not a handle")))?.bytes)
    }

    /// Returns the page if it exists no more.
    pub(crate) fn released(&mut self, page: PageHandle) -> Option<PageHandle> {
        self.pages.get_mut(&page).expect("it was checked").released = true;
        self.forget_if_unused(page)
    }

    /// The mapping that covers or comes before `address`.
    pub(crate) fn at(&self, address: Address) -> Option<(Address, Mapping)> {
        self.mappings.range(..=address).next_back().map(|(&start, &mapping)| (start, mapping))
    }

    /// How many mappings begin in the range: what a call on all of them costs.
    pub(crate) fn count(&self, range: ByteRange) -> u64 {
        let end = Address(range.address.0.saturating_add(range.bytes));
        self.mappings.range(range.address..end).count() as u64
    }

    fn forget_if_unused(&mut self, page: PageHandle) -> Option<PageHandle> {
        let known = &self.pages[&page];
        let unused = known.released && known.mappings == 0;
        unused.then(|| {
            self.pages.remove(&page);
            page
        })
    }
}
