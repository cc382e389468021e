//! Statistics, under PyTorch's key names where the meaning is the same.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use highwater_core::{Books, GaugeReading, Rung};

use crate::Allocator;
use crate::heap_state::Tally;

/// The state of an allocator in numbers; all sizes are bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct MemoryStats {
    /// In use, as asked for.
    pub live: GaugeReading,
    /// Physical memory held.
    pub reserved: GaugeReading,
    /// In use beyond what was asked for.
    pub rounding_bytes: u64,
    /// Freed, and still used by other streams.
    pub pending_bytes: u64,
    /// The same by the name of the stream that is waited for (a block that waits for two counts at both).
    pub pending_bytes_by_stream: BTreeMap<String, u64>,
    /// Free in the heaps.
    pub cached_bytes: u64,
    /// In handles that the device would not take back so far.
    pub stray_bytes: u64,
    /// Requests met so far.
    pub allocations: u64,
    /// Blocks given back so far.
    pub frees: u64,
    /// Requests by the rung of the ladder that met them.
    pub requests_by_rung: BTreeMap<&'static str, u64>,
    /// Requests that failed.
    pub out_of_memory: u64,
    /// Handles taken from the device.
    pub handles_created: u64,
    /// Handles given back to it.
    pub handles_released: u64,
    /// Free handles that were moved to where a request needed them.
    pub pages_moved: u64,
    /// Those of them that were mapped anew for it; the others came back to an old mapping.
    pub pages_remapped: u64,
    /// Addresses taken by old mappings of handles that have moved.
    pub old_mappings_bytes: u64,
    /// Waits put on streams, so that they come after former uses of their memory.
    pub waits_inserted: u64,
    /// Times that a request blocked the host: one for memory, or in launch-blocking mode any submission.
    pub host_stalls: u64,
    /// Host time spent so, ns.
    pub host_stall_ns: u64,
    /// Fences recorded.
    pub fences_recorded: u64,
}

impl Allocator {
    /// The statistics of this moment. Heaps are read one after the other.
    #[must_use]
    pub fn memory_stats(&self) -> MemoryStats {
        let shared = self.shared();
        let counts = &shared.counts;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut books = Books::default();
        let mut by_stream = BTreeMap::new();
        let mut tally = Tally::default();
        for slot in shared.slots() {
            let inside = slot.station.enter();
            books += inside.heap.books();
            tally += inside.tally;
            for (stream, bytes) in inside.heap.pending_by_stream() {
                *by_stream.entry(shared.slot(stream).name().to_string()).or_insert(0) += bytes;
            }
        }
        let requests = |rung| match rung {
            Rung::OwnFree => tally.own_free,
            rung => counts.of_rung(rung),
        };
        MemoryStats {
            live: GaugeReading { now: books.live, peak: shared.peak.bytes(), total: tally.requested },
            reserved: shared.ledger.physical(),
            rounding_bytes: books.rounding,
            pending_bytes: books.pending,
            pending_bytes_by_stream: by_stream,
            cached_bytes: books.cached,
            stray_bytes: shared.stray_bytes(),
            allocations: tally.allocations,
            frees: tally.frees,
            requests_by_rung: Rung::ALL.iter().map(|&rung| (rung.name(), requests(rung))).collect(),
            out_of_memory: read(&counts.out_of_memory),
            handles_created: read(&counts.handles_created),
            handles_released: read(&counts.handles_released),
            pages_moved: read(&counts.pages_moved),
            pages_remapped: read(&counts.pages_remapped),
            old_mappings_bytes: shared.aliases.bytes(),
            waits_inserted: read(&counts.waits_inserted),
            host_stalls: read(&counts.host_stalls),
            host_stall_ns: read(&counts.host_stall_ns),
            fences_recorded: read(&counts.fences_recorded),
        }
    }

    /// The peaks start again from what is in use now.
    pub fn reset_peak_memory_stats(&self) {
        self.shared().ledger.reset_peak();
        self.shared().reset_live_peak();
    }
}

impl MemoryStats {
    /// As (key, value): PyTorch's keys, then this allocator's own, all in alphabetical order.
    #[must_use]
    pub fn to_map(&self) -> BTreeMap<String, u64> {
        let mut map = BTreeMap::new();
        let mut put = |key: &str, value: u64| {
            map.insert(key.to_owned(), value);
        };
        for (name, gauge) in [("requested_bytes", self.live), ("reserved_bytes", self.reserved)] {
            put(&format!("{name}.all.current"), gauge.now);
            put(&format!("{name}.all.peak"), gauge.peak);
            put(&format!("{name}.all.allocated"), gauge.total);
            put(&format!("{name}.all.freed"), gauge.total - gauge.now);
        }
        let allocated = self.live.now + self.rounding_bytes;
        put("allocated_bytes.all.current", allocated);
        put("active_bytes.all.current", allocated + self.pending_bytes);
        put("inactive_split_bytes.all.current", self.cached_bytes);
        put("allocation.all.current", self.allocations - self.frees);
        put("allocation.all.allocated", self.allocations);
        put("allocation.all.freed", self.frees);
        put("num_device_alloc", self.handles_created);
        put("num_device_free", self.handles_released);
        put("num_ooms", self.out_of_memory);
        put("pending_bytes", self.pending_bytes);
        put("stray_bytes", self.stray_bytes);
        put("pages_moved", self.pages_moved);
        put("pages_remapped", self.pages_remapped);
        put("old_mappings_bytes", self.old_mappings_bytes);
        put("waits_inserted", self.waits_inserted);
        put("host_stalls", self.host_stalls);
        put("host_stall_ns", self.host_stall_ns);
        put("fences_recorded", self.fences_recorded);
        for (rung, requests) in &self.requests_by_rung {
            put(&format!("requests_by_rung.{rung}"), *requests);
        }
        for (stream, bytes) in &self.pending_bytes_by_stream {
            put(&format!("pending_bytes_by_stream.{stream}"), *bytes);
        }
        map
    }
}
