//! Learning what has been completed: recording fences, asking them, waiting for them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use highwater_core::{BlockId, Demand, Freed, Position, Satisfied, StreamIndex, Uses, Wait};
use highwater_device::{DeviceResult, MemoryInfo, ProcessMemory, StreamId, Waited};
use highwater_history::{Action, Context, FenceState};

use crate::error::{Doing, StreamError};
use crate::fence::{Point, Recorded};
use crate::heap_state::{FreeMessage, HeapState};
use crate::shared::{Gate, Shared, count};
use crate::slot::{Driver, Slot};
use crate::stream::Stream;

/// How a stream can come after a position of another one.
#[derive(Debug)]
pub(crate) enum Order {
    /// The position is complete.
    Passed,
    /// By a wait for this fence, whose progress depends on this GPU alone.
    After(Arc<Recorded>),
    /// Not by a wait: an open stream holds the fence up.
    HeldUp(StreamIndex, Arc<Recorded>),
}

impl Shared {
    /// Records a fence on a stream. `None` when the place is idle: its last fence covers everything.
    pub(crate) fn record(&self, _gate: &Gate<'_>, slot: &Slot) -> DeviceResult<Option<Arc<Recorded>>> {
        let driver = slot.driver.read();
        driver.as_ref().map(|driver| self.record_on(slot, driver)).transpose()
    }

    /// Records a fence on the driver's stream of a place, whose lock the caller holds.
    pub(crate) fn record_on(&self, slot: &Slot, driver: &Driver) -> DeviceResult<Arc<Recorded>> {
        let _alone = slot.recording.lock();
        slot.stamp.refresh();
        // A position of its own: work that this crate has not seen may have come since the last mark, and an older fence
        // must not stand for this one. Frees since then have this position.
        slot.clock.mark();
        // The stamp is taken before the record: the fence covers at least what the stamp says. What holds the fence up is
        // asked after it: what is not told then, came behind the fence.
        let stamp = slot.clock.stamp();
        let handle = self.device.record(driver.id)?;
        count(&self.counts.fences_recorded);
        let outlook = slot.openness.outlook(|fence| fence.is_over());
        let recorded = Arc::new(Recorded::new(self.device.clone(), Point::Fence(handle), stamp, outlook));
        slot.clock.recorded(&recorded.stamp, recorded.clone());
        Ok(recorded)
    }

    /// A fence that covers `position` of a stream: an old one, or a new one. `None` when the position is complete.
    pub(crate) fn fence_covering(
        &self,
        gate: &Gate<'_>,
        slot: &Slot,
        position: Position,
    ) -> DeviceResult<Option<Arc<Recorded>>> {
        match slot.clock.demand(position) {
            Demand::Complete => Ok(None),
            Demand::Fenced => Ok(slot.clock.fence_covering(position)),
            Demand::Record => self.record(gate, slot),
        }
    }

    /// The fence that a stream waits for, so that it comes after `position` of `owner`; `None` when that is complete.
    ///
    /// Nobody but this rank puts the wait. So the fence is one whose progress depends on this GPU alone: where an open
    /// stream holds it up, only completion counts, and the host waits for that, for a bounded time. That stall is noted
    /// with `stalled`, a place and the context of the request. `waiter` is the stream that waits, if it is known.
    pub(crate) fn fence_to_come_after(
        &self,
        gate: &Gate<'_>,
        (owner, position): (&Slot, Position),
        waiter: Option<&Slot>,
        stalled: (&Slot, Context),
        doing: impl Fn() -> String,
    ) -> Result<Option<Arc<Recorded>>, StreamError> {
        let (open, recorded) = match self.order_after(gate, (owner, position), waiter).doing(&doing)? {
            Order::Passed => return Ok(None),
            Order::After(recorded) => return Ok(Some(recorded)),
            Order::HeldUp(open, recorded) => (open, recorded),
        };
        let (start_ns, timeout) = (self.device.now_ns(), self.settings.host_wait_timeout());
        let waited = self.wait_for(gate, &recorded, timeout);
        let (slot, context) = stalled;
        self.note_stall(&mut slot.station.enter(), slot, start_ns, context);
        match waited.doing(&doing)? {
            Waited::Complete => Ok(None),
            Waited::TimedOut => {
                let open = self.slot(open).name().to_string();
                Err(StreamError::HeldUp { doing: doing(), open, waited: timeout })
            }
        }
    }

    /// How `waiter` can come after `position` of `owner`: asks what holds its fence up.
    pub(crate) fn order_after(
        &self,
        gate: &Gate<'_>,
        (owner, position): (&Slot, Position),
        waiter: Option<&Slot>,
    ) -> DeviceResult<Order> {
        let Some(recorded) = self.fence_covering(gate, owner, position)? else { return Ok(Order::Passed) };
        Ok(match self.held_up_by(gate, &recorded, waiter)? {
            Some(open) => Order::HeldUp(open, recorded),
            None if recorded.is_over() => Order::Passed,
            None => Order::After(recorded),
        })
    }

    /// Whatever the stream of a place is given from now on executes after a fence.
    pub(crate) fn put_wait(
        &self,
        _gate: &Gate<'_>,
        slot: &Slot,
        id: StreamId,
        recorded: &Arc<Recorded>,
    ) -> DeviceResult<()> {
        // Published before the wait is in the queue: whoever records behind the wait finds it.
        slot.openness.will_wait(recorded.holds());
        self.device.wait(id, recorded.handle())?;
        // Published after the wait is in the queue: whoever reads it submits behind the wait.
        slot.clock.waited(&recorded.stamp);
        Ok(())
    }

    /// An open stream that holds a fence up, if one does: each is asked.
    fn held_up_by(
        &self,
        gate: &Gate<'_>,
        recorded: &Arc<Recorded>,
        waiter: Option<&Slot>,
    ) -> DeviceResult<Option<StreamIndex>> {
        // What the waiter does next comes after its own work anyway: such a wait makes it depend on nothing new.
        let others = |stream| waiter.is_none_or(|waiter| waiter.index != stream);
        for hold in recorded.holds().iter().filter(|hold| others(hold.stream)) {
            if !self.ask(gate, &hold.fence)? {
                return Ok(Some(hold.stream));
            }
        }
        Ok(None)
    }

    /// The host has seen a fence complete: so is everything that came before it, on every stream.
    fn completed(&self, recorded: &Recorded) {
        for (stream, position) in recorded.stamp.passed() {
            drop(self.slot(stream).clock.complete(position));
        }
    }

    /// Asks one fence.
    pub(crate) fn ask(&self, _gate: &Gate<'_>, recorded: &Recorded) -> DeviceResult<bool> {
        let complete = recorded.query()?;
        if complete {
            self.completed(recorded);
        }
        Ok(complete)
    }

    /// Blocks the host for one fence.
    pub(crate) fn wait_for(&self, _gate: &Gate<'_>, recorded: &Recorded, timeout: Duration) -> DeviceResult<Waited> {
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let waited = recorded.synchronize(timeout_ns)?;
        if waited == Waited::Complete {
            self.completed(recorded);
        }
        Ok(waited)
    }

    /// Asks the fences of a stream, the oldest first, up to the first that is not complete.
    pub(crate) fn poll(&self, gate: &Gate<'_>, slot: &Slot) -> DeviceResult<()> {
        if slot.clock.owes_fence() {
            self.record(gate, slot)?;
        }
        while let Some((_, recorded)) = slot.clock.oldest() {
            if !self.ask(gate, &recorded)? {
                break;
            }
        }
        Ok(())
    }

    /// Records a fence behind what was freed, so that other streams learn when its handles are free for them; and asks
    /// those that were recorded before, so that they do not pile up.
    #[cold]
    pub(crate) fn fence_free_memory(&self, slot: &Slot) {
        if !self.settings.lending() || self.count_slots() == 1 || slot.openness.is_open() {
            return;
        }
        let Some(gate) = self.gate() else { return };
        let fence = self.fence_covering(&gate, slot, slot.clock.upcoming());
        if let Err(error) = fence.and_then(|_| self.poll(&gate, slot)) {
            // Whoever wants the memory asks again.
            tracing::warn!(%error, "no fence behind freed memory; other streams learn later that it is free");
        }
    }

    /// Asks the streams that a heap's pending frees wait for, and ends those that are over. Returns how many.
    pub(crate) fn retire(&self, gate: &Gate<'_>, slot: &Slot, state: &mut HeapState, context: Context) -> usize {
        for wait in state.heap.awaited() {
            if let Err(error) = self.poll(gate, self.slot(wait.stream)) {
                // The frees stay pending; whoever submits next gets the device's error himself.
                tracing::warn!(%error, "asking for the progress of a stream failed");
            }
        }
        if !state.heap.has_pending() {
            return 0;
        }
        let now = slot.mark();
        state.retire(now, self.device.now_ns(), context, |wait| self.satisfied(slot, wait))
    }

    fn satisfied(&self, owner: &Slot, wait: Wait) -> Satisfied {
        if self.slot(wait.stream).clock.completed() >= wait.position {
            Satisfied::Complete
        } else if owner.clock.is_after(wait.stream, wait.position) {
            Satisfied::Ordered
        } else {
            Satisfied::No
        }
    }

    /// What has to be passed before a block is free: the ends of `uses`, and `outside`, as far as they are not over.
    fn waits(&self, owner: &Slot, uses: &Uses, outside: Vec<Wait>) -> Vec<Wait> {
        let gate = self.gate();
        let ends = uses.iter().map(|(stream, until)| Wait { stream, position: self.slot(stream).end_of_use(until) });
        let waits = ends.chain(outside).filter(|&wait| {
            let slot = self.slot(wait.stream);
            self.satisfied(owner, wait) == Satisfied::No && !self.is_over_now(gate.as_ref(), slot, wait)
        });
        waits.collect()
    }

    /// Makes sure that a fence covers the wait, and asks it. While a capture runs the fence stays owed.
    fn is_over_now(&self, gate: Option<&Gate<'_>>, slot: &Slot, wait: Wait) -> bool {
        let demand = slot.clock.demand(wait.position);
        let Some(gate) = gate else { return false };
        let asked = match demand {
            Demand::Complete => Ok(()),
            Demand::Fenced => self.poll(gate, slot),
            Demand::Record => self.record(gate, slot).and_then(|_| self.poll(gate, slot)),
        };
        if let Err(error) = asked {
            // Nothing is lost: the fence is owed, and recorded by whoever asks next.
            tracing::warn!(%error, "recording the end of a use failed; the block stays pending");
        }
        slot.clock.completed() >= wait.position
    }

    /// How far the fence is that covers what a block waits for, and the open stream that holds it up. The device is not
    /// asked.
    pub(crate) fn outlook_of(&self, wait: Wait) -> (FenceState, Option<StreamIndex>) {
        let slot = self.slot(wait.stream);
        if slot.clock.completed() >= wait.position {
            return (FenceState::Complete, None);
        }
        match slot.clock.fence_covering(wait.position) {
            Some(recorded) if recorded.is_over() => (FenceState::Complete, None),
            Some(recorded) => (FenceState::Recorded, recorded.holds().first().map(|hold| hold.stream)),
            None => (FenceState::Unrecorded, slot.openness.is_open().then_some(slot.index)),
        }
    }

    /// Notes what the pending blocks of a heap wait for when a request has failed, `most` at most, and returns how many
    /// that were. Fences are as they were last seen.
    pub(crate) fn note_awaited(&self, state: &mut HeapState, (time_ns, context): (u64, Context), most: usize) -> usize {
        let waits: Vec<(u64, Wait)> = state.heap.pending_waits().take(most).collect();
        for &(address, wait) in &waits {
            let (fence, open) = self.outlook_of(wait);
            let (stream, position) = (u64::from(wait.stream.0), wait.position.0);
            let held_by = open.map(|open| open.0);
            state.note(time_ns, Action::Awaited { address, stream, position, fence, held_by }, context);
        }
        waits.len()
    }

    /// Notes what the device has said of its memory.
    pub(crate) fn note_device_memory(
        &self,
        state: &mut HeapState,
        info: MemoryInfo,
        (time_ns, context): (u64, Context),
    ) {
        let held_bytes = self.ledger.physical().now;
        let action = Action::DeviceMemory { total_bytes: info.total, free_bytes: info.free, held_bytes };
        state.note(time_ns, action, context);
    }

    /// Notes who has memory of the device.
    pub(crate) fn note_processes(
        &self,
        state: &mut HeapState,
        processes: &[ProcessMemory],
        (time_ns, context): (u64, Context),
    ) {
        for &ProcessMemory { pid, bytes, is_own } in processes {
            state.note(time_ns, Action::Process { pid, bytes, is_own }, context);
        }
    }

    /// Notes a host wait for memory in the counters and in the history, and what the device says of its memory: others may
    /// have taken some meanwhile, and asking costs nothing beside the wait.
    pub(crate) fn note_stall(&self, state: &mut HeapState, slot: &Slot, start_ns: u64, context: Context) {
        self.note_host_wait(state, slot, start_ns, context);
        if let Ok(info) = self.device.memory_info() {
            self.note_device_memory(state, info, (self.device.now_ns(), context));
        }
    }

    /// Notes a host wait in the counters and in the history.
    pub(crate) fn note_host_wait(&self, state: &mut HeapState, slot: &Slot, start_ns: u64, context: Context) {
        let now = self.device.now_ns();
        count(&self.counts.host_stalls);
        self.counts.host_stall_ns.fetch_add(now - start_ns, Ordering::Relaxed);
        let action = Action::Stall { stream: u64::from(slot.index.0), stall_ns: now - start_ns };
        state.note(now, action, context);
    }
}

impl Stream {
    /// What a block held gives the block back to its heap, and goes, with what has to be passed first: the ends of `uses`,
    /// and `outside`.
    #[inline]
    pub(crate) fn give_back(
        self,
        (block, requested): (BlockId, u64),
        uses: &Uses,
        outside: Vec<Wait>,
        context: Context,
    ) {
        let owner: &Slot = self.slot();
        let is_over = uses.is_empty() && outside.is_empty();
        let waits = if is_over { Vec::new() } else { self.shared().waits(owner, uses, outside) };
        // Read after the uses: whoever is ordered after the position is ordered after them too, as far as they are ordered.
        let freed = Freed { block, since: owner.clock.upcoming(), waits };
        let prepaid = match owner.station.enter_as_sender() {
            Some(mut inside) => {
                inside.take_back(freed, context);
                let prepaid = self.prepay(&mut inside);
                let asks = inside.asks_for_fence(requested);
                drop(inside);
                if asks {
                    self.shared().fence_free_memory(owner);
                }
                prepaid
            }
            None => {
                owner.share.leave(requested);
                owner.station.leave(FreeMessage { freed, context });
                false
            }
        };
        if prepaid {
            std::mem::forget(self);
        }
    }
}
