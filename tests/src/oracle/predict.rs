//! What the model answers to each step of a program.

use std::collections::BTreeMap;

use highwater::device::DeviceCall;
use highwater::{GaugeReading, OutOfMemory};

use super::climb::Refused;
use super::model::{Blocked, Model, RUNGS, Until};
use super::op::{Op, Relief, pick};

/// What came of a step, as both sides tell it.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Outcome {
    Done,
    /// Where memory was given out.
    Address(u64),
    Is(bool),
    Bytes(u64),
    Capturing,
    OtherStream,
    TimedOut,
    Failed(DeviceCall),
    OutOfMemory(Box<OutOfMemory>),
    /// Something that no step may come to, in words.
    Unexpected(String),
}

/// What both sides show after a step.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Shown {
    pub(super) now_ns: u64,
    pub(super) live: GaugeReading,
    pub(super) reserved: GaugeReading,
    pub(super) bytes: BTreeMap<&'static str, u64>,
    pub(super) pending_by_stream: BTreeMap<String, u64>,
    pub(super) rungs: BTreeMap<&'static str, u64>,
    pub(super) counts: BTreeMap<&'static str, u64>,
    pub(super) calls: BTreeMap<DeviceCall, u64>,
}

/// What a program holds, by number: each list has the order of the real one.
#[derive(Debug, Default)]
pub(super) struct Program {
    pub(super) streams: Vec<usize>,
    pub(super) buffers: Vec<usize>,
    /// Each with the stream that it was recorded on.
    pub(super) fences: Vec<(usize, usize)>,
    /// Each with its graph.
    pub(super) captures: Vec<(usize, usize)>,
    pub(super) graphs: Vec<usize>,
    pub(super) stash: Vec<usize>,
    created: usize,
    pub(super) log: Vec<Outcome>,
}

impl Program {
    /// The name of the next stream.
    fn next_name(&mut self) -> String {
        self.created += 1;
        format!("s{}", self.created)
    }
}

impl Model {
    /// Does a step; what came of it, and of callbacks meanwhile, in order.
    pub(super) fn step(&mut self, op: &Op) -> Vec<Outcome> {
        self.faulty = false;
        let outcome = self.answer(op);
        self.program.log.extend(outcome);
        std::mem::take(&mut self.program.log)
    }

    fn answer(&mut self, op: &Op) -> Option<Outcome> {
        Some(match *op {
            Op::Alloc { stream, bytes } => self.alloc(stream, bytes, false)?,
            Op::AllocRaw { stream, bytes } => self.alloc(stream, bytes, true)?,
            Op::Free { buffer, .. } => {
                let at = pick(self.program.buffers.len(), buffer)?;
                let block = self.program.buffers.remove(at);
                self.drop_block(block);
                Outcome::Done
            }
            Op::FreeInside { buffer, call } => {
                if self.armed.is_some() {
                    return None;
                }
                let at = pick(self.program.buffers.len(), buffer)?;
                self.armed = Some((call, self.program.buffers.remove(at)));
                Outcome::Done
            }
            Op::Launch { stream, ref operands, ns } => self.submit(stream, operands, ns)?,
            Op::RecordStream { buffer, stream } => {
                let block = self.program.buffers[pick(self.program.buffers.len(), buffer)?];
                self.note_use(self.stream_at(stream), block, Until::Free);
                Outcome::Done
            }
            Op::RecordUse { buffer, stream, fence } => self.record_use(buffer, stream, fence)?,
            Op::Guards { buffer, ref streams, ns } => self.guards(buffer, streams, ns)?,
            Op::Escape { buffer } => {
                let block = self.program.buffers[pick(self.program.buffers.len(), buffer)?];
                self.blocks[block].escaped = true;
                Outcome::Address(self.blocks[block].span.map_or(0, |span| span.start))
            }
            Op::Record { stream } => self.record_fence(self.stream_at(stream)),
            Op::Wait { stream, fence } => {
                let (fence, _) = self.program.fences[pick(self.program.fences.len(), fence)?];
                let stream = self.stream_at(stream);
                if !self.gate() {
                    return Some(Outcome::Capturing);
                }
                answered(self.wait(stream, fence).map_err(Blocked::Failed), |()| Outcome::Done)
            }
            Op::Ask { fence } => {
                let (fence, _) = self.program.fences[pick(self.program.fences.len(), fence)?];
                if !self.gate() {
                    return Some(Outcome::Capturing);
                }
                answered(self.ask(fence).map_err(Blocked::Failed), Outcome::Is)
            }
            Op::HostWait { fence, timeout_ns } => {
                let (fence, _) = self.program.fences[pick(self.program.fences.len(), fence)?];
                if !self.gate() {
                    return Some(Outcome::Capturing);
                }
                let waited = self.synchronize(fence, timeout_ns).map_err(Blocked::Failed);
                answered(waited, |complete| if complete { Outcome::Done } else { Outcome::TimedOut })
            }
            Op::DropFence { fence } => {
                let at = pick(self.program.fences.len(), fence)?;
                self.program.fences.remove(at);
                Outcome::Done
            }
            Op::HostWork { ns } => {
                self.machine.now_ns += ns;
                Outcome::Done
            }
            Op::Trim { target } => Outcome::Bytes(self.trim(target)),
            Op::CreateStream => {
                let name = self.program.next_name();
                let created = self.create_stream(name).map_err(Blocked::Failed);
                self.program.streams.extend(created.iter());
                answered(created, |_| Outcome::Done)
            }
            Op::DropStream { stream } => {
                let at = 1 + pick(self.program.streams.len() - 1, stream)?;
                let stream = self.program.streams.remove(at);
                self.drop_stream(stream);
                Outcome::Done
            }
            Op::BeginCapture { stream } => self.capture(self.stream_at(stream)),
            Op::EndCapture { capture } => {
                let at = pick(self.program.captures.len(), capture)?;
                self.end_capture(at)
            }
            Op::DropCapture { capture } => {
                let at = pick(self.program.captures.len(), capture)?;
                let (stream, graph) = self.program.captures.remove(at);
                self.throw_away(stream, graph);
                Outcome::Done
            }
            Op::DropGraph { graph } => {
                let at = pick(self.program.graphs.len(), graph)?;
                let graph = self.program.graphs.remove(at);
                self.release_graph(graph);
                Outcome::Done
            }
            Op::Stash { buffer } => {
                let at = pick(self.program.buffers.len(), buffer)?;
                let block = self.program.buffers.remove(at);
                self.program.stash.push(block);
                Outcome::Done
            }
            Op::Unstash => {
                if self.program.stash.is_empty() {
                    return None;
                }
                let block = self.program.stash.remove(0);
                self.program.buffers.push(block);
                Outcome::Done
            }
            Op::OnPressure(relief) => {
                self.reliefs.push(relief);
                Outcome::Done
            }
            Op::EndPressure { callback } => {
                let at = pick(self.reliefs.len(), callback)?;
                self.reliefs.remove(at);
                Outcome::Done
            }
            Op::Fail { call, nth } => {
                self.machine.fail(call, nth);
                Outcome::Done
            }
            Op::Hog { granules } => {
                let bytes = granules * self.machine.granularity;
                let taken = self.machine.create(bytes);
                if taken {
                    self.hogged.push(bytes);
                }
                Outcome::Is(taken)
            }
            Op::Unhog => {
                let bytes = *self.hogged.last()?;
                let released = self.machine.release(bytes).is_ok();
                if released {
                    self.hogged.pop();
                }
                Outcome::Is(released)
            }
            Op::ResetPeaks => {
                self.live.peak = self.live.now;
                self.reserved.peak = self.physical();
                Outcome::Done
            }
        })
    }

    fn stream_at(&self, index: usize) -> usize {
        self.program.streams[index % self.program.streams.len()]
    }

    fn alloc(&mut self, stream: usize, bytes: u64, raw: bool) -> Option<Outcome> {
        let stream = self.stream_at(stream);
        let (outcome, block) = self.give_out(stream, bytes, raw);
        // Nothing has to be freed of a raw block without bytes.
        match block {
            Some(block) if raw && bytes == 0 => self.drop_block(block),
            block => self.program.buffers.extend(block),
        }
        Some(outcome)
    }

    fn give_out(&mut self, stream: usize, bytes: u64, raw: bool) -> (Outcome, Option<usize>) {
        let placed = if bytes == 0 { Ok(None) } else { self.request(stream, bytes).map(Some) };
        match placed {
            Ok(placed) => {
                let address = placed.map_or(0, |(span, _)| span.start);
                (Outcome::Address(address), Some(self.born(stream, bytes, placed, raw)))
            }
            Err(Refused::OutOfMemory(report)) => (Outcome::OutOfMemory(report), None),
            Err(Refused::Failed(call)) => (Outcome::Failed(call), None),
        }
    }

    fn submit(&mut self, stream: usize, operands: &[usize], ns: u64) -> Option<Outcome> {
        let stream = self.stream_at(stream);
        let mut blocks: Vec<usize> = Vec::new();
        for &operand in operands {
            let block = self.program.buffers[pick(self.program.buffers.len(), operand)?];
            if !self.blocks[block].raw && !blocks.contains(&block) {
                blocks.push(block);
            }
        }
        for &block in &blocks {
            if let Err(blocked) = self.come_after(stream, block) {
                return Some(refused(blocked));
            }
        }
        let launched = self.machine.launch(stream, ns);
        let start_ns = match self.seen(launched) {
            Ok(start_ns) => start_ns,
            Err(call) => return Some(Outcome::Failed(call)),
        };
        let mark = self.mark(self.all_streams[stream].place);
        for &block in &blocks {
            self.executed(stream, block, start_ns);
            self.note_use(stream, block, Until::Mark(mark));
        }
        Some(Outcome::Done)
    }

    fn record_use(&mut self, buffer: usize, stream: Option<usize>, fence: usize) -> Option<Outcome> {
        let block = self.program.buffers[pick(self.program.buffers.len(), buffer)?];
        let (fence, own) = self.program.fences[pick(self.program.fences.len(), fence)?];
        let stream = match stream {
            Some(stream) => self.stream_at(stream),
            None => *self.program.streams.iter().find(|&&stream| stream == own)?,
        };
        if self.blocks[block].raw {
            return None;
        }
        let fact = self.facts[fence].clone();
        if fact.place != self.all_streams[stream].place {
            return Some(Outcome::OtherStream);
        }
        self.note_use(stream, block, Until::Mark(fact.covered));
        self.used_until(block, fact.complete_ns);
        Some(Outcome::Done)
    }

    fn guards(&mut self, buffer: usize, streams: &[usize], ns: u64) -> Option<Outcome> {
        let block = self.program.buffers[pick(self.program.buffers.len(), buffer)?];
        if self.blocks[block].raw {
            return None;
        }
        let (mut open, mut outcome) = (Vec::new(), Outcome::Done);
        for &stream in streams {
            let stream = self.stream_at(stream);
            if let Err(blocked) = self.come_after(stream, block) {
                outcome = refused(blocked);
                break;
            }
            open.push(stream);
        }
        for &stream in &open {
            let launched = self.machine.launch(stream, ns);
            match self.seen(launched) {
                Ok(start_ns) => self.executed(stream, block, start_ns),
                Err(call) => outcome = Outcome::Failed(call),
            }
        }
        for &stream in open.iter().rev() {
            if self.counts_for(stream, block) {
                let mark = self.mark(self.all_streams[stream].place);
                self.note_use(stream, block, Until::Mark(mark));
            }
        }
        Some(outcome)
    }

    fn record_fence(&mut self, stream: usize) -> Outcome {
        if !self.gate() {
            return Outcome::Capturing;
        }
        let place = self.all_streams[stream].place;
        self.mark(place);
        let recorded = self.record(place).map_err(Blocked::Failed);
        answered(recorded, |fence| {
            self.program.fences.push((fence.expect("somebody holds the stream"), stream));
            Outcome::Done
        })
    }

    fn capture(&mut self, stream: usize) -> Outcome {
        match self.begin_capture(stream) {
            Ok(graph) => {
                self.program.captures.push((stream, graph));
                Outcome::Done
            }
            Err(blocked) => refused(blocked),
        }
    }

    fn end_capture(&mut self, at: usize) -> Outcome {
        let (stream, graph) = self.program.captures.remove(at);
        match self.finish_capture(stream) {
            Ok(()) => {
                self.program.graphs.push(graph);
                self.drop_stream(stream);
                Outcome::Done
            }
            Err(call) => {
                self.throw_away(stream, graph);
                Outcome::Failed(call)
            }
        }
    }

    /// A capture is dropped. If its end fails, the device goes on capturing.
    fn throw_away(&mut self, stream: usize, graph: usize) {
        let _ = self.finish_capture(stream);
        self.release_graph(graph);
        self.drop_stream(stream);
    }

    /// The callbacks, the first registered first; what they ask for calls none again.
    pub(super) fn run_callbacks(&mut self) {
        if std::mem::replace(&mut self.in_callback, true) {
            return;
        }
        for relief in self.reliefs.clone() {
            match relief {
                Relief::FreeFirst => {
                    if !self.program.stash.is_empty() {
                        let block = self.program.stash.remove(0);
                        self.drop_block(block);
                    }
                }
                Relief::FreeAll => {
                    for block in std::mem::take(&mut self.program.stash) {
                        self.drop_block(block);
                    }
                }
                Relief::Allocate { stream, bytes } => {
                    let stream = self.stream_at(stream);
                    let (outcome, block) = self.give_out(stream, bytes, false);
                    self.program.log.push(outcome);
                    self.program.stash.extend(block);
                }
                Relief::Capture { stream } => {
                    let outcome = if self.program.captures.is_empty() {
                        self.capture(self.stream_at(stream))
                    } else {
                        self.end_capture(0)
                    };
                    self.program.log.push(outcome);
                }
            }
        }
        self.in_callback = false;
    }

    /// What the statistics and the device's counters say now.
    pub(super) fn shown(&self) -> Shown {
        let (mut rounding, mut pending, mut cached) = (0, 0, 0);
        for (index, place) in self.places.iter().enumerate() {
            let sums = place.heap.sums();
            rounding += sums.live - self.asked_for(index);
            pending += sums.pending;
            cached += sums.cached;
        }
        let stray = self.strays.iter().map(|stray| stray.bytes).sum();
        let mut pending_by_stream = BTreeMap::new();
        for (place, bytes) in self.pending_by_place() {
            *pending_by_stream.entry(self.places[place].name.clone()).or_default() += bytes;
        }
        let counts = &self.counts;
        Shown {
            now_ns: self.machine.now_ns,
            live: self.live,
            reserved: GaugeReading { now: self.physical(), ..self.reserved },
            bytes: [("rounding", rounding), ("pending", pending), ("cached", cached), ("stray", stray)].into(),
            pending_by_stream,
            rungs: RUNGS.into_iter().zip(counts.rungs).collect(),
            counts: [
                ("allocations", counts.allocations),
                ("frees", counts.frees),
                ("out_of_memory", counts.out_of_memory),
                ("handles_created", counts.handles_created),
                ("handles_released", counts.handles_released),
                ("waits_inserted", counts.waits_inserted),
                // Nothing is lent.
                ("pages_moved", 0),
                ("pages_remapped", 0),
                ("host_stalls", counts.host_stalls),
                ("host_stall_ns", counts.host_stall_ns),
                ("fences_recorded", counts.fences_recorded),
                ("device_blocked", self.machine.blocked),
                ("device_blocked_ns", self.machine.blocked_ns),
            ]
            .into(),
            calls: DeviceCall::ALL.iter().map(|&call| (call, self.machine.calls(call))).collect(),
        }
    }
}

fn refused(blocked: Blocked) -> Outcome {
    match blocked {
        Blocked::Capturing => Outcome::Capturing,
        Blocked::Failed(call) => Outcome::Failed(call),
    }
}

fn answered<T>(result: Result<T, Blocked>, done: impl FnOnce(T) -> Outcome) -> Outcome {
    match result {
        Ok(value) => done(value),
        Err(blocked) => refused(blocked),
    }
}
