//! Why a collective was not issued, or a group not formed.

use std::time::Duration;

use highwater::StreamError;
use highwater::device::DeviceError;
use highwater_kernels::KernelError;

use super::{PlaceError, RendezvousError};

/// Why a collective was not issued, or a group not formed.
///
/// After all but [`Stream`](GroupError::Stream) of a call that no other rank saw, the group is of no more use: every
/// later call answers with an error as well.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// The work could not be submitted.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A kernel could not be submitted.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The group needs a GPU.
    #[error("rank {rank}: the stream is on no GPU; a simulated device has a group of its own")]
    NoGpu {
        /// This rank.
        rank: u32,
    },
    /// The ranks issued collectives that do not match.
    #[error("rank {rank}, {operation} (collective {sequence}): {what}")]
    Mismatch {
        /// This rank.
        rank: u32,
        /// What this rank issued.
        operation: &'static str,
        /// Number of the collective in the group, from 0.
        sequence: u64,
        /// Which ranks differ, in what.
        what: String,
    },
    /// Something did not happen in time.
    #[error("rank {rank}, {operation} (collective {sequence}): {}", not_in_time(*.waited, .missing))]
    Timeout {
        /// This rank.
        rank: u32,
        /// What this rank issued.
        operation: &'static str,
        /// Number of the collective in the group, from 0.
        sequence: u64,
        /// How long was waited.
        waited: Duration,
        /// The ranks that did not come, where that is known.
        missing: Vec<u32>,
    },
    /// Another rank has left.
    #[error("rank {rank}, {operation} (collective {sequence}): rank {left} has left the group: {why}")]
    Left {
        /// This rank.
        rank: u32,
        /// What this rank issued.
        operation: &'static str,
        /// Number of the collective in the group, from 0.
        sequence: u64,
        /// The rank that left.
        left: u32,
        /// Why.
        why: String,
    },
    /// The device refused the work of the collective.
    #[error("rank {rank}, {operation} (collective {sequence}): {source}")]
    Device {
        /// This rank.
        rank: u32,
        /// What this rank issued.
        operation: &'static str,
        /// Number of the collective in the group, from 0.
        sequence: u64,
        /// What the device said.
        source: DeviceError,
    },
    /// NCCL failed.
    #[error("rank {rank}, {operation} (collective {sequence}): NCCL: {text}")]
    Nccl {
        /// This rank.
        rank: u32,
        /// What this rank asked for.
        operation: &'static str,
        /// Number of the collective in the group, from 0.
        sequence: u64,
        /// What NCCL said.
        text: String,
    },
    /// A library that is not there, or has not what is needed.
    #[error("{library} is missing: {what}")]
    Missing {
        /// The library.
        library: String,
        /// What follows, and what to do.
        what: String,
    },
    /// The environment does not say which rank this process is.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The ranks did not find each other.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
}

fn not_in_time(waited: Duration, missing: &[u32]) -> String {
    match missing {
        [] => format!("not done after {waited:?}"),
        [rank] => format!("rank {rank} did not come within {waited:?}"),
        ranks => format!("ranks {ranks:?} did not come within {waited:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_names_who_is_missing() {
        let text = |missing: &[u32]| {
            let (operation, waited) = ("all-gather", Duration::from_secs(60));
            GroupError::Timeout { rank: 1, operation, sequence: 7, waited, missing: missing.to_vec() }.to_string()
        };
        assert_eq!(text(&[]), "rank 1, all-gather (collective 7): not done after 60s");
        assert_eq!(text(&[0]), "rank 1, all-gather (collective 7): rank 0 did not come within 60s");
        assert_eq!(text(&[0, 3]), "rank 1, all-gather (collective 7): ranks [0, 3] did not come within 60s");
    }
}
