//! The stack machine: carries out the instructions of a pickle, and hands what it makes to [`Found`].
//!
//! It is one loop without recursion. Its memory is bounded by the number of instructions, which is bounded by the file:
//! each makes at most one entry of a few bytes in a table, and a length that a file claims is never trusted.
//!
//! Invariants: marks ascend and are at most the height of the stack; a failed instruction leaves both as they were, so
//! that [`close`](Machine::close) can go on from there.

use std::mem::discriminant;

use super::{
    ReadError,
    heap::{Object, Value},
    memo::Memo,
    shape::Found,
};
use crate::scan::{Op, Scanner};

/// How deep marks may nest. A snapshot has about ten.
const MAX_MARKS: usize = 256;

type Read<T> = Result<T, ReadError>;

pub(super) struct Machine<'a> {
    pub(super) scan: Scanner<'a>,
    /// Where the current instruction begins.
    at: u64,
    instructions: u32,
    pub(super) stack: Vec<Value>,
    marks: Vec<usize>,
    pub(super) memo: Memo,
    pub(super) protocol: u8,
    pub(super) found: Found,
}

impl<'a> Machine<'a> {
    pub(super) fn new(pickle: &'a [u8]) -> Self {
        Self {
            scan: Scanner::new(pickle),
            at: 0,
            instructions: 0,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Memo::default(),
            protocol: 0,
            found: Found::new(),
        }
    }

    /// What was read. The memo and the stack are given up.
    pub(super) fn into_found(self) -> Found {
        self.found
    }

    /// Where the last instruction begins.
    pub(super) fn offset(&self) -> u64 {
        self.at
    }

    /// Runs to the end. The value of the pickle.
    pub(super) fn run(&mut self) -> Read<Value> {
        loop {
            self.take_events();
            self.gets()?;
            let opcode = self.scan.opcode();
            self.at = self.scan.offset() as u64;
            self.instructions = self.instructions.checked_add(1).ok_or_else(|| self.too_many())?;
            match self.scan.next() {
                Ok(Op::Stop) => return self.top().copied(),
                Ok(op) => self.step(op)?,
                Err(error) => return Err(ReadError::scan(error, self.at, opcode)),
            }
        }
    }

    /// Carries out instructions as long as they are references to the memo.
    #[inline(always)]
    fn gets(&mut self) -> Read<()> {
        loop {
            let at = self.scan.offset();
            let Some(id) = self.scan.next_get() else { return Ok(()) };
            let Some(value) = self.memo.get(id) else {
                self.at = at as u64;
                return Err(self.malformed("a memo entry that was made before"));
            };
            let settled = self.found.heap.settled(value);
            if settled != value {
                // The next time it is found at once.
                self.memo.put(id, settled);
            }
            self.stack.push(settled);
        }
    }

    /// Ends what is unfinished, so that what was complete before is found: lists get the items that they wait for, and
    /// dictionaries that wait for a key or a value are dropped, but for the outermost.
    pub(super) fn close(&mut self) -> Option<Value> {
        while let Some(mark) = self.marks.pop() {
            if mark == self.marks.last().copied().unwrap_or(0) {
                // There is nothing to add to between this mark and the one before.
                continue;
            }
            self.join_lists(mark);
            let mut items = self.stack.split_off(mark);
            let Some(&top) = self.stack.last() else { continue };
            match self.found.heap.object(top) {
                Some(Object::EmptyDict | Object::Dict(_)) if mark > 1 => {
                    self.stack.pop();
                }
                Some(Object::EmptyDict | Object::Dict(_)) => {
                    let complete = items.len() / 2 * 2;
                    self.set_items(top, &items[..complete]).ok()?;
                }
                _ => self.append_complete(top, &mut items),
            }
        }
        self.join_lists(0);
        if let [dict, key, value] = self.stack[..] {
            self.set_item(dict, key, value).ok()?;
        }
        self.stack.first().copied()
    }

    /// Appends items to a list, but for what was being made at their end.
    fn append_complete(&mut self, list: Value, items: &mut Vec<Value>) {
        let object = |value| self.found.heap.object(value);
        let first = items.first().and_then(|&first| object(first));
        let is_alike = |item: &&Value| match (object(**item), first) {
            (Some(item), Some(first)) => is_list(item) && is_list(first) || discriminant(&item) == discriminant(&first),
            _ => false,
        };
        match first {
            // Dictionaries of no known kind, e.g. annotations: only one that is empty is surely not complete.
            None | Some(Object::EmptyDict | Object::Dict(_)) => {
                if items.last().is_some_and(|&last| object(last) == Some(Object::EmptyDict)) {
                    items.pop();
                }
            }
            Some(_) => items.truncate(items.iter().take_while(is_alike).count()),
        }
        if self.append_items(list, items).is_err() && items.pop().is_some() {
            // What comes before an item that is wrong is good.
            let _ = self.append_items(list, items);
        }
    }

    /// Appends lists at the top to the lists below them, as a writer does with the single item of a list.
    fn join_lists(&mut self, floor: usize) {
        while self.stack.len() > floor + 1 {
            let (list, item) = (self.stack[self.stack.len() - 2], self.stack[self.stack.len() - 1]);
            if !self.found.heap.object(list).is_some_and(is_list) || self.append_items(list, &[item]).is_err() {
                return;
            }
            self.stack.pop();
        }
    }

    #[inline(always)]
    fn step(&mut self, op: Op<'_>) -> Read<()> {
        match op {
            Op::Text(text) => {
                let text = self.found.symbols.intern_text(text);
                self.stack.push(Value::Text(text));
            }
            Op::Int(value) => self.stack.push(Value::Int(value)),
            Op::Memoize => {
                let top = *self.top()?;
                let id = self.memo.next();
                id.and_then(|id| self.memo.put(id, top)).ok_or_else(|| self.too_many())?;
            }
            Op::Put(id) => {
                let top = *self.top()?;
                self.memo.put(id, top).ok_or_else(|| self.too_many())?;
            }
            Op::EmptyDict => {
                let dict = self.found.heap.add(Object::EmptyDict);
                self.stack.push(dict);
            }
            Op::EmptyList | Op::EmptyTuple => {
                let list = self.found.heap.add(Object::EmptyList);
                self.stack.push(list);
            }
            Op::Mark => self.mark()?,
            Op::SetItems => {
                let dict = self.below_mark()?;
                self.with_items(|machine, items| machine.set_items(dict, items))?;
                if let Some(top) = self.stack.last_mut() {
                    *top = self.found.heap.settled(*top);
                }
            }
            Op::Appends => {
                let list = self.below_mark()?;
                self.with_items(|machine, items| machine.append_items(list, items))?;
            }
            other => self.rare(other)?,
        }
        Ok(())
    }

    fn rare(&mut self, op: Op<'_>) -> Read<()> {
        match op {
            Op::None => self.stack.push(Value::None),
            Op::Bool(value) => self.stack.push(Value::Bool(value)),
            Op::Float(value) => self.stack.push(Value::Float(value)),
            Op::Long(bytes) => self.stack.push(large(bytes)),
            Op::Bytes => self.stack.push(Value::Other),
            Op::TupleOf(count) => self.tuple(count)?,
            Op::List | Op::Tuple => {
                let list = self.found.heap.add(Object::EmptyList);
                self.with_items(|machine, items| machine.append_items(list, items))?;
                self.stack.push(list);
            }
            Op::Dict => {
                let dict = self.found.heap.add(Object::EmptyDict);
                self.with_items(|machine, items| machine.set_items(dict, items))?;
                self.stack.push(dict);
            }
            Op::Append => {
                let (list, item) = (self.below_top(1)?, self.below_top(0)?);
                self.append_items(list, &[item])?;
                self.stack.pop();
            }
            Op::SetItem => {
                let (dict, key, value) = (self.below_top(2)?, self.below_top(1)?, self.below_top(0)?);
                self.set_item(dict, key, value)?;
                self.stack.truncate(self.stack.len() - 2);
            }
            Op::Pop => {
                // Python's POP takes a mark if that is what lies on top.
                if self.marks.last() == Some(&self.stack.len()) {
                    self.marks.pop();
                } else {
                    self.top()?;
                    self.stack.pop();
                }
            }
            Op::PopMark => {
                let mark = self.last_mark()?;
                self.marks.pop();
                self.stack.truncate(mark);
            }
            Op::Dup => self.stack.push(*self.top()?),
            Op::Protocol(version @ 2..=5) => self.protocol = version,
            Op::Protocol(version) => return Err(ReadError::Protocol { offset: self.at, version }),
            _ => {}
        }
        Ok(())
    }

    fn mark(&mut self) -> Read<()> {
        if self.marks.len() == MAX_MARKS {
            return Err(ReadError::TooMany { offset: self.at, what: "values inside each other", limit: MAX_MARKS });
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    /// Takes the last mark and what is above it, unless `take` fails with it.
    #[inline]
    fn with_items(&mut self, take: impl FnOnce(&mut Self, &[Value]) -> Read<()>) -> Read<()> {
        let mark = self.last_mark()?;
        let stack = std::mem::take(&mut self.stack);
        let result = take(self, &stack[mark..]);
        self.stack = stack;
        if result.is_ok() {
            self.stack.truncate(mark);
            self.marks.pop();
        }
        result
    }

    fn set_items(&mut self, dict: Value, items: &[Value]) -> Read<()> {
        if !items.len().is_multiple_of(2) {
            return Err(self.malformed("a value for every key"));
        }
        let Value::Object(object) = dict else { return Err(self.malformed("a dictionary to add to")) };
        match self.found.heap.objects[object as usize] {
            Object::EmptyDict => {
                let recognised = self.found.recognise(items, self.at)?;
                let new = recognised.unwrap_or_else(|| self.found.heap.new_dict(items.to_vec()));
                self.found.heap.objects[object as usize] = new;
            }
            Object::Dict(dict) => self.found.heap.dicts[dict as usize].extend_from_slice(items),
            _ => return Err(self.malformed("a dictionary that is not complete")),
        }
        Ok(())
    }

    /// Sets one entry. What a dictionary is that is filled so is only known when it is listed.
    fn set_item(&mut self, dict: Value, key: Value, value: Value) -> Read<()> {
        if self.found.heap.object(dict) == Some(Object::EmptyDict)
            && let Value::Object(object) = dict
        {
            self.found.heap.objects[object as usize] = self.found.heap.new_dict(vec![key, value]);
            return Ok(());
        }
        self.set_items(dict, &[key, value])
    }

    fn append_items(&mut self, list: Value, items: &[Value]) -> Read<()> {
        match list {
            Value::Object(list) => self.found.extend(list, items, self.at),
            _ => Err(self.malformed("a list to add to")),
        }
    }

    fn tuple(&mut self, count: usize) -> Read<()> {
        self.below_top(count - 1)?;
        let start = self.stack.len() - count;
        let small = |value| match value {
            Value::Int(value) => u32::try_from(value).ok(),
            _ => None,
        };
        let pair = match self.stack[start..] {
            [first, second] => small(first).zip(small(second)),
            _ => None,
        };
        let tuple = match pair {
            Some((first, second)) => Value::Pair(first, second),
            None => {
                let list = self.found.heap.new_list(self.stack[start..].to_vec());
                self.found.heap.add(list)
            }
        };
        self.stack.truncate(start);
        self.stack.push(tuple);
        Ok(())
    }

    #[cold]
    fn malformed(&self, expected: &'static str) -> ReadError {
        ReadError::Malformed { offset: self.at, expected }
    }

    #[cold]
    fn too_many(&self) -> ReadError {
        ReadError::TooMany { offset: self.at, what: "values", limit: u32::MAX as usize }
    }

    /// The height of the stack at the last mark.
    fn last_mark(&self) -> Read<usize> {
        self.marks.last().copied().ok_or_else(|| self.malformed("a mark"))
    }

    fn top(&self) -> Read<&Value> {
        let floor = self.marks.last().copied().unwrap_or(0);
        self.stack[floor..].last().ok_or_else(|| self.malformed("a value above the last mark"))
    }

    /// The value so far below the top, but above the last mark.
    fn below_top(&self, depth: usize) -> Read<Value> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let index = self.stack.len().checked_sub(depth + 1).filter(|&index| index >= floor);
        index.map(|index| self.stack[index]).ok_or_else(|| self.malformed("more values above the last mark"))
    }

    /// The value below the last mark, but above the one before.
    fn below_mark(&self) -> Read<Value> {
        let floor = self.marks.iter().rev().nth(1).copied().unwrap_or(0);
        let mark = self.last_mark()?;
        self.stack[floor..mark].last().copied().ok_or_else(|| self.malformed("a value below the mark"))
    }
}

/// Whether it is a list that more lists or events may be appended to.
fn is_list(object: Object) -> bool {
    matches!(object, Object::EmptyList | Object::List(_) | Object::Trace(_))
}

/// An integer of more than eight bytes.
fn large(bytes: &[u8]) -> Value {
    match bytes.split_first_chunk() {
        Some((&low, rest)) if rest.iter().all(|&byte| byte == 0) => Value::Large(u64::from_le_bytes(low)),
        _ => Value::Other,
    }
}
