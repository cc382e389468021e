//! What was freed and waits.

use highwater_history::{
    BlockState, PendingWait, StreamName,
    inspect::{At, When},
    read,
};

use crate::{
    own::{self, Step},
    story::real,
    world::{MIB, World},
};

#[test]
fn blocks_are_grouped_by_stream_and_stack_with_their_ages() {
    let mut world = World::new();
    let a = world.alloc(2 * MIB, "a.py:1 in f");
    let b = world.alloc(3 * MIB, "a.py:1 in f");
    world.stream = 7;
    let c = world.alloc(4 * MIB, "a.py:2 in g");
    world.stream = 0;
    world.request_free(a);
    world.request_free(c);
    world.alloc(MIB, "a.py:3 in h");
    world.request_free(b);
    let loaded = world.loaded();
    let pending = At::of(&loaded, 0, &When::End).expect("it is there").pending();
    assert_eq!((pending.bytes, pending.blocks, pending.is_known), (9 * MIB, 3, true));
    let told: Vec<_> = pending
        .groups
        .iter()
        .map(|group| {
            (group.owner.as_str(), group.site.site.as_str(), group.site.blocks, group.oldest_us, group.newest_us)
        })
        .collect();
    // Events are 10 µs apart, and the last one is now.
    assert_eq!(
        told,
        [("stream 0", "a.py:1 in f", 2, Some(40), Some(0)), ("stream 0x7", "a.py:2 in g", 1, Some(30), Some(30)),]
    );
    assert!(pending.groups.iter().all(|group| group.waits_for.is_empty() && group.events.is_empty()));
    let before = At::of(&loaded, 0, &When::Event(5)).expect("it is there").pending();
    assert_eq!((before.bytes, before.groups.len()), (0, 0));
}

/// This project's recorder knows who is waited for, and how far that one has to come.
#[test]
fn the_event_that_is_waited_for_is_named() {
    let mut world = own::World::new(1 << 20);
    world.step(Step::Map { stream: 1, page: 0 });
    for slot in 0..2 {
        world.step(Step::Alloc { stream: 1, slot, bytes: 1000 });
    }
    world.step(Step::Free { which: 0, at_once: false });
    world.step(Step::Free { which: 0, at_once: false });
    let mut snapshot = world.snapshot();
    let blocks = snapshot.devices[0].segments[0].blocks.iter().filter(|block| block.state == BlockState::PendingFree);
    let addresses: Vec<u64> = blocks.map(|block| block.address).collect();
    let notes = &mut snapshot.devices[0].notes;
    notes.streams = vec![StreamName { stream: 2, name: "copies".to_owned(), open: false }];
    let wait = |address, position| PendingWait { address, stream: 2, position, fence: None, held_by: None };
    notes.pending_waits = vec![wait(addresses[0], 41), wait(addresses[1], 44)];
    let loaded = read::read(&own::written(&snapshot), &read::Options::default()).expect("it is a snapshot");
    let pending = At::of(&loaded, 0, &When::End).expect("it is there").pending();
    let group = &pending.groups[0];
    assert_eq!(pending.groups.len(), 1, "{pending:?}");
    assert_eq!((group.owner.as_str(), &group.waits_for[..]), ("stream 0x1", &["stream 2 (copies)".to_owned()][..]));
    let events: Vec<_> = group.events.iter().map(|event| (event.first_position, event.last_position)).collect();
    assert_eq!((group.site.blocks, events), (2, vec![(41, 44)]));
    let last = loaded.devices[0].trace.len() - 1;
    let before = At::of(&loaded, 0, &When::Event(last)).expect("it is there").pending();
    let events: Vec<_> = before.groups[0].events.iter().map(|event| event.last_position).collect();
    assert_eq!(events, [41], "the first has waited since then");
}

/// What is noted of the end is about the blocks of the end.
#[test]
fn a_block_that_has_waited_before_waited_for_something_else() {
    let mut world = own::World::new(1 << 20);
    world.step(Step::Map { stream: 1, page: 0 });
    for _ in 0..2 {
        world.step(Step::Alloc { stream: 1, slot: 0, bytes: 1000 });
        world.step(Step::Free { which: 0, at_once: false });
        world.step(Step::Complete { which: 0 });
    }
    world.step(Step::Alloc { stream: 1, slot: 0, bytes: 1000 });
    world.step(Step::Free { which: 0, at_once: false });
    let mut snapshot = world.snapshot();
    let address = snapshot.devices[0].segments[0].blocks[0].address;
    let wait = PendingWait { address, stream: 2, position: 41, fence: None, held_by: None };
    snapshot.devices[0].notes.pending_waits = vec![wait];
    let loaded = read::read(&own::written(&snapshot), &read::Options::default()).expect("it is a snapshot");
    let trace = &loaded.devices[0].trace;
    let completed = (0..trace.len()).find(|&row| trace.action(row) == read::EventAction::FreeCompleted).expect("twice");
    let events = |when| At::of(&loaded, 0, &when).expect("it is there").pending().groups[0].events.len();
    assert_eq!((events(When::Event(completed)), events(When::End)), (0, 1));
}

#[test]
fn a_real_trace_has_blocks_that_wait_for_another_stream() {
    let loaded = real("oom_cross_stream.pickle.xz");
    let pending = At::of(&loaded, 0, &When::Peak).expect("it is there").pending();
    assert!(pending.bytes > 0 && pending.groups[0].oldest_us > Some(0), "{pending:?}");
    assert_eq!(pending.groups.iter().map(|group| group.site.bytes).sum::<u64>(), pending.bytes);
}
