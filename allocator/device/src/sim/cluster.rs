//! The cluster: one lock, virtual time, and hosts that run one at a time.
//!
//! During [`SimCluster::run`] one thread for each device runs host code, but only the thread that holds the *baton*
//! does: at every device call the baton goes to the host whose virtual time is least. So the threads are a way to write
//! the program, not a source of chance. Outside a run, calls are simply made in the order in which they come.
//!
//! Lock: `Shared::state`. It is never held while host code runs. Bodies run under it, or on the pool's threads, which
//! never take it. The engine takes the lock of a [`HostMemory`](crate::HostMemory) under it, for the time of a copy.

use std::any::Any;
use std::cell::Cell;
use std::ops::{Deref, DerefMut, Range};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::collective::{Communicator, Group};
use super::device::SimDevice;
use super::engine::{Blocked, HostStatus, State, Wake};
use super::pool::{in_body, panic_message};
use super::timeline::Hazard;
use super::{Mode, SimConfig};
use crate::error::invalid;
use crate::{DeviceCall, DeviceError, DeviceResult, Executed};

thread_local! {
    /// The cluster and rank whose host code this thread runs.
    static RANK: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
    /// Whether this thread holds the lock of a cluster.
    static HOLDS_LOCK: Cell<bool> = const { Cell::new(false) };
}

/// A cluster of simulated devices. Clones are the same cluster.
#[derive(Clone)]
pub struct SimCluster {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for SimCluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimCluster").field("devices", &self.shared.turns.len()).finish_non_exhaustive()
    }
}

impl SimCluster {
    /// `devices` equal devices.
    ///
    /// # Panics
    /// When there is no device, or the granularity is not a power of two.
    #[must_use]
    pub fn new(devices: u32, config: SimConfig) -> Self {
        assert!(devices > 0, "a cluster has a device");
        assert!(config.granularity_bytes.is_power_of_two(), "the granularity is a power of two");
        let turns = (0..devices).map(|_| Condvar::new()).collect();
        SimCluster { shared: Arc::new(Shared { state: Mutex::new(State::new(devices, config)), turns }) }
    }

    /// Device `ordinal`. Every call gives the same device, by another handle.
    ///
    /// # Panics
    /// When there is no such device.
    #[must_use]
    pub fn device(&self, ordinal: u32) -> Arc<SimDevice> {
        assert!((ordinal as usize) < self.shared.turns.len(), "there is no device {ordinal}");
        Arc::new(SimDevice::attach(self.shared.clone(), ordinal))
    }

    /// The communicator of this name among these devices, in rank order. It is made by the first call; further calls
    /// with the same name and ranks (each rank may make one) give the same.
    ///
    /// # Panics
    /// When `ranks` is empty, has a device twice, or one that does not exist.
    #[must_use]
    pub fn communicator(&self, name: &str, ranks: &[u32]) -> Communicator {
        assert!(!ranks.is_empty(), "a communicator has a rank");
        for (index, rank) in ranks.iter().enumerate() {
            assert!((*rank as usize) < self.shared.turns.len(), "there is no device {rank}");
            assert!(!ranks[..index].contains(rank), "device {rank} is in {name:?} twice");
        }
        let mut state = self.shared.lock();
        let same = |group: &&Group| &*group.handle.name == name && *group.handle.ranks == *ranks;
        if let Some(group) = state.groups.iter().find(same) {
            return group.handle.clone();
        }
        let handle = Communicator { index: state.groups.len(), name: name.into(), ranks: ranks.into() };
        state.groups.push(Group::new(handle.clone()));
        handle
    }

    /// Runs `host` once for each device, each on a thread of its own, and returns what they return, in rank order.
    ///
    /// Host code runs one thread at a time; at each device call the thread with the least virtual time goes on (at
    /// equal times the lowest rank; in adversarial mode a random one). So a run replays exactly, provided that the host
    /// code does not depend on anything else. Host code that polls a fence needs calls that cost time, else it polls at
    /// one moment for ever. While a run is under way only its own threads may call the devices.
    ///
    /// # Panics
    /// When another run is under way. And when the host of a rank panics: every device then has the fault
    /// [`DeviceError::HostPanicked`], and once all threads have ended the panic goes on here.
    pub fn run<R: Send>(&self, host: impl Fn(Arc<SimDevice>) -> R + Sync) -> Vec<R> {
        {
            let mut state = self.shared.lock();
            assert!(!state.in_session, "a run of this cluster is already under way");
            state.in_session = true;
            state.baton = state.pass_time(self.shared.all_hosts());
        }
        let host = &host;
        let mut results = thread::scope(|scope| {
            let ranks = self.shared.all_hosts();
            let threads: Vec<_> = ranks.map(|rank| scope.spawn(move || self.host_thread(rank, host))).collect();
            threads.into_iter().map(thread::ScopedJoinHandle::join).collect::<Vec<thread::Result<R>>>()
        });
        let first_panic = {
            let mut state = self.shared.lock();
            state.in_session = false;
            state.baton = None;
            for host in &mut state.hosts {
                host.status = HostStatus::Runnable(None);
            }
            state.first_panic.take()
        };
        match first_panic {
            Some(rank) => match results.swap_remove(rank) {
                Err(payload) => resume_unwind(payload),
                Ok(_) => unreachable!("this rank panicked"),
            },
            None => results.into_iter().map(|result| result.unwrap_or_else(|payload| resume_unwind(payload))).collect(),
        }
    }

    /// Executes everything that is queued; every host's clock is then at the end of it.
    ///
    /// # Errors
    /// [`DeviceError::Deadlock`] when something queued can never start (no device is poisoned by that: the missing part
    /// may still be submitted), or the fault of the first device that has one.
    pub fn settle(&self) -> DeviceResult<()> {
        let mut state = self.shared.lock();
        state.settle();
        let now_ns = state.now_ns;
        for host in &mut state.hosts {
            host.clock_ns = host.clock_ns.max(now_ns);
        }
        if let Some(fault) = state.devices.iter().find_map(|device| device.fault.clone()) {
            return Err(fault);
        }
        if state.streams.iter().any(|stream| !stream.is_idle()) {
            return Err(DeviceError::Deadlock { cycle: state.describe_stuck() });
        }
        Ok(())
    }

    /// The operations that have ended since the last call, by start time and number. Empty unless the timeline is on.
    #[must_use]
    pub fn take_timeline(&self) -> Vec<Executed> {
        let mut timeline = std::mem::take(&mut self.shared.lock().timeline);
        timeline.sort_by_key(|executed| (executed.start_ns, executed.id));
        timeline
    }

    /// Whether operations that end from now on are kept for [`take_timeline`](SimCluster::take_timeline).
    pub fn set_timeline(&self, keep: bool) {
        self.shared.lock().keep_timeline = keep;
    }

    /// All races so far: pairs of operations that ran at the same time on the same physical bytes, one of them writing.
    #[must_use]
    pub fn hazards(&self) -> Vec<Hazard> {
        self.shared.lock().hazards.clone()
    }

    /// The time up to which the devices have been simulated: ns, or steps in adversarial mode.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.shared.lock().now_ns
    }

    pub(super) fn from_shared(shared: Arc<Shared>) -> Self {
        SimCluster { shared }
    }

    fn host_thread<R>(&self, rank: usize, host: &(impl Fn(Arc<SimDevice>) -> R + Sync)) -> R {
        let shared = &*self.shared;
        shared.wait_for_baton(&mut shared.lock(), rank);
        RANK.set(Some((shared.id(), rank)));
        let result = catch_unwind(AssertUnwindSafe(|| host(self.device(rank as u32))));
        shared.finish(rank, result.as_ref().err().map(|payload| &**payload));
        result.unwrap_or_else(|payload| resume_unwind(payload))
    }
}

/// The lock, and the places where hosts wait for the baton.
pub(super) struct Shared {
    state: Mutex<State>,
    turns: Vec<Condvar>,
}

/// The state, locked. A second lock by the same thread is a panic, not a hang.
pub(super) struct Locked<'a> {
    guard: MutexGuard<'a, State>,
    _mark: Mark,
}

/// Says that the thread holds the lock, until it is dropped.
struct Mark;

impl Drop for Mark {
    fn drop(&mut self) {
        HOLDS_LOCK.set(false);
    }
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.guard
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.guard
    }
}

/// A host's turn to act on its device: everything due before has been executed.
pub(super) struct Turn<'a> {
    pub(super) state: Locked<'a>,
    /// Whose clock the call runs on.
    pub(super) host: usize,
    shared: &'a Shared,
}

impl Shared {
    /// # Panics
    /// When called from a body, or by something that a body owned and that is dropped with it: both would wait for the
    /// lock that their own thread, or the one that waits for them, holds.
    pub(super) fn lock(&self) -> Locked<'_> {
        assert!(!in_body(), "the body of an operation called a simulated device");
        assert!(!HOLDS_LOCK.get(), "something that a body owned called a simulated device when it was dropped");
        let guard = self.state.lock();
        HOLDS_LOCK.set(true);
        Locked { guard, _mark: Mark }
    }

    /// Lets the calling host spend time, then waits until it is its turn.
    ///
    /// # Errors
    /// During a run, from a thread that is not one of its own.
    pub(super) fn enter(
        &self,
        device: usize,
        call: DeviceCall,
        cost_ns: impl FnOnce(&State) -> u64,
    ) -> DeviceResult<Turn<'_>> {
        let mut state = self.lock();
        let rank = RANK.get().filter(|&(cluster, _)| cluster == self.id()).map(|(_, rank)| rank);
        if state.in_session && rank.is_none() {
            return Err(invalid(call, "while a run is under way only its own threads may call the devices"));
        }
        let host = rank.unwrap_or(device);
        let cost_ns = cost_ns(&state);
        state.charge(host, cost_ns);
        let mut turn = Turn { state, host, shared: self };
        turn.give_way();
        Ok(turn)
    }

    fn id(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }

    fn all_hosts(&self) -> Range<usize> {
        0..self.turns.len()
    }

    fn wait_for_baton(&self, state: &mut Locked<'_>, host: usize) {
        while state.baton != Some(host) {
            self.turns[host].wait(&mut state.guard);
        }
    }

    /// The host of `rank` has ended; hands the baton on.
    fn finish(&self, rank: usize, panic: Option<&(dyn Any + Send)>) {
        let mut state = self.lock();
        state.hosts[rank].status = HostStatus::Finished;
        if let Some(payload) = panic {
            state.first_panic.get_or_insert(rank);
            let fault = DeviceError::HostPanicked { rank: rank as u32, message: panic_message(payload) };
            for device in self.all_hosts() {
                state.poison(device, &fault);
            }
        }
        state.baton = state.pass_time(self.all_hosts());
        if let Some(next) = state.baton {
            self.turns[next].notify_one();
        }
    }
}

impl Turn<'_> {
    /// Blocks the host until `stream` has completed `position` entries, in virtual time.
    pub(super) fn block(&mut self, blocked: Blocked) -> Wake {
        let before_ns = self.state.hosts[self.host].clock_ns;
        self.state.hosts[self.host].status = HostStatus::Blocked(blocked);
        self.give_way();
        let host = &mut self.state.hosts[self.host];
        let blocked_ns = host.clock_ns - before_ns;
        let HostStatus::Runnable(Some(wake)) = std::mem::replace(&mut host.status, HostStatus::Runnable(None)) else {
            unreachable!("a host that was blocked is told how that ended");
        };
        let counters = &mut self.state.devices[blocked.device].counters;
        counters.host_synchronizations += 1;
        counters.host_blocked_ns += blocked_ns;
        wake
    }

    /// Returns once it is this host's turn.
    fn give_way(&mut self) {
        if !self.state.in_session {
            let next = self.state.pass_time(self.host..self.host + 1);
            assert_eq!(next, Some(self.host), "a host outside a run does not finish");
            return;
        }
        let next = self.state.pass_time(self.shared.all_hosts());
        self.state.baton = next;
        if next != Some(self.host) {
            self.shared.turns[next.expect("the caller has not finished")].notify_one();
            self.shared.wait_for_baton(&mut self.state, self.host);
        }
    }
}

impl State {
    /// The host's clock moves on.
    pub(super) fn charge(&mut self, host: usize, ns: u64) {
        if self.config.mode == Mode::Timed {
            let clock_ns = &mut self.hosts[host].clock_ns;
            *clock_ns = clock_ns.saturating_add(ns);
        }
    }

    /// Lets devices go on until one of `hosts` has its turn, and returns it: none when all have finished.
    fn pass_time(&mut self, hosts: Range<usize>) -> Option<usize> {
        loop {
            self.wake_hosts(hosts.clone());
            let deadline = self.next_deadline(hosts.clone());
            let next = self.next_host(hosts.clone());
            let step = match (&mut self.adversary, self.events.first()) {
                (_, None) => None,
                (Some(adversary), Some(_)) => {
                    let device_goes = next.is_none() || adversary.device_first();
                    let expired = deadline.is_some_and(|(deadline_ns, _)| deadline_ns <= self.now_ns);
                    (device_goes && !expired).then(|| adversary.pick_event(&self.events))
                }
                (None, Some(&event)) => {
                    let before_host = next.is_none_or(|host| event.at_ns <= self.hosts[host].clock_ns);
                    let before_deadline = deadline.is_none_or(|(deadline_ns, _)| event.at_ns <= deadline_ns);
                    (before_host && before_deadline).then_some(event)
                }
            };
            if let Some(event) = step {
                self.step(event);
                continue;
            }
            let until_ns = match self.config.mode {
                Mode::Timed => next.map(|host| self.hosts[host].clock_ns),
                Mode::Adversarial { .. } => next.map(|_| self.now_ns),
            };
            if let Some((deadline_ns, host)) = deadline
                && until_ns.is_none_or(|until_ns| deadline_ns <= until_ns)
            {
                self.now_ns = self.now_ns.max(deadline_ns);
                self.wake(host, Wake::TimedOut);
            } else if let Some(host) = next {
                self.begin_turn(host);
                return Some(host);
            } else if self.hosts[hosts.clone()].iter().any(|host| matches!(host.status, HostStatus::Blocked(_))) {
                self.declare_deadlock(hosts.clone());
            } else {
                return None;
            }
        }
    }

    /// Executes everything that can be executed, whatever the hosts' clocks.
    fn settle(&mut self) {
        while let Some(&first) = self.events.first() {
            let event = match &mut self.adversary {
                Some(adversary) => adversary.pick_event(&self.events),
                None => first,
            };
            self.step(event);
        }
    }

    fn begin_turn(&mut self, host: usize) {
        let clock_ns = self.hosts[host].clock_ns;
        self.now_ns = match self.config.mode {
            Mode::Timed => self.now_ns.max(clock_ns),
            Mode::Adversarial { .. } => self.now_ns + 1,
        };
        self.hosts[host].clock_ns = self.now_ns;
    }

    /// Wakes blocked hosts whose work has completed.
    fn wake_hosts(&mut self, hosts: Range<usize>) {
        for host in hosts {
            if let HostStatus::Blocked(blocked) = &self.hosts[host].status
                && self.streams[blocked.stream].completed >= blocked.position
            {
                self.wake(host, Wake::Complete);
            }
        }
    }

    fn wake(&mut self, host: usize, wake: Wake) {
        let host = &mut self.hosts[host];
        host.clock_ns = host.clock_ns.max(self.now_ns);
        host.status = HostStatus::Runnable(Some(wake));
    }

    fn next_deadline(&self, hosts: Range<usize>) -> Option<(u64, usize)> {
        let deadline = |host: usize| match &self.hosts[host].status {
            HostStatus::Blocked(blocked) => blocked.deadline_ns.map(|deadline_ns| (deadline_ns, host)),
            _ => None,
        };
        hosts.filter_map(deadline).min()
    }

    /// The runnable host that goes on next, if the devices do not.
    fn next_host(&mut self, hosts: Range<usize>) -> Option<usize> {
        let states = &self.hosts;
        let mut runnable = hosts.filter(|&host| matches!(states[host].status, HostStatus::Runnable(_)));
        match &mut self.adversary {
            None => runnable.min_by_key(|&host| (states[host].clock_ns, host)),
            Some(adversary) => {
                let first = runnable.next()?;
                let all: Vec<usize> = std::iter::once(first).chain(runnable).collect();
                Some(adversary.pick_host(&all))
            }
        }
    }
}
