//! Streams that touch one buffer: waits that are missing, too early, or for another fence.

use highwater::device::{Access, Operand};
use highwater::sanitizer::{Missing, Race, RaceKind};

use crate::stage::{BYTES, Stage, work};

/// What a race says of the waits: the line of the fence that covers, and the stream of the fence that was waited for.
fn waits(race: &Race) -> (Option<u32>, Option<&str>) {
    let Missing::Wait { covering, waited, .. } = &race.missing else { panic!("{race}") };
    let line = covering.as_ref().map(|fence| fence.recorded.expect("a line is known").location.line());
    (line, waited.as_ref().map(|(fence, _)| &*fence.stream))
}

#[test]
fn the_wrong_program_is_found() {
    let stage = Stage::new();
    let a = stage.bytes(&stage.s1);
    stage.s1.launch("compute", work()).write(&a).submit().unwrap();
    let second = line!() + 1;
    stage.s2.launch("use", work()).read(&a).submit().unwrap();
    let race = stage.one(RaceKind::Unordered, "compute", "use");
    assert_eq!((race.first.stream.as_deref(), race.second.stream.as_deref()), (Some("s1"), Some("s2")));
    assert_eq!((race.first.access, race.second.access), (Access::Write, Access::Read));
    assert_eq!(race.second.context.unwrap().location.line(), second);
    assert_eq!(race.range.bytes, BYTES as u64);
    assert_eq!(race.buffer().unwrap().range, race.range);
    assert_eq!(waits(&race), (None, None));
}

#[test]
fn the_right_program_is_let_be() {
    let stage = Stage::new();
    let a = stage.bytes(&stage.s1);
    stage.s1.launch("compute", work()).write(&a).submit().unwrap();
    let fence = stage.s1.record().unwrap();
    stage.s2.wait(&fence).unwrap();
    stage.s2.launch("use", work()).read(&a).submit().unwrap();
    stage.none();
    assert_eq!(stage.sanitizer().counters().operations, 3);
}

#[test]
fn a_fence_that_nobody_waits_for_is_named() {
    let stage = Stage::new();
    let a = stage.bytes(&stage.s1);
    stage.s1.launch("compute", work()).write(&a).submit().unwrap();
    let recorded = line!() + 1;
    let _fence = stage.s1.record().unwrap();
    stage.s2.launch("use", work()).read(&a).submit().unwrap();
    assert_eq!(waits(&stage.one(RaceKind::Unordered, "compute", "use")), (Some(recorded), None));
}

#[test]
fn a_wait_for_the_wrong_fence_is_found() {
    let stage = Stage::new();
    let s3 = stage.allocator.create_stream("s3").unwrap();
    let (a, b) = (stage.bytes(&stage.s1), stage.bytes(&s3));
    stage.s1.launch("compute a", work()).write(&a).submit().unwrap();
    s3.launch("compute b", work()).write(&b).submit().unwrap();
    let (right, wrong) = (stage.s1.record().unwrap(), s3.record().unwrap());
    stage.s2.wait(&wrong).unwrap();
    stage.s2.launch("use", work()).read(&a).submit().unwrap();
    let race = stage.one(RaceKind::Unordered, "compute a", "use");
    let (covering, waited) = waits(&race);
    assert!(covering.is_some() && waited == Some("s3"), "{race}");
    stage.s2.wait(&right).unwrap();
    stage.s2.launch("use", work()).read(&a).submit().unwrap();
    stage.none();
}

#[test]
fn a_fence_that_was_recorded_too_early_is_found() {
    let stage = Stage::new();
    let a = stage.bytes(&stage.s1);
    stage.s1.launch("prepare", work()).write(&a).submit().unwrap();
    let early = stage.s1.record().unwrap();
    stage.s1.launch("compute", work()).write(&a).submit().unwrap();
    stage.s2.wait(&early).unwrap();
    stage.s2.launch("use", work()).read(&a).submit().unwrap();
    let race = stage.one(RaceKind::Unordered, "compute", "use");
    assert_eq!(waits(&race), (None, Some("s1")));
    assert!(race.to_string().contains("was recorded too early"), "{race}");
}

#[test]
fn a_staging_buffer_that_is_filled_again_while_it_is_read_is_found() {
    let stage = Stage::new();
    let (copies, compute) = (&stage.s1, &stage.s2);
    let (staging, host) = (stage.bytes(copies), stage.allocator.pinned::<u8>(BYTES));
    for step in 0..2 {
        copies.copy_to_device(&host, &staging).unwrap();
        compute.wait(&copies.record().unwrap()).unwrap();
        compute.launch("step", work()).read(&staging).submit().unwrap();
        if step == 0 {
            stage.none();
        }
    }
    // The second copy does not wait for the first step.
    let race = stage.one(RaceKind::Unordered, "step", "copy to the device");
    assert_eq!((race.first.access, race.second.access), (Access::Read, Access::Write));

    copies.wait(&compute.record().unwrap()).unwrap();
    copies.copy_to_device(&host, &staging).unwrap();
    stage.none();
}

#[test]
fn views_race_on_the_bytes_that_they_share_alone() {
    let stage = Stage::new();
    let a = stage.bytes(&stage.s1);
    stage.s1.launch("low", work()).write(a.slice(..3000)).submit().unwrap();
    stage.s2.launch("high", work()).write(a.slice(3000..)).submit().unwrap();
    stage.none();
    stage.s2.launch("middle", work()).read(a.slice(2000..3500)).submit().unwrap();
    let race = stage.one(RaceKind::Unordered, "low", "middle");
    assert_eq!(race.range.address.0 - race.buffer().unwrap().range.address.0, 2000);
    assert_eq!(race.range.bytes, 1000);
}

#[test]
fn two_that_read_do_not_race_and_who_writes_comes_after_both() {
    let stage = Stage::new();
    let a = stage.bytes(&stage.s1);
    stage.s1.launch("fill", work()).write(&a).submit().unwrap();
    stage.s2.wait(&stage.s1.record().unwrap()).unwrap();
    stage.s1.launch("read 1", work()).read(&a).submit().unwrap();
    stage.s2.launch("read 2", work()).read(&a).submit().unwrap();
    stage.none();
    stage.s2.launch("change", work()).read_write(&a).submit().unwrap();
    stage.one(RaceKind::Unordered, "read 1", "change");
}

#[test]
fn what_the_host_has_seen_complete_comes_before_what_it_submits() {
    let stage = Stage::new();
    let a = stage.bytes(&stage.s1);
    stage.s1.launch("compute", work()).write(&a).submit().unwrap();
    let fence = stage.s1.record().unwrap();
    assert!(!fence.is_complete().unwrap());
    stage.s2.launch("too early", work()).read(&a).submit().unwrap();
    stage.one(RaceKind::Unordered, "compute", "too early");
    fence.wait(std::time::Duration::from_secs(1)).unwrap();
    stage.s2.launch("use", work()).read(&a).submit().unwrap();
    stage.none();
    stage.s1.launch("compute", work()).write(&a).submit().unwrap();
    stage.one(RaceKind::Unordered, "use", "compute");
}

#[test]
fn external_work_is_seen_with_its_views() {
    let stage = Stage::new();
    let (a, b) = (stage.bytes(&stage.s1), stage.bytes(&stage.s1));
    stage.s1.launch("compute", work()).write(&a).submit().unwrap();
    stage.s2.submit_external("gather", &[a.view()], &[b.view()], |_, _| Ok(())).unwrap();
    let race = stage.one(RaceKind::Unordered, "compute", "gather");
    assert_eq!(race.second.access, Access::Read);
    stage.s1.launch("look", work()).read(&b).submit().unwrap();
    stage.one(RaceKind::Unordered, "gather", "look");
}

#[test]
fn order_made_past_the_library_counts_when_it_is_declared() {
    let stage = Stage::new();
    let a = stage.bytes(&stage.s1);
    stage.s1.launch("compute", work()).write(&a).submit().unwrap();
    stage.sanitizer().ordered(stage.s1.id(), stage.s2.id());
    stage.s2.launch("use", work()).read(&a).submit().unwrap();
    stage.none();
    stage.sanitizer().host_saw(stage.s2.id());
    stage.s1.launch("compute", work()).write(&a).submit().unwrap();
    stage.none();
}

#[test]
fn work_that_is_captured_does_not_execute() {
    let stage = Stage::new();
    let a = stage.bytes(&stage.s1);
    stage.s1.launch("compute", work()).write(&a).submit().unwrap();
    let capture = stage.s2.begin_capture().unwrap();
    stage.s2.launch("captured", work()).read(&a).submit().unwrap();
    drop(capture.end().unwrap());
    stage.none();
    stage.s2.launch("executed", work()).read(&a).submit().unwrap();
    stage.one(RaceKind::Unordered, "compute", "executed");
}

#[test]
fn a_guard_is_work_that_reads_and_writes_unless_it_only_reads() {
    let stage = Stage::new();
    let a = stage.bytes(&stage.s1);
    stage.s1.launch("fill", work()).write(&a).submit().unwrap();
    stage.s2.wait(&stage.s1.record().unwrap()).unwrap();
    drop(a.read_on(&stage.s1).unwrap());
    drop(a.read_on(&stage.s2).unwrap());
    stage.none();
    let line = line!() + 1;
    drop(a.on(&stage.s1).unwrap());
    let race = stage.one(RaceKind::Unordered, "work of a guard", "work of a guard");
    assert_eq!((race.first.access, race.second.access), (Access::Read, Access::ReadWrite));
    assert_eq!(race.second.context.unwrap().location.line(), line);
}

#[test]
fn a_guard_is_compared_when_its_work_has_been_submitted() {
    let stage = Stage::new();
    let a = stage.bytes(&stage.s1);
    stage.s1.launch("fill", work()).write(&a).submit().unwrap();
    let fence = stage.s1.record().unwrap();
    let on = a.on(&stage.s2).unwrap();
    stage.s2.wait(&fence).unwrap();
    drop(on);
    stage.none();
    stage.s1.wait(&stage.s2.record().unwrap()).unwrap();
    // Work of others while it lives is compared with it.
    let on = a.read_on(&stage.s2).unwrap();
    stage.s1.launch("fill", work()).write(&a).submit().unwrap();
    stage.one(RaceKind::Unordered, "work of a guard", "fill");
    drop(on);
    stage.none();
}

#[test]
fn operands_of_one_operation_do_not_race_with_each_other() {
    let stage = Stage::new();
    let a = stage.bytes(&stage.s1);
    let range = a.view();
    stage.s1.submit_external("gather in place", &[range.slice(..100)], &[range], |_, _| Ok(())).unwrap();
    stage.none();
    let operands = [Operand { range: stage.unseen(&stage.s1, a.device_address(), Access::Read), access: Access::Read }];
    let here = highwater::sanitizer::Here::new();
    stage.sanitizer().submitted(stage.s1.id(), "declared", &operands, highwater::sanitizer::Here::current());
    drop(here);
    stage.none();
}
