//! Pages by VMM handles: the books, then the driver.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use super::driver;
use crate::mappings::Mappings;
use crate::{Address, ByteRange, DeviceCall, DeviceError, DeviceResult, MemoryInfo, PageHandle};

/// How often setting access is tried while the driver is not ready for it, and the pause between two tries.
const ACCESS_TRIES: u32 = 200;
const ACCESS_PAUSE: Duration = Duration::from_micros(50);

/// The memory of a device.
pub(super) struct Memory {
    ordinal: u32,
    mappings: Mappings,
    pages: BTreeMap<PageHandle, driver::Page>,
    next_page: u64,
}

impl Memory {
    pub(super) fn new(ordinal: u32, granularity_bytes: u64) -> Self {
        Memory { ordinal, mappings: Mappings::new(granularity_bytes), pages: BTreeMap::new(), next_page: 1 }
    }

    pub(super) fn info(&self) -> DeviceResult<MemoryInfo> {
        let (free, total) = driver::memory_info()?;
        Ok(MemoryInfo { free, total })
    }

    pub(super) fn reserve(&mut self, bytes: u64) -> DeviceResult<Address> {
        self.mappings.check_size(DeviceCall::Reserve, bytes)?;
        let address = driver::reserve(bytes)?;
        self.mappings.reserved(address, bytes);
        Ok(address)
    }

    pub(super) fn unreserve(&mut self, address: Address, bytes: u64) -> DeviceResult<()> {
        self.mappings.check_unreserve(address, bytes)?;
        driver::unreserve(address, bytes)?;
        self.mappings.unreserved(address);
        Ok(())
    }

    pub(super) fn create(&mut self, bytes: u64) -> DeviceResult<PageHandle> {
        self.mappings.check_size(DeviceCall::Create, bytes)?;
        let created = driver::create(self.ordinal, bytes).map_err(|error| match error {
            DeviceError::OutOfMemory { requested, .. } => {
                DeviceError::OutOfMemory { requested, free: self.info().map_or(0, |info| info.free) }
            }
            other => other,
        })?;
        let page = PageHandle(self.next_page);
        self.next_page += 1;
        self.pages.insert(page, created);
        self.mappings.created(page, bytes);
        Ok(page)
    }

    pub(super) fn map(&mut self, page: PageHandle, address: Address) -> DeviceResult<()> {
        let bytes = self.mappings.check_map(page, address)?;
        driver::map(self.pages[&page], address, bytes)?;
        self.mappings.mapped(page, address);
        Ok(())
    }

    pub(super) fn set_access(&mut self, address: Address, bytes: u64) -> DeviceResult<()> {
        let whole = self.mappings.whole_mappings(DeviceCall::SetAccess, ByteRange::new(address, bytes))?;
        for _ in 0..ACCESS_TRIES {
            if driver::set_access(self.ordinal, address, bytes)? {
                self.mappings.made_accessible(&whole);
                return Ok(());
            }
            thread::sleep(ACCESS_PAUSE);
        }
        Err(driver::error(DeviceCall::SetAccess, cudarc::driver::sys::CUresult::CUDA_ERROR_NOT_READY))
    }

    pub(super) fn unmap(&mut self, address: Address, bytes: u64) -> DeviceResult<()> {
        let whole = self.mappings.whole_mappings(DeviceCall::Unmap, ByteRange::new(address, bytes))?;
        driver::unmap(address, bytes)?;
        self.mappings.unmapped(&whole);
        Ok(())
    }

    /// The driver's handle goes at once; its memory stays as long as a mapping does.
    pub(super) fn release(&mut self, page: PageHandle) -> DeviceResult<()> {
        self.mappings.check_page(DeviceCall::Release, page)?;
        driver::release(self.pages[&page])?;
        self.pages.remove(&page);
        self.mappings.released(page);
        Ok(())
    }
}
