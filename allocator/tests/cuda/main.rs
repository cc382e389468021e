//! Buffers of the allocator in the hands of cudarc.
//!
//! Ignored tests need a GPU, and run one after the other. What has to overlap is held back by a gate, a kernel that waits
//! for a word in memory; it gives up after some seconds, so that a test that fails still ends.

mod bulk;
mod captures;
mod ends;
mod moves;
mod processes;
#[cfg(feature = "sanitizer")]
mod sanitizer;
mod streams;
mod typecheck;
mod unknown;
mod uses;
mod world;
