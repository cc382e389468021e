//! The allocator on a simulated device: what it promises, and what happens when things go wrong.
//!
//! Each file has one theme; `world` is the stage. Times are virtual: ns that operations last, with calls that are free,
//! or steps that a seed chooses.

mod world;

mod between;
mod blocking;
mod capture;
mod contract;
mod faults;
mod hunt;
mod ladder;
mod lifetimes;
mod moves;
mod on;
mod open;
mod order;
mod pressure;
mod snapshot;
mod steady;
mod turns;
mod uses;
#[cfg(feature = "why")]
mod why;
