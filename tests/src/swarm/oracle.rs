//! The oracle: what must have happened, from the steps of the program alone, against the order in which the device
//! executed the accesses to bytes.
//!
//! It counts the program's operations by stream, and follows the program's own fences: nothing here comes from the
//! allocator. After the run it looks at what was executed:
//!
//! - each stream executed just what it was given, in order (what was captured never ran);
//! - an operation began after those had ended that the program put before it;
//! - what the host was told to be complete had ended by then;
//! - the accesses of an allocation's former lives on the same physical bytes ended before its first access began.
//!
//! The bytes themselves are checked as the operations run: each write leaves its own number in every byte.

use std::collections::BTreeMap;

use highwater::device::sim::{Executed, Hazard};
use highwater::device::{PageHandle, StreamId};

use super::rng::mix;
use super::verdict::{Failure, Rule};
use super::watched::Mapped;

/// How far each stream of the program has come, by the oracle's number of the stream: operations.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct Clock(Vec<u64>);

impl Clock {
    fn of(&self, stream: usize) -> u64 {
        self.0.get(stream).copied().unwrap_or(0)
    }

    fn raise(&mut self, stream: usize, position: u64) {
        if self.0.len() <= stream {
            self.0.resize(stream + 1, 0);
        }
        self.0[stream] = self.0[stream].max(position);
    }

    /// Comes after everything that `other` comes after.
    pub(super) fn join(&mut self, other: &Clock) {
        for (stream, &position) in other.0.iter().enumerate() {
            self.raise(stream, position);
        }
    }
}

/// An operation, as far as the program has to order others after it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct OpId(pub(super) usize);

/// A life: the time from an allocation to its free. Numbered in the order of the allocations.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Life(pub(super) u64);

/// An access of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) life: Life,
    pub(super) address: u64,
    pub(super) bytes: u64,
}

/// An operation that was submitted.
#[derive(Clone, Debug)]
struct Op {
    step: usize,
    what: &'static str,
    stream: usize,
    position: u64,
    accesses: Vec<Access>,
    /// The operations that the program put before it, because they touch the same bytes.
    after: Vec<OpId>,
}

/// What the host was told: everything up to the clock is complete.
struct Told {
    step: usize,
    by_ns: u64,
    clock: Clock,
}

/// What the program did, on one rank.
#[derive(Default)]
pub(super) struct Oracle {
    streams: Vec<StreamId>,
    clocks: Vec<Clock>,
    submitted: Vec<Vec<OpId>>,
    host: Clock,
    ops: Vec<Op>,
    told: Vec<Told>,
    lives: u64,
}

impl Oracle {
    /// A stream that is not known yet; its number.
    pub(super) fn add_stream(&mut self, id: StreamId) -> usize {
        self.streams.push(id);
        self.clocks.push(Clock::default());
        self.submitted.push(Vec::new());
        self.streams.len() - 1
    }

    /// A new life.
    pub(super) fn born(&mut self) -> Life {
        self.lives += 1;
        Life(self.lives)
    }

    /// The number that the next operation will have.
    pub(super) fn next(&self) -> OpId {
        OpId(self.ops.len())
    }

    /// An operation was submitted.
    pub(super) fn submit(
        &mut self,
        stream: usize,
        step: usize,
        what: &'static str,
        accesses: Vec<Access>,
        after: Vec<OpId>,
    ) -> OpId {
        let id = self.next();
        let host = self.host.clone();
        self.clocks[stream].join(&host);
        let position = self.clocks[stream].of(stream) + 1;
        self.clocks[stream].raise(stream, position);
        self.submitted[stream].push(id);
        self.ops.push(Op { step, what, stream, position, accesses, after });
        id
    }

    /// What a fence recorded now on a stream comes after.
    pub(super) fn fence(&self, stream: usize) -> Clock {
        self.clocks[stream].clone()
    }

    /// A stream was given a wait.
    pub(super) fn waited(&mut self, stream: usize, fence: &Clock) {
        self.clocks[stream].join(fence);
    }

    /// The host was told that a fence is complete.
    pub(super) fn told(&mut self, step: usize, by_ns: u64, fence: &Clock) {
        self.host.join(fence);
        self.told.push(Told { step, by_ns, clock: fence.clone() });
    }

    /// Whether what a stream is given from now on comes after an operation.
    pub(super) fn is_after(&self, stream: usize, op: OpId) -> bool {
        let Op { stream: of, position, .. } = self.ops[op.0];
        of == stream || self.clocks[stream].of(of) >= position || self.host.of(of) >= position
    }

    /// The stream of an operation.
    pub(super) fn stream_of(&self, op: OpId) -> usize {
        self.ops[op.0].stream
    }

    /// An operation for people.
    pub(super) fn describe(&self, op: OpId) -> String {
        let Op { step, what, stream, accesses, .. } = &self.ops[op.0];
        let touched: Vec<String> = accesses
            .iter()
            .map(|access| format!("{} bytes at {:#x} of life {}", access.bytes, access.address, access.life.0))
            .collect();
        format!("operation {} ({what} in step {step}, stream {stream}: {})", op.0, touched.join(", "))
    }

    /// Which operation of this program leaves this word, if one does.
    pub(super) fn author(&self, word: u64) -> Option<OpId> {
        (0..=self.ops.len()).map(OpId).find(|&op| stamp(op) == word)
    }
}

/// What an operation writes, by the offset in its piece modulo 8.
pub(super) fn stamp(op: OpId) -> u64 {
    mix(op.0 as u64 + 1)
}

/// When an operation was executed.
#[derive(Clone, Copy, Debug)]
struct Span {
    start_ns: u64,
    end_ns: u64,
}

/// Holds what one rank's program did against what its device executed.
///
/// # Errors
/// The first rule that is broken.
pub(super) fn judge(oracle: &Oracle, executed: &[&Executed], mapped: &[Mapped], poisoned: bool) -> Result<(), Failure> {
    let spans = match_up(oracle, executed, poisoned)?;
    check_order(oracle, &spans)?;
    check_told(oracle, &spans)?;
    check_lives(oracle, &spans, mapped)
}

/// The span of each operation, by the order of submission on each stream.
fn match_up(oracle: &Oracle, executed: &[&Executed], poisoned: bool) -> Result<Vec<Option<Span>>, Failure> {
    let mut by_stream: BTreeMap<StreamId, Vec<&Executed>> = BTreeMap::new();
    for &one in executed {
        by_stream.entry(one.stream).or_default().push(one);
    }
    let mut spans = vec![None; oracle.ops.len()];
    for (stream, id) in oracle.streams.iter().enumerate() {
        let mut ran = by_stream.remove(id).unwrap_or_default();
        ran.sort_by_key(|one| one.id);
        let given = &oracle.submitted[stream];
        if given.len() != ran.len() && !poisoned {
            let what = format!("stream {stream} was given {} operations and executed {}", given.len(), ran.len());
            return Err(Failure::new(Rule::Executed, what));
        }
        for (&op, one) in given.iter().zip(&ran) {
            let asked = oracle.ops[op.0].accesses.iter().map(|access| (access.address, access.bytes));
            let did = one.operands.iter().map(|operand| (operand.range.address.0, operand.range.bytes));
            if !asked.eq(did) {
                let what = format!("{} was executed as {:?}", oracle.describe(op), one.operands);
                return Err(Failure::new(Rule::Executed, what));
            }
            spans[op.0] = Some(Span { start_ns: one.start_ns, end_ns: one.end_ns });
        }
    }
    match by_stream.values().flatten().next() {
        Some(one) if !poisoned => {
            Err(Failure::new(Rule::Executed, format!("{:?} on {:?} is nobody's", one.name, one.stream_name)))
        }
        _ => Ok(spans),
    }
}

fn check_order(oracle: &Oracle, spans: &[Option<Span>]) -> Result<(), Failure> {
    for (op, span) in oracle.ops.iter().zip(spans) {
        let Some(span) = span else { continue };
        for &before in &op.after {
            if spans[before.0].is_none_or(|before| before.end_ns > span.start_ns) {
                let late = oracle.submitted[op.stream][op.position as usize - 1];
                let what = format!("{} had not ended when {} began", oracle.describe(before), oracle.describe(late));
                return Err(Failure::new(Rule::Order, what));
            }
        }
    }
    Ok(())
}

fn check_told(oracle: &Oracle, spans: &[Option<Span>]) -> Result<(), Failure> {
    for Told { step, by_ns, clock } in &oracle.told {
        for (stream, &position) in clock.0.iter().enumerate().filter(|&(_, &position)| position > 0) {
            let last = oracle.submitted[stream][position as usize - 1];
            if spans[last.0].is_none_or(|span| span.end_ns > *by_ns) {
                let what = format!("in step {step} the host was told that {} is complete", oracle.describe(last));
                return Err(Failure::new(Rule::Told, what));
            }
        }
    }
    Ok(())
}

/// A piece of a page that an operation touched.
struct Touch {
    offset: u64,
    bytes: u64,
    life: Life,
    op: OpId,
    span: Span,
}

fn check_lives(oracle: &Oracle, spans: &[Option<Span>], mapped: &[Mapped]) -> Result<(), Failure> {
    let mut by_page: BTreeMap<PageHandle, Vec<Touch>> = BTreeMap::new();
    for (index, (op, span)) in oracle.ops.iter().zip(spans).enumerate() {
        let Some(span) = *span else { continue };
        for access in &op.accesses {
            touch(mapped, access, span, OpId(index), &mut by_page);
        }
    }
    for touches in by_page.values() {
        check_page(oracle, touches)?;
    }
    Ok(())
}

/// Adds the pieces of pages that an access touched when it was executed.
fn touch(mapped: &[Mapped], access: &Access, span: Span, op: OpId, by_page: &mut BTreeMap<PageHandle, Vec<Touch>>) {
    let end = access.address + access.bytes;
    for mapped in mapped {
        let (from, until) = (access.address.max(mapped.address), end.min(mapped.address + mapped.bytes));
        let there = mapped.from_ns <= span.start_ns && mapped.until_ns.is_none_or(|until_ns| until_ns >= span.end_ns);
        if there && from < until {
            let (offset, bytes) = (from - mapped.address, until - from);
            by_page.entry(mapped.page).or_default().push(Touch { offset, bytes, life: access.life, op, span });
        }
    }
}

/// Any two lives on the same bytes: everything of the one has ended before anything of the other begins.
fn check_page(oracle: &Oracle, touches: &[Touch]) -> Result<(), Failure> {
    for (index, first) in touches.iter().enumerate() {
        for second in &touches[index + 1..] {
            let apart = first.offset + first.bytes <= second.offset || second.offset + second.bytes <= first.offset;
            if apart || first.life == second.life {
                continue;
            }
            let (old, new) = if first.life < second.life { (first, second) } else { (second, first) };
            if old.span.end_ns > new.span.start_ns {
                let (old, new) = (oracle.describe(old.op), oracle.describe(new.op));
                return Err(Failure::new(Rule::Reuse, format!("{old} had not ended when {new} began")));
            }
        }
    }
    Ok(())
}

/// A race, for people.
pub(super) fn describe_hazard(hazard: &Hazard) -> String {
    let side = |side: &highwater::device::sim::HazardSide| {
        format!("{:?} on {:?} ({:?})", side.name, side.stream_name, side.access)
    };
    let Hazard { device, bytes, offset_bytes, page, .. } = hazard;
    format!(
        "{} and {} raced on {bytes} bytes at {offset_bytes} of {page:?}, device {device}",
        side(&hazard.first),
        side(&hazard.second)
    )
}
