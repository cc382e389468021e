//! Files that are damaged, or made to do harm: an error that says where, and never more memory than the file's due.

use highwater_history::read::{Loaded, Options, ReadError, read};
use proptest::prelude::*;

use crate::pickler::{Shape, Style, snapshot};

const SMALL: Shape = Shape { events: 9, frames: 2, stacks: 3, slots: 2, hints: false };
const STYLES: [Style; 4] = [Style::Own, Style::Cpp, Style::Python(2), Style::Python(4)];

fn strict(file: &[u8]) -> Result<Loaded, ReadError> {
    read(file, &Options::default())
}

fn salvage(file: &[u8]) -> Result<Loaded, ReadError> {
    read(file, &Options::default().salvaging())
}

fn fails(file: &[u8]) -> ReadError {
    strict(file).expect_err("it must not be read")
}

/// A pickle of protocol 4 with these instructions.
fn pickle(parts: &[&[u8]]) -> Vec<u8> {
    [&[&b"\x80\x04"[..]], parts].concat().concat()
}

const TRACES: &[u8] = b"\x8c\x0ddevice_traces";
const EVENT: &[u8] = b"}(\x8c\x06action\x8c\x05alloc\x8c\x04addrK\x01\x8c\x04sizeK\x02u";

#[test]
fn a_file_that_ends_anywhere_is_an_error_with_the_byte_and_its_good_part_can_be_had() {
    for style in STYLES {
        let file = snapshot(style, SMALL);
        let whole = strict(&file).expect("it is well formed");
        let whole: Vec<_> = whole.devices[0].trace.events().collect();
        let mut most = 0;
        for length in 0..file.len() {
            let error = fails(&file[..length]);
            let offset = error.offset().expect("it was read up to there") as usize;
            assert!(matches!(error, ReadError::Truncated { .. }), "{style:?} {length}: {error}");
            assert!(offset <= length && length - offset < 100, "{style:?}: {offset} for {length}");
            let Ok(part) = salvage(&file[..length]) else { continue };
            assert!(part.damage.is_some());
            let events: Vec<_> = part.devices.first().into_iter().flat_map(|device| device.trace.events()).collect();
            // Numbers of stacks are those of their first use, which does not depend on what follows.
            assert_eq!(events, whole[..events.len()], "{style:?} {length}");
            assert!(events.len() >= most, "{style:?} {length}: a longer part has fewer events");
            most = events.len();
        }
        assert_eq!(most, whole.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn any_change_of_bytes_is_an_error_or_another_snapshot(
        style in 0..STYLES.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        hints in any::<bool>(),
    ) {
        let mut file = snapshot(STYLES[style], Shape { hints, ..SMALL });
        for (place, byte) in &changes {
            let place = place.index(file.len());
            file[place] = *byte;
        }
        file.truncate(cut.index(file.len() * 3).max(1));
        let (strict, salvaged) = (strict(&file), salvage(&file));
        if let Ok(strict) = strict {
            prop_assert!(strict.damage.is_none());
            prop_assert_eq!(strict.events(), salvaged.expect("the same without damage").events());
        } else if let Ok(salvaged) = salvaged {
            prop_assert!(salvaged.damage.is_some());
            prop_assert!(salvaged.events() <= file.len());
        }
    }

    #[test]
    fn any_bytes_are_an_error_or_a_snapshot(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let file = pickle(&[&bytes]);
        let _ = (strict(&file).is_ok(), salvage(&file).is_ok(), strict(&bytes).is_ok());
    }
}

#[test]
fn every_instruction_alone_is_met_with_an_error_or_says_nothing() {
    for opcode in 0..=u8::MAX {
        for stack in [&b""[..], b"K\x01", b"](", b"}(", b"}K\x01K\x02", b"](K\x01", b"}(K\x01", b"(((", b"](K\x01e"] {
            for tail in [&b""[..], b"\0", b"\0\0\0\0\0\0\0\0", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff"] {
                let file = pickle(&[stack, &[opcode], tail, b"."]);
                match strict(&file) {
                    // A list of no segments.
                    Ok(loaded) => assert!(loaded.devices.is_empty(), "{file:x?}"),
                    Err(error) => assert!(error.offset().is_some_and(|offset| offset <= file.len() as u64)),
                }
                assert!(salvage(&file).map_or(0, |loaded| loaded.devices.len()) == 0, "{file:x?}");
            }
        }
    }
}

#[test]
fn instructions_that_could_run_code_are_refused_where_they_stand() {
    let names = [
        (&b"cos\nsystem\n"[..], "GLOBAL"),
        (b"R", "REDUCE"),
        (b"b", "BUILD"),
        (b"ios\nsystem\n", "INST"),
        (b"o", "OBJ"),
        (b"P1\n", "PERSID"),
        (b"Q", "BINPERSID"),
        (b"\x81", "NEWOBJ"),
        (b"\x82\x01", "EXT"),
        (b"\x83\x01\x00", "EXT"),
        (b"\x84\x01\x00\x00\x00", "EXT"),
        (b"\x92", "NEWOBJ_EX"),
        (b"\x93", "STACK_GLOBAL"),
        (b"\x97", "NEXT_BUFFER"),
    ];
    let before = pickle(&[b"}", TRACES, b"](](", EVENT, EVENT]);
    for (code, name) in names {
        let file = [&before[..], code, b"ee s."].concat();
        match fails(&file) {
            ReadError::Code { offset, instruction } => {
                assert_eq!((offset, instruction), (before.len() as u64, name));
            }
            error => panic!("{name}: {error}"),
        }
        let part = salvage(&file).expect("two events come before it");
        assert_eq!(part.events(), 2);
        assert!(matches!(part.damage, Some(ReadError::Code { .. })));
    }
}

#[test]
fn values_inside_each_other_are_limited() {
    let deep = |open: &[u8]| pickle(&[&open.repeat(1_000_000)]);
    for open in [&b"("[..], b"](", b"}K\x00(", b"]\x94("] {
        match fails(&deep(open)) {
            ReadError::TooMany { offset, limit: 256, .. } => assert!(offset < 2000),
            error => panic!("{error}"),
        }
        assert!(salvage(&deep(open)).is_err());
    }
    // Lists that need no mark may be as deep as they like: nothing looks into them.
    let deep = pickle(&[&b"]".repeat(500_000), &b"a".repeat(499_999), b"."]);
    assert!(matches!(fails(&deep), ReadError::Needs { .. }), "{}", fails(&deep));
    let deep = pickle(&[&b"]".repeat(500_000)]);
    assert!(salvage(&deep).is_err());
}

#[test]
fn a_length_that_the_file_does_not_have_takes_no_memory() {
    let forms = [
        &b"X\xff\xff\xff\x7fabc"[..],
        b"X\xff\xff\xff\xffabc",
        b"\x8c\xffabc",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc",
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc",
        b"B\xff\xff\xff\xffabc",
        b"\x8e\xff\xff\xff\xff\xff\xff\xff\xffabc",
        b"\x96\xff\xff\xff\xff\xff\xff\xff\xffabc",
        b"\x8b\xff\xff\xff\x7fabc",
        b"\x8b\xff\xff\xff\xffabc",
        b"\x8a\xffabc",
    ];
    for form in forms {
        assert!(matches!(fails(&pickle(&[b"](", form])), ReadError::Truncated { offset: 4 }), "{form:x?}");
    }
    // A memo number says nothing of the memo's size.
    let file = pickle(&[b"]r\xff\xff\xff\xff", &b"K\x01r\xfe\xff\xff\xff".repeat(10), b"."]);
    assert!(strict(&file).is_err());
    // A frame longer than the file is but a hint.
    let file = pickle(&[b"\x95\xff\xff\xff\xff\xff\xff\xff\xff}", TRACES, b"](](", EVENT, b"ees."]);
    assert_eq!(strict(&file).expect("it is whole").events(), 1);
}

#[test]
fn what_contains_itself_is_an_error() {
    let cases: [&[&[u8]]; 6] = [
        // A list of itself, and a dictionary of itself.
        &[b"]\x94h\x00a."],
        &[b"}\x94", TRACES, b"h\x00s."],
        // A list of traces, and of segments, that lists itself.
        &[b"}", TRACES, b"]\x94h\x00as."],
        &[b"}\x8c\x08segments]\x94h\x00as."],
        // A list of frames that lists itself.
        &[b"}", TRACES, b"](](}(\x8c\x06action\x8c\x05alloc\x8c\x06frames]\x94h\x00auees."],
        // An event that is its own stack.
        &[b"}", TRACES, b"](](}\x94(\x8c\x06action\x8c\x05alloc\x8c\x06framesh\x00uees."],
    ];
    for case in cases {
        let error = fails(&pickle(case));
        assert!(error.offset().is_some(), "{error}");
        assert!(salvage(&pickle(case)).is_err());
    }
    // A segment whose blocks are the list of segments: it is still empty then.
    let list = b"]\x94(}(\x8c\x0atotal_sizeK\x01\x8c\x07addressK\x01\x8c\x06blocksh\x00ue";
    let loaded = strict(&pickle(&[b"}\x8c\x08segments", list, b"s."])).expect("nothing goes round");
    assert!(loaded.devices[0].segments.len() == 1 && loaded.devices[0].segments[0].blocks.is_empty());
}

#[test]
fn what_is_listed_again_and_again_is_refused() {
    let again = |get: &[u8]| get.repeat(1000);
    // An event, a trace, a block and a segment.
    let file = pickle(&[b"}", TRACES, b"](](", EVENT, b"\x94", &again(b"h\x00"), b"ees."]);
    assert!(matches!(fails(&file), ReadError::Inflated { .. }), "{}", fails(&file));
    let file = pickle(&[b"}", TRACES, b"](](", EVENT, b"e\x94", &again(b"h\x00"), b"es."]);
    assert!(matches!(fails(&file), ReadError::Needs { key: "device_traces", .. }), "{}", fails(&file));
    let block = b"}(\x8c\x05state\x8c\x08inactive\x8c\x04sizeK\x01u\x94";
    let segment =
        |blocks: &[u8]| [b"}(\x8c\x0atotal_sizeK\x01\x8c\x07addressK\x01\x8c\x06blocks](", blocks, b"eu"].concat();
    let blocks = [&block[..], &again(b"h\x00")].concat();
    let file = pickle(&[b"}\x8c\x08segments](", &segment(&blocks), b"es."]);
    assert!(matches!(fails(&file), ReadError::Needs { key: "blocks", .. }), "{}", fails(&file));
    let file = pickle(&[b"}\x8c\x08segments](", &segment(b""), b"\x94", &again(b"h\x00"), b"es."]);
    assert!(matches!(fails(&file), ReadError::Needs { key: "segments", .. }), "{}", fails(&file));
}

#[test]
fn marks_without_a_value_between_them_are_no_harm() {
    for start in [&b"K\x01}(("[..], b"](}((", b"}(](((K\x01", b"((}K\x01(("] {
        assert!(salvage(&pickle(&[start])).is_err());
    }
    let file = pickle(&[b"}", TRACES, b"](](", EVENT, b"}((("]);
    assert_eq!(salvage(&file).expect("one event is complete").events(), 1);
}

#[test]
fn an_event_that_is_filled_key_by_key_and_cut_is_left_out() {
    for begun in [&b"}"[..], b"}\x8c\x06action\x8c\x05allocs", b"}\x8c\x06action\x8c\x05allocs\x8c\x04addr"] {
        for between in [&b""[..], b"e(", b"e"] {
            let file = pickle(&[b"}", TRACES, b"](](", EVENT, EVENT, between, begun]);
            assert_eq!(salvage(&file).expect("two events are complete").events(), 2, "{begun:x?}");
        }
    }
}

#[test]
fn what_comes_before_a_wrong_item_is_good() {
    for (wrong, events) in [(&b"K\x05"[..], 3), (b"](K\x05e", 3), (b"", 4)] {
        let file = pickle(&[b"}", TRACES, b"](](", EVENT, EVENT, b"e(", EVENT, wrong, EVENT, b"ees."]);
        assert_eq!(strict(&file).is_err_and(|error| matches!(error, ReadError::Malformed { .. })), events == 3);
        assert_eq!(salvage(&file).expect("there are events").events(), events, "{wrong:x?}");
    }
}

#[test]
fn a_stack_cannot_grow_behind_the_back_of_an_event() {
    let frame = b"}(\x8c\x04name\x8c\x01f\x8c\x08filename\x8c\x01g\x8c\x04lineK\x01u";
    let event = b"}(\x8c\x06action\x8c\x05alloc\x8c\x04addrK\x01\x8c\x04sizeK\x02\x8c\x06framesh\x00u";
    // The list is used by an event, and then gets another frame: through the memo, and where it lies.
    let through_memo = pickle(&[b"]\x94(", frame, b"e0}", TRACES, b"](](", event, b"h\x00(", frame, b"e0ees."]);
    let in_place = pickle(&[b"]\x94(", frame, b"e", event, b"0(", frame, b"e."]);
    for file in [through_memo, in_place] {
        match fails(&file) {
            ReadError::Malformed { expected, .. } => assert!(expected.contains("a list"), "{expected}"),
            error => panic!("{error}"),
        }
    }
    // Before it is used it may grow.
    let file = pickle(&[b"]\x94(", frame, b"e(", frame, b"e0}", TRACES, b"](](", event, b"ees."]);
    let loaded = strict(&file).expect("the list is complete when it is used");
    assert_eq!(loaded.symbols.stack(loaded.devices[0].trace.event(0).stack).count(), 2);
}

#[test]
fn what_is_no_pickle_is_told_apart() {
    assert!(matches!(fails(b""), ReadError::Truncated { offset: 0 }));
    assert!(matches!(fails(b"{segments: []}"), ReadError::NotAPickle(start) if start == b"{seg"));
    for version in [0, 1, 6, 255] {
        assert!(matches!(fails(&[0x80, version, b'.']), ReadError::Protocol { offset: 0, version: v } if v == version));
    }
    assert!(matches!(fails(b"\x80\x04}."), ReadError::Needs { key: "segments", .. }));
    assert!(matches!(fails(b"\x80\x04K\x01."), ReadError::Needs { .. }));
}
