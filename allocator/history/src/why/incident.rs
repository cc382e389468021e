//! What to explain: the request that failed, else the one that made the host wait, else the peak.

use crate::{
    Rung,
    read::{EventAction, LoadedDevice, Trace},
};

use super::verdict::Moment;
use crate::state::curves::Curves;
use crate::state::failures;
use crate::state::rules::Rules;
use crate::state::space::Request;

/// The moment, and what was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Incident {
    pub(super) moment: Moment,
    /// Memory is looked at before this event.
    pub(super) row: usize,
    pub(super) request: Option<Request>,
    pub(super) device_free: Option<u64>,
}

/// A host wait for memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HostWait {
    /// The first event that it brought about.
    pub(super) row: usize,
    pub(super) waited_us: u64,
    pub(super) request: Option<Request>,
}

/// All failed requests and host waits of a trace.
#[derive(Clone, Default, Debug)]
pub(super) struct Incidents {
    /// Rows of failed requests, and whether the same was tried again and succeeded.
    pub(super) failures: Vec<(usize, bool)>,
    pub(super) waits: Vec<HostWait>,
}

impl Incidents {
    pub(super) fn of(device: &LoadedDevice, rules: &Rules) -> Self {
        let trace = &device.trace;
        let failures = failures::failures(trace);
        let mut waits = if rules.own { noted(device, rules) } else { released(trace, rules) };
        waits.sort_by_key(|wait| wait.row);
        Self { failures, waits }
    }

    /// The one to explain.
    pub(super) fn choose(&self, device: &LoadedDevice, rules: &Rules, curves: &Curves) -> Incident {
        let trace = &device.trace;
        if let Some(row) = failures::last(&self.failures) {
            let request = Request::new(rules, trace.bytes()[row], trace.streams()[row], trace.pool(row));
            let device_free = trace.device_free_bytes(row);
            return Incident { moment: Moment::OutOfMemory, row, request: Some(request), device_free };
        }
        let heaviest = self.waits.iter().max_by_key(|wait| (curves.pending[wait.row], wait.row));
        if let Some(wait) = heaviest {
            return Incident { moment: Moment::Stall, row: wait.row, request: wait.request, device_free: None };
        }
        Incident { moment: Moment::Peak, row: peak(trace, curves), request: None, device_free: None }
    }

    /// The end, or the last failure: behind it a program unwinds.
    pub(super) fn end(&self, device: &LoadedDevice) -> Incident {
        let row = failures::last(&self.failures).unwrap_or(device.trace.len());
        Incident { moment: Moment::End, row, request: None, device_free: None }
    }
}

/// The first row at which the most is reserved, and the allocation made for which it was.
fn peak(trace: &Trace, curves: &Curves) -> usize {
    let most = curves.reserved.iter().max().copied().unwrap_or(0);
    let first = curves.reserved.iter().position(|&reserved| reserved == most).unwrap_or(0);
    if first < trace.len() && trace.action(first) == EventAction::Alloc { first + 1 } else { first }
}

/// Waits that show in the trace: pending frees complete and cached segments are returned, right before a segment is
/// taken anew.
fn released(trace: &Trace, rules: &Rules) -> Vec<HostWait> {
    use EventAction::*;
    let mut waits = Vec::new();
    let mut row = 0;
    while row < trace.len() {
        let start = row;
        while row < trace.len() && trace.action(row) == FreeCompleted {
            row += 1;
        }
        let released = row;
        while row < trace.len() && matches!(trace.action(row), SegmentFree | SegmentUnmap | FreeCompleted) {
            row += 1;
        }
        let took = row < trace.len() && matches!(trace.action(row), SegmentAlloc | SegmentMap);
        // A completion directly behind its own request is no wait.
        let own = start > 0
            && trace.action(start - 1) == FreeRequested
            && trace.addresses().get(start) == Some(&trace.addresses()[start - 1]);
        let first = start + usize::from(own);
        if row > released && took && first < released {
            let request = (row..trace.len().min(row + 64)).find(|&row| trace.action(row) == Alloc);
            let request =
                request.map(|row| Request::new(rules, trace.bytes()[row], trace.streams()[row], trace.pool(row)));
            let before = trace.times_us()[first.saturating_sub(1)];
            let waited_us = trace.times_us()[released - 1].saturating_sub(before);
            waits.push(HostWait { row: first, waited_us, request });
        }
        row = row.max(start + 1);
    }
    waits
}

/// Waits that the recorder noted.
fn noted(device: &LoadedDevice, rules: &Rules) -> Vec<HostWait> {
    let (trace, Some(notes)) = (&device.trace, &device.notes) else { return Vec::new() };
    let of = |note: &crate::Noted<crate::Stall>| {
        let waited_us = note.fact.stall_ns / 1000;
        let began = note.time_us.saturating_sub(waited_us);
        let row = trace.times_us().partition_point(|&time| time <= began);
        let asked = notes.rungs.iter().find(|rung| {
            let waits = matches!(rung.fact.rung, Rung::HostWait | Rung::OutOfMemory);
            waits && rung.time_us >= note.time_us && rung.fact.stream == note.fact.stream
        });
        let request = asked.map(|rung| Request::new(rules, rung.fact.bytes, rung.fact.stream, (0, 0)));
        HostWait { row, waited_us, request }
    };
    notes.stalls.iter().map(of).collect()
}
