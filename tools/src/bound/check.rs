//! Whether a bound is proven: the certificate is followed by other code than made it.
//!
//! What has to hold: the blocks are different, each is there at the moment named, and together they take the bytes that
//! are claimed.

use std::collections::BTreeSet;

use super::lower::{Bound, Moment};
use crate::replay::script::{BlockNo, Script, Step, What};

/// What is wrong with a certificate.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Forged {
    /// A block that the program does not have.
    #[error("there is no block {0}")]
    NoBlock(BlockNo),
    /// A block that is named twice.
    #[error("block {0} is named twice")]
    Twice(BlockNo),
    /// A block that is not there at the moment.
    #[error("block {0} is not there at the moment named")]
    Absent(BlockNo),
    /// Other bytes than the blocks take.
    #[error("{claimed} bytes are claimed, and the blocks take {found}")]
    Bytes {
        /// As claimed.
        claimed: u64,
        /// As added up.
        found: u64,
    },
}

/// Follows a certificate; returns the bytes that it proves.
///
/// # Errors
/// The first thing that does not hold.
pub(crate) fn check(script: &Script, bound: &Bound) -> Result<u64, Forged> {
    let (mut seen, mut pieces) = (BTreeSet::new(), 0u64);
    for &block in &bound.blocks {
        let known = script.blocks.get(block).ok_or(Forged::NoBlock(block))?;
        if !seen.insert(block) {
            return Err(Forged::Twice(block));
        }
        pieces += known.bytes.div_ceil(512);
    }
    let there = match bound.moment {
        Moment::Step(index) => held_after(&script.steps, index),
        Moment::Device { at_ns, slack_ns } => in_use_at(script, at_ns, slack_ns),
    };
    if let Some(absent) = seen.difference(&there).next() {
        return Err(Forged::Absent(*absent));
    }
    let handles = pieces.div_ceil((2 << 20) / 512);
    let found = handles * (2 << 20);
    if found == bound.bytes { Ok(found) } else { Err(Forged::Bytes { claimed: bound.bytes, found }) }
}

/// The blocks that the program has asked for up to a step, and not given back: found from that step backwards.
fn held_after(steps: &[Step], index: usize) -> BTreeSet<BlockNo> {
    let (mut gone, mut held) = (BTreeSet::new(), BTreeSet::new());
    for step in steps.iter().take(index.saturating_add(1)).rev() {
        match step.what {
            What::Free(block) => {
                gone.insert(block);
            }
            What::Alloc(block) => {
                if !gone.contains(&block) {
                    held.insert(block);
                }
            }
        }
    }
    held
}

/// The blocks that are in use at a time of the device, even if all work comes late by the slack: their first work has
/// begun by then, and their last has not ended, by the steps of the host.
fn in_use_at(script: &Script, at_ns: u64, slack_ns: u64) -> BTreeSet<BlockNo> {
    let mut in_use = BTreeSet::new();
    for step in &script.steps {
        match step.what {
            What::Alloc(block) if step.at_ns.checked_add(slack_ns).is_some_and(|latest_ns| latest_ns <= at_ns) => {
                in_use.insert(block);
            }
            What::Free(block) => {
                let until_ns = script.blocks[block].used.map_or(step.at_ns, |(_, until_ns)| until_ns.max(step.at_ns));
                if until_ns <= at_ns {
                    in_use.remove(&block);
                }
            }
            What::Alloc(_) => {}
        }
    }
    if at_ns >= script.span_ns {
        // What is never given back is in use up to the end of the script, and not for sure behind it.
        in_use.retain(|&block| script.blocks[block].freed_ns.is_some());
    }
    in_use
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bound::lower::any_placement;
    use crate::bound::tests::script_of;

    #[test]
    fn a_forged_certificate_is_rejected() {
        let script = script_of(&[(3 << 20, 0, 10), (3 << 20, 5, 20), (3 << 20, 10, 20)]);
        let honest = any_placement(&script);
        assert_eq!(check(&script, &honest), Ok(honest.bytes));
        let forged = |change: &dyn Fn(&mut Bound)| {
            let mut bound = honest.clone();
            change(&mut bound);
            check(&script, &bound)
        };
        assert_eq!(forged(&|bound| bound.blocks.push(7)), Err(Forged::NoBlock(7)));
        assert_eq!(forged(&|bound| bound.blocks.push(bound.blocks[0])), Err(Forged::Twice(honest.blocks[0])));
        assert_eq!(forged(&|bound| bound.blocks = vec![0, 1, 2]), Err(Forged::Absent(2)));
        let more = Forged::Bytes { claimed: 8 << 20, found: 6 << 20 };
        assert_eq!(forged(&|bound| bound.bytes += 2 << 20), Err(more));
        let fewer = Forged::Bytes { claimed: 6 << 20, found: 4 << 20 };
        assert_eq!(forged(&|bound| bound.blocks.truncate(1)), Err(fewer));
        assert_eq!(forged(&|bound| bound.moment = Moment::Step(0)), Err(Forged::Absent(1)));
    }

    #[test]
    fn a_forged_moment_of_the_device_is_rejected() {
        let mut script = script_of(&[(3 << 20, 0, 10), (3 << 20, 10, 30)]);
        script.blocks[0].used = Some((1, 15));
        let at = |at_ns, slack_ns, blocks: &[BlockNo]| {
            let moment = Moment::Device { at_ns, slack_ns };
            check(&script, &Bound { bytes: 6 << 20, moment, blocks: blocks.into() })
        };
        assert_eq!(at(12, 0, &[0, 1]), Ok(6 << 20));
        assert_eq!(at(15, 0, &[0, 1]), Err(Forged::Absent(0)), "its use is over");
        assert_eq!(at(9, 0, &[0, 1]), Err(Forged::Absent(1)), "it is not there yet");
        assert_eq!(at(12, 5, &[0, 1]), Err(Forged::Absent(1)), "it may come later than that");
        assert_eq!(at(14, 4, &[0, 1]), Ok(6 << 20));
    }
}
