//! What comes before what: streams, fences, and the host.
//!
//! Each operation has a tick of its stream's lane. A fence is a copy of its stream's clock, a wait joins it into
//! another's, and what the host has seen complete is joined into the host's. Whatever is submitted comes after all that
//! the host has seen complete, whichever thread saw it: that work is over, so nothing submitted now can overlap with it.
//!
//! A lane is used for another stream only when the host has seen everything of the former one complete.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use highwater_device::{FenceHandle, StreamId};
use highwater_history::Context;

use crate::clock::{Epoch, Lane, VectorClock};
use crate::race::{FencePoint, Missing};

/// How many fences are remembered for reports.
const RECENT: usize = 128;

/// One operation that was submitted.
#[derive(Debug)]
pub(crate) struct Op {
    pub(crate) name: Cow<'static, str>,
    pub(crate) stream: Arc<str>,
    pub(crate) context: Option<Context>,
    pub(crate) epoch: Epoch,
    /// It is recorded into a graph and does not execute.
    pub(crate) captured: bool,
}

/// A fence: what it covers.
struct Recorded {
    clock: VectorClock,
    lane: Lane,
    point: FencePoint,
}

/// A stream.
struct Stream {
    id: StreamId,
    name: Arc<str>,
    clock: VectorClock,
    captures: bool,
    destroyed: bool,
    /// The last wait for a fence of each lane, with its line.
    waits: BTreeMap<Lane, (Arc<Recorded>, Option<Context>)>,
    /// The lane of the last one.
    last_wait: Option<Lane>,
}

/// The order of everything that was submitted.
#[derive(Default)]
pub(crate) struct Order {
    streams: Vec<Stream>,
    by_id: BTreeMap<StreamId, Lane>,
    host: VectorClock,
    fences: BTreeMap<FenceHandle, Arc<Recorded>>,
    recent: VecDeque<Arc<Recorded>>,
}

impl Order {
    /// The lane of a stream, which gets one when it is seen for the first time.
    pub(crate) fn lane(&mut self, id: StreamId) -> Lane {
        if let Some(&lane) = self.by_id.get(&id) {
            return lane;
        }
        let name: Arc<str> = format!("stream {}", id.0).into();
        // What the host has seen comes first. A former stream's own waits are not inherited: they may not be over.
        let clock = self.host.clone();
        let (captures, destroyed, waits, last_wait) = (false, false, BTreeMap::new(), None);
        let stream = Stream { id, name, clock, captures, destroyed, waits, last_wait };
        let lane = match self.unused_lane() {
            Some(lane) => {
                let former = std::mem::replace(&mut self.streams[lane.0], stream);
                self.by_id.remove(&former.id);
                lane
            }
            None => {
                self.streams.push(stream);
                Lane(self.streams.len() - 1)
            }
        };
        self.by_id.insert(id, lane);
        lane
    }

    /// A lane whose stream is destroyed, and which the host has seen complete.
    fn unused_lane(&self) -> Option<Lane> {
        let lanes = self.streams.iter().enumerate();
        let mut unused = lanes.filter(|(index, stream)| {
            let lane = Lane(*index);
            stream.destroyed && self.host.of(lane) == stream.clock.of(lane)
        });
        unused.next().map(|(index, _)| Lane(index))
    }

    pub(crate) fn name(&mut self, id: StreamId, name: &str) {
        let lane = self.lane(id);
        self.streams[lane.0].name = name.into();
    }

    /// Its lane stays its own until another stream needs one: a stream that is adopted again goes on in it.
    pub(crate) fn destroyed(&mut self, id: StreamId) {
        let lane = self.lane(id);
        self.streams[lane.0].destroyed = true;
    }

    pub(crate) fn captures(&mut self, id: StreamId, captures: bool) {
        let lane = self.lane(id);
        self.streams[lane.0].captures = captures;
    }

    /// A new operation of a stream.
    pub(crate) fn submitted(&mut self, id: StreamId, name: Cow<'static, str>, context: Option<Context>) -> Op {
        let lane = self.lane(id);
        let stream = &mut self.streams[lane.0];
        stream.destroyed = false;
        let epoch = stream.clock.advance(lane);
        Op { name, stream: stream.name.clone(), context, epoch, captured: stream.captures }
    }

    /// What a fence recorded now covers; [`recorded`](Self::recorded) says which fence it became.
    pub(crate) fn stamp(&mut self, id: StreamId) -> VectorClock {
        let lane = self.lane(id);
        let stream = &mut self.streams[lane.0];
        stream.clock.join(&self.host);
        stream.clock.clone()
    }

    pub(crate) fn recorded(&mut self, id: StreamId, fence: FenceHandle, clock: VectorClock, at: Option<Context>) {
        let lane = self.lane(id);
        let point = FencePoint { stream: self.streams[lane.0].name.clone(), recorded: at };
        let recorded = Arc::new(Recorded { clock, lane, point });
        self.fences.insert(fence, recorded.clone());
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(recorded);
    }

    pub(crate) fn released(&mut self, fence: FenceHandle) {
        self.fences.remove(&fence);
    }

    /// A stream waits for a fence. One that was recorded unseen orders nothing.
    pub(crate) fn waited(&mut self, id: StreamId, fence: FenceHandle, at: Option<Context>) {
        let lane = self.lane(id);
        let Some(fence) = self.fences.get(&fence) else { return };
        let stream = &mut self.streams[lane.0];
        stream.clock.join(&fence.clock);
        stream.waits.insert(fence.lane, (fence.clone(), at));
        stream.last_wait = Some(fence.lane);
    }

    /// The host has seen a fence complete.
    pub(crate) fn host_saw(&mut self, fence: FenceHandle) {
        if let Some(fence) = self.fences.get(&fence) {
            self.host.join(&fence.clock);
        }
    }

    /// The host has seen everything complete that a stream was given so far.
    pub(crate) fn host_saw_all(&mut self, id: StreamId) {
        let clock = self.stamp(id);
        self.host.join(&clock);
    }

    /// What `after` is given from now on comes after everything that `before` was given so far.
    pub(crate) fn ordered(&mut self, before: StreamId, after: StreamId) {
        let clock = self.stamp(before);
        let lane = self.lane(after);
        self.streams[lane.0].clock.join(&clock);
    }

    /// Whether an operation comes before what is submitted to a stream now.
    pub(crate) fn is_before(&self, op: &Op, lane: Lane) -> bool {
        op.epoch.lane == lane || self.streams[lane.0].clock.covers(op.epoch) || self.host_has_seen(op)
    }

    /// Whether the host has seen it complete: it comes before everything from now on.
    pub(crate) fn host_has_seen(&self, op: &Op) -> bool {
        self.host.covers(op.epoch)
    }

    /// What keeps a stream from coming after an operation.
    pub(crate) fn missing_wait(&self, first: &Op, waiter: Lane) -> Missing {
        let stream = &self.streams[waiter.0];
        let same_stream = stream.waits.get(&first.epoch.lane);
        let last = stream.last_wait.and_then(|lane| stream.waits.get(&lane));
        let waited = same_stream.or(last).map(|(fence, at)| (fence.point.clone(), *at));
        Missing::Wait { waiter: stream.name.clone(), covering: self.covering(first), waited }
    }

    pub(crate) fn missing_host_wait(&self, first: &Op) -> Missing {
        Missing::HostWait { covering: self.covering(first) }
    }

    /// The first fence behind an operation, of its own stream if there is one.
    fn covering(&self, op: &Op) -> Option<FencePoint> {
        let mut covering = self.recent.iter().filter(|fence| fence.clock.covers(op.epoch));
        let own = covering.clone().find(|fence| fence.lane == op.epoch.lane);
        own.or_else(|| covering.next()).map(|fence| fence.point.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: StreamId = StreamId(10);
    const T: StreamId = StreamId(11);

    fn op(order: &mut Order, id: StreamId) -> Op {
        order.submitted(id, "op".into(), None)
    }

    fn fence(order: &mut Order, id: StreamId, handle: u64) -> FenceHandle {
        let clock = order.stamp(id);
        order.recorded(id, FenceHandle(handle), clock, None);
        FenceHandle(handle)
    }

    #[test]
    fn a_wait_orders_what_the_fence_covers_and_nothing_later() {
        let mut order = Order::default();
        let (s, t) = (order.lane(S), order.lane(T));
        let early = op(&mut order, S);
        let handle = fence(&mut order, S, 1);
        let late = op(&mut order, S);
        assert!(order.is_before(&early, s) && !order.is_before(&early, t));
        order.waited(T, handle, None);
        assert!(order.is_before(&early, t) && !order.is_before(&late, t));
        assert!(!order.host_has_seen(&early));
        order.host_saw(handle);
        assert!(order.host_has_seen(&early) && !order.host_has_seen(&late));
    }

    #[test]
    fn order_goes_through_a_third_stream_and_through_the_host() {
        let mut order = Order::default();
        let u = StreamId(12);
        let first = op(&mut order, S);
        let handle = fence(&mut order, S, 1);
        order.waited(T, handle, None);
        let second = fence(&mut order, T, 2);
        order.waited(u, second, None);
        let lane = order.lane(u);
        assert!(order.is_before(&first, lane));

        let v = order.lane(StreamId(13));
        assert!(!order.is_before(&first, v));
        order.host_saw(second);
        assert!(order.is_before(&first, v), "the host has seen it through the other stream's fence");
    }

    #[test]
    fn a_fence_that_was_given_back_orders_nothing_any_more() {
        let mut order = Order::default();
        let first = op(&mut order, S);
        let handle = fence(&mut order, S, 1);
        order.released(handle);
        order.waited(T, handle, None);
        order.host_saw(handle);
        let t = order.lane(T);
        assert!(!order.is_before(&first, t));
    }

    #[test]
    fn a_lane_goes_to_another_stream_only_when_the_host_has_seen_its_work() {
        let mut order = Order::default();
        let lane = order.lane(S);
        let first = op(&mut order, S);
        order.destroyed(S);
        let other = order.lane(T);
        assert_ne!(other, lane);
        assert!(!order.is_before(&first, other));
        order.host_saw_all(S);
        let next = order.lane(StreamId(12));
        assert_eq!(next, lane);
        assert!(order.is_before(&first, other), "the host has seen it");
        let again = op(&mut order, StreamId(12));
        assert_eq!((again.epoch.lane, again.epoch.tick), (lane, 2), "ticks go on");
        assert_ne!(order.lane(S), lane, "the former stream's id is not the new one's");
    }

    #[test]
    fn a_new_stream_does_not_inherit_an_order_that_was_only_submitted() {
        let mut order = Order::default();
        let work = op(&mut order, T);
        let handle = fence(&mut order, T, 1);
        order.waited(S, handle, None);
        let former = order.lane(S);
        order.destroyed(S);
        let lane = order.lane(StreamId(12));
        assert_eq!(lane, former, "nothing was done on it, so the lane is free");
        assert!(!order.is_before(&work, lane));
    }

    #[test]
    fn a_stream_that_comes_back_goes_on_in_its_lane() {
        let mut order = Order::default();
        let first = op(&mut order, S);
        order.destroyed(S);
        let again = op(&mut order, S);
        assert_eq!(first.epoch.lane, again.epoch.lane);
        order.host_saw_all(S);
        assert_ne!(order.lane(T), again.epoch.lane, "it is in use");
    }

    #[test]
    fn order_by_hand_is_order() {
        let mut order = Order::default();
        let first = op(&mut order, S);
        order.ordered(S, T);
        let later = op(&mut order, S);
        let t = order.lane(T);
        assert!(order.is_before(&first, t) && !order.is_before(&later, t));
    }
}
