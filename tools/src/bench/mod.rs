//! `highwater bench`: speed, measured.

mod kernels;
pub(crate) mod workloads;

use crate::cli::{BenchArgs, BenchWhat};
use crate::failure::Failure;

/// Measures what is asked for.
///
/// # Errors
/// When something that it needs is missing, or a measurement fails.
pub(crate) fn run(arguments: &BenchArgs) -> Result<(), Failure> {
    match arguments.what {
        BenchWhat::Kernels(ref arguments) => kernels::run(arguments),
    }
}
