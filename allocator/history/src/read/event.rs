//! From the keys and values of an event to a row.
//!
//! An event is drafted key by key, by whoever reads its keys, and becomes a row when it is complete. A draft that is
//! given up leaves nothing behind.

use super::{
    ReadError,
    heap::Value,
    shape::{Found, Part, Read, Wanted, bits, small, text, unsigned, word},
    symbols::TextId,
    trace::{Event, EventAction, Extras},
    words,
};
use crate::StackId;

/// An event that is not complete.
#[derive(Default)]
pub(super) struct Draft {
    action: Option<EventAction>,
    address: Option<u64>,
    bytes: Option<u64>,
    time_us: Option<u64>,
    stream: u64,
    stack: StackId,
    /// Only then is there something in `extras` and `unknown`: most events have nothing there.
    has_more: bool,
    extras: Extras,
    /// Keys that are not known.
    unknown: Vec<u32>,
}

impl Draft {
    /// Begins another event.
    #[inline]
    fn clear(&mut self) {
        (self.action, self.address, self.bytes, self.time_us) = (None, None, None, None);
        (self.stream, self.stack) = (0, StackId::EMPTY);
        if self.has_more {
            self.has_more = false;
            self.extras = Extras::default();
            self.unknown.clear();
        }
    }
}

impl Found {
    /// The row of an event.
    pub(super) fn event(&mut self, entries: &[Value], offset: u64) -> Read<u32> {
        self.begin_event();
        for entry in entries.chunks_exact(2) {
            let (Value::Text(key), value) = (entry[0], entry[1]) else { continue };
            self.event_entry(key, value).map_err(|expected| needs(offset, word(key), expected))?;
        }
        self.end_event(offset)
    }

    #[inline]
    pub(super) fn begin_event(&mut self) {
        self.draft.clear();
    }

    /// Adds a key and its value to the event that was begun.
    #[inline(always)]
    pub(super) fn event_entry(&mut self, key: u32, value: Value) -> Wanted<()> {
        match key {
            words::ACTION => self.draft.action = Some(EventAction::of_text(text(value)?)),
            words::ADDR => self.draft.address = Some(bits(value)?),
            words::SIZE => self.draft.bytes = Some(unsigned(value)?),
            words::STREAM => self.draft.stream = bits(value)?,
            words::TIME_US => self.draft.time_us = Some(unsigned(value)?),
            words::FRAMES => self.draft.stack = self.stack(value)?,
            // What most events have there says nothing, unless a key comes twice: then the last one counts.
            words::COMPILE_CONTEXT if value == Value::Text(words::NOT_COMPILED) && !self.draft.has_more => {}
            words::USER_METADATA if value == Value::Text(words::EMPTY) && !self.draft.has_more => {}
            words::POOL_ID if value == Value::Pair(0, 0) && !self.draft.has_more => {}
            _ => self.event_extra(key, value)?,
        }
        Ok(())
    }

    #[inline(never)]
    fn event_extra(&mut self, key: u32, value: Value) -> Wanted<()> {
        let meaning = |text: u32| (text != words::EMPTY && text != words::NOT_COMPILED).then_some(TextId(text));
        self.draft.has_more = true;
        let extras = &mut self.draft.extras;
        match key {
            words::COMPILE_CONTEXT => extras.compile_context = meaning(text(value)?),
            words::USER_METADATA => extras.user_metadata = meaning(text(value)?),
            words::INTERNAL_METADATA => extras.internal_metadata = meaning(text(value)?),
            words::CATEGORY => extras.category = meaning(text(value)?),
            words::DEVICE_FREE => extras.device_free_bytes = Some(unsigned(value)?),
            words::ROUNDED_SIZE => extras.rounded_bytes = Some(unsigned(value)?),
            words::SPAN => extras.span = Some(small(value)?).filter(|&span| span != 0),
            words::POOL_ID => {
                let pool = self.pool(value)?;
                self.draft.extras.pool = Some(pool).filter(|&pool| pool != (0, 0));
            }
            words::FORWARD_FRAMES => {
                let stack = self.lines(value)?;
                self.draft.extras.forward_stack = Some(stack).filter(|&stack| stack != StackId::EMPTY);
            }
            _ => self.draft.unknown.push(key),
        }
        Ok(())
    }

    /// Makes a row of the event that was begun.
    #[inline(always)]
    pub(super) fn end_event(&mut self, offset: u64) -> Read<u32> {
        let draft = &mut self.draft;
        let Some(action) = draft.action else { return Err(needs(offset, "action", "a text")) };
        if action.has_address() {
            if draft.address.is_none() {
                return Err(needs(offset, "addr", "an address"));
            }
            if draft.bytes.is_none() {
                return Err(needs(offset, "size", "a number of bytes"));
            }
        }
        if draft.time_us.is_none() {
            draft.has_more = true;
            draft.extras.no_time = true;
        }
        let event = Event {
            action,
            address: draft.address.unwrap_or(0),
            bytes: draft.bytes.unwrap_or(0),
            stream: draft.stream,
            time_us: draft.time_us.unwrap_or(0),
            stack: draft.stack,
        };
        let row = self.rows.push(event, draft.has_more.then_some(&draft.extras));
        let Some(row) = row else {
            let what = "kinds of events that are not known";
            return Err(ReadError::TooMany { offset, what, limit: usize::from(u8::MAX) });
        };
        if self.draft.has_more {
            for index in 0..self.draft.unknown.len() {
                self.count_unknown(Part::Event, self.draft.unknown[index]);
            }
        }
        Ok(row)
    }

    /// A pair of numbers: a tuple, or a list where a file went through JSON.
    pub(super) fn pool(&self, value: Value) -> Wanted<(u64, u64)> {
        const EXPECTED: &str = "two numbers";
        match value {
            Value::Pair(first, second) => Ok((first.into(), second.into())),
            Value::None => Ok((0, 0)),
            _ => match *self.heap.items(value).ok_or(EXPECTED)? {
                [first, second] => Ok((bits(first)?, bits(second)?)),
                _ => Err(EXPECTED),
            },
        }
    }
}

#[cold]
fn needs(offset: u64, key: &'static str, expected: &'static str) -> ReadError {
    ReadError::Needs { offset, place: "an event", key, expected }
}
