//! Every call of the device fails in turn, and the device itself: an error or success, never a panic; the books balance
//! afterwards, and everything works again.

use highwater::device::sim::SimDevice;
use highwater::device::{Access, Cost, Device, DeviceCall, DeviceError};
use highwater::{AllocError, Allocator, Buffer, Policy, Settings, SettingsBuilder, Stream};

use crate::world::{GRANULE, GRANULES, MEMORY, World, granules, still, ticks};
use program::{Act, errors_of, errors_of_act};

mod program;

/// Where the program runs: with memory that stays where it is, with memory that moves, behind waits or not before there is
/// no new memory.
fn manners() -> [SettingsBuilder; 3] {
    let moving = |policy| Settings::builder().policy(policy).page_time(1.0);
    [still(), moving(Policy::Wait), moving(Policy::Grow)]
}

/// Otherwise the failures would not meet every step.
#[test]
fn the_program_climbs_every_rung() {
    for (settings, missing) in manners().into_iter().zip([vec!["move"], vec![], vec![]]) {
        let world = World::with(settings);
        assert_eq!([errors_of(&world, &Act::ALL), errors_of(&world, &Act::ALL)], [0; 2]);
        let rungs = world.stats().requests_by_rung;
        let not_met: Vec<&str> = rungs.into_iter().filter(|&(_, met)| met == 0).map(|(rung, _)| rung).collect();
        assert_eq!(not_met, missing);
        world.end();
    }
}

#[test]
fn every_call_may_fail() {
    for &call in DeviceCall::ALL {
        for (nth, settings) in (1..=3).flat_map(|nth| manners().map(|settings| (nth, settings))) {
            let world = World::with(settings);
            world.device.fail_nth(call, nth);
            let before = world.counters().of(call);
            let errors = errors_of(&world, &Act::ALL);
            let calls = world.counters().of(call) - before;
            // Calls that the program and the allocator make once, or never.
            let most = match call {
                DeviceCall::Collective | DeviceCall::Unreserve => 0,
                DeviceCall::Elapsed | DeviceCall::BeginCapture | DeviceCall::EndCapture => 1,
                _ => u64::MAX,
            };
            assert!(calls >= nth.min(most), "{call} was made {calls} times, the failure of number {nth} was not met");
            if matches!(call, DeviceCall::Launch | DeviceCall::SetAccess | DeviceCall::CreateStream) {
                assert!(errors > 0, "{call} {nth}: the failure was not told");
            }
            world.check();
            // A failure that was not met yet may hit the next run; after that there is none.
            errors_of(&world, &Act::ALL);
            errors_of(&world, &Act::ALL);
            assert_eq!(errors_of(&world, &Act::ALL), 0, "{call} {nth}: not everything works again");
            world.end_after_fault(call);
        }
    }
}

/// Each call that an act makes, whatever it is made for, and whatever the memory looks like by then: each act is there
/// twice, so that it finds memory that has moved.
fn each_call_of_an_act_fails(settings: &SettingsBuilder, act: Act) {
    let clean = World::with(settings.clone());
    let before = clean.counters();
    assert_eq!([errors_of_act(&clean, act), errors_of_act(&clean, act)], [0; 2]);
    let after = clean.counters();
    clean.end();
    for &call in DeviceCall::ALL {
        for nth in 1..=after.of(call) - before.of(call) {
            let world = World::with(settings.clone());
            world.device.fail_nth(call, nth);
            errors_of_act(&world, act);
            errors_of_act(&world, act);
            assert!(world.counters().of(call) - before.of(call) >= nth, "{act:?}: {call} {nth} was not met");
            world.check();
            assert_eq!(errors_of_act(&world, act), 0, "{act:?}: {call} {nth}: not everything works again");
            world.end_after_fault(call);
        }
    }
}

#[test]
fn every_call_may_fail_where_memory_stays() {
    let [settings, ..] = manners();
    Act::ALL.iter().for_each(|&act| each_call_of_an_act_fails(&settings, act));
}

#[test]
fn every_call_may_fail_where_memory_moves_behind_waits() {
    let [_, settings, _] = manners();
    Act::ALL.iter().for_each(|&act| each_call_of_an_act_fails(&settings, act));
}

#[test]
fn every_call_may_fail_where_memory_grows_before_it_moves() {
    let [.., settings] = manners();
    Act::ALL.iter().for_each(|&act| each_call_of_an_act_fails(&settings, act));
}

#[test]
fn two_failures_at_once_are_no_worse() {
    let calls = [DeviceCall::Unmap, DeviceCall::Release, DeviceCall::Map, DeviceCall::SetAccess, DeviceCall::Create];
    let more = [DeviceCall::Record, DeviceCall::Query, DeviceCall::Wait, DeviceCall::Synchronize];
    let [still, wait, grow] = manners();
    let programs: [(SettingsBuilder, &[Act]); 3] = [(still, &Act::ALL), (wait, &[Act::Moves]), (grow, &[Act::Moves])];
    for (settings, acts) in &programs {
        for (first, second) in
            calls.iter().flat_map(|first| calls.iter().chain(&more).map(move |second| (first, second)))
        {
            for nth in 1..=2 {
                let world = World::with(settings.clone());
                world.device.fail_nth(*first, nth);
                world.device.fail_nth(*second, nth + 1);
                for _ in 0..4 {
                    errors_of(&world, acts);
                    world.check();
                }
                assert_eq!(errors_of(&world, acts), 0, "{first} and {second}");
                world.end();
            }
        }
    }
}

#[test]
fn handles_that_the_device_keeps_are_counted_and_returned_later() {
    let world = World::timed();
    let [s] = world.streams();
    drop(world.bytes(&s, granules(4)));
    world.device.fail_nth(DeviceCall::Release, 1);
    assert_eq!(world.allocator.trim(0), GRANULE, "unmapped, but not released");
    assert_eq!((world.stats().stray_bytes, world.stats().cached_bytes), (GRANULE, 0));
    world.check();
    let report = world.no_room(&s, granules(GRANULES) + 1);
    assert_eq!((report.stray, report.physical), (GRANULE, GRANULE));
    assert!(report.to_string().contains("64.00 KiB in handles that the device would not take back"), "{report}");
    assert_eq!(world.allocator.trim(0), 0);
    assert_eq!(world.stats().stray_bytes, 0);
    drop(s);
    world.end();
}

#[test]
fn nothing_is_mapped_where_a_handle_stays_that_the_device_keeps() {
    let world = World::timed();
    let [s] = world.streams();
    // The first handle is mapped and not accessible; it cannot be unmapped, nor when the next request tries again.
    world.device.fail_nth(DeviceCall::SetAccess, 1);
    (1..=3).for_each(|nth| world.device.fail_nth(DeviceCall::Unmap, nth));
    assert!(s.alloc::<u8>(granules(2)).is_err());
    let beside = world.bytes(&s, granules(3));
    assert_eq!(world.stats().stray_bytes, GRANULE, "it is still there");
    world.check();
    // Once it is gone its place is a hole like any other.
    assert_eq!(world.allocator.trim(0), 3 * GRANULE);
    let before = world.bytes(&s, granules(1));
    assert!(before.device_address() < beside.device_address());
    drop((beside, before, s));
    world.end();
}

/// What would not be unmapped at first is in the way of a block, and is removed then; the handle is still a stray.
#[test]
fn what_stayed_mapped_goes_when_it_is_in_the_way_and_not_twice() {
    let world = World::timed();
    let [s] = world.streams();
    world.device.fail_nth(DeviceCall::SetAccess, 1);
    // The first request tries twice, and each of the next three once more, before it maps.
    (1..=5).for_each(|nth| world.device.fail_nth(DeviceCall::Unmap, nth));
    assert!(s.alloc::<u8>(granules(2)).is_err());
    let beside = world.bytes(&s, granules(1));
    let others = world.bytes(&s, granules(13));
    drop(beside);
    let over = world.bytes(&s, granules(2));
    assert!(over.device_address() < others.device_address(), "there is room nowhere else");
    world.fill(&s, &over, 4, 1);
    world.check();
    assert_eq!(world.stats().stray_bytes, GRANULE);
    // Tried again: what was unmapped is not unmapped once more, for a block lies there.
    assert_eq!(world.allocator.trim(0), 15 * GRANULE);
    world.expect(&s, &over, 4, 1);
    drop((over, others, s));
    world.end();
}

#[test]
fn the_end_tries_again_and_gives_no_range_back_in_which_a_handle_stays() {
    for stays in [false, true] {
        let world = World::timed();
        let [s] = world.streams();
        world.device.fail_nth(DeviceCall::SetAccess, 1);
        (1..=if stays { 3 } else { 2 }).for_each(|nth| world.device.fail_nth(DeviceCall::Unmap, nth));
        assert!(s.alloc::<u8>(granules(2)).is_err());
        drop(s);
        let World { device, allocator, .. } = world;
        drop(allocator);
        let info = device.memory_info().unwrap();
        let left = (info.total - info.free, device.counters().of(DeviceCall::Unreserve));
        assert_eq!(left, if stays { (GRANULE, 0) } else { (0, 1) });
    }
}

#[test]
fn growth_that_fails_half_way_leaves_nothing_half_done() {
    for (call, nth) in [(DeviceCall::Create, 2), (DeviceCall::Map, 2), (DeviceCall::SetAccess, 3), (DeviceCall::Map, 1)]
    {
        for also in [None, Some(DeviceCall::Unmap), Some(DeviceCall::Release)] {
            let world = World::timed();
            let [s] = world.streams();
            world.device.fail_nth(call, nth);
            if let Some(also) = also {
                world.device.fail_nth(also, 1);
            }
            // Each granule is a handle.
            let first = s.alloc::<u8>(granules(7));
            assert!(first.is_ok() == (call == DeviceCall::Create), "a failed create is a full device: tried again");
            world.check();
            let second = world.bytes(&s, granules(7));
            assert_eq!(world.stats().stray_bytes, 0, "tried again when memory is needed");
            drop((first, second, s));
            // The second failure may not have been met yet.
            world.allocator.trim(0);
            world.end();
        }
    }
}

/// What a device that is broken for good answers: errors, and no hang.
fn everything_errors(device: &SimDevice, allocator: &Allocator, s: &Stream, x: Buffer<u8>) {
    assert!(matches!(device.memory_info(), Err(DeviceError::Poisoned { .. })));
    assert!(s.record().is_err());
    assert!(s.launch("late", Cost::exact(1)).read(&x).submit().is_err());
    assert!(allocator.create_stream("late").is_err());
    assert!(s.alloc::<u8>(granules(GRANULES)).is_err());
    assert!(s.begin_capture().is_err());
    let host = allocator.pinned::<u8>(x.len());
    assert!(s.copy_to_host(&x, &host).is_err());
    let reserved = allocator.memory_stats().reserved.now;
    assert_eq!(allocator.trim(0), reserved, "nothing can be returned");
    drop(x);
    allocator.check().unwrap();
    assert_eq!(allocator.memory_stats().live.now, 0);
}

#[test]
fn a_panic_in_an_operation_breaks_the_device_and_nothing_else() {
    let World { device, allocator, .. } = World::timed();
    let (s, t) = (allocator.create_stream("s").unwrap(), allocator.create_stream("t").unwrap());
    let (x, y): (Buffer<u8>, Buffer<u8>) = (s.alloc(granules(2)).unwrap(), s.alloc(granules(1)).unwrap());
    let fence = s.record().unwrap();
    t.launch("bad", Cost::exact(10)).write(&y).body(|_| panic!("bad kernel")).submit().unwrap();
    drop(y);
    let error = t.record().unwrap().wait(std::time::Duration::from_secs(1)).unwrap_err();
    assert!(error.to_string().contains("bad kernel"), "{error}");
    assert!(fence.is_complete().is_err());
    assert_eq!(allocator.memory_stats().pending_bytes, GRANULE, "its use never completes");
    everything_errors(&device, &allocator, &s, x);
    drop((fence, s, t, allocator));
}

#[test]
fn a_fence_that_fails_is_never_complete() {
    for nth in 1..=3 {
        let World { device, allocator, .. } = World::timed();
        let (s, t) = (allocator.create_stream("s").unwrap(), allocator.create_stream("t").unwrap());
        let x: Buffer<u8> = s.alloc(granules(2)).unwrap();
        device.fail_fence(nth);
        for _ in 0..3 {
            let Ok(y) = s.alloc::<u8>(granules(1)) else { break };
            let _ = t.launch("use", Cost::exact(10)).read(&y).submit();
            drop(y);
            device.host_work(20);
        }
        everything_errors(&device, &allocator, &s, x);
        drop((s, t, allocator));
    }
}

#[test]
fn a_fence_that_fails_ends_no_use() {
    for wait in [false, true] {
        let World { device, allocator, .. } = World::timed();
        let (s, t) = (allocator.create_stream("s").unwrap(), allocator.create_stream("t").unwrap());
        let x: Buffer<u8> = s.alloc(granules(1)).unwrap();
        t.launch("use", Cost::exact(10)).read(&x).submit().unwrap();
        device.fail_fence(1);
        let fence = t.record().unwrap();
        if wait {
            assert!(fence.wait(std::time::Duration::from_secs(1)).is_err());
        } else {
            device.host_work(20);
            assert!(fence.is_complete().is_err());
        }
        drop(x);
        assert_eq!(allocator.memory_stats().pending_bytes, GRANULE);
        drop((fence, s, t, allocator));
    }
}

#[test]
fn a_broken_device_is_not_taken_for_a_full_one() {
    let World { device, allocator, .. } = World::timed();
    let (s, t) = (allocator.create_stream("s").unwrap(), allocator.create_stream("t").unwrap());
    // All memory but one granule is free in one heap, and could leave it.
    let live = t.alloc::<u8>(granules(1)).unwrap();
    drop(s.alloc::<u8>(granules(GRANULES - 1)).unwrap());
    let second = std::time::Duration::from_secs(1);
    s.record().unwrap().wait(second).unwrap();
    device.fail_fence(1);
    assert!(t.record().unwrap().wait(second).is_err());
    let error = t.alloc::<u8>(granules(1)).unwrap_err();
    assert!(matches!(error, AllocError::Device { .. }), "{error}");
    assert_eq!(allocator.memory_stats().out_of_memory, 0);
    drop((live, s, t, allocator));
}

#[test]
fn a_device_that_fails_from_the_start_makes_no_allocator() {
    let device = SimDevice::new(ticks());
    device.fail_nth(DeviceCall::MemoryInfo, 1);
    let error = Allocator::with_settings(device.clone(), Settings::default()).unwrap_err();
    assert_eq!(error.to_string(), "asking the device for its memory: injected failure of memory_info number 1");
    let allocator = Allocator::with_settings(device.clone(), Settings::default()).unwrap();
    drop(allocator);
    assert_eq!(device.memory_info().unwrap().free, MEMORY);
}

#[test]
fn an_end_whose_calls_fail_is_still_an_end() {
    for call in [DeviceCall::Record, DeviceCall::Query, DeviceCall::Synchronize, DeviceCall::Unmap, DeviceCall::Release]
    {
        let World { device, allocator, .. } = World::timed();
        let (s, t) = (allocator.create_stream("s").unwrap(), allocator.create_stream("t").unwrap());
        let x: Buffer<u8> = s.alloc(granules(2)).unwrap();
        t.launch("use", Cost::exact(10)).read(&x).submit().unwrap();
        drop((x, s, t));
        device.fail_nth(call, 1);
        drop(allocator);
        device.cluster().settle().unwrap();
    }
}

#[test]
fn touching_memory_that_was_given_back_is_found_by_the_device() {
    // The stage itself: a test that could not see an early unmap would prove nothing.
    let World { device, allocator, .. } = World::timed();
    let s = allocator.create_stream("s").unwrap();
    let raw = allocator.alloc_raw(&s, GRANULE).unwrap();
    allocator.free_raw(raw).unwrap();
    assert_eq!(allocator.trim(0), 0);
    let operand = highwater::device::Operand { range: highwater::device::ByteRange::new(raw, 8), access: Access::Read };
    let operation = highwater::device::Operation {
        name: "stale".into(),
        tag: 0,
        cost: Cost::exact(1),
        operands: vec![operand],
        body: highwater::device::Body::Nothing,
    };
    device.launch(s.id(), operation).unwrap();
    assert!(matches!(device.cluster().settle(), Err(DeviceError::IllegalAddress { .. })));
}
