//! The viewer's pickle machine.
//!
//! It knows just the opcodes that snapshots need. None of them can name a class or call a function, so no file can make
//! it run code.

use std::collections::BTreeMap;

use super::{
    ViewerError,
    value::{DictId, Heap, ListId, Value},
};

/// Most items that can be the arguments of one call in the browsers of today; 122,000 were seen to work and 124,000
/// not to.
const MAX_ARGUMENTS: usize = 120_000;
/// Largest file. Each object takes a byte at least, so this bounds the number of objects too.
const MAX_FILE_BYTES: usize = u32::MAX as usize;
/// Integers from here on are not exact.
const EXACT_LIMIT: u64 = 1 << 53;

type Unpickled<T> = Result<T, ViewerError>;

/// The value of a pickle, and the heap that it refers to.
pub(super) fn unpickle(bytes: &[u8]) -> Unpickled<(Heap, Value)> {
    if bytes.len() > MAX_FILE_BYTES {
        return Err(ViewerError::Malformed { offset: 0, needs: "a file below 4 GiB" });
    }
    let mut machine = Machine {
        bytes,
        at: 0,
        opcode_at: 0,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: BTreeMap::new(),
        next_memo: 0,
        heap: Heap::default(),
    };
    loop {
        machine.opcode_at = machine.at;
        let opcode = machine.byte()?;
        if opcode == b'.' {
            let top = machine.pop()?;
            return Ok((machine.heap, top));
        }
        machine.step(opcode)?;
    }
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Where the current opcode stands, for errors.
    opcode_at: usize,
    stack: Vec<Value>,
    /// Heights of the stack, never above the current one.
    marks: Vec<usize>,
    memo: BTreeMap<u32, Value>,
    next_memo: u32,
    heap: Heap,
}

impl<'a> Machine<'a> {
    fn step(&mut self, opcode: u8) -> Unpickled<()> {
        match opcode {
            0x80 => {
                let version = self.byte()?;
                if !(2..=4).contains(&version) {
                    return Err(ViewerError::Protocol { version, offset: self.opcode_at });
                }
            }
            0x95 => {
                self.take(8)?;
            }
            b'(' => self.marks.push(self.stack.len()),
            b'N' => self.stack.push(Value::None),
            0x88 => self.stack.push(Value::Bool(true)),
            0x89 => self.stack.push(Value::Bool(false)),
            b'K' | b'M' | b'J' | 0x8a | b'G' => self.number(opcode)?,
            0x8c | b'X' => self.text(opcode)?,
            b']' | b')' | b'l' | b't' | 0x85..=0x87 => self.new_list(opcode)?,
            b'a' | b'e' => self.append(opcode)?,
            b'}' => {
                let dict = self.heap.new_dict();
                self.stack.push(Value::Dict(dict));
            }
            b'd' | b's' | b'u' => self.set_items(opcode)?,
            0x94 | b'q' | b'r' | b'h' | b'j' => self.memo(opcode)?,
            _ => return Err(ViewerError::UnknownOpcode { opcode, offset: self.opcode_at }),
        }
        Ok(())
    }

    fn number(&mut self, opcode: u8) -> Unpickled<()> {
        let value = match opcode {
            b'K' => Value::Int(self.byte()?.into()),
            b'M' => Value::Int(u16::from_le_bytes(self.array()?).into()),
            b'J' => Value::Int(i32::from_le_bytes(self.array()?).into()),
            b'G' => Value::Float(f64::from_be_bytes(self.array()?)),
            _ => self.long()?,
        };
        self.stack.push(value);
        Ok(())
    }

    fn long(&mut self) -> Unpickled<Value> {
        let length = usize::from(self.byte()?);
        let bytes = self.take(length)?;
        if length > 8 {
            return Ok(Value::BigInt);
        }
        let negative = bytes.last().is_some_and(|&byte| byte >= 0x80);
        let mut wide = [if negative { 0xff } else { 0 }; 8];
        wide[..length].copy_from_slice(bytes);
        let value = i64::from_le_bytes(wide);
        if value.unsigned_abs() >= EXACT_LIMIT {
            return Err(ViewerError::Inexact { offset: self.opcode_at });
        }
        Ok(Value::Int(value))
    }

    fn text(&mut self, opcode: u8) -> Unpickled<()> {
        let length = if opcode == 0x8c { self.byte()?.into() } else { self.length()? };
        let bytes = self.take(length)?;
        let text = self.heap.text_id(&String::from_utf8_lossy(bytes));
        self.stack.push(Value::Text(text));
        Ok(())
    }

    fn new_list(&mut self, opcode: u8) -> Unpickled<()> {
        let start = match opcode {
            b']' | b')' => self.stack.len(),
            b'l' | b't' => self.mark()?,
            _ => self.stack.len().checked_sub(usize::from(opcode - 0x84)).ok_or(self.malformed("items for a tuple"))?,
        };
        // A mark above the new height would let a later opcode reach past the top.
        if self.marks.last().is_some_and(|&mark| mark > start) {
            return Err(self.malformed("items above the last mark"));
        }
        let items = self.stack.split_off(start);
        let list = self.heap.new_list(items);
        self.stack.push(list);
        Ok(())
    }

    fn append(&mut self, opcode: u8) -> Unpickled<()> {
        if opcode == b'a' {
            let item = self.pop()?;
            let list = self.list_at_top()?;
            self.heap.push(list, [item]);
            return Ok(());
        }
        let mark = self.mark()?;
        let items = self.stack.split_off(mark);
        if items.len() > MAX_ARGUMENTS {
            return Err(ViewerError::TooManyAtOnce { offset: self.opcode_at, items: items.len() });
        }
        let list = self.list_at_top()?;
        self.heap.push(list, items);
        Ok(())
    }

    fn set_items(&mut self, opcode: u8) -> Unpickled<()> {
        if opcode == b's' {
            let value = self.pop()?;
            let key = self.pop()?;
            let dict = self.dict_at_top()?;
            return self.set(dict, key, value);
        }
        let mark = self.mark()?;
        let entries = self.stack.split_off(mark);
        let dict = if opcode == b'd' {
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

    fn memo(&mut self, opcode: u8) -> Unpickled<()> {
        let id = match opcode {
            0x94 => {
                self.next_memo += 1;
                self.next_memo - 1
            }
            b'q' | b'h' => self.byte()?.into(),
            _ => u32::from_le_bytes(self.array()?),
        };
        if matches!(opcode, b'h' | b'j') {
            let value = *self.memo.get(&id).ok_or(self.malformed("a memo entry that was made before"))?;
            self.stack.push(value);
        } else {
            let top = *self.stack.last().ok_or(self.malformed("a value to remember"))?;
            self.memo.insert(id, top);
        }
        Ok(())
    }

    fn malformed(&self, needs: &'static str) -> ViewerError {
        ViewerError::Malformed { offset: self.opcode_at, needs }
    }

    fn take(&mut self, length: usize) -> Unpickled<&'a [u8]> {
        let truncated = ViewerError::Truncated { offset: self.opcode_at };
        let end = self.at.checked_add(length).ok_or(truncated.clone())?;
        let bytes = self.bytes.get(self.at..end).ok_or(truncated)?;
        self.at = end;
        Ok(bytes)
    }

    fn byte(&mut self) -> Unpickled<u8> {
        Ok(self.take(1)?[0])
    }

    fn array<const N: usize>(&mut self) -> Unpickled<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("the slice has this length"))
    }

    fn length(&mut self) -> Unpickled<usize> {
        Ok(u32::from_le_bytes(self.array()?) as usize)
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

    fn value(bytes: &[u8]) -> Unpickled<Value> {
        unpickle(bytes).map(|(_, value)| value)
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
        let (heap, top) = unpickle(b"](]\x94h\x00e.").expect("well formed");
        let Value::List(top) = top else { panic!("a list") };
        let &[first, second] = heap.list(top) else { panic!("two items") };
        assert_eq!(first, second);
    }

    #[test]
    fn a_list_may_hold_itself() {
        let (heap, top) = unpickle(b"]\x94h\x00a.").expect("well formed");
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
