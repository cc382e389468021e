//! A stream-aware caching GPU memory allocator.
//!
//! GPU work is asynchronous: the host submits, streams run later and side by side. This allocator knows which streams
//! use each block, and gives a block to someone else only when that is safe, without stopping the host.
//!
//! ```
//! use highwater::{Allocator, device::{Cost, sim::SimDevice}};
//! # fn main() -> Result<(), highwater::Error> {
//! let allocator = Allocator::new(SimDevice::new(Default::default()))?;
//! let compute = allocator.default_stream();
//! let side = allocator.create_stream("side")?;
//!
//! let x = compute.alloc::<f32>(1024)?;
//! compute.launch("fill", Cost::kernel(0, 4096)).write(&x).body(|bytes| bytes[0].as_mut_slice::<f32>().fill(2.0)).submit()?;
//! side.wait(&compute.record()?)?; // `side` goes on when `x` has been filled
//!
//! let y = side.alloc::<f32>(1024)?;
//! side.launch("copy", Cost::kernel(0, 8192)).read(&x).write(&y).body(|bytes| {
//!     let source = bytes[0].clone();
//!     bytes[1].as_mut_slice::<f32>().copy_from_slice(source.as_slice());
//! }).submit()?;
//! drop(x); // still in use on `side`: `compute` gets these bytes when that is over, and nobody waits for it here
//! # Ok(()) }
//! ```
//!
//! # What is recorded, and what is not
//!
//! A launch or a copy through [`Stream`] records its uses: they last until the first fence that is recorded behind it
//! (the free records one if nobody did). Work that is submitted past this crate is given its memory by [`Buffer::on`],
//! whose guard orders the stream and records the use; with the feature `cuda`, calls of cudarc take buffers themselves
//! (see the module `cuda`). Work that this crate does not see at all needs [`Buffer::record_stream`] (everything given
//! to the stream by the time of the free) or [`Buffer::record_use`] (up to a fence). Pointers that are stored inside
//! other buffers are seen by nobody: record their uses by hand. After [`Buffer::device_address`] has been called every
//! use of the buffer counts as a whole-stream use.
//!
//! # When work fails
//!
//! Work fails long after the call that submitted it has returned, and the error comes back from whatever call notices
//! first. Such errors name the operation and the stream that failed, as far as the device knows them
//! ([`device::DeviceError::failed_operation`]). With [`SettingsBuilder::launch_blocking`] each submission waits for its
//! work and returns the error itself. Memory runs out in the wrong place too: [`OutOfMemory`] names the lines and the
//! streams that hold it.
//! # Streams that wait for others
//!
//! Collectives wait for other ranks, host functions for the host. A stream that is given such work is *open*:
//! [`Stream::mark_open`] says what the allocator never does behind it, and how to order streams then.
//!
//! # Modules
//!
//! [`device`] is the contract that a GPU keeps, with the simulated device; [`history`] is the recorder and the snapshot
//! format. The decisions are made in the crate `highwater-core`, which knows no device.

/// The examples of the README are tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

mod aliases;
mod allocation;
mod allocator;
mod black_box;
mod buffer;
mod capture;
#[cfg(feature = "why")]
mod cause;
mod climb;
#[cfg(feature = "cuda")]
pub mod cuda;
mod error;
mod fence;
mod heap_state;
mod hold;
mod holders;
mod host;
mod launch;
mod launch_blocking;
mod on;
mod page_time;
mod pages;
mod peak;
mod process;
mod progress;
mod raw;
mod registry;
mod room;
#[cfg(feature = "sanitizer")]
pub mod sanitizer;
mod settings;
mod shared;
mod slot;
mod snapshot;
mod stamp;
mod stats;
mod stream;
mod teardown;

pub use highwater_device as device;
pub use highwater_history as history;

pub use allocator::{Allocator, PressureGuard};
pub use buffer::{Buffer, View};
pub use bytemuck::Pod;
pub use capture::{Capture, Graph};
pub use error::{
    AllocError, Cause, Error, LiveSite, OutOfMemory, PointerError, SettingsError, StreamBytes, StreamError,
};
pub use fence::Fence;
pub use highwater_core::GaugeReading;
pub use highwater_core::Policy;
pub use host::HostBuffer;
pub use launch::{External, Launch};
pub use on::{On, UsesStream};
pub use settings::{Settings, SettingsBuilder};
pub use stats::MemoryStats;
pub use stream::Stream;
