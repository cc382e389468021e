//! The table for people.

use super::*;

#[test]
fn a_short_plan_is_shown_whole() {
    let plan = plan(&PlanSpec { passes: Passes::Backward, ..PlanSpec::new(sized(&[1024, 2048]), 2) });
    let shown = plan.to_string();
    let expected = "\
units 2, ranks 2, rounds 1, slots 3 of 2048 B, peak 5120 B, operations 6, edges 4
    op  lane           does      unit  round  slot        leased after  signal  waits
     0  communication  gather    u1        0  -> 0              2048 B  yes     -
     1  communication  gather    u0        0  -> 1              3072 B  yes     -";
    assert!(shown.starts_with(expected), "{shown}");
    assert_eq!(shown.lines().count(), 2 + 6);
    assert_eq!(format!("{plan:#}"), shown, "there is nothing to leave out");
}

#[test]
fn a_wait_for_the_step_before_says_so() {
    let plan = plan(&spec(2, Passes::Training)).to_string();
    assert!(plan.lines().nth(2).is_some_and(|line| line.ends_with("of the step before")), "{plan}");
}

#[test]
fn a_long_plan_is_shown_by_its_ends() {
    let plan = plan(&spec(20, Passes::Training));
    let (short, long) = (plan.to_string(), format!("{plan:#}"));
    let operations = plan.ops().len();
    assert_eq!(long.lines().count(), 2 + operations);
    assert_eq!(short.lines().count(), 2 + 64 + 1);
    assert!(short.contains(&format!("… {} more operations", operations - 64)));
    let kept = |line: &&str| !line.contains("more operations");
    assert!(short.lines().filter(kept).all(|line| long.lines().any(|other| other == line)));
    assert_eq!(short.lines().last(), long.lines().last());
}
