//! C: memory that was freed, and that other streams hold.

use highwater_history::why::Moment;

use crate::world::{GIB, MIB, Value, World, causes, dict, text};

/// Blocks of 256 MiB, freed and pending, and 1 GiB that is live.
fn held(blocks: u64, apart_us: u64) -> (World, Vec<u64>) {
    let mut world = World::new();
    world.alloc(GIB, "model.py:1 in build");
    let all: Vec<u64> = (0..blocks).map(|_| world.alloc(256 * MIB, "comm.py:8 in gather")).collect();
    for &address in &all {
        world.time_us += apart_us;
        world.request_free(address);
    }
    (world, all)
}

#[test]
fn c1_what_is_pending_would_have_been_enough() {
    let (mut world, _) = held(8, 100);
    world.out_of_memory(256 * MIB, 0, "comm.py:8 in gather");
    let verdict = world.why();
    assert_eq!((causes(&verdict)[0].as_str(), verdict.findings[0].sufficient), ("C1", true));
    assert_eq!(verdict.findings[0].explained_bytes, 2 * GIB);
    assert_eq!((verdict.pending_by_stream[0].bytes, verdict.pending_by_stream[0].blocks), (2 * GIB, 8));
    assert!(!verdict.pending_by_stream[0].waited_for, "PyTorch does not say who is waited for");
}

#[test]
fn c1_is_not_sufficient_if_it_would_not_have_fitted() {
    let (mut world, _) = held(8, 100);
    world.out_of_memory(3 * GIB, 0, "train.py:3 in forward");
    let verdict = world.why();
    assert_eq!(verdict.finding(highwater_history::why::Cause::C1).map(|finding| finding.sufficient), Some(false));
    assert_ne!(causes(&verdict)[0], "C1");
}

#[test]
fn c1_without_an_error_is_a_host_wait() {
    let (mut world, all) = held(4, 100);
    for address in all {
        world.time_us += 200_000;
        world.complete(address);
    }
    world.release();
    world.alloc(256 * MIB, "comm.py:8 in gather");
    let verdict = world.why();
    assert_eq!((verdict.moment, verdict.stalls), (Moment::Stall, 1));
    assert!((800_000..801_000).contains(&verdict.stalled_us), "{}", verdict.stalled_us);
    assert_eq!((causes(&verdict)[0].as_str(), verdict.findings[0].explained_bytes), ("C1", GIB));
    assert_eq!(verdict.request_bytes, Some(256 * MIB));
}

#[test]
fn returning_what_nobody_holds_is_no_wait() {
    let mut world = World::new();
    let address = world.alloc(256 * MIB, "a.py:1 in f");
    world.free(address);
    world.release();
    world.alloc(512 * MIB, "a.py:2 in f");
    let verdict = world.why();
    assert_eq!((verdict.moment, verdict.stalls), (Moment::Peak, 0));
}

/// What happens after the failure: all at once, or each a while after the other.
fn completing(apart_us: u64) -> Vec<String> {
    let (mut world, all) = held(6, 50_000);
    world.out_of_memory(256 * MIB, 0, "comm.py:8 in gather");
    for address in all {
        world.time_us += apart_us;
        world.complete(address);
    }
    causes(&world.why())
}

#[test]
fn c2_all_behind_one() {
    assert_eq!(completing(1)[0], "C2");
    let apart = completing(50_000);
    assert!(apart[0] == "C1" && !apart.contains(&"C2".to_owned()), "{apart:?}");
}

#[test]
fn c3_it_came_free_as_it_failed() {
    let story = |program_frees: bool| {
        let (mut world, all) = held(1, 100);
        let other = world.alloc(32 * MIB, "model.py:2 in build");
        world.out_of_memory(256 * MIB, 0, "train.py:3 in forward");
        if program_frees {
            world.free(other);
        }
        world.complete(all[0]);
        world.alloc(256 * MIB, "train.py:3 in forward");
        world.why()
    };
    let verdict = story(false);
    assert_eq!((causes(&verdict)[0].as_str(), verdict.caught), ("C3", 1));
    assert_eq!(verdict.findings[0].explained_bytes, 256 * MIB);
    let causes = causes(&story(true));
    assert!(causes[0] == "C1" && !causes.contains(&"C3".to_owned()), "{causes:?}");
}

#[test]
fn the_recorder_knows_who_is_waited_for() {
    let (mut world, all) = held(4, 100);
    world.out_of_memory(256 * MIB, 0, "comm.py:8 in gather");
    let uses = all.iter().map(|&address| {
        dict([
            ("addr", Value::Int(address)),
            ("stream", Value::Int(7)),
            ("exact", Value::Bool(true)),
            ("time_us", Value::Int(1_000_200)),
        ])
    });
    let name = dict([("stream", Value::Int(7)), ("name", text("communication"))]);
    let device = dict([
        ("name", text("sim")),
        ("capacity_bytes", Value::Int(2 * GIB)),
        ("other_bytes", Value::Int(0)),
        ("streams", Value::List(vec![name])),
        ("stream_uses", Value::List(uses.collect())),
    ]);
    world.recorder = Some(dict([("version", Value::Int(1)), ("devices", Value::List(vec![device]))]));
    let verdict = world.why();
    assert_eq!((causes(&verdict)[0].as_str(), verdict.findings[0].confidence), ("C1", 1.0));
    let stream = &verdict.pending_by_stream[0];
    assert_eq!((stream.stream.as_str(), stream.waited_for, stream.bytes), ("stream 7 (communication)", true, GIB));
    assert_eq!(verdict.ledger.total_bytes(), 2 * GIB);
}

/// A story of 4 pending blocks, with what this project's recorder noted at the failure: the fence of each, and who holds
/// it up.
fn noted(fences: [&'static str; 4], held_by: Option<u64>, earlier_us: u64) -> highwater_history::why::Verdict {
    let (mut world, all) = held(4, 100);
    world.out_of_memory(256 * MIB, 0, "comm.py:8 in gather");
    let awaited = all.iter().zip(fences).map(|(&address, fence)| {
        let keys = [
            ("time_us", Value::Int(world.time_us - earlier_us)),
            ("addr", Value::Int(address)),
            ("stream", Value::Int(7)),
            ("position", Value::Int(40)),
            ("fence", text(fence)),
        ];
        match held_by {
            Some(stream) => [keys.as_slice(), &[("held_by", Value::Int(stream))]]
                .concat()
                .try_into()
                .map(dict::<6>)
                .expect("six keys"),
            None => dict(keys),
        }
    });
    let device = dict([
        ("name", text("sim")),
        ("capacity_bytes", Value::Int(2 * GIB)),
        ("awaited", Value::List(awaited.collect())),
    ]);
    world.recorder = Some(dict([("version", Value::Int(1)), ("devices", Value::List(vec![device]))]));
    world.why()
}

#[test]
fn c3_is_certain_if_the_fences_were_complete() {
    let verdict = noted(["complete", "recorded", "recorded", "recorded"], None, 0);
    let first = &verdict.findings[0];
    assert_eq!((causes(&verdict)[0].as_str(), first.explained_bytes, first.confidence), ("C3", 256 * MIB, 1.0));
    assert!(first.evidence[0].contains("all that they waited for was complete when the request failed"));
    let verdict = noted(["recorded"; 4], None, 0);
    assert!(causes(&verdict)[0] == "C1" && !causes(&verdict).contains(&"C3".to_owned()), "{:?}", causes(&verdict));
    assert_eq!(verdict.findings[0].confidence, 1.0, "nothing is to be guessed");
    assert!(verdict.findings[0].evidence[1].ends_with("whose fence is recorded and was not seen complete"));
}

#[test]
fn what_was_noted_at_another_failure_says_nothing_of_this_one() {
    let verdict = noted(["complete"; 4], None, 1);
    assert!(!causes(&verdict).contains(&"C3".to_owned()), "{:?}", causes(&verdict));
    assert!(!verdict.pending_by_stream[0].waited_for);
}

#[test]
fn c2_is_certain_if_one_open_stream_holds_up_the_work_of_others() {
    assert_eq!(causes(&noted(["recorded"; 4], Some(9), 0))[0], "C2");
    assert_eq!(causes(&noted(["recorded"; 4], Some(7), 0))[0], "C1", "it is held up by its own work");
    assert_eq!(causes(&noted(["unrecorded"; 4], None, 0))[0], "C1");
}
