//! What was read can be written, and comes back the same.

use highwater_history::{read, viewer};

use crate::{
    own,
    pickler::{Shape, Style, snapshot},
    story::{REAL, lines, read_again, real, written},
    world::{Value, World, dict, pickle, text},
};

#[test]
fn real_traces_come_back_the_same_and_open_in_the_viewer() {
    for name in REAL {
        let loaded = real(name);
        let file = written(&loaded);
        viewer::check(&file).unwrap_or_else(|error| panic!("{name}: {error}"));
        let again = read::read(&file, &read::Options::default()).expect("it is a snapshot");
        assert!(lines(&again) == lines(&loaded), "{name}");
        assert_eq!((again.protocol, again.unknown_keys.len()), (4, 0));
    }
}

#[test]
fn a_snapshot_of_this_project_comes_back_with_its_notes() {
    let snapshot = own::small().snapshot();
    let loaded = read::read(&own::written(&snapshot), &read::Options::default()).expect("it is a snapshot");
    assert!(!loaded.devices[0].notes.as_ref().expect("noted").stream_uses.is_empty());
    assert_eq!(lines(&read_again(&loaded)), lines(&loaded));
    assert_eq!(read_again(&loaded).devices[0].notes, loaded.devices[0].notes);
}

/// Every key that the reader knows, also numbers that no double holds, and events without a time.
#[test]
fn rare_keys_come_back_too() {
    let frame = |more: Vec<(&str, Value)>| {
        let entries = [("name", text("f")), ("filename", text("a.py")), ("line", Value::Int(3))];
        let entries = entries.into_iter().chain(more).map(|(key, value)| (key.to_owned(), value));
        Value::List(vec![Value::Dict(entries.collect())])
    };
    let event = |action: &str, more: Vec<(&str, Value)>| {
        let entries = [("action", text(action)), ("addr", Value::Int(1 << 63 | 512)), ("size", Value::Int(100))];
        Value::Dict(entries.into_iter().chain(more).map(|(key, value)| (key.to_owned(), value)).collect())
    };
    let events = vec![
        event("segment_alloc", vec![("stream", Value::Int(u64::MAX)), ("frames", frame(vec![]))]),
        event(
            "alloc",
            vec![
                ("stream", Value::Int(u64::MAX)),
                ("time_us", Value::Int(77)),
                ("rounded_size", Value::Int(512)),
                ("pool_id", Value::Pair(0, 3)),
                ("compile_context", text("0/1")),
                ("user_metadata", text("mine")),
                ("internal_metadata", text("theirs")),
                ("category", text("unknown")),
                ("forward_frames", Value::List(vec![text("line one"), text("line two")])),
                ("frames", frame(vec![("fx_node_op", text("call"))])),
            ],
        ),
        event("oom", vec![("device_free", Value::Int(9))]),
        event("annotate", vec![("user_metadata", text("a name"))]),
        event("invented", vec![("user_metadata", text("mine"))]),
        event("snapshot", vec![]),
    ];
    let world = World::new();
    let divisions = dict([("1", Value::Int(4)), ("512", Value::Int(8))]);
    let file = pickle(&dict([
        ("segments", world.segments()),
        ("device_traces", Value::List(vec![Value::List(Vec::new()), Value::List(events.clone())])),
        ("host_segments", Value::List(Vec::new())),
        ("host_traces", Value::List(vec![Value::List(events)])),
        ("allocator_settings", dict([("roundup_power2_divisions", divisions), ("max_split_size", Value::Minus(1))])),
    ]));
    let loaded = read::read(&file, &read::Options::default()).expect("it is a snapshot");
    assert_eq!(loaded.devices[1].trace.event(1).address, 1 << 63 | 512);
    let (before, after) = (lines(&loaded), lines(&read_again(&loaded)));
    assert_eq!(after, before);
    let has = |part: &str| before.iter().filter(|line| line.contains(part)).count();
    for part in ["0/1", "theirs", "line two", "fx_node_op", "invented", "timed: false", "\"512\", 8", "Some(9)"] {
        assert!(has(part) > 0, "{part}");
    }
}

/// Long lists are cut into batches, and what is used often is written once.
#[test]
fn long_files_of_every_writer_become_smaller_and_open() {
    let shape = Shape { events: 5000, frames: 9, stacks: 40, slots: 64, hints: false };
    for style in [Style::Cpp, Style::Python(2), Style::Python(5)] {
        let file = snapshot(style, shape);
        let loaded = read::read(&file, &read::Options::default()).expect("it is a snapshot");
        let again = written(&loaded);
        viewer::check(&again).expect("the viewer opens it");
        assert!(again.len() < file.len(), "{} of {}", again.len(), file.len());
    }
}
