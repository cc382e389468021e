//! Values while a pickle is read, and what becomes of its lists and dictionaries.
//!
//! A pickle makes its lists and dictionaries empty, may refer to them by a number from then on, and fills them later.
//! So each has an entry in a table of [`Object`]s, which says what it has turned out to be. Events, frames, stacks,
//! segments and blocks are recognised when they are filled, and take their small final form at once; only what is left
//! (a few lists of segments, settings, notes of a recorder) is kept as values.
//!
//! Invariant: every number in a value or an object is in its table.

use std::ops::Range;

use crate::{Block, Segment};

/// A value of a pickle. Its tag is as wide as its contents, so that it is copied in two whole words.
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(u64)]
pub(super) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// An integer from 2^63 on.
    Large(u64),
    Float(f64),
    Text(u32),
    /// A list, a tuple or a dictionary.
    Object(u32),
    /// An event that is complete: its row. It needs no object, because nothing can be added to it.
    Event(u32),
    /// A frame that is complete: its number.
    Frame(u32),
    /// A list of frames that something refers to: number of the stack.
    Stack(u32),
    /// A tuple of two small integers, which is what the numbers of a pool are.
    Pair(u32, u32),
    /// What nothing in a snapshot is made of, e.g. bytes.
    Other,
}

/// What a list or a dictionary is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Object {
    EmptyList,
    EmptyDict,
    /// Index into `lists`.
    List(u32),
    /// Index into `dicts`.
    Dict(u32),
    /// A list of frames that were added at once: number of the stack. More may follow, as long as nobody used it.
    Stack(u32),
    /// A list of frames that were added in several steps. Index into `long_stacks`.
    LongStack(u32),
    /// A list of frames that something refers to: number of the stack.
    UsedStack(u32),
    /// Number of the frame.
    Frame(u32),
    /// Row of the event.
    Event(u32),
    /// A list of events. Index into `traces`.
    Trace(u32),
    /// Index into `segments`.
    Segment(u32),
    /// Index into `blocks`.
    Block(u32),
    /// What was taken out of here to become part of the result. It cannot be part of it twice, or a small file could
    /// stand for a large snapshot.
    Taken,
}

/// A segment, which is taken when it is listed.
pub(super) struct FoundSegment {
    pub(super) device: u64,
    /// `None` once it is taken.
    pub(super) segment: Option<Segment>,
}

/// A block before it is listed in a segment.
pub(super) struct FoundBlock {
    /// `None` once it is taken.
    pub(super) block: Option<Block>,
    /// Whether the file says its address. If not, it follows the block before it.
    pub(super) has_address: bool,
}

/// Everything that values refer to.
#[derive(Default)]
pub(super) struct Heap {
    pub(super) objects: Vec<Object>,
    pub(super) lists: Vec<Vec<Value>>,
    /// Keys and values in turn.
    pub(super) dicts: Vec<Vec<Value>>,
    /// Numbers of frames.
    pub(super) long_stacks: Vec<Vec<u32>>,
    /// Rows, as runs that are not empty.
    pub(super) traces: Vec<Vec<Range<u32>>>,
    pub(super) segments: Vec<FoundSegment>,
    pub(super) blocks: Vec<FoundBlock>,
}

impl Heap {
    pub(super) fn add(&mut self, object: Object) -> Value {
        self.objects.push(object);
        Value::Object(number(self.objects.len() - 1))
    }

    pub(super) fn object(&self, value: Value) -> Option<Object> {
        match value {
            Value::Object(object) => Some(self.objects[object as usize]),
            Value::Event(row) => Some(Object::Event(row)),
            Value::Frame(frame) => Some(Object::Frame(frame)),
            Value::Stack(stack) => Some(Object::UsedStack(stack)),
            _ => None,
        }
    }

    /// The value itself, or its final form if it is an object that has one.
    #[inline]
    pub(super) fn settled(&self, value: Value) -> Value {
        let Value::Object(object) = value else { return value };
        match self.objects[object as usize] {
            Object::Event(row) => Value::Event(row),
            Object::Frame(frame) => Value::Frame(frame),
            Object::UsedStack(stack) => Value::Stack(stack),
            _ => value,
        }
    }

    pub(super) fn new_list(&mut self, items: Vec<Value>) -> Object {
        self.lists.push(items);
        Object::List(number(self.lists.len() - 1))
    }

    pub(super) fn new_dict(&mut self, entries: Vec<Value>) -> Object {
        self.dicts.push(entries);
        Object::Dict(number(self.dicts.len() - 1))
    }

    fn take(&mut self, value: Value) -> Option<Object> {
        match value {
            Value::Object(object) => Some(std::mem::replace(&mut self.objects[object as usize], Object::Taken)),
            _ => None,
        }
    }

    /// Takes the items of a list or a tuple that is none of the recognised kinds.
    pub(super) fn take_items(&mut self, value: Value) -> Option<Vec<Value>> {
        match self.take(value)? {
            Object::EmptyList => Some(Vec::new()),
            Object::List(list) => Some(std::mem::take(&mut self.lists[list as usize])),
            _ => None,
        }
    }

    /// Takes the rows of a list of events.
    pub(super) fn take_rows(&mut self, value: Value) -> Option<Vec<Range<u32>>> {
        match self.take(value)? {
            Object::EmptyList => Some(Vec::new()),
            Object::Trace(trace) => Some(std::mem::take(&mut self.traces[trace as usize])),
            _ => None,
        }
    }

    /// Takes keys and values of a dictionary that is none of the recognised kinds.
    pub(super) fn take_entries(&mut self, value: Value) -> Option<Vec<(Value, Value)>> {
        let entries = match self.take(value)? {
            Object::EmptyDict => Vec::new(),
            Object::Dict(dict) => std::mem::take(&mut self.dicts[dict as usize]),
            _ => return None,
        };
        Some(entries.chunks_exact(2).map(|entry| (entry[0], entry[1])).collect())
    }

    /// The items of a list or a tuple that is none of the recognised kinds.
    pub(super) fn items(&self, value: Value) -> Option<&[Value]> {
        match self.object(value)? {
            Object::EmptyList => Some(&[]),
            Object::List(list) => Some(&self.lists[list as usize]),
            _ => None,
        }
    }

    /// Keys and values of a dictionary that is none of the recognised kinds.
    pub(super) fn entries(&self, value: Value) -> Option<impl Iterator<Item = (Value, Value)>> {
        let entries: &[Value] = match self.object(value)? {
            Object::EmptyDict => &[],
            Object::Dict(dict) => &self.dicts[dict as usize],
            _ => return None,
        };
        Some(entries.chunks_exact(2).map(|entry| (entry[0], entry[1])))
    }
}

/// Adds rows to runs: the last run is continued if possible.
pub(super) fn add_rows(runs: &mut Vec<Range<u32>>, rows: Range<u32>) {
    match runs.last_mut() {
        _ if rows.is_empty() => {}
        Some(last) if last.end == rows.start => last.end = rows.end,
        _ => runs.push(rows),
    }
}

/// An index as a number. Each entry of a table took an instruction, and the machine counts those.
pub(super) fn number(index: usize) -> u32 {
    u32::try_from(index).expect("no more than four billion instructions are carried out")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_follow_each_other_are_one_run() {
        let mut runs = Vec::new();
        for rows in [3..3, 0..1, 1..4, 4..5, 7..8, 7..8, 8..8] {
            add_rows(&mut runs, rows);
        }
        assert_eq!(runs, [0..5, 7..8, 7..8]);
    }
}
