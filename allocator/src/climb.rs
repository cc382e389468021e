//! Meeting a request: the search, and the rungs that may make room for it.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use highwater_core::{Ladder, Placement, Rung, Wait, join_waits};
use highwater_device::{DeviceError, Waited};
use highwater_history::{Action, Context, Rung as NotedRung};

use crate::error::{AllocError, OutOfMemory, StreamBytes};
use crate::heap_state::{FreeMessage, HeapState};
use crate::holders::Holders;
use crate::pages::Refusal;
use crate::shared::{Gate, Shared, count};
use crate::slot::Slot;

type Inside<'a> = highwater_core::StationGuard<'a, HeapState, FreeMessage>;

/// One request on its way up.
struct Climb<'a> {
    shared: &'a Shared,
    slot: &'a Slot,
    requested: u64,
    context: Context,
    /// Why memory could not be mapped, the last time that it was tried.
    refused: String,
    /// How long the host has been blocked for it.
    stalled: Duration,
}

thread_local! {
    /// Whether this thread runs pressure callbacks: what they ask for asks no callback again.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Running pressure callbacks, also when one panics.
struct CallbacksRun;

impl CallbacksRun {
    fn begin() -> Option<Self> {
        // Made only if it is: the drop of one that is not needed would end the run that is under way.
        (!IN_CALLBACK.replace(true)).then(|| CallbacksRun)
    }
}

impl Drop for CallbacksRun {
    fn drop(&mut self) {
        IN_CALLBACK.set(false);
    }
}

impl Shared {
    /// Meets a request of `requested` bytes (at least one) on a stream.
    pub(crate) fn place(&self, slot: &Slot, requested: u64, context: Context) -> Result<Placement, AllocError> {
        let limit = self.ledger.limit();
        let refused = format!("no more than {limit} bytes can ever be mapped");
        let mut climb = Climb { shared: self, slot, requested, context, refused, stalled: Duration::ZERO };
        let mut inside = slot.station.enter();
        // The bottom rung needs neither the gate nor the device.
        let (mut ladder, mut rung) = (Ladder::new(), Rung::OwnFree);
        loop {
            if let Some(placed) = inside.place(requested, self.device.now_ns(), context) {
                count(&self.counts.allocations);
                self.counts.met_at(rung);
                if rung != Rung::OwnFree {
                    climb.note(&mut inside, noted(rung));
                }
                self.ledger.born(requested);
                return Ok(placed);
            }
            // Asked anew for each rung: a callback may begin or end a capture.
            let gate = self.gate();
            // What can never fit is not worth anybody's memory or time.
            let next = if requested > limit { None } else { ladder.next(gate.is_none()) };
            match next {
                Some(next) => {
                    rung = next;
                    inside = climb.act(rung, gate, inside)?;
                    // What others freed meanwhile counts: nobody delivers it before this request leaves.
                    inside.deliver();
                }
                None => {
                    climb.note(&mut inside, NotedRung::OutOfMemory);
                    drop(inside);
                    return Err(climb.out_of_memory());
                }
            }
        }
    }

    /// Asks the callbacks to free something, the first registered first. No lock is held meanwhile.
    fn run_callbacks(&self, requested: u64) {
        let Some(_running) = CallbacksRun::begin() else { return };
        let callbacks: Vec<_> = self.callbacks.lock().iter().map(|(_, callback)| Arc::clone(callback)).collect();
        for callback in callbacks {
            callback(requested);
        }
    }

    /// Blocks the host until all of `waits` are over, `timeout` at most. Whether they are.
    pub(crate) fn wait_out(&self, gate: &Gate<'_>, waits: &[Wait], timeout: Duration) -> Result<bool, DeviceError> {
        let start = self.device.now_ns();
        for &wait in waits {
            let slot = self.slot(wait.stream);
            let Some(recorded) = self.fence_covering(gate, &slot, wait.position)? else { continue };
            let spent = Duration::from_nanos(self.device.now_ns() - start);
            match self.wait_for(gate, &recorded, timeout.saturating_sub(spent))? {
                Waited::Complete => {}
                Waited::TimedOut => return Ok(false),
            }
        }
        Ok(true)
    }
}

impl<'a> Climb<'a> {
    /// Does what a rung says; the caller searches again.
    fn act(&mut self, rung: Rung, gate: Option<Gate<'_>>, mut inside: Inside<'a>) -> Result<Inside<'a>, AllocError> {
        let Climb { shared, slot, requested, context, .. } = *self;
        match (rung, &gate) {
            (Rung::OwnFree, _) => {}
            (Rung::OwnPending, Some(gate)) => {
                shared.retire(gate, slot, &mut inside, context);
            }
            (Rung::Grow, _) => {
                self.grow(&mut inside)?;
            }
            (Rung::Callbacks, _) => {
                // A callback may allocate and free on this stream, and capture: nobody is inside meanwhile.
                drop((inside, gate));
                shared.run_callbacks(requested);
                inside = slot.station.enter();
                if let Some(gate) = shared.gate() {
                    shared.retire(&gate, slot, &mut inside, context);
                }
            }
            (Rung::ReturnCached, Some(gate)) => {
                if self.return_cached(gate, &mut inside) > 0 {
                    self.grow(&mut inside)?;
                }
            }
            (Rung::HostWaitOwn, Some(gate)) => {
                if let Some(waits) = inside.heap.sufficient_waits(requested) {
                    (inside, _) = self.wait(gate, inside, &waits)?;
                    shared.retire(gate, slot, &mut inside, context);
                }
            }
            (Rung::HostWaitOthers, Some(gate)) => {
                // Once may not be enough: free memory that was waited for is joined with neighbours that were freed
                // later, and is as young as they are then.
                loop {
                    let waits = self.waits_for_growth(gate, &mut inside);
                    let mut passed = false;
                    if !waits.is_empty() {
                        (inside, passed) = self.wait(gate, inside, &waits)?;
                        // Growth may need less now: what is free beside live blocks is part of its window.
                        shared.retire(gate, slot, &mut inside, context);
                    }
                    self.return_cached(gate, &mut inside);
                    if self.grow(&mut inside)? || !passed {
                        break;
                    }
                }
            }
            (_, None) => unreachable!("the ladder offers no rung that touches fences while a stream captures"),
        }
        Ok(inside)
    }

    /// Maps what is missing; whether there was memory for it.
    fn grow(&mut self, state: &mut HeapState) -> Result<bool, AllocError> {
        match self.shared.grow(self.slot, state, self.requested, self.context) {
            Ok(()) => Ok(true),
            Err(Refusal::NoMemory(why)) => {
                self.refused = why;
                Ok(false)
            }
            Err(Refusal::Device(source)) => Err(AllocError::Device { requested: self.requested, source }),
        }
    }

    /// Blocks the host outside of the heap, for what is left of the request's time, then enters again; whether the waits
    /// are over.
    fn wait(&mut self, gate: &Gate<'_>, inside: Inside<'a>, waits: &[Wait]) -> Result<(Inside<'a>, bool), AllocError> {
        drop(inside);
        let start = self.shared.device.now_ns();
        let left = self.shared.settings.host_wait_timeout().saturating_sub(self.stalled);
        let waited = self.shared.wait_out(gate, waits, left);
        self.stalled += Duration::from_nanos(self.shared.device.now_ns() - start);
        let mut inside = self.slot.station.enter();
        self.shared.note_stall(&mut inside, self.slot, start, self.context);
        match waited {
            Ok(passed) => Ok((inside, passed)),
            Err(source) => Err(AllocError::Device { requested: self.requested, source }),
        }
    }

    /// Returns free handles of every heap that nobody is in: of other heaps as many as are missing, and if that is not
    /// enough, all of the own one, whose growth is planned anew. Its bytes.
    fn return_cached(&self, gate: &Gate<'_>, own: &mut HeapState) -> u64 {
        let (missing, mut returned) = (self.missing(own), 0);
        for slot in self.others() {
            let Some(mut state) = slot.station.try_enter() else { continue };
            let most = missing.saturating_sub(returned);
            returned += self.shared.return_cached(gate, &slot, &mut state, most, self.context);
        }
        if returned < missing {
            returned += self.shared.return_cached(gate, self.slot, own, u64::MAX, self.context);
        }
        returned
    }

    /// All places but the one that asks.
    fn others(&self) -> impl Iterator<Item = Arc<Slot>> {
        let own = self.slot.index;
        self.shared.slots().into_iter().filter(move |slot| slot.index != own)
    }

    /// Bytes that have to be returned so that the heap can grow for the request.
    fn missing(&self, own: &HeapState) -> u64 {
        let granularity = self.shared.device.properties().granularity_bytes;
        let whole = self.requested.checked_next_multiple_of(granularity).unwrap_or(u64::MAX);
        let gaps = own.heap.plan_growth(self.requested, &self.shared.stray_ranges());
        let to_map = gaps.map_or(whole, |gaps| gaps.iter().map(|gap| gap.bytes).sum());
        let free = self.shared.device.memory_info().map_or(u64::MAX, |info| info.free);
        to_map.saturating_sub(self.shared.ledger.left().min(free))
    }

    /// The waits after which the heap can grow for the request: those for as many handles of other heaps as are missing,
    /// and if that is not enough, those for all that is pending in the own one. What is pending beside a live block
    /// keeps its handle here, but then growth is needed only next to it.
    fn waits_for_growth(&self, gate: &Gate<'_>, own: &mut HeapState) -> Vec<Wait> {
        let (missing, mut bytes, mut waits) = (self.missing(own), 0, Vec::new());
        for slot in self.others() {
            let Some(mut state) = slot.station.try_enter() else { continue };
            self.shared.retire(gate, &slot, &mut state, self.context);
            for (handle_bytes, before) in self.shared.returnable_after(&slot, &state) {
                if bytes < missing {
                    bytes += handle_bytes;
                    waits.extend(before);
                }
            }
        }
        if bytes < missing {
            waits.extend(self.shared.returnable_after(self.slot, own).into_iter().flat_map(|(_, before)| before));
            waits.extend(own.heap.awaited());
        }
        join_waits(waits)
    }

    fn note(&self, state: &mut HeapState, rung: NotedRung) {
        let (bytes, stream) = (self.requested, u64::from(self.slot.index.0));
        state.note(self.shared.device.now_ns(), Action::Rung { rung, bytes, stream }, self.context);
    }

    /// Draws up what is where, unless the device is broken. No heap is held on entry; each is entered alone.
    fn out_of_memory(&self) -> AllocError {
        let shared = self.shared;
        let device_free = match shared.device.memory_info() {
            Ok(info) => Some(info.free),
            // It keeps whatever it is asked to give back: that is no lack of memory.
            Err(source @ DeviceError::Poisoned { .. }) => {
                return AllocError::Device { requested: self.requested, source };
            }
            Err(_) => None,
        };
        count(&shared.counts.out_of_memory);
        let mut report = OutOfMemory {
            requested: self.requested,
            stream: self.slot.name().to_string(),
            capacity: shared.ledger.limit(),
            physical: 0,
            live: 0,
            live_by_stream: Vec::new(),
            live_sites: Vec::new(),
            live_blocks_unseen: 0,
            rounding: 0,
            pending: 0,
            pending_by_stream: Vec::new(),
            cached: 0,
            cached_by_stream: Vec::new(),
            stray: shared.stray_bytes(),
            largest_free: 0,
            device_free,
            refused: self.refused.clone(),
        };
        let mut holders = Holders::default();
        let mut pending_by_stream = std::collections::BTreeMap::new();
        for slot in shared.slots() {
            let mut inside = slot.station.enter();
            let books = inside.heap.books();
            report.physical += books.physical;
            report.live += books.live;
            report.rounding += books.rounding;
            report.pending += books.pending;
            report.cached += books.cached;
            for (stream, bytes) in inside.heap.pending_by_stream() {
                *pending_by_stream.entry(stream).or_insert(0) += bytes;
            }
            if books.live > 0 {
                let stream = slot.name().to_string();
                holders.add(&stream, &inside);
                report.live_by_stream.push(StreamBytes { stream, bytes: books.live });
            }
            if books.cached > 0 {
                let stream = slot.name().to_string();
                report.cached_by_stream.push(StreamBytes { stream, bytes: books.cached });
            }
            if slot.index == self.slot.index {
                report.largest_free = inside.heap.largest_free();
                let action = Action::OutOfMemory {
                    bytes: self.requested,
                    stream: u64::from(slot.index.0),
                    device_free_bytes: device_free.unwrap_or(0),
                };
                inside.note(shared.device.now_ns(), action, self.context);
            }
        }
        report.physical += report.stray;
        (report.live_sites, report.live_blocks_unseen) = holders.largest();
        report.pending_by_stream = pending_by_stream
            .into_iter()
            .map(|(stream, bytes)| StreamBytes { stream: shared.slot(stream).name().to_string(), bytes })
            .collect();
        AllocError::OutOfMemory(Box::new(report))
    }
}

/// The name of a rung in the history.
fn noted(rung: Rung) -> NotedRung {
    match rung {
        Rung::OwnFree => NotedRung::OwnFree,
        Rung::OwnPending => NotedRung::PendingComplete,
        Rung::Grow => NotedRung::Grow,
        Rung::Callbacks => NotedRung::Callbacks,
        Rung::ReturnCached => NotedRung::CachedReturned,
        Rung::HostWaitOwn | Rung::HostWaitOthers => NotedRung::HostWait,
    }
}
