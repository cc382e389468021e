//! The default streams of CUDA: the legacy one orders everything around it, those of threads do not; and the allocator
//! believes in neither.

use std::sync::Arc;

use highwater::device::Device;
use highwater::device::sim::{DefaultStream, SimConfig, SimDevice};
use highwater::{Allocator, Settings};

use super::{GRANULE, World, config, idle};

fn world(default_stream: DefaultStream) -> World {
    World::new(SimConfig { default_stream, ..config() })
}

/// Work of one stream, of the default stream, and of another stream; nobody orders them.
fn one_between_two(world: &World) {
    let (first, second) = (world.stream("first"), world.stream("second"));
    idle(&first, "K1", 3);
    idle(&world.allocator.default_stream(), "K2", 2);
    idle(&second, "K3", 4);
}

/// ```text
/// first   : [K1 ]
/// default :      [K2]
/// second  :          [K3  ]
/// ```
#[test]
fn s2_2_the_legacy_default_stream_makes_all_streams_take_turns() {
    let world = world(DefaultStream::Legacy);
    one_between_two(&world);
    assert_eq!(world.blocked(), (0, 0), "the host is not what waits");
    world.expect(&[("first", "K1", 0, 3), ("default", "K2", 3, 5), ("second", "K3", 5, 9)]);
}

/// ```text
/// first   : [K1 ]
/// default : [K2]
/// second  : [K3  ]
/// ```
#[test]
fn s2_2_with_the_per_thread_default_stream_the_same_program_overlaps() {
    for default_stream in [DefaultStream::PerThread, DefaultStream::Plain] {
        let world = world(default_stream);
        one_between_two(&world);
        world.expect(&[("first", "K1", 0, 3), ("default", "K2", 0, 2), ("second", "K3", 0, 4)]);
    }
}

/// Two threads, one after the other, submit to what is their default stream.
fn two_threads(device: &Arc<SimDevice>) {
    for name in ["one", "other"] {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let allocator = Allocator::with_settings(device.clone(), Settings::default()).unwrap();
                idle(&allocator.default_stream(), name, 3);
            });
        });
    }
}

#[test]
fn s2_2_threads_share_the_legacy_default_stream_and_have_a_per_thread_one_each() {
    let shared = world(DefaultStream::Legacy);
    two_threads(&shared.device);
    shared.expect(&[("default", "one", 0, 3), ("default", "other", 3, 6)]);

    let own = SimDevice::new(SimConfig { default_stream: DefaultStream::PerThread, ..config() });
    two_threads(&own);
    own.cluster().settle().unwrap();
    let timeline = own.cluster().take_timeline();
    let times: Vec<_> = timeline.iter().map(|done| (done.start_ns, done.end_ns)).collect();
    assert_eq!(times, [(0, 3), (0, 3)]);
    assert_ne!(timeline[0].stream, timeline[1].stream);
}

/// Memory that was freed on one stream, and that another one used. The legacy stream puts everything that the owner does
/// next behind that use, and says so to nobody: as long as nothing else orders the two, the memory is not given out.
#[test]
fn s2_2_the_order_of_the_legacy_stream_proves_nothing_to_the_allocator() {
    for (default_stream, use_starts) in [(DefaultStream::Legacy, 16), (DefaultStream::Plain, 0)] {
        let world = world(default_stream);
        let (owner, user) = (world.stream("owner"), world.stream("user"));
        let whole = 16 * GRANULE;
        let x = owner.alloc::<u8>(whole / 2).unwrap();
        user.launch("use", highwater::device::Cost::exact(10)).read(&x).submit().unwrap();
        drop(x);
        idle(&world.allocator.default_stream(), "between", 6);
        let other = owner.alloc::<u8>(whole / 2).unwrap();
        let stats = world.allocator.memory_stats();
        assert_eq!((stats.pending_bytes, stats.reserved.now), (whole as u64 / 2, whole as u64), "{default_stream:?}");
        assert_eq!((stats.host_stalls, world.now()), (0, 0));
        // The order was there all the same, by luck.
        idle(&owner, "next", 1);
        world.device.cluster().settle().unwrap();
        let timeline = world.device.cluster().take_timeline();
        let next = timeline.iter().find(|done| &*done.name == "next").unwrap();
        assert_eq!(next.start_ns, use_starts);
        drop(other);
    }
}

/// What another stream is given to touch after its former owner is ordered by a wait of the allocator, though the legacy
/// stream stands between the two.
#[test]
fn s2_2_the_allocator_inserts_its_waits_whatever_the_legacy_stream_orders() {
    let world = world(DefaultStream::Legacy);
    let (owner, user) = (world.stream("owner"), world.stream("user"));
    let before = owner.alloc::<u8>(64).unwrap();
    super::fill(&owner, "before", &before, 1, 10);
    drop(before);
    let x = owner.alloc::<u8>(64).unwrap();
    idle(&world.allocator.default_stream(), "between", 6);
    super::fill(&user, "after", &x, 2, 1);
    assert_eq!(world.allocator.memory_stats().waits_inserted, 1);
    world.device.cluster().settle().unwrap();
    let timeline = world.device.cluster().take_timeline();
    let waited: Vec<_> = timeline.iter().map(|done| (&*done.name, done.start_ns, done.waited.len())).collect();
    assert_eq!(waited, [("before", 0, 0), ("between", 10, 0), ("after", 16, 1)]);
    world.expect_no_races();
}

/// A wait that the program makes is proof, on any kind of stream.
#[test]
fn s2_2_a_wait_that_was_made_is_proof() {
    let world = world(DefaultStream::Legacy);
    let (owner, user) = (world.stream("owner"), world.stream("user"));
    let whole = 16 * GRANULE;
    let x = owner.alloc::<u8>(whole).unwrap();
    user.launch("use", highwater::device::Cost::exact(10)).read(&x).submit().unwrap();
    drop(x);
    owner.wait_stream(&user).unwrap();
    let again = owner.alloc::<u8>(whole).unwrap();
    super::fill(&owner, "reuse", &again, 2, 1);
    assert_eq!((world.now(), world.allocator.memory_stats().host_stalls), (0, 0));
    world.expect(&[("user", "use", 0, 10), ("owner", "reuse", 10, 11)]);
    assert!(world.device.memory_info().is_ok());
}
