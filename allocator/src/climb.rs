//! Meeting a request: the search, and the rungs that may make room for it.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use highwater_core::{Ghost, GhostState, Ladder, Placement, Policy, Rung, StreamIndex, Supply, Wait, join_waits};
use highwater_device::{DeviceError, Waited};
use highwater_history::{Action, Context, Rung as NotedRung};

use crate::error::{AllocError, OutOfMemory, StreamBytes};
use crate::fence::Recorded;
use crate::heap_state::{FreeMessage, HeapState};
use crate::holders::Holders;
use crate::pages::Refusal;
use crate::progress::Order;
use crate::room::Means;
use crate::shared::{Gate, Shared, count};
use crate::slot::Slot;
use crate::stream::Stream;

pub(crate) type Inside<'a> = highwater_core::StationGuard<'a, HeapState, FreeMessage>;

/// Most things that pending blocks wait for that are noted of one failure.
const MOST_AWAITED: usize = 1024;

/// The heap, and the request's place in it if it has one.
pub(crate) type Room<'a> = (Inside<'a>, Option<Placement>);

/// One request on its way up.
pub(crate) struct Climb<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) slot: &'a Slot,
    pub(crate) requested: u64,
    pub(crate) context: Context,
    /// Why memory could not be mapped, the last time that it was tried; `None` before that.
    refused: Option<String>,
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

impl Stream {
    /// Meets a request of `requested` bytes (at least one): where, and what the memory holds.
    pub(crate) fn place(&self, requested: u64, context: Context) -> Result<(Placement, Stream), AllocError> {
        let (shared, slot) = (self.shared(), self.slot());
        let mut inside = slot.station.enter();
        // The bottom rung needs neither the gate nor the device.
        let (mut inside, placed) = match inside.place(requested, context) {
            Some(placed) => {
                inside.tally.own_free += 1;
                (inside, placed)
            }
            None => shared.climb(slot, requested, context, inside)?,
        };
        let prepaid = inside.prepaid.take();
        if !prepaid {
            self.prepay_next(&mut inside);
        }
        drop(inside);
        let holder = self.hold_for_memory(prepaid);
        if slot.share.is_off_balance() {
            shared.balance_peak(&slot.share);
        }
        Ok((placed, holder))
    }
}

impl Shared {
    /// Meets a request that the heap has no free memory for.
    #[cold]
    fn climb<'a>(
        &'a self,
        slot: &'a Slot,
        requested: u64,
        context: Context,
        mut inside: Inside<'a>,
    ) -> Result<(Inside<'a>, Placement), AllocError> {
        let limit = self.ledger.limit();
        let mut climb = Climb { shared: self, slot, requested, context, refused: None, stalled: Duration::ZERO };
        let mut ladder = Ladder::new(self.settings.policy());
        let mut found = None;
        slot.stamp.refresh();
        while found.is_none() {
            // Asked anew for each rung: a callback may begin or end a capture.
            let gate = self.gate();
            // What can never fit is not worth anybody's memory or time.
            let next = if requested > limit { None } else { ladder.next(gate.is_none()) };
            let Some(rung) = next else {
                climb.note(&mut inside, NotedRung::OutOfMemory);
                drop((inside, gate));
                return Err(climb.out_of_memory());
            };
            (inside, found) = climb.act(rung, gate, inside)?;
            // What others freed meanwhile counts: nobody delivers it before this request leaves.
            inside.deliver();
            found = found.or_else(|| climb.search(&mut inside));
        }
        let rung = ladder.rung();
        self.counts.met_at(rung);
        climb.note(&mut inside, noted(rung));
        slot.stamp.refresh();
        Ok((inside, found.expect("the loop ends when the request is met")))
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
            let Some(recorded) = self.fence_covering(gate, slot, wait.position)? else { continue };
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
    /// Searches the heap's free memory.
    fn search(&self, inside: &mut Inside<'a>) -> Option<Placement> {
        inside.place(self.requested, self.context)
    }

    /// Does what a rung says. Either it has placed the request, or the caller searches again.
    fn act(&mut self, rung: Rung, gate: Option<Gate<'_>>, mut inside: Inside<'a>) -> Result<Room<'a>, AllocError> {
        let Climb { shared, slot, requested, context, .. } = *self;
        match (rung, &gate) {
            (Rung::OwnFree, _) => {}
            (Rung::OwnPending, Some(gate)) => {
                shared.retire(gate, slot, &mut inside, context);
            }
            // The next rungs do it later, if nothing else helps.
            (Rung::Move, _) if shared.page_time.is_overdrawn(shared.device.now_ns()) => {}
            (Rung::Move, Some(gate)) => {
                return self.make_room(Some(gate), inside, Means { waits: false, creates: false, moves: true });
            }
            (Rung::Order, Some(gate)) => return self.order(gate, inside),
            (Rung::Grow, gate) => return self.grow(gate.as_ref(), inside),
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
                    return self.grow(Some(gate), inside);
                }
            }
            (Rung::HostWaitOwn, Some(gate)) => {
                if let Some(waits) = inside.heap.sufficient_waits(requested) {
                    (inside, _) = self.wait(gate, inside, &waits)?;
                    shared.retire(gate, slot, &mut inside, context);
                }
            }
            (Rung::HostWaitOthers, Some(gate)) => {
                // Once may not be enough: a handle that was waited for may be used again meanwhile, or the device may
                // not let go of it.
                loop {
                    let waits = self.waits_for_growth(gate, &mut inside);
                    let mut passed = false;
                    if !waits.is_empty() {
                        (inside, passed) = self.wait(gate, inside, &waits)?;
                        // Growth may need less now: what is free beside live blocks is part of its window.
                        shared.retire(gate, slot, &mut inside, context);
                    }
                    self.return_cached(gate, &mut inside);
                    let found;
                    (inside, found) = self.grow(Some(gate), inside)?;
                    if found.is_some() || !passed {
                        return Ok((inside, found));
                    }
                }
            }
            (_, None) => unreachable!("the ladder offers no rung that touches fences while a stream captures"),
        }
        Ok((inside, None))
    }

    /// Makes new handles for what free ones do not give.
    fn grow(&mut self, gate: Option<&Gate<'_>>, inside: Inside<'a>) -> Result<Room<'a>, AllocError> {
        let waits = self.shared.settings.policy() == Policy::Wait;
        // With time overdrawn new handles are as good: others are asked for theirs when none can be made.
        let moves = !self.shared.page_time.is_overdrawn(self.shared.device.now_ns());
        self.make_room(gate, inside, Means { waits, creates: true, moves })
    }

    /// Puts waits on the stream: for the frees of its own heap that suffice, or else for enough of them to be brought
    /// together, and for free memory of other heaps.
    fn order(&mut self, gate: &Gate<'_>, mut inside: Inside<'a>) -> Result<Room<'a>, AllocError> {
        let waits = match inside.heap.sufficient_waits(self.requested) {
            Some(waits) => waits,
            // Pieces that are free then are brought together.
            None if self.shared.settings.lending() => inside.heap.waits_for(self.requested),
            None => Vec::new(),
        };
        if !waits.is_empty() {
            if let Err(error) = self.order_after(gate, &mut inside, &waits) {
                tracing::warn!(%error, "ordering a stream after pending frees failed; they stay pending");
            }
            self.shared.retire(gate, self.slot, &mut inside, self.context);
            if let Some(placed) = self.search(&mut inside) {
                return Ok((inside, Some(placed)));
            }
        }
        let creates = self.shared.settings.policy() == Policy::Grow;
        self.make_room(Some(gate), inside, Means { waits: true, creates, moves: true })
    }

    /// Orders the stream after positions of others, as far as no open stream holds them up.
    fn order_after(&self, gate: &Gate<'_>, inside: &mut Inside<'a>, waits: &[Wait]) -> Result<(), DeviceError> {
        for wait in waits {
            let other = self.shared.slot(wait.stream);
            if let Order::After(recorded) = self.shared.order_after(gate, (other, wait.position), Some(self.slot))? {
                self.wait_on_device(gate, &recorded)?;
                self.note_wait(inside, wait.stream);
            }
        }
        Ok(())
    }

    /// Whatever the stream is given from now on executes after a fence.
    pub(crate) fn wait_on_device(&self, gate: &Gate<'_>, recorded: &Arc<Recorded>) -> Result<(), DeviceError> {
        let driver = self.slot.driver.read().as_ref().map(|driver| driver.id);
        let id = driver.expect("somebody who asks for memory holds the stream");
        self.shared.put_wait(gate, self.slot, id, recorded)?;
        count(&self.shared.counts.waits_inserted);
        Ok(())
    }

    pub(crate) fn note_wait(&self, state: &mut HeapState, other: StreamIndex) {
        let action = Action::WaitInserted { stream: u64::from(self.slot.index.0), for_stream: u64::from(other.0) };
        state.note(self.shared.device.now_ns(), action, self.context);
    }

    /// Keeps in mind why memory could not be mapped; a failure of the device ends the request.
    pub(crate) fn refuse(&mut self, refusal: Refusal) -> Result<(), AllocError> {
        match refusal {
            Refusal::NoMemory(why) => {
                self.refused = Some(why);
                Ok(())
            }
            Refusal::Device(source) => Err(AllocError::Device { requested: self.requested, source }),
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
            returned += self.shared.return_cached(gate, slot, &mut state, most, self.context);
        }
        if returned < missing {
            returned += self.shared.return_cached(gate, self.slot, own, u64::MAX, self.context);
        }
        returned
    }

    /// What has become of an old mapping.
    pub(crate) fn ghost_state(&self, ghost: Ghost) -> GhostState {
        self.shared.aliases.state(ghost, |stream| self.shared.slot(stream).clock.completed())
    }

    /// All places but the one that asks.
    pub(crate) fn others(&self) -> impl Iterator<Item = &'a Arc<Slot>> {
        let own = self.slot.index;
        self.shared.slots().filter(move |slot| slot.index != own)
    }

    /// Bytes that have to be returned so that the heap can grow for the request.
    fn missing(&self, own: &mut HeapState) -> u64 {
        let granularity = self.shared.device.properties().granularity_bytes;
        let whole = self.requested.checked_next_multiple_of(granularity).unwrap_or(u64::MAX);
        let supply = Supply { spares: &[], create: Some(granularity), blind: true };
        let window = own.heap.window(self.requested, supply, |ghost| self.ghost_state(ghost));
        let to_map = window.map_or(whole, |window| window.created());
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
            self.shared.retire(gate, slot, &mut state, self.context);
            for (handle_bytes, before) in self.shared.returnable_after(slot, &mut state) {
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
        let info = match shared.device.memory_info() {
            Ok(info) => Some(info),
            // It keeps whatever it is asked to give back: that is no lack of memory.
            Err(source @ DeviceError::Poisoned { .. }) => {
                return AllocError::Device { requested: self.requested, source };
            }
            Err(_) => None,
        };
        let device_free = info.map(|info| info.free);
        count(&shared.counts.out_of_memory);
        let processes = shared.processes_at_failure();
        let mut report = OutOfMemory {
            requested: self.requested,
            stream: self.slot.name().to_string(),
            capacity: shared.ledger.limit(),
            device_total: shared.device.properties().total_bytes,
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
            refused: match &self.refused {
                Some(why) => why.clone(),
                None => format!("no more than {} bytes can ever be mapped", shared.ledger.limit()),
            },
            snapshot: None,
            cause: None,
        };
        // Behind whatever other heaps have noted up to this instant: clocks of simulations may stand still.
        let (time_ns, context) = (shared.device.now_ns() + 1, self.context);
        let mut left = MOST_AWAITED;
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
            left -= shared.note_awaited(&mut inside, (time_ns, context), left);
            if slot.index == self.slot.index {
                report.largest_free = inside.heap.largest_free();
                let action = Action::OutOfMemory {
                    bytes: self.requested,
                    stream: u64::from(slot.index.0),
                    device_free_bytes: device_free.unwrap_or(0),
                };
                inside.note(time_ns, action, context);
                if let Some(info) = info {
                    shared.note_device_memory(&mut inside, info, (time_ns, context));
                }
                shared.note_processes(&mut inside, &processes, (time_ns, context));
            }
        }
        report.physical += report.stray;
        (report.live_sites, report.live_blocks_unseen) = holders.largest();
        report.pending_by_stream = pending_by_stream
            .into_iter()
            .map(|(stream, bytes)| StreamBytes { stream: shared.slot(stream).name().to_string(), bytes })
            .collect();
        (report.snapshot, report.cause) = shared.tell_failure(info);
        AllocError::OutOfMemory(Box::new(report))
    }
}

/// The name of a rung in the history.
fn noted(rung: Rung) -> NotedRung {
    match rung {
        Rung::OwnFree => NotedRung::OwnFree,
        Rung::OwnPending => NotedRung::PendingComplete,
        Rung::Move => NotedRung::OthersComplete,
        Rung::Order => NotedRung::Ordered,
        Rung::Grow => NotedRung::Grow,
        Rung::Callbacks => NotedRung::Callbacks,
        Rung::ReturnCached => NotedRung::CachedReturned,
        Rung::HostWaitOwn | Rung::HostWaitOthers => NotedRung::HostWait,
    }
}
