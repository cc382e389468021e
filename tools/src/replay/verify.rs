//! A pattern in every block: written when the block is first used, compared whenever it is read.
//!
//! Blocks up to 4 KiB are written whole. Of larger ones both ends and a piece of each MiB are, so that every piece of
//! physical memory below a block holds bytes that tell whose they are, and 20 GB of blocks fit a machine that simulates
//! them. Any overlap of two blocks by a page or more, and any page that holds other bytes than its block's, is seen.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use highwater::device::OperandBytes;

use super::script::BlockNo;

/// Blocks up to this size are written whole, bytes.
const WHOLE_BYTES: u64 = 4096;
/// From one piece of a larger block to the next, bytes: less than any piece of physical memory.
const STRIDE_BYTES: u64 = 1 << 20;
/// A piece, bytes.
const PIECE_BYTES: u64 = 256;

/// Bytes that were not what had been written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mismatch {
    /// The block.
    pub(crate) block: BlockNo,
    /// Offset of the first wrong byte in it.
    pub(crate) offset: u64,
    /// What stands there.
    pub(crate) found: u8,
    /// What was written.
    pub(crate) expected: u8,
}

/// The first wrong bytes that work has found. Clones are the same place.
#[derive(Clone, Default, Debug)]
pub(crate) struct Findings(Arc<Mutex<Vec<Mismatch>>>);

impl Findings {
    /// What was found so far, at most one a check.
    pub(crate) fn take(&self) -> Vec<Mismatch> {
        std::mem::take(&mut *self.0.lock().expect("nobody panics while it holds this"))
    }

    fn add(&self, mismatch: Mismatch) {
        self.0.lock().expect("nobody panics while it holds this").push(mismatch);
    }
}

/// The pieces of a block of `bytes` that carry its pattern.
pub(crate) fn pieces(bytes: u64) -> Vec<Range<u64>> {
    if bytes <= WHOLE_BYTES {
        return std::iter::once(0..bytes).collect();
    }
    let last = bytes - PIECE_BYTES;
    let starts = (0..).map(|index| index * STRIDE_BYTES).take_while(|start| start + PIECE_BYTES <= last);
    starts.chain([last]).map(|start| start..start + PIECE_BYTES).collect()
}

/// The byte of a block at an offset.
fn pattern(block: BlockNo, offset: u64) -> u8 {
    let mixed =
        (block as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(offset.wrapping_mul(0xff51_afd7_ed55_8ccd));
    (mixed >> 56) as u8
}

/// Writes the pattern into a piece of a block.
pub(crate) fn fill(block: BlockNo, piece: &Range<u64>, bytes: &mut OperandBytes) {
    for (offset, byte) in piece.clone().zip(bytes.as_bytes_mut()) {
        *byte = pattern(block, offset);
    }
}

/// Compares a piece of a block with what was written.
pub(crate) fn check(block: BlockNo, piece: &Range<u64>, bytes: &OperandBytes, findings: &Findings) {
    let wrong = piece.clone().zip(bytes.as_bytes()).find(|&(offset, &byte)| byte != pattern(block, offset));
    if let Some((offset, &found)) = wrong {
        findings.add(Mismatch { block, offset, found, expected: pattern(block, offset) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_blocks_are_written_whole() {
        for bytes in [1, 4096] {
            assert_eq!(pieces(bytes), vec![0..bytes; 1]);
        }
    }

    #[test]
    fn every_mib_of_a_large_block_has_a_piece_and_so_have_its_ends() {
        for bytes in [4097, (1 << 20) - 1, 1 << 20, (1 << 20) + 255, (5 << 20) + 77] {
            let pieces = pieces(bytes);
            assert_eq!((pieces[0].start, pieces[pieces.len() - 1].end), (0, bytes));
            assert!(pieces.windows(2).all(|pair| pair[0].end <= pair[1].start), "{bytes}: they are disjoint");
            assert!(
                pieces.windows(2).all(|pair| pair[1].start - pair[0].start <= STRIDE_BYTES),
                "{bytes}: none is far"
            );
        }
    }

    #[test]
    fn one_corrupted_byte_is_found_where_it_is() {
        let findings = Findings::default();
        for piece in pieces(3 << 20) {
            let mut bytes = OperandBytes::filled(256, 0);
            fill(7, &piece, &mut bytes);
            check(7, &piece, &bytes, &findings);
            assert_eq!(findings.take(), []);
            bytes.as_bytes_mut()[99] ^= 1;
            check(7, &piece, &bytes, &findings);
            let found = findings.take();
            assert_eq!((found.len(), found[0].block, found[0].offset), (1, 7, piece.start + 99));
            assert_eq!(found[0].found, found[0].expected ^ 1);
        }
    }

    #[test]
    fn blocks_are_told_apart() {
        let piece = 0..256;
        let mut bytes = OperandBytes::filled(256, 0);
        fill(1, &piece, &mut bytes);
        let findings = Findings::default();
        check(2, &piece, &bytes, &findings);
        assert_eq!(findings.take().len(), 1);
    }
}
