//! Random programs of open and closed streams, beside a graph of who comes after whom.

#![cfg(not(loom))]

use std::collections::BTreeSet;

use highwater_core::{Openness, Outlook, Position, StreamIndex};
use proptest::prelude::*;

const STREAMS: usize = 4;

#[derive(Clone, Debug)]
enum Op {
    Open(usize),
    Record(usize),
    /// A stream waits for a fence, by its number among all.
    Wait(usize, usize),
    /// The host sees a fence complete.
    Complete(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        1 => (0..STREAMS).prop_map(Op::Open),
        4 => (0..STREAMS).prop_map(Op::Record),
        4 => (0..STREAMS, any::<usize>()).prop_map(|(stream, fence)| Op::Wait(stream, fence)),
        2 => any::<usize>().prop_map(Op::Complete),
    ]
}

struct Fence {
    stream: usize,
    position: u64,
    outlook: Outlook<usize>,
    /// Whether its stream was open.
    open: bool,
    /// The fences that it comes after, itself among them.
    after: BTreeSet<usize>,
    complete: bool,
}

#[derive(Default)]
struct World {
    streams: [Openness<usize>; STREAMS],
    opened: [bool; STREAMS],
    /// What comes before whatever a stream is given next.
    before: [BTreeSet<usize>; STREAMS],
    fences: Vec<Fence>,
}

impl World {
    fn step(&mut self, op: &Op) {
        let count = self.fences.len();
        match *op {
            Op::Open(stream) => {
                self.streams[stream].open();
                self.opened[stream] = true;
            }
            Op::Record(stream) => {
                let outlook = self.streams[stream].outlook(|&fence| self.fences[fence].complete);
                self.before[stream].insert(count);
                let (after, open) = (self.before[stream].clone(), self.opened[stream]);
                self.fences.push(Fence { stream, position: count as u64, outlook, open, after, complete: false });
            }
            Op::Wait(stream, fence) if count > 0 => {
                let fence = fence % count;
                self.streams[stream].will_wait(self.holds(fence));
                let after = self.fences[fence].after.clone();
                self.before[stream].extend(after);
            }
            Op::Complete(fence) if count > 0 => {
                for before in self.fences[fence % count].after.clone() {
                    self.fences[before].complete = true;
                }
            }
            Op::Wait(..) | Op::Complete(_) => {}
        }
    }

    fn holds(&self, fence: usize) -> Vec<highwater_core::Hold<usize>> {
        let Fence { stream, position, outlook, .. } = &self.fences[fence];
        let mut holds = outlook.holds(StreamIndex(*stream as u32), Position(*position), &fence);
        holds.retain(|hold| !self.fences[hold.fence].complete);
        holds
    }

    /// Whether a fence comes after one of an open stream that is not complete.
    fn is_held_up(&self, fence: usize) -> bool {
        let mut after = self.fences[fence].after.iter().map(|&before| &self.fences[before]);
        after.any(|before| before.open && !before.complete)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn a_fence_is_held_up_just_by_what_it_comes_after(ops in prop::collection::vec(op(), 1..60)) {
        let mut world = World::default();
        for op in &ops {
            world.step(op);
            for fence in 0..world.fences.len() {
                prop_assert_eq!(!world.holds(fence).is_empty(), world.is_held_up(fence), "fence {} after {:?}", fence, op);
            }
        }
    }
}
