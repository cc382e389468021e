//! The ranks of a simulated cluster.
//!
//! The cluster pairs the collectives of its devices itself, in virtual time; a body on the host moves the elements. This
//! is what the other groups are measured against, to the bit.

use std::sync::Arc;

use highwater::device::sim::{Collective, Communicator, SimCluster, SimDevice};
use highwater::device::{Access, ByteRange, Cost, Device, Operand};
use highwater::{Stream, View};
use highwater_kernels::host::{self, Update};

use super::{GroupError, ProcessGroup, check_lengths, link_bytes};

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
}

impl ProcessGroup for LocalGroup {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn ranks(&self) -> u32 {
        u32::try_from(self.communicator.ranks().len()).expect("ranks are counted by u32")
    }

    fn all_gather(&self, stream: &Stream, shard: View<'_, f32>, unsharded: View<'_, f32>) -> Result<(), GroupError> {
        check_lengths(self.ranks(), shard.len(), unsharded.len())?;
        let submitted = stream.submit_external("all-gather", &[shard], &[unsharded], |id, ranges| {
            let (source, receive) = (ranges.reads[0], ranges.writes[0]);
            let collective = Collective {
                communicator: self.communicator.clone(),
                name: "all-gather".into(),
                tag: stream.tag(),
                cost: Cost::transfer(link_bytes(self.ranks(), receive.bytes)),
                sends: vec![source; self.ranks() as usize],
                receive: Operand { range: receive, access: Access::Write },
                body: Box::new(|parts, out| {
                    let out: &mut [f32] = out.as_mut_slice();
                    // Empty shards have one place, of nothing.
                    let shard = (out.len() / parts.len()).max(1);
                    for (part, place) in parts.iter().zip(out.chunks_exact_mut(shard)) {
                        place.copy_from_slice(part.as_slice());
                    }
                }),
            };
            self.device.collective(id, collective)
        });
        Ok(submitted?)
    }

    fn reduce_scatter(
        &self,
        stream: &Stream,
        unsharded: View<'_, f32>,
        shard: View<'_, f32>,
        update: Update,
    ) -> Result<(), GroupError> {
        check_lengths(self.ranks(), shard.len(), unsharded.len())?;
        let submitted = stream.submit_external("reduce-scatter", &[unsharded], &[shard], |id, ranges| {
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
                cost: Cost::transfer(link_bytes(self.ranks(), source.bytes)),
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
        });
        Ok(submitted?)
    }
}
