//! G and H: memory for nothing, and refusals beside free memory; X: nothing that decides.

use crate::world::{GIB, KIB, MIB, World, causes};

#[test]
fn g1_rounding() {
    let story = |bytes: u64| {
        let mut world = World::new();
        for number in 0..4000 {
            world.alloc(bytes, &format!("train.py:{} in scalars", number % 7));
        }
        world.out_of_memory(MIB, 0, "train.py:9 in step");
        world.why()
    };
    let verdict = story(513);
    assert_eq!((causes(&verdict)[0].as_str(), verdict.findings[0].explained_bytes), ("G1", 4000 * 511));
    assert_eq!(verdict.ledger.rounding_bytes, 4000 * 511);
    assert!(verdict.findings[0].evidence[1].starts_with("4000 blocks of 1.00 KiB"), "{:?}", verdict.findings[0]);
    assert!(!causes(&story(KIB)).contains(&"G1".to_owned()));
}

#[test]
fn g2_pages_that_cannot_move() {
    let story = |expandable: bool| {
        let mut world = World::new();
        world.expandable = expandable;
        let segment = world.segment(GIB);
        world.put(segment, GIB, "model.py:1 in build");
        world.stream = 3;
        for _ in 0..5 {
            let run = world.segment(100 * MIB);
            world.put(run, 2 * MIB, "comm.py:2 in buffer");
        }
        world.stream = 0;
        world.out_of_memory(300 * MIB, 0, "train.py:3 in forward");
        world.why()
    };
    let verdict = story(true);
    assert_eq!((causes(&verdict)[0].as_str(), verdict.findings[0].explained_bytes), ("G2", 490 * MIB));
    assert!(!causes(&story(false)).contains(&"G2".to_owned()));
}

fn refused(reserved_before: u64) -> World {
    let mut world = World::new();
    if reserved_before > 0 {
        let early = world.alloc(reserved_before, "train.py:1 in warm_up");
        world.free(early);
        world.release();
    }
    world.alloc(2 * GIB, "model.py:1 in build");
    world.out_of_memory(GIB, 70 * GIB, "train.py:3 in forward");
    world
}

#[test]
fn h1_a_limit() {
    let verdict = refused(0).why();
    assert_eq!((causes(&verdict)[0].as_str(), verdict.findings[0].explained_bytes), ("H1", 70 * GIB));
    assert_eq!(verdict.limit_bytes, Some(2 * GIB));
    assert_eq!(verdict.deficit_bytes, Some(GIB));
}

#[test]
fn h2_no_limit_explains_it() {
    let verdict = refused(4 * GIB).why();
    assert_eq!((causes(&verdict)[0].as_str(), verdict.findings[0].explained_bytes), ("H2", 70 * GIB));
    assert!(!causes(&verdict).contains(&"H1".to_owned()), "more was reserved before");
    assert_eq!(verdict.limit_bytes, None);
}

#[test]
fn a_limit_is_named_beside_the_cause_not_instead() {
    let mut world = World::new();
    for number in 0..12 {
        world.mark(&format!("ProfilerStep#{number}"));
        let batch = world.alloc(300 * MIB, "train.py:5 in step");
        world.free(batch);
        world.alloc(100 * MIB, "train.py:9 in log");
    }
    world.out_of_memory(500 * MIB, 70 * GIB, "train.py:5 in step");
    let verdict = world.why();
    let order = causes(&verdict);
    assert_eq!(order[0], "F1", "{order:?}");
    assert!(order.contains(&"H1".to_owned()) && verdict.limit_bytes.is_some());
}

#[test]
fn x_several_things_only_together_or_nothing_at_all() {
    let mut world = World::new();
    world.alloc(GIB, "model.py:1 in build");
    let pending = world.alloc(100 * MIB, "comm.py:8 in gather");
    world.request_free(pending);
    world.stream = 3;
    for _ in 0..2 {
        let segment = world.segment(100 * MIB);
        world.put(segment, 20 * MIB, "comm.py:2 in buffer");
    }
    world.stream = 0;
    world.out_of_memory(250 * MIB, 0, "train.py:3 in forward");
    let verdict = world.why();
    assert!(verdict.findings.iter().all(|finding| !finding.sufficient), "{:?}", verdict.findings);
    assert_eq!(causes(&verdict)[0], "X");
    assert!(verdict.findings[0].advice.is_empty(), "no advice without bytes");
}
