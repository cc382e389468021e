//! The model of a request: what is tried in which order, and what it does to the pages.

use highwater::device::DeviceCall;
use highwater::{OutOfMemory, StreamBytes};

use super::heap::{Growth, Span, largest_handle, latest};
use super::machine::Fault;
use super::model::{Model, RUNGS, Stray};

/// Why a request failed.
#[derive(Debug)]
pub(super) enum Refused {
    OutOfMemory(Box<OutOfMemory>),
    Failed(Fault),
}

impl From<Fault> for Refused {
    fn from(fault: Fault) -> Self {
        Refused::Failed(fault)
    }
}

/// Whether a rung asks, records or waits for fences: it is left out while a stream captures.
fn touches_fences(rung: &str) -> bool {
    !matches!(rung, "own_free" | "grow" | "callbacks")
}

impl Model {
    /// Meets a request on a stream.
    pub(super) fn request(&mut self, stream: usize, requested: u64) -> Result<(Span, u64), Refused> {
        let place = self.all_streams[stream].place;
        let (start_ns, mut stalled_ns) = (self.machine.now_ns, 0);
        self.enter(place);
        let (mut rung, mut placed) = (0, None);
        loop {
            let block = self.blocks.len();
            if let Some(placed) = placed.or_else(|| self.places[place].heap.place(requested, block)) {
                self.counts.allocations += 1;
                self.counts.rungs[rung] += 1;
                self.live.now += requested;
                self.live.total += requested;
                self.live.peak = self.live.peak.max(self.live.now);
                self.leave(place);
                return Ok(placed);
            }
            rung += 1;
            while rung < RUNGS.len() && !self.gate() && touches_fences(RUNGS[rung]) {
                rung += 1;
            }
            if rung >= RUNGS.len() || requested > self.limit {
                self.leave(place);
                // A free that came during the last rung is as good as one that comes after the error.
                if !self.stepped_in {
                    self.check_that_nothing_helps(place, requested, start_ns);
                }
                return Err(Refused::OutOfMemory(Box::new(self.report(place, requested))));
            }
            self.stepped_in = false;
            placed = match self.act(RUNGS[rung], place, requested, &mut stalled_ns) {
                Ok(placed) => placed,
                Err(fault) => {
                    self.leave(place);
                    return Err(Refused::Failed(fault));
                }
            };
            self.deliver(place);
        }
    }

    /// Does what a rung says; where the request is, if that has placed it.
    fn act(
        &mut self,
        rung: &str,
        place: usize,
        requested: u64,
        stalled_ns: &mut u64,
    ) -> Result<Option<(Span, u64)>, Fault> {
        match rung {
            "own_pending" => self.retire(place),
            // Nothing moves where nothing is lent.
            "move" => {}
            "grow" => return self.grow(place, requested),
            "order" => {
                if let Some(placed) = self.order(place, requested) {
                    return Ok(Some(placed));
                }
                return self.grow(place, requested);
            }
            "callbacks" => {
                self.leave(place);
                self.run_callbacks();
                self.enter(place);
                if self.gate() {
                    self.retire(place);
                }
            }
            "return_cached" => {
                if self.return_missing(place, requested) > 0 {
                    return self.grow(place, requested);
                }
            }
            "host_wait_own" => {
                if let Some(waits) = self.places[place].heap.sufficient(requested) {
                    self.stall(place, &waits, stalled_ns)?;
                    self.retire(place);
                }
            }
            _ => loop {
                let waits = self.waits_for_missing(place, requested);
                let mut passed = false;
                if !waits.is_empty() {
                    passed = self.stall(place, &waits, stalled_ns)?;
                    self.retire(place);
                }
                self.return_missing(place, requested);
                let placed = self.grow(place, requested)?;
                if placed.is_some() || !passed {
                    return Ok(placed);
                }
            },
        }
        Ok(None)
    }

    /// The stream waits for the frees that suffice, on the device; where the request is, if it has a place then.
    fn order(&mut self, place: usize, requested: u64) -> Option<(Span, u64)> {
        let waits = self.places[place].heap.sufficient(requested)?;
        if waits.is_empty() {
            return None;
        }
        for (other, mark) in waits {
            let Ok(fence) = self.fence_after(other, mark) else { break };
            let Some(fence) = fence else { continue };
            let stream = self.places[place].stream.expect("somebody asks for memory on it");
            if self.wait(stream, fence).is_err() {
                break;
            }
            self.counts.waits_inserted += 1;
        }
        self.retire(place);
        let block = self.blocks.len();
        self.places[place].heap.place(requested, block)
    }

    /// Blocks the host for marks, for what is left of the request's time; whether they are passed. Nobody is inside
    /// meanwhile.
    fn stall(&mut self, place: usize, waits: &[(usize, u64)], stalled_ns: &mut u64) -> Result<bool, Fault> {
        self.leave(place);
        let start_ns = self.machine.now_ns;
        let waited = self.wait_out(waits, self.timeout_ns.saturating_sub(*stalled_ns));
        let spent_ns = self.machine.now_ns - start_ns;
        *stalled_ns += spent_ns;
        self.enter(place);
        self.counts.host_stalls += 1;
        self.counts.host_stall_ns += spent_ns;
        // The history notes what the device says of its memory then.
        let free = self.machine.free();
        let _noted = self.seen(free);
        waited
    }

    fn wait_out(&mut self, waits: &[(usize, u64)], timeout_ns: u64) -> Result<bool, Fault> {
        let start_ns = self.machine.now_ns;
        for &(place, mark) in waits {
            let Some(fence) = self.fence_after(place, mark)? else { continue };
            let spent_ns = self.machine.now_ns - start_ns;
            if !self.synchronize(fence, timeout_ns.saturating_sub(spent_ns))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    // ---- pages

    /// Bytes of physical memory that the allocator holds: what the device says, without what others hold.
    pub(super) fn physical(&self) -> u64 {
        self.machine.held - self.hogged.iter().sum::<u64>()
    }

    /// Maps what is missing for a request, and places it; `None` when there is no memory for it, and then nothing has
    /// changed. Nobody is inside while the device is called.
    fn grow(&mut self, place: usize, requested: u64) -> Result<Option<(Span, u64)>, Fault> {
        self.retry_strays();
        let granularity = self.machine.granularity;
        let largest = largest_handle(requested, self.physical(), granularity);
        let growth = match self.places[place].heap.growth(requested, largest, &self.old_mappings()) {
            Some(growth) => growth,
            None => {
                let bytes = requested.next_multiple_of(granularity).max(self.machine.total);
                let reserved = self.machine.reserve(bytes);
                let start = self.seen(reserved)?;
                self.places[place].heap.add_range(requested, Span { start, bytes });
                let planned = self.places[place].heap.growth(requested, largest, &self.old_mappings());
                planned.expect("a whole range is free")
            }
        };
        if self.physical() + growth.bytes() > self.limit {
            return Ok(None);
        }
        self.leave(place);
        let done = self.map(place, &growth);
        self.enter(place);
        if !done? {
            return Ok(None);
        }
        for &handle in &growth.handles {
            self.places[place].heap.map(requested, handle);
        }
        let block = self.blocks.len();
        Ok(Some((growth.block, self.places[place].heap.place_at(growth.block, block))))
    }

    /// Clears the way and maps; whether there was memory for it. If not, or on a failure, nothing stays mapped.
    fn map(&mut self, place: usize, growth: &Growth) -> Result<bool, Fault> {
        for &old in &growth.removed {
            self.reach(DeviceCall::Unmap);
            let removed = self.machine.call(DeviceCall::Unmap);
            self.seen(removed)?;
            for stray in self.strays.iter_mut().filter(|stray| stray.mapped == Some(old)) {
                stray.mapped = None;
            }
        }
        self.mark(place);
        let mut mapped = Vec::new();
        for &handle in &growth.handles {
            match self.map_handle(handle) {
                Ok(true) => mapped.push(handle),
                failed => {
                    mapped.into_iter().for_each(|handle| self.discard(handle));
                    return failed;
                }
            }
        }
        Ok(true)
    }

    /// Gives a handle back that is mapped and was never used.
    fn discard(&mut self, handle: Span) {
        self.reach(DeviceCall::Unmap);
        let unmapped = self.machine.call(DeviceCall::Unmap);
        let mapped = self.seen(unmapped).is_err().then_some(handle);
        self.let_go(Stray { bytes: handle.bytes, mapped });
    }

    /// Maps one handle; whether there was memory for it.
    fn map_handle(&mut self, handle: Span) -> Result<bool, Fault> {
        self.reach(DeviceCall::Create);
        if !self.machine.create(handle.bytes) {
            self.faulty = true;
            return Ok(false);
        }
        self.counts.handles_created += 1;
        self.reserved.total += handle.bytes;
        self.reserved.peak = self.reserved.peak.max(self.physical());
        self.reach(DeviceCall::Map);
        let mapped = self.machine.call(DeviceCall::Map);
        if let Err(fault) = self.seen(mapped) {
            self.let_go(Stray { bytes: handle.bytes, mapped: None });
            return Err(fault);
        }
        self.reach(DeviceCall::SetAccess);
        let accessible = self.machine.call(DeviceCall::SetAccess);
        if let Err(fault) = self.seen(accessible) {
            self.discard(handle);
            return Err(fault);
        }
        Ok(true)
    }

    /// Unmaps and releases a handle; if the device refuses, it is a stray.
    fn let_go(&mut self, mut stray: Stray) {
        if stray.mapped.is_some() {
            self.reach(DeviceCall::Unmap);
            let unmapped = self.machine.call(DeviceCall::Unmap);
            if self.seen(unmapped).is_err() {
                return self.strays.push(stray);
            }
            stray.mapped = None;
        }
        self.reach(DeviceCall::Release);
        let released = self.machine.release(stray.bytes);
        if self.seen(released).is_err() {
            return self.strays.push(stray);
        }
        self.counts.handles_released += 1;
    }

    fn retry_strays(&mut self) {
        for stray in std::mem::take(&mut self.strays) {
            self.let_go(stray);
        }
    }

    /// Where strays are still mapped.
    fn old_mappings(&self) -> Vec<Span> {
        self.strays.iter().filter_map(|stray| stray.mapped).collect()
    }

    /// Returns handles of a heap that are free and seen to be out of use, until `most` bytes are returned.
    fn return_cached(&mut self, place: usize, most: u64) -> u64 {
        self.enter(place);
        self.retire(place);
        let free: Vec<(Span, u64)> = self.places[place]
            .heap
            .vacant()
            .into_iter()
            .filter(|vacant| vacant.waits.is_empty())
            .map(|vacant| (vacant.handle, vacant.since))
            .collect();
        let last = free.iter().map(|&(_, since)| since).max().unwrap_or(0);
        // A failure leaves them cached.
        let _ = self.fence_after(place, last).and_then(|_| self.poll(place));
        let completed = self.places[place].completed;
        let mut returned = 0;
        for (handle, _) in free.into_iter().filter(|&(_, since)| since <= completed) {
            if returned >= most {
                break;
            }
            self.reach(DeviceCall::Unmap);
            self.about_to_unmap(handle);
            let unmapped = self.machine.call(DeviceCall::Unmap);
            if self.seen(unmapped).is_err() {
                continue;
            }
            self.places[place].heap.unmap(handle);
            returned += handle.bytes;
            self.let_go(Stray { bytes: handle.bytes, mapped: None });
        }
        self.leave(place);
        returned
    }

    /// Returns of other heaps what is missing, and if that is not enough all of the own one. Its bytes.
    fn return_missing(&mut self, place: usize, requested: u64) -> u64 {
        let (missing, mut returned) = (self.missing(place, requested), 0);
        for other in (0..self.places.len()).filter(|&other| other != place) {
            returned += self.return_cached(other, missing.saturating_sub(returned));
        }
        if returned < missing {
            returned += self.return_cached(place, u64::MAX);
        }
        returned
    }

    /// Bytes that have to be returned before the heap can grow for a request.
    fn missing(&mut self, place: usize, requested: u64) -> u64 {
        let granularity = self.machine.granularity;
        let to_map = match self.places[place].heap.growth(requested, granularity, &self.old_mappings()) {
            Some(growth) => growth.bytes(),
            None => requested.next_multiple_of(self.machine.granularity),
        };
        let below_limit = self.limit.saturating_sub(self.physical());
        let free = self.machine.free();
        let free = self.seen(free).unwrap_or(u64::MAX);
        to_map.saturating_sub(below_limit.min(free))
    }

    /// What has to be over before the heap can grow: handles of others, as many as are missing, else all that is pending
    /// in the own heap.
    fn waits_for_missing(&mut self, place: usize, requested: u64) -> Vec<(usize, u64)> {
        let missing = self.missing(place, requested);
        let (mut bytes, mut waits) = (0, Vec::new());
        for other in (0..self.places.len()).filter(|&other| other != place) {
            self.enter(other);
            self.retire(other);
            for (handle_bytes, before) in self.returnable_after(other) {
                if bytes < missing {
                    bytes += handle_bytes;
                    waits.extend(before);
                }
            }
            self.leave(other);
        }
        if bytes < missing {
            waits.extend(self.returnable_after(place).into_iter().flat_map(|(_, before)| before));
            waits.extend(self.places[place].heap.awaited());
        }
        latest(waits)
    }

    /// Handles that cannot leave a heap now, and what has to be over before they can.
    fn returnable_after(&mut self, place: usize) -> Vec<(u64, Vec<(usize, u64)>)> {
        let completed = self.places[place].completed;
        let vacant = self.places[place].heap.vacant().into_iter().map(|mut vacant| {
            if vacant.since > completed {
                vacant.waits.push((place, vacant.since));
            }
            (vacant.handle.bytes, vacant.waits)
        });
        vacant.filter(|(_, waits)| !waits.is_empty()).collect()
    }

    /// Returns free memory until at most `target` bytes are held; what is held then.
    pub(super) fn trim(&mut self, target: u64) -> u64 {
        if self.gate() {
            self.retry_strays();
            for place in 0..self.places.len() {
                let excess = self.physical().saturating_sub(target);
                if excess > 0 {
                    self.return_cached(place, excess);
                }
            }
        }
        self.physical()
    }

    // ---- the end of the ladder

    /// A request failed: it must not be one that waiting for everything would have met. Nothing is said of requests in
    /// which a call failed, that ran while a stream captured, or for which the time was too short.
    fn check_that_nothing_helps(&mut self, place: usize, requested: u64, start_ns: u64) {
        let in_time = self.all_through_ns() <= start_ns.saturating_add(self.timeout_ns);
        if requested > self.limit || !self.gate() || self.faulty || !self.strays.is_empty() || !in_time {
            return;
        }
        let occupied: u64 = self.places.iter().map(|place| place.heap.occupied()).sum();
        let room = self.limit.min(self.machine.total - self.hogged.iter().sum::<u64>()).saturating_sub(occupied);
        let whole = requested.next_multiple_of(self.machine.granularity);
        let needed = self.places[place].heap.least_growth(requested).unwrap_or(whole);
        if needed <= room {
            self.complain(format!(
                "{requested} bytes are refused, and {needed} would have to be mapped with room for {room}"
            ));
        }
    }

    fn report(&mut self, place: usize, requested: u64) -> OutOfMemory {
        self.counts.out_of_memory += 1;
        let free = self.machine.free();
        let device_free = self.seen(free).ok();
        let (mut rounding, mut pending, mut cached, mut live) = (0, 0, 0, 0);
        let (mut live_by_stream, mut cached_by_stream) = (Vec::new(), Vec::new());
        for (index, place) in self.places.iter().enumerate() {
            let sums = place.heap.sums();
            let asked = self.asked_for(index);
            (live, rounding) = (live + asked, rounding + sums.live - asked);
            (pending, cached) = (pending + sums.pending, cached + sums.cached);
            if asked > 0 {
                live_by_stream.push(StreamBytes { stream: place.name.clone(), bytes: asked });
            }
            if sums.cached > 0 {
                cached_by_stream.push(StreamBytes { stream: place.name.clone(), bytes: sums.cached });
            }
        }
        let by_place = self.pending_by_place();
        let pending_by_stream = by_place
            .into_iter()
            .map(|(place, bytes)| StreamBytes { stream: self.places[place].name.clone(), bytes })
            .collect();
        OutOfMemory {
            requested,
            stream: self.places[place].name.clone(),
            capacity: self.limit,
            device_total: self.machine.total,
            physical: self.physical(),
            live,
            rounding,
            pending,
            pending_by_stream,
            cached,
            cached_by_stream,
            live_by_stream,
            // The lines of this program are not predicted.
            live_sites: Vec::new(),
            live_blocks_unseen: 0,
            stray: self.strays.iter().map(|stray| stray.bytes).sum(),
            largest_free: self.places[place].heap.largest_free(),
            device_free,
            // Words are not predicted.
            refused: String::new(),
            snapshot: None,
            cause: None,
        }
    }

    /// Bytes pending by the place that is waited for.
    pub(super) fn pending_by_place(&self) -> std::collections::BTreeMap<usize, u64> {
        let mut bytes = std::collections::BTreeMap::new();
        for pending in self.places.iter().flat_map(|place| &place.heap.pending) {
            for &(place, _) in &pending.waits {
                *bytes.entry(place).or_default() += pending.span.bytes;
            }
        }
        bytes
    }

    /// Bytes that were asked for in a heap, as far as it knows of no free.
    pub(super) fn asked_for(&self, place: usize) -> u64 {
        let live = self.places[place].heap.live_blocks();
        live.into_iter().map(|block| self.blocks[block].requested).sum()
    }
}
