//! `highwater snapshot` on traces of PyTorch, on snapshots of this project, and on what is neither.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use highwater::device::Cost;
use highwater::device::sim::{SimConfig, SimDevice};
use highwater::history::read;
use highwater::history::viewer;
use highwater::{Allocator, Settings};
use serde_json::Value;

use crate::scratch::Scratch;
use crate::support::{Ended, command, highwater, without_reader};

const MIB: u64 = 1 << 20;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../allocator/history/tests/data").join(name)
}

/// A folder with a real trace that ends with a failed request.
fn with_leak() -> Scratch {
    let scratch = Scratch::new();
    fs::copy(data("oom_leak.pickle.xz"), scratch.path().join("leak.pickle.xz")).unwrap();
    scratch
}

/// The pickle of that trace.
fn leak() -> Vec<u8> {
    let file = fs::read(data("oom_leak.pickle.xz")).unwrap();
    read::unpack(&file, 1 << 30).unwrap().into_owned()
}

#[track_caller]
fn words(scratch: &Scratch, line: &str) -> String {
    let ended = highwater(scratch.path(), &format!("snapshot {line}"));
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "{line}");
    ended.stdout
}

/// The objects that are printed, one a line.
#[track_caller]
fn objects(scratch: &Scratch, line: &str) -> Vec<Value> {
    let text = words(scratch, &format!("{line} --json"));
    text.lines().map(|line| serde_json::from_str(line).expect("it is JSON")).collect()
}

#[track_caller]
fn object(scratch: &Scratch, line: &str) -> Value {
    let mut objects = objects(scratch, line);
    assert_eq!(objects.len(), 1, "{line}");
    objects.remove(0)
}

/// Python with a script and a file; `None` where there is no Python.
fn python(script: &str, folder: &Path, file: &str) -> Option<String> {
    if Command::new("python3").arg("--version").output().is_err() {
        println!("skipped: there is no python3 on this machine");
        return None;
    }
    let output = Command::new("python3").args(["-c", script, file]).current_dir(folder).output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).expect("it prints text"))
}

/// A snapshot of this project, with memory that waits for another stream.
fn save_own(path: &Path) {
    let config = SimConfig { memory_bytes: 512 * MIB, bodies: false, workers: 0, ..SimConfig::default() };
    let allocator = Allocator::with_settings(SimDevice::new(config), Settings::builder().build().unwrap()).unwrap();
    let main = allocator.create_stream("main").unwrap();
    let side = allocator.create_stream("communication").unwrap();
    let kept = main.alloc::<u8>(20 * MIB as usize).unwrap();
    for _ in 0..2 {
        let gathered = main.alloc::<u8>(8 * MIB as usize).unwrap();
        side.wait(&main.record().unwrap()).unwrap();
        side.launch("reduce", Cost::exact(2_000_000)).read(&gathered).submit().unwrap();
    }
    allocator.snapshot().save(path).unwrap();
    drop(kept);
}

#[test]
fn files_are_summed_up_one_after_the_other() {
    let scratch = with_leak();
    save_own(&scratch.path().join("own.pickle"));
    let text = words(&scratch, "summary leak.pickle.xz own.pickle --top 1");
    for line in [
        "leak.pickle.xz: pickle protocol 4, xz\n",
        "\n    5297 events, from 0 us to 208.6 ms\n",
        "\n               1  oom\n",
        "\n    peak: 1.61 GiB in use before event 4519; at most 1.99 GiB reserved\n",
        "\nown.pickle: pickle protocol 4 by highwater 0.1.0\n",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    let told = objects(&scratch, "summary leak.pickle.xz own.pickle");
    assert_eq!((&told[0]["file"], &told[1]["file"]), (&"leak.pickle.xz".into(), &"own.pickle".into()));
    let device = &told[0]["devices"][0];
    assert_eq!((&device["events"], &device["events_by_kind"]["alloc"]), (&5297.into(), &1733.into()));
    let memory = &told[1]["devices"][0]["memory"];
    assert_eq!((&memory["live_bytes"], &memory["pending_bytes"]), (&(20 * MIB).into(), &(16 * MIB).into()));
    assert_eq!(told[1]["devices"][0]["capacity_bytes"], 512 * MIB);
}

#[test]
fn a_moment_is_a_tree() {
    let scratch = with_leak();
    let text = words(&scratch, "at oom leak.pickle.xz");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "leak.pickle.xz: device 0, before event 4519, 158.4 ms after the first");
    assert!(
        lines[1].starts_with("1.61 GiB live in 390 blocks, 95.25 KiB rounding, 0 B pending in 0, "),
        "{}",
        lines[1]
    );
    assert_eq!(lines[3], "    1.61 GiB     390  all");
    assert_eq!(lines[4], "    1.61 GiB     390    /home/user/projects/a/train_m.py:140 in <module>");
    assert_eq!(lines[5], "    1.55 GiB     388      /home/user/projects/a/train_m.py:124 in oom_leak");

    let told = object(&scratch, "at oom leak.pickle.xz --min-bytes 0 --depth 100");
    assert_eq!((&told["event"], &told["tree"]["bytes"]), (&4519.into(), &told["memory"]["live_bytes"]));
    assert_eq!(told["notes"], serde_json::json!([]));
    check_branch(&told["tree"]);
    let short = object(&scratch, "at peak leak.pickle.xz --depth 1 --min-bytes 10GiB");
    assert_eq!(short["tree"]["children"], serde_json::json!([]));
    assert_eq!(short["tree"]["left_out_bytes"], short["tree"]["bytes"]);
    // 20 ms are a time, 20 is an event.
    let at = |when: &str| object(&scratch, &format!("at {when} leak.pickle.xz"))["event"].as_u64().unwrap();
    assert_eq!((at("20"), at("end")), (20, 5297));
    assert!(at("1ms") < at("20ms") && at("20ms") < at("1s"), "{} {}", at("1ms"), at("20ms"));
}

/// Bytes of a branch are its own and those below it.
fn check_branch(branch: &Value) {
    let bytes = |value: &Value| value.as_u64().unwrap();
    let children = branch["children"].as_array().unwrap();
    let below: u64 = children.iter().map(|child| bytes(&child["bytes"])).sum();
    assert_eq!(bytes(&branch["bytes"]), bytes(&branch["own_bytes"]) + below + bytes(&branch["left_out_bytes"]));
    assert!(!branch["frames"].as_array().unwrap().is_empty());
    children.iter().for_each(check_branch);
}

#[test]
fn what_grows_is_named() {
    let scratch = with_leak();
    let text = words(&scratch, "growth leak.pickle.xz --capacity 80GiB");
    assert!(text.contains("Growth: 8.01 MiB an iteration over 194 iterations"), "{text}");
    let told = object(&scratch, "growth leak.pickle.xz");
    assert_eq!(told["growth"]["sites"][0]["site"], "/home/user/projects/a/train_m.py:124 in oom_leak");
    assert_eq!((&told["findings"][0]["cause"], &told["device"]), (&"F1".into(), &0.into()));
}

/// Who waits, for whom, and for how long: the position is in this project's snapshots alone.
#[test]
fn what_waits_is_named_with_what_it_waits_for() {
    let scratch = Scratch::new();
    save_own(&scratch.path().join("own.pickle"));
    let told = object(&scratch, "pending own.pickle");
    assert_eq!((&told["pending_bytes"], &told["pending_blocks"]), (&(16 * MIB).into(), &2.into()));
    let group = &told["groups"][0];
    assert!(group["waits_for"][0].as_str().unwrap().contains("communication"), "{group}");
    assert!(group["owner"].as_str().unwrap().contains("main"), "{group}");
    assert!(group["site"]["site"].as_str().unwrap().contains("snapshot.rs"), "{group}");
    let event = &group["events"][0];
    assert!(event["last_position"].as_u64() > Some(0) && event["first_position"].is_u64(), "{event}");
    assert!(group["oldest_us"].is_u64());
    let text = words(&scratch, "pending own.pickle");
    assert!(text.contains("16.00 MiB in 2 blocks were freed and wait\n"), "{text}");
    assert!(text.contains(" until stream ") && text.contains("(communication) has passed position"), "{text}");
    let early = words(&scratch, "pending own.pickle --at 0");
    assert!(early.contains("\nNothing waits.\n"), "{early}");
}

#[test]
fn what_keeps_memory_in_pieces_is_named() {
    let scratch = with_leak();
    let allocator =
        Allocator::new(SimDevice::new(SimConfig { bodies: false, workers: 0, ..SimConfig::default() })).unwrap();
    let stream = allocator.create_stream("main").unwrap();
    let (page, small) = (stream.alloc::<u8>(1000).unwrap(), stream.alloc::<u8>(12 * MIB as usize).unwrap());
    allocator.snapshot().save(scratch.path().join("own.pickle")).unwrap();
    drop((page, small));
    let told = object(&scratch, "frag own.pickle");
    let pins = told["pins"].as_array().unwrap();
    let number = |key: &str| pins[0][key].as_u64().unwrap();
    assert_eq!((pins.len(), number("freed_bytes")), (1, 2 * MIB));
    assert_eq!((number("kept_bytes"), number("bytes")), (2 * MIB - 1024, 1024));
    let text = words(&scratch, "frag own.pickle");
    assert!(text.contains("    2.00 MiB come free, 2.00 MiB of it unused; a block of 1.00 KiB at 0x"), "{text}");

    let told = object(&scratch, "frag leak.pickle.xz --top 3");
    let sum = |key: &str| told["domains"].as_array().unwrap().iter().map(|one| one[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum("reserved_bytes"), told["memory"]["reserved_bytes"].as_u64().unwrap());
    assert_eq!(sum("free_bytes"), told["memory"]["cached_bytes"].as_u64().unwrap());
    let by = &told["pinned_by"][0];
    assert!(by["site"]["site"].as_str().unwrap().ends_with("in oom_leak"), "{by}");
    assert_eq!((&told["event"], by["freed_bytes"].as_u64() > by["kept_bytes"].as_u64()), (&4519.into(), true));
    let text = words(&scratch, "frag leak.pickle.xz --top 1");
    for part in
        ["\nThe largest free runs\n", "\nNo block keeps ", "\nThe same by stack: ", " come free, 384.00 MiB of it "]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn two_snapshots_are_compared_by_stack() {
    let scratch = with_leak();
    words(&scratch, "slice leak.pickle.xz --to 1000 -o early.pickle");
    let told = object(&scratch, "diff early.pickle leak.pickle.xz --at peak");
    let first = &told["changes"][0];
    assert_eq!(
        (&first["change"], first["blocks_after"].as_u64() > first["blocks_before"].as_u64()),
        (&"grown".into(), true)
    );
    assert!(first["site"]["site"].as_str().unwrap().ends_with("in oom_leak"));
    let text = words(&scratch, "diff leak.pickle.xz early.pickle --at end --top 1");
    assert!(text.contains("\n     +344.00 MiB  added   0 B in 0 -> 344.00 MiB in 87  "), "{text}");
    assert!(text.contains("\n    and 2 more; --top shows them\n"), "{text}");
    let same = words(&scratch, "diff leak.pickle.xz leak.pickle.xz --at oom");
    assert!(same.contains("\n+0 B live; 0 stacks differ, "), "{same}");
}

#[test]
fn a_part_opens_and_has_the_memory_of_its_time() {
    let scratch = with_leak();
    let told = object(&scratch, "slice leak.pickle.xz --from 1000 --to oom -o part.pickle");
    assert_eq!((&told["events"], &told["notes"]), (&3519.into(), &serde_json::json!([])));
    viewer::check(&fs::read(scratch.path().join("part.pickle")).unwrap()).expect("the viewer opens it");
    let memory = |line: &str| object(&scratch, line)["memory"].clone();
    assert_eq!(memory("at end part.pickle"), memory("at oom leak.pickle.xz"));
    assert_eq!(memory("at 0 part.pickle"), memory("at 1000 leak.pickle.xz"));
    assert_eq!(memory("at 500 part.pickle"), memory("at 1500 leak.pickle.xz"));
    // Over another one.
    words(&scratch, "slice leak.pickle.xz --from 1010 --to oom -o part.pickle");
    assert_eq!(object(&scratch, "summary part.pickle")["devices"][0]["events"], 3509);
}

#[test]
fn what_does_not_open_is_told_and_mended() {
    let scratch = Scratch::new();
    let mut five = leak();
    five[1] = 5;
    fs::write(scratch.path().join("five.pickle"), &five).unwrap();
    fs::write(scratch.path().join("cut.pickle"), &five[..five.len() / 2]).unwrap();
    let ended = highwater(scratch.path(), "snapshot check five.pickle");
    let line = "five.pickle: pickle protocol 5 at byte 0; the viewer reads 2 to 4\n";
    assert_eq!((ended.code, &*ended.stdout), (Some(1), line));
    let advice = "the viewer of PyTorch does not open 1 of 1 snapshots, see the lines above; highwater snapshot repair mends most";
    assert_eq!(ended.stderr, format!("highwater: {advice}\n"));
    let ended = highwater(scratch.path(), "snapshot check cut.pickle --json");
    let told: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((ended.code, &told["opens"], told["violations"].as_array().unwrap().len()), (Some(1), &false.into(), 2));

    for (name, cut) in [("five", Value::Null), ("cut", 0.into())] {
        let told = object(&scratch, &format!("repair {name}.pickle -o mended.pickle"));
        assert_eq!((&told["cut_device"], told["damage"].is_null()), (&cut, cut.is_null()), "{name}");
        let text = words(&scratch, "check mended.pickle");
        assert!(text.starts_with("mended.pickle: opens; of 1 device it shows "), "{text}");
        let events = told["events"].as_u64().unwrap();
        assert!(if cut.is_null() { events == 5297 } else { (1000..5297).contains(&events) }, "{events}");
        let script = "import pickle, sys\nprint(len(pickle.load(open(sys.argv[1], 'rb'))['device_traces'][0]))";
        if let Some(found) = python(script, scratch.path(), "mended.pickle") {
            assert_eq!(found.trim(), events.to_string());
        }
    }
    let text = words(&scratch, "repair cut.pickle -o mended.pickle");
    assert!(
        text.contains("note: what comes after this is lost: byte ") && text.contains("device 0 are those where"),
        "{text}"
    );
}

#[test]
fn a_compressed_file_opens_once_it_is_unpacked() {
    let scratch = with_leak();
    let text = words(&scratch, "check leak.pickle.xz");
    assert!(
        text.starts_with("leak.pickle.xz: opens; of 1 device it shows 3566 events and 100 segments\n")
            && text.contains("has to be unpacked first"),
        "{text}"
    );
}

#[test]
fn perfetto_gets_counters_and_slices_that_end() {
    let scratch = with_leak();
    words(&scratch, "export perfetto leak.pickle.xz -o out.json");
    let trace: Value = serde_json::from_slice(&fs::read(scratch.path().join("out.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |phase: &'static str| events.iter().filter(move |event| event["ph"] == phase);
    let live = of("C").filter(|event| event["name"] == "live").map(|event| event["args"]["bytes"].as_u64().unwrap());
    let peak = object(&scratch, "summary leak.pickle.xz")["devices"][0]["peak_bytes"].as_u64();
    assert_eq!(live.max(), peak);
    assert!(of("C").any(|event| event["name"] == "reserved") && of("i").any(|event| event["name"] == "oom"));
    let begun: Vec<_> = of("b").map(|event| (event["id"].as_u64(), event["ts"].as_u64())).collect();
    let ended: Vec<_> = of("e").map(|event| (event["id"].as_u64(), event["ts"].as_u64())).collect();
    assert!(begun.len() >= 1733 && begun.len() == ended.len());
    assert!(begun.iter().zip(&ended).all(|(begin, end)| begin.0 == end.0 && begin.1 <= end.1));
    words(&scratch, "export perfetto leak.pickle.xz -o few.json --min-bytes 1GiB");
    let few: Value = serde_json::from_slice(&fs::read(scratch.path().join("few.json")).unwrap()).unwrap();
    assert!(few["traceEvents"].as_array().unwrap().iter().all(|event| event["ph"] != "b"));
}

#[test]
fn python_reads_the_database() {
    let scratch = with_leak();
    save_own(&scratch.path().join("own.pickle"));
    for file in ["leak.pickle.xz", "own.pickle"] {
        words(&scratch, &format!("export sqlite {file} -o out.db"));
        let script = "\
import json, sqlite3, sys
db = sqlite3.connect(sys.argv[1])
one = lambda query: db.execute(query).fetchone()[0]
assert db.execute('pragma integrity_check').fetchall() == [('ok',)]
kinds = dict(db.execute('select action, count(*) from events group by action'))
assert one('select count(*) from blocks b join segments s using (segment) where b.address < s.address') == 0
assert one('select count(*) from events e left join stacks s using (stack) where e.stack is not null and s.site is null') == 0
assert one('select count(*) from stack_frames f left join frames using (frame) where name is null') == 0
print(json.dumps({'kinds': kinds, 'live': one('select live_bytes from events order by event desc limit 1'),
    'peak': one('select bytes from peaks'), 'waits': one('select count(*) from pending_waits'),
    'blocks': one(\"select sum(requested_bytes) from blocks where state = 'allocated'\"),
    'site': one('select site from live_at_the_end')}))";
        let Some(found) = python(script, scratch.path(), "out.db") else { return };
        let found: Value = serde_json::from_str(&found).unwrap();
        let summary = &object(&scratch, &format!("summary {file}"))["devices"][0];
        assert_eq!(found["kinds"], summary["events_by_kind"]);
        assert_eq!(
            (&found["live"], &found["blocks"]),
            (&summary["memory"]["live_bytes"], &summary["memory"]["live_bytes"])
        );
        assert_eq!(found["peak"], summary["peak_bytes"]);
        assert_eq!(found["waits"], if file == "own.pickle" { 2 } else { 0 });
        assert_eq!(found["site"], summary["top_stacks"][0]["site"]);
    }
}

#[test]
fn json_has_all_of_it() {
    let scratch = Scratch::new();
    save_own(&scratch.path().join("own.pickle"));
    words(&scratch, "export json own.pickle -o out.json");
    let told: Value = serde_json::from_slice(&fs::read(scratch.path().join("out.json")).unwrap()).unwrap();
    let device = &told["devices"][0];
    let summary = &object(&scratch, "summary own.pickle")["devices"][0];
    assert_eq!(summary["events"], device["events"].as_array().unwrap().len());
    let uses = &device["recorded"]["stream_uses"];
    assert_eq!((uses.as_array().unwrap().len(), device["recorded"]["pending_waits"].as_array().unwrap().len()), (2, 2));
    let stacks = told["stacks"].as_array().unwrap();
    let known = |stack: &Value| stacks.iter().any(|known| known["stack"] == *stack);
    assert!(device["events"].as_array().unwrap().iter().all(|event| known(&event["stack"])));
    let blocks =
        device["segments"].as_array().unwrap().iter().flat_map(|segment| segment["blocks"].as_array().unwrap());
    let pending: u64 =
        blocks.filter(|block| block["state"] == "pending").map(|block| block["bytes"].as_u64().unwrap()).sum();
    assert_eq!(pending, 16 * MIB);
    assert!(told["recorder"]["writer"].as_str().unwrap().starts_with("highwater "));
}

#[test]
fn folded_stacks_add_up_to_what_is_live() {
    let scratch = with_leak();
    let text = words(&scratch, "export folded leak.pickle.xz --at oom -o -");
    let bytes: u64 = text.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum();
    assert_eq!(object(&scratch, "at oom leak.pickle.xz")["memory"]["live_bytes"], bytes);
    assert!(text.lines().all(|line| line.starts_with("/home/user/projects/a/train_m.py:140 in <module>;")));
    assert_eq!(words(&scratch, "export folded leak.pickle.xz -o out.folded"), "out.folded (0.0 MB)\n");
    assert!(fs::read_to_string(scratch.path().join("out.folded")).unwrap().contains("oom_leak"));
}

#[cfg(not(feature = "parquet"))]
#[test]
fn parquet_has_to_be_built_in() {
    let scratch = with_leak();
    let ended = highwater(scratch.path(), "snapshot export parquet leak.pickle.xz -o out.parquet");
    let line = "this build cannot write Parquet, export parquet; build with --features parquet, or export sqlite";
    assert_eq!((ended.code, ended.stderr), (Some(2), format!("highwater: {line}\n")));
}

#[test]
fn snapshots_come_from_stdin_too() {
    let scratch = Scratch::new();
    let mut child = command(scratch.path(), "snapshot at peak - --json")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    child.stdin.take().expect("it is a pipe").write_all(&leak()).expect("it reads");
    let ended: Ended = child.wait_with_output().expect("it ends").into();
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""));
    let told: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((&told["file"], &told["event"]), (&"stdin".into(), &4519.into()));
}

#[test]
fn damaged_files_are_told_as_far_as_they_go() {
    let scratch = Scratch::new();
    let file = leak();
    fs::write(scratch.path().join("cut.pickle"), &file[..file.len() / 2]).unwrap();
    let told = object(&scratch, "summary cut.pickle");
    assert!(told["damage"].as_str().unwrap().starts_with("byte "), "{told}");
    let text = words(&scratch, "at end cut.pickle");
    assert!(text.contains("\nnote: the file is damaged, and was read as far as it goes: "), "{text}");
}

#[test]
fn results_that_nobody_reads_are_no_error() {
    let scratch = with_leak();
    for words in ["summary leak.pickle.xz", "at peak leak.pickle.xz --json", "export json leak.pickle.xz -o -"] {
        let ended = without_reader(scratch.path(), &format!("snapshot {words}"));
        assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "{words}");
    }
}

#[test]
fn bad_input_is_refused_in_one_line() {
    let scratch = with_leak();
    scratch.write("notes.txt", "all is well");
    scratch.write("empty", "");
    fs::write(scratch.path().join("nothing.pickle"), b"\x80\x04}(X\x08\0\0\0segments]X\x0d\0\0\0device_traces]u.")
        .unwrap();
    words(&scratch, "slice leak.pickle.xz --to 1000 -o calm.pickle");
    let before = fs::read(scratch.path().join("calm.pickle")).unwrap();
    let over = "this would take the place of the snapshot, --out PLACE; give another file";
    let moment = "give peak, end, the index of an event, a time like 1.5s, or mark:NAME";
    let no_pickle = "this is no pickle: it begins with \"all \"; a snapshot is a pickle of protocol 2 to 5 or JSON, \
                     plain or compressed, notes.txt; give a memory snapshot of PyTorch or of this project";
    let no_memory = "the snapshot has neither events nor memory: was recording on?, nothing.pickle; give a memory snapshot of \
                     PyTorch or of this project";
    for (line, refused) in [
        (
            "summary missing",
            "No such file or directory (os error 2), reading missing; give files that can be read".to_owned(),
        ),
        ("summary notes.txt", no_pickle.to_owned()),
        ("check notes.txt", no_pickle.to_owned()),
        ("at end nothing.pickle", no_memory.to_owned()),
        ("export json nothing.pickle -o x", no_memory.to_owned()),
        ("growth nothing.pickle", no_memory.to_owned()),
        ("at oom calm.pickle", format!("no request failed on device 0, calm.pickle; {moment}")),
        (
            "at 9999 leak.pickle.xz",
            format!("device 0 has 5297 events, and none with the index 9999, leak.pickle.xz; {moment}"),
        ),
        (
            "pending leak.pickle.xz --at mark:x",
            format!("no scope is called \"x\" on device 0, leak.pickle.xz; {moment}"),
        ),
        (
            "at end leak.pickle.xz --device 3",
            "device 3 has neither events nor memory, --device with leak.pickle.xz; leave --device out".to_owned(),
        ),
        (
            "growth leak.pickle.xz --device 3",
            "device 3 has neither events nor memory, --device with leak.pickle.xz; leave --device out".to_owned(),
        ),
        (
            "slice leak.pickle.xz --from 20 --to 10 -o x",
            "the part ends at event 10, before it begins at event 20, --from with --to; give a later --to".to_owned(),
        ),
        ("summary empty", "nothing is in it, empty; was it written to its end?".to_owned()),
        ("summary .", "this is a folder, .; give the files in it".to_owned()),
        ("repair leak.pickle.xz -o ./leak.pickle.xz", over.replace("PLACE", "./leak.pickle.xz")),
        ("slice calm.pickle -o calm.pickle", over.replace("PLACE", "calm.pickle")),
        ("export json calm.pickle -o calm.pickle", over.replace("PLACE", "calm.pickle")),
        ("slice leak.pickle.xz -o -", "a snapshot cannot be written to stdout, --out -; give a file".to_owned()),
        ("export sqlite leak.pickle.xz -o -", "sqlite cannot be written to stdout, --out -; give a file".to_owned()),
    ] {
        let ended = highwater(scratch.path(), &format!("snapshot {line}"));
        assert_eq!((ended.code, &*ended.stdout), (Some(2), ""), "{line}");
        assert_eq!(ended.stderr, format!("highwater: {refused}\n"), "{line}");
    }
    assert!(!scratch.path().join("x").exists());
    assert_eq!(fs::read(scratch.path().join("calm.pickle")).unwrap(), before);
    for line in [
        "at now leak.pickle.xz",
        "frag leak.pickle.xz --top 0",
        "at leak.pickle.xz",
        "export xml leak.pickle.xz -o x",
        "diff leak.pickle.xz",
    ] {
        let ended = highwater(scratch.path(), &format!("snapshot {line}"));
        assert_eq!((ended.code, &*ended.stdout), (Some(2), ""), "{line}");
        assert!(ended.stderr.starts_with("error: "), "{line}: {}", ended.stderr);
    }
    for line in ["slice leak.pickle.xz -o no/x", "repair leak.pickle.xz -o no/x", "export json leak.pickle.xz -o no/x"]
    {
        let ended = highwater(scratch.path(), &format!("snapshot {line}"));
        let line = "No such file or directory (os error 2), no/x; make its folder or choose another with --out";
        assert_eq!((ended.code, ended.stderr), (Some(1), format!("highwater: {line}\n")));
    }
}

#[test]
fn json_is_a_snapshot_too() {
    let scratch = with_leak();
    fs::write(scratch.path().join("leak.pickle"), leak()).unwrap();
    let script = "import json, pickle, sys\njson.dump(pickle.load(open(sys.argv[1], 'rb')), open('leak.json', 'w'))";
    if python(script, scratch.path(), "leak.pickle").is_none() {
        return;
    }
    scratch.write("config.json", "{\"batch\": 8}");
    let text = words(&scratch, "summary leak.json");
    assert!(text.starts_with("leak.json: JSON\n") && text.contains("5297 events"), "{text}");
    let why = |name: &str| highwater(scratch.path(), &format!("why {name}")).stdout;
    assert_eq!(why("leak.json").replace("leak.json", "leak.pickle"), why("leak.pickle"));
    words(&scratch, "repair leak.json -o mended.pickle");
    words(&scratch, "check mended.pickle");
    let refused = highwater(scratch.path(), "snapshot check leak.json");
    assert!(refused.code == Some(2) && refused.stderr.contains("`highwater snapshot repair` makes one"), "{refused:?}");
    fs::remove_file(scratch.path().join("leak.pickle.xz")).unwrap();
    let ranks = highwater(scratch.path(), "why . --json");
    let ranks: Value = serde_json::from_str(&ranks.stdout).expect("what is no snapshot is left out");
    assert_eq!(ranks["ranks"].as_array().unwrap().len(), 3);
}
