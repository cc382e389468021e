//! The best placement that was found without moving anything: offline, with all of the program known.
//!
//! Blocks are placed one after the other, each at the lowest place where no block lies that is in use at the same time.
//! Several orders are tried, and the best is kept. Where another stream uses a block after the free, its place stays
//! taken, so the placement needs no wait.

use std::cmp::Reverse;

use super::lower::{GRANULE_BYTES, any_placement, taken_bytes};
use crate::replay::script::{BlockNo, Script, What};

/// A block with the steps at which it is in use, and its place.
#[derive(Clone, Copy, Debug)]
struct Placed {
    start: u64,
    end: u64,
    /// Indices of the steps from which and up to which it is in use.
    from: usize,
    to: usize,
}

/// Physical memory of the best placement that was found, bytes.
pub(crate) fn best_bytes(script: &Script) -> u64 {
    let lifetimes = lifetimes(script);
    let bytes = |block: BlockNo| taken_bytes(script.blocks[block].bytes);
    let length = |block: BlockNo| (lifetimes[block].1 - lifetimes[block].0) as u64;
    let by_size = order(script, |block| (bytes(block), length(block)));
    let by_area = order(script, |block| (bytes(block).saturating_mul(length(block)), bytes(block)));
    let by_length = order(script, |block| (length(block), bytes(block)));
    let in_turn = order(script, |block| (u64::MAX - block as u64, 0));
    let (least, mut best) = (any_placement(script).bytes, u64::MAX);
    for order in [by_size, by_area, by_length, in_turn] {
        best = best.min(extent(script, &lifetimes, &order).next_multiple_of(GRANULE_BYTES));
        if best == least {
            break;
        }
    }
    best
}

fn order(script: &Script, key: impl Fn(BlockNo) -> (u64, u64)) -> Vec<BlockNo> {
    let mut blocks: Vec<_> = (0..script.blocks.len()).collect();
    blocks.sort_by_key(|&block| (Reverse(key(block)), block));
    blocks
}

/// The steps from which and up to which each block is in use.
fn lifetimes(script: &Script) -> Vec<(usize, usize)> {
    let mut lifetimes = vec![(0, script.steps.len()); script.blocks.len()];
    for (index, step) in script.steps.iter().enumerate() {
        match step.what {
            What::Alloc(block) => lifetimes[block].0 = index,
            What::Free(block) => {
                let until_ns = script.blocks[block].used.map_or(0, |(_, until_ns)| until_ns);
                let over = script.steps.partition_point(|later| later.at_ns < until_ns);
                lifetimes[block].1 = index.max(over);
            }
        }
    }
    lifetimes
}

/// Where the placement in this order ends.
fn extent(script: &Script, lifetimes: &[(usize, usize)], order: &[BlockNo]) -> u64 {
    // By start.
    let mut placed: Vec<Placed> = Vec::with_capacity(order.len());
    let mut top = 0;
    for &block in order {
        let (bytes, (from, to)) = (taken_bytes(script.blocks[block].bytes), lifetimes[block]);
        let mut start = 0;
        for other in &placed {
            if other.start >= start + bytes {
                break;
            }
            if other.from < to && from < other.to {
                start = start.max(other.end);
            }
        }
        let end = start + bytes;
        top = top.max(end);
        let index = placed.partition_point(|other| other.start <= start);
        placed.insert(index, Placed { start, end, from, to });
    }
    top
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound::tests::script_of;

    #[test]
    fn the_place_of_a_block_that_is_gone_is_taken_again() {
        let script = script_of(&[(6 << 20, 0, 10), (2 << 20, 0, 30), (6 << 20, 10, 20), (4 << 20, 20, 30)]);
        assert_eq!(best_bytes(&script), 8 << 20);
        assert_eq!(any_placement(&script).bytes, 8 << 20);
    }

    #[test]
    fn a_use_on_another_stream_keeps_the_place() {
        let mut script = script_of(&[(6 << 20, 0, 10), (6 << 20, 10, 20)]);
        assert_eq!(best_bytes(&script), 6 << 20);
        script.blocks[0].used = Some((1, 15));
        assert_eq!(best_bytes(&script), 12 << 20);
    }
}
