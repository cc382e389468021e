//! Physical memory: mapping it into a heap, and taking free handles out of heaps again.
//!
//! A handle leaves a heap only after the host has **seen** the last use of its bytes complete. That later work is
//! ordered after it on the device is not enough: unmapping happens at once, on the host.

use highwater_core::{PageId, Unoccupied, Wait};
use highwater_device::{Address, DeviceError, PageHandle};
use highwater_history::{Action, Context};

use crate::heap_state::HeapState;
use crate::shared::{Gate, Shared, count};
use crate::slot::Slot;

/// A handle that no heap has and that the device would not take back: tried again when memory is needed. Where it is still
/// mapped is on the list of [old mappings](crate::aliases).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stray {
    pub(crate) page: PageHandle,
    pub(crate) bytes: u64,
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
    /// Claims bytes below the limit.
    pub(crate) fn claim(&self, bytes: u64) -> Result<(), Refusal> {
        self.ledger.claim(bytes).map_err(|shortage| {
            Refusal::NoMemory(format!(
                "{} more bytes would pass the limit ({} are left below it)",
                shortage.requested, shortage.left
            ))
        })
    }

    /// Reserves one more range of addresses for requests like `requested`. One holds whatever the device has; there are
    /// more where holes and old mappings are in the way.
    pub(crate) fn reserve_for(&self, state: &mut HeapState, requested: u64) -> Result<(), Refusal> {
        let properties = self.device.properties();
        let granularity = properties.granularity_bytes;
        let whole = requested.checked_next_multiple_of(granularity).ok_or_else(|| {
            Refusal::NoMemory(format!("{requested} bytes are more than the device has addresses for"))
        })?;
        let bytes = whole.max(properties.total_bytes.next_multiple_of(granularity));
        let address = self.device.reserve(bytes)?;
        state.heap.add_range(requested, address.0, bytes);
        Ok(())
    }

    /// Releases a handle that no heap has; what the device refuses becomes a stray.
    pub(crate) fn let_go(&self, stray: Stray) {
        if self.try_let_go(stray) {
            self.ledger.give_back(stray.bytes);
        } else {
            self.strays.lock().push(stray);
        }
    }

    fn try_let_go(&self, stray: Stray) -> bool {
        match self.remove_aliases(PageId(stray.page.0)) {
            Ok(true) => {}
            Ok(false) => return false,
            Err(error) => {
                tracing::warn!(%error, "a handle could not be unmapped; trying again later");
                return false;
            }
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

    /// Removes the old mappings of a handle, as far as the host has seen their uses complete; whether none is left.
    fn remove_aliases(&self, page: PageId) -> Result<bool, DeviceError> {
        self.aliases.remove_all(&*self.device, page, |stream| self.slot(stream).clock.completed())
    }

    /// Tries again to give strays back.
    pub(crate) fn retry_strays(&self) {
        let strays = std::mem::take(&mut *self.strays.lock());
        strays.into_iter().for_each(|stray| self.let_go(stray));
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
            let alone = self.remove_aliases(mapping.page);
            match alone.and_then(|alone| {
                if alone { self.device.unmap(address, mapping.bytes).map(|()| true) } else { Ok(false) }
            }) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => {
                    tracing::warn!(%error, "a free handle could not be unmapped; it stays cached");
                    continue;
                }
            }
            state.heap.unmap(mapping);
            let action = Action::SegmentUnmap {
                address: mapping.address,
                bytes: mapping.bytes,
                stream: u64::from(slot.index.0),
            };
            state.note(self.device.now_ns(), action, context);
            returned += mapping.bytes;
            self.let_go(Stray { page, bytes: mapping.bytes });
        }
        returned
    }

    /// What has to be complete before handles of a heap may leave it: the bytes and waits of each. Handles with live
    /// blocks, and those that could leave now, are not among them.
    pub(crate) fn returnable_after(&self, slot: &Slot, state: &mut HeapState) -> Vec<(u64, Vec<Wait>)> {
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
