//! One rank a process, through NCCL.
//!
//! Everything works in place, so NCCL needs no more memory of ours: the own shard is copied to its place in the
//! unsharded memory first, and the sum is left there before it goes to the shard. The body of a launch returns when NCCL
//! has submitted its work, so a fence recorded afterwards covers it.
//!
//! `library` holds the calls of NCCL, `communicator` bounds them in time, `rendezvous` brings the ranks together.

mod communicator;
mod library;
mod rendezvous;

use std::sync::Arc;
use std::time::Duration;

use highwater::device::cuda::CudaDevice;
use highwater::device::{Cost, DeviceCall, DeviceError, DriverStream};
use highwater::{Stream, StreamError, View};
use highwater_kernels as kernels;
use highwater_kernels::host::Update;
use parking_lot::Mutex;

use super::{GroupError, Place, ProcessGroup, check_lengths, driver, link_bytes};
use communicator::Communicator;
use library::Nccl;
pub use rendezvous::RendezvousError;

/// NCCL's version: major, minor, patch.
///
/// # Errors
/// [`GroupError::Missing`] when there is none, or one that is too old. The environment's `HIGHWATER_NCCL` may hold the
/// path of the library.
pub fn nccl_version() -> Result<(u32, u32, u32), GroupError> {
    Ok(Nccl::get()?.version())
}

/// This process's membership in a group of processes, one rank each, on a GPU each.
///
/// The sum of a reduce-scatter is NCCL's: its order is not that of the ranks, and may change with their number.
///
/// The host waits for others only in bounded steps. A rank that never issues its part of a collective leaves the
/// streams of the others waiting, which the host notices where it waits for them.
#[derive(Debug)]
pub struct NcclGroup {
    rank: u32,
    ranks: u32,
    communicator: Arc<Communicator>,
}

impl NcclGroup {
    /// Joins the ranks of `place` on a GPU: rank 0 listens and tells the others the group's id, then NCCL connects all.
    /// Each of the two may take `timeout`, as may any collective until it is submitted.
    ///
    /// # Errors
    /// When NCCL is missing, ranks do not come, or what they say does not fit.
    pub fn join(device: &CudaDevice, place: &Place, timeout: Duration) -> Result<Self, GroupError> {
        let nccl = Nccl::get()?;
        let (rank, ranks) = (place.rank, place.world_size);
        let failed = |operation, text| GroupError::Nccl { rank, operation, sequence: 0, text };
        device.context().bind_to_thread().map_err(|error| failed("taking the GPU's context", error.to_string()))?;
        let make = || nccl.unique_id().map_err(|answer| failed("making the group's id", nccl.text(answer)));
        let id = rendezvous::exchange(place, timeout, make)?;
        let communicator = Arc::new(Communicator::join(nccl, ranks, rank, id, timeout)?);
        Ok(NcclGroup { rank, ranks, communicator })
    }

    /// Submits one collective: what it needs of the launch, and the body that calls NCCL.
    fn submit(
        &self,
        launch: highwater::Launch<'_>,
        body: impl FnOnce(&Communicator, DriverStream) -> Result<(), GroupError> + Send + 'static,
    ) -> Result<(), GroupError> {
        let failed = Arc::new(Mutex::new(None));
        let (tell, communicator) = (failed.clone(), self.communicator.clone());
        let launch = launch.driver_body(move |stream| {
            body(&communicator, stream).map_err(|error| {
                let text = error.to_string();
                *tell.lock() = Some(error);
                DeviceError::Driver { call: DeviceCall::Collective, name: "NCCL".into(), text }
            })
        });
        let submitted = launch.submit();
        let failed = failed.lock().take();
        match failed {
            Some(error) => Err(error),
            None => Ok(submitted?),
        }
    }

    fn cost(&self, unsharded: View<'_, f32>) -> Cost {
        Cost::transfer(link_bytes(self.ranks, (unsharded.len() * size_of::<f32>()) as u64))
    }

    /// Refuses what cannot be issued, and opens the stream, before anything is submitted: it waits for the other ranks.
    fn begin(&self, stream: &Stream, shard: usize, unsharded: usize) -> Result<(), GroupError> {
        check_lengths(self.ranks, shard, unsharded)?;
        stream.mark_open();
        stream.cuda_device().map(drop).ok_or(GroupError::NoGpu { rank: self.rank })
    }
}

/// The error of a copy beside NCCL.
fn copy_error(doing: &str) -> impl FnOnce(DeviceError) -> GroupError {
    move |source| StreamError::Device { doing: doing.to_owned(), source }.into()
}

impl ProcessGroup for NcclGroup {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn all_gather(&self, stream: &Stream, shard: View<'_, f32>, unsharded: View<'_, f32>) -> Result<(), GroupError> {
        self.begin(stream, shard.len(), unsharded.len())?;
        let elements = shard.len();
        // Read as well: NCCL sends the own part from its place.
        let launch = stream.launch("all-gather", self.cost(unsharded)).read(shard).read_write(unsharded);
        let (source, all) = (launch.operands()[0].range, launch.operands()[1].range);
        let own = all.address.offset(u64::from(self.rank) * source.bytes);
        self.submit(launch, move |communicator, stream| {
            if elements == 0 {
                return Ok(());
            }
            driver::copy(stream, source.address, own, source.bytes).map_err(copy_error("copying the own shard"))?;
            let places = (own, all.address);
            communicator.call("all-gather", |nccl, comm| nccl.all_gather(comm, stream, places, elements))
        })
    }

    fn reduce_scatter(
        &self,
        stream: &Stream,
        unsharded: View<'_, f32>,
        shard: View<'_, f32>,
        update: Update,
    ) -> Result<(), GroupError> {
        self.begin(stream, shard.len(), unsharded.len())?;
        let elements = shard.len();
        let launch = stream.launch("reduce-scatter", self.cost(unsharded)).read_write(unsharded);
        let launch = if update == Update::Store { launch.write(shard) } else { launch };
        let (all, target) = (launch.operands()[0].range, launch.operands().get(1).map(|operand| operand.range));
        let own = all.address.offset(u64::from(self.rank) * (elements * size_of::<f32>()) as u64);
        self.submit(launch, move |communicator, stream| {
            if elements == 0 {
                return Ok(());
            }
            let places = (own, all.address);
            communicator.call("reduce-scatter", |nccl, comm| nccl.reduce_scatter(comm, stream, places, elements))?;
            let Some(target) = target else { return Ok(()) };
            driver::copy(stream, own, target.address, target.bytes).map_err(copy_error("copying the sum"))
        })?;
        if update == Update::Accumulate {
            let first = self.rank as usize * elements;
            kernels::accumulate(stream, unsharded.slice(first..first + elements), shard)?;
        }
        Ok(())
    }
}
