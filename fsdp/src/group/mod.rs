//! Process groups: the ranks that share parameters, and the two collectives that sharding needs.
//!
//! [`LocalGroup`] is a simulated cluster. On GPUs there are two: [`ThreadGroup`], the ranks of one process on one GPU,
//! and [`NcclGroup`], one rank a process. The first two give the same bits for any number of ranks; NCCL adds in an order
//! of its own.

mod driver;
mod error;
mod nccl;
mod place;
mod simulated;
mod threads;

use highwater::{Stream, StreamError, View};
use highwater_kernels::host::Update;

pub use error::GroupError;
pub use nccl::{NcclGroup, RendezvousError, nccl_version};
pub use place::{Place, PlaceError};
pub use simulated::LocalGroup;
pub use threads::ThreadGroup;

/// How long a rank waits for the others, if nothing else is said.
pub const DEFAULT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// One rank's membership in a group.
///
/// Every rank issues the same collectives in the same order. They are asynchronous: a call submits to the stream and
/// returns. A group may make the ranks meet on the host for that, for a bounded time. The stream is open from its first
/// collective on ([`Stream::mark_open`]).
pub trait ProcessGroup {
    /// This rank, from 0.
    fn rank(&self) -> u32;

    /// The number of ranks.
    fn ranks(&self) -> u32;

    /// Every rank's `shard`, in rank order, into `unsharded` of every rank. `unsharded` has ranks × the elements of
    /// `shard`.
    ///
    /// # Errors
    /// When the lengths do not fit, another rank does not come or issues something else, or the device fails.
    fn all_gather(&self, stream: &Stream, shard: View<'_, f32>, unsharded: View<'_, f32>) -> Result<(), GroupError>;

    /// The sum over all ranks, in rank order from rank 0 on, of this rank's part of `unsharded` into `shard`: stored, or
    /// added to what is there, one rank after the other. So several rounds add up as a left fold in the order (round,
    /// rank), whatever the number of ranks. (With NCCL: the sum of the ranks in an order of its own, then stored or
    /// added.) `unsharded` may hold anything afterwards.
    ///
    /// # Errors
    /// When the lengths do not fit, another rank does not come or issues something else, or the device fails.
    fn reduce_scatter(
        &self,
        stream: &Stream,
        unsharded: View<'_, f32>,
        shard: View<'_, f32>,
        update: Update,
    ) -> Result<(), GroupError>;
}

/// Bytes that one rank receives (and sends) when `unsharded` bytes are gathered or reduced.
fn link_bytes(ranks: u32, unsharded: u64) -> u64 {
    let ranks = u64::from(ranks);
    unsharded / ranks * (ranks - 1)
}

/// Refuses lengths, in elements, that do not fit.
fn check_lengths(ranks: u32, shard: usize, unsharded: usize) -> Result<(), StreamError> {
    let right = shard * ranks as usize;
    if unsharded == right {
        return Ok(());
    }
    Err(StreamError::LengthMismatch { what: "unsharded elements, and shard × ranks", left: unsharded, right })
}
