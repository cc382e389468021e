//! The instructions of a pickle, one after another.
//!
//! A pull parser over bytes in memory: no copy, no allocation, no recursion. A length is compared with the bytes that
//! are left before anything is done with it. Instructions that name classes or call functions are recognised, and are
//! errors: nothing that reads through here can be made to run code.
//!
//! Invariant: `at` is at most the length, and points to the next instruction between calls.

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

/// Reads instructions.
pub(crate) struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Where the next instruction begins.
    pub(crate) fn offset(&self) -> usize {
        self.at
    }

    /// The byte of the next instruction.
    pub(crate) fn opcode(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// The next instruction, if it is a whole [`Op::Get`]: most are, so they have a way of their own. Through [`next`]
    /// they cost five times as much.
    ///
    /// [`next`]: Self::next
    #[cfg(feature = "read")]
    #[inline(always)]
    pub(crate) fn next_get(&mut self) -> Option<u32> {
        match self.bytes[self.at..] {
            [b'h', id, ..] => {
                self.at += 2;
                Some(id.into())
            }
            [b'j', a, b, c, d, ..] => {
                self.at += 5;
                Some(u32::from_le_bytes([a, b, c, d]))
            }
            _ => None,
        }
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
            0x85..=0x87 => Op::TupleOf(usize::from(self.bytes[self.at - 1] - 0x84)),
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

    fn long(&mut self, length: u64) -> Result<Op<'a>, ScanError> {
        let bytes = self.take(length)?;
        if bytes.len() > 8 {
            return Ok(Op::Long(bytes));
        }
        let negative = bytes.last().is_some_and(|&byte| byte >= 0x80);
        let mut wide = [if negative { 0xff } else { 0 }; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        Ok(Op::Int(i64::from_le_bytes(wide)))
    }

    fn skip(&mut self, length: u64) -> Result<Op<'a>, ScanError> {
        self.take(length)?;
        Ok(Op::Bytes)
    }

    #[inline]
    fn take(&mut self, length: u64) -> Result<&'a [u8], ScanError> {
        let length = usize::try_from(length).map_err(|_| ScanError::Truncated)?;
        let (taken, _) = self.bytes[self.at..].split_at_checked(length).ok_or(ScanError::Truncated)?;
        self.at += length;
        Ok(taken)
    }

    #[inline]
    fn byte(&mut self) -> Result<u8, ScanError> {
        let &byte = self.bytes.get(self.at).ok_or(ScanError::Truncated)?;
        self.at += 1;
        Ok(byte)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], ScanError> {
        let &array = self.bytes[self.at..].first_chunk().ok_or(ScanError::Truncated)?;
        self.at += N;
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
