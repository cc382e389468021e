//! Host memory that copies read and write.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytemuck::Pod;
use parking_lot::RwLock;

use crate::{DeviceResult, OperandBytes};

/// A piece of host memory, shared between the caller and the copies that are queued on it. Clones are the same memory.
///
/// The caller must not write it while a copy that reads it is queued, nor read it before a copy that writes it is
/// complete: the host has to have seen a fence after the copy. What looks at the bytes or changes them must not call a
/// device meanwhile: the device may be about to copy, and waits.
#[derive(Clone)]
pub struct HostMemory {
    content: Arc<Content>,
    pinned: bool,
    len: u64,
}

struct Content {
    id: u64,
    /// What keeps the bytes page-locked for a driver. Dropped first.
    lock: OnceLock<Box<dyn Any + Send + Sync>>,
    bytes: RwLock<OperandBytes>,
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
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let content = Content { id, lock: OnceLock::new(), bytes: RwLock::new(content) };
        HostMemory { content: Arc::new(content), pinned, len: bytes }
    }

    /// Its number: unique within the process, never used twice, equal for clones.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.content.id
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

    /// Looks at the elements.
    ///
    /// # Panics
    /// When the length is not a whole number of `T`.
    pub fn read<T: Pod, R>(&self, look: impl FnOnce(&[T]) -> R) -> R {
        look(self.content.bytes.read().as_slice())
    }

    /// Changes the elements.
    ///
    /// # Panics
    /// When the length is not a whole number of `T`.
    pub fn write<T: Pod, R>(&self, change: impl FnOnce(&mut [T]) -> R) -> R {
        change(self.content.bytes.write().as_mut_slice())
    }

    /// The address of the first byte; it is page-locked by `lock` the first time. A driver copies from and to it while
    /// the caller keeps away from the bytes, and while the driver keeps a clone.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only a driver needs addresses"))]
    pub(crate) fn locked_address(
        &self,
        lock: impl FnOnce(*mut u8, usize) -> DeviceResult<Box<dyn Any + Send + Sync>>,
    ) -> DeviceResult<*mut u8> {
        let mut bytes = self.content.bytes.write();
        let bytes = bytes.as_bytes_mut();
        if self.pinned && !bytes.is_empty() && self.content.lock.get().is_none() {
            let locked = lock(bytes.as_mut_ptr(), bytes.len())?;
            // Under the write lock: nobody else has set it since.
            assert!(self.content.lock.set(locked).is_ok(), "memory is locked once");
        }
        Ok(bytes.as_mut_ptr())
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostMemory").field("len", &self.len).field("pinned", &self.pinned).finish_non_exhaustive()
    }
}
