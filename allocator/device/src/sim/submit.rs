//! From a call to a queue: the checks of arguments, and what is enqueued when they hold.

use std::borrow::Cow;

use super::collective::{Collective, Terms};
use super::engine::State;
use super::queue::{Entry, Part, Queued, Work};
use crate::error::invalid;
use crate::operation::check_operands;
use crate::{Access, ByteRange, DeviceCall, DeviceError, DeviceResult, ExecutedKind, FenceHandle, Operand, StreamId};

/// What a call puts into a queue.
pub(super) struct Submitted {
    pub(super) name: Cow<'static, str>,
    pub(super) tag: u64,
    pub(super) kind: ExecutedKind,
    pub(super) duration_ns: u64,
    pub(super) operands: Vec<Operand>,
    pub(super) work: Work,
}

impl State {
    pub(super) fn enqueue(&mut self, stream: usize, submitted: Submitted) {
        let operation = Queued {
            id: self.next_operation(),
            name: submitted.name,
            tag: submitted.tag,
            kind: submitted.kind,
            submitted_ns: self.now_ns,
            duration_ns: submitted.duration_ns,
            operands: submitted.operands,
            work: submitted.work,
        };
        self.submit(stream, Entry::Operation(Box::new(operation)));
    }

    /// The index of a stream of the device that is not destroyed.
    pub(super) fn stream_of(&self, device: usize, stream: StreamId, call: DeviceCall) -> DeviceResult<usize> {
        let index = usize::try_from(stream.0).ok().and_then(|id| id.checked_sub(1));
        let known = index.filter(|&index| {
            self.streams.get(index).is_some_and(|stream| stream.device == device && !stream.destroyed)
        });
        known.ok_or_else(|| invalid(call, format!("{stream:?} is not a stream of the device")))
    }

    /// When the fence completed, if it has.
    pub(super) fn completed_ns(
        &self,
        device: usize,
        fence: FenceHandle,
        call: DeviceCall,
    ) -> DeviceResult<Option<u64>> {
        let known = self.fences.get(&fence).filter(|known| known.device == device);
        let known = known.ok_or_else(|| invalid(call, format!("{fence:?} is not a fence of the device")))?;
        Ok(known.completed_ns)
    }

    /// Refuses a call while a stream of the device captures, and spoils the captures.
    pub(super) fn forbid_in_capture(&mut self, device: usize, call: DeviceCall) -> DeviceResult<()> {
        let captures = &mut self.devices[device].captures;
        if captures.is_empty() {
            return Ok(());
        }
        for spoilt in captures.values_mut() {
            spoilt.get_or_insert(call);
        }
        Err(DeviceError::CaptureViolation { call })
    }

    /// The fault of unmapping `range`, when an operation that has not ended uses it.
    pub(super) fn use_of(&self, device: usize, range: ByteRange) -> Option<DeviceError> {
        let streams = self.devices[device].streams.iter().map(|&index| &self.streams[index]);
        streams.filter(|stream| !stream.is_idle()).find_map(|stream| {
            let uses = |operand: &Operand| operand.range.bytes > 0 && operand.range.overlaps(range);
            let (operation, _) = stream.unfinished().find(|(_, operands)| operands.iter().any(uses))?;
            Some(DeviceError::UnmappedInUse {
                address: range.address,
                operation: operation.to_owned(),
                stream: stream.name.to_string(),
            })
        })
    }
}

pub(super) fn submit_collective(
    state: &mut State,
    device: usize,
    stream: StreamId,
    collective: Collective,
) -> DeviceResult<()> {
    let call = DeviceCall::Collective;
    let Collective { communicator, name, tag, cost, sends, receive, body } = collective;
    let index = state.stream_of(device, stream, call)?;
    let known = state.groups.get(communicator.index).is_some_and(|group| group.handle == communicator);
    let rank = communicator.rank_of(device).filter(|_| known);
    let rank =
        rank.ok_or_else(|| invalid(call, format!("the device is not a rank of communicator {:?}", communicator.name)))?;
    if sends.len() != communicator.ranks.len() {
        return Err(invalid(call, format!("{} sends for {} ranks", sends.len(), communicator.ranks.len())));
    }
    let mut operands: Vec<Operand> = Vec::new();
    let send_operand = |range: &ByteRange| {
        let operand = Operand { range: *range, access: Access::Read };
        operands.iter().position(|known| *known == operand).unwrap_or_else(|| {
            operands.push(operand);
            operands.len() - 1
        })
    };
    let sent = sends.iter().map(send_operand).collect();
    operands.push(receive);
    check_operands(call, &operands)?;
    state.forbid_implicit_order(device, index, call)?;
    if state.devices[device].captures.contains_key(&stream) {
        return Ok(());
    }
    let duration_ns = state.config.cost.collective_ns(cost);
    let terms = Terms { name: name.clone(), cost, sizes: sends.iter().map(|range| range.bytes).collect() };
    let group = &mut state.groups[communicator.index];
    if let Err(what) = group.check(rank, &terms) {
        let sequence = group.issued[rank];
        let fault = DeviceError::CollectiveMismatch { communicator: communicator.name.to_string(), sequence, what };
        for &rank in communicator.ranks.iter() {
            state.poison(rank as usize, &fault);
        }
        return Err(fault);
    }
    let sequence = group.arrive(rank, index, terms);
    let kind = ExecutedKind::Collective { communicator: communicator.name.clone(), sequence };
    let part = Part { communicator: communicator.index, sequence, sends: sent, body: Some(body) };
    let work = Work::Collective(part);
    state.enqueue(index, Submitted { name, tag, kind, duration_ns, operands, work });
    Ok(())
}
