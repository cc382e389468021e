//! What a dictionary is, by its keys: an event, a frame, a segment or a block.
//!
//! Each kind has a key that no other kind has. Keys that are not known are counted and left out, so files of later
//! versions can be read. A value of a wrong type is an error that names its key.

use std::collections::BTreeMap;

use super::{
    ReadError,
    event::Draft,
    heap::{FoundBlock, FoundSegment, Heap, Object, Value, add_rows, number},
    symbols::{FrameParts, Symbols, TextId},
    trace::Trace,
    words,
};
use crate::{Block, BlockState, Segment, SegmentKind, StackId};

/// Part of a snapshot that can have keys which are not known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Part {
    /// The whole.
    File,
    /// An event.
    Event,
    /// A segment.
    Segment,
    /// A block.
    Block,
    /// An annotation.
    Annotation,
    /// What this project's recorder adds.
    Recorder,
}

/// Everything that has been read so far.
pub(super) struct Found {
    pub(super) heap: Heap,
    pub(super) symbols: Symbols,
    pub(super) rows: Trace,
    /// How often each key came that is not known.
    pub(super) unknown: BTreeMap<(Part, TextId), u64>,
    /// The event that is being read.
    pub(super) draft: Draft,
}

/// How many entries of a dictionary are looked at to find out what it is.
const LOOKED_AT: usize = 64;

pub(super) type Read<T> = Result<T, ReadError>;

/// A value of another type than it needs to be: which one that is.
pub(super) type Wanted<T> = Result<T, &'static str>;

impl Found {
    pub(super) fn new() -> Self {
        Self {
            heap: Heap::default(),
            symbols: Symbols::new(),
            rows: Trace::default(),
            unknown: BTreeMap::new(),
            draft: Draft::default(),
        }
    }

    /// What a dictionary of these keys and values is, if it is a known part.
    pub(super) fn recognise(&mut self, entries: &[Value], offset: u64) -> Read<Option<Object>> {
        for entry in entries.chunks_exact(2).take(LOOKED_AT) {
            let Value::Text(key) = entry[0] else { continue };
            return match key {
                words::ACTION => self.event(entries, offset).map(Object::Event),
                words::FILENAME => self.frame(entries, offset),
                words::STATE => self.block(entries, offset),
                words::TOTAL_SIZE => self.segment(entries, offset),
                _ => continue,
            }
            .map(Some);
        }
        Ok(None)
    }

    /// What a list of these items is.
    fn fill(&mut self, items: &[Value], offset: u64) -> Read<Object> {
        if let Some(stack) = self.stack_of(items) {
            return Ok(stack);
        }
        if self.recognise_items(items, offset)?
            && let Some(stack) = self.stack_of(items)
        {
            return Ok(stack);
        }
        let mut runs = Vec::new();
        if add_all_rows(&self.heap, &mut runs, items) {
            self.heap.traces.push(runs);
            return Ok(Object::Trace(number(self.heap.traces.len() - 1)));
        }
        Ok(self.heap.new_list(items.to_vec()))
    }

    /// The stack that the items are, if all are frames.
    #[inline]
    pub(super) fn stack_of(&mut self, items: &[Value]) -> Option<Object> {
        self.symbols.begin_stack();
        for &item in items {
            let Some(Object::Frame(frame)) = self.heap.object(item) else { return None };
            self.symbols.push_frame(frame);
        }
        Some(Object::Stack(self.symbols.end_stack()))
    }

    /// Adds more items to a list.
    pub(super) fn extend(&mut self, list: u32, items: &[Value], offset: u64) -> Read<()> {
        if items.is_empty() {
            return Ok(());
        }
        let malformed = |expected| Err(ReadError::Malformed { offset, expected });
        let object = self.heap.objects[list as usize];
        if object == Object::EmptyList {
            self.heap.objects[list as usize] = self.fill(items, offset)?;
            return Ok(());
        }
        self.recognise_items(items, offset)?;
        match object {
            Object::List(list) => self.heap.lists[list as usize].extend_from_slice(items),
            Object::Trace(trace) => {
                // All or none, so that salvage can try again with fewer.
                let is_event = |&item| matches!(self.heap.object(item), Some(Object::Event(_)));
                if !items.iter().all(is_event) {
                    return malformed("events alone in a list of events");
                }
                let mut runs = std::mem::take(&mut self.heap.traces[trace as usize]);
                add_all_rows(&self.heap, &mut runs, items);
                self.heap.traces[trace as usize] = runs;
            }
            Object::Stack(stack) => {
                let frames = self.symbols.stack(StackId(stack)).map(|frame| frame.0).collect();
                self.heap.long_stacks.push(frames);
                self.heap.objects[list as usize] = Object::LongStack(number(self.heap.long_stacks.len() - 1));
                return self.extend(list, items, offset);
            }
            Object::LongStack(stack) => {
                for &item in items {
                    let Some(Object::Frame(frame)) = self.heap.object(item) else {
                        return malformed("frames alone in a list of frames");
                    };
                    self.heap.long_stacks[stack as usize].push(frame);
                }
            }
            Object::UsedStack(_) => return malformed("a list of frames that nothing refers to yet"),
            _ => return malformed("a list to add to"),
        }
        Ok(())
    }

    /// Items that were filled key by key are recognised when they are listed. Whether there were any.
    fn recognise_items(&mut self, items: &[Value], offset: u64) -> Read<bool> {
        let mut any = false;
        for &item in items {
            let Value::Object(object) = item else { continue };
            if let Object::Dict(dict) = self.heap.objects[object as usize] {
                let entries = std::mem::take(&mut self.heap.dicts[dict as usize]);
                let recognised = self.recognise(&entries, offset);
                self.heap.dicts[dict as usize] = entries;
                if let Some(recognised) = recognised? {
                    self.heap.dicts[dict as usize] = Vec::new();
                    self.heap.objects[object as usize] = recognised;
                    any = true;
                }
            }
        }
        Ok(any)
    }

    fn frame(&mut self, entries: &[Value], offset: u64) -> Read<Object> {
        let needs = |key, expected| ReadError::Needs { offset, place: "a frame", key, expected };
        let mut parts = FrameParts { name: TextId::EMPTY, filename: TextId::EMPTY, line: 0 };
        let mut extras = Vec::new();
        for entry in entries.chunks_exact(2) {
            let (Value::Text(key), value) = (entry[0], entry[1]) else { continue };
            let result = match key {
                words::NAME => text(value).map(|text| parts.name = TextId(text)),
                words::FILENAME => text(value).map(|text| parts.filename = TextId(text)),
                words::LINE => integer(value).map(|line| parts.line = u32::try_from(line).unwrap_or(0)),
                _ => {
                    if let Value::Text(text) = value {
                        extras.extend([key, text]);
                    }
                    Ok(())
                }
            };
            result.map_err(|expected| needs(word(key), expected))?;
        }
        Ok(Object::Frame(self.symbols.intern_frame(parts, &extras)))
    }

    fn block(&mut self, entries: &[Value], offset: u64) -> Read<Object> {
        let needs = |key, expected| ReadError::Needs { offset, place: "a block", key, expected };
        let (mut address, mut bytes, mut requested) = (None, None, None);
        let mut state = BlockState::Inactive;
        let mut stack = StackId::EMPTY;
        for entry in entries.chunks_exact(2) {
            let (Value::Text(key), value) = (entry[0], entry[1]) else { continue };
            let result = match key {
                words::ADDRESS => bits(value).map(|value| address = Some(value)),
                words::SIZE => unsigned(value).map(|value| bytes = Some(value)),
                words::REQUESTED_SIZE => unsigned(value).map(|value| requested = Some(value)),
                words::STATE => block_state(value).map(|value| state = value),
                words::FRAMES => self.stack(value).map(|value| stack = value),
                words::HISTORY => self.history(value).map(|newest| {
                    stack = newest.0;
                    requested = requested.or(newest.1);
                }),
                _ => {
                    self.count_unknown(Part::Block, key);
                    Ok(())
                }
            };
            result.map_err(|expected| needs(word(key), expected))?;
        }
        let bytes = bytes.ok_or(needs("size", "a number of bytes"))?;
        let in_use = state != BlockState::Inactive;
        let requested_bytes = if in_use { requested.unwrap_or(bytes) } else { 0 };
        let block = Block { address: address.unwrap_or(0), bytes, requested_bytes, state, stack };
        self.heap.blocks.push(FoundBlock { block: Some(block), has_address: address.is_some() });
        Ok(Object::Block(number(self.heap.blocks.len() - 1)))
    }

    fn segment(&mut self, entries: &[Value], offset: u64) -> Read<Object> {
        let needs = |key, expected| ReadError::Needs { offset, place: "a segment", key, expected };
        let mut device = 0;
        let (mut address, mut blocks) = (None, None);
        let (mut allocated, mut active, mut requested) = (None, None, None);
        let mut new = empty_segment();
        for entry in entries.chunks_exact(2) {
            let (Value::Text(key), value) = (entry[0], entry[1]) else { continue };
            let result = match key {
                words::DEVICE => unsigned(value).map(|value| device = value),
                words::ADDRESS => bits(value).map(|value| address = Some(value)),
                words::TOTAL_SIZE => unsigned(value).map(|value| new.total_bytes = value),
                words::ALLOCATED_SIZE => unsigned(value).map(|value| allocated = Some(value)),
                words::ACTIVE_SIZE => unsigned(value).map(|value| active = Some(value)),
                words::REQUESTED_SIZE => unsigned(value).map(|value| requested = Some(value)),
                words::STREAM => bits(value).map(|value| new.stream = value),
                words::SEGMENT_TYPE => text(value).map(|text| {
                    new.kind = if text == words::SMALL { SegmentKind::Small } else { SegmentKind::Large };
                }),
                words::SEGMENT_POOL_ID => self.pool(value).map(|value| new.pool = value),
                words::IS_EXPANDABLE => truth(value).map(|value| new.expandable = value),
                words::FRAMES => self.stack(value).map(|value| new.stack = value),
                words::BLOCKS => {
                    blocks = Some(value);
                    Ok(())
                }
                _ => {
                    self.count_unknown(Part::Segment, key);
                    Ok(())
                }
            };
            result.map_err(|expected| needs(word(key), expected))?;
        }
        new.address = address.ok_or(needs("address", "an address"))?;
        let blocks = blocks.ok_or(needs("blocks", "a list of blocks"))?;
        new.blocks = self.take_blocks(blocks, new.address).map_err(|expected| needs("blocks", expected))?;
        let sum = |counts: fn(&&Block) -> bool, bytes: fn(&Block) -> u64| {
            new.blocks.iter().filter(counts).map(bytes).fold(0, u64::saturating_add)
        };
        new.allocated_bytes = allocated.unwrap_or_else(|| sum(|b| b.state == BlockState::Allocated, |b| b.bytes));
        new.active_bytes = active.unwrap_or_else(|| sum(|b| b.state != BlockState::Inactive, |b| b.bytes));
        new.requested_bytes = requested.unwrap_or_else(|| sum(|_| true, |b| b.requested_bytes));
        self.heap.segments.push(FoundSegment { device, segment: Some(new) });
        Ok(Object::Segment(number(self.heap.segments.len() - 1)))
    }

    /// The blocks of a list. Each can be in one list only.
    fn take_blocks(&mut self, list: Value, start: u64) -> Wanted<Vec<Block>> {
        const EXPECTED: &str = "a list of blocks, each listed once";
        let blocks = &mut self.heap.blocks;
        let items = match list {
            Value::Object(object) => match self.heap.objects[object as usize] {
                Object::EmptyList => &[],
                Object::List(list) => self.heap.lists[list as usize].as_slice(),
                _ => return Err(EXPECTED),
            },
            _ => return Err(EXPECTED),
        };
        let mut taken = Vec::new();
        let mut at = start;
        for &item in items {
            let Value::Object(object) = item else { return Err(EXPECTED) };
            let Object::Block(block) = self.heap.objects[object as usize] else { return Err(EXPECTED) };
            let found = &mut blocks[block as usize];
            let mut block = found.block.take().ok_or(EXPECTED)?;
            if !found.has_address {
                block.address = at;
            }
            at = block.address.saturating_add(block.bytes);
            taken.push(block);
        }
        Ok(taken)
    }

    /// Stack and requested bytes of the newest entry of a block's history (before PyTorch 2.1).
    fn history(&mut self, value: Value) -> Wanted<(StackId, Option<u64>)> {
        const EXPECTED: &str = "a list of allocations";
        let Some(&newest) = self.heap.items(value).ok_or(EXPECTED)?.first() else {
            return Ok((StackId::EMPTY, None));
        };
        let (mut frames, mut requested) = (None, None);
        for (key, value) in self.heap.entries(newest).ok_or(EXPECTED)?.take(LOOKED_AT) {
            match key {
                Value::Text(words::FRAMES) => frames = Some(value),
                Value::Text(words::REAL_SIZE) => requested = Some(unsigned(value)?),
                _ => {}
            }
        }
        Ok((frames.map_or(Ok(StackId::EMPTY), |frames| self.stack(frames))?, requested))
    }

    /// The stack that a list of frames is. From here on nothing may be added to the list.
    pub(super) fn stack(&mut self, value: Value) -> Wanted<StackId> {
        const EXPECTED: &str = "a list of frames";
        let object = match value {
            Value::Stack(stack) => return Ok(StackId(stack)),
            Value::Object(object) => object as usize,
            Value::None => return Ok(StackId::EMPTY),
            _ => return Err(EXPECTED),
        };
        let stack = match self.heap.objects[object] {
            Object::EmptyList => return Ok(StackId::EMPTY),
            Object::UsedStack(stack) | Object::Stack(stack) => stack,
            Object::LongStack(stack) => {
                let frames = std::mem::take(&mut self.heap.long_stacks[stack as usize]);
                self.symbols.intern_stack(frames)
            }
            _ => return Err(EXPECTED),
        };
        self.heap.objects[object] = Object::UsedStack(stack);
        Ok(StackId(stack))
    }

    /// A stack of lines of text: frames with nothing but a name. The list is turned into it.
    pub(super) fn lines(&mut self, value: Value) -> Wanted<StackId> {
        const EXPECTED: &str = "a list of texts";
        if let Some(Object::UsedStack(_) | Object::Stack(_) | Object::LongStack(_)) = self.heap.object(value) {
            return self.stack(value);
        }
        let lines = self.heap.items(value).ok_or(EXPECTED)?;
        let lines = lines.iter().map(|&line| text(line)).collect::<Wanted<Vec<_>>>()?;
        if lines.is_empty() {
            return Ok(StackId::EMPTY);
        }
        let symbols = &mut self.symbols;
        let frame = |name| FrameParts { name: TextId(name), filename: TextId::EMPTY, line: 0 };
        let frames: Vec<u32> = lines.into_iter().map(|name| symbols.intern_frame(frame(name), &[])).collect();
        let stack = symbols.intern_stack(frames);
        if let Value::Object(object) = value {
            self.heap.objects[object as usize] = Object::UsedStack(stack);
        }
        Ok(StackId(stack))
    }

    pub(super) fn count_unknown(&mut self, part: Part, key: u32) {
        *self.unknown.entry((part, TextId(key))).or_insert(0) += 1;
    }
}

/// Adds the rows of events; `false` if not all are events.
fn add_all_rows(heap: &Heap, runs: &mut Vec<std::ops::Range<u32>>, items: &[Value]) -> bool {
    items.iter().all(|&item| match heap.object(item) {
        Some(Object::Event(row)) => {
            add_rows(runs, row..row + 1);
            true
        }
        _ => false,
    })
}

fn empty_segment() -> Segment {
    Segment {
        address: 0,
        total_bytes: 0,
        allocated_bytes: 0,
        active_bytes: 0,
        requested_bytes: 0,
        stream: 0,
        kind: SegmentKind::Large,
        pool: (0, 0),
        expandable: false,
        stack: StackId::EMPTY,
        blocks: Vec::new(),
    }
}

/// The text of a key that is known.
pub(super) fn word(key: u32) -> &'static str {
    words::ALL.get(key as usize).copied().unwrap_or("a key")
}

fn block_state(value: Value) -> Wanted<BlockState> {
    match text(value)? {
        words::ACTIVE_ALLOCATED => Ok(BlockState::Allocated),
        words::ACTIVE_PENDING_FREE | words::ACTIVE_AWAITING_FREE => Ok(BlockState::PendingFree),
        words::INACTIVE => Ok(BlockState::Inactive),
        _ => Err("active_allocated, active_pending_free or inactive"),
    }
}

pub(super) fn text(value: Value) -> Wanted<u32> {
    match value {
        Value::Text(text) => Ok(text),
        Value::None => Ok(words::EMPTY),
        _ => Err("a text"),
    }
}

pub(super) fn truth(value: Value) -> Wanted<bool> {
    match value {
        Value::Bool(value) => Ok(value),
        _ => Err("a truth value"),
    }
}

fn integer(value: Value) -> Wanted<i64> {
    match value {
        Value::Int(value) => Ok(value),
        _ => Err("an integer of 64 bits"),
    }
}

/// An address or a stream: all 64 bits, also where a writer took them for a signed number.
pub(super) fn bits(value: Value) -> Wanted<u64> {
    match value {
        Value::Int(value) => Ok(value as u64),
        Value::Large(value) => Ok(value),
        _ => Err("an integer of 64 bits"),
    }
}

pub(super) fn unsigned(value: Value) -> Wanted<u64> {
    match value {
        Value::Int(value) => u64::try_from(value).map_err(|_| "a number of 0 or more"),
        Value::Large(value) => Ok(value),
        _ => Err("a number of 0 or more"),
    }
}

pub(super) fn small(value: Value) -> Wanted<u32> {
    unsigned(value).and_then(|value| u32::try_from(value).map_err(|_| "a number below 2^32"))
}
