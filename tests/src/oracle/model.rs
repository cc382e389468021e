//! The model: what the allocator knows, and what it is going to answer.
//!
//! Every stream has a *place*: its heap, how many marks were set in it, up to which mark its work is known to be
//! complete, and for every other place the mark that all its future work comes after. Fences are facts: what they cover,
//! what was known when they were recorded, and when they are complete.
//!
//! Beside that the model knows what nobody tells the allocator: when every use of every byte ends. No work may start on
//! bytes, and no bytes may be unmapped, before that. What breaks it is a [`problem`](Model::problem).

use std::collections::{BTreeMap, BTreeSet};

use highwater::GaugeReading;
use highwater::device::DeviceCall;

use super::heap::{Heap, Span};
use super::machine::{Fault, Machine};
use super::op::{Relief, Setup};

/// The rungs of the ladder, bottom up.
pub(super) const RUNGS: [&str; 9] = [
    "own_free",
    "own_pending",
    "move",
    "grow",
    "order",
    "callbacks",
    "return_cached",
    "host_wait_own",
    "host_wait_others",
];

/// A fence that was recorded.
#[derive(Clone, Debug)]
pub(super) struct Fact {
    pub(super) place: usize,
    /// The mark that it covers.
    pub(super) covered: u64,
    /// What came before it, by place.
    known: BTreeMap<usize, u64>,
    /// When it is complete.
    pub(super) complete_ns: u64,
}

/// A fence that a place keeps in order to ask it.
#[derive(Clone, Debug)]
struct Kept {
    fence: usize,
    covered: u64,
    /// Somebody waits for it: a later one does not replace it.
    demanded: bool,
}

/// A free on its way: the bytes, their `since`, and what is waited for.
type Message = (Span, u64, Vec<(usize, u64)>);

/// A stream's place.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) name: String,
    /// The stream that has it.
    pub(super) stream: Option<usize>,
    pub(super) marks: u64,
    pub(super) completed: u64,
    known: BTreeMap<usize, u64>,
    kept: Vec<Kept>,
    /// A fence that could not be recorded when it was needed has to cover this.
    owed: u64,
    pub(super) heap: Heap,
    /// How often the lock is held.
    inside: u32,
    inbox: Vec<Message>,
    /// The graph that its stream records into.
    pub(super) graph: Option<usize>,
}

/// Until when another stream uses a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Until {
    Mark(u64),
    Free,
}

/// A block.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) stream: usize,
    /// `None` for zero bytes.
    pub(super) span: Option<Span>,
    pub(super) requested: u64,
    pub(super) raw: bool,
    /// Whether somebody knows the address.
    pub(super) escaped: bool,
    pub(super) since: u64,
    uses: BTreeMap<usize, Until>,
    pub(super) graph: Option<usize>,
    /// When the last use of its bytes by anybody before ends: nothing may start earlier.
    clear_ns: u64,
    /// When its last use that was ever named ends.
    used_ns: u64,
    /// Streams that use it until the free.
    used_by: BTreeSet<usize>,
}

/// A stream of the driver.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) place: usize,
    /// Handles, buffers, captures.
    refs: u32,
}

/// A handle that the device did not take back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stray {
    pub(super) bytes: u64,
    /// Where it is still mapped.
    pub(super) mapped: Option<Span>,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) rungs: [u64; RUNGS.len()],
    pub(super) out_of_memory: u64,
    pub(super) waits_inserted: u64,
    pub(super) host_stalls: u64,
    pub(super) host_stall_ns: u64,
    pub(super) handles_created: u64,
    pub(super) handles_released: u64,
    pub(super) fences_recorded: u64,
    pub(super) allocations: u64,
    pub(super) frees: u64,
}

/// Whether a wait is over; the weaker comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Over {
    No,
    Ordered,
    Complete,
}

/// The model.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) machine: Machine,
    pub(super) limit: u64,
    pub(super) timeout_ns: u64,
    pub(super) places: Vec<Place>,
    /// Places without a holder, the longest ago first.
    idle: Vec<usize>,
    pub(super) all_streams: Vec<Stream>,
    pub(super) facts: Vec<Fact>,
    pub(super) blocks: Vec<Block>,
    /// Memory that graphs keep; `None` when the graph is gone.
    graphs: Vec<Option<Vec<usize>>>,
    pub(super) strays: Vec<Stray>,
    pub(super) counts: Counts,
    pub(super) live: GaugeReading,
    pub(super) reserved: GaugeReading,
    /// Bytes that somebody else holds.
    pub(super) hogged: Vec<u64>,
    /// When the last use of bytes ends that were given back.
    past: Vec<(Span, u64)>,
    /// A block that another thread frees when a call is reached.
    pub(super) armed: Option<(DeviceCall, usize)>,
    /// Whether one did since this was last set back.
    pub(super) stepped_in: bool,
    pub(super) reliefs: Vec<Relief>,
    pub(super) in_callback: bool,
    /// Whether a call has failed in this step.
    pub(super) faulty: bool,
    /// What must not be, in words.
    pub(super) problem: Option<String>,
    pub(super) program: super::predict::Program,
}

impl Model {
    pub(super) fn new(setup: &Setup) -> Self {
        let mut machine = Machine::new(setup.granularity_bytes, setup.granules);
        // The allocator asks for the total when it is made.
        let asked = machine.free();
        debug_assert!(asked.is_ok(), "nothing fails yet");
        let mut model = Model {
            limit: setup.limit_bytes.min(machine.total),
            machine,
            timeout_ns: setup.timeout_ns,
            places: Vec::new(),
            idle: Vec::new(),
            all_streams: Vec::new(),
            facts: Vec::new(),
            blocks: Vec::new(),
            graphs: Vec::new(),
            strays: Vec::new(),
            counts: Counts::default(),
            live: GaugeReading::default(),
            reserved: GaugeReading::default(),
            hogged: Vec::new(),
            past: Vec::new(),
            armed: None,
            stepped_in: false,
            reliefs: Vec::new(),
            in_callback: false,
            faulty: false,
            problem: None,
            program: super::predict::Program::default(),
        };
        model.take_place(None, 0, "default".into());
        // The allocator itself holds the default stream.
        model.all_streams[0].refs += 1;
        model.program.streams.push(0);
        model
    }

    pub(super) fn complain(&mut self, problem: String) {
        self.problem.get_or_insert(problem);
    }

    /// Remembers that a call failed.
    pub(super) fn seen<T>(&mut self, result: Result<T, Fault>) -> Result<T, Fault> {
        self.faulty |= result.is_err();
        result
    }

    // ---- locks and messages

    pub(super) fn enter(&mut self, place: usize) {
        self.places[place].inside += 1;
    }

    /// Messages that came meanwhile are delivered.
    pub(super) fn leave(&mut self, place: usize) {
        self.places[place].inside -= 1;
        if self.places[place].inside == 0 {
            self.deliver(place);
        }
    }

    /// Delivers the messages that came while somebody was inside.
    pub(super) fn deliver(&mut self, place: usize) {
        let place = &mut self.places[place];
        for (span, since, waits) in std::mem::take(&mut place.inbox) {
            place.heap.free(span, since, waits);
        }
    }

    /// Another thread may step in at a call.
    pub(super) fn reach(&mut self, call: DeviceCall) {
        if let Some((_, block)) = self.armed.take_if(|(at, _)| *at == call) {
            self.stepped_in = true;
            self.drop_block(block);
        }
    }

    /// Whoever was to step in does it now.
    pub(super) fn disarm(&mut self) {
        if let Some((_, block)) = self.armed.take() {
            self.drop_block(block);
        }
    }

    /// When everything that was submitted so far is over, ns.
    pub(super) fn all_through_ns(&self) -> u64 {
        (0..self.all_streams.len()).map(|stream| self.machine.through_ns(stream)).max().unwrap_or(0)
    }

    // ---- progress

    /// Whether fences may be touched: no stream captures.
    pub(super) fn gate(&self) -> bool {
        !self.machine.is_capturing()
    }

    /// Sets a mark; in an idle place there is nothing to mark.
    pub(super) fn mark(&mut self, place: usize) -> u64 {
        let place = &mut self.places[place];
        place.marks += u64::from(place.stream.is_some());
        place.marks
    }

    /// Records a fence; `None` in an idle place.
    pub(super) fn record(&mut self, place: usize) -> Result<Option<usize>, Fault> {
        let Some(stream) = self.places[place].stream else { return Ok(None) };
        let (covered, known) = (self.places[place].marks, self.places[place].known.clone());
        let recorded = self.machine.record(stream);
        let complete_ns = self.seen(recorded)?;
        self.counts.fences_recorded += 1;
        let fence = self.facts.len();
        self.facts.push(Fact { place, covered, known, complete_ns });
        let place = &mut self.places[place];
        let newest = place.kept.last().map_or(place.completed, |last| last.covered);
        if newest < covered {
            if place.kept.last().is_some_and(|last| !last.demanded) {
                place.kept.pop();
            }
            place.kept.push(Kept { fence, covered, demanded: false });
        }
        if place.owed <= covered {
            let owed = std::mem::take(&mut place.owed);
            if owed > 0
                && let Some(kept) = place.kept.iter_mut().find(|kept| kept.covered >= owed)
            {
                kept.demanded = true;
            }
        }
        Ok(Some(fence))
    }

    /// A fence after a mark; `None` when that is known to be complete.
    pub(super) fn fence_after(&mut self, place: usize, mark: u64) -> Result<Option<usize>, Fault> {
        let known = &mut self.places[place];
        if known.completed >= mark {
            return Ok(None);
        }
        match known.kept.iter_mut().find(|kept| kept.covered >= mark) {
            Some(kept) => {
                kept.demanded = true;
                Ok(Some(kept.fence))
            }
            None => {
                known.owed = known.owed.max(mark);
                self.record(place)
            }
        }
    }

    /// The host has seen a fence complete, and so everything that came before it.
    pub(super) fn learn(&mut self, fence: usize) {
        let fact = self.facts[fence].clone();
        let inherited = fact.known.iter().filter(|&(&place, &mark)| place != fact.place && mark > 0);
        for (place, mark) in inherited.map(|(&place, &mark)| (place, mark)).chain([(fact.place, fact.covered)]) {
            let place = &mut self.places[place];
            if place.completed < mark {
                place.completed = mark;
                place.kept.retain(|kept| kept.covered > mark);
            }
        }
    }

    /// Asks the fences of a place, the oldest first, up to one that is not complete.
    pub(super) fn poll(&mut self, place: usize) -> Result<(), Fault> {
        if self.places[place].owed > self.places[place].completed {
            self.record(place)?;
        }
        while let Some(kept) = self.places[place].kept.first() {
            let fence = kept.fence;
            if !self.ask(fence)? {
                break;
            }
        }
        Ok(())
    }

    pub(super) fn ask(&mut self, fence: usize) -> Result<bool, Fault> {
        let asked = self.machine.query(self.facts[fence].complete_ns);
        let complete = self.seen(asked)?;
        if complete {
            self.learn(fence);
        }
        Ok(complete)
    }

    /// Blocks the host for a fence; whether it is complete.
    pub(super) fn synchronize(&mut self, fence: usize, timeout_ns: u64) -> Result<bool, Fault> {
        let waited = self.machine.synchronize(self.facts[fence].complete_ns, timeout_ns);
        let complete = self.seen(waited)?;
        if complete {
            self.learn(fence);
        }
        Ok(complete)
    }

    /// A stream comes after a fence.
    pub(super) fn wait(&mut self, stream: usize, fence: usize) -> Result<(), Fault> {
        let fact = self.facts[fence].clone();
        let waited = self.machine.wait(stream, fact.complete_ns);
        self.seen(waited)?;
        let known = &mut self.places[self.all_streams[stream].place].known;
        let inherited = fact.known.iter().filter(|&(&place, _)| place != fact.place);
        for (place, mark) in inherited.map(|(&place, &mark)| (place, mark)).chain([(fact.place, fact.covered)]) {
            let entry = known.entry(place).or_default();
            *entry = mark.max(*entry);
        }
        Ok(())
    }

    fn over(&self, owner: usize, (place, mark): (usize, u64)) -> Over {
        if self.places[place].completed >= mark {
            Over::Complete
        } else if place == owner || self.places[owner].known.get(&place).is_some_and(|&known| known >= mark) {
            Over::Ordered
        } else {
            Over::No
        }
    }

    /// Ends the pending frees of a heap that are over.
    pub(super) fn retire(&mut self, place: usize) {
        for (awaited, _) in self.places[place].heap.awaited() {
            // A failure leaves them pending.
            let _ = self.poll(awaited);
        }
        if self.places[place].heap.pending.is_empty() {
            return;
        }
        let now = self.mark(place);
        for pending in self.places[place].heap.pending.clone() {
            let least = pending.waits.iter().map(|&wait| self.over(place, wait)).min().unwrap_or(Over::Complete);
            match least {
                Over::No => {}
                Over::Ordered => self.places[place].heap.end(pending.number, now),
                Over::Complete => self.places[place].heap.end(pending.number, pending.since),
            }
        }
    }

    // ---- blocks

    /// Where a request was put. Its stream must be through with whoever had the bytes before.
    pub(super) fn born(&mut self, stream: usize, requested: u64, placed: Option<(Span, u64)>, raw: bool) -> usize {
        let place = self.all_streams[stream].place;
        let (span, since) = placed.map_or((None, 0), |(span, since)| (Some(span), since));
        let clear_ns = span.map_or(0, |span| self.past_uses_ns(span));
        if self.machine.next_start_ns(stream) < clear_ns && !self.machine.captures(stream) {
            self.complain(format!("{span:?} is given to stream {stream} while its bytes are used until {clear_ns} ns"));
        }
        self.all_streams[stream].refs += 1;
        self.blocks.push(Block {
            stream,
            span,
            requested,
            raw,
            escaped: raw,
            since,
            uses: BTreeMap::new(),
            graph: self.places[place].graph,
            clear_ns,
            used_ns: 0,
            used_by: BTreeSet::new(),
        });
        self.blocks.len() - 1
    }

    fn past_uses_ns(&self, span: Span) -> u64 {
        let overlapping = self.past.iter().filter(|(past, _)| past.start < span.end() && span.start < past.end());
        overlapping.map(|&(_, ns)| ns).max().unwrap_or(0)
    }

    /// Bytes are about to be unmapped: nobody may use them.
    pub(super) fn about_to_unmap(&mut self, handle: Span) {
        let until_ns = self.past_uses_ns(handle);
        if until_ns > self.machine.now_ns {
            self.complain(format!("{handle:?} is unmapped while it is used until {until_ns} ns"));
        }
    }

    /// Makes a stream come after the former uses of a block's bytes.
    pub(super) fn come_after(&mut self, stream: usize, block: usize) -> Result<(), Blocked> {
        let (owner, since) = (self.all_streams[self.blocks[block].stream].place, self.blocks[block].since);
        let place = self.all_streams[stream].place;
        let settled = since == 0 || self.places[owner].completed >= since;
        if settled || self.over(place, (owner, since)) != Over::No {
            return Ok(());
        }
        if !self.gate() {
            return Err(Blocked::Capturing);
        }
        if let Some(fence) = self.fence_after(owner, since)? {
            self.wait(stream, fence)?;
            self.counts.waits_inserted += 1;
        }
        Ok(())
    }

    /// An operation on a block starts and ends.
    pub(super) fn executed(&mut self, stream: usize, block: usize, start_ns: Option<u64>) {
        let Some(start_ns) = start_ns else { return };
        if start_ns < self.blocks[block].clear_ns {
            let clear_ns = self.blocks[block].clear_ns;
            self.complain(format!(
                "work on stream {stream} starts at {start_ns} ns, its bytes are used until {clear_ns} ns"
            ));
        }
        let end_ns = self.machine.through_ns(stream);
        self.blocks[block].used_ns = self.blocks[block].used_ns.max(end_ns);
    }

    /// Whether uses by a stream's place count: the owner's own do not.
    pub(super) fn counts_for(&self, stream: usize, block: usize) -> bool {
        let owner = self.all_streams[self.blocks[block].stream].place;
        self.blocks[block].span.is_some() && owner != self.all_streams[stream].place
    }

    /// A use by a stream, until a mark that is at a known time or until the free.
    pub(super) fn note_use(&mut self, stream: usize, block: usize, until: Until) {
        if !self.counts_for(stream, block) {
            return;
        }
        let place = self.all_streams[stream].place;
        let block = &mut self.blocks[block];
        let until = if block.escaped { Until::Free } else { until };
        if until == Until::Free {
            block.used_by.insert(stream);
        }
        let known = block.uses.entry(place).or_insert(until);
        *known = until.max(*known);
    }

    /// Says that named work until a fence uses a block.
    pub(super) fn used_until(&mut self, block: usize, ns: u64) {
        self.blocks[block].used_ns = self.blocks[block].used_ns.max(ns);
    }

    /// A handle to a block is dropped.
    pub(super) fn drop_block(&mut self, block: usize) {
        let Block { span, graph, stream, .. } = self.blocks[block];
        if span.is_some() {
            if let Some(graph) = graph
                && let Some(kept) = &mut self.graphs[graph]
            {
                return kept.push(block);
            }
            self.give_back(block);
        }
        self.drop_stream(stream);
    }

    /// Gives a block back to its heap.
    fn give_back(&mut self, block: usize) {
        let (stream, span) = (self.blocks[block].stream, self.blocks[block].span.expect("it has bytes"));
        let owner = self.all_streams[stream].place;
        self.live.now -= self.blocks[block].requested;
        self.counts.frees += 1;
        // The owner's own work, and that of streams that use it until now, may touch it up to here.
        let mut used_ns = self.blocks[block].used_ns.max(self.machine.through_ns(stream));
        for &user in &self.blocks[block].used_by {
            used_ns = used_ns.max(self.machine.through_ns(user));
        }
        let now_ns = self.machine.now_ns;
        self.past.retain(|&(past, ns)| ns > now_ns && !(past == span && ns <= used_ns));
        self.past.push((span, used_ns));

        let gate = self.gate();
        let mut waits = Vec::new();
        for (place, until) in self.blocks[block].uses.clone() {
            let mark = match until {
                Until::Mark(mark) => mark,
                Until::Free => self.mark(place),
            };
            if self.over(owner, (place, mark)) != Over::No || self.is_over_now(gate, place, mark) {
                continue;
            }
            waits.push((place, mark));
        }
        let since = self.mark(owner);
        let place = &mut self.places[owner];
        if place.inside > 0 {
            place.inbox.push((span, since, waits));
        } else {
            place.heap.free(span, since, waits);
        }
    }

    /// Makes sure that a fence covers a mark, and asks it. While a stream captures the fence stays owed.
    fn is_over_now(&mut self, gate: bool, place: usize, mark: u64) -> bool {
        if !gate {
            let known = &mut self.places[place];
            match known.kept.iter_mut().find(|kept| kept.covered >= mark) {
                Some(kept) => kept.demanded = true,
                None => known.owed = known.owed.max(mark),
            }
            return false;
        }
        // A failure leaves the free pending.
        let _ = self.fence_after(place, mark).and_then(|_| self.poll(place));
        self.places[place].completed >= mark
    }

    // ---- streams

    /// A stream gets a place: a given one, or a new one.
    fn take_place(&mut self, place: Option<usize>, stream: usize, name: String) {
        let place = place.unwrap_or_else(|| {
            self.places.push(Place {
                name: String::new(),
                stream: None,
                marks: 0,
                completed: 0,
                known: BTreeMap::new(),
                kept: Vec::new(),
                owed: 0,
                heap: Heap::new(self.machine.granularity),
                inside: 0,
                inbox: Vec::new(),
                graph: None,
            });
            self.places.len() - 1
        });
        self.places[place].name = name;
        self.places[place].stream = Some(stream);
        debug_assert_eq!(self.all_streams.len(), stream);
        self.all_streams.push(Stream { place, refs: 1 });
    }

    pub(super) fn create_stream(&mut self, name: String) -> Result<usize, Fault> {
        let created = self.machine.create_stream();
        let stream = self.seen(created)?;
        let mut found = None;
        if self.gate() {
            for place in self.idle.clone() {
                self.close(place);
                let idle = self.places[place].stream.is_none();
                if idle && self.poll(place).is_ok() && self.places[place].completed >= self.places[place].marks {
                    found = Some(place);
                    break;
                }
            }
        }
        self.idle.retain(|&place| Some(place) != found);
        self.take_place(found, stream, name);
        Ok(stream)
    }

    /// Records the last fence of a stream and destroys it; on failure it is tried again later.
    fn close(&mut self, place: usize) {
        if self.places[place].stream.is_none() {
            return;
        }
        self.mark(place);
        if self.record(place).is_ok() {
            let destroyed = self.machine.call(DeviceCall::DestroyStream);
            if self.seen(destroyed).is_ok() {
                self.places[place].stream = None;
            }
        }
    }

    pub(super) fn hold_stream(&mut self, stream: usize) {
        self.all_streams[stream].refs += 1;
    }

    pub(super) fn drop_stream(&mut self, stream: usize) {
        self.all_streams[stream].refs -= 1;
        if self.all_streams[stream].refs == 0 {
            let place = self.all_streams[stream].place;
            if self.gate() {
                self.close(place);
            }
            self.idle.push(place);
        }
    }

    // ---- captures

    pub(super) fn begin_capture(&mut self, stream: usize) -> Result<usize, Blocked> {
        let place = self.all_streams[stream].place;
        if self.places[place].graph.is_some() {
            return Err(Blocked::Capturing);
        }
        let begun = self.machine.begin_capture(stream);
        self.seen(begun)?;
        self.graphs.push(Some(Vec::new()));
        self.places[place].graph = Some(self.graphs.len() - 1);
        self.hold_stream(stream);
        Ok(self.graphs.len() - 1)
    }

    pub(super) fn finish_capture(&mut self, stream: usize) -> Result<(), Fault> {
        self.places[self.all_streams[stream].place].graph = None;
        let ended = self.machine.end_capture(stream);
        self.seen(ended)
    }

    /// A graph is gone, and gives back what it kept.
    pub(super) fn release_graph(&mut self, graph: usize) {
        for block in self.graphs[graph].take().into_iter().flatten() {
            self.give_back(block);
            self.drop_stream(self.blocks[block].stream);
        }
    }
}

/// Why work was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Blocked {
    Capturing,
    Failed(Fault),
}

impl From<Fault> for Blocked {
    fn from(fault: Fault) -> Self {
        Blocked::Failed(fault)
    }
}
