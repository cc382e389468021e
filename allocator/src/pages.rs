//! Physical memory: mapping it into a heap, and taking free handles out of heaps again.
//!
//! A handle leaves a heap only after the host has **seen** the last use of its bytes complete. That later work is
//! ordered after it on the device is not enough: unmapping happens at once, on the host.
//!
//! A handle that the device does not take back is a *stray*. It may still be mapped in the range of a heap, which knows
//! nothing of it: until it is unmapped its addresses are no hole. A stray stays in the list, under its lock, until the
//! device has taken it back, so that whoever plans growth sees every one of the heap that it is in.

use std::ops::Range;

use highwater_core::{Gap, Mapping, PageId, Unoccupied, Wait, handle_sizes};
use highwater_device::{Address, DeviceError, PageHandle};
use highwater_history::{Action, Context};

use crate::heap_state::HeapState;
use crate::shared::{Gate, Shared, count};
use crate::slot::Slot;

/// A handle that no heap has and that the device would not take back: tried again when memory is needed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stray {
    page: PageHandle,
    bytes: u64,
    /// Where it is still mapped.
    mapped_at: Option<Address>,
}

/// Why more memory could not be mapped.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// There is none: the next rung may help. In words.
    NoMemory(String),
    /// The device failed.
    Device(DeviceError),
}

impl From<DeviceError> for Refusal {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::OutOfMemory { .. } => Refusal::NoMemory(error.to_string()),
            other => Refusal::Device(other),
        }
    }
}

impl Shared {
    /// Maps what is missing for `requested` bytes. On error nothing has changed.
    pub(crate) fn grow(
        &self,
        slot: &Slot,
        state: &mut HeapState,
        requested: u64,
        context: Context,
    ) -> Result<(), Refusal> {
        self.retry_strays();
        let gaps = self.plan_growth(state, requested)?;
        let bytes: u64 = gaps.iter().map(|gap| gap.bytes).sum();
        self.ledger.claim(bytes).map_err(|shortage| {
            Refusal::NoMemory(format!(
                "{} more bytes would pass the limit ({} are left below it)",
                shortage.requested, shortage.left
            ))
        })?;
        let (mut mapped, mut created) = (Vec::new(), 0);
        match self.map_gaps(&gaps, &mut mapped, &mut created) {
            Ok(()) => {
                for mapping in mapped {
                    state.heap.map(requested, mapping);
                    let Mapping { address, bytes, .. } = mapping;
                    let action = Action::SegmentMap { address, bytes, stream: u64::from(slot.index.0) };
                    state.note(self.device.now_ns(), action, context);
                }
                Ok(())
            }
            Err(error) => {
                self.ledger.unclaim(bytes - created);
                for mapping in mapped {
                    let mapped_at = Some(Address(mapping.address));
                    self.let_go(Stray { page: PageHandle(mapping.page.0), bytes: mapping.bytes, mapped_at });
                }
                Err(error.into())
            }
        }
    }

    fn plan_growth(&self, state: &mut HeapState, requested: u64) -> Result<Vec<Gap>, Refusal> {
        let taken = self.stray_ranges();
        if let Some(gaps) = state.heap.plan_growth(requested, &taken) {
            return Ok(gaps);
        }
        // One range holds whatever the device has, so there is a second one only where holes or strays are in the way.
        let properties = self.device.properties();
        let granularity = properties.granularity_bytes;
        let too_large = || Refusal::NoMemory(format!("{requested} bytes are more than the device has addresses for"));
        let whole = requested.checked_next_multiple_of(granularity).ok_or_else(too_large)?;
        let bytes = whole.max(properties.total_bytes.next_multiple_of(granularity));
        let address = self.device.reserve(bytes)?;
        state.heap.add_range(requested, address.0, bytes);
        state.heap.plan_growth(requested, &taken).ok_or_else(too_large)
    }

    /// Fills the gaps with handles, and adds up the bytes that were created for it. On error the handle in work has been
    /// let go; those before are in `mapped`.
    fn map_gaps(&self, gaps: &[Gap], mapped: &mut Vec<Mapping>, created: &mut u64) -> Result<(), DeviceError> {
        for gap in gaps {
            let mut address = gap.address;
            for bytes in handle_sizes(gap.bytes, self.device.properties().granularity_bytes) {
                let page = self.device.create(bytes)?;
                self.ledger.created(bytes);
                *created += bytes;
                count(&self.counts.handles_created);
                self.map_handle(page, Address(address), bytes)?;
                mapped.push(Mapping { address, bytes, page: PageId(page.0) });
                address += bytes;
            }
        }
        Ok(())
    }

    fn map_handle(&self, page: PageHandle, address: Address, bytes: u64) -> Result<(), DeviceError> {
        let mut stray = Stray { page, bytes, mapped_at: None };
        let done = self.device.map(page, address).and_then(|()| {
            stray.mapped_at = Some(address);
            self.device.set_access(address, bytes)
        });
        done.inspect_err(|_| self.let_go(stray))
    }

    /// Unmaps and releases a handle; what the device refuses becomes a stray.
    fn let_go(&self, mut stray: Stray) {
        if self.try_let_go(&mut stray) {
            self.ledger.give_back(stray.bytes);
        } else {
            self.strays.lock().push(stray);
        }
    }

    /// Whether the device took it back; if not, what is left is still to do.
    fn try_let_go(&self, stray: &mut Stray) -> bool {
        if let Some(address) = stray.mapped_at {
            if let Err(error) = self.device.unmap(address, stray.bytes) {
                tracing::warn!(%error, "a handle could not be unmapped; trying again later");
                return false;
            }
            stray.mapped_at = None;
        }
        match self.device.release(stray.page) {
            Ok(()) => {
                count(&self.counts.handles_released);
                true
            }
            Err(error) => {
                tracing::warn!(%error, "a handle could not be released; trying again later");
                false
            }
        }
    }

    /// Tries again to give strays back.
    pub(crate) fn retry_strays(&self) {
        self.strays.lock().retain_mut(|stray| {
            let gone = self.try_let_go(stray);
            if gone {
                self.ledger.give_back(stray.bytes);
            }
            !gone
        });
    }

    /// The addresses at which strays are mapped, ascending.
    pub(crate) fn stray_ranges(&self) -> Vec<Range<u64>> {
        let strays = self.strays.lock();
        let range = |stray: &Stray| stray.mapped_at.map(|Address(start)| start..start + stray.bytes);
        let mut ranges: Vec<Range<u64>> = strays.iter().filter_map(range).collect();
        ranges.sort_by_key(|range| range.start);
        ranges
    }

    /// Bytes in handles that the device would not take back so far.
    pub(crate) fn stray_bytes(&self) -> u64 {
        self.strays.lock().iter().map(|stray| stray.bytes).sum()
    }

    /// Unmaps handles of one heap that are wholly free and whose last use is seen complete, until `most` bytes are
    /// returned. Returns the bytes.
    pub(crate) fn return_cached(
        &self,
        gate: &Gate<'_>,
        slot: &Slot,
        state: &mut HeapState,
        most: u64,
        context: Context,
    ) -> u64 {
        self.retire(gate, slot, state, context);
        let candidates = state.heap.wholly_free();
        let last = candidates.iter().map(|&(_, since)| since).max().unwrap_or_default();
        let asked = self.fence_covering(gate, slot, last).and_then(|_| self.poll(gate, slot));
        if let Err(error) = asked {
            tracing::warn!(%error, "asking for the progress of a stream failed; its memory stays cached");
        }
        let completed = slot.clock.completed();
        let mut returned = 0;
        for (mapping, _) in candidates.into_iter().filter(|&(_, since)| since <= completed) {
            if returned >= most {
                break;
            }
            let (address, page) = (Address(mapping.address), PageHandle(mapping.page.0));
            if let Err(error) = self.device.unmap(address, mapping.bytes) {
                tracing::warn!(%error, "a free handle could not be unmapped; it stays cached");
                continue;
            }
            state.heap.unmap(mapping);
            let action = Action::SegmentUnmap {
                address: mapping.address,
                bytes: mapping.bytes,
                stream: u64::from(slot.index.0),
            };
            state.note(self.device.now_ns(), action, context);
            returned += mapping.bytes;
            self.let_go(Stray { page, bytes: mapping.bytes, mapped_at: None });
        }
        returned
    }

    /// What has to be complete before handles of a heap may leave it: the bytes and waits of each. Handles with live
    /// blocks, and those that could leave now, are not among them.
    pub(crate) fn returnable_after(&self, slot: &Slot, state: &HeapState) -> Vec<(u64, Vec<Wait>)> {
        let completed = slot.clock.completed();
        let handles = state.heap.unoccupied().into_iter().map(|Unoccupied { mapping, since, mut waits }| {
            if since > completed {
                waits.push(Wait { stream: slot.index, position: since });
            }
            (mapping.bytes, waits)
        });
        handles.filter(|(_, waits)| !waits.is_empty()).collect()
    }
}
