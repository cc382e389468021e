//! Traces of real programs that ran under PyTorch.

use highwater_history::{
    read::{self, Loaded},
    why::{Cause, Look, Moment, Options, explain},
};

use crate::world::{GIB, MIB};

fn load(file: &[u8]) -> Loaded {
    read::read(file, &read::Options::default()).expect("PyTorch wrote it")
}

const LEAK: &[u8] = include_bytes!("../data/oom_leak.pickle.xz");
const CROSS_STREAM: &[u8] = include_bytes!("../data/oom_cross_stream.pickle.xz");
const RECORD_STREAM: &[u8] = include_bytes!("../data/prefetch_record_stream.pickle.xz");

#[test]
fn a_list_that_keeps_every_loss() {
    let verdict = explain(&load(LEAK), &Options::default()).remove(0);
    assert_eq!((verdict.moment, verdict.event), (Moment::OutOfMemory, Some(4519)));
    let first = &verdict.findings[0];
    assert_eq!((first.cause, first.sufficient), (Cause::F1, true));
    assert!(first.evidence[0].starts_with("/home/user/projects/a/train_m.py:124 in oom_leak keeps"), "{first:?}");
    assert!(first.evidence[0].contains("1.0 an iteration; none"), "{first:?}");
    assert!(first.explained_bytes.abs_diff(193 * 8 * MIB) < 16 * MIB, "{}", first.explained_bytes);
    let limit = verdict.finding(Cause::H1).expect("the program had set a limit of 2 GiB");
    assert!(limit.explained_bytes > 130 * GIB);
    let limit = verdict.limit_bytes.expect("it is named");
    assert!(limit <= 2 * GIB && limit + 20 * MIB > 2 * GIB, "{limit}");
    assert!(verdict.warnings.is_empty(), "{:?}", verdict.warnings);
}

#[test]
fn a_stream_that_runs_far_behind() {
    let verdict = explain(&load(CROSS_STREAM), &Options::default()).remove(0);
    assert_eq!((verdict.moment, verdict.stalls, verdict.out_of_memory_events), (Moment::Stall, 3, 0));
    assert!((7_000_000..8_000_000).contains(&verdict.stalled_us), "{}", verdict.stalled_us);
    let first = &verdict.findings[0];
    assert_eq!((first.cause, first.explained_bytes, first.sufficient), (Cause::C1, 3 * GIB, true));
    assert_eq!(verdict.limit_bytes, Some(3 * GIB), "the limit that the program had set is where it stopped");
    assert_eq!(verdict.ledger.pending_bytes, 3 * GIB);
}

#[test]
fn the_peak_is_explained_where_nothing_failed() {
    let verdict = explain(&load(RECORD_STREAM), &Options::default()).remove(0);
    assert_eq!((verdict.moment, verdict.request_bytes), (Moment::Peak, None));
    assert_eq!(verdict.ledger.reserved_bytes(), 5_322_571_776);
    assert_eq!(verdict.cause(), Cause::B1, "a third of what is reserved is in use: {:?}", verdict.findings);
    assert!(verdict.warnings.is_empty(), "{:?}", verdict.warnings);
}

#[test]
fn iterations_of_the_optimizer_do_not_grow() {
    let mut options = Options::default();
    options.look = Look::Growth;
    let verdict = explain(&load(RECORD_STREAM), &options).remove(0);
    let growth = verdict.growth.expect("the optimizer marks its steps");
    assert_eq!(growth.iteration, "from Optimizer.step to Optimizer.step");
    assert_eq!(growth.gained_bytes, 0);
}

#[test]
fn growth_is_looked_at_before_the_program_unwinds() {
    let mut options = Options::default();
    options.look = Look::Growth;
    let verdict = explain(&load(LEAK), &options).remove(0);
    assert_eq!((verdict.moment, verdict.cause()), (Moment::End, Cause::F1));
    let growth = verdict.growth.expect("there are iterations");
    assert_eq!((growth.sites[0].blocks, growth.freed_again), (192, 0));
}
