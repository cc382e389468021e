//! What happens when another thread acts in the middle of a call: between the device's part and the allocator's.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use highwater::device::sim::SimDevice;
use highwater::device::{Cost, Device, DeviceCall};
use highwater::{Allocator, Buffer, Policy, Settings, SettingsBuilder, Stream};

use crate::world::{GRANULE, GRANULES, HookedDevice, address, granules, still, ticks};

struct Stage {
    sim: Arc<SimDevice>,
    device: Arc<HookedDevice>,
    allocator: Allocator,
    s: Stream,
    t: Stream,
}

impl Stage {
    fn new() -> Self {
        Self::with(still())
    }

    fn with(settings: SettingsBuilder) -> Self {
        let sim = SimDevice::new(ticks());
        let device = HookedDevice::new(sim.clone());
        let allocator = Allocator::with_settings(device.clone(), settings.build().unwrap()).unwrap();
        let (s, t) = (allocator.create_stream("s").unwrap(), allocator.create_stream("t").unwrap());
        Stage { sim, device, allocator, s, t }
    }

    /// A whole handle of `s`.
    fn handle(&self) -> Arc<Buffer<u8>> {
        Arc::new(self.s.alloc(granules(1)).unwrap())
    }

    /// `t` uses the buffer until 100 ns: before that, `s` must not have it again.
    fn expect_pending_until_100(&self, at: u64) {
        assert!(self.device.has_run());
        for ns in [1, 98] {
            self.sim.host_work(ns);
            assert_eq!(self.allocator.memory_stats().pending_bytes, GRANULE);
            let other = self.handle();
            assert_ne!(address(&other), at);
        }
        self.sim.host_work(1);
        let [first, second] = [self.handle(), self.handle()];
        assert!(address(&first) == at || address(&second) == at);
    }
}

fn busy(stream: &Stream, buffer: &Buffer<u8>) {
    stream.launch("busy", Cost::exact(100)).read(buffer).submit().unwrap();
}

#[test]
fn a_launch_right_after_a_record_is_not_covered_by_it() {
    let stage = Stage::new();
    let (buffer, t) = (stage.handle(), stage.t.clone());
    let (at, given) = (address(&buffer), buffer.clone());
    stage.device.after(DeviceCall::Record, move || busy(&t, &given));
    let _fence = stage.t.record().unwrap();
    drop(buffer);
    stage.expect_pending_until_100(at);
}

#[test]
fn a_record_right_before_a_launch_does_not_cover_it() {
    let stage = Stage::new();
    let (buffer, t) = (stage.handle(), stage.t.clone());
    let at = address(&buffer);
    stage.device.before(DeviceCall::Launch, move || drop(t.record().unwrap()));
    busy(&stage.t, &buffer);
    drop(buffer);
    stage.expect_pending_until_100(at);
}

#[test]
fn a_launch_right_before_a_wait_is_not_ordered_by_it() {
    let stage = Stage::new();
    let used = stage.handle();
    let at = address(&used);
    stage.s.launch("fill", Cost::exact(100)).write(&*used).submit().unwrap();
    drop(used);
    let recycled = stage.handle();
    assert_eq!(address(&recycled), at);
    let filled = stage.s.record().unwrap();
    let (t, given) = (stage.t.clone(), recycled.clone());
    stage.device.before(DeviceCall::Wait, move || {
        t.launch("fill", Cost::exact(10)).write(&*given).submit().unwrap();
    });
    stage.t.wait(&filled).unwrap();
    assert!(stage.device.has_run());
    assert_eq!(stage.allocator.memory_stats().waits_inserted, 1);
    stage.sim.cluster().settle().unwrap();
    assert!(stage.sim.cluster().hazards().is_empty());
}

#[test]
fn a_free_while_a_fence_is_asked_is_not_lost() {
    let stage = Stage::new();
    let [first, second] = [stage.handle(), stage.handle()];
    busy(&stage.t, &first);
    drop(stage.t.record().unwrap());
    busy(&stage.t, &second);
    let at = address(&first);
    drop(first);
    stage.sim.host_work(100);
    // The one who asks is inside the heap of `s`: the free of `second` becomes a message to it.
    stage.device.after(DeviceCall::Query, move || drop(second));
    let again = stage.handle();
    assert!(stage.device.has_run());
    assert_eq!(address(&again), at);
    assert_eq!(stage.allocator.memory_stats().pending_bytes, GRANULE);
    stage.allocator.check().unwrap();
}

/// A buffer of `s` whose bytes `s` uses until 100 ns, as its fences do not say yet.
fn recycled(stage: &Stage) -> Arc<Buffer<u8>> {
    let used = stage.handle();
    let at = address(&used);
    stage.s.launch("fill", Cost::exact(100)).write(&*used).submit().unwrap();
    drop(used);
    let recycled = stage.handle();
    assert_eq!(address(&recycled), at);
    recycled
}

/// The host waits for `s`, until `ns`: no wait is put behind its fence.
fn expect_held_up_until(stage: &Stage, buffer: &Buffer<u8>, ns: u64) {
    assert!(stage.device.has_run());
    let waits = stage.device.counters().of(DeviceCall::Wait);
    busy(&stage.t, buffer);
    assert_eq!((stage.sim.now_ns(), stage.allocator.memory_stats().host_stalls), (ns, 1));
    assert_eq!(stage.device.counters().of(DeviceCall::Wait), waits);
}

#[test]
fn a_fence_that_open_work_overtakes_while_it_is_recorded_is_open() {
    let stage = Stage::new();
    let buffer = recycled(&stage);
    let s = stage.s.clone();
    stage.device.before(DeviceCall::Record, move || {
        s.mark_open();
        s.launch("open", Cost::exact(1000)).submit().unwrap();
    });
    let _fence = stage.s.record().unwrap();
    expect_held_up_until(&stage, &buffer, 1100);
}

#[test]
fn a_fence_behind_a_wait_that_nobody_has_heard_of_yet_is_held_up_by_it() {
    let stage = Stage::new();
    let buffer = recycled(&stage);
    let open = stage.allocator.create_stream("open").unwrap();
    open.mark_open();
    open.launch("open", Cost::exact(1000)).submit().unwrap();
    let s = stage.s.clone();
    let fence = open.record().unwrap();
    stage.device.after(DeviceCall::Wait, move || drop(s.record().unwrap()));
    stage.s.wait(&fence).unwrap();
    expect_held_up_until(&stage, &buffer, 1000);
}

#[test]
fn no_capture_begins_while_a_fence_is_asked() {
    let stage = Stage::new();
    let fence = stage.t.record().unwrap();
    let (asking, begun) = (Arc::new(Barrier::new(2)), Arc::new(AtomicBool::new(false)));
    let beginner = {
        let (s, asking, begun) = (stage.s.clone(), asking.clone(), begun.clone());
        thread::spawn(move || {
            asking.wait();
            let capture = s.begin_capture().unwrap();
            begun.store(true, Ordering::SeqCst);
            capture
        })
    };
    stage.device.before(DeviceCall::Query, move || {
        asking.wait();
        // The other thread has many chances to begin.
        (0..10_000).for_each(|_| thread::yield_now());
        assert!(!begun.load(Ordering::SeqCst), "a capture began");
    });
    assert!(fence.is_complete().unwrap());
    assert!(stage.device.has_run());
    drop(beginner.join().unwrap().end().unwrap());
}

#[test]
fn a_heap_that_somebody_is_in_is_passed_over() {
    // Free memory of another stream at once, or after the host has waited for it.
    for ns in [0, 100] {
        let stage = Stage::new();
        let u = stage.allocator.create_stream("u").unwrap();
        let all = u.alloc::<u8>(granules(GRANULES)).unwrap();
        u.launch("fill", Cost::exact(ns)).write(&all).submit().unwrap();
        drop(all);
        let t = stage.t.clone();
        // Whoever asks for `s` is inside its heap here; a request on `t` looks for memory meanwhile.
        stage.device.before(DeviceCall::Reserve, move || {
            thread::spawn(move || drop(t.alloc::<u8>(granules(4)).unwrap())).join().unwrap();
        });
        drop(stage.s.alloc::<u8>(granules(4)).unwrap());
        assert!(stage.device.has_run());
        stage.allocator.check().unwrap();
    }
}

fn moving(policy: Policy) -> Stage {
    Stage::with(Settings::builder().policy(policy).page_time(1.0))
}

#[test]
fn a_record_right_before_memory_is_waited_for_does_not_order_who_uses_it_first() {
    let stage = moving(Policy::Wait);
    let u = stage.allocator.create_stream("u").unwrap();
    let used: Buffer<u8> = stage.s.alloc(granules(GRANULES)).unwrap();
    stage.s.launch("fill", Cost::exact(100)).write(&used).submit().unwrap();
    drop(used);
    let t = stage.t.clone();
    stage.device.before(DeviceCall::Wait, move || drop(t.record().unwrap()));
    let lent: Buffer<u8> = stage.t.alloc(granules(GRANULES)).unwrap();
    assert!(stage.device.has_run());
    assert_eq!(stage.allocator.memory_stats().waits_inserted, 1);
    u.launch("fill", Cost::exact(1)).write(&lent).submit().unwrap();
    stage.sim.cluster().settle().unwrap();
    assert!(stage.sim.cluster().hazards().is_empty());
}

#[test]
fn memory_that_is_used_again_while_it_is_on_its_way_is_waited_for_by_nobody_who_need_not() {
    let stage = moving(Policy::Grow);
    drop(stage.s.alloc::<u8>(granules(4)).unwrap());
    let s = stage.s.clone();
    // The heap of `t` has no addresses yet. It has seen by then what is free in the heap of `s`.
    stage.device.before(DeviceCall::Reserve, move || {
        let again: Buffer<u8> = s.alloc(granules(4)).unwrap();
        busy(&s, &again);
    });
    let grown: Buffer<u8> = stage.t.alloc(granules(4)).unwrap();
    assert!(stage.device.has_run());
    let stats = stage.allocator.memory_stats();
    assert_eq!((stats.waits_inserted, stats.pages_moved, stats.handles_created), (0, 0, 8));
    stage.t.launch("fill", Cost::exact(1)).write(&grown).submit().unwrap();
    stage.sim.cluster().settle().unwrap();
    assert!(stage.sim.cluster().hazards().is_empty());
}

/// Two streams take turns: what the one that is looked at has free is in use when it is wanted, and the other one has some.
#[test]
fn memory_that_others_take_each_time_is_not_needed() {
    let stage = Stage::with(Settings::builder().page_time(1.0));
    let Stage { device, allocator, s, .. } = &stage;
    // A stream is asked after those that were there before it.
    let [one, other, busy] = ["one", "other", "busy"].map(|name| allocator.create_stream(name).unwrap());
    let taker = [one, other];
    let handle = |stream: &Stream| stream.alloc::<u8>(granules(1)).unwrap();
    let mut blocks = [None, Some(handle(&taker[1]))];
    drop(handle(&taker[0]));
    let last = handle(&busy);
    busy.launch("long", Cost::exact(1_000_000)).write(&last).submit().unwrap();
    drop(last);
    // The stream whose work is under way is not done whenever it is asked.
    let (turns, mut turn) = (Arc::new(AtomicUsize::new(0)), 0);
    device.when_incomplete({
        let turns = turns.clone();
        move || {
            blocks[turn] = Some(taker[turn].alloc::<u8>(granules(1)).unwrap());
            turn = 1 - turn;
            blocks[turn] = None;
            turns.fetch_add(1, Ordering::Relaxed);
        }
    });
    let block = s.alloc::<u8>(granules(2)).unwrap();
    assert!(turns.load(Ordering::Relaxed) > 0, "nobody was faster");
    assert_eq!(allocator.memory_stats().out_of_memory, 0);
    drop(block);
    device.when_incomplete(|| ());
}
