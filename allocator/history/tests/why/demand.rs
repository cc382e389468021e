//! A: the program asks for more than there is.

use crate::world::{GIB, MIB, World, causes};

#[test]
fn a1_more_is_live_than_there_is_room_for() {
    let mut world = World::new();
    for layer in 0..10 {
        world.alloc(GIB, &format!("model.py:{} in build", 10 + layer % 2));
    }
    world.out_of_memory(2 * GIB, GIB / 2, "train.py:3 in forward");
    let verdict = world.why();
    assert_eq!(causes(&verdict)[0], "A1");
    assert_eq!(verdict.deficit_bytes, Some(2 * GIB - GIB / 2));
    assert_eq!(verdict.findings[0].explained_bytes, 2 * GIB - GIB / 2);
    assert_eq!(verdict.findings[0].advice[0].bytes, 5 * GIB, "the largest line comes first");
    assert_eq!(verdict.request_site.as_ref().unwrap().site, "train.py:3 in forward");
}

#[test]
fn layers_that_are_made_one_by_one_are_no_leak() {
    let mut world = World::new();
    for _ in 0..24 {
        world.alloc(GIB, "model.py:10 in build");
    }
    world.out_of_memory(GIB, GIB / 2, "model.py:10 in build");
    assert_eq!(causes(&world.why())[0], "A1");
}

#[test]
fn a2_a_request_far_above_all_others() {
    let story = |bytes: u64| {
        let mut world = World::new();
        for layer in 0..20 {
            world.alloc(64 * MIB, &format!("model.py:{layer} in build"));
        }
        world.out_of_memory(bytes, GIB, "loss.py:7 in one_hot");
        world.why()
    };
    let verdict = story(40 * GIB);
    assert_eq!(causes(&verdict)[0], "A2");
    assert_eq!(verdict.findings[0].explained_bytes, 40 * GIB - 64 * MIB);
    assert!(verdict.findings[0].evidence[1].contains("10737418240 elements of 4 bytes"), "{:?}", verdict.findings[0]);
    assert!(!causes(&story(128 * MIB)).contains(&"A2".to_owned()), "twice the largest is usual");
}

#[test]
fn a3_state_that_is_made_at_its_first_use() {
    const ADAM: &str = "/x/site-packages/torch/optim/adam.py:100 in _init_group < train.py:9 in step";
    let story = |again: bool| {
        let mut world = World::new();
        for layer in 0..12 {
            world.alloc(GIB, &format!("model.py:{layer} in build"));
        }
        for _ in 0..20 {
            if again {
                let address = world.alloc(GIB, ADAM);
                world.free(address);
            }
            world.alloc(GIB, ADAM);
        }
        world.out_of_memory(GIB, 100 * MIB, ADAM);
        world.why()
    };
    let verdict = story(false);
    assert_eq!(causes(&verdict)[0], "A3");
    assert_eq!(verdict.findings[0].explained_bytes, 20 * GIB);
    assert!(verdict.findings[0].evidence[0].contains("train.py:9 in step"));
    assert!(!causes(&story(true)).contains(&"A3".to_owned()), "what comes back is no first use");
}
