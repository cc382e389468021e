//! E: memory that is not the allocator's.

use highwater_history::why::{Message, Options};

use crate::world::{GIB, MIB, Value, World, capacity, causes, dict, text};

fn full() -> World {
    let mut world = World::new();
    for layer in 0..40 {
        world.alloc(GIB, &format!("model.py:{layer} in build"));
    }
    world.out_of_memory(2 * GIB, GIB, "train.py:3 in forward");
    world
}

#[test]
fn e1_another_process() {
    let told = |others: &str| {
        let text = format!(
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 1.00 GiB is \
             free. {others}Of the allocated memory 40.00 GiB is allocated by PyTorch, and 0 bytes is reserved by PyTorch but \
             unallocated."
        );
        let mut options = Options::default();
        options.message = Some(Message::parse(&text).unwrap());
        full().why_with(&options)
    };
    let verdict = told("Process 4711 has 38.00 GiB memory in use. ");
    assert_eq!((causes(&verdict)[0].as_str(), verdict.findings[0].explained_bytes), ("E1", 38 * GIB));
    assert_eq!(verdict.findings[0].evidence[0], "process 4711 has 38.00 GiB");
    assert_eq!(verdict.ledger.other_bytes, Some(39 * GIB));
    assert_eq!(causes(&told(""))[0], "E2", "nobody else is there");
}

/// What the recorder of a device of 80 GiB notes at the failure of [`full`]: 1 GiB is free, and these have the rest.
fn recorded(world: &mut World, processes: &[(u64, u64, bool)]) {
    let (held, free) = (40 * GIB, GIB);
    let time = ("time_us", Value::Int(world.time_us));
    let sample = dict([
        time.clone(),
        ("total_bytes", Value::Int(80 * GIB)),
        ("free_bytes", Value::Int(free)),
        ("held_bytes", Value::Int(held)),
    ]);
    let process = |&(pid, bytes, own): &(u64, u64, bool)| {
        let entries = [time.clone(), ("pid", Value::Int(pid)), ("size", Value::Int(bytes)), ("own", Value::Bool(own))];
        dict(entries)
    };
    let device = dict([
        ("name", text("gpu")),
        ("capacity_bytes", Value::Int(80 * GIB)),
        ("device_memory", Value::List(vec![sample])),
        ("processes", Value::List(processes.iter().map(process).collect())),
    ]);
    world.recorder = Some(dict([("version", Value::Int(1)), ("devices", Value::List(vec![device]))]));
}

#[test]
fn e1_shows_by_what_the_driver_told_without_a_text() {
    let told = |processes: &[(u64, u64, bool)]| {
        let mut world = full();
        recorded(&mut world, processes);
        world.why()
    };
    let own = (7, 40 * GIB + 512 * MIB, true);
    let verdict = told(&[(4711, 38 * GIB, false), own]);
    let first = &verdict.findings[0];
    assert_eq!((causes(&verdict)[0].as_str(), first.explained_bytes), ("E1", 38 * GIB));
    assert_eq!((first.sufficient, first.confidence), (true, 1.0));
    assert_eq!(first.evidence[0], "process 4711 has 38.00 GiB");
    assert!(!causes(&verdict).contains(&"E2".to_owned()), "a context is all that this process has beside");

    // The same bytes, of this process.
    let verdict = told(&[(4711, GIB, false), (7, 78 * GIB, true)]);
    assert_eq!(causes(&verdict)[0], "E2");
    assert_eq!((verdict.findings[0].explained_bytes, verdict.findings[0].confidence), (38 * GIB - 512 * MIB, 1.0));
    assert!(!causes(&verdict).contains(&"E1".to_owned()), "a part in eighty is not worth a word");

    // Either is enough.
    assert_eq!(causes(&told(&[(4711, 9 * GIB, false), (7, 70 * GIB, true)]))[..2], ["E2", "E1"]);
    assert_eq!(causes(&told(&[(4711, 29 * GIB, false), (7, 50 * GIB, true)]))[..2], ["E1", "E2"]);
}

#[test]
fn whose_it_is_stays_open_where_nobody_told() {
    let mut world = full();
    recorded(&mut world, &[]);
    let verdict = world.why();
    let first = &verdict.findings[0];
    assert_eq!((causes(&verdict)[0].as_str(), first.confidence), ("E2", 0.5));
    assert!(first.evidence[1].starts_with("whether this process has it (E2) or another one (E1)"), "{first:?}");
    assert!(first.refuted_by.contains("(E1)"), "{first:?}");
}

#[test]
fn numbers_of_processes_differ_in_a_container() {
    let told = |processes: &[(u64, u64, bool)]| {
        let mut world = full();
        recorded(&mut world, processes);
        causes(&world.why())[0].clone()
    };
    // Nobody has the number that this process knows as its own. One alone has what the allocator holds.
    assert_eq!(told(&[(4711, 38 * GIB, false), (4712, 41 * GIB, false)]), "E1");
    // Two have, so nothing is known.
    assert_eq!(told(&[(4711, 40 * GIB, false), (4712, 40 * GIB, false)]), "E2");
}

#[test]
fn e2_this_process_outside_of_the_allocator() {
    let verdict = full().why_with(&capacity(48 * GIB));
    assert_eq!((causes(&verdict)[0].as_str(), verdict.findings[0].explained_bytes), ("E2", 7 * GIB - 512 * MIB));
    let verdict = full().why_with(&capacity(42 * GIB));
    assert_eq!(causes(&verdict)[0], "A1", "1 GiB outside is usual");
}

#[test]
fn e3_nothing_is_left_for_a_library() {
    let story = |cached: u64| {
        let mut world = World::new();
        world.alloc(10 * GIB, "model.py:1 in build");
        let activation = world.alloc(cached, "train.py:3 in forward");
        world.free(activation);
        let device = dict([
            ("name", text("gpu")),
            ("capacity_bytes", Value::Int(24 * GIB)),
            ("other_bytes", Value::Int(24 * GIB - 10 * GIB - 12 * GIB - 100 * MIB)),
        ]);
        world.recorder = Some(dict([("version", Value::Int(1)), ("devices", Value::List(vec![device]))]));
        world.time_us += 10;
        let end = world.alloc(512, "log.py:1 in log");
        world.free(end);
        world.why()
    };
    let causes_of = |cached| causes(&story(cached));
    assert_eq!(causes_of(12 * GIB)[0], "E3");
    assert!(!causes_of(8 * GIB).contains(&"E3".to_owned()), "4 GiB are free");
}

#[test]
fn e3_shows_by_the_capacity_alone() {
    let mut world = World::new();
    world.alloc(10 * GIB, "model.py:1 in build");
    let activation = world.alloc(12 * GIB, "train.py:3 in forward");
    world.free(activation);
    assert_eq!(causes(&world.why_with(&capacity(22 * GIB + 700 * MIB)))[0], "E3");
    assert_eq!(causes(&world.why_with(&capacity(30 * GIB)))[0], "A1", "7.5 GiB may be free");
}
