//! Memory by address, for callers that cannot hold a [`Buffer`](crate::Buffer).

use highwater_core::Until;
use highwater_device::Address;
use highwater_history::Context;

use crate::allocation::Allocation;
use crate::error::{AllocError, PointerError};
use crate::{Allocator, Stream};

impl Allocator {
    /// `bytes` bytes on `stream`, as an address. For zero bytes the address is 0, and nothing has to be freed. A block
    /// keeps its stream and the allocator alive until it is freed.
    ///
    /// # Errors
    /// As [`Stream::alloc`].
    ///
    /// # Panics
    /// When the stream belongs to another allocator.
    #[track_caller]
    pub fn alloc_raw(&self, stream: &Stream, bytes: u64) -> Result<Address, AllocError> {
        self.own(stream);
        let allocation = Allocation::new(stream, bytes, Context::here())?;
        allocation.escape();
        let address = allocation.address();
        if bytes > 0 {
            self.shared().raw.insert(address, allocation);
        }
        Ok(Address(address))
    }

    /// Gives a raw block back, as dropping a buffer does.
    ///
    /// # Errors
    /// When no raw block starts there. Address 0 is always accepted.
    pub fn free_raw(&self, address: Address) -> Result<(), PointerError> {
        if address.0 == 0 {
            return Ok(());
        }
        // Taken out of the map first: the block's end enters its heap.
        let removed = self.shared().raw.remove(&address.0);
        removed.map(drop).ok_or(PointerError::Unknown { address: address.0 })
    }

    /// Everything that `stream` is given until the block is freed may use it.
    ///
    /// # Errors
    /// When no raw block starts there.
    ///
    /// # Panics
    /// When the stream belongs to another allocator.
    #[track_caller]
    pub fn record_stream_raw(&self, address: Address, stream: &Stream) -> Result<(), PointerError> {
        self.own(stream);
        if address.0 == 0 {
            return Ok(());
        }
        let context = Context::here();
        let found = self.shared().raw.get(&address.0).ok_or(PointerError::Unknown { address: address.0 })?;
        found.note_use(stream.slot(), Until::Free, context);
        Ok(())
    }
}
