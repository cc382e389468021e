//! Files that viewers do not open, and files that end too early.

use std::{fs, path::Path, process::Command};

use highwater_history::{
    inspect::{At, When, repair},
    read::{self, Loaded, Options},
    viewer::{self, ViewerError},
};
use proptest::prelude::*;

use crate::{
    pickler::{Shape, Style, snapshot},
    story::{acts, lines, shape, told, written},
    world::MIB,
};

fn salvaged(file: &[u8]) -> Loaded {
    read::read(file, &Options::default().salvaging()).expect("something is good")
}

#[test]
fn protocol_five_and_long_lists_are_mended() {
    let shape = Shape { events: 125_000, frames: 2, stacks: 10, slots: 64, hints: false };
    let python = snapshot(Style::Python(5), Shape { events: 3000, ..shape });
    assert!(matches!(viewer::check(&python), Err(ViewerError::Protocol { version: 5, .. })));
    let long = snapshot(Style::Cpp, shape);
    assert!(matches!(viewer::check(&long), Err(ViewerError::TooManyAtOnce { .. })));
    for file in [python, long] {
        let before = lines(&salvaged(&file));
        let mended = repair(salvaged(&file));
        assert!(mended.damage.is_none() && mended.cut.is_none());
        let out = written(&mended.loaded);
        viewer::check(&out).expect("the viewer opens it");
        assert!(lines(&salvaged(&out)) == before, "nothing is lost");
    }
}

#[test]
fn python_loads_what_was_mended() {
    if Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: there is no python3 on this machine");
        return;
    }
    let file = snapshot(Style::Python(5), Shape { events: 9000, frames: 4, stacks: 30, slots: 64, hints: false });
    let mended = repair(salvaged(&file[..file.len() / 2]));
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mended-{}.pickle", std::process::id()));
    mended.loaded.save(&path).expect("writable");
    let script = "import pickle, sys\nd = pickle.load(open(sys.argv[1], 'rb'))\nt = d['device_traces'][0]\n\
                  print(len(t), sum(e['size'] for e in t), sum(len(s['blocks']) for s in d['segments']))";
    let output = Command::new("python3").arg("-c").arg(script).arg(&path).output().expect("it starts");
    fs::remove_file(&path).expect("removable");
    let device = &mended.loaded.devices[0];
    let blocks: usize = device.segments.iter().map(|segment| segment.blocks.len()).sum();
    let expected = format!("{} {} {blocks}", device.trace.len(), device.trace.bytes().iter().sum::<u64>());
    assert!(device.trace.len() > 1000);
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), expected);
}

/// Wherever a file ends, what is made of it opens.
#[test]
fn files_that_end_anywhere_open_when_they_are_mended() {
    let file = snapshot(Style::Python(4), Shape { events: 1500, frames: 3, stacks: 20, slots: 64, hints: false });
    let mut cuts = 0;
    for end in (50..file.len()).step_by(file.len() / 150) {
        let Ok(loaded) = read::read(&file[..end], &Options::default().salvaging()) else { continue };
        let mended = repair(loaded);
        viewer::check(&written(&mended.loaded)).unwrap_or_else(|error| panic!("cut at {end}: {error}"));
        cuts += usize::from(mended.cut.is_some());
    }
    assert!(cuts > 50, "{cuts}");
}

/// Where a file ends behind its traces, its segments are those of their end, whatever else is lost.
#[test]
fn a_trace_that_is_whole_keeps_its_segments() {
    let file = snapshot(Style::Python(4), Shape { events: 500, frames: 2, stacks: 10, slots: 64, hints: false });
    let whole = salvaged(&file);
    let cuts = (1..file.len()).rev().map(|end| salvaged(&file[..end]));
    let behind = cuts.take(20).find(|cut| cut.damage.is_some() && !cut.settings.is_empty());
    let mended = repair(behind.expect("settings follow the traces"));
    assert_eq!((mended.cut, mended.damage.is_some()), (None, true));
    assert_eq!(shape(&mended.loaded.devices[0].segments), shape(&whole.devices[0].segments));
}

/// The end of the trace, as a file says it that ends there: without what follows the traces.
fn cut_after(loaded: &Loaded, file: &[u8], rows: usize) -> Loaded {
    let ends: Vec<usize> = (0..file.len()).filter(|&at| file[at..].starts_with(b"action")).collect();
    // The next event has begun, and is not whole.
    let end = ends.get(rows).map_or_else(|| file.len() - 1, |&at| at + 3);
    let cut = salvaged(&file[..end]);
    assert_eq!(cut.devices[0].trace.len(), rows.min(loaded.devices[0].trace.len()));
    cut
}

/// A block that was there before the oldest event, and is never spoken of, stays where the file has it.
#[test]
fn what_was_there_all_the_time_is_kept_if_the_trace_began_late() {
    let mut world = crate::world::World::new();
    world.alloc(30 * MIB, "a.py:1 in weights");
    let old = world.alloc(4 * MIB, "a.py:2 in old");
    world.events.clear();
    world.free(old);
    world.alloc(2 * MIB, "a.py:3 in new");
    let rows = world.rows();
    let then = world.clone();
    let late = world.alloc(50 * MIB, "a.py:4 in later");
    world.free(late);
    let file = world.file();
    let mended = repair(cut_after(&world.loaded(), &file, rows)).loaded;
    assert_eq!(shape(&mended.devices[0].segments)[..2], shape(&then.loaded().devices[0].segments)[..2]);
    let at = At::of(&mended, 0, &When::Event(0)).expect("it is there");
    assert_eq!(at.sums().live_bytes, 34 * MIB);
    viewer::check(&written(&mended)).expect("the viewer opens it");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A trace that begins at the beginning tells its end exactly, whatever the file says of later.
    #[test]
    fn the_segments_of_a_cut_trace_are_those_where_it_ends(
        before in acts(40), after in acts(40), expandable: bool, lost in 0..15_usize,
    ) {
        let there = told(&before, expandable);
        let acts: Vec<_> = before.iter().chain(&after).copied().collect();
        let mut world = told(&acts, expandable);
        prop_assume!(there.rows() > 0 && world.rows() > there.rows());
        let mended = repair(cut_after(&world.loaded(), &world.file(), there.rows()));
        prop_assert_eq!(mended.cut, Some(0));
        prop_assert_eq!(shape(&mended.loaded.devices[0].segments), shape(&there.loaded().devices[0].segments));
        viewer::check(&written(&mended.loaded)).expect("the viewer opens it");

        // One that has lost its oldest events still opens, and what it names is there.
        let lost = lost.min(there.rows() - 1);
        world.events.drain(..lost);
        let mended = repair(cut_after(&world.loaded(), &world.file(), there.rows() - lost)).loaded;
        if let Err(error) = viewer::check(&written(&mended)) {
            return Err(TestCaseError::fail(error.to_string()));
        }
    }
}
