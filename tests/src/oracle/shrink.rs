//! Fewer steps that still fail.

use super::op::{Op, Setup};
use super::run::{Failure, run};

/// Leaves out as many steps as it can, longer stretches first, as long as the program fails. Returns what is left and
/// how that fails; `None` when the program does not fail.
#[must_use]
pub fn shrink(setup: &Setup, program: &[Op]) -> Option<(Vec<Op>, Failure)> {
    let mut failure = run(setup, program).err()?;
    let mut program = program[..program.len().min(failure.step + 1)].to_vec();
    let mut length = program.len().div_ceil(2);
    while length > 0 {
        let (mut at, mut changed) = (0, false);
        while at < program.len() {
            let mut shorter = program.clone();
            shorter.drain(at..(at + length).min(program.len()));
            match run(setup, &shorter) {
                Err(found) => {
                    shorter.truncate(found.step + 1);
                    (program, failure, changed) = (shorter, found, true);
                }
                Ok(_) => at += length,
            }
        }
        if !(changed && length == 1) {
            length /= 2;
        }
    }
    Some((program, failure))
}
