//! What a run comes to: the rule that was broken, what was met, and a transcript to compare with another run's.

use std::collections::BTreeMap;
use std::fmt;

use highwater::device::DeviceCall;

use super::program::Kind;

/// What must hold.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rule {
    /// A read sees what the last write before it left.
    Bytes,
    /// No two operations race on physical bytes.
    Race,
    /// Memory is not given out while something of its former life still touches it.
    Reuse,
    /// What the program put in order is executed in that order.
    Order,
    /// Streams execute just what they were given.
    Executed,
    /// What the host is told to be complete is complete.
    Told,
    /// The device takes no harm: no fault but those that were asked for.
    Fault,
    /// Errors are those that the program, its faults and its captures call for.
    Error,
    /// Nothing waits for ever.
    Stuck,
    /// Memory is not refused while enough could be had.
    Refused,
    /// Books balance, and agree with the device.
    Books,
    /// Everything goes back in the end.
    Leak,
    /// No panic leaves the library.
    Panic,
    /// The same program does the same twice.
    Replay,
}

/// A broken rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The rule.
    pub rule: Rule,
    /// What happened: the operations, by step.
    pub what: String,
    /// The step after which it was seen, if it was seen during the run.
    pub step: Option<usize>,
}

impl Failure {
    pub(super) fn new(rule: Rule, what: impl Into<String>) -> Self {
        Failure { rule, what: what.into(), step: None }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.what)?;
        match self.step {
            Some(step) => write!(f, " (seen in step {step})"),
            None => Ok(()),
        }
    }
}

/// How often things were met, by name.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Coverage(BTreeMap<String, u64>);

impl Coverage {
    pub(super) fn add(&mut self, name: &str, times: u64) {
        if times > 0 {
            *self.0.entry(name.to_owned()).or_default() += times;
        }
    }

    /// Adds what another run met.
    pub fn merge(&mut self, other: &Coverage) {
        for (name, &times) in &other.0 {
            self.add(name, times);
        }
    }

    /// Adds one for each thing that another run met.
    pub fn add_run(&mut self, other: &Coverage) {
        other.0.keys().for_each(|name| self.add(name, 1));
    }

    /// How often a thing was met.
    #[must_use]
    pub fn of(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }
}

/// Everything that the programs of many seeds have to meet.
#[must_use]
pub fn everything() -> Vec<String> {
    const RUNGS: [&str; 9] = [
        "own_free",
        "own_pending",
        "move",
        "order",
        "grow",
        "callbacks",
        "return_cached",
        "host_wait_own",
        "host_wait_others",
    ];
    const OTHERS: [&str; 17] = [
        "out of memory",
        "wait inserted",
        "host stall",
        "handle returned",
        "handle moved",
        "handle came back",
        "stray handles",
        "callback ran",
        "refused while capturing",
        "host memory busy",
        "held up by an open stream",
        "host wait timed out",
        "device broken by a fence",
        "ended with work queued",
        "several ranks",
        "several allocators",
        "timed",
    ];
    let steps = Kind::ALL.iter().map(|kind| kind.name().to_owned());
    let rungs = RUNGS.iter().map(|rung| format!("rung {rung}"));
    let failures = DeviceCall::ALL.iter().map(|call| format!("failed {call}"));
    steps.chain(rungs).chain(OTHERS.map(str::to_owned)).chain(failures).collect()
}

/// One number for each step: what was said and seen up to there.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Transcript {
    hash: u64,
    /// The hash after each entry.
    entries: Vec<u64>,
}

impl Transcript {
    pub(super) fn note(&mut self, text: &str) {
        // FNV-1a: any difference will do, nobody attacks it.
        for byte in text.bytes().chain([0]) {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.entries.push(self.hash);
    }

    /// The first entry in which two differ.
    pub(super) fn difference(&self, other: &Transcript) -> Option<usize> {
        let common = self.entries.iter().zip(&other.entries).position(|(one, two)| one != two);
        common.or_else(|| {
            (self.entries.len() != other.entries.len()).then(|| self.entries.len().min(other.entries.len()))
        })
    }
}
