//! Swarms: random programs on the allocator, on simulated devices whose schedule an adversary picks, with features and
//! faults switched on and off by the seed.
//!
//! A program is data ([`Program`]). A host carries it out and keeps an oracle informed, which knows only the program's
//! own steps and fences. What the devices then executed, access by access, is held against it: see `oracle`. Each
//! program runs twice, and must do the same both times. A program that fails is shrunk, step by step.
//!
//! The files: `program` draws programs; `host`, `acts`, `pieces`, `places` and `ending` carry them out; `watched` is the
//! device in between; `oracle` and `bytes` know what is right; `run`, `shrink` and `verdict` tell.

mod acts;
mod bytes;
mod ending;
mod host;
mod oracle;
mod pieces;
mod places;
mod program;
mod rng;
mod run;
mod shrink;
mod verdict;
mod watched;

pub use program::{Config, Program, Step};
pub use run::{Outcome, run, run_twice};
pub use shrink::shrink;
pub use verdict::{Coverage, Failure, Rule, everything};
pub use watched::Defect;
