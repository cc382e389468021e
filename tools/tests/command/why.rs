//! `highwater why` on snapshots of PyTorch and of this project, on texts, on folders, and on what is none of these.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use highwater::device::sim::{SimConfig, SimDevice};
use highwater::device::{Cost, Device};
use highwater::{Allocator, Settings};
use serde_json::Value;

use crate::scratch::Scratch;
use crate::support::{Ended, command, highwater};

const MESSAGE: &str = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.65 GiB. GPU 0 has a total capacity of \
    79.19 GiB of which 6.87 GiB is free. Including non-PyTorch memory, this process has 72.31 GiB memory in use. Of the \
    allocated memory 70.63 GiB is allocated by PyTorch, and 133.12 MiB is reserved by PyTorch but unallocated.";

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../allocator/history/tests/data").join(name)
}

fn json(ended: &Ended) -> Value {
    assert_eq!(ended.stdout.matches('\n').count(), 1, "one line");
    serde_json::from_str(&ended.stdout).expect("it is JSON")
}

/// The command with a text as its stdin.
fn told(folder: &Path, words: &str, text: &str) -> Ended {
    let mut child = command(folder, words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command starts");
    child.stdin.take().expect("it is a pipe").write_all(text.as_bytes()).expect("it reads");
    child.wait_with_output().expect("it ends").into()
}

#[test]
fn a_leak_is_told_with_its_line_first() {
    let scratch = Scratch::new();
    fs::copy(data("oom_leak.pickle.xz"), scratch.path().join("leak.pickle.xz")).unwrap();
    let ended = highwater(scratch.path(), "why leak.pickle.xz");
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""));
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(lines[0], "leak.pickle.xz: device 0, out of memory at event 4519");
    assert!(
        lines[3].starts_with("F1  a leak: live memory grows with each iteration  (sufficient, explains 1.5"),
        "{lines:?}"
    );
    assert!(lines[4].starts_with("    /home/user/projects/a/train_m.py:124 in oom_leak keeps 1.50 GiB in 192 blocks"));
    assert!(ended.stdout.contains("\nBeside it: a limit on what may be reserved, at about 1.99 GiB"));
    assert!(!ended.stdout.contains('\x1b'), "colours are for terminals");

    let told = json(&highwater(scratch.path(), "why leak.pickle.xz --json"));
    assert_eq!((&told["cause"], &told["sufficient"]), (&"F1".into(), &true.into()));
    assert_eq!((&told["request_bytes"], &told["deficit_bytes"]), (&8_388_608.into(), &4_194_304.into()));
    for key in ["confidence", "ledger", "counterfactuals", "top_stacks", "pending_by_stream", "growth", "advice"] {
        assert!(!told[key].is_null(), "{key}");
    }
    assert_eq!(told["growth"]["sites"][0]["blocks"], 192);
    assert!(told["advice"].as_array().unwrap().iter().all(|advice| advice["bytes"].as_u64() > Some(0)));
}

#[test]
fn growth_alone() {
    let scratch = Scratch::new();
    fs::copy(data("oom_leak.pickle.xz"), scratch.path().join("leak.pickle.xz")).unwrap();
    let ended = highwater(scratch.path(), "why --growth leak.pickle.xz --capacity 80GiB");
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""));
    assert!(ended.stdout.contains("Growth: 8.01 MiB an iteration over 194 iterations"), "{}", ended.stdout);
}

#[test]
fn a_text_alone() {
    let scratch = Scratch::new();
    let ended = told(scratch.path(), "why - --json", MESSAGE);
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""));
    let from_stdin = json(&ended);
    assert_eq!((&from_stdin["cause"], &from_stdin["file"]), (&"A1".into(), &"stdin".into()));
    scratch.write("train.log", &format!("step 1\n{MESSAGE}\n"));
    let from_file = json(&highwater(scratch.path(), "why train.log --json"));
    assert_eq!(from_file["ledger"], from_stdin["ledger"]);
}

#[test]
fn a_text_that_does_not_decide_is_a_no() {
    let scratch = Scratch::new();
    let text = MESSAGE.replace("7.65 GiB", "100.00 MiB").replace("6.87 GiB is free", "8.00 MiB is free");
    let text = text.replace("133.12 MiB", "3.00 GiB").replace("70.63 GiB", "75.50 GiB");
    let ended = told(scratch.path(), "why -", &text);
    assert_eq!(ended.code, Some(1), "{}", ended.stdout);
    assert!(ended.stdout.contains("a snapshot decides"));
    let line = "the evidence does not decide, stdin; see the lines under X for what to record next time";
    assert_eq!(ended.stderr, format!("highwater: {line}\n"));
}

#[test]
fn the_ranks_of_a_folder() {
    let scratch = Scratch::new();
    for (rank, file) in [(0, "oom_cross_stream"), (2, "oom_leak"), (10, "oom_leak")] {
        let to = scratch.path().join(format!("rank{rank}_memory_snapshot.pickle.xz"));
        fs::copy(data(&format!("{file}.pickle.xz")), to).unwrap();
    }
    scratch.write("notes.txt", "no snapshot");
    let ended = highwater(scratch.path(), "why . --json");
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""));
    let told = json(&ended);
    let causes: Vec<_> = told["ranks"].as_array().unwrap().iter().map(|rank| rank["cause"].as_str().unwrap()).collect();
    assert_eq!(causes, ["C1", "F1", "F1"], "by rank, not by letter");
    assert_eq!(told["odd_one_out"]["index"], 0);
    let text = highwater(scratch.path(), "why .").stdout;
    assert!(text.contains("The odd one out: ./rank0_memory_snapshot.pickle.xz: it holds"), "{text}");
}

/// A rank that died while it wrote hides none of the others.
#[test]
fn files_of_a_folder_that_cannot_be_read_are_named() {
    let scratch = Scratch::new();
    fs::write(scratch.path().join("rank1.pickle"), "").unwrap();
    fs::write(scratch.path().join("rank2.pickle"), [0x80, 4, b'.']).unwrap();
    let ended = highwater(scratch.path(), "why .");
    assert_eq!((ended.code, ended.stderr.lines().count()), (Some(2), 1), "{}", ended.stderr);
    fs::copy(data("oom_leak.pickle.xz"), scratch.path().join("rank0.pickle.xz")).unwrap();
    let ended = highwater(scratch.path(), "why .");
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""));
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert!(lines[0].starts_with("./rank0.pickle.xz: F1 "), "{lines:?}");
    assert_eq!(lines[1], "./rank1.pickle: left out: nothing is in it, ./rank1.pickle; was it written to its end?");
    assert!(lines[2].starts_with("./rank2.pickle: left out: "), "{lines:?}");
    let told = json(&highwater(scratch.path(), "why . --json"));
    assert_eq!(told["left_out"][0]["file"], "./rank1.pickle");
    assert_eq!(told["ranks"].as_array().unwrap().len(), 1);
}

/// Where a file is cut, memory is that at the end of what there is: no state is told that never was.
#[test]
fn a_file_that_is_cut_tells_of_no_memory_that_never_was() {
    let scratch = Scratch::new();
    let file = fs::read(data("oom_leak.pickle.xz")).unwrap();
    fs::write(scratch.path().join("cut.pickle.xz"), &file[..file.len() * 2 / 3]).unwrap();
    let told = json(&highwater(scratch.path(), "why cut.pickle.xz --json"));
    // The file's own segments are those after the program has let go of everything.
    let live = told["ledger"]["live_bytes"].as_u64().unwrap();
    assert!(live > 256 << 20, "{live}");
    let warnings = told["warnings"].as_array().unwrap();
    assert!(warnings.len() == 1 && warnings[0].as_str().unwrap().starts_with("the file is damaged"), "{warnings:?}");
}

/// What PyTorch's snapshots lack is in this project's: who is waited for, and the host's waits.
#[test]
fn a_snapshot_of_this_project_names_the_stream() {
    const MIB: usize = 1 << 20;
    let scratch = Scratch::new();
    let config = SimConfig { memory_bytes: 64 << 20, bodies: false, workers: 0, ..SimConfig::default() };
    let allocator = Allocator::with_settings(SimDevice::new(config), Settings::builder().build().unwrap()).unwrap();
    let main = allocator.create_stream("main").unwrap();
    let side = allocator.create_stream("communication").unwrap();
    side.mark_open();
    let kept = main.alloc::<u8>(20 * MIB).unwrap();
    for _ in 0..4 {
        let gathered = main.alloc::<u8>(20 * MIB).unwrap();
        side.wait(&main.record().unwrap()).unwrap();
        side.launch("reduce", Cost::exact(2_000_000)).read(&gathered).submit().unwrap();
    }
    allocator.snapshot().save(scratch.path().join("own.pickle")).unwrap();
    drop(kept);
    let ended = highwater(scratch.path(), "why own.pickle --json");
    let told = json(&ended);
    assert_eq!((&told["moment"], &told["cause"]), (&"stall".into(), &"C1".into()), "{told}");
    let stream = &told["pending_by_stream"][0];
    assert!(stream["stream"].as_str().unwrap().contains("communication"), "{stream}");
    assert_eq!((&stream["waited_for"], &stream["bytes"]), (&true.into(), &(40 * MIB).into()));
    assert_eq!(told["ledger"]["total_bytes"], told["ledger"]["capacity_bytes"]);
    assert_eq!(told["ledger"]["capacity_bytes"], 64 << 20);
    assert_eq!(told["warnings"], serde_json::json!([]));
}

#[test]
fn bad_input_is_refused_in_one_line() {
    let scratch = Scratch::new();
    scratch.write("notes.txt", "all is well");
    scratch.write("broken.pickle", "x");
    fs::write(scratch.path().join("broken.pickle"), [0x80, 4, b'.']).unwrap();
    fs::create_dir(scratch.path().join("empty")).unwrap();
    fs::copy(data("oom_leak.pickle.xz"), scratch.path().join("leak.pickle.xz")).unwrap();
    for (words, line) in [
        ("nothing", "No such file or directory (os error 2), reading nothing; give files that can be read"),
        (
            "notes.txt",
            "there is no out-of-memory message in this text, notes.txt; give a memory snapshot, or the text of an \
             out-of-memory error",
        ),
        ("empty", "there are no snapshots, empty; give a folder with a file for each rank"),
        (
            "leak.pickle.xz --device 3",
            "device 3 has neither events nor memory, --device with leak.pickle.xz; leave --device out",
        ),
    ] {
        let ended = highwater(scratch.path(), &format!("why {words}"));
        assert_eq!((ended.code, &*ended.stdout), (Some(2), ""), "{words}");
        assert_eq!(ended.stderr, format!("highwater: {line}\n"), "{words}");
    }
    let ended = highwater(scratch.path(), "why broken.pickle");
    assert_eq!((ended.code, ended.stderr.lines().count()), (Some(2), 1), "{}", ended.stderr);
    let ended = highwater(scratch.path(), "why leak.pickle.xz --capacity much");
    assert!(ended.code == Some(2) && ended.stderr.contains("give a size like 80GiB"), "{}", ended.stderr);
}

/// Before memory ends: the line that keeps it, what others take, and when both end.
#[test]
fn growth_of_this_project_shows_in_a_few_iterations() {
    const MIB: usize = 1 << 20;
    let scratch = Scratch::new();
    let config = SimConfig { memory_bytes: 256 << 20, bodies: false, workers: 0, ..SimConfig::default() };
    let device = SimDevice::new(config);
    let allocator = Allocator::with_settings(device.clone(), Settings::builder().build().unwrap()).unwrap();
    let main = allocator.create_stream("main").unwrap();
    let mut kept = Vec::new();
    for _ in 0..9 {
        let batch = main.alloc::<u8>(20 * MIB).unwrap();
        device.host_work(1_000_000);
        drop(batch);
        kept.push(main.alloc::<u8>(4 * MIB).unwrap());
    }
    let others: Vec<_> = (0..16).map(|_| device.create(2 << 20).unwrap()).collect();
    allocator.snapshot().save(scratch.path().join("own.pickle")).unwrap();
    let text = highwater(scratch.path(), "why --growth own.pickle").stdout;
    assert!(text.contains("Growth: 4.00 MiB an iteration over 9 iterations"), "{text}");
    assert!(text.contains("memory ends in ") && text.contains("why.rs:"), "{text}");
    assert!(
        text.contains("E2  memory of this process outside of the allocator") && text.contains("at this rate for"),
        "{text}"
    );
    others.into_iter().for_each(|page| device.release(page).unwrap());
}

/// What a request that ran out of memory leaves behind is enough to tell why.
#[test]
fn a_black_box_tells_why() {
    const MIB: usize = 1 << 20;
    let scratch = Scratch::new();
    let config = SimConfig { memory_bytes: 64 << 20, bodies: false, workers: 0, ..SimConfig::default() };
    let settings = Settings::builder().black_box(scratch.path()).build().unwrap();
    let allocator = Allocator::with_settings(SimDevice::new(config), settings).unwrap();
    let main = allocator.create_stream("main").unwrap();
    let mut kept = Vec::new();
    let error = loop {
        match main.alloc::<u8>(9 * MIB) {
            Ok(more) => kept.push(more),
            Err(error) => break error.to_string(),
        }
    };
    let command = error.split("highwater ").nth(1).and_then(|rest| rest.strip_suffix(" tells more")).unwrap();
    let told = json(&highwater(scratch.path(), &format!("{command} --json")));
    assert_eq!((&told["moment"], &told["request_bytes"]), (&"out_of_memory".into(), &(9 * MIB).into()), "{told}");
    assert_eq!(told["ledger"]["live_bytes"], 63 * MIB);
    assert!(told["top_stacks"][0].to_string().contains("why.rs"), "{told}");

    // The error alone says the same.
    let from_text = json(&self::told(scratch.path(), "why - --json", &format!("step 7\n{error}\n")));
    assert_eq!(from_text["cause"], told["cause"], "{from_text} {error}");
    assert_eq!(from_text["findings"][0]["evidence"][0], told["findings"][0]["evidence"][0]);
}
