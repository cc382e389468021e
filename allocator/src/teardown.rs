//! The end of an allocator: its memory goes back to the device.
//!
//! Nobody holds a stream, a block or a fence any more, so no lock is contended. Work may still be queued on the memory:
//! it is waited for, for a bounded time, and what is not seen complete by then stays mapped.

use highwater_core::{Heap, Wait, join_waits};
use highwater_device::Address;
use highwater_history::Context;

use crate::shared::{Gate, Shared};

impl Drop for Shared {
    fn drop(&mut self) {
        let this = &*self;
        if this.process.is_forked() {
            // The device is the parent's: it must not even be dropped here.
            std::mem::forget(this.device.clone());
            return;
        }
        let Some(gate) = this.gate() else {
            tracing::warn!("an allocator ends while a stream of the device captures: its memory stays mapped");
            return;
        };
        let context = Context::here();
        this.close_idle(&gate);
        this.await_uses(&gate, context);
        this.retry_strays();
        for slot in this.slots() {
            let mut inside = slot.station.enter();
            this.return_cached(&gate, slot, &mut inside, u64::MAX, context);
        }
        // Old mappings of other heaps' handles are gone with them.
        this.slots().for_each(|slot| this.unreserve(&slot.station.enter().heap));
        let left = this.ledger.physical().now;
        if left > 0 {
            tracing::warn!(bytes = left, "an allocator ends, and some of its memory could not be returned");
        }
    }
}

impl Shared {
    /// Destroys streams that could not be destroyed when they were let go.
    fn close_idle(&self, gate: &Gate<'_>) {
        let mut registry = self.registry.lock();
        for slot in std::mem::take(&mut *self.idle.lock()) {
            self.close(gate, &mut registry, &slot);
        }
    }

    /// Blocks the host until no handle of a heap is used any more, or its time is over.
    fn await_uses(&self, gate: &Gate<'_>, context: Context) {
        let mut waits: Vec<Wait> = Vec::new();
        for slot in self.slots() {
            let mut inside = slot.station.enter();
            self.retire(gate, slot, &mut inside, context);
            waits.extend(self.returnable_after(slot, &mut inside).into_iter().flat_map(|(_, waits)| waits));
        }
        if let Err(error) = self.wait_out(gate, &join_waits(waits), self.settings.host_wait_timeout()) {
            tracing::warn!(%error, "waiting for the last uses of an allocator's memory failed");
        }
    }

    /// Gives back the address ranges of a heap in which nothing is mapped.
    fn unreserve(&self, heap: &Heap) {
        for (address, bytes) in heap.ranges() {
            let mapped = heap.mappings().any(|mapping| (address..address + bytes).contains(&mapping.address));
            if mapped || self.aliases.any_in(address, address + bytes) {
                continue;
            }
            if let Err(error) = self.device.unreserve(Address(address), bytes) {
                tracing::warn!(%error, "a range of addresses could not be given back");
            }
        }
    }
}
