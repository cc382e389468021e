//! Training on a GPU: a thread for each rank, or one rank in this process.
//!
//! Operations are timed in the first and last steps only: the events around them cost time. The prediction beside them is
//! the simulated device's, for the same plan.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use highwater::device::Executed;
use highwater::device::cuda::{CudaConfig, CudaDevice};
use highwater_fsdp::group::{DEFAULT_TIMEOUT, GroupError, NcclGroup, Place, ThreadGroup};
use highwater_fsdp::plan::Plan;
use highwater_fsdp::run::RunError;
use highwater_kernels::cuda::prepare;

use super::measure::{exposed_fraction, median_step_ns, step_of, windows};
use super::rank::{Crew, Finished, Group};
use super::tell::{Report, StepSeen, Told, tell};
use super::{Clock, Job, Outcome, SessionError, TIMELINE_STEPS, Times, Track, outcome, simulated};

/// How long ranks wait for each other: the first kernels are compiled meanwhile.
const TIMEOUT: Duration = DEFAULT_TIMEOUT;

/// All ranks in this process, on the first GPU.
pub(super) fn train_threads(
    job: &Job,
    plan: &Arc<Plan>,
    seen: &mut (dyn FnMut(&StepSeen) + Send),
) -> Result<Outcome, SessionError> {
    let crew = Crew::new(job, plan, job.steps);
    prepare(&*open(0)?)?;
    let first_failure = Mutex::new(None);
    let (reports, arriving) = channel();
    let (ranks, told) = std::thread::scope(|scope| {
        let teller = scope.spawn(|| tell(job.ranks as usize, arriving, seen));
        let threads: Vec<_> = ThreadGroup::all(job.ranks)
            .into_iter()
            .map(|group| {
                let (reports, crew, first_failure) = (reports.clone(), &crew, &first_failure);
                scope.spawn(move || {
                    let failed = |error| keep(&mut first_failure.lock().expect("keeping does not panic"), error);
                    open(0).and_then(|device| run(crew, &device, group, &reports)).map_err(failed).ok()
                })
            })
            .collect();
        drop(reports);
        let mut ranks = Vec::new();
        for (rank, thread) in (0..).zip(threads) {
            match thread.join() {
                Ok(timed) => ranks.extend(timed),
                Err(_) => {
                    keep(&mut first_failure.lock().expect("keeping does not panic"), SessionError::Panicked { rank });
                }
            }
        }
        (ranks, teller.join().expect("telling does not panic"))
    });
    match first_failure.into_inner().expect("nobody panics") {
        Some(error) => Err(error),
        None => finish(job, plan, ranks, told),
    }
}

/// Keeps the first failure, which is the cause; but that another rank is gone is never one.
fn keep(first: &mut Option<SessionError>, error: SessionError) {
    let is_consequence = |error: &SessionError| {
        let SessionError::Run(RunError::Operation { source, .. } | RunError::Rank { source, .. }) = error else {
            return false;
        };
        matches!(source.downcast_ref::<GroupError>(), Some(GroupError::Left { .. } | GroupError::Timeout { .. }))
    };
    if first.as_ref().is_none_or(is_consequence) {
        *first = Some(error);
    }
}

/// This process is one rank of several.
pub(super) fn train_nccl(
    job: &Job,
    plan: &Arc<Plan>,
    place: &Place,
    seen: &mut (dyn FnMut(&StepSeen) + Send),
) -> Result<Outcome, SessionError> {
    let device = open(place.local_rank)?;
    prepare(&device)?;
    let group = NcclGroup::join(&device, place, TIMEOUT)?;
    let mut crew = Crew::new(job, plan, job.steps);
    crew.gathers_losses = true;
    let (reports, arriving) = channel();
    let (rank, told) = std::thread::scope(|scope| {
        let teller = scope.spawn(|| tell(1, arriving, seen));
        let rank = run(&crew, &device, group, &reports);
        drop(reports);
        (rank, teller.join().expect("telling does not panic"))
    });
    finish(job, plan, vec![rank?], told)
}

/// A GPU; where there are fewer than local ranks, they share.
fn open(local_rank: u32) -> Result<Arc<CudaDevice>, SessionError> {
    let count = highwater::device::cuda::device_count()?.max(1);
    Ok(CudaDevice::new(CudaConfig { ordinal: local_rank % count, ..CudaConfig::default() })?)
}

/// A rank, and what it timed.
struct Timed<G> {
    rank: Finished<G>,
    operations: Vec<Executed>,
}

fn run<G: Group>(
    crew: &Crew<'_>,
    device: &Arc<CudaDevice>,
    group: G,
    reports: &Sender<Report>,
) -> Result<Timed<G>, SessionError> {
    let rank = group.rank();
    let last = crew.steps.saturating_sub(TIMELINE_STEPS);
    device.set_timeline(true)?;
    let finished = crew.run(device.clone(), group, reports, |step| {
        if step + 1 == TIMELINE_STEPS && step + 1 < last {
            device.set_timeline(false)?;
        }
        if step + 1 == last {
            device.set_timeline(true)?;
        }
        if step + 1 == crew.steps {
            device.set_timeline(false)?;
        }
        Ok(())
    })?;
    let operations = numbered(windows(device.take_timeline()?, crew.steps), rank, crew.job.ranks);
    Ok(Timed { rank: finished, operations })
}

/// Operations with the rank for their device, and numbers that no other rank's have.
fn numbered(operations: Vec<Executed>, rank: u32, ranks: u32) -> Vec<Executed> {
    let number = |id: u64| id * u64::from(ranks) + u64::from(rank);
    let of_rank = |mut executed: Executed| {
        executed.device = rank;
        executed.id = number(executed.id);
        executed.waited.iter_mut().for_each(|id| *id = number(*id));
        executed
    };
    operations.into_iter().map(of_rank).collect()
}

fn finish<G: Group>(
    job: &Job,
    plan: &Arc<Plan>,
    mut timed: Vec<Timed<G>>,
    told: Told,
) -> Result<Outcome, SessionError> {
    timed.sort_by_key(|timed| timed.rank.rank);
    let (ranks, operations): (Vec<_>, Vec<_>) = timed.into_iter().map(|timed| (timed.rank, timed.operations)).unzip();
    let measured: Vec<Executed> = operations.into_iter().flatten().collect();
    let first = ranks.first().map_or(0, |rank| rank.rank);
    let exposed_comm_fraction = exposed_fraction(&measured, first, plan);
    let step_ns = median_step_ns(&told.seen_ns);
    let predicted = aligned(simulated::predict(job, plan)?.timeline, &measured, job.steps);
    let timeline =
        vec![Track { label: "measured", operations: measured }, Track { label: "predicted", operations: predicted }];
    outcome(job, plan, &ranks, told, Times { clock: Clock::Measured, exposed_comm_fraction, step_ns, timeline })
}

/// The predicted operations, moved to where the last measured steps begin.
fn aligned(mut predicted: Vec<Executed>, measured: &[Executed], steps: u64) -> Vec<Executed> {
    let last = steps.saturating_sub(TIMELINE_STEPS);
    let start = |operations: &mut dyn Iterator<Item = &Executed>| operations.map(|e| e.start_ns).min();
    let from = start(&mut predicted.iter());
    let to = start(&mut measured.iter().filter(|e| step_of(e).is_some_and(|step| step >= last)));
    let (Some(from), Some(to)) = (from, to) else { return predicted };
    for executed in &mut predicted {
        for time in [&mut executed.submitted_ns, &mut executed.start_ns, &mut executed.end_ns] {
            *time = (*time + to).saturating_sub(from);
        }
    }
    predicted
}
