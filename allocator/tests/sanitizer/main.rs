//! The sanitizer on the allocator: wrong programs are found, at the lines that are wrong, and right ones are let be.
//!
//! That correct programs are let be is shown by all tests of the facade too, which run with the sanitizer when the
//! feature is on; the hunt is among them.

mod between;
mod buffers;
#[path = "../world/hooked.rs"]
#[allow(dead_code, reason = "the tests of the facade use more of it")]
mod hooked;
mod hosts;
mod order;
mod reports;
mod stage;
