//! What keeps memory in pieces.

use highwater_history::{
    SegmentKind,
    inspect::{At, When},
};

use crate::world::{KIB, MIB, Value, World, dict};

/// A segment that a small block keeps, one that two stacks keep, and one that is used well.
#[test]
fn a_small_block_pins_its_segment() {
    let mut world = World::new();
    let [a, b, c] = [20, 20, 40].map(|mib| world.segment(mib * MIB));
    world.put(a + 8 * MIB, 512 * KIB, "a.py:1 in pin");
    world.put(b, MIB, "a.py:1 in pin");
    world.put(b + 19 * MIB, MIB, "a.py:2 in other");
    world.put(c, 39 * MIB, "a.py:3 in large");
    let pool = world.segment(20 * MIB);
    world.put(pool, 2 * MIB, "a.py:4 in waits");
    world.request_free(pool);
    let loaded = world.loaded();
    let told = At::of(&loaded, 0, &When::End).expect("it is there").fragmentation(10);
    let pins: Vec<_> =
        told.pins.iter().map(|pin| (pin.address, pin.freed_bytes / MIB, pin.kept_bytes, pin.is_pending)).collect();
    assert_eq!(pins, [(a + 8 * MIB, 20, 20 * MIB - 512 * KIB, false), (pool, 20, 18 * MIB, true)]);
    let pin = &told.pins[0];
    assert_eq!((pin.run_bytes, pin.segment_bytes, pin.site.site.as_str()), (20 * MIB, 20 * MIB, "a.py:1 in pin"));
    // The segment with blocks of two stacks comes back by neither of them alone.
    let by: Vec<_> =
        told.pinned_by.iter().map(|by| (by.site.site.as_str(), by.site.blocks, by.kept_bytes / MIB)).collect();
    assert_eq!(by, [("a.py:1 in pin", 2, 19), ("a.py:4 in waits", 1, 18), ("a.py:3 in large", 1, 1)]);
    let runs: Vec<_> = told.largest_runs.iter().map(|run| (run.address, run.bytes / MIB)).collect();
    assert_eq!(runs[..3], [(b + MIB, 18), (pool + 2 * MIB, 18), (a + 8 * MIB + 512 * KIB, 11)]);
    let run = &told.largest_runs[0];
    assert_eq!((run.before.as_deref(), run.after.as_deref()), (Some("a.py:1 in pin"), Some("a.py:2 in other")));
    assert_eq!((told.largest_runs[2].after.as_deref(), told.domains.len()), (None, 1));
    let domain = &told.domains[0];
    let sums = domain.used_bytes + domain.pending_bytes + domain.free_bytes;
    assert_eq!(
        (domain.kind, domain.segments, domain.reserved_bytes, sums),
        (SegmentKind::Large, 4, 100 * MIB, 100 * MIB)
    );
    assert_eq!((domain.largest_run_bytes, domain.runs, domain.empty_bytes), (18 * MIB, 5, 0));
}

/// Where memory is mapped page by page a block keeps the pages that it touches, and no more.
#[test]
fn a_block_pins_its_pages_where_memory_is_mapped_by_pages() {
    let mut world = World::new();
    world.expandable = true;
    let start = world.segment(40 * MIB);
    assert!(start.is_multiple_of(2 * MIB));
    world.put(start + 3 * MIB, 512, "a.py:1 in small");
    world.put(start + 9 * MIB, 4 * MIB, "a.py:2 in across");
    world.put(start + 20 * MIB, 4 * MIB, "a.py:3 in whole");
    world.put(start + 30 * MIB, MIB, "a.py:4 in half");
    world.put(start + 31 * MIB, 512, "a.py:4 in half");
    let loaded = world.loaded();
    let told = At::of(&loaded, 0, &When::End).expect("it is there").fragmentation(10);
    let pins: Vec<_> =
        told.pins.iter().map(|pin| (pin.address - start, pin.freed_bytes / MIB, pin.kept_bytes)).collect();
    // The block across three pages keeps half a page at either end, which is less than it has; one that fills its pages
    // keeps nothing, and of two in one page none keeps it alone.
    assert_eq!(pins, [(3 * MIB, 2, 2 * MIB - 512)]);
    let by: Vec<_> = told.pinned_by.iter().map(|by| (by.site.site.as_str(), by.freed_bytes, by.kept_bytes)).collect();
    assert_eq!(
        by,
        [
            ("a.py:2 in across", 6 * MIB, 2 * MIB),
            ("a.py:1 in small", 2 * MIB, 2 * MIB - 512),
            ("a.py:4 in half", 2 * MIB, MIB - 512),
        ]
    );
    assert_eq!(told.domains[0].page_bytes, (2 + 4 + 6 + 6 + 8) * MIB);
}

/// This project maps pages, whatever a snapshot says of its segments.
#[test]
fn memory_of_this_project_comes_back_by_pages() {
    let mut world = World::new();
    world.recorder = Some(dict([("version", Value::Int(1)), ("devices", Value::List(vec![dict([])]))]));
    let start = world.segment(40 * MIB);
    world.put(start + 3 * MIB, 512, "a.py:1 in small");
    let loaded = world.loaded();
    let told = At::of(&loaded, 0, &When::End).expect("it is there").fragmentation(10);
    let pins: Vec<_> = told.pins.iter().map(|pin| (pin.freed_bytes / MIB, pin.kept_bytes)).collect();
    assert_eq!(pins, [(2, 2 * MIB - 512)]);
}

#[test]
fn domains_are_apart_by_pool_stream_and_kind() {
    let mut world = World::new();
    world.alloc(4 * MIB, "a.py:1 in f");
    world.alloc(MIB, "a.py:1 in f");
    world.stream = 3;
    world.alloc(30 * MIB, "a.py:1 in f");
    world.pool = (1, 0);
    world.alloc(12 * MIB, "a.py:1 in f");
    let loaded = world.loaded();
    let told = At::of(&loaded, 0, &When::End).expect("it is there").fragmentation(1);
    let domains: Vec<_> =
        told.domains.iter().map(|one| (one.pool, one.stream.as_str(), one.kind, one.reserved_bytes / MIB)).collect();
    let (large, small) = (SegmentKind::Large, SegmentKind::Small);
    assert_eq!(
        domains,
        [
            ((0, 0), "stream 0x3", large, 30),
            ((0, 0), "stream 0", large, 20),
            ((1, 0), "stream 0x3", large, 12),
            ((0, 0), "stream 0", small, 2),
        ]
    );
    assert_eq!((told.largest_runs.len(), told.pins.len()), (1, 1), "no more than asked for");
}
