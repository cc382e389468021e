//! The operations of a small transformer: what runs between two allocations.
//!
//! A training step is a chain of such operations on device buffers. [`host`] holds their arithmetic on the CPU. It is
//! what a simulated device runs as the body of an operation, and the reference for any other implementation.
//!
//! - [`host`]: forward and backward passes on flat row-major slices, for `f32` and `f64`, single-threaded and
//!   reproducible bit for bit.
//! - [`host::work`]: floating-point operations and memory traffic of each of them, for a cost model.

pub mod host;
