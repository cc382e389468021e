//! The timeline shows at each moment what a snapshot taken there shows, and its levels name moments that were.

use std::collections::BTreeMap;

use proptest::prelude::*;

use highwater_history::{
    BlockState,
    read::{self, Loaded},
    timeline::{Levels, Shown, Sums, Timeline},
    why::{Options, explain},
};

use crate::world::{MIB, Value, World, dict, pickle, text};

/// Something that a program does.
#[derive(Clone, Copy, Debug)]
enum Act {
    Alloc { bytes: u64, stream: u64, pool: u64, site: u64 },
    Free(usize),
    Request(usize),
    Complete(usize),
    Release,
    Pages(bool),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => (1..30_u64, 0..2_u64, 0..2_u64, 0..6_u64).prop_map(|(size, stream, pool, site)| {
            Act::Alloc { bytes: size * MIB / 4 + 100, stream, pool, site }
        }),
        4 => any::<usize>().prop_map(Act::Free),
        2 => any::<usize>().prop_map(Act::Request),
        2 => any::<usize>().prop_map(Act::Complete),
        1 => Just(Act::Release),
        1 => any::<bool>().prop_map(Act::Pages),
    ]
}

#[derive(Clone)]
struct Program {
    world: World,
    live: Vec<u64>,
    pending: Vec<u64>,
}

impl Program {
    fn new() -> Self {
        Self { world: World::new(), live: Vec::new(), pending: Vec::new() }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Alloc { bytes, stream, pool, site } => {
                (self.world.stream, self.world.pool) = (stream, (0, pool));
                self.live.push(self.world.alloc(bytes, &format!("a.py:{site} in f")));
                (self.world.stream, self.world.pool) = (0, (0, 0));
            }
            Act::Free(which) if !self.live.is_empty() => {
                let address = self.live.swap_remove(which % self.live.len());
                self.world.free(address);
            }
            Act::Request(which) if !self.live.is_empty() => {
                let address = self.live.swap_remove(which % self.live.len());
                self.world.request_free(address);
                self.pending.push(address);
            }
            Act::Complete(which) if !self.pending.is_empty() => {
                let address = self.pending.swap_remove(which % self.pending.len());
                self.world.complete(address);
            }
            Act::Release => self.world.release(),
            Act::Pages(pages) => self.world.expandable = pages,
            _ => {}
        }
    }
}

/// A segment: address, bytes, stream, pool, and its blocks: address, bytes, requested, whether it waits, where it is from.
type Told = (u64, u64, u64, (u64, u64), Vec<(u64, u64, u64, bool, String)>);

fn told_site(loaded: &Loaded, stack: highwater_history::StackId) -> String {
    highwater_history::why::site(loaded, stack).map_or(String::new(), |(_, site)| site)
}

/// What the file lists, without the timeline.
fn listed(loaded: &Loaded) -> Vec<Told> {
    let mut segments: Vec<Told> = Vec::new();
    for segment in &loaded.devices[0].segments {
        let blocks = segment.blocks.iter().filter(|block| block.state != BlockState::Inactive);
        let blocks = blocks.map(|block| {
            let waits = block.state == BlockState::PendingFree;
            (block.address, block.bytes, block.requested_bytes, waits, told_site(loaded, block.stack))
        });
        segments.push((segment.address, segment.total_bytes, segment.stream, segment.pool, blocks.collect()));
    }
    segments.sort();
    segments
}

fn mapped(loaded: &Loaded, timeline: &Timeline, moment: u32) -> Vec<Told> {
    let segments = timeline.map(moment).into_iter().map(|segment| {
        let lane = timeline.lanes()[segment.lane];
        let blocks = segment.blocks.iter().map(|block| {
            let life = &timeline.blocks()[block.block];
            assert_eq!(timeline.lane_of(life), segment.lane);
            let site = told_site(loaded, timeline.sources()[life.source].holder.stack);
            (block.address, block.bytes, life.requested_bytes, block.pending, site)
        });
        (segment.address, segment.bytes, lane.stream, lane.pool, blocks.collect())
    });
    segments.collect()
}

/// The sums of a map, by hand.
fn summed(timeline: &Timeline, moment: u32, lane: usize) -> Sums {
    let mut sums = Sums::default();
    for segment in timeline.map(moment).iter().filter(|segment| segment.lane == lane) {
        sums.cached_bytes += segment.bytes;
        for block in &segment.blocks {
            sums.cached_bytes -= block.bytes;
            let asked = timeline.blocks()[block.block].requested_bytes;
            match block.pending {
                true => sums.pending_bytes += block.bytes,
                false => {
                    (sums.live_bytes, sums.rounding_bytes) =
                        (sums.live_bytes + asked, sums.rounding_bytes + block.bytes - asked)
                }
            }
        }
    }
    sums
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Whatever came after and however many of the oldest events are lost.
    #[test]
    fn each_moment_is_as_a_snapshot_taken_there(acts in prop::collection::vec(act(), 1..120), lost in 0..40_usize) {
        let mut program = Program::new();
        let mut there = vec![program.world.clone()];
        for act in acts {
            program.act(act);
            there.push(program.world.clone());
        }
        // A ring that has lost its requests to free says nothing of what waits before them.
        let lost = lost.min(program.world.rows());
        program.world.events.drain(..lost);
        let loaded = program.world.loaded();
        let timeline = Timeline::of(&loaded, 0);
        prop_assert_eq!(timeline.faults(), 0);
        prop_assert_eq!(timeline.events() as usize, program.world.rows());
        for there in there.iter().filter(|there| there.rows() >= lost) {
            let then = there.loaded();
            let moment = (there.rows() - lost) as u32;
            prop_assert_eq!(mapped(&loaded, &timeline, moment), listed(&then), "moment {}", moment);
            let mut stacks: BTreeMap<String, (u64, u64)> = BTreeMap::new();
            for block in listed(&then).iter().flat_map(|segment| &segment.4).filter(|block| !block.3) {
                let sum = stacks.entry(block.4.clone()).or_default();
                *sum = (sum.0 + block.2, sum.1 + 1);
            }
            let found = timeline.held(moment, |_| true);
            prop_assert!(found.is_sorted_by_key(|held| std::cmp::Reverse(held.bytes)));
            let found = found.iter().map(|s| (told_site(&loaded, s.holder.stack), (s.bytes, s.blocks)));
            prop_assert_eq!(found.collect::<BTreeMap<_, _>>(), stacks);
        }
    }

    #[test]
    fn sums_are_those_of_the_map(acts in prop::collection::vec(act(), 1..80)) {
        let mut program = Program::new();
        acts.into_iter().for_each(|act| program.act(act));
        let timeline = Timeline::of(&program.world.loaded(), 0);
        for lane in 0..timeline.lanes().len() {
            for (moment, sums) in (0..).zip(timeline.sums(|of| of == lane)) {
                prop_assert_eq!(sums, summed(&timeline, moment, lane), "moment {}", moment);
            }
        }
    }

    /// Files say anything: nothing panics, and what is kept overlaps nowhere.
    #[test]
    fn events_that_fit_nothing_are_left_out(
        events in prop::collection::vec((0..7_usize, 0..12_u64, 0..9_u64), 0..80),
        segments in any::<bool>(),
    ) {
        const ACTIONS: [&str; 7] = [
            "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap",
        ];
        let event = |&(action, address, bytes): &(usize, u64, u64)| dict([
            ("action", text(ACTIONS[action])),
            ("addr", Value::Int(if address == 11 { u64::MAX - 511 } else { MIB * address })),
            ("size", Value::Int(if bytes == 8 { u64::MAX } else { bytes * MIB / 2 })),
            ("stream", Value::Int(0)),
            ("frames", Value::List(Vec::new())),
            ("time_us", Value::Int(1)),
        ]);
        let mut world = World::new();
        if segments {
            let address = world.segment(20 * MIB);
            world.put(address, 3 * MIB, "");
        }
        let file = pickle(&dict([
            ("segments", world.segments()),
            ("device_traces", Value::List(vec![Value::List(events.iter().map(event).collect())])),
        ]));
        let loaded = read::read(&file, &read::Options::default()).unwrap();
        let timeline = Timeline::of(&loaded, 0);
        for (index, one) in timeline.mapped().iter().enumerate() {
            prop_assert!(one.first < one.gone && one.gone <= timeline.events() + 1);
            for other in &timeline.mapped()[..index] {
                let times = one.first < other.gone && other.first < one.gone;
                let places = one.address < other.address + other.bytes && other.address < one.address + one.bytes;
                prop_assert!(!(times && places), "{one:?} {other:?}");
            }
        }
        for (index, one) in timeline.blocks().iter().enumerate() {
            prop_assert!(one.first <= one.freed && one.freed <= one.gone && one.first < one.gone, "{one:?}");
            for moment in one.first..one.gone.min(timeline.events() + 1) {
                let mut there = timeline.mapped().iter().filter(|range| range.is_at(moment));
                let inside = there.any(|range| (range.address..range.address + range.bytes).contains(&one.address));
                prop_assert!(inside, "{one:?} at {moment}");
            }
            for other in &timeline.blocks()[..index] {
                let times = one.first < other.gone && other.first < one.gone;
                prop_assert!(!(times && one.address == other.address), "{one:?} {other:?}");
            }
        }
        let levels = Levels::of(&timeline);
        prop_assert_eq!(levels.points().len(), (timeline.events() as usize + 1).div_ceil(64));
        (0..=timeline.events()).for_each(|moment| drop(timeline.map(moment)));
    }
}

/// A long program: `stacks` lines that allocate, and blocks that come and go.
fn long(rounds: u64, stacks: u64) -> Timeline {
    let mut program = Program::new();
    for round in 0..rounds {
        let (stream, pool) = (round % 2, round / 2 % 2);
        program.act(Act::Alloc { bytes: (1 + round * 7 % 90) * 100_000, stream, pool, site: round * 31 % stacks });
        match round % 5 {
            0 | 1 => program.act(Act::Free(round as usize * 13)),
            2 => program.act(Act::Request(round as usize * 17)),
            _ if round % 3 == 0 => program.act(Act::Complete(round as usize)),
            _ => {}
        }
    }
    Timeline::of(&program.world.loaded(), 0)
}

#[test]
fn points_name_the_fullest_moment_of_their_bucket_and_have_its_values() {
    let timeline = long(3000, 100);
    let (levels, sums) = (Levels::of(&timeline), timeline.sums(|_| true));
    let bucket = levels.bucket_moments() as usize;
    assert_eq!((bucket, levels.points().len()), (64, sums.len().div_ceil(64)));
    let stack_series = levels.series().iter().filter(|series| matches!(series.shown, Shown::Holder(_)));
    let stacks: std::collections::BTreeSet<_> = stack_series.clone().map(|series| series.shown).collect();
    assert!((20..=48).contains(&stacks.len()) && stack_series.count() <= 160);
    for (index, (point, of)) in levels.points().iter().zip(sums.chunks(bucket)).enumerate() {
        let most = of.iter().map(Sums::used_bytes).max().unwrap();
        let moment = index * bucket + of.iter().position(|sums| sums.used_bytes() == most).unwrap();
        assert_eq!(point.moment as usize, moment);
        assert_eq!(point.low_bytes, of.iter().map(Sums::used_bytes).min().unwrap());
        // Each value again, from the map of that moment.
        let mut expected: BTreeMap<(usize, Shown), i64> = BTreeMap::new();
        for segment in timeline.map(point.moment) {
            let place = levels.places()[segment.lane];
            let mut add = |shown, bytes: u64| *expected.entry((place, shown)).or_default() += bytes as i64;
            let used: u64 = segment.blocks.iter().map(|block| block.bytes).sum();
            add(Shown::Cached, segment.bytes - used);
            for block in &segment.blocks {
                let life = &timeline.blocks()[block.block];
                if block.pending {
                    add(Shown::Pending, block.bytes);
                    continue;
                }
                let own = Shown::Holder(timeline.sources()[life.source].holder);
                let own = if stacks.contains(&own) { own } else { Shown::Others };
                add(own, life.requested_bytes);
                add(Shown::Rounding, block.bytes - life.requested_bytes);
            }
        }
        for (series, &value) in levels.series().iter().zip(levels.values(index)) {
            let expected = expected.get(&(series.place, series.shown)).copied().unwrap_or(0);
            assert_eq!(value, expected, "{series:?} at {}", point.moment);
        }
    }
    let most = sums.iter().map(Sums::used_bytes).max().unwrap();
    assert_eq!(levels.peak() as usize, sums.iter().position(|sums| sums.used_bytes() == most).unwrap());
}

#[test]
fn levels_above_keep_the_fullest_moment_and_the_least_of_their_buckets() {
    // One event after the other, each as large as its place says.
    let mut world = World::new();
    let segment = world.segment(64 * MIB);
    for round in 0..70_000_u64 {
        world.put(segment, (1 + round * 7919 % 100_000) * 512, "a.py:1 in f");
        world.free(segment);
    }
    let timeline = Timeline::of(&world.loaded(), 0);
    let (levels, sums) = (Levels::of(&timeline), timeline.sums(|_| true));
    let mut bucket = levels.bucket_moments() as usize;
    assert!(!levels.coarser().is_empty() && levels.coarser().last().unwrap().len() <= 512);
    for level in levels.coarser() {
        bucket *= 2;
        assert_eq!(level.len(), sums.len().div_ceil(bucket));
        for (&(point, low), of) in level.iter().zip(sums.chunks(bucket)) {
            let used = sums[levels.points()[point as usize].moment as usize].used_bytes();
            assert_eq!(used, of.iter().map(Sums::used_bytes).max().unwrap());
            assert_eq!(low, of.iter().map(Sums::used_bytes).min().unwrap());
        }
    }
}

#[test]
fn without_stacks_sizes_stand_in() {
    let mut world = World::new();
    for (bytes, site) in [(3 * MIB, ""), (5 * MIB, ""), (3 * MIB, ""), (3 * MIB, "a.py:1 in f")] {
        world.alloc(bytes, site);
    }
    let timeline = Timeline::of(&world.loaded(), 0);
    let held = timeline.held(timeline.events(), |_| true);
    let told: Vec<_> = held.iter().map(|held| (held.holder.bytes, held.bytes, held.blocks)).collect();
    assert_eq!(told, [(3 * MIB, 6 * MIB, 2), (5 * MIB, 5 * MIB, 1), (0, 3 * MIB, 1)]);
}

#[test]
fn the_smallest_of_very_many_lanes_share_a_place() {
    let mut world = World::new();
    for stream in 0..100 {
        world.stream = stream;
        let bytes = 2 * MIB * (1 + (stream * 37) % 100);
        let address = world.segment(bytes);
        world.put(address, MIB, "a.py:1 in f");
    }
    let timeline = Timeline::of(&world.loaded(), 0);
    let levels = Levels::of(&timeline);
    let alone = (0..100).filter(|&lane| levels.places()[lane] != 63);
    let sizes: Vec<u64> = alone.map(|lane| 1 + (timeline.lanes()[lane].stream * 37) % 100).collect();
    assert_eq!((sizes.len(), sizes.into_iter().min()), (63, Some(38)));
    let last = levels.points().len() - 1;
    let total: i64 = levels.values(last).iter().sum();
    assert_eq!(total as u64, world.reserved());
}

/// Two programs that undo the same trace agree: this one, and that of the verdict.
#[test]
fn traces_of_pytorch_have_the_sums_of_the_verdict() {
    let files: [&[u8]; 3] = [
        include_bytes!("../data/oom_leak.pickle.xz"),
        include_bytes!("../data/oom_cross_stream.pickle.xz"),
        include_bytes!("../data/prefetch_record_stream.pickle.xz"),
    ];
    for file in files {
        let loaded = read::read(file, &read::Options::default()).unwrap();
        let verdict = explain(&loaded, &Options::default()).remove(0);
        let timeline = Timeline::of(&loaded, verdict.device);
        assert_eq!(timeline.faults(), 0);
        let sums = timeline.sums(|_| true)[verdict.event.unwrap() as usize];
        let ledger = verdict.ledger;
        assert_eq!(sums.live_bytes, ledger.live_bytes);
        assert_eq!(sums.rounding_bytes, ledger.rounding_bytes);
        assert_eq!(sums.pending_bytes, ledger.pending_bytes);
        assert_eq!(sums.reserved_bytes(), ledger.reserved_bytes());
    }
}
