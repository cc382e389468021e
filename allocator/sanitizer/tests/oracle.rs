//! The sanitizer on a device alone: random programs against all paths of their graph, and pages with two addresses.

use std::sync::Arc;

use highwater_device::sim::{SimConfig, SimDevice};
use highwater_device::{
    Access, Address, Body, ByteRange, Cost, Device, FenceHandle, HostMemory, Operand, Operation, StreamId, Waited,
};
use highwater_sanitizer::{Config, OnRace, RaceKind, Sanitizer, Watched};
use proptest::prelude::*;

const PAGE: u64 = 2 << 20;

struct Stage {
    sanitizer: Sanitizer,
    device: Arc<Watched>,
    streams: Vec<StreamId>,
    base: Address,
}

impl Stage {
    /// One page at two addresses, and three streams.
    fn new() -> Self {
        let sanitizer = Sanitizer::new(Config { on_race: OnRace::Collect, ..Config::default() });
        let device = sanitizer.watch(SimDevice::new(SimConfig { workers: 0, bodies: false, ..SimConfig::default() }));
        let streams = ["a", "b", "c"].map(|name| device.create_stream(name).unwrap()).to_vec();
        let base = device.reserve(2 * PAGE).unwrap();
        let page = device.create(PAGE).unwrap();
        device.map(page, base).unwrap();
        device.map(page, base.offset(PAGE)).unwrap();
        device.set_access(base, 2 * PAGE).unwrap();
        Stage { sanitizer, device, streams, base }
    }

    fn launch(&self, stream: usize, name: String, offset: u64, bytes: u64, access: Access) {
        let operands = vec![Operand { range: ByteRange::new(self.base.offset(offset), bytes), access }];
        let operation = Operation { name: name.into(), tag: 0, cost: Cost::exact(10), operands, body: Body::Nothing };
        self.device.launch(self.streams[stream], operation).unwrap();
    }
}

/// One step of a program.
#[derive(Clone, Debug)]
enum Step {
    /// Which stream, which of the page's addresses, the first byte, how many, and whether it writes.
    Launch(usize, bool, u64, u64, bool),
    Record(usize),
    /// Which stream waits, and for which of the fences so far.
    Wait(usize, usize),
    /// The host waits for one of the fences so far.
    Synchronize(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..3usize, any::<bool>(), 0..8u64, 1..4u64, any::<bool>())
            .prop_map(|(stream, alias, first, len, writes)| Step::Launch(stream, alias, first, len, writes)),
        3 => (0..3usize).prop_map(Step::Record),
        3 => (0..3usize, 0..64usize).prop_map(|(stream, fence)| Step::Wait(stream, fence)),
        1 => (0..64usize).prop_map(Step::Synchronize),
    ];
    prop::collection::vec(step, 1..24)
}

/// A program as a graph: for each step, the steps that come right before it. Reachability is looked for by walking.
#[derive(Default)]
struct Graph {
    before: Vec<Vec<usize>>,
    last_of: [Option<usize>; 3],
    seen_by_host: Vec<usize>,
    launches: Vec<(usize, u64, u64, bool)>,
}

impl Graph {
    fn add(&mut self, stream: usize, also: Option<usize>) -> usize {
        let mut before: Vec<usize> = self.last_of[stream].into_iter().chain(also).collect();
        before.extend(&self.seen_by_host);
        self.before.push(before);
        self.last_of[stream] = Some(self.before.len() - 1);
        self.before.len() - 1
    }

    fn reaches(&self, from: usize, to: usize) -> bool {
        from == to || self.before[to].iter().any(|&step| step >= from && self.reaches(from, step))
    }

    fn has_race(&self) -> bool {
        self.launches.iter().enumerate().any(|(index, &(second, start, end, writes))| {
            self.launches[..index].iter().any(|&(first, earlier, until, wrote)| {
                earlier < end && start < until && (writes || wrote) && !self.reaches(first, second)
            })
        })
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn a_program_is_reported_exactly_when_a_pair_is_not_ordered(steps in steps()) {
        let (stage, mut graph) = (Stage::new(), Graph::default());
        let mut fences: Vec<(FenceHandle, usize)> = Vec::new();
        for (index, step) in steps.into_iter().enumerate() {
            match step {
                Step::Launch(stream, alias, first, len, writes) => {
                    let access = if writes { Access::Write } else { Access::Read };
                    let offset = if alias { PAGE } else { 0 } + first;
                    stage.launch(stream, format!("op {index}"), offset, len, access);
                    let node = graph.add(stream, None);
                    graph.launches.push((node, first, first + len, writes));
                }
                Step::Record(stream) => {
                    let fence = stage.device.record(stage.streams[stream]).unwrap();
                    fences.push((fence, graph.add(stream, None)));
                }
                Step::Wait(stream, which) if !fences.is_empty() => {
                    let (fence, node) = fences[which % fences.len()];
                    stage.device.wait(stage.streams[stream], fence).unwrap();
                    graph.add(stream, Some(node));
                }
                Step::Synchronize(which) if !fences.is_empty() => {
                    let (fence, node) = fences[which % fences.len()];
                    let waited = stage.device.synchronize(fence, None).unwrap();
                    prop_assert_eq!(waited, Waited::Complete);
                    graph.seen_by_host.push(node);
                }
                Step::Wait(..) | Step::Synchronize(_) => {}
            }
            let races = stage.sanitizer.counters().races;
            prop_assert_eq!(races > 0, graph.has_race(), "{} races", races);
        }
    }
}

#[test]
fn two_addresses_of_one_page_share_their_bytes() {
    let stage = Stage::new();
    stage.launch(0, "write".into(), 100, 50, Access::Write);
    stage.launch(1, "elsewhere".into(), PAGE, 100, Access::Read);
    assert_eq!(stage.sanitizer.counters().races, 0);
    stage.launch(1, "through the alias".into(), PAGE + 120, 50, Access::Read);
    let races = stage.sanitizer.take_races();
    assert_eq!((races.len(), races[0].kind, races[0].range.bytes), (1, RaceKind::Unordered, 30));
    assert_eq!(races[0].range.address, stage.base.offset(PAGE + 120), "as the second one uses it");
}

#[test]
fn a_mapping_goes_when_its_own_uses_are_over_whatever_goes_on_through_the_other() {
    let stage = Stage::new();
    stage.launch(0, "write".into(), PAGE, 100, Access::Write);
    stage.device.unmap(stage.base, PAGE).unwrap();
    assert_eq!(stage.sanitizer.counters().races, 0);
}

#[test]
fn knowledge_is_bounded_and_what_is_dropped_is_counted() {
    let sanitizer = Sanitizer::new(Config { on_race: OnRace::Collect, ranges_per_page: 100, races: 3 });
    let stream = StreamId(1);
    let access = |name: &'static str, stream, at| {
        sanitizer.access(stream, name, ByteRange::new(Address(at), 1), Access::Write);
    };
    for index in 0..1000 {
        access("fill", stream, 10 * index);
    }
    assert!(sanitizer.counters().dropped >= 900 - 100, "{:?}", sanitizer.counters());
    for (index, name) in ["a", "b", "c", "d", "e"].into_iter().enumerate() {
        access(name, StreamId(2), 9990 - 10 * index as u64);
    }
    assert_eq!((sanitizer.counters().races, sanitizer.take_races().len()), (5, 3));
}

#[test]
fn host_memory_that_is_gone_does_not_pile_up() {
    let stage = Stage::new();
    let copied = |bytes| {
        let host = HostMemory::pinned(bytes);
        stage.device.copy_to_device(stage.streams[0], stage.base, &host, 0, bytes).unwrap();
        host
    };
    let busy = copied(8);
    for _ in 0..2000 {
        let _gone = copied(8);
        let fence = stage.device.record(stage.streams[0]).unwrap();
        assert_eq!(stage.device.synchronize(fence, None).unwrap(), Waited::Complete);
        stage.device.release_fence(fence);
    }
    assert!(stage.sanitizer.counters().places < 600, "{:?}", stage.sanitizer.counters());
    stage.sanitizer.host_access(&busy, 0..8, Access::Write);
    assert_eq!(stage.sanitizer.counters().races, 0);
    // More than are kept without a look at them.
    let unseen: Vec<_> = (0..600).map(|_| copied(8)).collect();
    for host in &unseen {
        stage.sanitizer.host_access(host, 0..8, Access::Write);
    }
    assert_eq!(stage.sanitizer.counters().races, 600, "what is not over is not forgotten");
}
