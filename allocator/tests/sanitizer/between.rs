//! What happens in the middle of a call: work of another thread, failures of the device, and waits that run out of time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use highwater::device::sim::{SimConfig, SimDevice};
use highwater::device::{Cost, CostModel, DeviceCall};
use highwater::sanitizer::{OnRace, RaceKind};
use highwater::{Allocator, Buffer, Settings, Stream, StreamError};

use crate::hooked::HookedDevice;
use crate::stage::{BYTES, Stage, work};

/// An allocator with the sanitizer on a device that lets a test step in, two streams, and a buffer of the first.
fn hooked() -> (Arc<HookedDevice>, Allocator, Stream, Stream, Arc<Buffer<u8>>) {
    let config = SimConfig { cost: CostModel::free(), workers: 0, memory_bytes: 64 << 20, ..SimConfig::default() };
    let device = HookedDevice::new(SimDevice::new(config));
    let settings = Settings::builder().sanitizer(OnRace::Collect).build().unwrap();
    let allocator = Allocator::with_settings(device.clone(), settings).unwrap();
    let [s1, s2] = ["s1", "s2"].map(|name| allocator.create_stream(name).unwrap());
    let buffer = Arc::new(s1.alloc(BYTES).unwrap());
    (device, allocator, s1, s2, buffer)
}

fn write(name: &'static str, stream: &Stream, buffer: &Buffer<u8>) {
    stream.launch(name, work()).write(buffer).submit().unwrap();
}

/// Which pairs of operations raced.
fn raced(allocator: &Allocator) -> Vec<(String, String)> {
    let races = allocator.sanitizer().expect("the settings ask for it").take_races();
    races.iter().map(|race| (race.first.operation.to_string(), race.second.operation.to_string())).collect()
}

#[test]
fn work_right_after_a_record_is_not_covered_by_its_fence() {
    let (device, allocator, s1, s2, buffer) = hooked();
    let (stream, given) = (s1.clone(), buffer.clone());
    device.after(DeviceCall::Record, move || write("late", &stream, &given));
    s2.wait(&s1.record().unwrap()).unwrap();
    assert!(device.has_run());
    write("use", &s2, &buffer);
    assert_eq!(raced(&allocator), [("late".into(), "use".into())]);
}

#[test]
fn work_right_before_a_wait_is_not_ordered_by_it() {
    let (device, allocator, s1, s2, buffer) = hooked();
    write("fill", &s1, &buffer);
    let fence = s1.record().unwrap();
    let (stream, given) = (s2.clone(), buffer.clone());
    device.before(DeviceCall::Wait, move || write("early", &stream, &given));
    s2.wait(&fence).unwrap();
    assert!(device.has_run());
    assert_eq!(raced(&allocator), [("fill".into(), "early".into())]);
}

#[test]
fn a_fence_right_after_a_submission_covers_it() {
    let (device, allocator, s1, s2, buffer) = hooked();
    let fence = Arc::new(Mutex::new(None));
    let (stream, recorded) = (s1.clone(), fence.clone());
    device.after(DeviceCall::Launch, move || *recorded.lock().unwrap() = Some(stream.record().unwrap()));
    write("fill", &s1, &buffer);
    s2.wait(&fence.lock().unwrap().take().expect("it was recorded")).unwrap();
    write("use", &s2, &buffer);
    assert_eq!(raced(&allocator), []);
}

#[test]
fn a_submission_that_fails_touches_nothing() {
    let stage = Stage::new();
    let buffer = stage.bytes(&stage.s1);
    stage.device.fail_nth(DeviceCall::Launch, 1);
    let failed = stage.s1.launch("failed", work()).write(&buffer).submit();
    assert!(matches!(failed, Err(StreamError::Device { .. })));
    stage.s2.launch("use", work()).write(&buffer).submit().unwrap();
    stage.none();
}

#[test]
fn a_wait_that_fails_orders_nothing() {
    let stage = Stage::new();
    let buffer = stage.bytes(&stage.s1);
    stage.s1.launch("fill", work()).write(&buffer).submit().unwrap();
    let fence = stage.s1.record().unwrap();
    stage.device.fail_nth(DeviceCall::Wait, 1);
    assert!(stage.s2.wait(&fence).is_err());
    stage.s2.launch("use", work()).write(&buffer).submit().unwrap();
    stage.one(RaceKind::Unordered, "fill", "use");
}

#[test]
fn a_wait_of_the_host_that_runs_out_of_time_has_seen_nothing() {
    let stage = Stage::new();
    let buffer = stage.bytes(&stage.s1);
    stage.s1.launch("fill", Cost::exact(1000)).write(&buffer).submit().unwrap();
    let fence = stage.s1.record().unwrap();
    let waited = fence.wait(Duration::from_nanos(10));
    assert!(matches!(waited, Err(StreamError::TimedOut { .. })));
    stage.s2.launch("use", work()).write(&buffer).submit().unwrap();
    stage.one(RaceKind::Unordered, "fill", "use");
}
