//! Time stamps that many records share.
//!
//! Reading a clock takes longer than all the rest of a record. So a heap's records take the time that was read last, which is
//! read anew for the first record after work was submitted to the stream, and after [`RECORDS`] of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use highwater_device::Device;

/// The most records with one reading.
const RECORDS: u32 = 64;

/// The time as a heap's records tell it. Alone on its cache lines (two, for they are fetched in pairs): what one stream
/// writes at each record must not slow another one down.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Stamp {
    device: Arc<dyn Device>,
    read_ns: AtomicU64,
    /// How many more records may have it.
    left: AtomicU32,
}

impl Stamp {
    pub(crate) fn new(device: Arc<dyn Device>) -> Self {
        Stamp { device, read_ns: AtomicU64::new(0), left: AtomicU32::new(0) }
    }

    /// The time for a record, on the device's clock, ns. Only whoever is inside the heap asks.
    #[inline]
    pub(crate) fn read(&self) -> u64 {
        // No other thread counts at the same time, and a refresh that is lost makes a time older, not wrong.
        match self.left.load(Ordering::Relaxed).checked_sub(1) {
            Some(left) => {
                self.left.store(left, Ordering::Relaxed);
                self.read_ns.load(Ordering::Relaxed)
            }
            None => self.read_anew(),
        }
    }

    /// The time that was read last, ns.
    #[inline]
    pub(crate) fn last(&self) -> u64 {
        self.read_ns.load(Ordering::Relaxed)
    }

    #[cold]
    fn read_anew(&self) -> u64 {
        let now = self.device.now_ns();
        self.read_ns.store(now, Ordering::Relaxed);
        self.left.store(RECORDS - 1, Ordering::Relaxed);
        now
    }

    /// Something has happened that takes longer than reading a clock.
    #[inline]
    pub(crate) fn refresh(&self) {
        self.left.store(0, Ordering::Relaxed);
    }
}
