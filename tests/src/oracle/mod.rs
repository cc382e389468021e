//! A model of the whole allocator that predicts what it answers, and a runner that drives both over the simulated
//! device.
//!
//! The device is timed, its calls take no time and its operations exact ones, so the model computes by itself when every
//! operation ends. For each [`Op`] it predicts the answer (success or which error, and the address), how long the host
//! is blocked, and afterwards all statistics and the number of every device call. The model is written from what the
//! allocator documents, searches lists from end to end and shares no code with it. Two things it knows better than the
//! allocator: when each use of each byte ends, so that memory that is given out or unmapped too early is seen although
//! both agree; and what would have been possible by waiting for everything, so that a needless out-of-memory error is.
//!
//! - `op`: programs as data; `generate`: programs from a seed; `shrink`: the fewest steps that still fail.
//! - `machine`: the device in numbers; `heap`: tiles; `model`: what is known of progress, and blocks; `climb`: requests
//!   and pages; `predict`: steps.
//! - `stepped`, `real`: the allocator behind the same steps; `run`: both, compared.
//!
//! Not predicted: the words of errors, the history, and the pointers of fences.

mod climb;
mod generate;
mod heap;
mod machine;
mod model;
mod op;
mod predict;
mod real;
mod run;
mod shrink;
mod stepped;

pub use generate::program;
pub use op::{Op, Relief, Setup};
pub use run::{Failure, Tally, run};
pub use shrink::shrink;
