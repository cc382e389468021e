//! What a pickle remembers, by number.
//!
//! Python's pickler remembers some five values for each event, so an entry takes four bytes: a kind and an index.
//!
//! Memory follows from the entries, not from their numbers: those that are far ahead are in a tree.

use std::collections::BTreeMap;

use super::heap::Value;

/// A value in four bytes: its kind in the top bits, an index in the others.
#[derive(Clone, Copy, Debug)]
struct Kept(u32);

const INDEX_BITS: u32 = 29;
/// Least index that is too large.
const INDICES: u32 = 1 << INDEX_BITS;
/// Bits of each half of a pair.
const HALF_BITS: u32 = 14;

const TEXT: u32 = 0;
const OBJECT: u32 = 1;
const EVENT: u32 = 2;
const FRAME: u32 = 3;
const STACK: u32 = 4;
const PAIR: u32 = 5;
const OTHER: u32 = 6;

impl Kept {
    /// The short form of a value, if it has one.
    #[inline(always)]
    fn of(value: Value) -> Option<Self> {
        let (kind, index) = match value {
            Value::Text(text) => (TEXT, text),
            Value::Object(object) => (OBJECT, object),
            Value::Event(row) => (EVENT, row),
            Value::Frame(frame) => (FRAME, frame),
            Value::Stack(stack) => (STACK, stack),
            Value::Pair(a, b) if (a | b) >> HALF_BITS == 0 => (PAIR, a << HALF_BITS | b),
            _ => return None,
        };
        (index < INDICES).then_some(Self(kind << INDEX_BITS | index))
    }

    #[inline]
    fn kind(self) -> u32 {
        self.0 >> INDEX_BITS
    }

    #[inline]
    fn index(self) -> u32 {
        self.0 & (INDICES - 1)
    }
}

/// How far a memo was filled.
#[derive(Clone, Copy)]
pub(super) struct Filled {
    dense: usize,
    others: usize,
}

/// The memo of a pickle.
#[derive(Default)]
pub(super) struct Memo {
    /// Writers count from 0.
    dense: Vec<Kept>,
    /// Numbers that were ahead when they were given.
    ahead: BTreeMap<u32, Kept>,
    /// What has no short form.
    others: Vec<Value>,
}

impl Memo {
    /// The number that the next value gets if the pickle names none. `None` if there is no such number.
    #[inline]
    pub(super) fn next(&self) -> Option<u32> {
        u32::try_from(self.dense.len() + self.ahead.len()).ok()
    }

    /// Remembers a value. `None` if there are too many.
    #[inline]
    pub(super) fn put(&mut self, id: u32, value: Value) -> Option<()> {
        let kept = match Kept::of(value) {
            Some(kept) => kept,
            None => self.keep_other(value)?,
        };
        let index = id as usize;
        if index == self.dense.len() {
            if !self.ahead.is_empty() {
                self.ahead.remove(&id);
            }
            self.dense.push(kept);
        } else if let Some(entry) = self.dense.get_mut(index) {
            *entry = kept;
        } else {
            self.ahead.insert(id, kept);
        }
        Some(())
    }

    /// Remembers a value under the next number, if nothing is ahead.
    #[inline(always)]
    pub(super) fn push(&mut self, value: Value) -> Option<()> {
        let kept = match Kept::of(value) {
            Some(kept) => kept,
            None => self.keep_other(value)?,
        };
        self.dense.push(kept);
        Some(())
    }

    #[cold]
    fn keep_other(&mut self, value: Value) -> Option<Kept> {
        let index = u32::try_from(self.others.len()).ok().filter(|&index| index < INDICES)?;
        self.others.push(value);
        Some(Kept(OTHER << INDEX_BITS | index))
    }

    fn value(&self, kept: Kept) -> Value {
        let index = kept.index();
        match kept.kind() {
            TEXT => Value::Text(index),
            OBJECT => Value::Object(index),
            EVENT => Value::Event(index),
            FRAME => Value::Frame(index),
            STACK => Value::Stack(index),
            PAIR => Value::Pair(index >> HALF_BITS, index & ((1 << HALF_BITS) - 1)),
            _ => self.others[index as usize],
        }
    }

    #[inline]
    pub(super) fn get(&self, id: u32) -> Option<Value> {
        self.dense.get(id as usize).or_else(|| self.ahead.get(&id)).map(|&kept| self.value(kept))
    }

    /// The frame of an entry that says in its short form that it is one.
    #[inline(always)]
    pub(super) fn frame(&self, id: u32) -> Option<u32> {
        let kept = *self.dense.get(id as usize)?;
        (kept.kind() == FRAME).then(|| kept.index())
    }

    /// How far it is filled, if nothing is ahead: then what is put under the next number can be taken back.
    #[inline]
    pub(super) fn filled(&self) -> Option<Filled> {
        self.ahead.is_empty().then_some(Filled { dense: self.dense.len(), others: self.others.len() })
    }

    /// Forgets what was put under the next number, each time, since it was so far filled.
    pub(super) fn back_to(&mut self, filled: Filled) {
        self.dense.truncate(filled.dense);
        self.others.truncate(filled.others);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_in_any_order() {
        let mut memo = Memo::default();
        memo.put(3, Value::Text(3)).expect("few");
        memo.put(u32::MAX, Value::Bool(true)).expect("few");
        assert!(memo.filled().is_none());
        for id in 0..3 {
            memo.put(id, Value::Object(id)).expect("few");
        }
        assert_eq!(memo.get(3), Some(Value::Text(3)));
        memo.put(3, Value::Text(33)).expect("few");
        memo.put(0, Value::Text(0)).expect("few");
        let seen = [0, 1, 2, 3, 4, u32::MAX].map(|id| memo.get(id));
        let expected = [Value::Text(0), Value::Object(1), Value::Object(2), Value::Text(33)];
        assert_eq!(seen[..4], expected.map(Some));
        assert_eq!(seen[4..], [None, Some(Value::Bool(true))]);
        assert_eq!(memo.dense.len(), 4, "a large number takes no memory");
        assert_eq!(memo.next(), Some(5));
    }

    #[test]
    fn values_of_any_kind_and_size_come_back() {
        let large = [0, INDICES - 1, INDICES, u32::MAX];
        let kinds = [Value::Text, Value::Object, Value::Event, Value::Frame, Value::Stack];
        let mut values: Vec<_> = kinds.iter().flat_map(|kind| large.map(kind)).collect();
        let halves = [0, 1, (1 << HALF_BITS) - 1, 1 << HALF_BITS, u32::MAX];
        values.extend(halves.iter().flat_map(|&a| halves.map(|b| Value::Pair(a, b))));
        values.extend([Value::None, Value::Int(i64::MIN), Value::Large(u64::MAX), Value::Float(0.5), Value::Other]);
        let mut memo = Memo::default();
        for (id, &value) in (0..).zip(&values) {
            assert_eq!(memo.next(), Some(id));
            memo.put(id, value).expect("few");
        }
        assert!((0..).zip(&values).all(|(id, &value)| memo.get(id) == Some(value)));
        assert_eq!((0..).zip(&values).filter_map(|(id, _)| memo.frame(id)).collect::<Vec<_>>(), [0, INDICES - 1]);
    }

    #[test]
    fn what_was_put_can_be_taken_back() {
        let mut memo = Memo::default();
        memo.put(0, Value::Int(1)).expect("few");
        let filled = memo.filled().expect("nothing is ahead");
        memo.put(1, Value::Int(2)).expect("few");
        memo.put(2, Value::Text(2)).expect("few");
        memo.back_to(filled);
        assert_eq!((memo.get(0), memo.get(1), memo.next()), (Some(Value::Int(1)), None, Some(1)));
        assert_eq!(memo.others.len(), 1);
    }
}
