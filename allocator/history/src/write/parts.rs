//! The parts that every snapshot file has: segments and blocks, stacks, marks on the time line, and the recorder's notes.

use std::io::Write;

use crate::{
    Block, BlockState, DeviceNotes, Noted, PendingWait, Segment, SegmentKind, StackId, Stage, WriteError,
    pickle::{self, Memo, Pickle, Word},
};

use super::table::{Shared, Table, Uses};

pub(super) type Written = Result<(), WriteError>;

/// Writes parts of a snapshot whose stacks are in a table.
pub(super) struct Parts<'a, W, S> {
    pub(super) pickle: Pickle<W>,
    table: &'a S,
    uses: Uses,
    /// The tuple (0, 0), which nearly every event has.
    pool: Option<Memo>,
}

impl<'a, W: Write, S: Table> Parts<'a, W, S> {
    /// For a table of which so much will be used.
    pub(super) fn new(pickle: Pickle<W>, table: &'a S, uses: Uses) -> Self {
        Self { pickle, table, uses, pool: None }
    }

    pub(super) fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        item: impl FnMut(&mut Self, T) -> Written,
    ) -> Written {
        pickle::list(self, |writer| &mut writer.pickle, items, item)
    }

    pub(super) fn number(&mut self, key: Word, value: u64) -> Written {
        self.pickle.word(key)?;
        self.pickle.unsigned(value)
    }

    pub(super) fn word_entry(&mut self, key: Word, value: Word) -> Written {
        self.pickle.word(key)?;
        self.pickle.word(value)
    }

    /// A mark on the time line.
    pub(super) fn annotation(&mut self, stage: Stage, name: &str, device: u64, time_us: u64) -> Written {
        self.pickle.begin_dict()?;
        self.word_entry(
            Word::Stage,
            match stage {
                Stage::Start => Word::Start,
                Stage::End => Word::End,
            },
        )?;
        self.pickle.word(Word::Name)?;
        self.pickle.text(name)?;
        self.number(Word::Device, device)?;
        self.number(Word::TimeUs, time_us)?;
        self.pickle.end_dict()
    }

    pub(super) fn segment(&mut self, device: u64, segment: &Segment) -> Written {
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

    /// A tuple of two numbers. The common pool is one object.
    pub(super) fn pool(&mut self, key: Word, pool: (u64, u64)) -> Written {
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
    pub(super) fn place(&mut self, stack: StackId, span: u32) -> Written {
        if span != 0 {
            self.number(Word::Span, span.into())?;
        }
        self.frames(stack)
    }

    pub(super) fn frames(&mut self, stack: StackId) -> Written {
        self.pickle.word(Word::Frames)?;
        let index = stack.0 as usize;
        let uses = match self.uses.stacks[index] {
            Shared::Written(memo) => return self.pickle.again(memo),
            Shared::Unwritten(uses) => uses,
        };
        let frames = self.table.frames_of(stack).expect("every stack was looked up when uses were counted");
        self.list(frames, Self::frame)?;
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
        let parts = self.table.frame_texts(id);
        self.pickle.begin_dict()?;
        self.pickle.word(Word::Name)?;
        self.text(parts.name)?;
        self.pickle.word(Word::Filename)?;
        self.text(parts.filename)?;
        self.number(Word::Line, parts.line.into())?;
        for (key, text) in self.table.more_of(id) {
            self.text(key)?;
            self.text(text)?;
        }
        self.pickle.end_dict()?;
        if uses > 1 {
            self.uses.frames[id as usize] = Shared::Written(self.pickle.memoize()?);
        }
        Ok(())
    }

    pub(super) fn text(&mut self, id: u32) -> Written {
        let uses = match self.uses.texts[id as usize] {
            Shared::Written(memo) => return self.pickle.again(memo),
            Shared::Unwritten(uses) => uses,
        };
        self.pickle.text(self.table.text_of(id))?;
        if uses > 1 {
            self.uses.texts[id as usize] = Shared::Written(self.pickle.memoize()?);
        }
        Ok(())
    }

    pub(super) fn notes(&mut self, notes: &DeviceNotes) -> Written {
        self.pickle.begin_dict()?;
        self.pickle.word(Word::Name)?;
        self.pickle.text(&notes.name)?;
        let known = [
            ("capacity_bytes", notes.capacity_bytes),
            ("other_bytes", notes.other_bytes),
            ("limit_bytes", notes.limit_bytes),
            ("granularity_bytes", notes.granularity_bytes),
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
        self.noted("awaited", &notes.awaited, Self::pending_wait)?;
        self.noted("device_memory", &notes.device_memory, |writer, fact| {
            writer.number(Word::TotalBytes, fact.total_bytes)?;
            writer.number(Word::FreeBytes, fact.free_bytes)?;
            writer.number(Word::HeldBytes, fact.held_bytes)
        })?;
        self.noted("processes", &notes.processes, |writer, fact| {
            writer.number(Word::Pid, fact.pid.into())?;
            writer.number(Word::Size, fact.bytes)?;
            if fact.is_own {
                writer.pickle.text("own")?;
                writer.pickle.bool(true)?;
            }
            Ok(())
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
            if stream.open {
                writer.pickle.text("open")?;
                writer.pickle.bool(true)?;
            }
            writer.pickle.end_dict()
        })?;
        self.pickle.text("pending_waits")?;
        self.list(&notes.pending_waits, |writer, wait| {
            writer.pickle.begin_dict()?;
            writer.pending_wait(wait)?;
            writer.pickle.end_dict()
        })
    }

    fn pending_wait(&mut self, wait: &PendingWait) -> Written {
        self.number(Word::Addr, wait.address)?;
        self.number(Word::Stream, wait.stream)?;
        self.number(Word::Position, wait.position)?;
        if let Some(fence) = wait.fence {
            self.pickle.word(Word::Fence)?;
            self.pickle.text(fence.name())?;
        }
        wait.held_by.map_or(Ok(()), |stream| self.number(Word::HeldBy, stream))
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
