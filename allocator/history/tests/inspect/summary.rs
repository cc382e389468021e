//! What a file holds.

use highwater_history::{
    inspect::summary,
    read::{self, Compression},
};

use crate::{
    own,
    story::real,
    world::{MIB, World},
};

#[test]
fn a_story_is_counted() {
    let mut world = World::new();
    let a = world.alloc(5 * MIB, "a.py:1 in f");
    world.stream = 4;
    world.alloc(MIB, "a.py:2 in g");
    world.free(a);
    world.mark("step");
    let told = summary(&world.loaded(), 3);
    assert_eq!((told.protocol, told.annotations, told.writer, told.devices.len()), (2, 1, None, 1));
    let device = &told.devices[0];
    assert_eq!((device.events, device.span_us, device.capacity_bytes), (6, Some((0, 50)), None));
    let kinds: Vec<_> = device.events_by_kind.iter().map(|(kind, count)| (kind.as_str(), *count)).collect();
    assert_eq!(kinds, [("alloc", 2), ("segment_alloc", 2), ("free_requested", 1), ("free_completed", 1)]);
    assert_eq!((device.peak_bytes, device.peak_event, device.peak_reserved_bytes), (6 * MIB, 4, 22 * MIB));
    assert_eq!((device.end.live_bytes, device.end.reserved_bytes, device.end.cached_bytes), (MIB, 22 * MIB, 21 * MIB));
    let streams: Vec<_> = device
        .streams
        .iter()
        .map(|stream| (stream.stream.as_str(), stream.sums.live_bytes, stream.small_bytes, stream.allocations))
        .collect();
    assert_eq!(streams, [("stream 0", 0, 0, 1), ("stream 0x4", MIB, 2 * MIB, 1)]);
    assert_eq!((device.top_stacks.len(), device.top_stacks[0].site.as_str()), (1, "a.py:2 in g"));
}

#[test]
fn this_projects_snapshots_tell_more() {
    let mut snapshot = own::small().snapshot();
    snapshot.devices[0].notes.name = "a GPU".to_owned();
    snapshot.devices[0].notes.capacity_bytes = Some(80 << 30);
    let loaded = read::read(&own::written(&snapshot), &read::Options::default()).expect("it is a snapshot");
    let told = summary(&loaded, 1);
    assert!(told.writer.is_some_and(|writer| writer.starts_with("highwater ")));
    let device = &told.devices[0];
    assert_eq!(
        (device.name.as_deref(), device.capacity_bytes, device.dropped),
        (Some("a GPU"), Some(80 << 30), Some(0))
    );
}

#[test]
fn a_real_file_is_told_with_what_it_was_packed_in() {
    let told = summary(&real("oom_leak.pickle.xz"), 2);
    assert_eq!((told.compression, told.damage.as_deref()), (Some(Compression::Xz), None));
    let oom = told.devices[0].events_by_kind.iter().find(|(kind, _)| kind == "oom");
    assert!(oom.is_some_and(|(_, count)| *count > 0));
}
