//! The memory of a device at a moment.

use crate::{
    read::{Loaded, LoadedDevice},
    state::{curves::Frees, memory::Memory, rules::Rules},
};

use super::moment::{self, When, WhenError};

/// The memory of one device before one event, found by undoing the trace from its end.
#[derive(Debug)]
pub struct At<'a> {
    pub(super) loaded: &'a Loaded,
    pub(super) index: usize,
    pub(super) row: usize,
    pub(super) rules: Rules,
    pub(super) memory: Memory,
}

/// Where the bytes of a device are, and in how many pieces.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct Sums {
    /// The program's blocks, bytes as asked for.
    pub live_bytes: u64,
    /// What these blocks take beyond that, bytes.
    pub rounding_bytes: u64,
    /// Blocks that were freed and wait, bytes as taken.
    pub pending_bytes: u64,
    /// Free in segments, bytes.
    pub cached_bytes: u64,
    /// Segments, bytes: the sum of the other four.
    pub reserved_bytes: u64,
    /// Number of live blocks.
    pub live_blocks: u64,
    /// Number of pending blocks.
    pub pending_blocks: u64,
    /// Number of segments.
    pub segments: u64,
}

impl Sums {
    pub(super) fn of(memory: &Memory) -> Self {
        let mut sums = Self { segments: memory.segments.len() as u64, ..Self::default() };
        sums.reserved_bytes = memory.segments.values().map(|segment| segment.bytes).fold(0, u64::saturating_add);
        for held in memory.blocks.values() {
            if held.pending {
                sums.pending_bytes += held.bytes;
                sums.pending_blocks += 1;
            } else {
                sums.live_bytes += held.requested;
                sums.rounding_bytes += held.bytes - held.requested;
                sums.live_blocks += 1;
            }
        }
        let used = sums.live_bytes + sums.rounding_bytes + sums.pending_bytes;
        sums.cached_bytes = sums.reserved_bytes - used;
        sums
    }
}

impl<'a> At<'a> {
    /// The memory of a device at a moment.
    ///
    /// # Errors
    /// If the snapshot has no such device, or its trace no such moment.
    pub fn of(loaded: &'a Loaded, device: usize, when: &When) -> Result<Self, WhenError> {
        Ok(Self::before(loaded, device, moment::row(loaded, device, when)?))
    }

    /// The memory before a row, which must be there.
    pub(super) fn before(loaded: &'a Loaded, index: usize, row: usize) -> Self {
        let device = &loaded.devices[index];
        let rules = Rules::of(loaded);
        let memory = Memory::before(device, &rules, Frees::of(device), row);
        Self { loaded, index, row, rules, memory }
    }

    /// Index of the device.
    #[must_use]
    pub fn device(&self) -> usize {
        self.index
    }

    /// Memory is as it was before the event of this index; at the end it is the number of events.
    #[must_use]
    pub fn row(&self) -> usize {
        self.row
    }

    /// Microseconds from the first event of the file to the moment; `None` if events have no times.
    #[must_use]
    pub fn since_start_us(&self) -> Option<u64> {
        let trace = &self.source().trace;
        let time = trace.times_us().get(self.row).or(trace.times_us().last()).copied()?;
        trace.is_timed().then(|| time.saturating_sub(moment::start_us(self.loaded)))
    }

    /// Where the bytes are.
    #[must_use]
    pub fn sums(&self) -> Sums {
        Sums::of(&self.memory)
    }

    /// Events and blocks that fit nothing: if there are any, sums may be off by theirs.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.memory.faults
    }

    pub(super) fn source(&self) -> &'a LoadedDevice {
        &self.loaded.devices[self.index]
    }
}
