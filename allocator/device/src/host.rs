//! Host memory that copies read and write.

use std::sync::Arc;

use parking_lot::RwLock;

use crate::OperandBytes;

/// A piece of host memory, shared between the caller and the copies that are queued on it. Clones are the same memory.
///
/// The caller must not write it while a copy that reads it is queued, nor read it before a copy that writes it is
/// complete: the host has to have seen a fence after the copy. What looks at the bytes or changes them must not call a
/// device meanwhile: the device may be about to copy, and waits.
#[derive(Clone, Debug)]
pub struct HostMemory {
    bytes: Arc<RwLock<OperandBytes>>,
    pinned: bool,
    len: u64,
}

impl HostMemory {
    /// `bytes` zeroed bytes of page-locked memory: copies are asynchronous.
    #[must_use]
    pub fn pinned(bytes: u64) -> Self {
        Self::new(bytes, true)
    }

    /// `bytes` zeroed bytes of ordinary memory: copies block the host.
    #[must_use]
    pub fn pageable(bytes: u64) -> Self {
        Self::new(bytes, false)
    }

    fn new(bytes: u64, pinned: bool) -> Self {
        let content = OperandBytes::filled(usize::try_from(bytes).expect("host memory fits the host"), 0);
        HostMemory { bytes: Arc::new(RwLock::new(content)), pinned, len: bytes }
    }

    /// Whether the memory is page-locked.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.pinned
    }

    /// Length, bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is no byte in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Looks at the bytes.
    pub fn read<R>(&self, look: impl FnOnce(&OperandBytes) -> R) -> R {
        look(&self.bytes.read())
    }

    /// Changes the bytes.
    pub fn write<R>(&self, change: impl FnOnce(&mut OperandBytes) -> R) -> R {
        change(&mut self.bytes.write())
    }
}
