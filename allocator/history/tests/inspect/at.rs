//! Memory at a moment, and moments by their names.

use highwater_history::{
    inspect::{At, When, WhenError},
    read::EventAction,
    timeline::Timeline,
};
use proptest::prelude::*;

use crate::{
    story::{acts, real, shape, told},
    world::{MIB, World},
};

/// The memory before each event is what a snapshot at that event has.
#[test]
fn memory_is_found_at_every_event() {
    let mut world = World::new();
    let mut shapes = Vec::new();
    let mut live = Vec::new();
    for round in 0..6 {
        live.push(world.alloc((round + 1) * 3 * MIB, "a.py:1 in f"));
        shapes.push((world.rows(), shape(&world.loaded().devices[0].segments)));
        if round % 2 == 1 {
            world.free(live.remove(0));
            world.release();
            shapes.push((world.rows(), shape(&world.loaded().devices[0].segments)));
        }
    }
    let loaded = world.loaded();
    for (row, expected) in shapes {
        let at = At::of(&loaded, 0, &When::Event(row)).expect("there is one");
        assert_eq!((shape(&at.segments()), at.faults()), (expected, 0), "before event {row}");
    }
}

#[test]
fn moments_have_names() {
    let mut world = World::new();
    world.mark("warm up");
    let first = world.alloc(5 * MIB, "a.py:1 in f");
    world.mark("step");
    let row = world.rows();
    world.alloc(3 * MIB, "a.py:2 in g");
    world.free(first);
    world.refuse(1 << 40, 7, "a.py:3 in h");
    let failed = world.rows() - 1;
    world.alloc(MIB, "a.py:4 in i");
    let loaded = world.loaded();
    let row_of = |when: When| At::of(&loaded, 0, &when).map(|at| at.row());
    assert_eq!(row_of(When::OutOfMemory), Ok(failed));
    assert_eq!(row_of(When::FailureOrEnd), Ok(failed));
    assert_eq!(row_of(When::End), Ok(world.rows()));
    assert_eq!(row_of(When::Mark("step".to_owned())), Ok(row));
    // The segment, the block, the second block: then there is the most.
    assert_eq!(row_of(When::Peak), Ok(3));
    // Each event comes 10 µs after the one before it, and marks take their part.
    assert_eq!(row_of(When::SinceStart(0)), Ok(0));
    assert_eq!(row_of(When::SinceStart(1)), Ok(1));
    assert_eq!(row_of(When::SinceStart(1_000_000)), Ok(world.rows()));
    let peak = At::of(&loaded, 0, &When::Peak).expect("there is one");
    assert_eq!((peak.since_start_us(), peak.sums().live_bytes), (Some(40), 8 * MIB));
    assert_eq!((peak.sums().cached_bytes, peak.sums().segments, peak.sums().live_blocks), (12 * MIB, 1, 2));
    let (device, events) = (0, world.rows());
    assert_eq!(row_of(When::Event(99)), Err(WhenError::NoEvent { device, events, event: 99 }));
    assert_eq!(row_of(When::Mark("stop".to_owned())), Err(WhenError::NoMark { device, name: "stop".to_owned() }));
    assert_eq!(At::of(&loaded, 3, &When::End).map(|at| at.row()), Err(WhenError::NoDevice { device: 3 }));
    world.timed = false;
    world.alloc(MIB, "");
    let untimed = world.loaded();
    assert_eq!(At::of(&untimed, 0, &When::SinceStart(0)).map(|at| at.row()), Err(WhenError::NoTimes { device }));
    let calm = World::new().loaded();
    assert!(At::of(&calm, 0, &When::End).is_err());
}

#[test]
fn the_tree_has_outer_frames_above_inner_ones() {
    let mut world = World::new();
    world.alloc(3 * MIB, "lib.py:1 in inner < a.py:5 in outer");
    world.alloc(2 * MIB, "lib.py:2 in other < a.py:5 in outer");
    world.alloc(MIB, "a.py:5 in outer");
    world.alloc(MIB / 2, "b.py:7 in alone");
    let gone = world.alloc(9 * MIB, "b.py:7 in alone");
    world.request_free(gone);
    world.alloc(MIB / 4, "");
    let loaded = world.loaded();
    let at = At::of(&loaded, 0, &When::End).expect("there is one");
    let tree = at.tree();
    let told: Vec<_> =
        tree.nodes().iter().enumerate().map(|(index, node)| (node.depth, tree.text(index), node)).collect();
    let find = |text: &str| told.iter().find(|(_, line, _)| line == text).unwrap_or_else(|| panic!("no {text}")).2;
    assert_eq!((tree.nodes()[0].bytes, tree.nodes()[0].blocks), (6 * MIB + MIB / 4 * 3, 5), "pending is not live");
    let outer = find("a.py:5 in outer");
    assert_eq!((outer.depth, outer.bytes, outer.blocks, outer.own_bytes), (1, 6 * MIB, 3, MIB));
    let names: Vec<_> = outer.children.iter().map(|&child| tree.text(child)).collect();
    assert_eq!(names, ["lib.py:1 in inner", "lib.py:2 in other"]);
    assert_eq!(find("blocks of 256.00 KiB, no stack recorded").bytes, MIB / 4);
    for (index, node) in tree.nodes().iter().enumerate() {
        let below: u64 = node.children.iter().map(|&child| tree.nodes()[child].bytes).sum();
        assert_eq!(node.bytes, node.own_bytes + below);
        assert!(node.children.iter().all(|&child| child > index && tree.nodes()[child].parent == index));
    }
    let mut folded: Vec<_> = tree.folded().map(|(path, bytes)| (path.join(";"), bytes)).collect();
    folded.sort();
    assert_eq!(folded[0], ("a.py:5 in outer".to_owned(), MIB));
    assert_eq!(folded[1], ("a.py:5 in outer;lib.py:1 in inner".to_owned(), 3 * MIB));
    assert_eq!(folded.iter().map(|(_, bytes)| bytes).sum::<u64>(), tree.nodes()[0].bytes);
}

#[test]
fn the_failure_of_a_real_trace_is_looked_at() {
    let loaded = real("oom_leak.pickle.xz");
    let at = At::of(&loaded, 0, &When::OutOfMemory).expect("it failed");
    let (sums, tree) = (at.sums(), at.tree());
    assert_eq!((at.row(), at.faults(), sums.live_bytes), (4519, 0, tree.nodes()[0].bytes));
    assert!(sums.live_bytes > 1_600 * MIB && sums.reserved_bytes < 2048 * MIB, "{sums:?}");
    let leak = (0..tree.nodes().len()).find(|&node| tree.text(node).ends_with("train_m.py:124 in oom_leak"));
    assert!(tree.nodes()[leak.expect("it is there")].bytes > 1_500 * MIB);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Memory at a moment and memory over time are found apart, and are one.
    #[test]
    fn memory_at_each_moment_is_that_of_the_timeline(acts in acts(60), lost in 0..20_usize, expandable: bool) {
        let mut world = told(&acts, expandable);
        let lost = lost.min(world.rows());
        world.events.drain(..lost);
        let loaded = world.loaded();
        prop_assume!(!loaded.devices[0].trace.is_empty() || !loaded.devices[0].segments.is_empty());
        let timeline = Timeline::of(&loaded, 0);
        for (row, sums) in timeline.sums(|_| true).into_iter().enumerate() {
            let at = At::of(&loaded, 0, &When::Event(row)).expect("there is one").sums();
            prop_assert_eq!(
                (at.live_bytes, at.rounding_bytes, at.pending_bytes, at.cached_bytes),
                (sums.live_bytes, sums.rounding_bytes, sums.pending_bytes, sums.cached_bytes),
                "before {}", row
            );
        }
        // Each block has the events that made it and ended it.
        let trace = &loaded.devices[0].trace;
        for life in timeline.blocks() {
            let is = |moment, action: EventAction| timeline.event_before(moment).is_none_or(|event| {
                (trace.action(event as usize), trace.addresses()[event as usize]) == (action, life.address)
            });
            prop_assert!(is(life.first, EventAction::Alloc) && is(life.gone, EventAction::FreeCompleted));
        }
    }
}
