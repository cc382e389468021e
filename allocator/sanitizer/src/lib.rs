//! The stream sanitizer: finds work on memory that nothing orders.
//!
//! A missing wait between two streams seldom shows: most of the time the work happens to run in the order that was
//! meant. This crate does not look at what happened. It keeps a vector clock for each stream and for the host, and for
//! each byte who wrote it last and who has read it since; two operations that touch a byte, one of them writing, have
//! to be ordered by fences, waits and what the host has seen complete. If they are not, that is a [`Race`], on every
//! run, whatever the timing.
//!
//! - [`Watched`] is a device around another one: it sees streams, fences, waits, mappings, launches and copies.
//! - [`Sanitizer`] takes what no device knows: allocations, frees, work submitted past the library, host accesses.
//!
//! **An allocation counts as a write** by the owner's stream when it is compared with what was done to the bytes before:
//! so memory that is used again too early is found at the line that got it. It leaves no trace itself, since nothing is
//! written: later work is compared with the work before the allocation.
//!
//! Bytes are physical: two addresses of one page share them. What is done by an operation that a stream *captures* is
//! not seen, as it does not execute. The order that a legacy default stream makes by itself counts for nothing.
//!
//! This crate shares no code with the clocks of the allocator. It is an independent witness of them too.
//!
//! The files: `clock` is the vector clock; `order` knows streams, fences and the host; `shadow` who touched which bytes;
//! `memory` resolves addresses to physical bytes and to buffers; `race` is what a report says; `state` joins them, under
//! the one lock of `sanitizer`; `watched` is the device; `here` the line of the program that calls it.

mod clock;
mod here;
mod memory;
mod order;
mod race;
mod reports;
mod sanitizer;
mod shadow;
mod state;
mod watched;

pub use here::Here;
pub use race::{BufferInfo, FencePoint, Missing, Race, RaceKind, Side};
pub use sanitizer::{Config, Counters, OnRace, Sanitizer};
pub use state::OpenUse;
pub use watched::Watched;
