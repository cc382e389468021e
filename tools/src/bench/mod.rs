//! `highwater bench`: speed, measured.

mod alloc;
mod churn;
mod kernels;
mod moves;
pub(crate) mod workloads;

use crate::cli::{BenchArgs, BenchWhat};
use crate::failure::Failure;

/// Measures what is asked for.
///
/// # Errors
/// When something that it needs is missing, or a measurement fails.
pub(crate) fn run(arguments: &BenchArgs) -> Result<(), Failure> {
    match arguments.what {
        BenchWhat::Alloc(ref arguments) => alloc::run(arguments),
        BenchWhat::Kernels(ref arguments) => kernels::run(arguments),
        BenchWhat::Churn(ref arguments) => churn::run(arguments),
        BenchWhat::Moves(ref arguments) => moves::run(arguments),
    }
}
