//! Kinds of events and keys of each version of PyTorch, and of what else writes such files.

use std::collections::BTreeMap;

use highwater_history::{
    BlockState, SegmentKind, StackId,
    read::{EventAction, Loaded, Options, Part, ReadError, TextId, Trace, read},
};

use crate::pickler::{Pickler, Style};

/// A value, for the generator.
enum Json<'a> {
    Int(u64),
    Text(&'a str),
    Bool(bool),
    None,
    Float,
    Pair(u64, u64),
    List(Vec<Json<'a>>),
    Dict(Vec<(&'a str, Json<'a>)>),
}
use Json::{Bool, Dict, Float, Int, List, None as Nothing, Pair, Text};

fn put(p: &mut Pickler, value: &Json<'_>) {
    match value {
        Int(value) => p.int(*value),
        Text(text) => p.text(text),
        Bool(value) => p.bool(*value),
        Nothing => p.out.push(b'N'),
        Float => p.out.extend(b"G\x3f\xe0\0\0\0\0\0\0"),
        Pair(a, b) => p.pair(*a, *b),
        List(items) => p.list(items.len() as u64, |p, index| put(p, &items[index as usize])),
        Dict(entries) => p.dict(|p| {
            for (key, value) in entries {
                p.word(key);
                put(p, value);
            }
        }),
    }
}

/// The same as `json.dump` writes it: tuples become lists.
fn json(value: &Json<'_>) -> String {
    let joined = |items: Vec<String>| items.join(", ");
    match value {
        Int(value) => value.to_string(),
        Text(text) => format!("{text:?}"),
        Bool(value) => value.to_string(),
        Nothing => "null".to_owned(),
        Float => "0.5".to_owned(),
        Pair(a, b) => format!("[{a}, {b}]"),
        List(items) => format!("[{}]", joined(items.iter().map(json).collect())),
        Dict(entries) => {
            format!("{{{}}}", joined(entries.iter().map(|(key, value)| format!("{key:?}: {}", json(value))).collect()))
        }
    }
}

fn pickle(style: Style, value: &Json<'_>) -> Vec<u8> {
    let mut pickler = Pickler::new(style);
    put(&mut pickler, value);
    pickler.finish()
}

/// Reads a file in each style. All are read alike.
#[track_caller]
fn load(value: &Json<'_>) -> Loaded {
    let [first, second, third] = [Style::Python(4), Style::Cpp, Style::Python(2)]
        .map(|style| read(&pickle(style, value), &Options::default()).expect("it is well formed"));
    let fourth = read(json(value).as_bytes(), &Options::default()).expect("JSON says the same");
    for other in [second, third, fourth] {
        assert_eq!(other.devices.len(), first.devices.len());
        for (a, b) in first.devices.iter().zip(&other.devices) {
            assert_eq!((&a.segments, a.trace.len()), (&b.segments, b.trace.len()));
        }
        assert_eq!(other.unknown_keys.values().sum::<u64>(), first.unknown_keys.values().sum::<u64>());
    }
    first
}

fn fails(value: &Json<'_>) -> ReadError {
    read(&pickle(Style::Python(4), value), &Options::default()).expect_err("something is wrong")
}

fn file(segments: Vec<Json<'static>>, traces: Vec<Json<'static>>) -> Json<'static> {
    Dict(vec![("segments", List(segments)), ("device_traces", List(traces))])
}

/// A file of one device with these events, each with these keys and values beside its action.
fn events(events: Vec<(&'static str, Vec<(&'static str, Json<'static>)>)>) -> Json<'static> {
    let event =
        |(action, keys): (&'static str, Vec<_>)| Dict(std::iter::once(("action", Text(action))).chain(keys).collect());
    file(vec![], vec![List(events.into_iter().map(event).collect())])
}

fn at(address: u64) -> Vec<(&'static str, Json<'static>)> {
    vec![("addr", Int(address)), ("size", Int(512)), ("stream", Int(0)), ("time_us", Int(1_700_000_000_000_000))]
}

fn with(
    mut keys: Vec<(&'static str, Json<'static>)>,
    key: &'static str,
    value: Json<'static>,
) -> Vec<(&'static str, Json<'static>)> {
    keys.push((key, value));
    keys
}

fn trace(loaded: &Loaded) -> &Trace {
    &loaded.devices[0].trace
}

#[test]
fn every_kind_of_event_has_its_action() {
    let oom = vec![("device_free", Int(77)), ("size", Int(1 << 33)), ("stream", Int(0)), ("time_us", Int(9))];
    let loaded = load(&events(vec![
        ("alloc", at(1)),
        ("free_requested", at(1)),
        ("free_completed", at(1)),
        ("free", at(1)),
        ("segment_alloc", at(0)),
        ("segment_free", at(0)),
        ("segment_map", at(0)),
        ("segment_unmap", at(0)),
        ("oom", oom),
        ("snapshot", at(0)),
        ("annotate", with(at(1), "user_metadata", Text("weights"))),
        ("workspace_snapshot", at(0)),
        ("something_new", at(5)),
        ("something_else", vec![]),
        ("something_new", at(6)),
    ]));
    let trace = trace(&loaded);
    use EventAction::*;
    let known = [
        Alloc,
        FreeRequested,
        FreeCompleted,
        Free,
        SegmentAlloc,
        SegmentFree,
        SegmentMap,
        SegmentUnmap,
        OutOfMemory,
        Snapshot,
        Annotate,
        WorkspaceSnapshot,
    ];
    assert!((0..known.len()).all(|row| trace.action(row) == known[row]));
    let oom = trace.event(8);
    assert_eq!((oom.address, oom.bytes, trace.device_free_bytes(8)), (0, 1 << 33, Some(77)));
    assert_eq!(trace.user_metadata(10).map(|text| loaded.symbols.text(text)), Some("weights"));
    let others: Vec<_> = (12..15).map(|row| loaded.symbols.text(trace.action(row).text())).collect();
    assert_eq!(others, ["something_new", "something_else", "something_new"]);
    assert_eq!(trace.other_actions().count(), 2);
    assert_eq!((trace.event(12).address, trace.event(13).address), (5, 0));
}

#[test]
fn keys_that_few_events_have_are_found_at_their_rows() {
    let lines = || List(vec![Text("  File \"model.py\", line 3"), Text("    y = f(x)")]);
    let loaded = load(&events(vec![
        ("alloc", at(1)),
        ("alloc", with(at(2), "compile_context", Text("0/1"))),
        ("alloc", with(with(at(3), "user_metadata", Text("{\"layer\": 3}")), "compile_context", Text("N/A"))),
        ("alloc", with(at(4), "pool_id", Pair(3, 0))),
        ("alloc", with(at(5), "pool_id", List(vec![Int(0), Int(1 << 40)]))),
        ("alloc", with(at(6), "pool_id", Pair(0, 0))),
        ("alloc", with(at(7), "forward_frames", lines())),
        ("alloc", with(at(8), "forward_frames", List(vec![]))),
        ("alloc", with(at(9), "internal_metadata", Text("synthetic"))),
        ("alloc", with(at(10), "category", Text("parameter"))),
        ("alloc", with(at(11), "user_metadata", Nothing)),
        ("alloc", with(at(12), "frames", Nothing)),
    ]));
    let (trace, symbols) = (trace(&loaded), &loaded.symbols);
    let column = |of: fn(&Trace, usize) -> Option<TextId>| -> Vec<_> {
        let text = |row| Some((row, symbols.text(of(trace, row)?)));
        (0..trace.len()).filter_map(text).collect()
    };
    assert_eq!(column(Trace::compile_context), [(1, "0/1")]);
    assert_eq!(column(Trace::user_metadata), [(2, "{\"layer\": 3}")]);
    assert_eq!(column(Trace::internal_metadata), [(8, "synthetic")]);
    assert_eq!(column(Trace::category), [(9, "parameter")]);
    let pools: Vec<_> = (0..trace.len()).map(|row| trace.pool(row)).filter(|&pool| pool != (0, 0)).collect();
    assert_eq!((pools, trace.pool(3)), (vec![(3, 0), (0, 1 << 40)], (3, 0)));
    let forward: Vec<_> =
        (0..trace.len()).filter_map(|row| trace.forward_stack(row).map(|stack| (row, stack))).collect();
    let [(6, stack)] = forward[..] else { panic!("{forward:?}") };
    let names: Vec<_> = symbols.stack(stack).map(|frame| symbols.text(symbols.frame(frame).name)).collect();
    assert_eq!(names, ["  File \"model.py\", line 3", "    y = f(x)"]);
    assert!(trace.is_timed() && loaded.unknown_keys.is_empty());
}

#[test]
fn keys_of_later_versions_are_counted_and_left_out() {
    let deep = || List(vec![Dict(vec![("a", Int(1)), ("b", List(vec![Int(2)]))])]);
    let Dict(mut top) = events(vec![
        ("alloc", with(at(1), "later", Int(1))),
        ("alloc", with(with(at(2), "later", Text("x")), "deeper", deep())),
        ("alloc", with(at(3), "later", Float)),
        ("alloc", with(at(4), "later", Bool(true))),
    ]) else {
        panic!("a dictionary")
    };
    top.push(("trace_alloc_overflowed", Bool(false)));
    let loaded = load(&Dict(top));
    assert_eq!(trace(&loaded).addresses(), [1, 2, 3, 4]);
    let counts: BTreeMap<_, _> =
        loaded.unknown_keys.iter().map(|(&(part, key), &count)| ((part, loaded.symbols.text(key)), count)).collect();
    let expected =
        [((Part::File, "trace_alloc_overflowed"), 1), ((Part::Event, "deeper"), 1), ((Part::Event, "later"), 4)];
    assert_eq!(counts, BTreeMap::from(expected));
}

#[test]
fn devices_and_pinned_host_memory_are_kept_apart() {
    let event = |address| Dict(std::iter::once(("action", Text("alloc"))).chain(at(address)).collect());
    let segment = |device, address| {
        Dict(vec![
            ("device", Int(device)),
            ("address", Int(address)),
            ("total_size", Int(1024)),
            ("stream", Int(0)),
            ("segment_type", Text("small")),
            ("segment_pool_id", Pair(0, 2)),
            ("is_expandable", Bool(true)),
            ("blocks", List(vec![])),
        ])
    };
    let traces = vec![
        List((0..5).map(event).collect()),
        List(vec![]),
        List((5..1100).map(event).collect()),
        List((1100..1101).map(event).collect()),
    ];
    let Dict(mut top) = file(vec![segment(2, 100), segment(0, 200), segment(2, 300)], traces) else { panic!() };
    top.push(("host_segments", List(vec![segment(1, 400)])));
    top.push(("host_traces", List(vec![List(vec![]), List((7..9).map(event).collect())])));
    let loaded = load(&Dict(top));
    let rows: Vec<_> = loaded.devices.iter().map(|device| device.trace.addresses().to_vec()).collect();
    assert_eq!(rows, [(0..5).collect(), vec![], (5..1100).collect(), vec![1100]]);
    let segments: Vec<Vec<_>> =
        loaded.devices.iter().map(|device| device.segments.iter().map(|segment| segment.address).collect()).collect();
    assert_eq!(segments, [vec![200], vec![], vec![100, 300], vec![]]);
    let host = &loaded.host[1];
    assert_eq!((host.segments[0].address, host.trace.addresses()), (400, &[7, 8][..]));
    assert_eq!((host.segments[0].pool, host.segments[0].expandable), ((0, 2), true));
    assert_eq!((host.segments[0].kind, loaded.events()), (SegmentKind::Small, 1101));
}

#[test]
fn files_of_the_first_versions_are_read() {
    // 2.0: stacks in the history of blocks, blocks without addresses, no times, no settings.
    let frame = |name| Dict(vec![("name", Text(name)), ("filename", Text("a.py")), ("line", Int(3))]);
    let history = List(vec![
        Dict(vec![("addr", Int(4096)), ("real_size", Int(1000)), ("frames", List(vec![frame("newest")]))]),
        Dict(vec![("addr", Int(4096)), ("real_size", Int(900)), ("frames", List(vec![frame("oldest")]))]),
    ]);
    let segment = Dict(vec![
        ("device", Int(0)),
        ("address", Int(4096)),
        ("total_size", Int(4096)),
        ("allocated_size", Int(1024)),
        ("active_size", Int(1536)),
        ("stream", Int(0)),
        ("segment_type", Text("small")),
        (
            "blocks",
            List(vec![
                Dict(vec![("size", Int(1024)), ("state", Text("active_allocated")), ("history", history)]),
                Dict(vec![("size", Int(512)), ("state", Text("active_awaiting_free"))]),
                Dict(vec![("size", Int(2560)), ("state", Text("inactive"))]),
            ]),
        ),
    ]);
    let event = |address| {
        Dict(vec![("action", Text("alloc")), ("addr", Int(address)), ("size", Int(1000)), ("stream", Int(0))])
    };
    let whole = file(vec![segment], vec![List(vec![event(4096), event(8192)])]);
    let loaded = load(&whole);
    assert!(!trace(&loaded).is_timed() && trace(&loaded).len() == 2);
    let segment = &loaded.devices[0].segments[0];
    let blocks: Vec<_> =
        segment.blocks.iter().map(|block| (block.address, block.state, block.requested_bytes)).collect();
    use BlockState::{Allocated, Inactive, PendingFree};
    assert_eq!(blocks, [(4096, Allocated, 1000), (5120, PendingFree, 512), (5632, Inactive, 0)]);
    let newest = loaded.symbols.stack(segment.blocks[0].stack).next().expect("it has a frame");
    assert_eq!(loaded.symbols.text(loaded.symbols.frame(newest).name), "newest");
    assert_eq!((segment.pool, segment.expandable, segment.requested_bytes), ((0, 0), false, 1512));
    // The list of segments alone.
    let Dict(top) = whole else { panic!() };
    let (_, segments) = top.into_iter().next().expect("the segments come first");
    let alone = load(&segments);
    assert_eq!((alone.devices[0].segments.len(), alone.events()), (1, 0));
}

#[test]
fn frames_keep_what_a_compiler_adds() {
    let frames = vec![
        Dict(vec![
            ("name", Text("forward")),
            ("filename", Text("<eval>")),
            ("line", Int(8)),
            ("fx_node_op", Text("call_function")),
            ("fx_node_name", Text("add_3")),
            ("fx_node_info", Nothing),
        ]),
        Dict(vec![("name", Text("at::native::add")), ("filename", Text("??")), ("line", Int(0))]),
    ];
    let loaded = load(&events(vec![("alloc", with(at(1), "frames", List(frames)))]));
    let symbols = &loaded.symbols;
    let frames: Vec<_> = symbols.stack(trace(&loaded).event(0).stack).collect();
    assert_eq!(frames.len(), 2);
    let extras: Vec<_> =
        symbols.frame_extras(frames[0]).map(|(key, value)| (symbols.text(key), symbols.text(value))).collect();
    assert_eq!(extras, [("fx_node_op", "call_function"), ("fx_node_name", "add_3")]);
    assert_eq!((symbols.frame_extras(frames[1]).count(), symbols.frame(frames[1]).line), (0, 0));
}

#[test]
fn a_key_of_the_wrong_type_is_named() {
    let wrong = [
        ("addr", Text("0x10")),
        ("size", Float),
        ("stream", Text("main")),
        ("time_us", Float),
        ("frames", Int(3)),
        ("frames", List(vec![Int(1)])),
        ("compile_context", Int(0)),
        ("pool_id", Int(0)),
        ("device_free", Text("")),
        ("forward_frames", List(vec![Int(0)])),
    ];
    for (key, value) in wrong {
        let keys = at(1).into_iter().filter(|(other, _)| *other != key).collect();
        let file = events(vec![("alloc", at(0)), ("alloc", with(keys, key, value))]);
        match fails(&file) {
            ReadError::Needs { place: "an event", key: named, offset, .. } => assert!(named == key && offset > 0),
            error => panic!("{key}: {error}"),
        }
    }
    for missing in ["addr", "size"] {
        let keys = at(1).into_iter().filter(|(key, _)| *key != missing).collect();
        assert!(matches!(fails(&events(vec![("alloc", keys)])), ReadError::Needs { key, .. } if key == missing));
    }
}

#[test]
fn the_first_key_that_tells_says_what_a_dictionary_is() {
    let frame = Dict([("filename", Text("a.py")), ("action", Text("alloc"))].into_iter().chain(at(2)).collect());
    let usual = || List(vec![Dict(vec![("name", Text("f")), ("filename", Text("a.py")), ("line", Int(1))])]);
    let keys = || std::iter::once(("action", Text("alloc"))).chain(at(1));
    let event = || Dict(keys().chain([("frames", usual())]).collect());
    // All keys are known by number when the frame comes.
    let file = file(vec![], vec![List(vec![event(), event(), frame])]);
    assert!(matches!(fails(&file), ReadError::Needs { key: "device_traces", .. }), "{}", fails(&file));
}

#[test]
fn a_key_that_comes_twice_has_its_last_value() {
    let twice = |key, first, last| with(with(at(1), key, first), key, last);
    let loaded = load(&events(vec![
        ("alloc", twice("addr", Int(3), Int(4))),
        ("alloc", twice("compile_context", Text("0/1"), Text("N/A"))),
        ("alloc", twice("user_metadata", Text("a"), Text(""))),
        ("alloc", twice("pool_id", Pair(1, 0), Pair(0, 0))),
    ]));
    let trace = trace(&loaded);
    assert_eq!(trace.event(0).address, 4);
    assert!((0..4).all(|row| trace.compile_context(row).is_none() && trace.user_metadata(row).is_none()));
    assert!((0..4).all(|row| trace.pool(row) == (0, 0) && trace.event(row).stack == StackId::EMPTY));
}

#[test]
fn addresses_and_streams_have_all_64_bits() {
    // Above 2^63 Python writes nine bytes, and PyTorch eight that look like a negative number.
    let keys = |address: &[u8]| {
        let parts: [&[u8]; 5] = [
            b"\x80\x02}(X\x08\0\0\0segments]X\x0d\0\0\0device_traces](](}(X\x06\0\0\0actionX\x05\0\0\0allocX\x04\0\0\0addr",
            address,
            b"X\x06\0\0\0stream",
            address,
            b"X\x04\0\0\0sizeK\x01ueeu.",
        ];
        read(&parts.concat(), &Options::default()).expect("it is well formed")
    };
    for address in [&b"\x8a\x09\x01\0\0\0\0\0\0\xf0\0"[..], b"\x8a\x08\x01\0\0\0\0\0\0\xf0"] {
        let loaded = keys(address);
        assert_eq!(trace(&loaded).addresses(), [0xf000_0000_0000_0001]);
        assert_eq!(trace(&loaded).streams(), [0xf000_0000_0000_0001]);
    }
}
