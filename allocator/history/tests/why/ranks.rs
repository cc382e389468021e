//! Several ranks: which one is unlike the others.

use highwater_history::why::{Verdict, odd_one_out};

use crate::world::{GIB, World};

fn rank(experts: u64, fails: bool) -> Verdict {
    let mut world = World::new();
    world.alloc(20 * GIB, "model.py:1 in build");
    for _ in 0..experts {
        world.alloc(GIB, "moe.py:4 in route");
    }
    if fails {
        world.out_of_memory(4 * GIB, GIB, "train.py:3 in forward");
    }
    world.why()
}

#[test]
fn the_rank_with_more_memory_is_named_with_its_line() {
    let ranks = [rank(4, false), rank(4, false), rank(11, true), rank(5, false)];
    let odd = odd_one_out(&ranks.each_ref()).expect("rank 2 has 7 GiB more");
    assert_eq!((odd.index, odd.bytes), (2, 7 * GIB as i64));
    assert!(
        odd.why.contains("7.00 GiB more") && odd.why.ends_with("7.00 GiB of it at moe.py:4 in route"),
        "{}",
        odd.why
    );
}

#[test]
fn the_rank_that_failed_alone_is_odd() {
    let ranks = [rank(4, false), rank(4, true), rank(4, false)];
    let odd = odd_one_out(&ranks.each_ref()).expect("rank 1 failed");
    assert_eq!((odd.index, odd.why.as_str()), (1, "it alone ran out of memory"));
}

#[test]
fn ranks_that_are_alike_have_no_odd_one() {
    let ranks = [rank(4, true), rank(4, true), rank(4, true)];
    assert_eq!(odd_one_out(&ranks.each_ref()), None);
    assert_eq!(odd_one_out(&[&ranks[0]]), None);
}
