//! The same snapshot in the style of each writer is read as the same.

use std::{fs, path::Path, process::Command};

use highwater_history::{
    BlockState, Stage,
    read::{EventAction, Loaded, Options, read},
    viewer,
};

use crate::pickler::{Shape, Style, snapshot};

const STYLES: [Style; 6] =
    [Style::Own, Style::Cpp, Style::Python(2), Style::Python(3), Style::Python(4), Style::Python(5)];

fn load(file: &[u8]) -> Loaded {
    read(file, &Options::default()).expect("it is well formed")
}

type Names = Vec<(String, String, u32)>;

/// The stack of each event as text.
fn stacks(loaded: &Loaded) -> Vec<Names> {
    let frame = |frame| {
        let frame = loaded.symbols.frame(frame);
        (loaded.symbols.text(frame.name).to_owned(), loaded.symbols.text(frame.filename).to_owned(), frame.line)
    };
    loaded.devices[0].trace.stacks().iter().map(|&stack| loaded.symbols.stack(stack).map(frame).collect()).collect()
}

#[test]
fn all_styles_say_the_same() {
    // 4096 slots, then two events of a free, so that a block is pending or gone in the end.
    for (events, frames) in [(1, 1), (4096 + 3 * 700 + 1, 3), (4096 + 2, 2)] {
        let shape = Shape { events, frames, stacks: 50, ..Shape::default() };
        let first = load(&snapshot(Style::Python(4), shape));
        assert_eq!(first.devices[0].trace.len() as u64, events);
        for style in STYLES {
            let loaded = load(&snapshot(style, shape));
            let protocol = match style {
                Style::Own => 4,
                Style::Cpp => 2,
                Style::Python(protocol) => protocol,
            };
            assert_eq!(loaded.protocol, protocol);
            assert_eq!(loaded.devices.len(), 2);
            assert!(loaded.devices[1].trace.is_empty());
            let (a, b) = (&loaded.devices[0], &first.devices[0]);
            assert_eq!(stacks(&loaded), stacks(&first), "{style:?}");
            let shape = |segment: &highwater_history::Segment| (segment.address, segment.blocks.clone());
            assert_eq!(
                a.segments.iter().map(shape).collect::<Vec<_>>(),
                b.segments.iter().map(shape).collect::<Vec<_>>()
            );
            assert!((a.trace.addresses(), a.trace.bytes()) == (b.trace.addresses(), b.trace.bytes()));
            assert_eq!(a.trace.times_us(), b.trace.times_us());
            assert!((0..a.trace.len()).all(|row| a.trace.action(row) == b.trace.action(row)));
            assert!(loaded.unknown_keys.is_empty());
        }
    }
}

#[test]
fn events_of_an_unusual_form_are_read_as_the_usual_ones() {
    for style in STYLES {
        let shape = Shape { events: 3000, frames: 7, stacks: 90, slots: 64, hints: false };
        let usual = load(&snapshot(style, shape));
        let unusual = load(&snapshot(style, Shape { hints: true, ..shape }));
        assert_eq!(unusual.devices[0].trace, usual.devices[0].trace, "{style:?}");
        assert_eq!(unusual.devices[0].segments, usual.devices[0].segments);
        assert_eq!(stacks(&unusual), stacks(&usual));
        assert_eq!(unusual.symbols.texts(), usual.symbols.texts());
    }
}

#[test]
fn numbers_of_the_memo_need_not_follow_each_other() {
    let file = b"\x80\x04}(\x8c\x0ddevice_traces](](\
        }(\x8c\x06actionq\x00\x8c\x05allocq\x01\x8c\x04addrq\x02K\x01\x8c\x04sizeq\x03K\x07\
        \x8c\x0fcompile_contextq\x04\x8c\x03N/Aq\x05u\
        }(h\x00h\x01h\x02K\x02h\x03K\x07h\x04\x8c\x030/1q\x09u\
        }(h\x00h\x01h\x02K\x03h\x03K\x07h\x04h\x09u\
        }(h\x00h\x01h\x02K\x04h\x03K\x07h\x04\x8c\x030/2q\x04h\x03K\x08u\
        eeu.";
    let loaded = load(file);
    let trace = &loaded.devices[0].trace;
    let regions: Vec<_> =
        (0..4).map(|row| trace.compile_context(row).map_or("", |text| loaded.symbols.text(text))).collect();
    assert_eq!(regions, ["", "0/1", "0/1", "0/2"]);
    assert_eq!((trace.addresses(), trace.bytes()), (&[1, 2, 3, 4][..], &[7, 7, 7, 8][..]));
}

#[test]
fn what_the_generator_means_is_what_is_read() {
    let events = 4096 + 3 * 10 + 1;
    let loaded = load(&snapshot(Style::Cpp, Shape { events, frames: 4, stacks: 7, ..Shape::default() }));
    let device = &loaded.devices[0];
    let actions: Vec<_> = (4094..4100).map(|row| device.trace.action(row)).collect();
    use EventAction::*;
    assert_eq!(actions, [Alloc, Alloc, FreeRequested, FreeCompleted, Alloc, FreeRequested]);
    assert_eq!(device.trace.event(4098).address, device.trace.event(0).address);
    assert_eq!(device.trace.event(4096).bytes, device.trace.event(0).bytes);
    assert_eq!(device.trace.event(4096).stack, device.trace.event(4097).stack);
    let segment = &device.segments[0];
    assert_eq!(segment.blocks.len(), 4096);
    let pending: Vec<_> = segment.blocks.iter().filter(|block| block.state == BlockState::PendingFree).collect();
    assert_eq!(pending.len(), 1);
    assert_eq!(pending[0].address, device.trace.event(events as usize - 1).address);
    assert_eq!(segment.requested_bytes, segment.blocks.iter().map(|block| block.requested_bytes).sum::<u64>());
    let stages: Vec<_> = loaded.annotations.iter().map(|annotation| annotation.stage).collect();
    assert_eq!(stages, [Stage::Start, Stage::End]);
}

#[test]
fn the_generated_files_are_what_they_imitate() {
    let shape = Shape { events: 4096 + 3000, frames: 5, stacks: 100, ..Shape::default() };
    for style in [Style::Own, Style::Cpp, Style::Python(2), Style::Python(4)] {
        let summary = viewer::check(&snapshot(style, shape)).expect("the viewer opens it");
        assert_eq!((summary.devices, summary.events), (1, 4096 + 2000));
    }
    if Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: there is no python3 on this machine");
        return;
    }
    let script = "import pickle, sys\nd = pickle.load(open(sys.argv[1], 'rb'))\nt = d['device_traces'][0]\n\
                  print(len(t), sum(e['size'] for e in t), sum(f['line'] for e in t for f in e['frames']))";
    for style in STYLES {
        let file = snapshot(style, shape);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("style-{}.pickle", std::process::id()));
        fs::write(&path, &file).expect("writable");
        let output = Command::new("python3").arg("-c").arg(script).arg(&path).output().expect("it starts");
        fs::remove_file(&path).expect("removable");
        let loaded = load(&file);
        let trace = &loaded.devices[0].trace;
        let lines: u64 = stacks(&loaded).iter().flatten().map(|frame| u64::from(frame.2)).sum();
        let expected = format!("{} {} {lines}", trace.len(), trace.bytes().iter().sum::<u64>());
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), expected, "{style:?}");
    }
}
