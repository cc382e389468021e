//! What happened to memory: a recorder of its history, and the snapshots that show it.
//!
//! **The recorder** is always on and costs little. A [`Record`] is 64 bytes: a time, an [`Action`] and a [`Context`],
//! which is the caller's line and its `tracing` span path. Records go to a [`Ring`] that keeps the newest of them within
//! a bound in bytes. [`SpanPathLayer`] keeps the span path of each thread.
//!
//! **Snapshots** (feature `snapshot`) join what is mapped now with the records, in the schema of PyTorch's memory
//! snapshots, so that PyTorch's own viewer and scripts open them. What that schema cannot say (uses on other streams,
//! what a free waits for, how a request found memory, host waits) is added under one key of its own. A snapshot can be
//! [checked](Snapshot::check), and is [saved](Snapshot::save) whole or not at all.
//!
//! **The viewer's check** (feature [`viewer`]) does with a file what the viewer's page does, and says where it would
//! stop.
//!
//! **The reader** (feature `read`) loads snapshots of any origin into columns, damaged ones as far as they go. Compressed
//! files take the feature `unpack`.
//!
//! **The analyser** (feature `why`) says why memory ran out, with the bytes.
//!
//! **Looking into snapshots** (feature `inspect`): memory at any moment, two runs beside each other, smaller and mended
//! files.
//!
//! **The timeline** (feature `why` too) has each block and each mapped range with its time, for pages that show them.
//!
//! This crate knows no device and no allocator, only integers.
//!
#![cfg_attr(feature = "viewer", doc = "```")]
#![cfg_attr(not(feature = "viewer"), doc = "```ignore")]
//! use highwater_history::{
//!     Action, Context, MappedRange, Record, Ring, Segment, Snapshot, StackId, merge, viewer,
//! };
//!
//! let mut ring = Ring::new(1 << 20);
//! let mut record = |time_ns, action| ring.push(Record { time_ns, action, context: Context::here() });
//! record(1_000, Action::SegmentMap { address: 0x20_0000, bytes: 0x20_0000, stream: 1 });
//! record(2_000, Action::Alloc { address: 0x20_0000, bytes: 1000, rounded_bytes: 1024, stream: 1 });
//! record(3_000, Action::Freed { address: 0x20_0000, bytes: 1000, stream: 1 });
//!
//! let mut snapshot = Snapshot::new();
//! snapshot.add_records(0, merge(&[&ring]));
//! let mapped = MappedRange { address: 0x20_0000, bytes: 0x20_0000, stream: 1, stack: StackId::EMPTY };
//! snapshot.devices[0].segments = Segment::runs(vec![mapped], vec![]).unwrap();
//! snapshot.check().unwrap();
//!
//! let mut file = Vec::new();
//! snapshot.write_to(&mut file).unwrap();
//! assert_eq!(viewer::check(&file).unwrap().peak_bytes, 1000);
//! ```

mod layer;
mod record;
mod ring;
mod span;

#[cfg(feature = "snapshot")]
mod check;
#[cfg(feature = "snapshot")]
mod convert;
#[cfg(feature = "inspect")]
pub mod inspect;
#[cfg(feature = "snapshot")]
mod layout;
#[cfg(feature = "snapshot")]
mod pickle;
#[cfg(feature = "read")]
pub mod read;
#[cfg(feature = "snapshot")]
mod replay;
#[cfg(feature = "snapshot")]
mod save;
#[cfg(any(feature = "viewer", feature = "read"))]
mod scan;
#[cfg(feature = "snapshot")]
mod snapshot;
#[cfg(feature = "snapshot")]
mod stacks;
#[cfg(feature = "why")]
mod state;
#[cfg(feature = "why")]
pub mod timeline;
#[cfg(feature = "viewer")]
pub mod viewer;
#[cfg(feature = "why")]
pub mod why;
#[cfg(feature = "snapshot")]
mod write;

pub use layer::SpanPathLayer;
pub use record::{Action, Context, FenceState, Record, Rung};
pub use ring::{Ring, merge};
pub use span::{SpanName, SpanPath};

#[cfg(feature = "snapshot")]
pub use {
    check::{CheckError, TraceFault},
    layout::MappedRange,
    replay::ReplayFault,
    save::{SaveError, replace_file},
    snapshot::{
        AllocatorSettings, Annotation, Block, BlockState, DeviceHistory, DeviceMemory, DeviceNotes, Noted, PendingFree,
        PendingWait, ProcessMemory, RungTaken, Segment, SegmentKind, Snapshot, Stage, Stall, StreamName, StreamUse,
        TraceAction, TraceEvent, WaitInserted,
    },
    stacks::{Frame, StackId, Stacks},
    write::WriteError,
};
