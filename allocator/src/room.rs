//! Making room for a request: handles are brought together, and new ones are made.
//!
//! What is decided with the heap's lock (a [`Window`]) is carried out without it: the calls of the driver take tens of
//! microseconds each. Meanwhile the window is kept. A handle moves by being mapped a second time:
//!
//! 1. It is taken out of the heap that it is in; its mapping there stays, as an [old one](crate::aliases).
//! 2. The stream that asks is ordered after the last use of the handle, unless it comes after that anyway.
//! 3. The handle is mapped in the window, unless it has an old mapping there.
//! 4. Whatever the stream is given from now on may use it. Other streams that use it first come after a mark of this
//!    stream, set behind the wait.
//!
//! Memory of open streams does not move, and an open stream chooses its addresses as if no handle could: what is free
//! elsewhere differs between ranks.

use highwater_core::{
    Ghost, Mapping, PageId, Piece, Placement, Position, Spare, StreamIndex, Supply, Window, handle_bytes,
};
use highwater_device::{Address, DeviceError, DeviceResult, PageHandle};
use highwater_history::Action;

use crate::aliases::Old;
use crate::climb::{Climb, Inside, Room};
use crate::error::AllocError;
use crate::heap_state::HeapState;
use crate::pages::{Refusal, Stray};
use crate::progress::Order;
use crate::shared::{Gate, add, count};
use crate::slot::Slot;

/// How far a request may go for its room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Means {
    /// The stream may be made to wait for other streams.
    pub(crate) waits: bool,
    /// New handles may be made.
    pub(crate) creates: bool,
    /// Free handles may be moved.
    pub(crate) moves: bool,
}

/// A handle that was taken out of its heap for a window.
struct Taken {
    spare: Spare,
    /// The position of its former owner after which nobody uses it.
    since: Position,
    /// The old mapping that it comes back to.
    back_to: Option<Old>,
}

/// Why a window came to nothing.
enum Stop {
    /// Somebody else was faster, or an order cannot be made.
    NotToBeHad,
    Device(DeviceError),
}

impl From<DeviceError> for Stop {
    fn from(error: DeviceError) -> Self {
        Stop::Device(error)
    }
}

/// What came of making room.
enum Outcome {
    /// The request has its place.
    Placed(Placement),
    /// There is no window, or no memory for it.
    TooLittle,
    /// A spare handle of the window is not to be had.
    NotToBeHad,
}

impl Outcome {
    fn placed(self) -> Option<Placement> {
        match self {
            Outcome::Placed(placed) => Some(placed),
            Outcome::TooLittle | Outcome::NotToBeHad => None,
        }
    }
}

/// A window on its way: what was taken for it, and what has been mapped.
struct Work {
    window: Window,
    means: Means,
    /// In the order of the pieces that use them.
    taken: Vec<Taken>,
    /// Handles that are mapped, with the position of the owner after which others may touch them.
    arrived: Vec<(Mapping, Position)>,
    /// Bytes in handles that were made.
    created: u64,
    /// Mappings that came to nothing and could not be removed.
    stuck: Vec<Ghost>,
    /// The streams that were waited for.
    waited_for: Vec<StreamIndex>,
}

impl<'a> Climb<'a> {
    /// Makes room with the means given, and places the request there. With the heap comes `None` when they do not suffice.
    pub(crate) fn make_room(
        &mut self,
        gate: Option<&Gate<'_>>,
        mut inside: Inside<'a>,
        means: Means,
    ) -> Result<Room<'a>, AllocError> {
        if means.creates {
            self.shared.retry_strays();
        }
        let spares = match gate {
            Some(gate) if self.shared.settings.lending() && means.moves => self.spares(gate, &mut inside, means.waits),
            _ => Vec::new(),
        };
        match self.make_room_of(gate, inside, means, &spares)? {
            // Others may be faster each time, as long as they ask too: that is no reason to fail where new handles do.
            (inside, Outcome::NotToBeHad) if means.creates => {
                let (inside, outcome) = self.make_room_of(gate, inside, means, &[])?;
                Ok((inside, outcome.placed()))
            }
            (inside, outcome) => Ok((inside, outcome.placed())),
        }
    }

    /// Makes room of these spare handles, and of new ones if the means allow it.
    fn make_room_of(
        &mut self,
        gate: Option<&Gate<'_>>,
        mut inside: Inside<'a>,
        means: Means,
        spares: &[Spare],
    ) -> Result<(Inside<'a>, Outcome), AllocError> {
        let window = match self.choose(&mut inside, spares, means.creates) {
            Ok(Some(window)) => window,
            Ok(None) => return Ok((inside, Outcome::TooLittle)),
            Err(refusal) => {
                self.refuse(refusal)?;
                return Ok((inside, Outcome::TooLittle));
            }
        };
        inside.heap.hold(&window);
        let (taken, arrived, stuck, waited_for) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut work = Work { window, means, taken, arrived, created: 0, stuck, waited_for };
        let done = self.take(&mut inside, &mut work);
        drop(inside);
        let start_ns = self.shared.device.now_ns();
        let done = done.and_then(|()| self.carry_out(gate, &mut work));
        self.shared.page_time.spent(start_ns, self.shared.device.now_ns());
        self.finish(work, done)
    }

    /// The window, with its new bytes claimed.
    fn choose(&self, state: &mut HeapState, spares: &[Spare], creates: bool) -> Result<Option<Window>, Refusal> {
        let (shared, requested) = (self.shared, self.requested);
        let granularity = shared.device.properties().granularity_bytes;
        let create = creates.then(|| self.handle_bytes(granularity));
        let supply = Supply { spares, create, blind: self.slot.openness.is_open() };
        let search = |state: &mut HeapState| state.heap.window(requested, supply, |ghost| self.ghost_state(ghost));
        let mut found = search(state);
        let suffices = creates || spares.iter().map(|spare| spare.bytes).sum::<u64>() >= requested;
        // An unmapped stretch of this length can be filled with what there is, whatever the sizes of the handles.
        let largest = spares.iter().map(|spare| spare.bytes).chain(create).max().unwrap_or(0);
        let room = requested.saturating_add(granularity).saturating_add(largest);
        if found.is_none() && suffices && state.heap.largest_hole(requested) < room {
            // Live blocks, or old mappings that are still used, are in the way everywhere.
            shared.reserve_for(state, requested)?;
            found = search(state);
        }
        if let Some(window) = &found {
            shared.claim(window.created())?;
        }
        Ok(found)
    }

    /// The largest handle that is made for this request.
    fn handle_bytes(&self, granularity: u64) -> u64 {
        let held = self.shared.ledger.physical().now;
        let budget_ns = self.shared.page_time.left_ns(self.shared.device.now_ns());
        handle_bytes(held, self.requested, granularity, budget_ns)
    }

    /// Handles that hold nothing but free memory: own ones, those that this stream comes after anyway, then, where it may
    /// wait, those that no open stream holds up.
    fn spares(&self, gate: &Gate<'_>, own: &mut HeapState, waits: bool) -> Vec<Spare> {
        let shared = self.shared;
        let (mut now, mut later) = (Vec::new(), Vec::new());
        if !self.slot.openness.is_open() {
            now.extend(spares_of(self.slot, own, |_| true));
        }
        for slot in self.others().filter(|slot| !slot.openness.is_open()) {
            let Some(mut state) = slot.station.try_enter() else { continue };
            shared.retire(gate, slot, &mut state, self.context);
            let last = state.heap.wholly_free().into_iter().map(|(_, since)| since).max();
            let ask = |last| {
                shared.fence_covering(gate, slot, last)?;
                shared.poll(gate, slot)?;
                shared.order_after(gate, (slot, last), Some(self.slot))
            };
            let order = match last.map(ask).transpose() {
                Ok(order) => order,
                Err(error) => {
                    tracing::warn!(%error, "asking for the progress of a stream failed; its memory stays");
                    continue;
                }
            };
            let proven = |since| self.is_proven(slot, since);
            let (ready, rest): (Vec<Spare>, Vec<Spare>) =
                spares_of(slot, &mut state, proven).into_iter().partition(|spare| spare.proven);
            now.extend(ready);
            if waits && !matches!(order, Some(Order::HeldUp(..))) {
                later.extend(rest);
            }
        }
        now.extend(later);
        now
    }

    /// Whether what this stream is given next comes after a position of another one, as far as anybody knows.
    fn is_proven(&self, other: &Slot, position: Position) -> bool {
        other.clock.completed() >= position || self.slot.clock.is_after(other.index, position)
    }

    /// Takes the handles that the window uses out of their heaps.
    fn take(&self, own: &mut HeapState, work: &mut Work) -> Result<(), Stop> {
        for piece in &work.window.pieces {
            let Some(spare) = piece.spare() else { continue };
            let back_to = match *piece {
                Piece::Return { to, .. } => Some(self.shared.aliases.claim(spare.page, to).ok_or(Stop::NotToBeHad)?),
                _ => None,
            };
            let since = if spare.stream == self.slot.index {
                self.take_one(self.slot, own, spare)
            } else {
                let slot = self.shared.slot(spare.stream);
                let state = slot.station.try_enter();
                state.and_then(|mut state| self.take_one(slot, &mut state, spare))
            };
            let Some(since) = since else {
                self.add_old(back_to);
                return Err(Stop::NotToBeHad);
            };
            work.taken.push(Taken { spare, since, back_to });
        }
        Ok(())
    }

    fn take_one(&self, slot: &Slot, state: &mut HeapState, spare: Spare) -> Option<Position> {
        let Spare { page, bytes, address, .. } = spare;
        let since = state.heap.take(Mapping { address, bytes, page })?;
        self.add_old(Some(Old { ghost: Ghost { address, bytes, page }, used: Some((slot.index, since)) }));
        let action = Action::SegmentUnmap { address, bytes, stream: u64::from(slot.index.0) };
        state.note(self.shared.device.now_ns(), action, self.context);
        Some(since)
    }

    fn add_old(&self, old: Option<Old>) {
        let shared = self.shared;
        if let Some(old) = old {
            shared.aliases.add(&*shared.device, old, |stream| shared.slot(stream).clock.completed());
        }
    }

    /// Clears the way, orders the stream, and maps. No heap is held.
    fn carry_out(&self, gate: Option<&Gate<'_>>, work: &mut Work) -> Result<(), Stop> {
        for &ghost in &work.window.removed {
            self.shared.aliases.remove(&*self.shared.device, ghost)?;
        }
        if let Some(gate) = gate {
            self.order_moves(gate, work)?;
        }
        // Set behind the waits: who comes after it comes after the former uses of what has moved here.
        let behind = self.slot.mark();
        let mut taken = 0;
        for piece in work.window.pieces.clone() {
            let (address, bytes) = piece.place();
            let (page, since) = match piece.spare() {
                None => (self.create(address, bytes, work)?, Position(0)),
                Some(spare) => {
                    if matches!(piece, Piece::Move { .. }) {
                        self.map(PageHandle(spare.page.0), address, bytes, &mut work.stuck)?;
                    }
                    let own = spare.stream == self.slot.index;
                    taken += 1;
                    (spare.page, if own { work.taken[taken - 1].since } else { behind })
                }
            };
            work.arrived.push((Mapping { address, bytes, page }, since));
        }
        Ok(())
    }

    /// Orders the stream after the last uses of the handles that were taken from others.
    fn order_moves(&self, gate: &Gate<'_>, work: &mut Work) -> Result<(), Stop> {
        let mut last = std::collections::BTreeMap::new();
        for Taken { spare, since, .. } in work.taken.iter().filter(|taken| taken.spare.stream != self.slot.index) {
            let entry = last.entry(spare.stream).or_insert(*since);
            *entry = (*entry).max(*since);
        }
        for (stream, position) in last {
            let slot = self.shared.slot(stream);
            if self.is_proven(slot, position) {
                continue;
            }
            match self.shared.order_after(gate, (slot, position), Some(self.slot))? {
                Order::Passed => {}
                Order::After(recorded) if work.means.waits => {
                    self.wait_on_device(gate, &recorded)?;
                    work.waited_for.push(stream);
                }
                Order::After(_) | Order::HeldUp(..) => return Err(Stop::NotToBeHad),
            }
        }
        Ok(())
    }

    fn create(&self, address: u64, bytes: u64, work: &mut Work) -> DeviceResult<PageId> {
        let shared = self.shared;
        let page = shared.device.create(bytes)?;
        shared.ledger.created(bytes);
        work.created += bytes;
        count(&shared.counts.handles_created);
        self.map(page, address, bytes, &mut work.stuck).inspect_err(|_| shared.let_go(Stray { page, bytes }))?;
        Ok(PageId(page.0))
    }

    /// Maps a handle. On error it is not mapped there, or that mapping is on the list of old ones.
    fn map(&self, page: PageHandle, address: u64, bytes: u64, stuck: &mut Vec<Ghost>) -> DeviceResult<()> {
        let device = &self.shared.device;
        device.map(page, Address(address))?;
        device.set_access(Address(address), bytes).inspect_err(|_| {
            if let Err(error) = device.unmap(Address(address), bytes) {
                self.keep_stuck(error, Ghost { address, bytes, page: PageId(page.0) }, stuck);
            }
        })
    }

    fn keep_stuck(&self, error: DeviceError, ghost: Ghost, stuck: &mut Vec<Ghost>) {
        tracing::warn!(%error, "a handle could not be unmapped; trying again later");
        self.add_old(Some(Old { ghost, used: None }));
        stuck.push(ghost);
    }

    /// Enters the heap again, and gives the request its room; or gives back what was taken and made for it.
    fn finish(&mut self, mut work: Work, done: Result<(), Stop>) -> Result<(Inside<'a>, Outcome), AllocError> {
        let shared = self.shared;
        shared.ledger.unclaim(work.window.created() - work.created);
        let own = if done.is_err() { self.undo(&mut work) } else { Vec::new() };
        let mut inside = self.slot.station.enter();
        for &other in &work.waited_for {
            self.note_wait(&mut inside, other);
        }
        for &(mapping, since) in &work.arrived {
            inside.heap.arrive(&work.window, mapping, since);
            self.note_map(self.slot, &mut inside, mapping);
        }
        let Err(stop) = done else {
            let remapped = work.window.pieces.iter().filter(|piece| matches!(piece, Piece::Move { .. })).count();
            add(&shared.counts.pages_moved, work.taken.len() as u64);
            add(&shared.counts.pages_remapped, remapped as u64);
            let placed = inside.settle(&work.window, self.requested, self.context);
            return Ok((inside, Outcome::Placed(placed)));
        };
        inside.heap.let_go(&work.window);
        for taken in own {
            self.put_back(self.slot, &mut inside, &taken);
        }
        for ghost in work.stuck {
            inside.heap.add_ghost(ghost);
        }
        match stop {
            Stop::NotToBeHad => Ok((inside, Outcome::NotToBeHad)),
            Stop::Device(error) => {
                self.refuse(error.into())?;
                Ok((inside, Outcome::TooLittle))
            }
        }
    }

    /// Gives handles back that were made or taken for a window that comes to nothing, and have not moved; returns those
    /// that belong into the own heap. No heap is held.
    fn undo(&self, work: &mut Work) -> Vec<Taken> {
        let made = |mapping: &Mapping| !work.taken.iter().any(|taken| taken.spare.page == mapping.page);
        let (made, moved): (Vec<_>, Vec<_>) =
            std::mem::take(&mut work.arrived).into_iter().partition(|(mapping, _)| made(mapping));
        work.arrived = moved;
        for (Mapping { address, bytes, page }, _) in made {
            let page = PageHandle(page.0);
            if let Err(error) = self.shared.device.unmap(Address(address), bytes) {
                self.keep_stuck(error, Ghost { address, bytes, page: PageId(page.0) }, &mut work.stuck);
            }
            self.shared.let_go(Stray { page, bytes });
        }
        let mut own = Vec::new();
        for taken in work.taken.split_off(work.arrived.len()) {
            let Taken { spare, .. } = &taken;
            self.add_old(taken.back_to);
            if work.stuck.iter().any(|ghost| ghost.page == spare.page) {
                self.shared.let_go(Stray { page: PageHandle(spare.page.0), bytes: spare.bytes });
            } else if spare.stream == self.slot.index {
                own.push(taken);
            } else {
                let slot = self.shared.slot(spare.stream);
                self.put_back(slot, &mut slot.station.enter(), &taken);
            }
        }
        own
    }

    /// Puts a handle back into the heap that it was taken from.
    fn put_back(&self, slot: &Slot, state: &mut HeapState, taken: &Taken) {
        let Spare { page, bytes, address, .. } = taken.spare;
        let mapping = Mapping { address, bytes, page };
        let there = self.shared.aliases.claim(page, address);
        if there.is_some() && state.heap.put_back(mapping, taken.since) {
            self.note_map(slot, state, mapping);
        } else {
            self.add_old(there);
            self.shared.let_go(Stray { page: PageHandle(page.0), bytes });
        }
    }

    fn note_map(&self, slot: &Slot, state: &mut HeapState, mapping: Mapping) {
        let Mapping { address, bytes, .. } = mapping;
        let action = Action::SegmentMap { address, bytes, stream: u64::from(slot.index.0) };
        state.note(self.shared.device.now_ns(), action, self.context);
    }
}

fn spares_of(slot: &Slot, state: &mut HeapState, proven: impl Fn(Position) -> bool) -> Vec<Spare> {
    let spare = |(Mapping { address, bytes, page }, since)| Spare {
        page,
        bytes,
        stream: slot.index,
        address,
        since,
        proven: proven(since),
    };
    state.heap.wholly_free().into_iter().map(spare).collect()
}
