//! Training on the simulated cluster. Ranks run one at a time, by virtual host time, so the whole run is a function of
//! the job.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use highwater::device::sim::{SimCluster, SimConfig, SimDevice};
use highwater::device::{CostModel, Device, Executed, ExecutedKind};
use highwater_fsdp::group::LocalGroup;
use highwater_fsdp::plan::Plan;

use super::measure::{step_of, windows};
use super::rank::{Crew, Finished};
use super::tell::{StepSeen, Told, tell};
use super::{Clock, Job, Outcome, SessionError, TIMELINE_STEPS, Times, Track, outcome};

/// Trains, and measures in virtual time how much of the communication is exposed.
pub(super) fn train(
    job: &Job,
    plan: &Arc<Plan>,
    seen: &mut (dyn FnMut(&StepSeen) + Send),
) -> Result<Outcome, SessionError> {
    let Prediction { step_ns, exposed_comm_fraction, .. } = predict(job, plan)?;
    let config = SimConfig { timeline: true, ..SimConfig::default() };
    let run = Run::new(job, plan, config, job.steps);
    let (ranks, told) = run.go(seen)?;
    let operations = windows(run.cluster.take_timeline(), job.steps);
    let timeline = vec![Track { label: "", operations }];
    outcome(job, plan, &ranks, told, Times { clock: Clock::Virtual, exposed_comm_fraction, step_ns, timeline })
}

/// One run of all ranks.
struct Run<'a> {
    crew: Crew<'a>,
    cluster: SimCluster,
}

impl<'a> Run<'a> {
    fn new(job: &'a Job, plan: &Arc<Plan>, config: SimConfig, steps: u64) -> Self {
        Run { crew: Crew::new(job, plan, steps), cluster: SimCluster::new(job.ranks, config) }
    }

    fn go(&self, seen: &mut (dyn FnMut(&StepSeen) + Send)) -> Result<(Vec<Finished<LocalGroup>>, Told), SessionError> {
        let (reports, arriving) = channel();
        let ranks = self.crew.job.ranks;
        // The first failure is the cause; what other ranks see is mostly that nothing moves any more.
        let first_failure = Mutex::new(None);
        std::thread::scope(|scope| {
            let teller = scope.spawn(|| tell(ranks as usize, arriving, seen));
            let finished = self.cluster.run(|device| {
                let reports = reports.clone();
                let outcome = self.rank(&device, &reports);
                outcome.map_err(|error| first_failure.lock().expect("nobody panics").get_or_insert(error).to_string())
            });
            drop(reports);
            let told = teller.join().expect("telling does not panic");
            match first_failure.into_inner().expect("nobody panics") {
                Some(error) => Err(error),
                None => Ok((finished.into_iter().flatten().collect(), told)),
            }
        })
    }

    fn rank(
        &self,
        device: &Arc<SimDevice>,
        reports: &std::sync::mpsc::Sender<super::tell::Report>,
    ) -> Result<Finished<LocalGroup>, SessionError> {
        let rank = device.properties().ordinal;
        let group = LocalGroup::new(&self.cluster, device, "sharding", self.crew.job.ranks);
        self.crew.run(device.clone(), group, reports, |step| {
            self.watch(rank, step);
            Ok(())
        })
    }

    /// Keeps the operations of the first and last steps only. After step s has been issued, step s − 1 is complete on
    /// this rank, and step s − 2 on all.
    fn watch(&self, rank: u32, step: u64) {
        let last = self.crew.steps.saturating_sub(TIMELINE_STEPS);
        if rank == 0 && step == TIMELINE_STEPS + 1 && step + 1 < last {
            self.cluster.set_timeline(false);
        }
        if rank == 0 && step + 1 == last {
            self.cluster.set_timeline(true);
        }
    }
}

/// What virtual time says of a job before it is run.
pub(super) struct Prediction {
    /// A step in the steady state, ns.
    pub(super) step_ns: u64,
    /// (step − step with communication taking no time) ÷ communication alone.
    pub(super) exposed_comm_fraction: f64,
    /// Steps in the steady state.
    pub(super) timeline: Vec<Executed>,
}

/// Runs without arithmetic, with communication and with none.
pub(super) fn predict(job: &Job, plan: &Arc<Plan>) -> Result<Prediction, SessionError> {
    let whole = Steps::measure(job, plan, CostModel::default())?;
    let silent = Steps::measure(job, plan, CostModel::default().without_communication())?;
    let exposed = whole.step_ns.saturating_sub(silent.step_ns);
    let alone = whole.communication_ns;
    let exposed_comm_fraction = if alone == 0 { 0.0 } else { exposed as f64 / alone as f64 };
    Ok(Prediction { step_ns: whole.step_ns, exposed_comm_fraction, timeline: whole.timeline })
}

/// Steps in the steady state.
struct Steps {
    step_ns: u64,
    /// All collectives of a step, one after the other, on one rank.
    communication_ns: u64,
    timeline: Vec<Executed>,
}

impl Steps {
    /// Steps before the measured ones, and those measured.
    const WARM_UP: u64 = 2;
    const MEASURED: u64 = 4;

    fn measure(job: &Job, plan: &Arc<Plan>, cost: CostModel) -> Result<Self, SessionError> {
        let config = SimConfig { cost, bodies: false, timeline: true, workers: 0, ..SimConfig::default() };
        let mut run = Run::new(job, plan, config, Self::WARM_UP + Self::MEASURED);
        run.crew.computes = false;
        run.go(&mut |_| {})?;
        let mut timeline = run.cluster.take_timeline();
        timeline.retain(|executed| step_of(executed).is_some());
        let of_rank_0 = |step: u64| timeline.iter().filter(move |e| e.device == 0 && step_of(e) == Some(step));
        let end = |step| of_rank_0(step).map(|executed| executed.end_ns).max().unwrap_or(0);
        let last = Self::WARM_UP + Self::MEASURED - 1;
        let collectives = of_rank_0(last).filter(|e| matches!(e.kind, ExecutedKind::Collective { .. }));
        let communication_ns = collectives.map(|executed| executed.end_ns - executed.start_ns).sum();
        let step_ns = (end(last) - end(Self::WARM_UP - 1)) / Self::MEASURED;
        let first = (Self::WARM_UP + Self::MEASURED).saturating_sub(TIMELINE_STEPS);
        timeline.retain(|executed| step_of(executed).is_some_and(|step| step >= first));
        Ok(Steps { step_ns, communication_ns, timeline })
    }
}
