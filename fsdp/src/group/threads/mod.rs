//! The ranks of one process on one GPU: a thread, an allocator and a device each.
//!
//! All devices are on the primary context of the GPU, so an address of one is good for all. The ranks meet on the host
//! once for each collective, inside the bodies of their launches; the last one to come submits to the streams of all,
//! and the device orders the rest. Nobody waits for the device, but after a failure.
//!
//! Lock: that of the meeting, and inside it that of the events.

mod meeting;
mod steps;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use highwater::cuda::cuda_device;
use highwater::device::cuda::CudaDevice;
use highwater::device::{Cost, DeviceError, DeviceResult};
use highwater::{Stream, View};
use highwater_kernels::host::Update;
use highwater_kernels::sum_ranks_on_gpu;
use parking_lot::Mutex;

use super::driver::{self, Event};
use super::{DEFAULT_TIMEOUT, GroupError, ProcessGroup, check_lengths, link_bytes};
use meeting::{Failure, Meeting};
use steps::{Kind, Posted, Step};

/// One rank's membership in the group of the ranks of this process, which share one GPU.
///
/// When it is dropped the rank leaves the group: collectives that the others still issue fail.
pub struct ThreadGroup {
    rank: u32,
    ranks: u32,
    timeout: Duration,
    shared: Arc<Shared>,
}

struct Shared {
    meeting: Meeting<Posted>,
    /// Two a rank, used again in each collective: a wait takes an event's state at the time of the wait.
    events: Mutex<Vec<Event>>,
}

impl fmt::Debug for ThreadGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadGroup")
            .field("rank", &self.rank)
            .field("ranks", &self.ranks)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

impl ThreadGroup {
    /// A group of `ranks` ranks, the membership of each in rank order. A rank waits for the others for
    /// [`DEFAULT_TIMEOUT`](super::DEFAULT_TIMEOUT).
    ///
    /// # Panics
    /// When `ranks` is 0.
    #[must_use]
    pub fn all(ranks: u32) -> Vec<ThreadGroup> {
        assert!(ranks > 0, "a group has at least one rank");
        let shared = Arc::new(Shared { meeting: Meeting::new(ranks), events: Mutex::default() });
        (0..ranks).map(|rank| ThreadGroup { rank, ranks, timeout: DEFAULT_TIMEOUT, shared: shared.clone() }).collect()
    }

    /// With another time to wait for the others.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Makes all collectives of all ranks fail from now on, with `why`.
    pub fn poison(&self, why: &str) {
        self.shared.meeting.leave(self.rank, why);
    }

    /// Submits one collective: the launch declares what this rank reads and writes, its body meets the others.
    fn collective(
        &self,
        stream: &Stream,
        kind: Kind,
        shard: View<'_, f32>,
        unsharded: View<'_, f32>,
    ) -> Result<(), GroupError> {
        check_lengths(self.ranks, shard.len(), unsharded.len())?;
        // Before anything is submitted: it waits for the other ranks.
        stream.mark_open();
        let rank = self.rank;
        let gpu = stream.cuda_device().ok_or(GroupError::NoGpu { rank })?;
        let context = gpu.context().cu_ctx() as u64;
        let elements = shard.len();
        let bytes = (unsharded.len() * size_of::<f32>()) as u64;
        let launch = stream.launch(kind.name(), Cost::transfer(link_bytes(self.ranks, bytes)));
        let launch = match kind {
            Kind::Gather => launch.read(shard).write(unsharded),
            Kind::Reduce(Update::Store) => launch.read(unsharded).write(shard),
            Kind::Reduce(Update::Accumulate) => launch.read(unsharded).read_write(shard),
        };
        // In the order of their declaration.
        let (first, second) = (launch.operands()[0].range.address, launch.operands()[1].range.address);
        let (shard, unsharded) = if kind == Kind::Gather { (first, second) } else { (second, first) };
        let ended = Arc::new(Mutex::new(None));
        let (tell, shared, timeout, device) =
            (ended.clone(), self.shared.clone(), self.timeout, stream.device().clone());
        let body = move |stream| {
            let device = cuda_device(&*device).expect("it was a GPU a moment ago");
            let issue = |all: &[Posted]| shared.issue(device, all);
            let posted = Posted { kind, elements, context, stream, shard, unsharded };
            let met = shared.meeting.meet(rank, posted, timeout, issue);
            met.map_err(|(sequence, failure)| {
                let what = failure.to_string();
                *tell.lock() = Some((sequence, failure));
                DeviceError::CollectiveMismatch { communicator: "threads".into(), sequence, what }
            })
        };
        let submitted = launch.driver_body(body).submit();
        let ended = ended.lock().take();
        match ended {
            Some((sequence, failure)) => Err(self.error(kind.name(), sequence, failure)),
            None => Ok(submitted?),
        }
    }

    fn error(&self, operation: &'static str, sequence: u64, failure: Failure) -> GroupError {
        let rank = self.rank;
        match failure {
            Failure::Mismatch(what) => GroupError::Mismatch { rank, operation, sequence, what },
            Failure::Timeout { waited, missing } => GroupError::Timeout { rank, operation, sequence, waited, missing },
            Failure::Left { left, why } => GroupError::Left { rank, operation, sequence, left, why },
            Failure::Device(source) => GroupError::Device { rank, operation, sequence, source },
        }
    }
}

impl Shared {
    /// Submits the work of all ranks. On a failure nothing of it runs any more when it returns.
    fn issue(&self, device: &CudaDevice, all: &[Posted]) -> Result<(), Failure> {
        if let Some(what) = steps::difference(all) {
            return Err(Failure::Mismatch(what));
        }
        self.submit(device, all).map_err(|error| {
            for posted in all {
                // The ranks will not record the uses. A device that does not answer has stopped.
                let _ = driver::synchronize(posted.stream);
            }
            Failure::Device(error)
        })
    }

    fn submit(&self, device: &CudaDevice, all: &[Posted]) -> DeviceResult<()> {
        let mut events = self.events.lock();
        while events.len() < 2 * all.len() {
            events.push(Event::new(device.context())?);
        }
        let stream = |rank: usize| all[rank].stream;
        for step in steps::steps(all) {
            match step {
                Step::Record { rank, event } => events[event].record(stream(rank))?,
                Step::Wait { rank, event } => events[event].hold_back(stream(rank))?,
                Step::Copy { rank, source, target, bytes } => driver::copy(stream(rank), source, target, bytes)?,
                Step::Sum { rank, out, sources, elements, update } => {
                    sum_ranks_on_gpu(device, stream(rank), out, &sources, elements, update)?;
                }
            }
        }
        Ok(())
    }
}

impl Drop for ThreadGroup {
    fn drop(&mut self) {
        let why = if std::thread::panicking() { "its thread panicked" } else { "its membership was dropped" };
        self.shared.meeting.leave(self.rank, why);
    }
}

impl ProcessGroup for ThreadGroup {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn ranks(&self) -> u32 {
        self.ranks
    }

    fn all_gather(&self, stream: &Stream, shard: View<'_, f32>, unsharded: View<'_, f32>) -> Result<(), GroupError> {
        self.collective(stream, Kind::Gather, shard, unsharded)
    }

    fn reduce_scatter(
        &self,
        stream: &Stream,
        unsharded: View<'_, f32>,
        shard: View<'_, f32>,
        update: Update,
    ) -> Result<(), GroupError> {
        self.collective(stream, Kind::Reduce(update), shard, unsharded)
    }
}

#[cfg(test)]
mod tests {
    use highwater::device::sim::{SimConfig, SimDevice};
    use highwater::{Allocator, Settings};

    use super::*;

    fn post(group: &ThreadGroup) -> Result<(), Failure> {
        let (kind, stream) = (Kind::Gather, highwater::device::DriverStream(0));
        let (shard, unsharded) = (highwater::device::Address(0), highwater::device::Address(0));
        let posted = Posted { kind, elements: 0, context: 0, stream, shard, unsharded };
        let met = group.shared.meeting.meet(group.rank, posted, group.timeout, |_| Ok(()));
        met.map_err(|(_, failure)| failure)
    }

    fn left(left: u32, why: &str) -> Result<(), Failure> {
        Err(Failure::Left { left, why: why.into() })
    }

    #[test]
    fn a_membership_that_is_dropped_leaves_the_group() {
        let [first, second] = ThreadGroup::all(2).try_into().unwrap();
        drop(first);
        assert_eq!(post(&second), left(0, "its membership was dropped"));
        let [first, second] = ThreadGroup::all(2).try_into().unwrap();
        let thread = std::thread::spawn(move || {
            let _second = second;
            panic!("on purpose");
        });
        assert!(thread.join().is_err());
        assert_eq!(post(&first), left(1, "its thread panicked"));
    }

    #[test]
    fn a_poisoned_group_fails_with_the_reason() {
        let [first, second] = ThreadGroup::all(2).try_into().unwrap();
        first.poison("no memory");
        assert_eq!(post(&second), left(0, "no memory"));
        assert_eq!(post(&first), left(0, "no memory"));
    }

    #[test]
    fn a_simulated_device_is_refused_before_anybody_is_met() {
        let [group] = ThreadGroup::all(1).try_into().unwrap();
        let allocator = Allocator::with_settings(SimDevice::new(SimConfig::default()), Settings::default()).unwrap();
        let stream = allocator.default_stream();
        let (shard, all) = (stream.alloc(4).unwrap(), stream.alloc(4).unwrap());
        let refused = group.all_gather(&stream, shard.view(), all.view());
        assert_eq!(refused, Err(GroupError::NoGpu { rank: 0 }));
        assert!(stream.is_open());
        assert_eq!(post(&group), Ok(()));
    }
}
