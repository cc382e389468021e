//! What is submitted to a stream: an operation with the byte ranges that it reads and writes.

use std::borrow::Cow;
use std::fmt;

use bytemuck::Pod;

use crate::error::invalid;
use crate::{Cost, DeviceCall, DeviceResult};

/// A device address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Address(pub u64);

impl Address {
    /// The address `bytes` further on.
    #[must_use]
    pub fn offset(self, bytes: u64) -> Address {
        Address(self.0 + bytes)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// `[address, address + bytes)`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ByteRange {
    /// First byte.
    pub address: Address,
    /// Length, bytes.
    pub bytes: u64,
}

impl ByteRange {
    /// `[address, address + bytes)`.
    #[must_use]
    pub fn new(address: Address, bytes: u64) -> Self {
        ByteRange { address, bytes }
    }

    /// One past the last byte.
    #[must_use]
    pub fn end(self) -> Address {
        self.address.offset(self.bytes)
    }

    /// Whether the two share a byte.
    #[must_use]
    pub fn overlaps(self, other: ByteRange) -> bool {
        self.address < other.end() && other.address < self.end()
    }
}

/// What an operation does with an operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// Reads it.
    Read,
    /// Writes all of it, without looking at what was there.
    Write,
    /// Reads it and writes all of it.
    ReadWrite,
}

impl Access {
    /// Whether the old content matters.
    #[must_use]
    pub fn reads(self) -> bool {
        self != Access::Write
    }

    /// Whether the content changes.
    #[must_use]
    pub fn writes(self) -> bool {
        self != Access::Read
    }
}

/// One range of device memory that an operation touches, and how.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Operand {
    /// The bytes.
    pub range: ByteRange,
    /// What happens to them.
    pub access: Access,
}

/// The bytes of one operand, as a body sees them: a copy taken when the operation starts, written back when it ends.
/// Aligned to 8 bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct OperandBytes {
    words: Vec<u64>,
    bytes: usize,
}

impl OperandBytes {
    /// `bytes` bytes, each `fill`.
    #[must_use]
    pub fn filled(bytes: usize, fill: u8) -> Self {
        OperandBytes { words: vec![u64::from_ne_bytes([fill; 8]); bytes.div_ceil(8)], bytes }
    }

    /// All bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &bytemuck::must_cast_slice(&self.words)[..self.bytes]
    }

    /// All bytes, to write.
    #[must_use]
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::must_cast_slice_mut(&mut self.words)[..self.bytes]
    }

    /// The bytes as elements.
    ///
    /// # Panics
    /// When the length is not a whole number of `T`.
    #[must_use]
    pub fn as_slice<T: Pod>(&self) -> &[T] {
        bytemuck::cast_slice(self.as_bytes())
    }

    /// The bytes as elements, to write.
    ///
    /// # Panics
    /// When the length is not a whole number of `T`.
    #[must_use]
    pub fn as_mut_slice<T: Pod>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(self.as_bytes_mut())
    }
}

impl fmt::Debug for OperandBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OperandBytes({} bytes)", self.bytes)
    }
}

/// The arithmetic of an operation on the host: it gets the operands in the order of their declaration.
pub type HostBody = Box<dyn FnOnce(&mut [OperandBytes]) + Send>;

/// The driver's own handle of a stream: on CUDA the `CUstream`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DriverStream(pub u64);

/// Submits an operation's work to the driver's stream, and to no other; called once, during the launch.
pub type DriverBody = Box<dyn FnOnce(DriverStream) -> DeviceResult<()> + Send>;

/// How an operation computes.
#[non_exhaustive]
pub enum Body {
    /// It computes nothing: only its time and its operands matter.
    Nothing,
    /// On the host, when the operation executes. On a GPU the operands travel to the host and back for it: right, and
    /// slow.
    Host(HostBody),
    /// On a GPU: a kernel, or a call of a library. The simulated device has no driver and refuses it.
    Driver(DriverBody),
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Body::Nothing => "Nothing",
            Body::Host(_) => "Host",
            Body::Driver(_) => "Driver",
        })
    }
}

/// One operation on a stream.
#[derive(Debug)]
pub struct Operation {
    /// Name for people.
    pub name: Cow<'static, str>,
    /// The caller's mark; it comes back in the timeline and means nothing to the device.
    pub tag: u64,
    /// What decides its duration.
    pub cost: Cost,
    /// The memory that it touches. Ranges of one operation may overlap only when none of the overlapping ones writes.
    pub operands: Vec<Operand>,
    /// What it computes.
    pub body: Body,
}

/// Ranges must end within the address space.
pub(crate) fn check_operands(call: DeviceCall, operands: &[Operand]) -> DeviceResult<()> {
    let bad = operands.iter().find(|operand| operand.range.address.0.checked_add(operand.range.bytes).is_none());
    match bad {
        None => Ok(()),
        Some(Operand { range, .. }) => {
            Err(invalid(call, format!("{} bytes at {} are not a range", range.bytes, range.address)))
        }
    }
}

/// What one operation writes, it must not touch by another operand.
pub(crate) fn check_disjoint(call: DeviceCall, operands: &[Operand]) -> DeviceResult<()> {
    for (index, first) in operands.iter().enumerate() {
        for second in &operands[index + 1..] {
            let writes = first.access.writes() || second.access.writes();
            let empty = first.range.bytes == 0 || second.range.bytes == 0;
            if writes && !empty && first.range.overlaps(second.range) {
                let what = format!("operands at {} and {} overlap", first.range.address, second.range.address);
                return Err(invalid(call, what));
            }
        }
    }
    Ok(())
}
