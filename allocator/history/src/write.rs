//! A snapshot as a pickle.
//!
//! The keys and their order are PyTorch's. Every stack, frame and string that is used more than once is written once
//! and then referred to, so equal stacks are the same list object for whoever loads the file.

use std::io::Write;

use crate::{
    Block, BlockState, DeviceNotes, Noted, Segment, SegmentKind, Snapshot, StackId, Stage, TraceAction, TraceEvent,
    pickle::{self, Memo, Pickle, Word},
};

pub use crate::pickle::WriteError;

/// Version of what is under the key `recorder`.
const RECORDER_VERSION: u64 = 1;

type Written = Result<(), WriteError>;

impl Snapshot {
    /// Writes it as a pickle of protocol 4. The output should be buffered: most writes are a few bytes.
    ///
    /// # Errors
    /// If the output fails, if a number is 2^53 or more, or if a stack is not in the snapshot's table. What has been
    /// written by then is no pickle.
    pub fn write_to(&self, out: impl Write) -> Result<(), WriteError> {
        let pickle = Pickle::begin(out)?;
        let uses = Uses::count(self)?;
        let mut writer = Writer { pickle, snapshot: self, uses, pool: None };
        writer.top_level()?;
        writer.pickle.end()?.flush()?;
        Ok(())
    }
}

/// Whether a thing of a table is worth a memo entry, and its entry.
#[derive(Clone, Copy)]
enum Shared {
    /// It is used this many times, and not written yet.
    Unwritten(u32),
    Written(Memo),
}

/// What is known of each entry of the tables of strings, frames and stacks.
struct Uses {
    strings: Vec<Shared>,
    frames: Vec<Shared>,
    stacks: Vec<Shared>,
}

impl Uses {
    fn count(snapshot: &Snapshot) -> Result<Self, WriteError> {
        let table = &snapshot.stacks;
        let none = Shared::Unwritten(0);
        let mut uses = Self {
            strings: vec![none; table.string_count()],
            frames: vec![none; table.frame_count()],
            stacks: vec![none; table.len()],
        };
        for device in &snapshot.devices {
            let segments = device.segments.iter();
            let blocks = segments.clone().flat_map(|segment| &segment.blocks).map(|block| block.stack);
            let events = device.trace.iter().map(|event| event.stack);
            let notes = device.notes.places().map(|(stack, _)| stack);
            for stack in segments.map(|segment| segment.stack).chain(blocks).chain(events).chain(notes) {
                uses.add_stack(snapshot, stack)?;
            }
        }
        Ok(uses)
    }

    /// Counts a use. What a stack consists of is used once, however often the stack is.
    fn add_stack(&mut self, snapshot: &Snapshot, stack: StackId) -> Written {
        let frames = snapshot.stacks.frame_ids(stack).ok_or(WriteError::UnknownStack(stack.0))?;
        if !add_use(&mut self.stacks[stack.0 as usize]) {
            return Ok(());
        }
        for &id in frames {
            if add_use(&mut self.frames[id as usize]) {
                let parts = snapshot.stacks.frame(id);
                add_use(&mut self.strings[parts.filename as usize]);
                add_use(&mut self.strings[parts.name as usize]);
            }
        }
        Ok(())
    }
}

/// Whether it is the first use.
fn add_use(shared: &mut Shared) -> bool {
    match shared {
        Shared::Unwritten(uses) => {
            *uses = uses.saturating_add(1);
            *uses == 1
        }
        Shared::Written(_) => false,
    }
}

struct Writer<'a, W> {
    pickle: Pickle<W>,
    snapshot: &'a Snapshot,
    uses: Uses,
    /// The tuple (0, 0), which nearly every event has.
    pool: Option<Memo>,
}

impl<'a, W: Write> Writer<'a, W> {
    fn list<T>(&mut self, items: impl IntoIterator<Item = T>, item: impl FnMut(&mut Self, T) -> Written) -> Written {
        pickle::list(self, |writer| &mut writer.pickle, items, item)
    }

    fn top_level(&mut self) -> Written {
        let snapshot = self.snapshot;
        self.pickle.begin_dict()?;
        self.pickle.text("segments")?;
        let devices = || snapshot.devices.iter().zip(0u64..);
        let segments =
            devices().flat_map(|(device, index)| device.segments.iter().map(move |segment| (index, segment)));
        self.list(segments, |writer, (device, segment)| writer.segment(device, segment))?;
        self.pickle.text("device_traces")?;
        self.list(&snapshot.devices, |writer, device| writer.list(&device.trace, Self::event))?;
        self.pickle.text("allocator_settings")?;
        self.allocator_settings()?;
        self.pickle.text("external_annotations")?;
        self.list(&snapshot.annotations, |writer, annotation| {
            writer.pickle.begin_dict()?;
            writer.word_entry(
                Word::Stage,
                match annotation.stage {
                    Stage::Start => Word::Start,
                    Stage::End => Word::End,
                },
            )?;
            writer.pickle.word(Word::Name)?;
            writer.pickle.text(&annotation.name)?;
            writer.number(Word::Device, annotation.device.into())?;
            writer.number(Word::TimeUs, annotation.time_us)?;
            writer.pickle.end_dict()
        })?;
        self.pickle.text("recorder")?;
        self.recorder()?;
        self.pickle.end_dict()
    }

    fn number(&mut self, key: Word, value: u64) -> Written {
        self.pickle.word(key)?;
        self.pickle.unsigned(value)
    }

    fn word_entry(&mut self, key: Word, value: Word) -> Written {
        self.pickle.word(key)?;
        self.pickle.word(value)
    }

    fn segment(&mut self, device: u64, segment: &Segment) -> Written {
        self.pickle.begin_dict()?;
        self.number(Word::Device, device)?;
        self.number(Word::Address, segment.address)?;
        self.number(Word::TotalSize, segment.total_bytes)?;
        self.number(Word::AllocatedSize, segment.allocated_bytes)?;
        self.number(Word::ActiveSize, segment.active_bytes)?;
        self.number(Word::RequestedSize, segment.requested_bytes)?;
        self.number(Word::Stream, segment.stream)?;
        let kind = match segment.kind {
            SegmentKind::Large => Word::Large,
            SegmentKind::Small => Word::Small,
        };
        self.word_entry(Word::SegmentType, kind)?;
        self.pool(Word::SegmentPoolId, segment.pool)?;
        self.pickle.word(Word::IsExpandable)?;
        self.pickle.bool(segment.expandable)?;
        self.frames(segment.stack)?;
        self.pickle.word(Word::Blocks)?;
        self.list(&segment.blocks, Self::block)?;
        self.pickle.end_dict()
    }

    fn block(&mut self, block: &Block) -> Written {
        self.pickle.begin_dict()?;
        self.number(Word::Address, block.address)?;
        self.number(Word::Size, block.bytes)?;
        self.number(Word::RequestedSize, block.requested_bytes)?;
        let state = match block.state {
            BlockState::Allocated => Word::ActiveAllocated,
            BlockState::PendingFree => Word::ActivePendingFree,
            BlockState::Inactive => Word::Inactive,
        };
        self.word_entry(Word::State, state)?;
        self.frames(block.stack)?;
        self.pickle.end_dict()
    }

    fn event(&mut self, event: &TraceEvent) -> Written {
        self.pickle.begin_dict()?;
        self.word_entry(Word::Action, action_word(event.action))?;
        match event.action {
            TraceAction::OutOfMemory { device_free_bytes } => self.number(Word::DeviceFree, device_free_bytes)?,
            _ => self.number(Word::Addr, event.address)?,
        }
        self.number(Word::Size, event.bytes)?;
        if let TraceAction::Alloc { rounded_bytes: Some(bytes) } = event.action {
            self.number(Word::RoundedSize, bytes)?;
        }
        self.number(Word::Stream, event.stream)?;
        self.number(Word::TimeUs, event.time_us)?;
        self.word_entry(Word::CompileContext, Word::NotCompiled)?;
        self.word_entry(Word::UserMetadata, Word::Empty)?;
        self.pool(Word::PoolId, (0, 0))?;
        self.place(event.stack, event.span)?;
        self.pickle.end_dict()
    }

    /// A tuple of two numbers. The common pool is one object.
    fn pool(&mut self, key: Word, pool: (u64, u64)) -> Written {
        self.pickle.word(key)?;
        match self.pool {
            Some(memo) if pool == (0, 0) => self.pickle.again(memo),
            _ => {
                self.pickle.unsigned(pool.0)?;
                self.pickle.unsigned(pool.1)?;
                self.pickle.tuple_of_two()?;
                if pool == (0, 0) {
                    self.pool = Some(self.pickle.memoize()?);
                }
                Ok(())
            }
        }
    }

    /// The keys that say where something happened. The root span is left out.
    fn place(&mut self, stack: StackId, span: u32) -> Written {
        if span != 0 {
            self.number(Word::Span, span.into())?;
        }
        self.frames(stack)
    }

    fn frames(&mut self, stack: StackId) -> Written {
        self.pickle.word(Word::Frames)?;
        let index = stack.0 as usize;
        let uses = match self.uses.stacks[index] {
            Shared::Written(memo) => return self.pickle.again(memo),
            Shared::Unwritten(uses) => uses,
        };
        let snapshot = self.snapshot;
        let frames = snapshot.stacks.frame_ids(stack).expect("every stack was looked up when uses were counted");
        self.list(frames, |writer, &id| writer.frame(id))?;
        if uses > 1 {
            self.uses.stacks[index] = Shared::Written(self.pickle.memoize()?);
        }
        Ok(())
    }

    fn frame(&mut self, id: u32) -> Written {
        let uses = match self.uses.frames[id as usize] {
            Shared::Written(memo) => return self.pickle.again(memo),
            Shared::Unwritten(uses) => uses,
        };
        let parts = self.snapshot.stacks.frame(id);
        self.pickle.begin_dict()?;
        self.pickle.word(Word::Name)?;
        self.string(parts.name)?;
        self.pickle.word(Word::Filename)?;
        self.string(parts.filename)?;
        self.number(Word::Line, parts.line.into())?;
        self.pickle.end_dict()?;
        if uses > 1 {
            self.uses.frames[id as usize] = Shared::Written(self.pickle.memoize()?);
        }
        Ok(())
    }

    fn string(&mut self, id: u32) -> Written {
        let uses = match self.uses.strings[id as usize] {
            Shared::Written(memo) => return self.pickle.again(memo),
            Shared::Unwritten(uses) => uses,
        };
        self.pickle.text(self.snapshot.stacks.string(id))?;
        if uses > 1 {
            self.uses.strings[id as usize] = Shared::Written(self.pickle.memoize()?);
        }
        Ok(())
    }

    fn allocator_settings(&mut self) -> Written {
        let settings = &self.snapshot.allocator_settings;
        self.pickle.begin_dict()?;
        self.pickle.text("PYTORCH_CUDA_ALLOC_CONF")?;
        self.pickle.text(&settings.text)?;
        self.pickle.text("max_split_size")?;
        self.pickle.signed(settings.max_split_size)?;
        self.pickle.text("garbage_collection_threshold")?;
        self.pickle.float(settings.garbage_collection_threshold)?;
        self.pickle.text("expandable_segments")?;
        self.pickle.bool(settings.expandable_segments)?;
        self.pickle.end_dict()
    }

    fn recorder(&mut self) -> Written {
        let snapshot = self.snapshot;
        self.pickle.begin_dict()?;
        self.pickle.text("version")?;
        self.pickle.unsigned(RECORDER_VERSION)?;
        self.pickle.text("writer")?;
        self.pickle.text(concat!("highwater ", env!("CARGO_PKG_VERSION")))?;
        self.pickle.text("settings")?;
        self.list(&snapshot.settings, |writer, (name, value)| {
            writer.pickle.text(name)?;
            writer.pickle.text(value)?;
            writer.pickle.tuple_of_two()
        })?;
        self.pickle.text("span_paths")?;
        self.list(&snapshot.span_paths, |writer, path| writer.pickle.text(path))?;
        self.pickle.text("devices")?;
        self.list(&snapshot.devices, |writer, device| writer.notes(&device.notes))?;
        self.pickle.end_dict()
    }

    fn notes(&mut self, notes: &DeviceNotes) -> Written {
        self.pickle.begin_dict()?;
        self.pickle.word(Word::Name)?;
        self.pickle.text(&notes.name)?;
        let known = [
            ("capacity_bytes", notes.capacity_bytes),
            ("other_bytes", notes.other_bytes),
            ("history_capacity_bytes", Some(notes.history_capacity_bytes)),
            ("history_dropped", Some(notes.history_dropped)),
        ];
        for (key, value) in known {
            if let Some(value) = value {
                self.pickle.text(key)?;
                self.pickle.unsigned(value)?;
            }
        }
        self.streams(notes)?;
        self.noted("stream_uses", &notes.stream_uses, |writer, fact| {
            writer.number(Word::Addr, fact.address)?;
            writer.number(Word::Stream, fact.stream)?;
            writer.pickle.word(Word::Exact)?;
            writer.pickle.bool(fact.exact)
        })?;
        self.noted("pending_frees", &notes.pending_frees, |writer, fact| {
            writer.number(Word::Addr, fact.address)?;
            writer.number(Word::Stream, fact.stream)?;
            writer.number(Word::Waits, fact.waits.into())
        })?;
        self.noted("rungs", &notes.rungs, |writer, fact| {
            writer.number(Word::Rung, fact.rung.code().into())?;
            writer.pickle.word(Word::Name)?;
            writer.pickle.text(fact.rung.name())?;
            writer.number(Word::Size, fact.bytes)?;
            writer.number(Word::Stream, fact.stream)
        })?;
        self.noted("stalls", &notes.stalls, |writer, fact| {
            writer.number(Word::Stream, fact.stream)?;
            writer.number(Word::StallNs, fact.stall_ns)
        })?;
        self.noted("waits_inserted", &notes.waits_inserted, |writer, fact| {
            writer.number(Word::Stream, fact.stream)?;
            writer.number(Word::ForStream, fact.for_stream)
        })?;
        self.pickle.end_dict()
    }

    /// Names of streams, and what blocks wait for now.
    fn streams(&mut self, notes: &DeviceNotes) -> Written {
        self.pickle.text("streams")?;
        self.list(&notes.streams, |writer, stream| {
            writer.pickle.begin_dict()?;
            writer.number(Word::Stream, stream.stream)?;
            writer.pickle.word(Word::Name)?;
            writer.pickle.text(&stream.name)?;
            writer.pickle.end_dict()
        })?;
        self.pickle.text("pending_waits")?;
        self.list(&notes.pending_waits, |writer, wait| {
            writer.pickle.begin_dict()?;
            writer.number(Word::Addr, wait.address)?;
            writer.number(Word::Stream, wait.stream)?;
            writer.number(Word::Position, wait.position)?;
            writer.pickle.end_dict()
        })
    }

    fn noted<T>(
        &mut self,
        key: &'static str,
        notes: &[Noted<T>],
        mut fact: impl FnMut(&mut Self, &T) -> Written,
    ) -> Written {
        self.pickle.text(key)?;
        self.list(notes, |writer, note| {
            writer.pickle.begin_dict()?;
            writer.number(Word::TimeUs, note.time_us)?;
            fact(writer, &note.fact)?;
            writer.place(note.stack, note.span)?;
            writer.pickle.end_dict()
        })
    }
}

fn action_word(action: TraceAction) -> Word {
    match action {
        TraceAction::Alloc { .. } => Word::Alloc,
        TraceAction::FreeRequested => Word::FreeRequested,
        TraceAction::FreeCompleted => Word::FreeCompleted,
        TraceAction::SegmentAlloc => Word::SegmentAlloc,
        TraceAction::SegmentFree => Word::SegmentFree,
        TraceAction::SegmentMap => Word::SegmentMap,
        TraceAction::SegmentUnmap => Word::SegmentUnmap,
        TraceAction::OutOfMemory { .. } => Word::OutOfMemory,
        TraceAction::Snapshot => Word::Snapshot,
    }
}
