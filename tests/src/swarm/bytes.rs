//! What operations leave in memory, and how they check it: every byte that an operation writes tells its number.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use super::host::lock;
use super::oracle::{OpId, Oracle, stamp};

/// Part of an operand that one operation has to have written.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    /// In the operand.
    pub(super) range: Range<usize>,
    /// Offset of the operand's first byte in its piece.
    pub(super) offset: usize,
    pub(super) by: OpId,
}

/// What an operation found, or that it ran at all.
#[derive(Clone, Debug)]
pub(super) struct Wrong {
    pub(super) op: OpId,
    what: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Byte { at: usize, found: u8, word: Option<u64>, by: OpId },
    Captured,
    Received { from: usize },
}

impl Wrong {
    /// Work that was captured was executed.
    pub(super) fn captured(op: OpId) -> Self {
        Wrong { op, what: Kind::Captured }
    }

    /// A collective brought something else than what the rank sent.
    pub(super) fn received(op: OpId, from: usize) -> Self {
        Wrong { op, what: Kind::Received { from } }
    }

    /// For people.
    pub(super) fn describe(&self, oracle: &Oracle) -> String {
        match &self.what {
            Kind::Captured => format!("operation {} was captured, and executed", self.op.0),
            Kind::Received { from } => {
                format!("{} received other bytes from rank {from} than it sent", oracle.describe(self.op))
            }
            Kind::Byte { at, found, word, by } => {
                let author = match word.and_then(|word| oracle.author(word)) {
                    Some(author) if author < oracle.next() => oracle.describe(author),
                    _ => "nobody that is known".to_owned(),
                };
                format!(
                    "{} found {found:#04x} in byte {at}, left by {author}; it has to find what {} left",
                    oracle.describe(self.op),
                    oracle.describe(*by)
                )
            }
        }
    }
}

/// Writes the stamp of an operation.
pub(super) fn fill(bytes: &mut [u8], offset: usize, word: u64) {
    let word = word.to_le_bytes();
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = word[(offset + index) % 8];
    }
}

/// The first byte that is not of the word.
pub(super) fn first_other(bytes: &[u8], offset: usize, word: u64) -> Option<usize> {
    let word = word.to_le_bytes();
    bytes.iter().enumerate().position(|(index, &byte)| byte != word[(offset + index) % 8])
}

/// Checks the bytes that `op` got in one operand.
pub(super) fn check(op: OpId, bytes: &[u8], expected: &[Expected], wrong: &Arc<Mutex<Vec<Wrong>>>) {
    for Expected { range, offset, by } in expected {
        let Some(at) = first_other(&bytes[range.clone()], offset + range.start, stamp(*by)) else { continue };
        let at = range.start + at;
        let what = Kind::Byte { at: offset + at, found: bytes[at], word: word_at(bytes, *offset, at), by: *by };
        lock(wrong).push(Wrong { op, what });
        return;
    }
}

/// The stamp that byte `at` is part of, if there are eight bytes of it.
fn word_at(bytes: &[u8], offset: usize, at: usize) -> Option<u64> {
    let eight = bytes.get(at..at + 8)?;
    let mut word = [0; 8];
    for (index, &byte) in eight.iter().enumerate() {
        word[(offset + at + index) % 8] = byte;
    }
    Some(u64::from_le_bytes(word))
}
