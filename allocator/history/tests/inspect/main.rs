//! Looking into snapshots: small stories whose memory is known at each event, and real traces.

mod at;
mod diff;
mod fragmentation;
#[path = "../snapshot/world.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod own;
mod pending;
#[path = "../../examples/pickler/mod.rs"]
mod pickler;
mod repair;
mod slice;
mod story;
mod summary;
#[path = "../why/world.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod world;
mod write;
