//! The sanitizer on the allocator: wrong programs are found, at the lines that are wrong, and right ones are let be.
//!
//! That correct programs are let be is shown by all tests of the facade too, which run with the sanitizer when the
//! feature is on; the hunt is among them.

mod buffers;
mod hosts;
mod order;
mod reports;
mod stage;
