//! The sanitizer on a GPU: the same reports as on the simulated device, for kernels of cudarc.

use highwater::Settings;
use highwater::device::{Access, ByteRange};
use highwater::sanitizer::{OnRace, Race, RaceKind};

use crate::world::{BYTES, LEN, LONG, World};

fn world() -> World {
    World::with(Settings::builder().sanitizer(OnRace::Collect))
}

fn races(world: &World) -> Vec<Race> {
    world.allocator.sanitizer().expect("it was asked for").take_races()
}

#[test]
#[ignore = "needs a GPU"]
fn a_wait_that_is_missing_is_found_and_one_that_is_there_is_let_be() {
    let world = world();
    let s = world.allocator.default_stream();
    let (_, t) = world.adopted("t");
    let a = world.filled(&s, 7);
    let fence = s.record().unwrap();
    fence.wait(LONG).unwrap();
    t.wait(&fence).unwrap();
    world.check(&a.read_on(&t).unwrap(), 7);
    assert!(races(&world).is_empty());

    world.fill(&a.on(&s).unwrap(), 7);
    let found = races(&world);
    assert_eq!((found.len(), found[0].kind), (1, RaceKind::Unordered));
    assert_eq!((found[0].first.stream.as_deref(), found[0].second.stream.as_deref()), (Some("t"), Some("default")));
    world.settle();
}

#[test]
#[ignore = "needs a GPU"]
fn a_record_stream_that_was_forgotten_is_found() {
    let world = world();
    let s = world.allocator.default_stream();
    let (_, t) = world.adopted("t");
    let a = world.filled(&s, 7);
    let fence = s.record().unwrap();
    t.wait(&fence).unwrap();
    // As if a kernel on `t` got the address and nothing else was said.
    let range = ByteRange::new(a.device_address(), BYTES);
    world.allocator.sanitizer().unwrap().access(t.id(), "raw kernel", range, Access::Read);
    drop(a);
    let again = s.alloc::<u32>(LEN).unwrap();
    assert_eq!(again.device_address(), range.address);
    let found = races(&world);
    assert_eq!((found.len(), found[0].kind), (1, RaceKind::Reuse), "{found:?}");
    drop(again);
    world.settle();
}

#[test]
#[ignore = "needs a GPU"]
fn calls_of_cudarc_are_seen_with_what_they_do() {
    let world = world();
    let s = world.allocator.default_stream();
    let (t_cuda, t) = world.adopted("t");
    let (a, mut b) = (world.filled(&s, 7), t.alloc::<u32>(LEN).unwrap());
    t_cuda.memcpy_dtod(&a, &mut b).unwrap();
    let found = races(&world);
    assert_eq!((found.len(), &*found[0].second.operation), (1, "call of cudarc"));
    assert_eq!(found[0].second.access, Access::Read);
    t.record().unwrap().wait(LONG).unwrap();
    world.check(&b.read_on(&s).unwrap(), 7);
    assert!(races(&world).is_empty());
    t.wait(&s.record().unwrap()).unwrap();
    t_cuda.memcpy_htod(&[1u32], &mut b.slice(..1)).unwrap();
    assert!(races(&world).is_empty());
    world.context.synchronize().unwrap();
}

#[test]
#[ignore = "needs a GPU"]
fn a_guard_in_the_hands_of_cudarc_is_seen_on_the_stream_that_reads_it() {
    let world = world();
    let s = world.allocator.default_stream();
    let (t_cuda, t) = world.adopted("t");
    let (a, mut b) = (world.filled(&s, 7), t.alloc::<u32>(LEN).unwrap());
    let on = a.read_on(&s).unwrap();
    t_cuda.memcpy_dtod(&on, &mut b).unwrap();
    drop(on);
    let found = races(&world);
    assert_eq!((found.len(), &*found[0].second.operation), (1, "call of cudarc"));
    assert_eq!((found[0].second.stream.as_deref(), found[0].second.access), (Some("t"), Access::Read));
    world.context.synchronize().unwrap();
}
