//! What the whole-system tests share: a model whose operations last an exact number of ticks and whose arithmetic misses
//! nothing, and runs of it on a simulated cluster.

pub mod oracle;
mod run;
pub mod swarm;
mod tick_model;

pub use run::{Interval, Ran, Scene};
pub use tick_model::{TICK_NS, TickModel, Ticks};
