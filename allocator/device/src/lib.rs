//! The device contract, and the devices that keep it.
//!
//! [`Device`] is everything that the allocator may ask of a GPU: streams, fences, pages of physical memory, copies and
//! launches. One suite of tests (`tests/contract.rs`) states what every implementation must do; [`sim`] is the
//! simulated one, a virtual clock with queues that run later than the host submits; `cuda` (feature `cuda`) is a GPU.
//!
//! This crate knows nothing of heaps, buffers or parameters.

mod contract;
mod cost;
#[cfg(feature = "cuda")]
pub mod cuda;
mod error;
mod executed;
mod host;
mod mappings;
mod operation;
pub mod sim;

pub use contract::{
    CallCounters, Device, DeviceCall, FenceHandle, MemoryInfo, PageHandle, ProcessMemory, Properties, StreamId, Waited,
};
pub use cost::{Cost, CostModel};
pub use error::{DeviceError, DeviceResult};
pub use executed::{Executed, ExecutedKind};
pub use host::HostMemory;
pub use operation::{
    Access, Address, Body, ByteRange, DriverBody, DriverStream, HostBody, Operand, OperandBytes, Operation,
};
