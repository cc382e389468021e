//! The swarm itself: some seeds of it, and canaries: it has to find what is broken on purpose, and shrink it.

use highwater_tests::swarm::{Defect, Program, Rule, run, run_twice, shrink};

#[test]
fn a_few_seeds_break_no_rule() {
    for seed in 0..60 {
        let outcome = run_twice(&Program::draw(seed));
        assert!(outcome.failure.is_none(), "seed {seed}: {}", outcome.failure.unwrap());
    }
}

/// A capture cannot be ended on a broken device: the swarm tried for ever.
#[test]
fn a_broken_device_may_keep_a_capture() {
    let outcome = run_twice(&Program::draw(5_021_791));
    assert!(outcome.failure.is_none(), "{}", outcome.failure.unwrap());
}

/// A request at the moment at which a fence broke the device was refused for lack of memory.
#[test]
fn a_device_that_breaks_during_a_request_is_not_full() {
    let outcome = run_twice(&Program::draw(5_049_409));
    assert!(outcome.failure.is_none(), "{}", outcome.failure.unwrap());
}

/// The first seed that finds a defect, shrunk: the rule, and the steps that are left.
fn found(defect: Defect, seeds: u64) -> (Rule, usize) {
    let fails = |program: &Program| run(program, 0, Some(defect), false).failure;
    let first = (0..seeds).find_map(|seed| {
        let program = Program::draw(seed);
        fails(&program).map(|failure| (program, failure.rule))
    });
    let (program, rule) = first.unwrap_or_else(|| panic!("{defect:?} was not found by {seeds} seeds"));
    let small = shrink(&program, rule, 2000, fails);
    assert_eq!(fails(&small).map(|failure| failure.rule), Some(rule), "what is left fails in the same way");
    assert!(run(&small, 0, None, false).failure.is_none(), "and only with the defect:\n{small}");
    (rule, small.len())
}

#[test]
fn a_canary_that_loses_waits_is_found_and_shrunk() {
    let (rule, steps) = found(Defect::LostWaits, 100);
    assert!(matches!(rule, Rule::Reuse | Rule::Bytes | Rule::Race | Rule::Fault), "{rule:?}");
    assert!(steps < 16, "{steps} steps are left");
}

#[test]
fn a_canary_whose_fences_are_hasty_is_found_and_shrunk() {
    let (rule, steps) = found(Defect::HastyFences, 100);
    assert!(matches!(rule, Rule::Reuse | Rule::Bytes | Rule::Race | Rule::Fault | Rule::Told), "{rule:?}");
    assert!(steps < 12, "{steps} steps are left");
}

#[test]
fn a_canary_that_leaks_handles_is_found_and_shrunk() {
    let (rule, steps) = found(Defect::LeakedHandles, 100);
    assert!(matches!(rule, Rule::Books | Rule::Leak), "{rule:?}");
    assert!(steps < 12, "{steps} steps are left");
}
