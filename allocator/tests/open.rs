//! Open streams: no wait is put behind their work, nor behind what comes after it, as long as it is not complete; and no
//! host waits for it without a deadline.

use std::time::Duration;

use highwater::device::sim::{Collective, SimCluster, SimDevice};
use highwater::device::{Access, Address, ByteRange, Cost, Device, DeviceCall, Operand};
use highwater::{AllocError, Allocator, Buffer, Settings, Stream, StreamError};

use crate::world::{GRANULES, HookedDevice, World, address, granules, still, ticks};

fn within(ns: u64) -> World {
    World::with(still().host_wait_timeout(Duration::from_nanos(ns)))
}

/// A buffer of `s` whose bytes `s` has used before: that use takes 100 ns.
fn recycled(world: &World, s: &Stream) -> Buffer<u8> {
    let first = world.bytes(s, 1000);
    let at = address(&first);
    world.fill(s, &first, 1, 100);
    drop(first);
    let second = world.bytes(s, 1000);
    assert_eq!(address(&second), at);
    second
}

/// Waits on streams so far, and stalls of the host.
fn waits_and_stalls(world: &World) -> (u64, u64) {
    (world.counters().of(DeviceCall::Wait), world.stats().host_stalls)
}

#[test]
fn streams_are_closed_until_they_are_opened() {
    let world = World::timed();
    let [s, t] = world.streams();
    let known = world.allocator.default_stream();
    assert!(!s.is_open() && !t.is_open() && !known.is_open());
    s.clone().mark_open();
    assert!(s.is_open() && !t.is_open());
    // Nobody knows what a call past the allocator waits for.
    t.submit_external::<u8, ()>("call", &[], &[], |_, _| Ok(())).unwrap();
    assert!(t.is_open());
    drop((s, t));
    world.pass(1);
    let next = world.allocator.create_stream("next").unwrap();
    assert!(!next.is_open(), "it has the place of an open one, and is another one");
    drop((known, next));
    world.end();
}

#[test]
fn the_host_waits_where_a_closed_stream_would_be_waited_for() {
    for open in [false, true] {
        let world = within(1000);
        let [s, t] = world.streams();
        let buffer = recycled(&world, &s);
        if open {
            s.mark_open();
        }
        world.fill(&t, &buffer, 2, 10);
        assert_eq!(waits_and_stalls(&world), if open { (0, 1) } else { (1, 0) });
        assert_eq!((world.stats().waits_inserted, world.device_ns()), if open { (0, 100) } else { (1, 0) });
        world.expect(&t, &buffer, 2, 10);
        assert_eq!(waits_and_stalls(&world), if open { (0, 1) } else { (1, 0) }, "it is over, or proven");
        drop((buffer, s, t));
        world.end();
    }
}

#[test]
fn after_its_time_the_call_fails_and_nothing_was_submitted() {
    let world = within(30);
    let [s, t] = world.streams();
    s.mark_open();
    let buffer = recycled(&world, &s);
    let launches = world.counters().of(DeviceCall::Launch);
    let launched = t.launch("use", Cost::exact(1)).read(&buffer).submit();
    let waited = Duration::from_nanos(30);
    let doing = "ordering \"t\" after \"s\"".to_owned();
    let held_up = StreamError::HeldUp { doing, open: "s".into(), waited };
    assert_eq!(launched, Err(held_up.clone()));
    assert_eq!(buffer.on(&t).map(drop), Err(held_up.clone()));
    let external = t.submit_external::<u8, ()>("call", &[buffer.view()], &[], |_, _| unreachable!());
    assert_eq!(external, Err(held_up));
    assert_eq!((world.counters().of(DeviceCall::Launch), waits_and_stalls(&world)), (launches, (0, 3)));
    assert_eq!(world.stats().host_stall_ns, 90);
    // The next call waits for the rest of the 100 ns, and goes on.
    world.fill(&t, &buffer, 2, 10);
    assert_eq!((world.device_ns(), waits_and_stalls(&world)), (100, (0, 4)));
    drop((buffer, s, t));
    world.pass(100);
    world.end();
}

#[test]
fn the_error_says_which_stream_and_what_helps() {
    let world = within(60);
    let [s, t] = world.streams();
    s.mark_open();
    let buffer = recycled(&world, &s);
    let error = t.launch("use", Cost::exact(1)).read(&buffer).submit().unwrap_err();
    assert_eq!(
        error.to_string(),
        "ordering \"t\" after \"s\": that work comes after open stream \"s\", which may wait for another rank or the \
         host, and is not complete after 60ns. No wait is put behind it: order the streams with fences of the program \
         (Stream::record, Stream::wait), or allocate the memory on the stream that uses it first"
    );
    // Both of what it says help, at once.
    let own = world.bytes(&t, 1000);
    world.fill(&t, &own, 3, 10);
    t.wait(&s.record().unwrap()).unwrap();
    world.fill(&t, &buffer, 4, 10);
    assert_eq!(waits_and_stalls(&world), (1, 1), "the program's own wait, and the stall before");
    drop((own, buffer, s, t));
    world.pass(200);
    world.end();
}

#[test]
fn what_comes_after_an_open_stream_is_held_up_as_long_as_that_is_not_complete() {
    for hops in [1, 2] {
        let world = within(60);
        let [s, t, open, between] = world.streams();
        open.mark_open();
        world.idle(&open, 200);
        // The program's own waits are the program's.
        let fence = open.record().unwrap();
        if hops == 2 {
            between.wait(&fence).unwrap();
            s.wait(&between.record().unwrap()).unwrap();
        } else {
            s.wait(&fence).unwrap();
        }
        drop(fence);
        let waits = world.counters().of(DeviceCall::Wait);
        let buffer = recycled(&world, &s);
        let error = t.launch("use", Cost::exact(1)).read(&buffer).submit().unwrap_err();
        assert!(matches!(&error, StreamError::HeldUp { open, .. } if open == "u"), "{error}");
        assert!(error.to_string().starts_with("ordering \"t\" after \"s\": that work comes after open stream \"u\""));
        assert_eq!(world.counters().of(DeviceCall::Wait), waits);
        // The open stream's part is over; what is left depends on this device alone, and may be waited for.
        world.pass(150);
        world.fill(&t, &buffer, 2, 10);
        assert_eq!((world.counters().of(DeviceCall::Wait), world.stats().host_stalls), (waits + 1, 1));
        drop((buffer, s, t, open, between));
        world.pass(200);
        world.end();
    }
}

#[test]
fn a_fence_from_before_the_opening_is_as_it_was() {
    let world = within(60);
    let [s, t] = world.streams();
    let buffer = recycled(&world, &s);
    let fence = s.record().unwrap();
    s.mark_open();
    world.idle(&s, 1000);
    world.fill(&t, &buffer, 2, 10);
    assert_eq!(waits_and_stalls(&world), (1, 0), "the fence that covers the memory comes before whatever is open");
    drop((fence, buffer, s, t));
    world.pass(2000);
    world.end();
}

#[test]
fn a_wait_that_the_device_refuses_holds_nobody_up_longer_than_its_fence() {
    let world = within(60);
    let [s, t, open] = world.streams();
    open.mark_open();
    world.idle(&open, 50);
    let fence = open.record().unwrap();
    world.device.fail_nth(DeviceCall::Wait, 1);
    assert!(s.wait(&fence).is_err());
    let buffer = recycled(&world, &s);
    world.pass(50);
    world.fill(&t, &buffer, 2, 10);
    assert_eq!((world.stats().waits_inserted, world.stats().host_stalls), (1, 0));
    drop((fence, buffer, s, t, open));
    world.pass(200);
    world.end();
}

#[test]
fn a_fence_is_kept_no_longer_than_it_holds_anybody_up() {
    let sim = SimDevice::new(ticks());
    let device = HookedDevice::new(sim.clone());
    let allocator = Allocator::with_settings(device.clone(), Settings::default()).unwrap();
    let (s, open) = (allocator.create_stream("s").unwrap(), allocator.create_stream("open").unwrap());
    open.mark_open();
    for round in 0..3 {
        for _ in 0..10 {
            open.launch("open", Cost::exact(10)).submit().unwrap();
            s.wait(&open.record().unwrap()).unwrap();
        }
        let last = open.record().unwrap();
        drop(s.record().unwrap());
        assert_eq!(device.live_fences(), 3, "round {round}: the last of both streams, and the one that `s` waits for");
        sim.host_work(100);
        assert!(last.is_complete().unwrap());
    }
    // What `s` waits for has never been asked itself: asking what it holds up does.
    let buffer = s.alloc::<u8>(1000).unwrap();
    s.launch("fill", Cost::exact(10)).write(&buffer).submit().unwrap();
    drop(buffer);
    let again = s.alloc::<u8>(1000).unwrap();
    open.wait(&s.record().unwrap()).unwrap();
    allocator.default_stream().launch("use", Cost::exact(1)).read(&again).submit().unwrap();
    assert_eq!((allocator.memory_stats().waits_inserted, allocator.memory_stats().host_stalls), (1, 0));
    let queries = device.counters().of(DeviceCall::Query);
    drop(s.record().unwrap());
    allocator.create_stream("t").unwrap().launch("use", Cost::exact(1)).read(&again).submit().unwrap();
    assert_eq!(allocator.memory_stats().waits_inserted, 2);
    assert_eq!(device.counters().of(DeviceCall::Query), queries, "nobody is asked again who was seen complete");
}

#[test]
fn an_open_fence_that_the_host_has_waited_for_is_not_asked_again() {
    let world = World::timed();
    let [s, t, open] = world.streams();
    open.mark_open();
    world.idle(&open, 50);
    let fence = open.record().unwrap();
    s.wait(&fence).unwrap();
    let buffer = recycled(&world, &s);
    drop(s.record().unwrap());
    fence.wait(Duration::from_secs(1)).unwrap();
    let queries = world.counters().of(DeviceCall::Query);
    world.fill(&t, &buffer, 2, 10);
    assert_eq!((world.stats().waits_inserted, world.stats().host_stalls), (1, 0));
    assert_eq!(world.counters().of(DeviceCall::Query), queries);
    drop((fence, buffer, s, t, open));
    world.pass(200);
    world.end();
}

#[test]
fn memory_of_an_open_stream_that_goes_on_by_fences_of_the_program_costs_nothing() {
    let world = within(60);
    let [communication, compute] = world.streams();
    communication.mark_open();
    for round in 0..5 {
        // Recycled memory, from the second round on: its former use on the open stream is not complete.
        let gathered = world.bytes(&communication, 1000);
        world.fill(&communication, &gathered, round, 100);
        compute.wait(&communication.record().unwrap()).unwrap();
        world.expect(&compute, &gathered, round, 10);
        // What compute writes itself is compute's, and goes the other way round by a fence too.
        let result = world.bytes(&compute, 1000);
        world.fill(&compute, &result, round, 10);
        communication.wait(&compute.record().unwrap()).unwrap();
        world.expect(&communication, &result, round, 10);
    }
    assert_eq!((world.stats().waits_inserted, world.stats().host_stalls, world.device_ns()), (0, 0, 0));
    assert_eq!(world.counters().host_synchronizations, 0);
    drop((communication, compute));
    world.pass(2000);
    world.end();
}

/// A collective that the other rank never issues.
fn never_ends(cluster: &SimCluster, stream: &Stream) {
    let communicator = cluster.communicator("world", &[0, 1]);
    let nothing = ByteRange::new(Address(0), 0);
    let collective = Collective {
        communicator,
        name: "gather".into(),
        tag: 0,
        cost: Cost::exact(1),
        sends: vec![nothing; 2],
        receive: Operand { range: nothing, access: Access::Write },
        body: Box::new(|_, _| ()),
    };
    let device = cluster.device(0);
    stream.submit_external::<u8, _>("gather", &[], &[], |id, _| device.collective(id, collective)).unwrap();
}

#[test]
fn no_host_wait_is_longer_than_its_time_when_another_rank_never_comes() {
    let cluster = SimCluster::new(2, ticks());
    let device = cluster.device(0);
    let settings = still().host_wait_timeout(Duration::from_nanos(60)).build().unwrap();
    let allocator = Allocator::with_settings(device.clone(), settings).unwrap();
    let (s, open) = (allocator.create_stream("s").unwrap(), allocator.create_stream("open").unwrap());
    let [used, other] = [0, 1].map(|_| s.alloc::<u8>(granules(GRANULES / 2)).unwrap());
    let host = allocator.pinned::<u8>(1000);
    never_ends(&cluster, &open);
    open.launch("use", Cost::exact(1)).read(&used).submit().unwrap();
    open.copy_to_host(other.slice(..1000), &host).unwrap();

    let waits: [(&str, &dyn Fn()); 3] = [
        ("a request", &|| {
            let refused = s.alloc::<u8>(granules(GRANULES)).unwrap_err();
            assert!(matches!(refused, AllocError::OutOfMemory(_)), "{refused}");
        }),
        ("a fence", &|| {
            let waited = open.record().unwrap().wait(Duration::from_nanos(60));
            assert!(matches!(waited, Err(StreamError::TimedOut { .. })), "{waited:?}");
        }),
        ("a host buffer", &|| {
            let waited = host.wait(Duration::from_nanos(60));
            assert!(matches!(waited, Err(StreamError::TimedOut { .. })), "{waited:?}");
        }),
    ];
    drop(used);
    for (what, wait) in waits {
        let before = device.now_ns();
        wait();
        assert_eq!(device.now_ns() - before, 60, "{what}");
    }
    drop((other, host, s, open));
    let before = device.now_ns();
    drop(allocator);
    assert_eq!(device.now_ns() - before, 60, "the end of the allocator");
}
