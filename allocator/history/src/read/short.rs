//! The short way through events.
//!
//! Nearly all of a large file is events of one form: keys that are in the memo, numbers, short texts, and a list of
//! frames that are in the memo. Such an event is read here in one go, past the stack. An event of another form is left
//! to the machine: what was read of it is forgotten, so that the machine finds everything as if nothing had been tried.
//! An attempt ends at the first dictionary inside it, so all attempts together read the file no more than once.
//!
//! Invariant: an attempt changes nothing before it is complete, but for entries at the end of the memo, which are taken
//! back, and texts and stacks, which the machine will come to in the same order.

use super::{
    heap::{Object, Value},
    machine::Machine,
    memo::Memo,
    words,
};
use crate::scan::{Op, Scanner};

/// Most keys of an event that is read here.
const MAX_KEYS: usize = 64;

impl<'a> Machine<'a> {
    /// Takes events as long as they have the usual form.
    #[inline(always)]
    pub(super) fn take_events(&mut self) {
        while self.scan.opcode() == Some(b'}') {
            let Some(filled) = self.memo.filled() else { return };
            let mut scan = self.scan;
            let Some(event) = self.take_event(&mut scan) else {
                self.memo.back_to(filled);
                return;
            };
            self.scan = scan;
            self.stack.push(event);
        }
    }

    #[inline(never)]
    fn take_event(&mut self, scan: &mut Scanner<'a>) -> Option<Value> {
        scan.accept(b'}')?;
        let event = Value::Event(u32::try_from(self.found.rows.len()).ok()?);
        remember(scan, &mut self.memo, event)?;
        scan.accept(b'(')?;
        self.found.begin_event();
        let mut keys = 0;
        while let Some(key) = scan.next_get() {
            let Some(Value::Text(key)) = self.memo.get(key) else { return None };
            keys += 1;
            if words::OF_OTHERS.contains(&key) || keys > MAX_KEYS {
                return None;
            }
            let value = match key {
                words::FRAMES => self.frames(scan)?,
                words::POOL_ID => pool(scan, &mut self.memo)?,
                _ => self.scalar(scan)?,
            };
            self.found.event_entry(key, value).ok()?;
        }
        scan.accept(b'u')?;
        self.found.end_event(0).ok()?;
        Some(event)
    }

    /// A list of frames that are in the memo, or one that is itself there.
    #[inline(always)]
    fn frames(&mut self, scan: &mut Scanner<'a>) -> Option<Value> {
        if let Some(id) = scan.next_get() {
            return self.memo.get(id);
        }
        scan.accept(b']')?;
        // Which stack it is will be known later.
        let place = self.memo.next()?;
        let remembered = remember(scan, &mut self.memo, Value::Stack(0))?;
        self.found.symbols.begin_stack();
        while scan.accept(b'(').is_some() {
            loop {
                self.push_frames(scan);
                // Those that have a short number, and those that the memo does not know as frames.
                let Some(id) = scan.next_get() else { break };
                let frame = self.frame(id)?;
                self.found.symbols.push_frame(frame);
            }
            scan.accept(b'e')?;
        }
        let stack = Value::Stack(self.found.symbols.end_stack());
        if remembered {
            self.memo.put(place, stack)?;
        } else {
            remember(scan, &mut self.memo, stack)?;
        }
        Some(stack)
    }

    #[inline(always)]
    fn push_frames(&mut self, scan: &mut Scanner<'a>) {
        let (memo, symbols) = (&self.memo, &mut self.found.symbols);
        scan.long_gets(|id| match memo.frame(id) {
            Some(frame) => {
                symbols.push_frame(frame);
                true
            }
            None => false,
        });
    }

    fn frame(&mut self, id: u32) -> Option<u32> {
        let value = self.memo.get(id)?;
        let Object::Frame(frame) = self.found.heap.object(value)? else { return None };
        if let Value::Object(_) = value {
            // The next time it is found at once.
            self.memo.put(id, Value::Frame(frame))?;
        }
        Some(frame)
    }

    #[inline(always)]
    fn scalar(&mut self, scan: &mut Scanner<'a>) -> Option<Value> {
        Some(match scan.next().ok()? {
            Op::Get(id) => self.memo.get(id)?,
            Op::Int(value) => Value::Int(value),
            Op::Text(text) => {
                // What comes with nearly every event needs no search.
                let text = Value::Text(match text {
                    b"" => words::EMPTY,
                    b"N/A" => words::NOT_COMPILED,
                    _ => self.found.symbols.intern_text(text),
                });
                remember(scan, &mut self.memo, text)?;
                text
            }
            Op::None => Value::None,
            Op::Bool(value) => Value::Bool(value),
            Op::Float(value) => Value::Float(value),
            _ => return None,
        })
    }
}

/// A pair of small numbers, or what the memo has.
#[inline(always)]
fn pool(scan: &mut Scanner<'_>, memo: &mut Memo) -> Option<Value> {
    if let Some(id) = scan.next_get() {
        return memo.get(id);
    }
    let mut number = || match scan.next() {
        Ok(Op::Int(value)) => u32::try_from(value).ok(),
        _ => None,
    };
    let pair = Value::Pair(number()?, number()?);
    scan.accept(0x86)?;
    remember(scan, memo, pair)?;
    Some(pair)
}

/// Remembers a value if the next instruction says so, under the next number; whether it does.
#[inline(always)]
fn remember(scan: &mut Scanner<'_>, memo: &mut Memo, value: Value) -> Option<bool> {
    let next = memo.next()?;
    let id = match scan.opcode()? {
        0x94 | b'q' | b'r' => match scan.next().ok()? {
            Op::Memoize => next,
            Op::Put(id) => id,
            _ => return None,
        },
        _ => return Some(false),
    };
    if id != next {
        return None;
    }
    memo.push(value)?;
    Some(true)
}
