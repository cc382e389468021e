//! Why a request failed, in the words of `highwater why`: the same analysis, on the snapshot that the black box would
//! write.
//!
//! Its time is bounded: it looks at the newest [`MOST_EVENTS`] events, and is made for the first [`MOST_FAILURES`]
//! failures of an allocator. A program that runs out of memory again and again lives on that, and reads no errors.

use highwater_history::read::{self, Loaded};
use highwater_history::why::{self, Finding, Moment, Options, Verdict, explain, size};
use highwater_history::{Snapshot, WriteError};

use crate::error::Cause;

/// Events that are looked at.
const MOST_EVENTS: usize = 1 << 14;
/// Failures of an allocator that are explained.
pub(crate) const MOST_FAILURES: u64 = 16;

/// The first cause of what failed last. `None` if the evidence does not decide, or nothing was recorded.
pub(crate) fn of(snapshot: &Snapshot) -> Option<Cause> {
    let loaded = match load(snapshot) {
        Ok(loaded) => loaded,
        Err(error) => {
            tracing::warn!(%error, "why memory ran out could not be looked at");
            return None;
        }
    };
    let failed = |verdict: &Verdict| verdict.moment == Moment::OutOfMemory;
    let verdict = explain(&loaded, &Options::default()).into_iter().find(failed)?;
    verdict.findings.first().filter(|finding| finding.cause != why::Cause::X).map(cause)
}

/// The snapshot as whoever reads the file would have it, with its newest events.
fn load(snapshot: &Snapshot) -> Result<Loaded, Box<dyn std::error::Error>> {
    let mut file = Vec::new();
    let write = |snapshot: &Snapshot, file: &mut Vec<u8>| -> Result<(), WriteError> { snapshot.write_to(file) };
    let too_many = |device: &highwater_history::DeviceHistory| device.trace.len() > MOST_EVENTS;
    if snapshot.devices.iter().any(too_many) {
        let mut newest = snapshot.clone();
        for device in newest.devices.iter_mut().filter(|device| too_many(device)) {
            let dropped = device.trace.len() - MOST_EVENTS;
            device.trace.drain(..dropped);
            device.notes.history_dropped += dropped as u64;
        }
        write(&newest, &mut file)?;
    } else {
        write(snapshot, &mut file)?;
    }
    Ok(read::read(&file, &read::Options::default())?)
}

fn cause(finding: &Finding) -> Cause {
    Cause {
        id: finding.cause.id(),
        title: finding.title,
        bytes: finding.explained_bytes,
        sufficient: finding.sufficient,
        evidence: finding.evidence.first().cloned().unwrap_or_default(),
        advice: finding.advice.first().map(|advice| format!("{} (about {})", advice.text, size(advice.bytes))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use highwater_history::{Block, BlockState, MappedRange, Segment, StackId, TraceAction, TraceEvent};

    const MIB: u64 = 1 << 20;

    /// A snapshot at the failure of a request for 190 MiB, with nothing free on the device: so much is pending on its
    /// stream, and on another one 100 MiB are free, in pieces that are less than a page.
    fn failed(pending_bytes: u64) -> Snapshot {
        let stack = StackId::EMPTY;
        let block = |address, bytes, state| Block { address, bytes, requested_bytes: bytes, state, stack };
        let [own, other] = [1 << 40, 2 << 40];
        let range = |address, bytes, stream| MappedRange { address, bytes, stream, stack };
        let mapped = vec![range(own, 1024 * MIB + pending_bytes, 0), range(other, 200 * MIB, 3)];
        let mut blocks = vec![
            block(own, 1024 * MIB, BlockState::Allocated),
            block(own + 1024 * MIB, pending_bytes, BlockState::PendingFree),
        ];
        blocks.extend((0..100).map(|page| block(other + 2 * page * MIB, MIB, BlockState::Allocated)));
        let event = |action, bytes| TraceEvent { action, address: 0, bytes, stream: 0, time_us: 1, stack, span: 0 };
        let mut snapshot = Snapshot::new();
        let device = snapshot.device_mut(0);
        device.segments = Segment::runs(mapped, blocks).unwrap();
        device.trace.push(event(TraceAction::OutOfMemory { device_free_bytes: 0 }, 190 * MIB));
        snapshot
    }

    #[test]
    fn what_the_evidence_does_not_decide_is_told_no_cause() {
        let undecided = failed(100 * MIB);
        let verdict = explain(&load(&undecided).unwrap(), &Options::default()).remove(0);
        assert_eq!((verdict.moment, verdict.cause()), (Moment::OutOfMemory, why::Cause::X));
        assert_eq!(of(&undecided), None);
        let pending = of(&failed(300 * MIB)).expect("it would have been enough");
        assert_eq!((&*pending.id, pending.bytes), ("C1", 300 * MIB));
    }
}
