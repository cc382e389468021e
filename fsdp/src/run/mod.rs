//! Running a plan: one rank's shards, slots and streams, and the model that computes.
//!
//! A [`Runner`] issues the operations of its [`Plan`](crate::plan::Plan) one by one, in order, with just the waits and
//! fences that the plan names, and counts the bytes leased in slots as it goes. Nothing in a step blocks the host.
//!
//! Parameters, gradients and slots stay at fixed addresses: they are allocated when the runner is made. A step's own
//! memory (activations) is the model's, from the allocator, on the compute stream.

mod error;
mod leases;
mod model;
mod runner;
mod shard;

pub use error::RunError;
pub use model::{Model, ModelError, UnitLayout};
pub use runner::{Runner, plan_spec};
pub use shard::padded_elements;
