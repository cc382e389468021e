//! Running a program: on one device or on all of a cluster, once or twice.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use highwater::device::sim::{Executed, Mode, SimCluster, SimConfig, SimDevice};
use highwater::device::{CostModel, DeviceError};

use super::ending::{Remains, never_began};
use super::host::{Host, lock};
use super::oracle::{describe_hazard, judge};
use super::program::{Config, Program};
use super::verdict::{Coverage, Failure, Rule, Transcript};
use super::watched::{Defect, Mapped, Watched};

/// What a run came to.
pub struct Outcome {
    /// The rule that was broken, if one was.
    pub failure: Option<Failure>,
    /// What was met.
    pub met: Coverage,
    /// What each step did, when that was asked for.
    pub story: Vec<String>,
    transcript: Transcript,
}

/// Runs a program twice, with different numbers of body threads: it must keep all rules and do the same both times.
#[must_use]
pub fn run_twice(program: &Program) -> Outcome {
    let mut first = run(program, 0, None, false);
    if first.failure.is_some() {
        return first;
    }
    let second = run(program, 2, None, false);
    if let Some(failure) = second.failure {
        first.failure = Some(Failure { what: format!("only the second time: {failure}"), ..failure });
    } else if let Some(entry) = first.transcript.difference(&second.transcript) {
        first.failure = Some(Failure::new(Rule::Replay, format!("entry {entry} of the transcripts differs")));
    }
    first
}

/// Runs a program once.
#[must_use]
pub fn run(program: &Program, workers: usize, defect: Option<Defect>, tell: bool) -> Outcome {
    let config = &program.config;
    let cluster = SimCluster::new(config.ranks.into(), sim_config(config, workers));
    let all: Vec<u32> = (0..u32::from(config.ranks)).collect();
    let communicator = cluster.communicator("all", &all);
    let logs = Mutex::new(vec![Vec::new(); usize::from(config.ranks)]);
    let host = |rank: u8, sim: Arc<SimDevice>| {
        let device = Watched::new(sim, defect);
        let remains = match Host::new(program, rank, device.clone(), communicator.clone(), tell) {
            Err(failure) => never_began(failure),
            Ok(mut host) => {
                let failure = host.run().err();
                host.end(failure)
            }
        };
        lock(&logs)[usize::from(rank)] = device.mapped();
        remains
    };
    let remains = catch_unwind(AssertUnwindSafe(|| match config.ranks {
        1 => vec![host(0, cluster.device(0))],
        _ => {
            let ordinal = |device: &SimDevice| {
                let properties = highwater::device::Device::properties(device);
                u8::try_from(properties.ordinal).expect("a cluster of the swarm is small")
            };
            cluster.run(|device| host(ordinal(&device), device))
        }
    }));
    let remains = remains.unwrap_or_else(|_| vec![never_began(Failure::new(Rule::Panic, "outside of the steps"))]);
    let logs = lock(&logs).clone();
    sum_up(config, &cluster, remains, &logs)
}

fn sim_config(config: &Config, workers: usize) -> SimConfig {
    let cost = CostModel { launch_ns: 3, record_ns: 1, query_ns: 1, wait_ns: 1, ..CostModel::free() };
    SimConfig {
        cost,
        mode: if config.timed { Mode::Timed } else { Mode::Adversarial { seed: config.seed } },
        memory_bytes: config.memory_bytes(),
        granularity_bytes: config.granule_bytes,
        workers,
        bodies: true,
        timeline: true,
        ..SimConfig::default()
    }
}

/// Executes what is left and holds everything against the oracle.
fn sum_up(config: &Config, cluster: &SimCluster, remains: Vec<Remains>, logs: &[Vec<Mapped>]) -> Outcome {
    let (mut met, mut transcript, mut story) = (Coverage::default(), Transcript::default(), Vec::new());
    let mut failure: Option<Failure> = None;
    let poisoned = remains.iter().any(|remains| remains.poisoned);
    let settled = cluster.settle();
    let timeline = cluster.take_timeline();
    for executed in &timeline {
        let Executed { id, device, stream, start_ns, end_ns, .. } = executed;
        transcript.note(&format!("{id} {device} {stream:?} {start_ns} {end_ns}"));
    }
    for (rank, remains) in remains.into_iter().enumerate() {
        let mut found = remains.failure;
        if found.is_none() {
            let executed: Vec<&Executed> = timeline.iter().filter(|one| one.device == rank as u32).collect();
            found = judge(&remains.oracle, &executed, &logs[rank], poisoned || settled.is_err()).err();
        }
        // Where one rank fails others are stuck: what came first counts.
        let place = |failure: &Failure| (failure.rule == Rule::Stuck, failure.step.unwrap_or(usize::MAX));
        failure = failure.into_iter().chain(found).min_by_key(place);
        met.merge(&remains.met);
        transcript.note(&format!("{:?}", remains.transcript));
        story.extend(remains.story.unwrap_or_default());
    }
    let late = || match &settled {
        Err(DeviceError::Injected { .. }) | Ok(()) => None,
        Err(_) if poisoned => None,
        Err(fault) => Some(Failure::new(Rule::Fault, format!("at the end: {fault}"))),
    };
    let raced = || cluster.hazards().first().map(|hazard| Failure::new(Rule::Race, describe_hazard(hazard)));
    let failure = failure.or_else(raced).or_else(late);
    met.add("several ranks", u64::from(config.ranks > 1));
    met.add("several allocators", u64::from(config.allocators > 1));
    met.add("timed", u64::from(config.timed));
    met.add("operations", timeline.len() as u64);
    Outcome { failure, met, story, transcript }
}
