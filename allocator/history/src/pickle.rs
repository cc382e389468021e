//! Writing pickles, protocol 4.
//!
//! Only what the viewer of PyTorch reads is written: no frames, lists and dictionaries in batches (it passes a batch as
//! arguments of one call, and too many overflow its stack), integers that a double holds exactly, and a memo entry only
//! for what is written more than once.
//!
//! Values are written one after another, inside out: a list is its opcode, then its items, each a whole value.

use std::io::{self, Write};

use crate::check::NUMBER_LIMIT;

/// Most items of a list or a dictionary that one opcode adds.
pub(crate) const BATCH: usize = 1000;

/// Why a snapshot could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The output failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A number is too large for the viewer.
    #[error("{0} is not below 2^53, so the viewer would change it")]
    NumberTooLarge(u64),
    /// A text has 4 GiB or more.
    #[error("a text of {0} bytes is too long")]
    TextTooLong(usize),
    /// A stack is not in the snapshot's table.
    #[error("the stack {0} is not in the snapshot's table")]
    UnknownStack(u32),
}

/// Number of a memo entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Memo(u32);

macro_rules! words {
    ($($variant:ident => $text:literal,)*) => {
        /// The keys and values that appear again and again.
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum Word {
            $($variant,)*
        }

        impl Word {
            const COUNT: usize = [$($text,)*].len();

            fn text(self) -> &'static str {
                match self {
                    $(Word::$variant => $text,)*
                }
            }
        }
    };
}

words! {
    Action => "action",
    Addr => "addr",
    Size => "size",
    Stream => "stream",
    TimeUs => "time_us",
    Frames => "frames",
    CompileContext => "compile_context",
    NotCompiled => "N/A",
    UserMetadata => "user_metadata",
    Empty => "",
    PoolId => "pool_id",
    DeviceFree => "device_free",
    RoundedSize => "rounded_size",
    Span => "span",
    Alloc => "alloc",
    FreeRequested => "free_requested",
    FreeCompleted => "free_completed",
    SegmentAlloc => "segment_alloc",
    SegmentFree => "segment_free",
    SegmentMap => "segment_map",
    SegmentUnmap => "segment_unmap",
    OutOfMemory => "oom",
    Snapshot => "snapshot",
    Device => "device",
    Address => "address",
    TotalSize => "total_size",
    AllocatedSize => "allocated_size",
    ActiveSize => "active_size",
    RequestedSize => "requested_size",
    SegmentType => "segment_type",
    Large => "large",
    Small => "small",
    SegmentPoolId => "segment_pool_id",
    IsExpandable => "is_expandable",
    Blocks => "blocks",
    State => "state",
    ActiveAllocated => "active_allocated",
    ActivePendingFree => "active_pending_free",
    Inactive => "inactive",
    Name => "name",
    Filename => "filename",
    Line => "line",
    Stage => "stage",
    Start => "START",
    End => "END",
    Exact => "exact",
    Waits => "waits",
    Rung => "rung",
    StallNs => "stall_ns",
    ForStream => "for_stream",
    Position => "position",
    Fence => "fence",
    HeldBy => "held_by",
    TotalBytes => "total_bytes",
    FreeBytes => "free_bytes",
    HeldBytes => "held_bytes",
    Pid => "pid",
}

pub(crate) struct Pickle<W> {
    out: W,
    /// Largest number that may be written.
    most: u64,
    memos: u32,
    words: [Option<Memo>; Word::COUNT],
}

type Written = Result<(), WriteError>;

impl<W: Write> Pickle<W> {
    /// Begins a pickle.
    pub(crate) fn begin(mut out: W) -> Result<Self, WriteError> {
        out.write_all(&[0x80, 4])?;
        Ok(Self { out, most: NUMBER_LIMIT - 1, memos: 0, words: [None; Word::COUNT] })
    }

    /// Begins a pickle with numbers that others have chosen: also those that a double does not hold.
    #[cfg(feature = "inspect")]
    pub(crate) fn begin_with_any_number(out: W) -> Result<Self, WriteError> {
        Ok(Self { most: u64::MAX, ..Self::begin(out)? })
    }

    /// Ends it. The one value must have been written.
    pub(crate) fn end(mut self) -> Result<W, WriteError> {
        self.out.write_all(b".")?;
        Ok(self.out)
    }

    pub(crate) fn bool(&mut self, value: bool) -> Written {
        Ok(self.out.write_all(&[if value { 0x88 } else { 0x89 }])?)
    }

    pub(crate) fn float(&mut self, value: f64) -> Written {
        self.out.write_all(b"G")?;
        Ok(self.out.write_all(&value.to_be_bytes())?)
    }

    pub(crate) fn unsigned(&mut self, value: u64) -> Written {
        if value > self.most {
            return Err(WriteError::NumberTooLarge(value));
        }
        let bytes = u128::from(value).to_le_bytes();
        match value {
            0..=0xff => self.out.write_all(&[b'K', bytes[0]])?,
            0x100..=0xffff => self.out.write_all(&[b'M', bytes[0], bytes[1]])?,
            0x1_0000..=0x7fff_ffff => {
                self.out.write_all(b"J")?;
                self.out.write_all(&bytes[..4])?;
            }
            _ => {
                // One bit more than the number has, for the sign.
                let length = (64 - value.leading_zeros()) as usize / 8 + 1;
                self.out.write_all(&[0x8a, u8::try_from(length).expect("at most 9")])?;
                self.out.write_all(&bytes[..length])?;
            }
        }
        Ok(())
    }

    pub(crate) fn signed(&mut self, value: i64) -> Written {
        match (u64::try_from(value), i32::try_from(value)) {
            (Ok(value), _) => self.unsigned(value),
            (_, Ok(value)) => {
                self.out.write_all(b"J")?;
                Ok(self.out.write_all(&value.to_le_bytes())?)
            }
            _ if value.unsigned_abs() <= self.most => {
                self.out.write_all(&[0x8a, 8])?;
                Ok(self.out.write_all(&value.to_le_bytes())?)
            }
            _ => Err(WriteError::NumberTooLarge(value.unsigned_abs())),
        }
    }

    /// A text that is written once.
    pub(crate) fn text(&mut self, text: &str) -> Written {
        match (u8::try_from(text.len()), u32::try_from(text.len())) {
            (Ok(length), _) => self.out.write_all(&[0x8c, length])?,
            (_, Ok(length)) => {
                self.out.write_all(b"X")?;
                self.out.write_all(&length.to_le_bytes())?;
            }
            _ => return Err(WriteError::TextTooLong(text.len())),
        }
        Ok(self.out.write_all(text.as_bytes())?)
    }

    /// A text that is written often.
    pub(crate) fn word(&mut self, word: Word) -> Written {
        if let Some(memo) = self.words[word as usize] {
            return self.again(memo);
        }
        self.text(word.text())?;
        self.words[word as usize] = Some(self.memoize()?);
        Ok(())
    }

    /// Keeps the value written last, for [`again`](Self::again).
    pub(crate) fn memoize(&mut self) -> Result<Memo, WriteError> {
        self.out.write_all(&[0x94])?;
        self.memos += 1;
        Ok(Memo(self.memos - 1))
    }

    /// A value written before: the same object, not a copy.
    pub(crate) fn again(&mut self, memo: Memo) -> Written {
        match u8::try_from(memo.0) {
            Ok(id) => self.out.write_all(&[b'h', id])?,
            Err(_) => {
                self.out.write_all(b"j")?;
                self.out.write_all(&memo.0.to_le_bytes())?;
            }
        }
        Ok(())
    }

    /// Turns the two values written last into a tuple.
    pub(crate) fn tuple_of_two(&mut self) -> Written {
        Ok(self.out.write_all(&[0x86])?)
    }

    /// Begins a dictionary of few entries; [`end_dict`](Self::end_dict) must follow after at least one.
    pub(crate) fn begin_dict(&mut self) -> Written {
        Ok(self.out.write_all(b"}(")?)
    }

    pub(crate) fn end_dict(&mut self) -> Written {
        Ok(self.out.write_all(b"u")?)
    }

    /// A dictionary without entries, for [`set_item`](Self::set_item) to add to.
    #[cfg(feature = "inspect")]
    pub(crate) fn empty_dict(&mut self) -> Written {
        Ok(self.out.write_all(b"}")?)
    }

    /// Adds the key and the value written last to the dictionary below them.
    #[cfg(feature = "inspect")]
    pub(crate) fn set_item(&mut self) -> Written {
        Ok(self.out.write_all(b"s")?)
    }
}

/// A list of any length, written by `item`, which gets the pickle out of `sink`.
pub(crate) fn list<S, W, T>(
    sink: &mut S,
    pickle: fn(&mut S) -> &mut Pickle<W>,
    items: impl IntoIterator<Item = T>,
    mut item: impl FnMut(&mut S, T) -> Written,
) -> Written
where
    W: Write,
{
    pickle(sink).out.write_all(b"]")?;
    let mut items = items.into_iter().peekable();
    while let Some(first) = items.next() {
        if items.peek().is_none() {
            item(sink, first)?;
            pickle(sink).out.write_all(b"a")?;
            break;
        }
        pickle(sink).out.write_all(b"(")?;
        item(sink, first)?;
        for next in items.by_ref().take(BATCH - 1) {
            item(sink, next)?;
        }
        pickle(sink).out.write_all(b"e")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(body: impl FnOnce(&mut Pickle<Vec<u8>>) -> Written) -> Vec<u8> {
        let mut pickle = Pickle::begin(Vec::new()).expect("memory does not fail");
        body(&mut pickle).expect("within limits");
        let bytes = pickle.end().expect("memory does not fail");
        bytes[2..bytes.len() - 1].to_vec()
    }

    #[test]
    fn integers_take_the_shortest_form() {
        let unsigned = |value| written(|pickle| pickle.unsigned(value));
        assert_eq!(unsigned(255), [b'K', 255]);
        assert_eq!(unsigned(256), [b'M', 0, 1]);
        assert_eq!(unsigned(65_536), [b'J', 0, 0, 1, 0]);
        assert_eq!(unsigned(1 << 31), [0x8a, 5, 0, 0, 0, 0x80, 0]);
        assert_eq!(unsigned(0x7f00_0000_0001), [0x8a, 6, 1, 0, 0, 0, 0, 0x7f]);
        assert_eq!(unsigned((1 << 53) - 1), [0x8a, 7, 255, 255, 255, 255, 255, 255, 0x1f]);
        assert_eq!(written(|pickle| pickle.signed(-1)), [b'J', 255, 255, 255, 255]);
        assert_eq!(written(|pickle| pickle.signed(-(1 << 40)))[..2], [0x8a, 8]);
    }

    #[test]
    fn numbers_that_a_double_does_not_hold_are_refused() {
        let mut pickle = Pickle::begin(Vec::new()).expect("memory does not fail");
        assert!(matches!(pickle.unsigned(1 << 53), Err(WriteError::NumberTooLarge(_))));
        assert!(matches!(pickle.signed(i64::MIN), Err(WriteError::NumberTooLarge(_))));
    }

    #[cfg(feature = "inspect")]
    #[test]
    fn numbers_of_others_are_written_whole() {
        let mut pickle = Pickle::begin_with_any_number(Vec::new()).expect("memory does not fail");
        pickle.unsigned(u64::MAX).expect("any number");
        pickle.signed(i64::MIN).expect("any number");
        let bytes = pickle.end().expect("memory does not fail");
        let expected = [&[0x8a, 9][..], &[0xff; 8], &[0], &[0x8a, 8], &i64::MIN.to_le_bytes(), b"."].concat();
        assert_eq!(bytes[2..], expected);
    }

    #[test]
    fn a_word_is_written_once() {
        let bytes = written(|pickle| {
            pickle.word(Word::Addr)?;
            pickle.word(Word::Addr)
        });
        assert_eq!(bytes, [&[0x8c, 4], "addr".as_bytes(), &[0x94, b'h', 0]].concat());
    }

    #[test]
    fn lists_are_written_in_batches() {
        let opcodes = |count: usize| {
            let bytes = written(|pickle| list(pickle, |pickle| pickle, 0..count, |pickle, _| pickle.bool(true)));
            let text: String = bytes.iter().map(|&byte| if byte == 0x88 { '1' } else { char::from(byte) }).collect();
            text.replace(&"1".repeat(BATCH), "*")
        };
        assert_eq!(opcodes(0), "]");
        assert_eq!(opcodes(1), "]1a");
        assert_eq!(opcodes(2), "](11e");
        assert_eq!(opcodes(BATCH), "](*e");
        assert_eq!(opcodes(BATCH + 1), "](*e1a");
        assert_eq!(opcodes(2 * BATCH + 2), "](*e(*e(11e");
    }
}
