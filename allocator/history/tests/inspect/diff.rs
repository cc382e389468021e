//! Two runs beside each other.

use highwater_history::inspect::{At, ChangeKind, When, diff};

use crate::{
    story::real,
    world::{MIB, World},
};

#[test]
fn stacks_are_added_grown_shrunk_and_gone() {
    let mut first = World::new();
    // The numbers of stacks differ between the files, as their order does.
    first.alloc(7 * MIB, "a.py:1 in gone");
    first.alloc(2 * MIB, "lib.py:9 in get < a.py:2 in grown");
    first.alloc(2 * MIB, "a.py:3 in alike");
    first.alloc(6 * MIB, "a.py:4 in shrunk");
    first.alloc(MIB, "a.py:4 in shrunk");
    let mut second = World::new();
    second.alloc(2 * MIB, "a.py:3 in alike");
    second.alloc(6 * MIB, "a.py:4 in shrunk");
    second.alloc(3 * MIB, "a.py:5 in added");
    for _ in 0..3 {
        second.alloc(2 * MIB, "lib.py:9 in get < a.py:2 in grown");
    }
    let pending = second.alloc(9 * MIB, "a.py:6 in freed");
    second.request_free(pending);
    let (first, second) = (first.loaded(), second.loaded());
    let [a, b] = [&first, &second].map(|loaded| At::of(loaded, 0, &When::End).expect("it is there"));
    let told = diff(&a, &b);
    let changes: Vec<_> = told
        .changes
        .iter()
        .map(|change| (change.kind, change.site.site.as_str(), change.bytes_before / MIB, change.bytes_after / MIB))
        .collect();
    assert_eq!(
        changes,
        [
            (ChangeKind::Gone, "a.py:1 in gone", 7, 0),
            (ChangeKind::Grown, "lib.py:9 in get", 2, 6),
            (ChangeKind::Added, "a.py:5 in added", 0, 3),
            (ChangeKind::Shrunk, "a.py:4 in shrunk", 7, 6),
        ]
    );
    assert_eq!((told.changes[1].blocks_before, told.changes[1].blocks_after, told.alike), (1, 3, 1));
    assert_eq!((told.before.live_bytes, told.after.live_bytes, told.after.pending_blocks), (18 * MIB, 17 * MIB, 1));
    let turned = diff(&b, &a);
    assert_eq!(turned.changes[0].kind, ChangeKind::Added);
    assert!(turned.changes.iter().zip(&told.changes).all(|(a, b)| a.delta_bytes() == b.delta_bytes()));
}

#[test]
fn a_trace_differs_from_its_past_by_what_it_keeps() {
    let loaded = real("oom_leak.pickle.xz");
    let of = |when| At::of(&loaded, 0, &when).expect("it is there");
    let told = diff(&of(When::Event(1000)), &of(When::OutOfMemory));
    assert!(told.changes[0].site.site.ends_with("train_m.py:124 in oom_leak"), "{:?}", told.changes[0]);
    assert_eq!(told.changes[0].kind, ChangeKind::Grown);
    assert!(diff(&of(When::Peak), &of(When::Peak)).changes.is_empty());
}
