//! Snapshots that lack something, or that make no sense: answers, not panics.

use highwater_history::{
    read,
    why::{Cause, Look, Moment, Options, explain},
};
use proptest::prelude::*;

use crate::world::{GIB, MIB, Value, World, causes, dict, pickle, text};

fn demand() -> World {
    let mut world = World::new();
    for layer in 0..10 {
        world.alloc(GIB, &format!("model.py:{layer} in build"));
    }
    world.out_of_memory(2 * GIB, GIB / 2, "train.py:3 in forward");
    world
}

#[test]
fn without_stacks_sizes_stand_in() {
    let mut world = World::new();
    for _ in 0..20 {
        let batch = world.alloc(300 * MIB, "");
        world.alloc(20 * MIB, "");
        world.free(batch);
    }
    world.out_of_memory(300 * MIB, 0, "");
    let verdict = world.why();
    assert_eq!(causes(&verdict)[0], "F1", "{:?}", verdict.findings);
    assert_eq!(verdict.top_stacks[0].site, "blocks of 20.00 MiB, no stack recorded");
    let missing = verdict.finding(Cause::X).expect("stacks are missing");
    assert!(missing.evidence[0].contains("stack"), "{missing:?}");
}

#[test]
fn a_ring_that_starts_late_is_right_about_the_end() {
    let mut world = demand();
    let whole = world.why();
    world.events.drain(..15);
    let late = world.why();
    assert_eq!((late.ledger, late.cause()), (whole.ledger, Cause::A1));
    let missing = late.finding(Cause::X).expect("most blocks are older than the trace");
    assert!(missing.evidence[0].contains("begins late"), "{missing:?}");
}

#[test]
fn segments_alone() {
    let mut world = demand();
    let file = pickle(&world.segments());
    let loaded = read::read(&file, &read::Options::default()).unwrap();
    let verdict = explain(&loaded, &Options::default()).remove(0);
    assert_eq!((verdict.moment, verdict.event), (Moment::Peak, None));
    assert_eq!(verdict.ledger.live_bytes, 10 * GIB);
    assert!(verdict.finding(Cause::X).is_some_and(|finding| finding.evidence[0].contains("no events")));
    world.events.clear();
    assert_eq!(world.why().ledger, verdict.ledger);
}

#[test]
fn without_times() {
    let timed = demand().why();
    let mut world = World::new();
    world.timed = false;
    for layer in 0..10 {
        world.alloc(GIB, &format!("model.py:{layer} in build"));
    }
    world.out_of_memory(2 * GIB, GIB / 2, "train.py:3 in forward");
    let verdict = explain(&world.loaded(), &Options::default()).remove(0);
    assert_eq!((verdict.cause(), verdict.ledger), (timed.cause(), timed.ledger));
    assert!(verdict.warnings[0].contains("no time"), "{:?}", verdict.warnings);
    assert_eq!(verdict.timeline.and_then(|timeline| timeline.since_us), None);
}

#[test]
fn the_device_that_failed_comes_first() {
    let mut calm = World::new();
    calm.alloc(50 * GIB, "model.py:1 in build");
    let file = pickle(&dict([
        ("segments", demand().segments()),
        ("device_traces", Value::List([calm.events, demand().events].map(Value::List).to_vec())),
    ]));
    let loaded = read::read(&file, &read::Options::default()).unwrap();
    let verdicts = explain(&loaded, &Options::default());
    assert_eq!(verdicts.iter().map(|verdict| verdict.device).collect::<Vec<_>>(), [1, 0]);
    assert_eq!(verdicts[0].moment, Moment::OutOfMemory);
}

#[test]
fn frees_with_one_event() {
    for left_out in ["free_requested", "free_completed"] {
        let mut world = World::new();
        for _ in 0..3 {
            let address = world.alloc(GIB, "a.py:1 in f");
            world.free(address);
        }
        world.alloc(2 * GIB, "a.py:2 in f");
        world.out_of_memory(2 * GIB, 0, "a.py:3 in f");
        let is_it = |event: &Value| {
            let Value::Dict(entries) = event else { return false };
            entries.iter().any(|(_, value)| matches!(value, Value::Text(text) if text == left_out))
        };
        world.events.retain(|event| !is_it(event));
        let verdict = explain(&world.loaded(), &Options::default()).remove(0);
        assert_eq!((verdict.ledger.live_bytes, verdict.ledger.pending_bytes), (2 * GIB, 0), "without {left_out}");
        assert!(verdict.warnings.iter().any(|line| line.contains("one event instead of two")));
    }
}

/// A ring that lost its oldest events can hold completions alone: those of blocks handed out before it starts. That is no
/// recorder that leaves requests out.
#[test]
fn a_ring_that_lost_the_requests_still_tells_what_was_pending() {
    let mut world = World::new();
    let old = world.alloc(GIB, "a.py:1 in f");
    world.request_free(old);
    world.alloc(2 * GIB, "a.py:2 in f");
    world.out_of_memory(4 * GIB, 0, "a.py:3 in f");
    let lost = world.rows() - 1;
    world.complete(old);
    world.events.drain(..lost);
    let verdict = explain(&world.loaded(), &Options::default()).remove(0);
    assert_eq!((verdict.ledger.live_bytes, verdict.ledger.pending_bytes), (2 * GIB, GIB));
    assert_eq!(verdict.warnings, [] as [&str; 0]);
}

#[test]
fn a_request_that_was_tried_again_is_told_as_caught() {
    let mut world = World::new();
    let old = world.alloc(2 * GIB, "a.py:1 in f");
    world.out_of_memory(GIB, 0, "a.py:2 in f");
    world.free(old);
    world.release();
    world.alloc(GIB, "a.py:2 in f");
    world.alloc(3 * GIB, "a.py:3 in f");
    world.out_of_memory(2 * GIB, 0, "a.py:4 in f");
    let verdict = world.why();
    assert_eq!((verdict.out_of_memory_events, verdict.caught), (2, 1));
    assert_eq!(verdict.request_bytes, Some(2 * GIB), "the one that was not");
}

fn event() -> impl Strategy<Value = Value> {
    let actions = prop::sample::select(vec![
        "alloc",
        "alloc",
        "free_requested",
        "free_completed",
        "free",
        "segment_alloc",
        "segment_free",
        "segment_map",
        "segment_unmap",
        "oom",
        "snapshot",
        "annotate",
        "odd",
    ]);
    let number = || prop_oneof![0..8_u64, (0..40_u64).prop_map(|n| n << 19), any::<u64>()];
    (actions, number(), number(), 0..3_u64, number(), any::<bool>()).prop_map(|(action, a, b, stream, time, pool)| {
        dict([
            ("action", text(action)),
            (if action == "oom" { "device_free" } else { "addr" }, Value::Int(a)),
            ("size", Value::Int(b >> 1)),
            ("stream", Value::Int(stream)),
            ("time_us", Value::Int(time >> 1)),
            ("pool_id", Value::Pair(u64::from(pool), 0)),
        ])
    })
}

fn segment() -> impl Strategy<Value = Value> {
    let number = || prop_oneof![(0..40_u64).prop_map(|n| n << 19), any::<u64>().prop_map(|n| n >> 1)];
    let state = prop::sample::select(vec!["active_allocated", "active_pending_free", "inactive"]);
    let block = (number(), number(), number(), state).prop_map(|(address, size, requested, state)| {
        dict([
            ("address", Value::Int(address)),
            ("size", Value::Int(size)),
            ("requested_size", Value::Int(requested)),
            ("state", text(state)),
            ("frames", Value::List(Vec::new())),
        ])
    });
    let blocks = prop::collection::vec(block, 0..6);
    (number(), number(), blocks, any::<bool>()).prop_map(|(address, size, blocks, expandable)| {
        dict([
            ("device", Value::Int(0)),
            ("address", Value::Int(address)),
            ("total_size", Value::Int(size)),
            ("allocated_size", Value::Int(0)),
            ("active_size", Value::Int(0)),
            ("requested_size", Value::Int(0)),
            ("stream", Value::Int(0)),
            ("segment_type", text("large")),
            ("segment_pool_id", Value::Pair(0, 0)),
            ("is_expandable", Value::Bool(expandable)),
            ("frames", Value::List(Vec::new())),
            ("blocks", Value::List(blocks)),
        ])
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn nonsense_is_answered(
        events in prop::collection::vec(event(), 0..60),
        segments in prop::collection::vec(segment(), 0..6),
        capacity in prop::option::of(any::<u64>()),
        growth in any::<bool>(),
    ) {
        let file = pickle(&dict([
            ("segments", Value::List(segments)),
            ("device_traces", Value::List(vec![Value::List(events)])),
        ]));
        let loaded = read::read(&file, &read::Options::default().salvaging());
        prop_assume!(loaded.is_ok());
        let mut options = Options::default();
        options.capacity_bytes = capacity;
        if growth {
            options.look = Look::Growth;
        }
        for verdict in explain(&loaded.unwrap(), &options) {
            prop_assert!(!verdict.findings.is_empty() || verdict.moment != Moment::OutOfMemory);
            for finding in &verdict.findings {
                prop_assert!((0.0..=1.0).contains(&finding.confidence));
                prop_assert!(finding.advice.iter().all(|advice| advice.bytes > 0));
            }
        }
    }
}
