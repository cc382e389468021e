//! Model and allocator side by side.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::model::Model;
use super::op::{Op, Setup};
use super::predict::Shown;
use super::real::Real;

/// Where the two went apart.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The step, from 0; the number of steps when it was the end.
    pub step: usize,
    /// What was different, in words.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: {}", self.step, self.what)
    }
}

impl std::error::Error for Failure {}

/// What was reached, so that a run can tell that it tried everything.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Steps.
    pub steps: u64,
    /// Requests by the rung that met them.
    pub rungs: BTreeMap<&'static str, u64>,
    /// Other counters.
    pub counts: BTreeMap<&'static str, u64>,
    /// Steps by what came of them.
    pub outcomes: BTreeMap<String, u64>,
}

impl Tally {
    /// Adds another.
    pub fn add(&mut self, other: &Tally) {
        self.steps += other.steps;
        for (name, count) in &other.rungs {
            *self.rungs.entry(name).or_default() += count;
        }
        for (name, count) in &other.counts {
            *self.counts.entry(name).or_default() += count;
        }
        for (name, count) in &other.outcomes {
            *self.outcomes.entry(name.clone()).or_default() += count;
        }
    }
}

/// Drives model and allocator through a program, and then takes everything down: after the last work nothing may be
/// left that cannot be returned.
///
/// # Errors
/// The first difference; a panic of the allocator is one.
pub fn run(setup: &Setup, program: &[Op]) -> Result<Tally, Failure> {
    let mut world = World::new(setup);
    let mut tally = Tally::default();
    for (step, op) in program.iter().enumerate() {
        guarded(step, || world.step(op, &mut tally))?;
    }
    tally.steps = program.len() as u64;
    let shown = world.model.shown();
    (tally.rungs, tally.counts) = (shown.rungs, shown.counts);
    guarded(program.len(), || world.end())?;
    Ok(tally)
}

/// Runs a step; panics become failures.
fn guarded(step: usize, run: impl FnOnce() -> Result<(), String>) -> Result<(), Failure> {
    let caught = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("a panic: {}", text.unwrap_or_default()))
    });
    caught.map_err(|what| Failure { step, what })
}

struct World {
    model: Model,
    /// Taken by the end.
    real: Option<Real>,
}

impl World {
    fn new(setup: &Setup) -> Self {
        World { model: Model::new(setup), real: Some(Real::new(setup)) }
    }

    fn step(&mut self, op: &Op, tally: &mut Tally) -> Result<(), String> {
        let real = self.real.as_mut().expect("it has not ended");
        let (came, expected) = (real.step(op), self.model.step(op));
        if came != expected {
            return Err(format!("{op:?} came to {came:?}; the model says {expected:?}"));
        }
        for outcome in &came {
            let kind = format!("{outcome:?}");
            let kind = kind.split(['(', ' ', '{']).next().unwrap_or_default().to_owned();
            *tally.outcomes.entry(kind).or_default() += 1;
        }
        if let Some(problem) = self.model.problem.take() {
            return Err(format!("{op:?}: {problem}"));
        }
        // The statistics enter every heap, which delivers what is left to deliver: the model is asked after.
        let shown = real.shown();
        compare(&shown, &self.model.shown()).map_err(|difference| format!("after {op:?} {difference}"))?;
        real.check().map_err(|broken| format!("after {op:?}: {broken}"))
    }

    /// Lets go of everything, waits for all work, and returns all memory.
    fn end(&mut self) -> Result<(), String> {
        let mut nothing = Tally::default();
        self.model.disarm();
        self.real.as_ref().expect("it has not ended").disarm();
        while !self.model.program.captures.is_empty() {
            self.step(&Op::DropCapture { capture: 0 }, &mut nothing)?;
        }
        while !self.model.program.graphs.is_empty() {
            self.step(&Op::DropGraph { graph: 0 }, &mut nothing)?;
        }
        while !self.model.reliefs.is_empty() {
            self.step(&Op::EndPressure { callback: 0 }, &mut nothing)?;
        }
        while !self.model.program.stash.is_empty() {
            self.step(&Op::Unstash, &mut nothing)?;
        }
        while !self.model.program.buffers.is_empty() {
            self.step(&Op::Free { buffer: 0, elsewhere: false }, &mut nothing)?;
        }
        let ns = self.model.all_through_ns().saturating_sub(self.model.machine.now_ns);
        self.step(&Op::HostWork { ns }, &mut nothing)?;
        let failures = self.model.machine.will_fail();
        self.step(&Op::Trim { target: 0 }, &mut nothing)?;
        let forever = !self.model.gate() || failures || !self.model.strays.is_empty();
        if !forever && self.model.physical() > 0 {
            return Err(format!("{} bytes are held after everything was over", self.model.physical()));
        }
        match self.real.take().expect("it has not ended").end() {
            Ok(0) => Ok(()),
            _ if forever => Ok(()),
            Ok(left) => Err(format!("the device holds {left} bytes after the end of the allocator")),
            Err(broken) => Err(broken),
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // What failed may hold a broken lock: it is not taken down.
        std::mem::forget(self.real.take());
    }
}

fn compare(shown: &Shown, expected: &Shown) -> Result<(), String> {
    if shown == expected {
        return Ok(());
    }
    let mut differences = Vec::new();
    let (shown, expected) = (format!("{shown:#?}"), format!("{expected:#?}"));
    for (line, other) in shown.lines().zip(expected.lines()).filter(|(line, other)| line != other) {
        differences.push(format!("{} (the model says {})", line.trim(), other.trim()));
    }
    if differences.is_empty() {
        differences.push(format!("{shown}, the model says {expected}"));
    }
    Err(differences.join("; "))
}
