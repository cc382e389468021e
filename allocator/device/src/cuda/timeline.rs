//! When operations ran: a pair of timing events around each, while somebody wants to know.
//!
//! An operation between two events seems to begin when the one before it on the stream ends, so a stream without gaps
//! shows none. Times are ns of the host's clock: a base event ties the two clocks together.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::CudaStream;
use parking_lot::Mutex;

use super::driver::Event;
use super::streams::Known;
use crate::{DeviceCall, DeviceResult, Executed, ExecutedKind, FenceHandle, Operand, StreamId};

const CALL: DeviceCall = DeviceCall::Elapsed;

/// What is known of an operation when it is submitted.
pub(super) struct Described {
    pub(super) name: Cow<'static, str>,
    pub(super) tag: u64,
    pub(super) kind: ExecutedKind,
    pub(super) operands: Vec<Operand>,
}

/// The operations of one device.
pub(super) struct Timeline {
    on: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// A stream with nothing on it but the base events, so that they wait for nothing.
    clock: Option<Arc<CudaStream>>,
    base: Option<Arc<Base>>,
    next_id: u64,
    operations: Vec<Timed>,
    spare: Vec<Event>,
    /// The last operation of each stream.
    last: BTreeMap<StreamId, u64>,
    /// The last operation before each fence.
    before: BTreeMap<FenceHandle, u64>,
    /// What the next operation of a stream comes after.
    waited: BTreeMap<StreamId, Vec<u64>>,
}

/// An operation between two events, and the base that their times are counted from.
struct Timed {
    base: Arc<Base>,
    start: Event,
    end: Event,
    executed: Executed,
}

/// An event whose time on the host's clock is known. The driver tells times between events in single precision: after a
/// minute in steps of 4 µs. So there is a new one each time that operations begin to be kept.
struct Base {
    event: Event,
    host_ns: u64,
}

impl Timeline {
    pub(super) fn new() -> Self {
        Timeline { on: AtomicBool::new(false), state: Mutex::default() }
    }

    pub(super) fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// Begins to keep operations. Waits for an event on a stream of its own, to learn how the clocks differ;
    /// `new_stream` makes it the first time.
    pub(super) fn turn_on(
        &self,
        new_stream: impl FnOnce() -> DeviceResult<Arc<CudaStream>>,
        now_ns: impl Fn() -> u64,
    ) -> DeviceResult<()> {
        let mut state = self.state.lock();
        let stream = match &state.clock {
            Some(stream) => stream.clone(),
            None => state.clock.insert(new_stream()?).clone(),
        };
        let event = Event::new(CALL, true)?;
        // The second one is not delayed by what the first one of all may start.
        for _ in 0..2 {
            event.record(CALL, &stream)?;
            event.synchronize(CALL)?;
        }
        state.base = Some(Arc::new(Base { event, host_ns: now_ns() }));
        self.on.store(true, Ordering::Release);
        Ok(())
    }

    pub(super) fn turn_off(&self) {
        self.on.store(false, Ordering::Release);
    }

    /// Submits an operation between two events.
    pub(super) fn around(
        &self,
        id: StreamId,
        known: &Known,
        device: u32,
        now_ns: impl Fn() -> u64,
        described: Described,
        submit: impl FnOnce() -> DeviceResult<()>,
    ) -> DeviceResult<()> {
        let event = || self.state.lock().spare.pop().map_or_else(|| Event::new(CALL, true), Ok);
        let (start, end) = (event()?, event()?);
        start.record(CALL, &known.stream)?;
        submit()?;
        end.record(CALL, &known.stream)?;
        let state = &mut *self.state.lock();
        let number = state.next_id;
        state.next_id += 1;
        state.last.insert(id, number);
        let executed = Executed {
            id: number,
            device,
            stream: id,
            stream_name: known.name.clone(),
            name: described.name,
            tag: described.tag,
            submitted_ns: now_ns(),
            start_ns: 0,
            end_ns: 0,
            kind: described.kind,
            operands: described.operands,
            waited: state.waited.remove(&id).unwrap_or_default(),
        };
        let base = state.base.clone().expect("operations are kept since there is a base");
        state.operations.push(Timed { base, start, end, executed });
        Ok(())
    }

    pub(super) fn recorded(&self, stream: StreamId, fence: FenceHandle) {
        let state = &mut *self.state.lock();
        if let Some(&last) = state.last.get(&stream) {
            state.before.insert(fence, last);
        }
    }

    pub(super) fn waits(&self, stream: StreamId, fence: FenceHandle) {
        let state = &mut *self.state.lock();
        if let Some(&before) = state.before.get(&fence) {
            state.waited.entry(stream).or_default().push(before);
        }
    }

    pub(super) fn released(&self, fence: FenceHandle) {
        self.state.lock().before.remove(&fence);
    }

    /// The operations so far, in order of their ends. Blocks the host until they are complete.
    pub(super) fn take(&self) -> DeviceResult<Vec<Executed>> {
        let state = &mut *self.state.lock();
        let mut all = Vec::new();
        for Timed { base, start, end, mut executed } in std::mem::take(&mut state.operations) {
            end.synchronize(CALL)?;
            let at = |event: &Event| -> DeviceResult<u64> {
                let since = base.event.elapsed_ns(CALL, event)?;
                Ok(base.host_ns.saturating_add_signed(since))
            };
            (executed.start_ns, executed.end_ns) = (at(&start)?, at(&end)?);
            state.spare.extend([start, end]);
            all.push(executed);
        }
        all.sort_by_key(|executed| (executed.end_ns, executed.id));
        Ok(all)
    }
}
