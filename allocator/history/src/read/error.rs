//! What can be wrong with a file.

use std::sync::Arc;

use crate::scan::ScanError;

/// Why a file could not be read, or not to its end.
///
/// Offsets are bytes from the start of the pickle or the JSON, after unpacking.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// It does not begin like a pickle, nor like a compressed file.
    #[error(
        "this is no pickle: it begins with \"{}\"; a snapshot is a pickle of protocol 2 to 5 or JSON, plain or compressed",
        .0.escape_ascii()
    )]
    NotAPickle(Vec<u8>),
    /// The protocol is not known.
    #[error("byte {offset}: pickle protocol {version}; 2 to 5 are known")]
    Protocol {
        /// Where it stands.
        offset: u64,
        /// The version.
        version: u8,
    },
    /// The file ends too early.
    #[error("byte {offset}: the file ends in the middle of what begins here")]
    Truncated {
        /// Where the last instruction, text or number begins.
        offset: u64,
    },
    /// An instruction would have code run. No snapshot needs it.
    #[error("byte {offset}: the instruction {instruction} makes objects of classes, and may run code; it is refused")]
    Code {
        /// Where it stands.
        offset: u64,
        /// Its name.
        instruction: &'static str,
    },
    /// There is no such instruction, or snapshots have no use for it.
    #[error("byte {offset}: {opcode:#04x} is no instruction of a snapshot")]
    UnknownInstruction {
        /// Where it stands.
        offset: u64,
        /// Its byte.
        opcode: u8,
    },
    /// An instruction does not find what it needs.
    #[error("byte {offset}: expected {expected}")]
    Malformed {
        /// Where the instruction begins.
        offset: u64,
        /// What it needs.
        expected: &'static str,
    },
    /// A part of the snapshot lacks a key, or has another type there.
    #[error("byte {offset}: {place} needs {}", crate::scan::wanted(key, expected))]
    Needs {
        /// Where the part ends.
        offset: u64,
        /// The part, e.g. `an event`.
        place: &'static str,
        /// The key; empty if it is the part itself.
        key: &'static str,
        /// The type.
        expected: &'static str,
    },
    /// More of something than any snapshot has.
    #[error("byte {offset}: more than {limit} {what}")]
    TooMany {
        /// Where.
        offset: u64,
        /// Of what.
        what: &'static str,
        /// The bound.
        limit: usize,
    },
    /// A part is listed more than once, so that a small file would stand for a large snapshot.
    #[error("byte {offset}: {what} listed more than once")]
    Inflated {
        /// Where the snapshot ends.
        offset: u64,
        /// Of what.
        what: &'static str,
    },
    /// The file is compressed, and the feature `unpack` is off.
    #[error("the file is compressed ({format}), and this program reads plain ones: unpack it, or build with `unpack`")]
    NotUnpacked {
        /// Name of the compression.
        format: &'static str,
    },
    /// The compressed file is damaged.
    #[error("the {format} file is damaged: {error}; {unpacked_bytes} bytes could be unpacked")]
    Packed {
        /// Name of the compression.
        format: &'static str,
        /// What the decompressor says.
        error: Arc<std::io::Error>,
        /// Bytes before the damage.
        unpacked_bytes: u64,
    },
    /// The compressed file stands for too much.
    #[error("the {format} file of {packed_bytes} bytes unpacks to more than {limit_bytes} bytes, the limit for it")]
    TooLarge {
        /// Name of the compression.
        format: &'static str,
        /// Bytes of the file.
        packed_bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
}

impl ReadError {
    /// The byte of the pickle at which reading stopped, if it got that far.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        match *self {
            Self::Protocol { offset, .. }
            | Self::Truncated { offset }
            | Self::Code { offset, .. }
            | Self::UnknownInstruction { offset, .. }
            | Self::Malformed { offset, .. }
            | Self::Needs { offset, .. }
            | Self::TooMany { offset, .. }
            | Self::Inflated { offset, .. } => Some(offset),
            Self::NotAPickle(_) => Some(0),
            Self::NotUnpacked { .. } | Self::Packed { .. } | Self::TooLarge { .. } => None,
        }
    }

    pub(super) fn scan(error: ScanError, offset: u64, opcode: Option<u8>) -> Self {
        match (error, opcode) {
            (ScanError::Code(instruction), _) => Self::Code { offset, instruction },
            (ScanError::Unknown, Some(opcode)) => Self::UnknownInstruction { offset, opcode },
            _ => Self::Truncated { offset },
        }
    }
}
