//! B: enough is free, but not in one piece.

use crate::world::{GIB, MIB, Value, World, causes};

/// Segments of 46 MiB, each with blocks of a size at a distance.
fn split(blocks: u64, bytes: u64, distance: u64) -> World {
    let mut world = World::new();
    for _ in 0..20 {
        let segment = world.segment(46 * MIB);
        for block in 0..blocks {
            world.put(segment + block * distance, bytes, "cache.py:4 in keep");
        }
    }
    world
}

#[test]
fn b1_pieces_that_are_too_small() {
    let mut world = split(1, 12 * MIB, 0);
    world.out_of_memory(200 * MIB, 0, "train.py:3 in forward");
    let verdict = world.why();
    assert_eq!(causes(&verdict)[0], "B1");
    assert_eq!(verdict.findings[0].explained_bytes, 20 * 34 * MIB);
    assert_eq!(verdict.deficit_bytes, Some(166 * MIB));
    let pinned = &verdict.findings[0].evidence[1];
    assert!(
        pinned.starts_with("cache.py:4 in keep: its blocks keep 680.00 MiB") && pinned.contains("20 segments"),
        "{pinned}"
    );
}

#[test]
fn b1_is_not_told_if_it_would_not_have_been_enough() {
    let mut world = split(1, 12 * MIB, 0);
    world.out_of_memory(GIB, 0, "train.py:3 in forward");
    assert!(!causes(&world.why()).contains(&"B1".to_owned()));
}

#[test]
fn b2_small_blocks_in_most_pages() {
    let mut world = split(23, 3 * MIB / 2, 2 * MIB);
    world.out_of_memory(100 * MIB, 0, "train.py:3 in forward");
    let verdict = world.why();
    assert_eq!(causes(&verdict)[0], "B2");
    assert_eq!(verdict.findings[0].explained_bytes, 20 * 23 * MIB / 2);
    // With whole pages free it is B1.
    let mut world = split(12, 3 * MIB / 2, 4 * MIB);
    world.out_of_memory(100 * MIB, 0, "train.py:3 in forward");
    assert_eq!(causes(&world.why())[0], "B1");
}

#[test]
fn b3_a_setting_keeps_what_is_free() {
    let story = |limit: Option<u64>| {
        let mut world = World::new();
        let segment = world.segment(220 * MIB);
        world.put(segment, 4 * MIB, "model.py:1 in build");
        if let Some(limit) = limit {
            world.setting("max_split_size", Value::Int(limit));
        }
        world.out_of_memory(91 * MIB, 0, "train.py:3 in forward");
        world.why()
    };
    let verdict = story(Some(128 * MIB));
    assert_eq!((causes(&verdict)[0].as_str(), verdict.findings[0].sufficient), ("B3", true));
    assert_eq!(verdict.findings[0].explained_bytes, 216 * MIB);
    assert!(!causes(&story(Some(256 * MIB))).contains(&"B3".to_owned()), "the piece is below the limit");
    assert!(!causes(&story(None)).contains(&"B3".to_owned()));
}

/// Blocks of 1 to 10 MiB share segments of 20 MiB.
#[test]
fn b3_tails_of_shared_segments() {
    let story = |blocks: usize, bytes: u64, free: u64, request: u64| {
        let mut world = World::new();
        for _ in 0..blocks {
            world.alloc(bytes, "model.py:1 in build");
        }
        world.out_of_memory(request, free, "train.py:3 in forward");
        world.why()
    };
    let verdict = story(40, 8 * MIB, 0, 8 * MIB);
    assert_eq!((causes(&verdict)[0].as_str(), verdict.findings[0].sufficient), ("B3", true));
    assert_eq!(verdict.findings[0].explained_bytes, 80 * MIB);
    assert!(verdict.findings[0].evidence[1].starts_with("20 such segments have tails of 80.00 MiB"), "{verdict:?}");
    // Or the device has enough, but not for a segment.
    let verdict = story(20, 10 * MIB, 12 * MIB, 8 * MIB);
    assert_eq!((causes(&verdict)[0].as_str(), verdict.findings[0].explained_bytes), ("B3", 12 * MIB));
    let told = |verdict| causes(&verdict).contains(&"B3".to_owned());
    assert!(!told(story(20, 10 * MIB, 6 * MIB, 8 * MIB)), "6 MiB are too few in any form");
    assert!(!told(story(40, 8 * MIB, 12 * MIB, 12 * MIB)), "a block of 12 MiB has a segment of its own");
    assert!(!told(story(40, 8 * MIB, 0, 20 * MIB)), "nor has one of 20 MiB a shared one");
    let mut world = split(2, 4 * MIB, 20 * MIB);
    world.out_of_memory(8 * MIB, 0, "train.py:3 in forward");
    assert!(!told(world.why()), "pieces of 16 MiB are large enough");
}
