//! How little memory a program could do with, proven.
//!
//! Two arguments, both about one moment at which a set of blocks must lie apart:
//!
//! - *In the order of the host*: blocks that the program holds at the same time never share a byte, whatever the allocator
//!   does and however long streams are made to wait.
//! - *In the time of the device*: if the program may take `ratio` times as long as with unlimited memory, no operation
//!   starts later than its earliest start plus the slack that is left, and none ends earlier than its earliest end. A block
//!   is in use at least in between, and blocks in use at the same time do not share a byte either. That holds also for
//!   blocks that were given back while another stream used them.
//!
//! Blocks start at multiples of 512 bytes, so that each takes whole pieces of 512 bytes; memory comes in handles of
//! 2 MiB or multiples of it. No placement, with or without moving pages, holds less.

use crate::replay::script::{Block, BlockNo, Script, What};

/// Blocks start at multiples of this, bytes.
pub(crate) const ALIGNMENT_BYTES: u64 = 512;
/// Physical memory comes in multiples of this, bytes.
pub(crate) const GRANULE_BYTES: u64 = 2 << 20;

/// A moment at which blocks must lie apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Moment {
    /// After a step of the host, by its index.
    Step(usize),
    /// A time of the device, ns, if operations start at most `slack_ns` late.
    Device {
        /// The time.
        at_ns: u64,
        /// How late operations may start.
        slack_ns: u64,
    },
}

/// A claim: no placement holds less than `bytes`, because these blocks lie apart at that moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Bound {
    /// What must be held, bytes.
    pub(crate) bytes: u64,
    /// When.
    pub(crate) moment: Moment,
    /// The blocks.
    pub(crate) blocks: Vec<BlockNo>,
}

/// Bytes that a block takes.
pub(crate) fn taken_bytes(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGNMENT_BYTES)
}

/// The bound that holds for every placement at any speed.
pub(crate) fn any_placement(script: &Script) -> Bound {
    let (mut taken, mut most, mut at) = (0, 0, 0);
    for (index, step) in script.steps.iter().enumerate() {
        match step.what {
            What::Alloc(block) => taken += taken_bytes(script.blocks[block].bytes),
            What::Free(block) => taken -= taken_bytes(script.blocks[block].bytes),
        }
        if taken > most {
            (most, at) = (taken, index);
        }
    }
    let mut live = vec![false; script.blocks.len()];
    for step in &script.steps[..script.steps.len().min(at + 1)] {
        match step.what {
            What::Alloc(block) => live[block] = true,
            What::Free(block) => live[block] = false,
        }
    }
    let blocks = (0..live.len()).filter(|&block| live[block]).collect();
    Bound { bytes: most.next_multiple_of(GRANULE_BYTES), moment: Moment::Step(at), blocks }
}

/// When a block is in use on the device, for sure, ns: the half-open range may be empty.
fn certain_use(script: &Script, block: &Block, slack_ns: u64) -> (u64, u64) {
    let end_ns = block.used.map_or(block.freed_ns.unwrap_or(script.span_ns), |(_, until_ns)| until_ns);
    (block.born_ns.saturating_add(slack_ns), end_ns)
}

/// The bound for allocators with which operations start at most `slack_ns` later than with unlimited memory.
fn at_this_slack(script: &Script, slack_ns: u64) -> Bound {
    // (time, does it begin, block): ends come first where one block may take the place of another.
    let mut edges = Vec::new();
    for (number, block) in script.blocks.iter().enumerate() {
        let (start_ns, end_ns) = certain_use(script, block, slack_ns);
        if start_ns < end_ns {
            edges.push((start_ns, true, number));
            edges.push((end_ns, false, number));
        }
    }
    edges.sort_unstable();
    let (mut taken, mut most, mut at_ns) = (0, 0, 0);
    for &(time_ns, begins, number) in &edges {
        let bytes = taken_bytes(script.blocks[number].bytes);
        taken = if begins { taken + bytes } else { taken - bytes };
        if taken > most {
            (most, at_ns) = (taken, time_ns);
        }
    }
    let certain = |&number: &BlockNo| {
        let (start_ns, end_ns) = certain_use(script, &script.blocks[number], slack_ns);
        start_ns <= at_ns && at_ns < end_ns
    };
    let blocks: Vec<_> = (0..script.blocks.len()).filter(certain).collect();
    Bound { bytes: most.next_multiple_of(GRANULE_BYTES), moment: Moment::Device { at_ns, slack_ns }, blocks }
}

/// The bounds by how much slower a program may become.
#[derive(Clone, Debug)]
pub(crate) struct Frontier {
    points: Vec<(f64, Bound)>,
}

impl Frontier {
    /// Times as long as with unlimited memory, in thousandths.
    const PER_MILLE: [u64; 3] = [1000, 1010, 1050];

    /// Index of the point that allocators are measured by: 1 % slower.
    pub(crate) const ASKED: usize = 1;

    /// Of a script, on a device that is `behind_ns` behind the host.
    pub(crate) fn of(script: &Script, behind_ns: u64) -> Self {
        let any = any_placement(script);
        let ends = script.blocks.iter().filter_map(|block| block.used).map(|(_, until_ns)| until_ns);
        let makespan_ns = ends.fold(script.span_ns, u64::max).saturating_add(behind_ns);
        let points = Self::PER_MILLE.map(|per_mille| {
            // Streams are busy up to the end of the script, so that an operation that is late makes all of it late.
            let longest_ns = (u128::from(makespan_ns) * u128::from(per_mille)).div_ceil(1000) as u64;
            let timed = at_this_slack(script, longest_ns - script.span_ns.saturating_add(behind_ns));
            let bound = if timed.bytes > any.bytes { timed } else { any.clone() };
            (per_mille as f64 / 1000.0, bound)
        });
        Frontier { points: points.into() }
    }

    /// The ratio of the critical path to that with unlimited memory, and the bound that holds up to it.
    pub(crate) fn points(&self) -> impl Iterator<Item = (f64, &Bound)> {
        self.points.iter().map(|(ratio, bound)| (*ratio, bound))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound::check::check;
    use crate::bound::tests::script_of;

    #[test]
    fn blocks_that_are_live_together_lie_apart() {
        // Two of 3 MiB overlap; the third comes when the first has gone.
        let script = script_of(&[(3 << 20, 0, 10), (3 << 20, 5, 20), (3 << 20, 10, 20)]);
        let bound = any_placement(&script);
        assert_eq!((bound.bytes, bound.blocks.len()), (6 << 20, 2));
        assert_eq!(check(&script, &bound), Ok(6 << 20));
    }

    #[test]
    fn blocks_take_whole_pieces_and_memory_comes_in_handles() {
        let script = script_of(&[((2 << 20) - 511, 0, 10), (1, 0, 10)]);
        assert_eq!(any_placement(&script).bytes, 4 << 20);
        let script = script_of(&[((2 << 20) - 512, 0, 10), (1, 0, 10)]);
        assert_eq!(any_placement(&script).bytes, 2 << 20);
    }

    #[test]
    fn a_use_on_another_stream_counts_unless_there_is_time_to_wait_for_it() {
        let mut script = script_of(&[(8 << 20, 0, 1000), (8 << 20, 1000, 100_000)]);
        script.blocks[0].used = Some((1, 1600));
        let frontier = Frontier::of(&script, 0);
        let bytes: Vec<_> = frontier.points().map(|(_, bound)| bound.bytes).collect();
        // 1 % of 100,000 is more than the 600 that the use lasts.
        assert_eq!(bytes, [16 << 20, 8 << 20, 8 << 20]);
        for (_, bound) in frontier.points() {
            assert_eq!(check(&script, bound), Ok(bound.bytes));
        }
    }
}
