//! What the viewer needs of a file that another program wrote, and what it puts up with.

use highwater_history::viewer::{ViewerError, ViewerSummary, check, check_all};

/// Values, as pickles without an end.
fn text(text: &str) -> Vec<u8> {
    [&[0x8c, u8::try_from(text.len()).expect("short")][..], text.as_bytes()].concat()
}

fn int(number: u32) -> Vec<u8> {
    [&[0x8a, 5][..], &number.to_le_bytes(), &[0]].concat()
}

fn list(items: &[Vec<u8>]) -> Vec<u8> {
    [&b"]("[..], &items.concat(), b"e"].concat()
}

fn dict(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let entries: Vec<u8> = entries.iter().flat_map(|(key, value)| [text(key), value.clone()].concat()).collect();
    [&b"}("[..], &entries, b"u"].concat()
}

fn event(action: &str, more: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let common = [("action", text(action)), ("addr", int(100)), ("size", int(10)), ("stream", int(0))];
    dict(&[&common[..], more].concat())
}

fn block(state: &str, bytes: u32) -> Vec<u8> {
    dict(&[("size", int(bytes)), ("requested_size", int(bytes)), ("state", text(state)), ("frames", list(&[]))])
}

fn segment(more: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let common = [("address", int(100)), ("total_size", int(50)), ("stream", int(0))];
    dict(&[&common[..], more].concat())
}

fn file(segments: &[Vec<u8>], events: &[Vec<u8>]) -> Vec<u8> {
    let top = dict(&[("segments", list(segments)), ("device_traces", list(&[list(events)]))]);
    [&[0x80, 4][..], &top, b"."].concat()
}

fn one_block(state: &str) -> Vec<u8> {
    segment(&[("device", int(0)), ("blocks", list(&[block(state, 10), block("inactive", 40)]))])
}

#[track_caller]
fn needs(bytes: &[u8], wanted: &str) {
    match check(bytes) {
        Err(ViewerError::Needs { key, .. }) => assert_eq!(key, wanted),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_keys_that_the_page_reads_are_needed() {
    let end = |value: Vec<u8>| [value, b".".to_vec()].concat();
    needs(&end(dict(&[("segments", list(&[]))])), "device_traces");
    needs(&end(dict(&[("device_traces", list(&[]))])), "segments");
    needs(&end(list(&[])), "");
    let told = check(&end(list(&[]))).expect_err("a list is no dictionary").to_string();
    assert_eq!(told, "the file needs to be a dictionary");
    needs(&file(&[segment(&[("device", int(0))])], &[]), "blocks");
    needs(&file(&[], &[dict(&[("action", text("alloc")), ("size", int(1))])]), "addr");
    needs(&file(&[], &[dict(&[("action", text("alloc")), ("addr", int(1))])]), "size");
    needs(&file(&[], &[dict(&[("addr", int(1))])]), "action");
    needs(&file(&[], &[event("alloc", &[("frames", list(&[dict(&[("name", text("f"))])]))])]), "filename");
    assert!(check(&file(&[], &[dict(&[("action", text("snapshot"))])])).is_ok());
    assert!(check(&file(&[], &[dict(&[("action", text("oom")), ("size", int(1))])])).is_ok());
}

#[test]
fn segments_without_a_device_are_left_out_silently() {
    let without = segment(&[("blocks", list(&[block("active_allocated", 50)]))]);
    let elsewhere = segment(&[("device", int(7)), ("blocks", list(&[]))]);
    let summary = check(&file(&[without, elsewhere], &[])).expect("opens");
    assert_eq!(summary, ViewerSummary { ignored_segments: 2, ..ViewerSummary::default() });
}

#[test]
fn categories_without_an_unknown_one_are_refused() {
    let category = |name| event("alloc", &[("category", text(name))]);
    assert_eq!(check(&file(&[one_block("active_allocated")], &[category("input")])), Err(ViewerError::Categories));
    assert!(check(&file(&[one_block("active_allocated")], &[category("unknown"), category("input")])).is_ok());
}

#[test]
fn pending_blocks_are_found_by_the_replay() {
    let requested = || event("free_requested", &[]);
    let pending = check(&file(&[one_block("active_pending_free")], &[requested()]));
    assert_eq!(pending.map(|summary| (summary.blocks, summary.live_bytes)), Ok((1, 0)), "not drawn: no allocation");
    let allocated = check(&file(&[one_block("active_allocated")], &[]));
    assert_eq!(allocated.map(|summary| (summary.blocks, summary.live_bytes)), Ok((1, 10)));
    // The docs of PyTorch call the state so, but the page does not know that name.
    let other_name = check(&file(&[one_block("active_awaiting_free")], &[requested()]));
    assert!(matches!(other_name, Err(ViewerError::State { .. })), "{other_name:?}");
}

#[test]
fn a_free_at_once_is_one_event() {
    let summary = check(&file(&[one_block("inactive")], &[event("free_requested", &[]), event("free_completed", &[])]));
    let expected = ViewerSummary { devices: 1, segments: 1, events: 1, peak_bytes: 10, ..ViewerSummary::default() };
    assert_eq!(summary, Ok(expected));
}

#[test]
fn blocks_that_leave_their_segment_are_found() {
    let freed_elsewhere = event("free_completed", &[("addr", int(5000))]);
    assert!(matches!(check(&file(&[one_block("inactive")], &[freed_elsewhere])), Err(ViewerError::State { .. })));
}

#[test]
fn blocks_of_old_files_may_lack_frames_and_requests() {
    let history = list(&[dict(&[("real_size", int(7)), ("addr", int(100))])]);
    let old = |more: &[(&str, Vec<u8>)]| {
        let common = [("size", int(50)), ("state", text("active_allocated"))];
        segment(&[("device", int(0)), ("blocks", list(&[dict(&[&common[..], more].concat())]))])
    };
    assert_eq!(check(&file(&[old(&[("history", history)])], &[])).map(|summary| summary.live_bytes), Ok(7));
    assert_eq!(check(&file(&[old(&[])], &[])).map(|summary| summary.live_bytes), Ok(50));
    needs(&file(&[old(&[("history", list(&[]))])], &[]), "history");
}

#[test]
fn one_trace_for_many_devices_is_not_multiplied() {
    // A trace of 200 events, and 200 references to it.
    let events = vec![event("snapshot", &[]); 200];
    let mut bytes = [&b"}("[..], &text("segments"), &list(&[]), &text("device_traces"), b"]("].concat();
    bytes.extend([list(&events), vec![0x94]].concat());
    for _ in 0..200 {
        bytes.extend(b"h\x00");
    }
    bytes.extend(b"eu.");
    assert_eq!(check(&bytes), Err(ViewerError::Inflated));
}

#[test]
fn all_that_is_wrong_is_found_and_the_first_of_it_is_what_the_viewer_meets() {
    let wrong = [
        event("alloc", &[("frames", text("none"))]),
        dict(&[("action", text("alloc")), ("addr", int(1))]),
        event("alloc", &[]),
    ];
    let mut bytes = file(&[segment(&[("device", int(0))]), one_block("active_allocated")], &wrong);
    bytes[1] = 5;
    let found = check_all(&bytes).expect_err("it is wrong");
    let lines: Vec<_> = found.list.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "pickle protocol 5 at byte 0; the viewer reads 2 to 4",
            "event 0 of device 0 needs frames as a list",
            "event 1 of device 0 needs size as an integer",
            "segment 0 needs blocks as a list",
        ]
    );
    assert_eq!((found.count(), check(&bytes)), (4, Err(found.list[0].clone())));
    let free = event("free_completed", &[]);
    let frees = check_all(&file(&[], &[free.clone(), free])).expect_err("there is no segment");
    assert!(matches!(frees.list[..], [ViewerError::State { .. }, ViewerError::State { .. }]), "{frees:?}");
}

#[test]
fn no_more_violations_are_kept_than_a_person_reads() {
    let wrong = vec![dict(&[("action", text("alloc"))]); 1500];
    let found = check_all(&file(&[], &wrong)).expect_err("it is wrong");
    assert_eq!((found.list.len(), found.more, found.count()), (1000, 500, 1500));
}
