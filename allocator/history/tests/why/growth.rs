//! F: live memory that went up and stayed.

use highwater_history::why::{Cause, Look, Options};

use crate::world::{GIB, MIB, World, capacity, causes};

/// An iteration: a batch that is freed again.
fn step(world: &mut World, number: usize) {
    world.mark(&format!("ProfilerStep#{number}"));
    let batch = world.alloc(300 * MIB, "train.py:5 in step");
    let small = world.alloc(2 * MIB, "train.py:6 in step");
    world.free(small);
    world.free(batch);
}

fn model() -> World {
    let mut world = World::new();
    world.alloc(2 * GIB, "model.py:1 in build");
    world
}

#[test]
fn f1_a_little_with_each_iteration() {
    let mut world = model();
    for number in 0..12 {
        step(&mut world, number);
        world.alloc(100 * MIB, "train.py:9 in log");
    }
    world.out_of_memory(300 * MIB, 0, "train.py:5 in step");
    let verdict = world.why();
    assert_eq!((causes(&verdict)[0].as_str(), verdict.findings[0].sufficient), ("F1", true));
    let growth = verdict.growth.as_ref().unwrap();
    assert_eq!((growth.bytes_per_iteration, growth.iterations, growth.freed_again), (100 * MIB as i64, 12, 0));
    assert_eq!((growth.sites[0].site.as_str(), growth.sites[0].blocks), ("train.py:9 in log", 12));
    assert!(verdict.findings[0].evidence[0].starts_with("train.py:9 in log keeps"), "the line comes first");
    assert_eq!(verdict.findings[0].explained_bytes, 1100 * MIB);
}

#[test]
fn a_cache_that_is_full_is_no_leak() {
    let mut world = model();
    for number in 0..12 {
        step(&mut world, number);
        if number < 2 {
            world.alloc(600 * MIB, "train.py:9 in cache");
        }
    }
    world.out_of_memory(600 * MIB, 0, "train.py:5 in step");
    let verdict = world.why();
    assert!(!causes(&verdict).contains(&"F1".to_owned()), "{:?}", causes(&verdict));
}

#[test]
fn f2_teeth() {
    let mut world = model();
    let mut kept = Vec::new();
    for number in 0..17 {
        step(&mut world, number);
        if number == 7 || number == 12 {
            kept.drain(..).for_each(|address| world.free(address));
        }
        kept.push(world.alloc(100 * MIB, "train.py:9 in cycle"));
    }
    world.out_of_memory(200 * MIB, 0, "train.py:5 in step");
    let verdict = world.why();
    assert_eq!(causes(&verdict)[0], "F2", "{:?}", verdict.findings);
    assert!(verdict.findings[0].evidence[1].contains("train.py:9 in cycle"), "{:?}", verdict.findings[0]);
    assert!(!causes(&verdict).contains(&"F1".to_owned()));
}

#[test]
fn f3_up_once() {
    let mut world = model();
    for number in 0..12 {
        step(&mut world, number);
        if number == 7 {
            world.mark("evaluate");
            world.alloc(GIB, "eval.py:3 in evaluate");
        }
    }
    world.out_of_memory(500 * MIB, 0, "train.py:5 in step");
    let verdict = world.why();
    assert_eq!((causes(&verdict)[0].as_str(), verdict.findings[0].explained_bytes), ("F3", GIB));
    let lines = verdict.findings[0].evidence.join("\n");
    assert!(lines.contains("eval.py:3 in evaluate keeps 1.00 GiB"), "{lines} {:?}", verdict.growth);
    assert!(!causes(&verdict).contains(&"F1".to_owned()));
}

#[test]
fn growth_shows_before_memory_ends() {
    let mut world = model();
    for number in 0..6 {
        step(&mut world, number);
        world.alloc(100 * MIB, "train.py:9 in log");
    }
    let device = crate::world::dict([
        ("name", crate::world::text("gpu")),
        ("capacity_bytes", crate::world::Value::Int(world.reserved() + 5 * GIB)),
        ("other_bytes", crate::world::Value::Int(GIB)),
    ]);
    let devices = crate::world::Value::List(vec![device]);
    let version = crate::world::Value::Int(1);
    world.recorder = Some(crate::world::dict([("version", version), ("devices", devices)]));
    let mut options = Options::default();
    options.look = Look::Growth;
    let verdict = world.why_with(&options);
    let growth = verdict.growth.as_ref().expect("six iterations are enough");
    assert_eq!(growth.sites[0].site, "train.py:9 in log");
    // 4 GiB of the device, and what the batch left in its segment.
    let left = (4 * GIB + 300 * MIB + 18 * MIB) / (100 * MIB);
    assert!(growth.iterations_left.unwrap().abs_diff(left) <= 1, "{:?} {left}", growth.iterations_left);
    assert!(growth.time_left_us.is_some());
    assert!(verdict.finding(Cause::F1).is_some());
}

#[test]
fn nothing_is_said_to_grow_where_nothing_does() {
    let mut world = model();
    for number in 0..12 {
        step(&mut world, number);
    }
    let mut options = capacity(80 * GIB);
    options.look = Look::Growth;
    let verdict = world.why_with(&options);
    assert_eq!(verdict.growth.as_ref().map(|growth| growth.gained_bytes), Some(0));
}

/// Without marks: what comes back regularly, if most of it is given back.
#[test]
fn iterations_are_found_without_marks() {
    let mut world = model();
    for _ in 0..30 {
        let batch = world.alloc(300 * MIB, "train.py:5 in step");
        let other = world.alloc(30 * MIB, "train.py:6 in step");
        world.free(batch);
        world.free(other);
        world.alloc(50 * MIB, "train.py:9 in log");
    }
    world.out_of_memory(300 * MIB, 0, "train.py:5 in step");
    let verdict = world.why();
    assert_eq!(causes(&verdict)[0], "F1");
    assert_eq!(verdict.growth.as_ref().unwrap().bytes_per_iteration, 50 * MIB as i64);
}
