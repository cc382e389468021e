//! The instructions of a pickle, one after another.
//!
//! A pull parser over bytes in memory: no copy, no allocation, no recursion. A length is compared with the bytes that
//! are left before anything is done with it. Instructions that name classes or call functions are recognised, and are
//! errors: nothing that reads through here can be made to run code.
//!
//! Invariant: between calls `rest` begins with the next instruction.

/// What a part of a snapshot needs, for errors: a key of a kind, or without a key to be of that kind itself.
pub(crate) fn wanted(key: &str, kind: &str) -> String {
    if key.is_empty() { format!("to be {kind}") } else { format!("{key} as {kind}") }
}

/// Why there is no next instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ScanError {
    /// The bytes end in the middle of the instruction.
    Truncated,
    /// The instruction is for objects of classes, which a snapshot has none of. With its name.
    Code(&'static str),
    /// No instruction that snapshots need.
    Unknown,
}

/// An instruction. What carries a value has it decoded.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Op<'a> {
    Protocol(u8),
    /// A hint for buffering.
    Frame,
    Stop,
    Mark,
    Pop,
    PopMark,
    Dup,
    None,
    Bool(bool),
    Int(i64),
    /// An integer of more than eight bytes, little-endian two's complement.
    Long(&'a [u8]),
    Float(f64),
    /// Almost UTF-8: Python lets halves of surrogate pairs through.
    Text(&'a [u8]),
    Bytes,
    EmptyList,
    EmptyTuple,
    EmptyDict,
    /// A list of what is above the mark.
    List,
    /// A tuple of what is above the mark.
    Tuple,
    /// A tuple of that many values.
    TupleOf(usize),
    /// A dictionary of what is above the mark.
    Dict,
    Append,
    Appends,
    SetItem,
    SetItems,
    /// Remembers the top under the next free number.
    Memoize,
    Put(u32),
    Get(u32),
}

/// Reads instructions. A copy goes on from the same place.
#[derive(Clone, Copy)]
pub(crate) struct Scanner<'a> {
    rest: &'a [u8],
    /// Of all bytes.
    length: usize,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, length: bytes.len() }
    }

    /// Where the next instruction begins.
    pub(crate) fn offset(&self) -> usize {
        self.length - self.rest.len()
    }

    /// The byte of the next instruction.
    pub(crate) fn opcode(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    /// Goes past the next instruction if it is this one, of a single byte.
    #[cfg(feature = "read")]
    #[inline(always)]
    pub(crate) fn accept(&mut self, opcode: u8) -> Option<()> {
        match self.rest {
            [first, rest @ ..] if *first == opcode => self.rest = rest,
            _ => return None,
        }
        Some(())
    }

    /// The next instruction, if it is a whole [`Op::Get`]: most are, so they have a way of their own. Through [`next`]
    /// they cost five times as much.
    ///
    /// [`next`]: Self::next
    #[cfg(feature = "read")]
    #[inline(always)]
    pub(crate) fn next_get(&mut self) -> Option<u32> {
        match *self.rest {
            [b'h', id, ref rest @ ..] => {
                self.rest = rest;
                Some(id.into())
            }
            [b'j', a, b, c, d, ref rest @ ..] => {
                self.rest = rest;
                Some(u32::from_le_bytes([a, b, c, d]))
            }
            _ => None,
        }
    }

    /// Goes past as many references with numbers of four bytes as `take` wants. In a long list of frames nearly all are
    /// of this form.
    #[cfg(feature = "read")]
    #[inline(always)]
    pub(crate) fn long_gets(&mut self, mut take: impl FnMut(u32) -> bool) {
        let mut taken = 0;
        for &[opcode, a, b, c, d] in self.rest.as_chunks().0 {
            if opcode != b'j' || !take(u32::from_le_bytes([a, b, c, d])) {
                break;
            }
            taken += 5;
        }
        self.rest = &self.rest[taken..];
    }

    /// The next instruction. After an error there is no sense in going on. Inlined, so that a caller that matches on
    /// the instruction needs not have it put together.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Result<Op<'a>, ScanError> {
        Ok(match self.byte()? {
            b'h' => Op::Get(self.byte()?.into()),
            b'j' => Op::Get(u32::from_le_bytes(self.array()?)),
            0x94 => Op::Memoize,
            b'q' => Op::Put(self.byte()?.into()),
            b'r' => Op::Put(u32::from_le_bytes(self.array()?)),
            b'K' => Op::Int(self.byte()?.into()),
            b'M' => Op::Int(u16::from_le_bytes(self.array()?).into()),
            b'J' => Op::Int(i32::from_le_bytes(self.array()?).into()),
            0x8a => {
                let length = self.byte()?.into();
                self.long(length)?
            }
            0x8c => {
                let length = self.byte()?.into();
                Op::Text(self.take(length)?)
            }
            b'(' => Op::Mark,
            b'}' => Op::EmptyDict,
            b'u' => Op::SetItems,
            b']' => Op::EmptyList,
            b'e' => Op::Appends,
            b'a' => Op::Append,
            b's' => Op::SetItem,
            0x85 => Op::TupleOf(1),
            0x86 => Op::TupleOf(2),
            0x87 => Op::TupleOf(3),
            b'N' => Op::None,
            0x88 => Op::Bool(true),
            0x89 => Op::Bool(false),
            b'G' => Op::Float(f64::from_be_bytes(self.array()?)),
            b'X' => {
                let length = u32::from_le_bytes(self.array()?);
                Op::Text(self.take(u64::from(length))?)
            }
            other => return self.rare(other),
        })
    }

    #[cold]
    fn rare(&mut self, opcode: u8) -> Result<Op<'a>, ScanError> {
        Ok(match opcode {
            0x80 => Op::Protocol(self.byte()?),
            0x95 => {
                self.array::<8>()?;
                Op::Frame
            }
            b'.' => Op::Stop,
            b'0' => Op::Pop,
            b'1' => Op::PopMark,
            b'2' => Op::Dup,
            0x8b => {
                let length = u32::from_le_bytes(self.array()?);
                self.long(length.into())?
            }
            0x8d => {
                let length = u64::from_le_bytes(self.array()?);
                Op::Text(self.take(length)?)
            }
            b'C' => {
                let length = self.byte()?;
                self.skip(length.into())?
            }
            b'B' => {
                let length = u32::from_le_bytes(self.array()?);
                self.skip(length.into())?
            }
            0x8e | 0x96 => {
                let length = u64::from_le_bytes(self.array()?);
                self.skip(length)?
            }
            b')' => Op::EmptyTuple,
            b'l' => Op::List,
            b't' => Op::Tuple,
            b'd' => Op::Dict,
            b'c' => return Err(ScanError::Code("GLOBAL")),
            b'R' => return Err(ScanError::Code("REDUCE")),
            b'b' => return Err(ScanError::Code("BUILD")),
            b'i' => return Err(ScanError::Code("INST")),
            b'o' => return Err(ScanError::Code("OBJ")),
            b'P' => return Err(ScanError::Code("PERSID")),
            b'Q' => return Err(ScanError::Code("BINPERSID")),
            0x81 => return Err(ScanError::Code("NEWOBJ")),
            0x82..=0x84 => return Err(ScanError::Code("EXT")),
            0x92 => return Err(ScanError::Code("NEWOBJ_EX")),
            0x93 => return Err(ScanError::Code("STACK_GLOBAL")),
            0x97 => return Err(ScanError::Code("NEXT_BUFFER")),
            _ => return Err(ScanError::Unknown),
        })
    }

    #[inline]
    fn long(&mut self, length: u64) -> Result<Op<'a>, ScanError> {
        let bytes = self.rest;
        let taken = self.take(length)?;
        Ok(match (taken.len(), bytes.first_chunk()) {
            (0, _) => Op::Int(0),
            // The bytes behind it are shifted out.
            (length @ 1..=8, Some(&wide)) => {
                let unused_bits = 64 - 8 * length as u32;
                Op::Int(i64::from_le_bytes(wide) << unused_bits >> unused_bits)
            }
            (1..=8, None) => {
                let sign = if taken[taken.len() - 1] >= 0x80 { -1 } else { 0 };
                Op::Int(taken.iter().rev().fold(sign, |value: i64, &byte| value << 8 | i64::from(byte)))
            }
            _ => Op::Long(taken),
        })
    }

    fn skip(&mut self, length: u64) -> Result<Op<'a>, ScanError> {
        self.take(length)?;
        Ok(Op::Bytes)
    }

    #[inline]
    fn take(&mut self, length: u64) -> Result<&'a [u8], ScanError> {
        let length = usize::try_from(length).map_err(|_| ScanError::Truncated)?;
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(ScanError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    fn byte(&mut self) -> Result<u8, ScanError> {
        let (&byte, rest) = self.rest.split_first().ok_or(ScanError::Truncated)?;
        self.rest = rest;
        Ok(byte)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], ScanError> {
        let (&array, rest) = self.rest.split_first_chunk().ok_or(ScanError::Truncated)?;
        self.rest = rest;
        Ok(array)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(bytes: &[u8]) -> Result<Op<'_>, ScanError> {
        let mut scanner = Scanner::new(bytes);
        let op = scanner.next();
        assert!(op.is_err() || scanner.offset() == bytes.len());
        op
    }

    #[test]
    fn each_instruction_is_decoded_whole_or_truncated() {
        let cases: &[(&[u8], Op<'_>)] = &[
            (b"\x80\x05", Op::Protocol(5)),
            (b"\x95\xff\xff\xff\xff\xff\xff\xff\xff", Op::Frame),
            (b"K\xff", Op::Int(255)),
            (b"M\x00\x01", Op::Int(256)),
            (b"J\xff\xff\xff\xff", Op::Int(-1)),
            (b"\x8a\x00", Op::Int(0)),
            (b"\x8a\x01\xff", Op::Int(-1)),
            (b"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80", Op::Int(i64::MIN)),
            (b"\x8a\x09123456789", Op::Long(b"123456789")),
            (b"\x8b\x02\x00\x00\x00\x00\x01", Op::Int(256)),
            (b"G\x3f\xf0\x00\x00\x00\x00\x00\x00", Op::Float(1.0)),
            (b"\x8c\x02hi", Op::Text(b"hi")),
            (b"X\x02\x00\x00\x00hi", Op::Text(b"hi")),
            (b"\x8d\x02\x00\x00\x00\x00\x00\x00\x00hi", Op::Text(b"hi")),
            (b"C\x02hi", Op::Bytes),
            (b"B\x02\x00\x00\x00hi", Op::Bytes),
            (b"\x8e\x02\x00\x00\x00\x00\x00\x00\x00hi", Op::Bytes),
            (b"\x96\x02\x00\x00\x00\x00\x00\x00\x00hi", Op::Bytes),
            (b"h\x07", Op::Get(7)),
            (b"j\x07\x00\x00\x01", Op::Get(0x0100_0007)),
            (b"q\x07", Op::Put(7)),
            (b"r\x07\x00\x00\x01", Op::Put(0x0100_0007)),
        ];
        for &(bytes, op) in cases {
            assert_eq!(one(bytes), Ok(op));
            for length in 0..bytes.len() {
                assert_eq!(one(&bytes[..length]), Err(ScanError::Truncated), "{op:?} at {length}");
            }
        }
        let plain = b"N\x88\x89(01 2.])}ltd\x85\x86\x87aesu\x94";
        let plain: Vec<_> =
            plain.iter().filter(|&&byte| byte != b' ').map(|byte| one(std::slice::from_ref(byte))).collect();
        assert!(plain.iter().all(Result::is_ok) && plain.len() == 22, "{plain:?}");
    }

    #[test]
    fn an_integer_does_not_depend_on_what_follows() {
        for length in 0..=8 {
            for top in [0, 1, 0x7f, 0x80, 0xff] {
                let mut value: Vec<u8> = (1..=length).collect();
                value.iter_mut().last().into_iter().for_each(|last| *last = top);
                let alone = [&[0x8a, length][..], &value].concat();
                let Ok(Op::Int(expected)) = one(&alone) else { panic!("an integer") };
                let followed = [&alone[..], b"\xff\x80\x7f\x01\xff\xff\xff\xff"].concat();
                assert_eq!(Scanner::new(&followed).next(), Ok(Op::Int(expected)));
                let sign = if length > 0 && top >= 0x80 { 0xff } else { 0 };
                value.resize(8, sign);
                assert_eq!(expected.to_le_bytes()[..], value);
            }
        }
    }

    #[test]
    fn what_could_run_code_is_refused_by_name() {
        for &opcode in b"cRbioPQ\x81\x82\x83\x84\x92\x93\x97" {
            assert!(matches!(one(&[opcode, 0, 0, 0, 0]), Err(ScanError::Code(_))), "{opcode:#x}");
        }
        assert_eq!(one(b"\xff"), Err(ScanError::Unknown));
    }

    #[test]
    fn a_length_beyond_the_end_is_truncation() {
        assert_eq!(one(b"X\xff\xff\xff\xffabc"), Err(ScanError::Truncated));
        assert_eq!(one(b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc"), Err(ScanError::Truncated));
        assert_eq!(one(b"\x8b\xff\xff\xff\xffabc"), Err(ScanError::Truncated));
    }
}
