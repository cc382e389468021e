//! Every bad input has its line and exit code 2, and nothing is made.

use std::fs;
use std::path::Path;

use crate::scratch::Scratch;
use crate::support::{command, highwater};

/// Names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(name).collect();
    names.sort();
    names
}

/// The command is refused with just this line.
#[track_caller]
fn refused(folder: &Path, words: &str, line: &str) {
    let before = names(folder);
    let ended = highwater(folder, words);
    assert_eq!(ended.stderr, format!("highwater: {line}\n"), "{words}");
    assert_eq!((ended.code, &*ended.stdout), (Some(2), ""), "{words}");
    assert_eq!(names(folder), before, "{words}: nothing is made");
}

#[test]
fn numbers_that_do_not_fit() {
    let scratch = Scratch::new();
    scratch.write("a.txt", &"text ".repeat(100));
    for (options, line) in [
        ("--ranks 0", "0 is no number of ranks, --ranks; give at least 1"),
        ("--layers 0", "0 is no number of layers, --layers; give at least 1"),
        ("--width 0", "0 is no width, --width; give at least 1"),
        ("--heads 0", "0 is no number of heads, --heads; give at least 1"),
        ("--seq 0", "0 is no length of a sequence, --seq; give at least 1"),
        ("--batch 0", "0 is no batch, --batch; give at least 1"),
        ("--micro-batch 0", "0 is no micro-batch, --micro-batch; give at least 1"),
        ("--steps 0", "0 is no number of steps, --steps; give at least 1"),
        ("--ranks 65", "65 is too large, --ranks; give at most 64"),
        ("--layers 70000", "70000 is too large, --layers; give at most 65536"),
        ("--width 95", "95 is not a multiple of 4, --width 95 with --heads 4; give a --width that is"),
        ("--batch 15", "15 is not a multiple of 4, --batch 15 with --micro-batch 4; give a --batch that is"),
        (
            "--batch 12",
            "3 micro-batches do not spread evenly over 4 ranks, --batch with --micro-batch and --ranks; \
             give a --batch that is a multiple of 16",
        ),
        ("--lr 0", "0 is no learning rate, --lr; give a finite number above 0"),
        ("--lr -0.5", "-0.5 is no learning rate, --lr; give a finite number above 0"),
        ("--lr inf", "inf is no learning rate, --lr; give a finite number above 0"),
        ("--lr NaN", "NaN is no learning rate, --lr; give a finite number above 0"),
        (
            "--layers 60000 --batch 64 --micro-batch 1 --ranks 1",
            "a step of 19260642 operations is too long, --layers with --batch; \
             give fewer layers or micro-batches, so that it has at most 1048576",
        ),
    ] {
        refused(scratch.path(), &format!("train a.txt {options}"), line);
    }
}

#[test]
fn files_that_cannot_be_read() {
    let scratch = Scratch::new();
    scratch.write("a.txt", &"text ".repeat(100));
    scratch.write("folder/b.txt", "text");
    let reason = fs::read(scratch.path().join("none.txt")).unwrap_err();
    let line = format!("{reason}, reading none.txt; give files that can be read");
    refused(scratch.path(), "train a.txt none.txt", &line);
    refused(scratch.path(), "train a.txt folder", "this is a folder, folder; give the files in it");
}

#[test]
fn too_little_text() {
    let scratch = Scratch::new();
    scratch.write("a.txt", "1234567");
    scratch.write("empty.txt", "");
    let line = |bytes: u64, files: &str, needed: u64| {
        format!("{bytes} bytes are too short, FILES: {files}; give at least {needed} bytes, or a smaller --seq")
    };
    refused(scratch.path(), "train a.txt", &line(7, "1 file", 65));
    refused(scratch.path(), "train a.txt a.txt empty.txt --seq 14", &line(14, "3 files", 15));
    refused(scratch.path(), "train empty.txt --seq 1", &line(0, "1 file", 2));
}

#[test]
fn no_files_and_no_checkout() {
    let scratch = Scratch::new();
    scratch.write("Cargo.toml", "[package]\nname = \"other\"\n");
    let here = scratch.path().canonicalize().unwrap();
    let line =
        format!("there is nothing to train on, {} is in no checkout of this project; give FILES", here.display());
    refused(scratch.path(), "train", &line);
}

#[test]
fn a_checkout_with_too_little_text() {
    let scratch = Scratch::new();
    scratch.write("Cargo.toml", "[workspace]\n");
    scratch.write("allocator/src/lib.rs", "//! Small.\n");
    let here = scratch.path().canonicalize().unwrap();
    let line = format!(
        "23 bytes are too short, 2 files of the checkout {}; give at least 65 bytes, or a smaller --seq",
        here.display()
    );
    refused(&scratch.path().join("allocator"), "train", &line);
    assert_eq!(names(scratch.path()), ["Cargo.toml", "allocator"]);
}

#[test]
fn run_folders_in_use() {
    let scratch = Scratch::new();
    scratch.write("a.txt", &"text ".repeat(100));
    scratch.write("used/metrics.jsonl", "{}\n");
    let line = "the folder is not empty, --out used; give a new or an empty one";
    refused(scratch.path(), "train a.txt --out used", line);
    assert_eq!(names(&scratch.path().join("used")), ["metrics.jsonl"]);
    let line = "this is not a folder, --out a.txt; give a new or an empty folder";
    refused(scratch.path(), "train a.txt --out a.txt", line);
    // Before files are looked at, and so before a long read.
    let line = "the folder is not empty, --out used; give a new or an empty one";
    refused(scratch.path(), "train none.txt --out used", line);
}

#[test]
fn a_run_folder_that_cannot_be_made() {
    let scratch = Scratch::new();
    scratch.write("a.txt", &"text ".repeat(100));
    scratch.write("runs", "a file where the folders of runs should be");
    let reason = fs::create_dir_all(scratch.path().join("runs")).unwrap_err();
    let here = scratch.path().canonicalize().unwrap();
    let line = format!("{reason}, {}; choose another folder with --out", here.join("runs").display());
    refused(scratch.path(), "train a.txt", &line);
}

#[test]
fn groups_that_do_not_fit_the_device() {
    let scratch = Scratch::new();
    scratch.write("a.txt", &"text ".repeat(100));
    let line = "NCCL needs GPUs, --group nccl with --device sim; give --device cuda, or leave --group out";
    refused(scratch.path(), "train a.txt --group nccl", line);
    refused(
        scratch.path(),
        "kernels --arch 90",
        "\"90\" is no architecture, --arch; give sm_ and its number, like sm_90",
    );
}

/// Says something only where there is no driver, as on the machines that most changes are tested on.
#[test]
fn without_a_driver_a_gpu_is_bad_input() {
    if highwater::device::cuda::driver_version().is_ok() {
        return;
    }
    let scratch = Scratch::new();
    scratch.write("a.txt", &"text ".repeat(100));
    let line = "the CUDA driver (libcuda.so) is missing: install an NVIDIA driver of version 580 or later, \
                or use the simulated device; highwater doctor tells more";
    refused(scratch.path(), "train a.txt --device cuda", line);
    refused(scratch.path(), "train a.txt --device cuda --group nccl", line);
    refused(scratch.path(), "replay --generate moe --device cuda", line);
    refused(scratch.path(), "bench alloc --device cuda", line);
    let ended = highwater(scratch.path(), "doctor");
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(
        ended.stdout.lines().next().is_some_and(|line| line.starts_with("driver        missing ")),
        "{}",
        ended.stdout
    );
    assert_eq!(ended.stderr.lines().count(), 1);
}

#[test]
fn settings_in_the_environment_are_looked_at_first() {
    let scratch = Scratch::new();
    scratch.write("a.txt", &"text ".repeat(100));
    let output = command(scratch.path(), "train a.txt").env("HIGHWATER_ALLOC_CONF", "foo:1").output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.starts_with("highwater: unknown setting \"foo\"") && told.lines().count() == 1, "{told}");
    assert_eq!(names(scratch.path()), ["a.txt"], "nothing is made");
    for words in ["bench alloc", "bench alloc --recorder off --json", "bench churn"] {
        let output = command(scratch.path(), words).env("HIGHWATER_ALLOC_CONF", "foo:1").output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{words}: {told}");
        assert!(told.starts_with("highwater: unknown setting \"foo\"") && told.lines().count() == 1, "{told}");
    }
}
