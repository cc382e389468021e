//! A recorded trace as a program: what the host asks for, when, and who else uses it.
//!
//! A trace says when blocks were asked for and given back. A script is the same as typed steps on a time line that starts
//! at 0. Blocks that were live before the trace begins are asked for at time 0.
//!
//! Invariants: times of steps never decrease; each block is allocated once, and freed at most once, later; the user of a
//! block is another stream than its owner.

use std::collections::BTreeMap;

use highwater::history::read::{Event, EventAction, LoadedDevice};
use highwater::history::{BlockState, StackId};

/// Index of a stream in [`Script::streams`].
pub(crate) type StreamNo = usize;

/// Index of a block in [`Script::blocks`].
pub(crate) type BlockNo = usize;

/// Time from a free to its completion, µs, that says nothing where one is written directly after the other: the thread
/// that wrote them was interrupted.
const SAME_MOMENT_US: u64 = 1000;

/// A trace as a program.
#[derive(Clone, Default, Debug)]
pub(crate) struct Script {
    /// Streams by name; the first is the one that asks for the most.
    pub(crate) streams: Vec<String>,
    /// Blocks in the order in which they are asked for.
    pub(crate) blocks: Vec<Block>,
    /// What the host does, in order.
    pub(crate) steps: Vec<Step>,
    /// Time from the first event to the last, ns.
    pub(crate) span_ns: u64,
    /// Events of the trace.
    pub(crate) events: usize,
}

/// A block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Block {
    /// As asked for, at least 1.
    pub(crate) bytes: u64,
    /// The stream that asks for it.
    pub(crate) owner: StreamNo,
    /// When it is asked for, ns.
    pub(crate) born_ns: u64,
    /// When it is given back, ns; never, if it outlives the trace.
    pub(crate) freed_ns: Option<u64>,
    /// Another stream that still uses it when it is given back, and when that ends, ns.
    pub(crate) used: Option<(StreamNo, u64)>,
    /// Where in the program it was asked for.
    pub(crate) stack: StackId,
}

/// Something that the host does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Step {
    /// When, ns.
    pub(crate) at_ns: u64,
    /// Row of the event in the trace; the first one for blocks from before it.
    pub(crate) row: usize,
    /// What.
    pub(crate) what: What,
}

/// What a step does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    /// Asks for a block.
    Alloc(BlockNo),
    /// Gives it back.
    Free(BlockNo),
}

/// Why a trace is no program.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum ScriptError {
    /// Nothing is asked for.
    #[error("the trace has no allocation: record it with the memory history on")]
    Empty,
    /// There are no times.
    #[error("the events have no times: record the trace with PyTorch 2.2 or later")]
    Untimed,
}

impl Script {
    /// The program of a device's trace.
    ///
    /// # Errors
    /// When it has no allocation, or no times.
    pub(crate) fn of_trace(device: &LoadedDevice) -> Result<Self, ScriptError> {
        if !device.trace.is_timed() {
            return Err(ScriptError::Untimed);
        }
        let mut writer = Writer::new(device);
        writer.live_before(device);
        for (row, event) in device.trace.events().enumerate() {
            writer.event(row, &event);
        }
        let script = writer.finish(device.trace.len());
        if script.blocks.is_empty() { Err(ScriptError::Empty) } else { Ok(script) }
    }

    /// Most bytes that are live at once, as asked for: a block is live until it is given back.
    pub(crate) fn peak_live_bytes(&self) -> u64 {
        let (mut live, mut peak) = (0, 0);
        for step in &self.steps {
            match step.what {
                What::Alloc(block) => live += self.blocks[block].bytes,
                What::Free(block) => live -= self.blocks[block].bytes,
            }
            peak = peak.max(live);
        }
        peak
    }
}

/// A script that is being written.
struct Writer {
    script: Script,
    /// Streams by the number in the file.
    numbers: BTreeMap<u64, StreamNo>,
    /// Live blocks by address.
    live: BTreeMap<u64, BlockNo>,
    /// Blocks given back whose end of use was not seen yet, by address: with the row of the free.
    pending: BTreeMap<u64, (BlockNo, usize)>,
    /// Time of the first event, and of the last one seen, µs.
    start_us: u64,
    now_us: u64,
    /// What is used by another stream, and until when: the other stream is chosen at the end.
    uses: Vec<(BlockNo, u64)>,
}

impl Writer {
    fn new(device: &LoadedDevice) -> Self {
        let start_us = device.trace.times_us().first().copied().unwrap_or(0);
        let mut requests = BTreeMap::new();
        for event in device.trace.events().filter(|event| event.action == EventAction::Alloc) {
            *requests.entry(event.stream).or_insert(0u64) += 1;
        }
        let mut by_requests: Vec<_> = requests.into_iter().collect();
        by_requests.sort_by_key(|&(number, count)| (std::cmp::Reverse(count), number));
        let numbers = by_requests.into_iter().enumerate().map(|(index, (number, _))| (number, index));
        let mut writer = Writer {
            script: Script::default(),
            numbers: BTreeMap::new(),
            live: BTreeMap::new(),
            pending: BTreeMap::new(),
            start_us,
            now_us: start_us,
            uses: Vec::new(),
        };
        for (number, _) in numbers {
            writer.stream(number);
        }
        for named in device.notes.iter().flat_map(|notes| &notes.streams) {
            if let Some(&stream) = writer.numbers.get(&named.stream) {
                writer.script.streams[stream].clone_from(&named.name);
            }
        }
        writer
    }

    fn stream(&mut self, number: u64) -> StreamNo {
        let streams = &mut self.script.streams;
        *self.numbers.entry(number).or_insert_with(|| {
            streams.push(format!("stream {number:#x}"));
            streams.len() - 1
        })
    }

    fn now_ns(&self) -> u64 {
        (self.now_us - self.start_us).saturating_mul(1000)
    }

    /// Blocks that were live before the first event: those that the trace gives back and never asks for, and those that
    /// are live at its end and that it never asks for.
    fn live_before(&mut self, device: &LoadedDevice) {
        let mut asked = BTreeMap::new();
        for event in device.trace.events() {
            match event.action {
                EventAction::Alloc => {
                    asked.insert(event.address, ());
                }
                EventAction::FreeRequested | EventAction::FreeCompleted | EventAction::Free
                    if asked.insert(event.address, ()).is_none() =>
                {
                    self.alloc(0, &event);
                }
                _ => {}
            }
        }
        for segment in &device.segments {
            for block in segment.blocks.iter().filter(|block| block.state == BlockState::Allocated) {
                if asked.contains_key(&block.address) {
                    continue;
                }
                let event = Event {
                    action: EventAction::Alloc,
                    address: block.address,
                    bytes: block.requested_bytes,
                    stream: segment.stream,
                    time_us: self.start_us,
                    stack: block.stack,
                };
                self.alloc(0, &event);
            }
        }
    }

    fn event(&mut self, row: usize, event: &Event) {
        // Several threads write one trace: their clocks may be read in another order than they write.
        self.now_us = self.now_us.max(event.time_us);
        match event.action {
            EventAction::Alloc => {
                // An address that is asked for again has been given back, whether or not the trace says so.
                self.free(row, event.address);
                self.complete(row, event.address);
                self.alloc(row, event);
            }
            EventAction::FreeRequested => self.free(row, event.address),
            EventAction::FreeCompleted | EventAction::Free => {
                self.free(row, event.address);
                self.complete(row, event.address);
            }
            _ => {}
        }
    }

    fn alloc(&mut self, row: usize, event: &Event) {
        if event.bytes == 0 {
            return;
        }
        let block = self.script.blocks.len();
        let (owner, born_ns) = (self.stream(event.stream), self.now_ns());
        let Event { bytes, stack, .. } = *event;
        self.script.blocks.push(Block { bytes, owner, born_ns, freed_ns: None, used: None, stack });
        self.step(row, What::Alloc(block));
        self.live.insert(event.address, block);
    }

    fn free(&mut self, row: usize, address: u64) {
        if let Some(block) = self.live.remove(&address) {
            self.script.blocks[block].freed_ns = Some(self.now_ns());
            self.step(row, What::Free(block));
            self.pending.insert(address, (block, row));
        }
    }

    fn complete(&mut self, row: usize, address: u64) {
        let Some((block, freed_row)) = self.pending.remove(&address) else { return };
        let until_ns = self.now_ns();
        let pending_ns = until_ns - self.script.blocks[block].freed_ns.unwrap_or(until_ns);
        let at_once = row <= freed_row + 1 && pending_ns <= SAME_MOMENT_US * 1000;
        if !at_once && pending_ns > 0 {
            self.uses.push((block, until_ns));
        }
    }

    fn step(&mut self, row: usize, what: What) {
        let at_ns = self.now_ns();
        self.script.steps.push(Step { at_ns, row, what });
    }

    fn finish(mut self, events: usize) -> Script {
        self.script.span_ns = self.now_ns();
        self.script.events = events;
        let span_ns = self.script.span_ns;
        let unfinished = self.pending.values().map(|&(block, _)| (block, span_ns));
        let uses: Vec<_> = self.uses.iter().copied().chain(unfinished).collect();
        for (block, until_ns) in uses {
            let Block { owner, freed_ns, .. } = self.script.blocks[block];
            if freed_ns.is_some_and(|freed_ns| freed_ns < until_ns) {
                self.script.blocks[block].used = Some((self.script.other_than(owner), until_ns));
            }
        }
        self.script
    }
}

impl Script {
    /// The stream that is taken for the user of a block, which no trace names: the busiest one that is not the owner.
    fn other_than(&mut self, owner: StreamNo) -> StreamNo {
        if self.streams.len() < 2 {
            self.streams.push("a stream that asks for nothing".to_owned());
        }
        usize::from(owner == 0)
    }
}

#[cfg(test)]
mod tests {
    use highwater::history::TraceAction::{FreeCompleted, FreeRequested};
    use highwater::history::read::{self, Options};
    use highwater::history::{Segment, Snapshot, TraceAction, TraceEvent};

    use super::*;

    const ALLOC: TraceAction = TraceAction::Alloc { rounded_bytes: None };

    fn event(action: TraceAction, address: u64, bytes: u64, stream: u64, time_us: u64) -> TraceEvent {
        TraceEvent { action, address, bytes, stream, time_us, stack: StackId::EMPTY, span: 0 }
    }

    fn loaded(trace: Vec<TraceEvent>, segments: Vec<Segment>) -> LoadedDevice {
        let mut snapshot = Snapshot::new();
        let device = snapshot.device_mut(0);
        (device.trace, device.segments) = (trace, segments);
        let mut file = Vec::new();
        snapshot.write_to(&mut file).unwrap();
        read::read(&file, &Options::default()).unwrap().devices.swap_remove(0)
    }

    fn script(trace: Vec<TraceEvent>) -> Script {
        Script::of_trace(&loaded(trace, Vec::new())).unwrap()
    }

    #[test]
    fn times_begin_at_the_first_event_and_the_busiest_stream_comes_first() {
        let script = script(vec![
            event(ALLOC, 512, 100, 7, 1000),
            event(ALLOC, 1024, 200, 0, 1003),
            event(ALLOC, 2048, 300, 0, 1003),
            event(FreeRequested, 1024, 200, 0, 1010),
            event(FreeCompleted, 1024, 200, 0, 1010),
        ]);
        assert_eq!(script.streams, ["stream 0x0", "stream 0x7"]);
        let times: Vec<_> = script.steps.iter().map(|step| (step.at_ns, step.row)).collect();
        assert_eq!(times, [(0, 0), (3000, 1), (3000, 2), (10_000, 3)]);
        assert_eq!(script.steps[3].what, What::Free(1));
        assert_eq!((script.blocks[1].freed_ns, script.blocks[1].used), (Some(10_000), None));
        assert_eq!((script.blocks[0].owner, script.blocks[0].freed_ns), (1, None));
        assert_eq!((script.span_ns, script.events, script.peak_live_bytes()), (10_000, 5, 600));
    }

    #[test]
    fn a_free_that_completes_later_is_a_use_on_the_other_stream() {
        let script = script(vec![
            event(ALLOC, 512, 100, 7, 0),
            event(ALLOC, 1024, 100, 0, 0),
            event(FreeRequested, 512, 100, 7, 10),
            event(ALLOC, 2048, 100, 0, 12),
            event(FreeCompleted, 512, 100, 7, 40),
            event(FreeRequested, 1024, 100, 0, 50),
            event(ALLOC, 4096, 100, 0, 60),
        ]);
        assert_eq!(script.blocks[0].used, Some((0, 40_000)), "stream 0 is the other one");
        assert_eq!(script.blocks[1].used, Some((1, 60_000)), "what never completes is in use up to the end");
        assert_eq!(script.blocks[0].freed_ns, Some(10_000), "it is live until it was given back");
    }

    #[test]
    fn a_pause_between_a_free_and_its_completion_next_to_it_is_no_use() {
        let used = |pause_us: u64| {
            let free = [event(FreeRequested, 512, 9, 0, 10), event(FreeCompleted, 512, 9, 0, 10 + pause_us)];
            let script = script([event(ALLOC, 512, 9, 0, 0)].into_iter().chain(free).collect());
            (script.blocks[0].used, script.streams.len())
        };
        assert_eq!(used(1000), (None, 1));
        assert_eq!(used(1001), (Some((1, 1_011_000)), 2), "a stream that asks for nothing is made up");
    }

    #[test]
    fn blocks_from_before_the_trace_are_asked_for_at_its_beginning() {
        let block = |address, state, requested_bytes| highwater::history::Block {
            address,
            bytes: 512,
            requested_bytes,
            state,
            stack: StackId::EMPTY,
        };
        let segment = Segment {
            address: 1 << 21,
            total_bytes: 1024,
            allocated_bytes: 512,
            active_bytes: 512,
            requested_bytes: 400,
            stream: 3,
            kind: Default::default(),
            pool: (0, 0),
            expandable: true,
            stack: StackId::EMPTY,
            blocks: vec![block(1 << 21, BlockState::Allocated, 400), block((1 << 21) + 512, BlockState::Inactive, 0)],
        };
        let trace = vec![event(FreeRequested, 512, 70, 0, 5), event(FreeCompleted, 512, 70, 0, 5)];
        let script = Script::of_trace(&loaded(trace, vec![segment])).unwrap();
        let bytes: Vec<_> = script.blocks.iter().map(|block| (block.bytes, block.born_ns, block.freed_ns)).collect();
        assert_eq!(bytes, [(70, 0, Some(0)), (400, 0, None)]);
        assert_eq!(script.streams, ["stream 0x0", "stream 0x3"]);
    }

    #[test]
    fn what_a_trace_leaves_out_is_made_up_for() {
        let script = script(vec![
            event(ALLOC, 512, 100, 0, 10),
            // Given back without a word, and asked for again.
            event(ALLOC, 512, 200, 0, 8),
            event(FreeCompleted, 512, 200, 0, 20),
        ]);
        assert_eq!(script.blocks[0].freed_ns, Some(0));
        assert_eq!((script.blocks[1].born_ns, script.blocks[1].freed_ns), (0, Some(10_000)), "time does not go back");
        assert_eq!(script.peak_live_bytes(), 200);
    }

    #[test]
    fn a_trace_without_allocations_is_no_program() {
        let snapshot = vec![event(TraceAction::Snapshot, 0, 0, 0, 1)];
        assert_eq!(Script::of_trace(&loaded(snapshot, Vec::new())).unwrap_err(), ScriptError::Empty);
    }
}
