//! The viewer's pickle machine.
//!
//! It knows just some of the opcodes that the scanner knows. None of them can name a class or call a function, so no
//! file can make it run code.

use std::collections::BTreeMap;

use super::{
    ViewerError, Violations,
    value::{DictId, Heap, ListId, Value},
};
use crate::scan::{Op, Scanner};

/// Most items that can be the arguments of one call in the browsers of today; 122,000 were seen to work and 124,000
/// not to.
const MAX_ARGUMENTS: usize = 120_000;
/// Largest file. Each object takes a byte at least, so this bounds the number of objects too.
const MAX_FILE_BYTES: usize = u32::MAX as usize;
/// Integers from here on are not exact.
const EXACT_LIMIT: u64 = 1 << 53;

type Unpickled<T> = Result<T, ViewerError>;

/// The value of a pickle, and the heap that it refers to. What can be gone on after is told in `violations`.
pub(super) fn unpickle(bytes: &[u8], violations: &mut Violations) -> Unpickled<(Heap, Value)> {
    if bytes.len() > MAX_FILE_BYTES {
        return Err(ViewerError::Malformed { offset: 0, needs: "a file below 4 GiB" });
    }
    let mut machine = Machine {
        scan: Scanner::new(bytes),
        opcode_at: 0,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: BTreeMap::new(),
        next_memo: 0,
        heap: Heap::default(),
        violations,
    };
    loop {
        match machine.next()? {
            Op::Stop => {
                let top = machine.pop()?;
                return Ok((machine.heap, top));
            }
            op => machine.step(op)?,
        }
    }
}

/// The opcodes that the viewer knows.
const KNOWN: &[u8] = b"\x80\x95.(N\x88\x89KMJ\x8aG\x8cX])lt\x85\x86\x87ae}dsu\x94qrhj";

struct Machine<'a> {
    scan: Scanner<'a>,
    /// Where the current opcode stands, for errors.
    opcode_at: usize,
    stack: Vec<Value>,
    /// Heights of the stack, never above the current one.
    marks: Vec<usize>,
    memo: BTreeMap<u32, Value>,
    next_memo: u32,
    heap: Heap,
    violations: &'a mut Violations,
}

impl<'a> Machine<'a> {
    fn next(&mut self) -> Unpickled<Op<'a>> {
        self.opcode_at = self.scan.offset();
        let offset = self.opcode_at;
        match self.scan.opcode() {
            Some(opcode) if !KNOWN.contains(&opcode) => Err(ViewerError::UnknownOpcode { opcode, offset }),
            _ => self.scan.next().map_err(|_| ViewerError::Truncated { offset }),
        }
    }

    fn step(&mut self, op: Op<'_>) -> Unpickled<()> {
        match op {
            Op::Protocol(version) if !(2..=4).contains(&version) => {
                self.violations.add(ViewerError::Protocol { version, offset: self.opcode_at });
            }
            Op::Mark => self.marks.push(self.stack.len()),
            Op::None => self.stack.push(Value::None),
            Op::Bool(value) => self.stack.push(Value::Bool(value)),
            Op::Int(value) => {
                if value.unsigned_abs() >= EXACT_LIMIT {
                    self.violations.add(ViewerError::Inexact { offset: self.opcode_at });
                }
                self.stack.push(Value::Int(value));
            }
            Op::Long(_) => self.stack.push(Value::BigInt),
            Op::Float(value) => self.stack.push(Value::Float(value)),
            Op::Text(bytes) => {
                let text = self.heap.text_id(&String::from_utf8_lossy(bytes));
                self.stack.push(Value::Text(text));
            }
            Op::EmptyList | Op::EmptyTuple => self.new_list(self.stack.len())?,
            Op::List | Op::Tuple => {
                let mark = self.mark()?;
                self.new_list(mark)?;
            }
            Op::TupleOf(count) => {
                let start = self.stack.len().checked_sub(count);
                self.new_list(start.ok_or_else(|| self.malformed("items for a tuple"))?)?;
            }
            Op::Append => {
                let item = self.pop()?;
                let list = self.list_at_top()?;
                self.heap.push(list, [item]);
            }
            Op::Appends => self.append_items()?,
            Op::EmptyDict => {
                let dict = self.heap.new_dict();
                self.stack.push(Value::Dict(dict));
            }
            Op::SetItem => {
                let value = self.pop()?;
                let key = self.pop()?;
                let dict = self.dict_at_top()?;
                self.set(dict, key, value)?;
            }
            Op::Dict | Op::SetItems => self.set_items(op == Op::Dict)?,
            Op::Memoize => {
                let id = self.next_memo;
                self.next_memo += 1;
                self.remember(id)?;
            }
            Op::Put(id) => self.remember(id)?,
            Op::Get(id) => {
                let value = *self.memo.get(&id).ok_or(self.malformed("a memo entry that was made before"))?;
                self.stack.push(value);
            }
            _ => {}
        }
        Ok(())
    }

    /// A list of what lies from `start` on.
    fn new_list(&mut self, start: usize) -> Unpickled<()> {
        // A mark above the new height would let a later opcode reach past the top.
        if self.marks.last().is_some_and(|&mark| mark > start) {
            return Err(self.malformed("items above the last mark"));
        }
        let items = self.stack.split_off(start);
        let list = self.heap.new_list(items);
        self.stack.push(list);
        Ok(())
    }

    fn append_items(&mut self) -> Unpickled<()> {
        let mark = self.mark()?;
        let items = self.stack.split_off(mark);
        if items.len() > MAX_ARGUMENTS {
            self.violations.add(ViewerError::TooManyAtOnce { offset: self.opcode_at, items: items.len() });
        }
        let list = self.list_at_top()?;
        self.heap.push(list, items);
        Ok(())
    }

    fn set_items(&mut self, into_new: bool) -> Unpickled<()> {
        let mark = self.mark()?;
        let entries = self.stack.split_off(mark);
        let dict = if into_new {
            let dict = self.heap.new_dict();
            self.stack.push(Value::Dict(dict));
            dict
        } else {
            self.dict_at_top()?
        };
        let (pairs, rest) = entries.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(self.malformed("a value for every key"));
        }
        pairs.iter().try_for_each(|&[key, value]| self.set(dict, key, value))
    }

    fn set(&mut self, dict: DictId, key: Value, value: Value) -> Unpickled<()> {
        if self.heap.set(dict, key, value) { Ok(()) } else { Err(self.malformed("a text or a number as a key")) }
    }

    fn remember(&mut self, id: u32) -> Unpickled<()> {
        let top = *self.stack.last().ok_or(self.malformed("a value to remember"))?;
        self.memo.insert(id, top);
        Ok(())
    }

    fn malformed(&self, needs: &'static str) -> ViewerError {
        ViewerError::Malformed { offset: self.opcode_at, needs }
    }

    /// Takes a value from the stack, but none from below the last mark.
    fn pop(&mut self) -> Unpickled<Value> {
        if self.marks.last() == Some(&self.stack.len()) {
            return Err(self.malformed("a value above the last mark"));
        }
        self.stack.pop().ok_or(self.malformed("a value on the stack"))
    }

    /// Takes the last mark: the height of the stack when it was set.
    fn mark(&mut self) -> Unpickled<usize> {
        self.marks.pop().ok_or(self.malformed("a mark"))
    }

    fn list_at_top(&self) -> Unpickled<ListId> {
        match self.stack.last() {
            Some(&Value::List(list)) => Ok(list),
            _ => Err(self.malformed("a list to add to")),
        }
    }

    fn dict_at_top(&self) -> Unpickled<DictId> {
        match self.stack.last() {
            Some(&Value::Dict(dict)) => Ok(dict),
            _ => Err(self.malformed("a dictionary to add to")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value, or the first thing that is wrong.
    fn value(bytes: &[u8]) -> Unpickled<Value> {
        whole(bytes).map(|(_, value)| value)
    }

    fn whole(bytes: &[u8]) -> Unpickled<(Heap, Value)> {
        let mut violations = Violations::default();
        let result = unpickle(bytes, &mut violations);
        violations.list.into_iter().next().map_or(result, Err)
    }

    #[test]
    fn numbers_of_every_form() {
        assert_eq!(value(b"K\xff."), Ok(Value::Int(255)));
        assert_eq!(value(b"M\x00\x01."), Ok(Value::Int(256)));
        assert_eq!(value(b"J\xff\xff\xff\xff."), Ok(Value::Int(-1)));
        assert_eq!(value(b"\x8a\x00."), Ok(Value::Int(0)));
        assert_eq!(value(b"\x8a\x01\xff."), Ok(Value::Int(-1)));
        assert_eq!(value(b"\x8a\x06\x01\x00\x00\x00\x00\x7f."), Ok(Value::Int(0x7f00_0000_0001)));
        assert_eq!(value(b"\x8a\x09123456789."), Ok(Value::BigInt));
        assert_eq!(value(b"G\x3f\xf0\x00\x00\x00\x00\x00\x00."), Ok(Value::Float(1.0)));
        assert_eq!(value(b"\x8a\x07\xff\xff\xff\xff\xff\xff\x1f."), Ok(Value::Int((1 << 53) - 1)));
        assert_eq!(value(b"\x8a\x07\x00\x00\x00\x00\x00\x00\x20."), Err(ViewerError::Inexact { offset: 0 }));
    }

    #[test]
    fn a_list_used_twice_is_one_list() {
        let (heap, top) = whole(b"](]\x94h\x00e.").expect("well formed");
        let Value::List(top) = top else { panic!("a list") };
        let &[first, second] = heap.list(top) else { panic!("two items") };
        assert_eq!(first, second);
    }

    #[test]
    fn a_list_may_hold_itself() {
        let (heap, top) = whole(b"]\x94h\x00a.").expect("well formed");
        let Value::List(list) = top else { panic!("a list") };
        assert_eq!(heap.list(list), [top]);
    }

    #[test]
    fn what_the_viewer_does_not_know_is_named_with_its_place() {
        assert_eq!(value(b"\x80\x04c"), Err(ViewerError::UnknownOpcode { opcode: b'c', offset: 2 }));
        assert_eq!(value(b"\x80\x05."), Err(ViewerError::Protocol { version: 5, offset: 0 }));
        assert_eq!(value(b"\x80\x04K"), Err(ViewerError::Truncated { offset: 2 }));
        assert_eq!(value(b"]X\xff\xff\xff\xffabc."), Err(ViewerError::Truncated { offset: 1 }));
        assert_eq!(value(b""), Err(ViewerError::Truncated { offset: 0 }));
        for bad in [
            &b"."[..],
            b"e.",
            b"(e.",
            b"}(NNNu.",
            b"h\x00.",
            b"\x94.",
            b"]a.",
            b"NNa.",
            b"}NNNs.",
            b"]NNs.",
            b"(.",
            b"](.",
            b"]N(a.",
            b"K\x01(a.",
            b"(K\x01(\x85\x86.",
        ] {
            assert!(value(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_batch_beyond_what_one_call_takes_is_refused() {
        let pickle = |items: usize| [&b"]("[..], &vec![b'N'; items], b"e."].concat();
        assert!(value(&pickle(MAX_ARGUMENTS)).is_ok());
        assert!(matches!(value(&pickle(MAX_ARGUMENTS + 1)), Err(ViewerError::TooManyAtOnce { .. })));
    }
}
