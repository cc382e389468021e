//! Records become trace events and notes.
//!
//! The frames of an event read like a stack. The innermost frame is the line that called the allocator, inside the
//! innermost span; each further frame is the line that made that span, inside the span around it. The outermost frame,
//! which is in no span, is named `rust`.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    Action, Context, DeviceMemory, Frame, Noted, PendingFree, PendingWait, ProcessMemory, Record, RungTaken, Snapshot,
    SpanPath, StackId, Stacks, Stall, StreamUse, TraceAction, TraceEvent, WaitInserted,
};

/// Name of code that is in no span.
const NO_SPAN: &str = "rust";

impl Snapshot {
    /// Adds records to the history of a device, after what it has. They must be in the order of
    /// [`merge`](crate::merge).
    pub fn add_records(&mut self, device: usize, records: impl IntoIterator<Item = Record>) {
        let mut places = Places::default();
        self.device_mut(device);
        if self.span_paths.is_empty() {
            self.span_paths.push(String::new());
        }
        for record in records {
            let (stack, span) = places.get(record.context, &mut self.stacks, &mut self.span_paths);
            add_record(&mut self.devices[device], &record, stack, span);
        }
    }

    /// The stack of a place in the program, for blocks and segments.
    pub fn stack_of(&mut self, context: Context) -> StackId {
        self.stacks.intern(&frames_of(context))
    }
}

fn add_record(device: &mut crate::DeviceHistory, record: &Record, stack: StackId, span: u32) {
    let time_us = record.time_ns / 1000;
    let notes = &mut device.notes;
    let mut event = |action, address, bytes, stream| {
        device.trace.push(TraceEvent { action, address, bytes, stream, time_us, stack, span });
    };
    match record.action {
        Action::Alloc { address, bytes, rounded_bytes, stream } => {
            event(TraceAction::Alloc { rounded_bytes: Some(rounded_bytes) }, address, bytes, stream);
        }
        Action::FreeRequested { address, bytes, stream } => event(TraceAction::FreeRequested, address, bytes, stream),
        Action::FreeCompleted { address, bytes, stream } => event(TraceAction::FreeCompleted, address, bytes, stream),
        Action::Freed { address, bytes, stream } => {
            event(TraceAction::FreeRequested, address, bytes, stream);
            event(TraceAction::FreeCompleted, address, bytes, stream);
        }
        Action::SegmentMap { address, bytes, stream } => event(TraceAction::SegmentMap, address, bytes, stream),
        Action::SegmentUnmap { address, bytes, stream } => event(TraceAction::SegmentUnmap, address, bytes, stream),
        Action::OutOfMemory { bytes, stream, device_free_bytes } => {
            event(TraceAction::OutOfMemory { device_free_bytes }, 0, bytes, stream);
        }
        Action::Snapshot => event(TraceAction::Snapshot, 0, 0, 0),
        Action::StreamUse { address, stream, exact } => {
            notes.stream_uses.push(Noted { time_us, stack, span, fact: StreamUse { address, stream, exact } });
        }
        Action::Pending { address, stream, waits } => {
            notes.pending_frees.push(Noted { time_us, stack, span, fact: PendingFree { address, stream, waits } });
        }
        Action::Rung { rung, bytes, stream } => {
            notes.rungs.push(Noted { time_us, stack, span, fact: RungTaken { rung, bytes, stream } });
        }
        Action::Stall { stream, stall_ns } => {
            notes.stalls.push(Noted { time_us, stack, span, fact: Stall { stream, stall_ns } });
        }
        Action::WaitInserted { stream, for_stream } => {
            notes.waits_inserted.push(Noted { time_us, stack, span, fact: WaitInserted { stream, for_stream } });
        }
        Action::Awaited { address, stream, position, fence, held_by } => {
            let (fence, held_by) = (Some(fence), held_by.map(u64::from));
            let fact = PendingWait { address, stream, position, fence, held_by };
            notes.awaited.push(Noted { time_us, stack, span, fact });
        }
        Action::DeviceMemory { total_bytes, free_bytes, held_bytes } => {
            let fact = DeviceMemory { total_bytes, free_bytes, held_bytes };
            notes.device_memory.push(Noted { time_us, stack, span, fact });
        }
        Action::Process { pid, bytes, is_own } => {
            notes.processes.push(Noted { time_us, stack, span, fact: ProcessMemory { pid, bytes, is_own } });
        }
    }
}

/// Contexts seen before, so that each is turned into frames once.
#[derive(Default)]
struct Places {
    /// By address of the location, which is static, and span path.
    stacks: BTreeMap<(usize, SpanPath), StackId>,
    /// Texts that the snapshot has, by text.
    texts: BTreeMap<String, u32>,
    spans: BTreeMap<SpanPath, u32>,
}

impl Places {
    fn get(&mut self, context: Context, stacks: &mut Stacks, texts: &mut Vec<String>) -> (StackId, u32) {
        let key = (std::ptr::from_ref(context.location).addr(), context.span);
        let stack = *self.stacks.entry(key).or_insert_with(|| stacks.intern(&frames_of(context)));
        let span = match self.spans.get(&context.span) {
            Some(&span) => span,
            None => {
                let span = self.text_index(context.span.text(), texts);
                self.spans.insert(context.span, span);
                span
            }
        };
        (stack, span)
    }

    fn text_index(&mut self, text: String, texts: &mut Vec<String>) -> u32 {
        if self.texts.len() != texts.len() {
            let number = |index| u32::try_from(index).expect("paths are bounded");
            self.texts = texts.iter().enumerate().map(|(index, text)| (text.clone(), number(index))).collect();
        }
        let next = u32::try_from(texts.len()).expect("paths are bounded");
        *self.texts.entry(text).or_insert_with_key(|text| {
            texts.push(text.clone());
            next
        })
    }
}

/// The frames of a context, innermost first.
fn frames_of(context: Context) -> Vec<Frame> {
    let spans = context.span.spans();
    let mut frames = Vec::with_capacity(spans.len() + 1);
    let (mut file, mut line): (Arc<str>, u32) = (context.location.file().into(), context.location.line());
    for span in spans.iter().rev() {
        frames.push(Frame { filename: file, line, name: Arc::clone(&span.name) });
        (file, line) = (span.file.into(), span.line);
    }
    frames.push(Frame { filename: file, line, name: NO_SPAN.into() });
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(time_ns: u64, span: SpanPath, action: Action) -> Record {
        Record { time_ns, action, context: Context { span, ..Context::here() } }
    }

    fn inner() -> SpanPath {
        let train = SpanPath::ROOT.child("train", "train", "main.rs", 3);
        train.child("step", "step i=1", "train.rs", 7)
    }

    #[test]
    fn a_span_path_reads_like_a_stack() {
        let context = Context { span: inner(), ..Context::here() };
        let frames: Vec<_> =
            frames_of(context).iter().map(|f| format!("{}:{} {}", f.filename, f.line, f.name)).collect();
        let here = format!("{}:{} step i=1", context.location.file(), context.location.line());
        assert_eq!(frames, [here.as_str(), "train.rs:7 train", "main.rs:3 rust"]);
    }

    #[test]
    fn records_become_events_in_order() {
        let (address, bytes, stream) = (4096, 100, 7);
        let actions = [
            Action::SegmentMap { address, bytes: 1 << 21, stream },
            Action::Alloc { address, bytes, rounded_bytes: 512, stream },
            Action::FreeRequested { address, bytes, stream },
            Action::FreeCompleted { address, bytes, stream },
            Action::Freed { address, bytes, stream },
            Action::SegmentUnmap { address, bytes: 1 << 21, stream },
            Action::OutOfMemory { bytes: 9, stream, device_free_bytes: 5 },
            Action::Snapshot,
        ];
        let mut snapshot = Snapshot::new();
        snapshot.add_records(1, actions.map(|action| record(5_999, SpanPath::ROOT, action)));
        assert!(snapshot.devices[0].trace.is_empty());
        let trace = &snapshot.devices[1].trace;
        let seen: Vec<_> = trace.iter().map(|event| (event.action, event.address, event.bytes, event.stream)).collect();
        assert_eq!(
            seen,
            [
                (TraceAction::SegmentMap, address, 1 << 21, stream),
                (TraceAction::Alloc { rounded_bytes: Some(512) }, address, bytes, stream),
                (TraceAction::FreeRequested, address, bytes, stream),
                (TraceAction::FreeCompleted, address, bytes, stream),
                (TraceAction::FreeRequested, address, bytes, stream),
                (TraceAction::FreeCompleted, address, bytes, stream),
                (TraceAction::SegmentUnmap, address, 1 << 21, stream),
                (TraceAction::OutOfMemory { device_free_bytes: 5 }, 0, 9, stream),
                (TraceAction::Snapshot, 0, 0, 0),
            ]
        );
        assert!(trace.iter().all(|event| event.time_us == 5 && event.span == 0));
        assert_eq!(snapshot.stacks.frames(trace[0].stack).expect("interned").len(), 1);
    }

    #[test]
    fn what_the_schema_lacks_becomes_notes() {
        let mut snapshot = Snapshot::new();
        let span = inner();
        snapshot.add_records(
            0,
            [
                record(1_000, span, Action::StreamUse { address: 1, stream: 2, exact: true }),
                record(2_000, span, Action::Pending { address: 1, stream: 3, waits: 4 }),
                record(3_000, span, Action::Rung { rung: crate::Rung::Grow, bytes: 5, stream: 6 }),
                record(4_000, SpanPath::ROOT, Action::Stall { stream: 7, stall_ns: 8 }),
                record(5_000, span, Action::WaitInserted { stream: 9, for_stream: 10 }),
                record(
                    6_000,
                    span,
                    Action::Awaited {
                        address: 1,
                        stream: 2,
                        position: 3,
                        fence: crate::FenceState::Recorded,
                        held_by: Some(4),
                    },
                ),
                record(7_000, span, Action::DeviceMemory { total_bytes: 9, free_bytes: 4, held_bytes: 3 }),
                record(7_000, span, Action::Process { pid: 5, bytes: 2, is_own: true }),
            ],
        );
        let notes = &snapshot.devices[0].notes;
        assert!(snapshot.devices[0].trace.is_empty());
        assert_eq!(notes.stream_uses[0].fact, StreamUse { address: 1, stream: 2, exact: true });
        assert_eq!(notes.pending_frees[0].fact, PendingFree { address: 1, stream: 3, waits: 4 });
        assert_eq!(notes.rungs[0].fact, RungTaken { rung: crate::Rung::Grow, bytes: 5, stream: 6 });
        assert_eq!(notes.stalls[0].fact, Stall { stream: 7, stall_ns: 8 });
        assert_eq!(notes.waits_inserted[0].fact, WaitInserted { stream: 9, for_stream: 10 });
        let fence = Some(crate::FenceState::Recorded);
        let awaited = PendingWait { address: 1, stream: 2, position: 3, fence, held_by: Some(4) };
        assert_eq!((notes.awaited[0].fact, notes.awaited[0].time_us), (awaited, 6));
        assert_eq!(notes.device_memory[0].fact.other_bytes(), 2);
        assert_eq!(notes.processes[0].fact, ProcessMemory { pid: 5, bytes: 2, is_own: true });
        assert_eq!((notes.stream_uses[0].time_us, notes.waits_inserted[0].time_us), (1, 5));
        assert_eq!(snapshot.span_paths, ["", "train/step i=1"]);
        assert_eq!((notes.rungs[0].span, notes.stalls[0].span), (1, 0));
    }

    #[test]
    fn a_second_batch_finds_the_texts_of_the_first() {
        let mut snapshot = Snapshot::new();
        for _ in 0..2 {
            snapshot.add_records(0, [record(0, inner(), Action::Snapshot)]);
        }
        assert_eq!(snapshot.span_paths.len(), 2);
        assert_eq!(snapshot.devices[0].trace[0].stack, snapshot.devices[0].trace[1].stack);
    }
}
