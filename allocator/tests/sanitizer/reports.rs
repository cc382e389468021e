//! What a report says, and where it goes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use highwater::device::sim::SimDevice;
use highwater::device::{Access, Device};
use highwater::history::SpanPathLayer;
use highwater::sanitizer::{OnRace, RaceKind};
use highwater::{Allocator, Settings};
use tracing_subscriber::layer::SubscriberExt;

use crate::stage::{Stage, work};

/// A report without its addresses and line numbers.
fn stripped(text: &str) -> String {
    let without = |word: &str| match (word.strip_prefix("0x"), word.split_once(".rs:")) {
        (Some(digits), _) => format!("ADDRESS{}", digits.trim_start_matches(|c: char| c.is_ascii_hexdigit())),
        (_, Some((_, digits))) => format!("LINE{}", digits.trim_start_matches(|c: char| c.is_ascii_digit())),
        _ => word.to_owned(),
    };
    let words = |line: &str| line.split(' ').map(without).collect::<Vec<_>>().join(" ");
    text.split('\n').map(words).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_report_names_operations_streams_lines_spans_the_buffer_and_the_missing_wait() {
    let stage = Stage::new();
    let subscriber = tracing_subscriber::registry().with(SpanPathLayer);
    let text = tracing::subscriber::with_default(subscriber, || {
        let _step = tracing::info_span!("step").entered();
        let a = stage.bytes(&stage.s1);
        let early = stage.s1.record().unwrap();
        stage.s1.launch("compute", work()).write(&a).submit().unwrap();
        let _covers = stage.s1.record().unwrap();
        stage.s2.wait(&early).unwrap();
        let _backward = tracing::info_span!("backward").entered();
        stage.s2.launch("use", work()).read(&a).submit().unwrap();
        stage.one(RaceKind::Unordered, "compute", "use").to_string()
    });
    assert_eq!(
        stripped(&text),
        "race: 4096 bytes at ADDRESS, of the buffer of 4096 bytes at ADDRESS, allocated on \"s1\" at LINE in step\n  \
         first   \"compute\" on \"s1\" writes at LINE in step\n  \
         second  \"use\" on \"s2\" reads at LINE in step/backward\n  \
         missing \"s2\" has to wait for a fence recorded on \"s1\" after \"compute\"; there is one, recorded at LINE in \
         step, and it was not waited for; the fence that it waited for at LINE in step was recorded too early, at LINE \
         in step"
    );
}

#[test]
fn a_report_of_a_use_that_was_not_recorded_names_both_buffers() {
    let stage = Stage::new();
    let x = stage.bytes(&stage.s1);
    stage.raw(&stage.s2, x.device_address(), Access::Write);
    drop(x);
    let _y = stage.bytes(&stage.s1);
    let text = stage.one(RaceKind::Reuse, "raw kernel", "allocation").to_string();
    assert_eq!(
        stripped(&text),
        "memory is used again too early: 4096 bytes at ADDRESS, of the buffer of 4096 bytes at ADDRESS, allocated on \
         \"s1\" at LINE\n  \
         first   \"raw kernel\" on \"s2\" writes at LINE, of what was then the buffer of 4096 bytes at ADDRESS, allocated \
         on \"s1\" at LINE\n  \
         second  \"allocation\" on \"s1\" writes at LINE\n  \
         missing `record_stream` of \"s2\" (or `record_use`, or a guard) before the buffer is dropped"
    );
}

#[test]
fn a_race_of_the_same_two_lines_is_reported_once() {
    let stage = Stage::new();
    let a = stage.bytes(&stage.s1);
    for _ in 0..10 {
        stage.s1.launch("compute", work()).write(&a).submit().unwrap();
        stage.s2.launch("use", work()).read(&a).submit().unwrap();
    }
    assert_eq!(stage.sanitizer().take_races().len(), 2, "once from each side");
    assert!(stage.sanitizer().counters().races >= 10);
}

#[test]
fn a_panic_comes_after_the_work_and_leaves_everything_in_order() {
    let stage = Stage::with(OnRace::Panic);
    let a = stage.bytes(&stage.s1);
    stage.s1.launch("compute", work()).write(&a).submit().unwrap();
    let launch = AssertUnwindSafe(|| stage.s2.launch("use", work()).read(&a).submit());
    let panic = catch_unwind(launch).unwrap_err();
    assert!(panic.downcast_ref::<String>().unwrap().starts_with("race: "));
    assert_eq!(stage.sanitizer().take_races().len(), 1);
    // The use was noted all the same, so the memory waits for it.
    drop(a);
    assert_eq!(stage.allocator.memory_stats().pending_bytes, 4096);
    stage.allocator.check().unwrap();
    let sanitizer = stage.sanitizer().clone();
    drop(stage);
    assert!(sanitizer.take_races().is_empty());
}

#[test]
fn a_device_is_cast_down_with_the_sanitizer_on() {
    let stage = Stage::new();
    for device in [stage.allocator.device(), stage.s1.device()] {
        let any: Arc<dyn std::any::Any> = device.clone();
        assert!(any.downcast_ref::<SimDevice>().is_some());
    }
    assert_eq!(stage.allocator.watched_device().properties(), stage.device.properties());
}

#[test]
fn without_the_setting_there_is_no_sanitizer() {
    let device = SimDevice::new(Default::default());
    let allocator = Allocator::with_settings(device.clone(), Settings::default()).unwrap();
    assert!(allocator.sanitizer().is_none());
    let real: Arc<dyn Device> = device;
    assert!(Arc::ptr_eq(allocator.watched_device(), &real));
}
