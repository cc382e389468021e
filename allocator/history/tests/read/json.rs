//! Snapshots as JSON: read as the pickles that they were made of, and refused as carefully.

use std::{fs, path::Path, process::Command};

use highwater_history::read::{Loaded, Options, ReadError, is_json, read};
use proptest::prelude::*;

use crate::pickler::{Shape, Style, snapshot};

fn load(text: &str) -> Result<Loaded, ReadError> {
    read(text.as_bytes(), &Options::default())
}

/// Two devices, of which the first has two events and a segment with a block.
const SMALL: &str = r#" {"segments": [{"address": 2097152, "total_size": 2097152, "stream": 0, "device": 0,
    "segment_pool_id": [0, 3], "is_expandable": true, "frames": [],
    "blocks": [{"size": 1024, "requested_size": 1000, "state": "active_allocated",
                "frames": [{"name": "f", "filename": "a\u002epy", "line": 3}]},
               {"size": 2096128, "requested_size": 0, "state": "inactive", "frames": []}]}],
  "device_traces": [[{"action": "segment_map", "addr": 2097152, "size": 2097152, "stream": 0, "time_us": 1, "pool_id": [0, 3]},
    {"action": "alloc", "addr": 2097152, "size": 1000, "stream": 18446744073709551615, "time_us": 2, "x": {"y": [-1.5e3, null]},
     "frames": [{"name": "\ud83d\ude00 \"f\"\n", "filename": "a.py", "line": 3}]}], []]}
"#;

#[test]
fn a_small_one_is_read_with_all_its_values() {
    let loaded = load(SMALL).unwrap();
    assert_eq!((loaded.devices.len(), loaded.protocol, loaded.events()), (2, 0, 2));
    let device = &loaded.devices[0];
    assert_eq!((device.trace.pool(0), device.segments[0].pool), ((0, 3), (0, 3)));
    assert_eq!(device.trace.event(1).stream, u64::MAX);
    let frame_of = |stack| loaded.symbols.frame(loaded.symbols.stack(stack).next().unwrap());
    let frame = frame_of(device.trace.event(1).stack);
    assert_eq!((loaded.symbols.text(frame.name), frame.line), ("\u{1f600} \"f\"\n", 3));
    let blocks = &device.segments[0].blocks;
    assert_eq!(frame_of(blocks[0].stack).filename, frame.filename, "escapes or not, it is the same text");
    assert_eq!((blocks[0].address, blocks[1].address), (2_097_152, 2_098_176));
    assert_eq!(loaded.unknown_keys.values().sum::<u64>(), 1);
    assert!(load("[]").unwrap().devices.is_empty(), "the list of segments alone");
}

#[test]
fn what_python_makes_of_a_pickle_is_read_as_the_pickle() {
    if Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: there is no python3 on this machine");
        return;
    }
    let script = "import json, pickle, sys\njson.dump(pickle.load(open(sys.argv[1], 'rb')), open(sys.argv[2], 'w'))";
    let shape = Shape { events: 4096 + 3 * 700 + 1, frames: 5, stacks: 50, ..Shape::default() };
    for style in [Style::Own, Style::Cpp, Style::Python(4)] {
        let file = snapshot(style, shape);
        let path =
            |ending| Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("json-{}.{ending}", std::process::id()));
        let (pickle, json) = (path("pickle"), path("json"));
        fs::write(&pickle, &file).expect("writable");
        let made = Command::new("python3").args(["-c", script]).args([&pickle, &json]).status().expect("it starts");
        assert!(made.success());
        let text = fs::read(&json).expect("it was written");
        fs::remove_file(pickle).and_then(|()| fs::remove_file(json)).expect("removable");
        let (of_json, of_pickle) =
            (read(&text, &Options::default()).unwrap(), read(&file, &Options::default()).unwrap());
        for (a, b) in of_json.devices.iter().zip(&of_pickle.devices) {
            let lines = |loaded: &Loaded, trace: &highwater_history::read::Trace| -> Vec<u32> {
                let stacks = trace.stacks().iter().flat_map(|&stack| loaded.symbols.stack(stack));
                stacks.map(|frame| loaded.symbols.frame(frame).line).collect()
            };
            assert_eq!(lines(&of_json, &a.trace), lines(&of_pickle, &b.trace));
            assert!((a.trace.addresses(), a.trace.bytes()) == (b.trace.addresses(), b.trace.bytes()), "{style:?}");
            assert_eq!((a.segments.len(), &a.notes), (b.segments.len(), &b.notes));
        }
        assert_eq!(of_json.annotations.len(), of_pickle.annotations.len());
        assert_eq!(of_json.settings.len(), of_pickle.settings.len());
    }
}

#[test]
fn texts_that_only_begin_with_a_bracket_are_none() {
    for text in ["[rank0]: torch.OutOfMemoryError: CUDA out of memory", "{x}", "[1]", "{", "", "  ", "\u{80}"] {
        assert!(!is_json(text.as_bytes()), "{text}");
    }
    for text in ["{\"segments\": []}", " {\n \"a\"", "[ {", "{}", "[]"] {
        assert!(is_json(text.as_bytes()), "{text}");
    }
}

#[test]
fn what_is_wrong_is_told_with_its_byte() {
    let wrong = |text: &str| load(text).unwrap_err().to_string();
    assert_eq!(wrong("{\"segments\": [}"), "byte 14: expected a value");
    assert_eq!(wrong("{\"segments\": [] \"a\"}"), "byte 16: expected a comma or the end of a dictionary");
    assert_eq!(wrong("{\"segments\": [{} {}]}"), "byte 17: expected a comma or the end of a list");
    assert_eq!(wrong("{\"segments\" []}"), "byte 12: expected a colon behind the key");
    assert_eq!(wrong("{\"segments\": [], 1: 2}"), "byte 17: expected a key in quotes");
    assert_eq!(wrong("{\"segments\": []} x"), "byte 17: expected nothing behind the snapshot");
    assert_eq!(wrong("{\"segments\": -x}"), "byte 13: expected a number");
    assert_eq!(wrong("{\"segments\": nul"), "byte 13: the file ends in the middle of what begins here");
    assert_eq!(wrong("{\"a\\q\": 1}"), "byte 4: expected an escape of JSON");
    assert_eq!(wrong("{\"a\\u12x4\": 1}"), "byte 5: expected four hexadecimal digits");
    assert_eq!(wrong("{\"a\": 1}"), "byte 8: the snapshot needs segments as a list, or device_traces");
    let event = "{\"device_traces\": [[{\"action\": \"alloc\", \"size\": \"x\"}]]}";
    assert_eq!(wrong(event), "byte 52: an event needs size as a number of 0 or more");
    let deep = format!("{{\"segments\": {}", "[".repeat(1000));
    assert_eq!(wrong(&deep), "byte 269: more than 256 values inside each other");
}

/// Cut anywhere: an error that names a byte of the file, and what was complete if that is wanted.
#[test]
fn cut_files_give_what_came_before() {
    let text = SMALL.trim();
    let events = |loaded: &Loaded| -> Vec<_> {
        let events = loaded.devices.iter().flat_map(|device| device.trace.events());
        events.map(|event| (event.action, event.address, loaded.symbols.stack(event.stack).count())).collect()
    };
    let whole = events(&load(text).unwrap());
    let mut most = 0;
    for length in 2..text.len() {
        let cut = &text.as_bytes()[..length];
        if !is_json(cut) {
            continue;
        }
        let error = read(cut, &Options::default()).unwrap_err();
        assert!(error.offset().unwrap() <= length as u64, "{length}: {error}");
        match read(cut, &Options::default().salvaging()) {
            Ok(loaded) => {
                assert!(loaded.damage.is_some());
                most = most.max(loaded.events());
                assert_eq!(events(&loaded), whole[..loaded.events()], "what is not complete is left out");
                assert!(loaded.events() > 0 || !loaded.devices[0].segments.is_empty());
            }
            Err(again) => assert!(!again.to_string().is_empty()),
        }
    }
    assert_eq!(most, 2, "both events came before the end");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn any_change_of_bytes_is_an_error_or_another_snapshot(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut file = SMALL.as_bytes().to_vec();
        for (place, byte) in &changes {
            let place = place.index(file.len());
            file[place] = *byte;
        }
        file.truncate(cut.index(file.len() * 3).max(1));
        let salvaged = read(&file, &Options::default().salvaging());
        match read(&file, &Options::default()) {
            Ok(strict) => prop_assert_eq!(strict.events(), salvaged.expect("the same without damage").events()),
            Err(error) => prop_assert!(salvaged.map_or(true, |part| part.damage.is_some()), "{}", error),
        }
    }
}

#[test]
fn many_values_take_no_more_than_a_small_multiple_of_the_file() {
    // A frame, a stack and an event need nothing of their own that stays.
    let frame = "{\"name\": \"f\", \"filename\": \"a.py\", \"line\": 1}";
    let event = format!("{{\"action\": \"alloc\", \"addr\": 1, \"size\": 2, \"frames\": [{frame}, {frame}]}}");
    let text = format!("{{\"device_traces\": [[{}]]}}", vec![event; 10_000].join(","));
    let loaded = load(&text).unwrap();
    assert_eq!((loaded.events(), loaded.symbols.stacks(), loaded.symbols.frames()), (10_000, 2, 1));
}
