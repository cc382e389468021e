//! Trainings of a small model, to their end.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use highwater::history::viewer;
use serde_json::Value;

use crate::scratch::Scratch;
use crate::support::{Ended, highwater, without_reader};

/// A model that trains at once, on one rank unless more are asked for.
const SMALL: &str = "train text.txt --layers 1 --width 16 --heads 2 --seq 16 --batch 4 --micro-batch 1 --steps 5";

fn with_text() -> Scratch {
    let scratch = Scratch::new();
    scratch.write("text.txt", &"the quick brown fox jumps over the lazy dog; ".repeat(20));
    scratch
}

/// Trains [`SMALL`] with more options.
fn train(scratch: &Scratch, options: &str) -> Ended {
    highwater(scratch.path(), &format!("{SMALL} {options}"))
}

/// Trains, and gives the object.
#[track_caller]
fn numbers(scratch: &Scratch, options: &str) -> Value {
    let ended = train(scratch, &format!("{options} --json"));
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "{options}");
    assert_eq!(ended.stdout.lines().count(), 1, "one object and nothing else");
    serde_json::from_str(&ended.stdout).expect("it is JSON")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{error}, {}", path.display()))
}

#[test]
fn the_object_has_these_keys_and_true_numbers() {
    let scratch = with_text();
    let numbers = numbers(&scratch, "--ranks 1 --out out");
    let keys: Vec<_> = numbers.as_object().unwrap().keys().map(String::as_str).collect();
    let mut expected = [
        "steps",
        "ranks",
        "loss_first",
        "loss_last",
        "unigram_entropy",
        "tokens_per_s",
        "peak_unsharded_bytes",
        "peak_unsharded_predicted_bytes",
        "peak_live_bytes",
        "peak_reserved_bytes",
        "host_syncs_per_step",
        "late_driver_memory_calls",
        "exposed_comm_fraction",
        "step_ns",
        "parameters_digest",
        "run_dir",
    ];
    expected.sort();
    assert_eq!(keys, expected);
    assert_eq!((&numbers["steps"], &numbers["ranks"]), (&5.into(), &1.into()));
    assert_eq!(numbers["run_dir"], "out");
    // Bytes are about evenly likely before the first step, and less so after some.
    let (first, last) = (numbers["loss_first"].as_f64().unwrap(), numbers["loss_last"].as_f64().unwrap());
    assert!((first - 256_f64.ln()).abs() < 0.2 && last < first, "{first} {last}");
    assert_eq!(numbers["peak_unsharded_bytes"], numbers["peak_unsharded_predicted_bytes"]);
    assert_eq!(numbers["host_syncs_per_step"], 0.0);
    assert!(numbers["peak_live_bytes"].as_u64() <= numbers["peak_reserved_bytes"].as_u64());
    let digest = numbers["parameters_digest"].as_str().unwrap();
    assert!(digest.len() == 16 && u64::from_str_radix(digest, 16).is_ok(), "{digest}");
}

#[test]
fn metrics_have_a_line_for_each_step() {
    let scratch = with_text();
    let numbers = numbers(&scratch, "--ranks 1 --out out");
    let text = read(&scratch.path().join("out/metrics.jsonl"));
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |key: &str| lines.iter().map(|line| line[key].clone()).collect::<Vec<Value>>();
    assert_eq!(of("step"), [0, 1, 2, 3, 4]);
    assert_eq!(of("tokens"), [64, 128, 192, 256, 320]);
    let losses: Vec<f64> = of("loss").iter().map(|loss| loss.as_f64().unwrap()).collect();
    assert_eq!(losses[0], numbers["loss_first"].as_f64().unwrap());
    // The mean of the last 20 steps, of which there are five.
    assert_eq!(losses.iter().sum::<f64>() / 5.0, numbers["loss_last"].as_f64().unwrap());
    assert_eq!(of("peak_live_bytes")[4], numbers["peak_live_bytes"]);
    assert_eq!(of("peak_reserved_bytes")[4], numbers["peak_reserved_bytes"]);
    for key in ["wall_s", "device_ns"] {
        let times: Vec<_> = of(key).iter().map(|time| time.as_f64().unwrap()).collect();
        assert!(times[0] > 0.0 && times.is_sorted(), "{key}: {times:?}");
    }
}

#[test]
fn runs_are_numbered_and_a_used_folder_is_kept() {
    let scratch = with_text();
    let here = scratch.path().canonicalize().unwrap();
    for run in ["runs/1", "runs/2"] {
        assert_eq!(numbers(&scratch, "--ranks 1")["run_dir"], here.join(run).to_str().unwrap());
    }
    let metrics = scratch.path().join("runs/1/metrics.jsonl");
    let before = read(&metrics);
    let ended = train(&scratch, "--ranks 1 --seed 2 --out runs/1");
    let line = "highwater: the folder is not empty, --out runs/1; give a new or an empty one\n";
    assert_eq!((ended.code, &*ended.stdout, &*ended.stderr), (Some(2), "", line));
    assert_eq!(read(&metrics), before);
}

#[test]
fn a_checkout_trains_on_itself_from_any_of_its_folders() {
    let scratch = Scratch::new();
    scratch.write("Cargo.toml", "[workspace]\n");
    scratch.write("allocator/src/lib.rs", &"//! Words about memory.\n".repeat(20));
    let folder = scratch.path().join("allocator/src");
    let ended = highwater(&folder, &format!("{} --ranks 1 --json", SMALL.replace("text.txt ", "")));
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""));
    assert!(scratch.path().join("runs/1/metrics.jsonl").is_file());
    assert!(!folder.join("runs").exists());
}

#[test]
fn the_same_words_give_the_same_bits_and_other_words_do_not() {
    let scratch = with_text();
    let digest = |options: &str| numbers(&scratch, &format!("--ranks 1 {options}"))["parameters_digest"].clone();
    let base = digest("");
    assert_eq!(digest(""), base);
    for other in ["--seed 2", "--no-attention", "--lr 0.003", "--steps 6", "--batch 8", "--seq 15"] {
        assert_ne!(digest(other), base, "{other}");
    }
}

#[test]
fn a_loss_that_is_not_finite_is_a_no() {
    let scratch = with_text();
    let ended = train(&scratch, "--ranks 1 --lr 1e30 --out out");
    assert_eq!(ended.code, Some(1));
    assert_eq!(ended.stderr, "highwater: the loss is not finite, from step 1 on; try a smaller --lr\n");
    assert!(ended.stdout.contains("NaN nats"), "the report is there all the same: {}", ended.stdout);
    let metrics = read(&scratch.path().join("out/metrics.jsonl"));
    assert!(metrics.lines().nth(1).unwrap().contains("\"loss\":null"));
}

#[test]
fn a_log_gets_a_line_now_and_then_and_machines_none() {
    let scratch = with_text();
    let ended = train(&scratch, "--ranks 1 --steps 100");
    assert_eq!(ended.code, Some(0));
    let starts: Vec<_> = ended.stderr.lines().map(|line| line.split("  loss ").next().unwrap()).collect();
    assert_eq!(starts, ["step 50/100", "step 100/100"]);
    assert!(ended.stdout.contains("\nloss ") && ended.stdout.contains("mean of the last 20 of 100 steps"));
    numbers(&scratch, "--ranks 1 --steps 100");
}

#[test]
fn a_report_that_nobody_reads_is_no_error() {
    let scratch = with_text();
    for json in ["", "--json"] {
        let ended = without_reader(scratch.path(), &format!("{SMALL} --ranks 1 {json}"));
        assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "{json}");
    }
}

#[test]
fn the_snapshot_opens_in_the_viewer_and_knows_the_steps() {
    let scratch = with_text();
    numbers(&scratch, "--ranks 1 --out out");
    check_snapshot(&scratch.path().join("out/snapshot.pickle"), 1);
}

#[test]
fn the_timeline_is_what_its_viewer_needs() {
    let scratch = with_text();
    numbers(&scratch, "--ranks 1 --out out");
    check_timeline(&scratch.path().join("out/timeline.json"), 1);
}

#[test]
fn ranks_change_nothing_but_where_things_are() {
    let scratch = with_text();
    let alone = numbers(&scratch, "--ranks 1 --out alone");
    for ranks in [2, 4] {
        let out = format!("of-{ranks}");
        let together = numbers(&scratch, &format!("--ranks {ranks} --out {out}"));
        for key in ["parameters_digest", "loss_first", "loss_last", "unigram_entropy"] {
            assert_eq!(alone[key], together[key], "{key} on {ranks} ranks");
        }
        assert_eq!(together["ranks"], ranks);
        check_snapshot(&scratch.path().join(&out).join("snapshot.pickle"), ranks);
        check_timeline(&scratch.path().join(&out).join("timeline.json"), ranks);
    }
}

/// The snapshot opens; its memory is still in use; its events know the step that made them.
fn check_snapshot(path: &Path, ranks: usize) {
    let bytes = fs::read(path).unwrap();
    let summary = viewer::check(&bytes).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(summary.devices, ranks);
    assert!(summary.events > 0 && summary.live_bytes > 0, "{summary:?}");
    let has = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(has("step step=4"), "no span of the last step");
}

/// Slices of a thread lie apart, arrows have both ends on slices, every rank is there under its name.
fn check_timeline(path: &Path, ranks: usize) {
    let trace: Value = serde_json::from_str(&read(path)).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |phase: &'static str| events.iter().filter(move |event| event["ph"] == phase);
    let thread = |event: &Value| (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
    // As Perfetto reads times.
    let ns = |time: &Value| (time.as_f64().unwrap() * 1000.0) as u64;

    let processes = of("M").filter(|event| event["name"] == "process_name");
    let processes: Vec<_> = processes.map(|event| event["args"]["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(processes, (0..ranks).map(|rank| format!("rank {rank}")).collect::<Vec<_>>());

    let mut slices: BTreeMap<_, Vec<(u64, u64)>> = BTreeMap::new();
    for slice in of("X") {
        let start = ns(&slice["ts"]);
        slices.entry(thread(slice)).or_default().push((start, start + ns(&slice["dur"])));
    }
    assert_eq!(slices.len(), 2 * ranks, "each rank computes and communicates");
    for slices in slices.values() {
        assert!(slices.windows(2).all(|pair| pair[0].1 <= pair[1].0), "slices overlap");
    }

    let inside = |event: &Value| {
        let at = ns(&event["ts"]);
        slices[&thread(event)].iter().find(|(start, end)| (*start..*end).contains(&at)).copied()
    };
    let ends: BTreeMap<_, _> = of("f").map(|end| (end["id"].as_u64().unwrap(), end)).collect();
    assert!(!ends.is_empty() && ends.len() == of("s").count());
    for start in of("s") {
        let end = ends[&start["id"].as_u64().unwrap()];
        let (from, to) = (inside(start).expect("a start on a slice"), inside(end).expect("an end on a slice"));
        assert!(from.1 <= to.0, "what waits begins after what it waited for");
    }
}
