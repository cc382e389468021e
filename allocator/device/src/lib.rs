//! The device contract, and the devices that keep it.
//!
//! [`Device`] is everything that the allocator may ask of a GPU: streams, fences, pages of physical memory, copies and
//! launches. One suite of tests (`tests/contract.rs`) states what every implementation must do; [`sim`] is the
//! simulated one, a virtual clock with queues that run later than the host submits.
//!
//! This crate knows nothing of heaps, buffers or parameters.

mod contract;
mod cost;
mod error;
mod host;
mod operation;
pub mod sim;

pub use contract::{
    CallCounters, Device, DeviceCall, FenceHandle, MemoryInfo, PageHandle, Properties, StreamId, Waited,
};
pub use cost::{Cost, CostModel};
pub use error::{DeviceError, DeviceResult};
pub use host::HostMemory;
pub use operation::{Access, Address, Body, ByteRange, HostBody, Operand, OperandBytes, Operation};
