//! The allocator's core: which bytes are whose, and when they may be someone else's.
//!
//! It is pure. It knows numbers (addresses, bytes, streams, positions in streams) and no device: it says what to do
//! (map this gap, wait for these positions, unmap those handles), its caller does it and tells it what came of it. It
//! never blocks, except on the short lock of a heap, which is also where the `unsafe` code is (`latch`, `barrier`).
//!
//! - [`Clock`]: what has been submitted to a stream, what is known to be complete, and what is proven to come before
//!   what will be submitted next.
//! - [`Openness`]: whether a stream may be held up by more than this GPU, and by which fences.
//! - [`Heap`]: the memory of one stream. Free memory of a stream may be given out at once on that stream; memory with
//!   uses on other streams stays *pending* until those are complete, or proven to come first.
//! - [`Ladder`]: what to try, in which order, when no free memory fits.
//! - [`Station`]: the lock of a heap, which a free from elsewhere never waits for.
//! - [`Ledger`]: physical bytes of the whole device, and the limit on them.
//!
//! The same calls with the same observed completions give the same addresses: everything that is iterated is ordered.

#[cfg(not(loom))]
mod barrier;
mod books;
mod clock;
mod heap;
mod holds;
mod ladder;
mod latch;
mod openness;
mod space;
mod station;
mod sync;
mod tiles;
mod trail;
mod units;
mod uses;
mod window;

pub use books::{Books, GaugeReading, Ledger, Shortage};
pub use clock::{Clock, Demand, Stamp};
pub use heap::{BlockInfo, CheckError, Freed, Heap, Placement, Retired, Satisfied, TileInfo, TileKind, Unoccupied};
pub use holds::{Handles, Prepaid};
pub use ladder::{Ladder, Policy, Rung};
pub use openness::{Hold, Openness, Outlook};
pub use space::Mapping;
pub use station::{Receive, Station, StationGuard};
pub use units::{BlockId, PageId, Position, ROUNDING_BYTES, SMALL_BYTES, StreamIndex, rounded};
pub use uses::{Until, Uses, Wait, join_waits};
pub use window::{Ghost, GhostState, Piece, Spare, Supply, Window, handle_bytes};
