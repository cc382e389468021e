//! Python loads what is written, as every script of PyTorch does, and finds the types that those scripts expect.

use std::{path::Path, process::Command};

use highwater_history::{Annotation, DeviceNotes, PendingWait, Snapshot, Stage, StreamName};

use crate::world::{Step, World, small};

const SCRIPT: &str = r#"
import pickle, sys
d = pickle.load(open(sys.argv[1], "rb"))
events = int(sys.argv[2])
assert list(d) == ["segments", "device_traces", "allocator_settings", "external_annotations", "recorder"], list(d)
segment_keys = ["device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream",
                "segment_type", "segment_pool_id", "is_expandable", "frames", "blocks"]
for s in d["segments"]:
    assert list(s) == segment_keys, list(s)
    assert s["segment_pool_id"] == (0, 0) and type(s["segment_pool_id"]) is tuple
    assert s["is_expandable"] is True and s["segment_type"] == "large" and s["device"] == 0
    at = s["address"]
    for b in s["blocks"]:
        assert list(b) == ["address", "size", "requested_size", "state", "frames"]
        assert b["address"] == at
        assert b["state"] in ("active_allocated", "active_pending_free", "inactive")
        at += b["size"]
    assert at == s["address"] + s["total_size"]
    assert s["active_size"] == sum(b["size"] for b in s["blocks"] if b["state"] != "inactive")
traces = d["device_traces"]
assert type(traces) is list and len(traces) == 1 and len(traces[0]) == events, len(traces[0])
stacks = {}
last = 0
for e in traces[0]:
    assert e["action"] in ("alloc", "free_requested", "free_completed", "segment_map", "segment_unmap", "oom", "snapshot")
    assert ("addr" in e) != (e["action"] == "oom") and ("device_free" in e) == (e["action"] == "oom")
    assert ("rounded_size" in e) == (e["action"] == "alloc")
    assert type(e["size"]) is int and type(e["stream"]) is int and type(e["time_us"]) is int
    assert e["time_us"] >= last
    last = e["time_us"]
    assert type(e["pool_id"]) is tuple
    for f in e["frames"]:
        assert list(f) == ["name", "filename", "line"] and type(f["line"]) is int
    key = tuple((f["name"], f["filename"], f["line"]) for f in e["frames"])
    assert stacks.setdefault(key, e["frames"]) is e["frames"], "equal stacks are one object"
a = d["allocator_settings"]
assert a["max_split_size"] == -1 and a["garbage_collection_threshold"] == 0.5 and a["expandable_segments"] is True
assert a["PYTORCH_CUDA_ALLOC_CONF"] == "x:1"
assert d["external_annotations"] == [{"stage": "START", "name": "step", "device": 0, "time_us": 7}]
r = d["recorder"]
assert r["version"] == 1 and r["writer"].startswith("highwater ")
assert r["settings"] == [("history_bytes", "64")] and r["span_paths"] == [""]
n = r["devices"][0]
assert n["name"] == "simulated" and n["capacity_bytes"] == 141 << 30 and "other_bytes" not in n
assert n["streams"] == [{"stream": 1, "name": "é" * 200}]
assert n["pending_waits"] == [{"addr": 2, "stream": 3, "position": 4}]
for key, fields in {
    "stream_uses": ["addr", "stream", "exact"],
    "pending_frees": ["addr", "stream", "waits"],
    "rungs": ["rung", "name", "size", "stream"],
    "stalls": ["stream", "stall_ns"],
    "waits_inserted": ["stream", "for_stream"],
}.items():
    assert n[key], key
    for note in n[key]:
        assert list(note) == ["time_us", *fields, "frames"], (key, list(note))
print("fine")
"#;

/// Whether Python finds everything in place.
fn load(name: &str, snapshot: &Snapshot) {
    if Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: there is no python3 on this machine");
        return;
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.pickle", std::process::id()));
    snapshot.save(&path).expect("saved");
    let events = snapshot.devices[0].trace.len().to_string();
    let output = Command::new("python3").arg("-c").arg(SCRIPT).arg(&path).arg(events).output().expect("it starts");
    std::fs::remove_file(&path).expect("removable");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "fine", "{errors}");
}

fn furnish(snapshot: &mut Snapshot) {
    snapshot.allocator_settings.text = "x:1".into();
    snapshot.allocator_settings.garbage_collection_threshold = 0.5;
    snapshot.annotations.push(Annotation { name: "step".into(), stage: Stage::Start, device: 0, time_us: 7 });
    snapshot.settings.push(("history_bytes".into(), "64".into()));
    let notes = std::mem::take(&mut snapshot.device_mut(0).notes);
    snapshot.device_mut(0).notes = DeviceNotes {
        name: "simulated".into(),
        capacity_bytes: Some(141 << 30),
        streams: vec![StreamName { stream: 1, name: "é".repeat(200), open: false }],
        pending_waits: vec![PendingWait { address: 2, stream: 3, position: 4, fence: None, held_by: None }],
        ..notes
    };
}

#[test]
fn python_loads_a_small_snapshot() {
    let mut snapshot = small().snapshot();
    furnish(&mut snapshot);
    load("small", &snapshot);
}

#[test]
fn python_loads_long_lists() {
    let mut world: World = small();
    for round in 0..1500 {
        world.step(Step::Alloc { stream: 1, slot: 1 + round % 7, bytes: 1 + round });
        world.step(Step::Free { which: 1, at_once: round % 3 != 0 });
        world.step(Step::Complete { which: 0 });
        world.step(Step::Other { kind: 1 + (round % 3) as u8 });
    }
    let mut snapshot = world.snapshot();
    assert!(snapshot.devices[0].trace.len() > 2000 && snapshot.devices[0].notes.rungs.len() == 501);
    furnish(&mut snapshot);
    load("long", &snapshot);
}
