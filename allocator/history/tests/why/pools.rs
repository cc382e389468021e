//! D: free memory that belongs to somebody else inside the allocator.

use crate::world::{GIB, MIB, World, causes};

#[test]
fn d1_another_stream_has_it() {
    let story = |free: u64| {
        let mut world = World::new();
        world.alloc(GIB, "model.py:1 in build");
        world.stream = 5;
        let segment = world.segment(free + 40 * MIB);
        world.put(segment, 40 * MIB, "comm.py:2 in buffer");
        world.stream = 0;
        world.out_of_memory(300 * MIB, 0, "train.py:3 in forward");
        world.why()
    };
    let verdict = story(512 * MIB);
    assert_eq!((causes(&verdict)[0].as_str(), verdict.findings[0].explained_bytes), ("D1", 512 * MIB));
    assert_eq!(verdict.findings[0].evidence[0], "stream 0x5 has 512.00 MiB free, the largest piece 512.00 MiB");
    assert_eq!(verdict.ledger.other_streams_bytes, 512 * MIB);
    assert!(!causes(&story(200 * MIB)).contains(&"D1".to_owned()), "no piece is large enough");
}

#[test]
fn d2_private_pools() {
    let story = |graphs: u64| {
        let mut world = World::new();
        world.alloc(4 * GIB, "model.py:1 in build");
        world.pool = (1, 0);
        for _ in 0..graphs {
            let segment = world.segment(GIB);
            world.put(segment, 256 * MIB, "graph.py:2 in capture");
        }
        world.pool = (0, 0);
        world.out_of_memory(3 * GIB / 2, 0, "train.py:3 in forward");
        world.why()
    };
    let verdict = story(4);
    assert_eq!((causes(&verdict)[0].as_str(), verdict.findings[0].explained_bytes), ("D2", 4 * GIB));
    assert_eq!(verdict.ledger.private_bytes, 3 * GIB);
    assert_ne!(causes(&story(1))[0], "D2", "one graph would not have been enough");
}

#[test]
fn d3_nothing_was_returned() {
    let story = |returned: bool| {
        let mut world = World::new();
        world.alloc(GIB, "model.py:1 in build");
        for _ in 0..3 {
            world.segment(200 * MIB);
        }
        if returned {
            world.release();
        }
        world.refuse(400 * MIB, 0, "graph.py:2 in capture");
        world.why()
    };
    let verdict = story(false);
    assert_eq!((causes(&verdict)[0].as_str(), verdict.findings[0].explained_bytes), ("D3", 600 * MIB));
    assert!(!causes(&story(true)).contains(&"D3".to_owned()));
}
