//! Process groups: the ranks that share parameters, and the two collectives that sharding needs.

use std::sync::Arc;

use highwater::device::sim::{Collective, Communicator, SimCluster, SimDevice};
use highwater::device::{Access, ByteRange, Cost, Device, Operand};
use highwater::{Stream, StreamError, View};
use highwater_kernels::host::{self, Update};

/// One rank's membership in a group.
///
/// Every rank issues the same collectives in the same order. They are asynchronous: a call submits to the stream and
/// returns.
pub trait ProcessGroup {
    /// This rank, from 0.
    fn rank(&self) -> u32;

    /// The number of ranks.
    fn ranks(&self) -> u32;

    /// Every rank's `shard`, in rank order, into `unsharded` of every rank. `unsharded` has ranks × the elements of
    /// `shard`.
    ///
    /// # Errors
    /// When the lengths do not fit, or the device fails.
    fn all_gather(&self, stream: &Stream, shard: View<'_, f32>, unsharded: View<'_, f32>) -> Result<(), StreamError>;

    /// The sum over all ranks, in rank order from rank 0 on, of this rank's part of `unsharded` into `shard`: stored, or
    /// added to what is there, one rank after the other. So several rounds add up as a left fold in the order (round,
    /// rank), whatever the number of ranks.
    ///
    /// # Errors
    /// When the lengths do not fit, or the device fails.
    fn reduce_scatter(
        &self,
        stream: &Stream,
        unsharded: View<'_, f32>,
        shard: View<'_, f32>,
        update: Update,
    ) -> Result<(), StreamError>;
}

/// The ranks of one process on a simulated cluster: one rank a device.
#[derive(Clone, Debug)]
pub struct LocalGroup {
    device: Arc<SimDevice>,
    communicator: Communicator,
    rank: u32,
}

impl LocalGroup {
    /// The membership of `device` in the group of all `ranks` devices of its cluster, on the communicator `name`.
    ///
    /// # Panics
    /// When the device's ordinal is not below `ranks`, or the cluster has fewer devices.
    #[must_use]
    pub fn new(cluster: &SimCluster, device: &Arc<SimDevice>, name: &str, ranks: u32) -> Self {
        let rank = device.properties().ordinal;
        assert!(rank < ranks, "device {rank} is none of the first {ranks}");
        let all: Vec<u32> = (0..ranks).collect();
        LocalGroup { device: device.clone(), communicator: cluster.communicator(name, &all), rank }
    }

    /// Bytes that one rank receives (and sends) when `unsharded` bytes are gathered or reduced.
    fn link_bytes(&self, unsharded: u64) -> u64 {
        let ranks = u64::from(self.ranks());
        unsharded / ranks * (ranks - 1)
    }

    fn check(&self, shard: usize, unsharded: usize) -> Result<(), StreamError> {
        let right = shard * self.ranks() as usize;
        if unsharded == right {
            return Ok(());
        }
        Err(StreamError::LengthMismatch { what: "unsharded elements, and shard × ranks", left: unsharded, right })
    }
}

impl ProcessGroup for LocalGroup {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn ranks(&self) -> u32 {
        u32::try_from(self.communicator.ranks().len()).expect("ranks are counted by u32")
    }

    fn all_gather(&self, stream: &Stream, shard: View<'_, f32>, unsharded: View<'_, f32>) -> Result<(), StreamError> {
        self.check(shard.len(), unsharded.len())?;
        stream.submit_external("all-gather", &[shard], &[unsharded], |id, ranges| {
            let (source, receive) = (ranges.reads[0], ranges.writes[0]);
            let collective = Collective {
                communicator: self.communicator.clone(),
                name: "all-gather".into(),
                tag: stream.tag(),
                cost: Cost::transfer(self.link_bytes(receive.bytes)),
                sends: vec![source; self.ranks() as usize],
                receive: Operand { range: receive, access: Access::Write },
                body: Box::new(|parts, out| {
                    let out: &mut [f32] = out.as_mut_slice();
                    for (part, place) in parts.iter().zip(out.chunks_exact_mut(out.len() / parts.len())) {
                        place.copy_from_slice(part.as_slice());
                    }
                }),
            };
            self.device.collective(id, collective)
        })
    }

    fn reduce_scatter(
        &self,
        stream: &Stream,
        unsharded: View<'_, f32>,
        shard: View<'_, f32>,
        update: Update,
    ) -> Result<(), StreamError> {
        self.check(shard.len(), unsharded.len())?;
        stream.submit_external("reduce-scatter", &[unsharded], &[shard], |id, ranges| {
            let (source, receive) = (ranges.reads[0], ranges.writes[0]);
            let piece = |rank: u64| ByteRange::new(source.address.offset(rank * receive.bytes), receive.bytes);
            let access = match update {
                Update::Store => Access::Write,
                Update::Accumulate => Access::ReadWrite,
            };
            let collective = Collective {
                communicator: self.communicator.clone(),
                name: "reduce-scatter".into(),
                tag: stream.tag(),
                cost: Cost::transfer(self.link_bytes(source.bytes)),
                sends: (0..u64::from(self.ranks())).map(piece).collect(),
                receive: Operand { range: receive, access },
                body: Box::new(move |parts, out| {
                    let out = out.as_mut_slice::<f32>();
                    for (rank, part) in parts.iter().enumerate() {
                        match (rank, update) {
                            (0, Update::Store) => out.copy_from_slice(part.as_slice()),
                            _ => host::accumulate(part.as_slice(), out),
                        }
                    }
                }),
            };
            self.device.collective(id, collective)
        })
    }
}
