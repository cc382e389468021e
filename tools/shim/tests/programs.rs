//! The library in front of a driver that is none: a C program opens it as CUDA programs do, in both ways to put it there.
//!
//! The driver and the program are compiled when the tests run. Everything is seen from outside: answers of calls, what
//! reached the driver, and the files.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::{env, fs};

use serde_json::Value;

/// How the library gets in front.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// `LD_PRELOAD`.
    Preload,
    /// First in `LD_LIBRARY_PATH`, opened by the program by its name.
    Path,
}

/// The folder with the compiled programs.
fn compiled() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("shim");
        for part in ["driver", "old", "shim"] {
            fs::create_dir_all(folder.join(part)).unwrap();
        }
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
        let compile = |source: &str, target: &str, arguments: &[&str]| {
            let status = Command::new("cc")
                .args(["-O1", "-std=gnu11", "-pthread", "-o"])
                .arg(folder.join(target))
                .arg(sources.join(source))
                .args(arguments)
                .status();
            assert!(status.expect("cc is what Rust links with").success(), "{source} is not compiled");
        };
        let as_driver = ["-shared", "-fPIC", "-Wl,-Bsymbolic", "-Wl,-soname,libcuda.so.1", "-ldl"];
        compile("driver.c", "driver/libcuda.so.1", &as_driver);
        compile("driver.c", "old/libcuda.so.1", &[&["-DOLD"], &as_driver[..]].concat());
        // A second name for the driver, which nothing in front takes for it.
        let second = folder.join("driver/libfake.so");
        let _ = fs::remove_file(&second);
        std::os::unix::fs::symlink("libcuda.so.1", second).unwrap();
        compile("program.c", "program", &["-ldl"]);
        let library = env::current_exe().unwrap().with_file_name("libcuda.so");
        fs::copy(library, folder.join("shim/libcuda.so")).expect("the library is built with its tests");
        folder
    })
}

fn run(case: &str, way: Way, variables: &[(&str, &str)]) -> Output {
    let folder = compiled();
    let (driver, shim) = (folder.join("driver"), folder.join("shim"));
    let mut command = Command::new(folder.join("program"));
    command.arg(case).env_remove("HIGHWATER_SHIM_OUT").env_remove("HIGHWATER_SHIM_OFF");
    // Long enough to be a wait, short enough for what is never finished.
    command.env("HIGHWATER_ALLOC_CONF", "host_wait_timeout_ms:20");
    match way {
        Way::Preload => command.env("LD_PRELOAD", shim.join("libcuda.so")).env("LD_LIBRARY_PATH", &driver),
        Way::Path => command.env("LD_LIBRARY_PATH", format!("{}:{}", shim.display(), driver.display())),
    };
    command.envs(variables.iter().copied()).output().unwrap()
}

fn passes(case: &str, way: Way, variables: &[(&str, &str)]) -> String {
    let output = run(case, way, variables);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{case} {way:?}: {} {errors}", output.status);
    errors
}

fn both(case: &str) {
    for way in [Way::Preload, Way::Path] {
        passes(case, way, &[]);
    }
}

/// An empty folder for the files of a run.
fn out(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("shim-out").join(name);
    let _ = fs::remove_dir_all(&folder);
    folder
}

fn lines(folder: &Path) -> Vec<Value> {
    let text = fs::read_to_string(folder.join("stats.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn memory_comes_from_the_allocator_and_errors_are_the_drivers() {
    for way in [Way::Preload, Way::Path] {
        let errors = passes("basics", way, &[]);
        assert_eq!(errors.lines().count(), 1, "one line on the first request that fails: {errors}");
        assert!(errors.starts_with("highwater: out of memory: 100.00 MiB requested"), "{errors}");
    }
}

#[test]
fn what_is_freed_without_a_stream_waits_for_every_stream() {
    both("synchronous");
}

#[test]
fn a_destroyed_stream_is_waited_for_and_not_touched() {
    both("destroyed");
}

#[test]
fn memory_of_a_stream_is_reused_in_its_order() {
    both("ordered");
}

#[test]
fn each_thread_has_a_default_stream_of_its_own() {
    both("per_thread");
}

#[test]
fn addresses_that_the_driver_tells_are_those_in_front() {
    both("looked_up");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn programs_that_open_the_drivers_file_get_what_is_in_front() {
    passes("by_file_name", Way::Preload, &[]);
}

#[test]
fn a_capture_gets_the_drivers_memory() {
    both("capture");
}

#[test]
fn other_contexts_are_the_drivers() {
    both("other_context");
}

#[test]
fn a_stream_that_cannot_be_followed_makes_frees_wait() {
    both("untracked");
}

#[test]
fn a_reset_of_the_device_starts_anew() {
    both("reset");
}

#[test]
fn threads_get_memory_of_their_own() {
    both("threads");
}

#[test]
fn it_can_be_turned_off() {
    for way in [Way::Preload, Way::Path] {
        passes("off", way, &[("HIGHWATER_SHIM_OFF", "1")]);
    }
    let on = run("off", Way::Preload, &[]);
    assert!(!on.status.success(), "the case sees the difference");
}

#[test]
fn settings_that_are_not_valid_leave_the_driver_alone() {
    let errors = passes("off", Way::Preload, &[("HIGHWATER_ALLOC_CONF", "colour:red")]);
    assert!(errors.contains("unknown setting \"colour\""), "{errors}");
}

#[test]
fn a_driver_that_lacks_something_serves_alone() {
    let old = compiled().join("old");
    let errors = passes("off", Way::Preload, &[("LD_LIBRARY_PATH", old.to_str().unwrap())]);
    assert!(errors.contains("the driver serves this context itself"), "{errors}");
}

#[test]
fn the_exit_leaves_statistics_and_a_snapshot() {
    let folder = out("exit");
    passes("ordered", Way::Path, &[("HIGHWATER_SHIM_OUT", folder.to_str().unwrap())]);
    let lines = lines(&folder);
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(line["reason"], "exit");
    assert_eq!((&line["allocations"], &line["frees"]), (&5.into(), &5.into()));
    assert_eq!(line["forwarded"], 2, "memory of another pool, and its end");
    assert_eq!(line["out_of_memory"], 2);
    assert_eq!(line["peak_live_bytes"], 40 << 20);
    assert!(line["peak_reserved_bytes"].as_u64().unwrap() >= 40 << 20);
    assert!(line["host_stalls"].as_u64().unwrap() >= 2);
    assert_eq!(line["devices"][0]["stats"]["requested_bytes.all.current"], 0);
    let snapshot = fs::read(folder.join("snapshot.pickle")).unwrap();
    assert!(snapshot.starts_with(b"\x80\x04") && snapshot.ends_with(b"."));
}

#[test]
fn the_signal_writes_the_same() {
    for way in [Way::Preload, Way::Path] {
        let folder = out(&format!("signal-{way:?}"));
        passes("signalled", way, &[("HIGHWATER_SHIM_OUT", folder.to_str().unwrap())]);
        let lines = lines(&folder);
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0]["reason"], "signal");
        assert_eq!(lines[0]["devices"][0]["stats"]["requested_bytes.all.current"], 1 << 20);
    }
}

#[test]
fn a_forked_child_is_left_alone() {
    let folder = out("forked");
    passes("forked", Way::Preload, &[("HIGHWATER_SHIM_OUT", folder.to_str().unwrap())]);
    assert_eq!(lines(&folder).len(), 1, "the child writes nothing");
}

#[test]
fn calls_after_the_end_of_the_driver_do_no_harm() {
    let folder = out("late");
    for way in [Way::Preload, Way::Path] {
        passes("late", way, &[("HIGHWATER_SHIM_OUT", folder.to_str().unwrap())]);
    }
    assert_eq!(lines(&folder).len(), 2);
}
