//! A part of a trace opens, and its memory is what it was.

use highwater_history::{
    PendingWait,
    inspect::{At, When, WhenError, slice},
    viewer,
};
use proptest::prelude::*;

use crate::{
    own,
    story::{REAL, acts, lines, read_again, real, shape, told, written},
};

/// The part is checked as the viewer would, and memory in it is compared with the whole at each of some moments.
#[track_caller]
fn compare(whole: &highwater_history::read::Loaded, from: usize, to: usize, step: usize) {
    let part = slice(whole, 0, &When::Event(from), &When::Event(to)).expect("these events are there");
    assert_eq!(part.devices[0].trace.len(), to - from);
    viewer::check(&written(&part)).unwrap_or_else(|error| panic!("{from}..{to}: {error}"));
    let part = read_again(&part);
    if part.devices[0].segments.is_empty() && from == to {
        return;
    }
    for row in (from..=to).step_by(step.max(1)).chain([to]) {
        let then = At::of(whole, 0, &When::Event(row)).expect("it is there");
        let now = At::of(&part, 0, &When::Event(row - from)).expect("it is there");
        assert_eq!(shape(&now.segments()), shape(&then.segments()), "event {row} of {from}..{to}");
        assert_eq!(now.faults(), 0);
        let bytes = |at: &At<'_>| at.tree().folded().map(|(_, bytes)| bytes).sum::<u64>();
        assert_eq!(bytes(&now), bytes(&then));
    }
}

#[test]
fn parts_of_real_traces_are_right_at_both_ends() {
    for name in REAL {
        let whole = real(name);
        let events = whole.devices[0].trace.len();
        for (from, to) in
            [(0, events / 2), (events / 3, 2 * events / 3), (events / 2, events), (events / 4, events / 4)]
        {
            compare(&whole, from, to, (to - from) / 3);
        }
    }
}

#[test]
fn the_whole_is_a_part() {
    let whole = real("oom_leak.pickle.xz");
    let part = slice(&whole, 0, &When::Event(0), &When::End).expect("it is there");
    assert!(lines(&read_again(&part)) == lines(&whole));
}

#[test]
fn times_cut_as_events_do() {
    let whole = real("oom_leak.pickle.xz");
    let trace = &whole.devices[0].trace;
    let start = trace.times_us()[0];
    let (from, to) = (trace.times_us()[1000] - start, trace.times_us()[2000] - start);
    let part = slice(&whole, 0, &When::SinceStart(from), &When::SinceStart(to)).expect("they are there");
    let times = part.devices[0].trace.times_us();
    assert!(times[0] - start >= from && times[times.len() - 1] - start < to);
    let before = slice(&whole, 0, &When::Event(0), &When::SinceStart(from)).expect("they are there");
    let after = slice(&whole, 0, &When::SinceStart(to), &When::End).expect("they are there");
    let lengths = [&before, &part, &after].map(|part| part.devices[0].trace.len());
    assert_eq!(lengths.iter().sum::<usize>(), trace.len(), "no event is lost or there twice");
    assert!(matches!(slice(&whole, 0, &When::Event(9_999_999), &When::End), Err(WhenError::NoEvent { .. })));
}

/// The notes of a part are those of its time, with the uses of blocks that are there from before.
#[test]
fn notes_are_cut_too() {
    let mut snapshot = own::small().snapshot();
    snapshot.devices[0].notes.pending_waits =
        vec![PendingWait { address: 1 << 40, stream: 7, position: 99, fence: None, held_by: None }];
    let whole = highwater_history::read::read(&own::written(&snapshot), &Default::default());
    let whole = whole.expect("it is a snapshot");
    let notes = whole.devices[0].notes.as_ref().expect("noted");
    let used = notes.stream_uses[1];
    let trace = &whole.devices[0].trace;
    let after = trace.times_us().partition_point(|&time| time <= used.time_us) + 1;
    let part = slice(&whole, 0, &When::Event(after), &When::End).expect("it is there");
    let cut = part.devices[0].notes.as_ref().expect("noted");
    assert_eq!(cut.history_dropped, notes.history_dropped + after as u64);
    assert!(cut.stream_uses.contains(&used), "its block is pending at the start of the part");
    assert_eq!((&cut.stalls, &cut.pending_waits), (&notes.stalls, &notes.pending_waits));
    let part = slice(&whole, 0, &When::Event(0), &When::Event(3)).expect("it is there");
    let cut = part.devices[0].notes.as_ref().expect("noted");
    assert!(cut.stream_uses.is_empty() && cut.stalls.is_empty() && cut.pending_waits.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_part_of_any_program_is_right(acts in acts(50), expandable: bool, from: usize, to: usize) {
        let world = told(&acts, expandable);
        let (from, to) = (from % (world.rows() + 1), to % (world.rows() + 1));
        prop_assume!(world.rows() > 0);
        compare(&world.loaded(), from.min(to), from.max(to), 1);
    }
}
