//! The steps of PyTorch's viewer in its own language: a loader in JavaScript, under Node, opens what is written, and
//! finds the sums that the checker in Rust finds. It fetches nothing.

use std::path::Path;
use std::process::{Command, Output};

use highwater_history::{Snapshot, viewer};

use crate::world::{Step, World, small};

/// What Node says about a file; `None` where there is no Node.
fn node(name: &str, file: &[u8]) -> Option<Output> {
    if Command::new("node").arg("--version").output().is_err() {
        println!("skipped: there is no node on this machine");
        return None;
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("node-{name}-{}.pickle", std::process::id()));
    std::fs::write(&path, file).expect("writable");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/snapshot/viewer.js");
    let output = Command::new("node").arg(script).arg(&path).output().expect("it starts");
    std::fs::remove_file(&path).expect("removable");
    Some(output)
}

/// Whether both find the same.
fn opens(name: &str, snapshot: &Snapshot) {
    let mut file = Vec::new();
    snapshot.write_to(&mut file).expect("written");
    let Some(output) = node(name, &file) else { return };
    let viewer::ViewerSummary { devices, segments, ignored_segments, blocks, events, live_bytes, peak_bytes } =
        viewer::check(&file).expect("the checker opens it");
    let expected = format!(
        "{{\"devices\":{devices},\"segments\":{segments},\"ignored_segments\":{ignored_segments},\"blocks\":{blocks},\
         \"events\":{events},\"live_bytes\":{live_bytes},\"peak_bytes\":{peak_bytes}}}"
    );
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), expected, "{errors}");
}

#[test]
fn node_opens_small_and_long_snapshots() {
    let mut world: World = small();
    opens("small", &world.snapshot());
    for round in 0..1500 {
        world.step(Step::Map { stream: round % 3, page: round % 8 });
        world.step(Step::Alloc { stream: round % 3, slot: 1 + round % 60, bytes: 1 + round * 100 });
        world.step(Step::Free { which: round as usize * 7, at_once: round % 3 != 0 });
        world.step(Step::Complete { which: 0 });
        world.step(Step::Unmap { stream: (round + 1) % 3, page: round % 8 });
    }
    let snapshot = world.snapshot();
    assert!(snapshot.devices[0].trace.len() > 2000);
    opens("long", &snapshot);
}

/// What the viewer cannot open, the script cannot either: it is no more tolerant.
#[test]
fn node_stops_where_the_viewer_does() {
    let mut file = Vec::new();
    small().snapshot().write_to(&mut file).expect("written");
    let stops = |name: &str, file: &[u8], with: &str| {
        let Some(output) = node(name, file) else { return };
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains(with), "{name}: {errors}");
    };
    let newer = [&[0x80, 5], &file[2..]].concat();
    stops("newer", &newer, "protocol 5");
    stops("cut", &file[..file.len() - 1], "the file ends");
    stops(
        "large",
        b"\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces]K\x01\x8a\x08\x01\0\0\0\0\0\0\x01u.",
        "not exact",
    );
    let items = b"K\x01".repeat(130_000);
    let long = [&b"\x80\x02}(X\x08\0\0\0segments]("[..], &items, b"eu."].concat();
    stops("long", &long, "RangeError");
    let nothing_waits = b"\x80\x04}(\x8c\x08segments]\x8c\x0ddevice_traces]]}(\x8c\x06action\x8c\x0efree_requested\
        \x8c\x04addrK\x01\x8c\x04sizeK\x01uaau.";
    stops("pending", nothing_waits, "nothing waits at 1");
}
