//! Replays and bounds, on a trace of a PyTorch program that prefetches its batches on a second stream.

use std::path::Path;

use serde_json::Value;

use crate::scratch::Scratch;
use crate::support::highwater;

const TRACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/prefetch_record_stream.pickle.xz");

fn objects(words: &str) -> Vec<Value> {
    let ended = highwater(Scratch::new().path(), words);
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""), "{words}");
    ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_key_is_there_and_makes_sense() {
    for behind in [0, 5000, 100_000] {
        let told = &objects(&format!("replay {TRACE} --behind {behind} --json"))[0];
        let number = |key: &str| told[key].as_f64().unwrap_or_else(|| panic!("{key} in {told}"));
        assert_eq!(told["trace"], TRACE);
        assert_eq!(told["events"], 6562);
        assert_eq!(told["peak_live_bytes"], 1_692_378_423);
        assert_eq!(number("utilization"), number("peak_live_bytes") / number("peak_reserved_bytes"));
        assert!(number("utilization") > 0.8 && number("utilization") <= number("lower_bound_utilization"));
        assert!(number("lower_bound_utilization") <= 1.0);
        assert!((1.0..1.01).contains(&number("critical_path_ratio")), "{told}");
        assert!(number("added_device_wait_us") >= 0.0 && number("ns_per_op") > 0.0);
        let times = ["p50", "p99", "p999", "max"].map(|key| told["alloc_ns"][key].as_u64().unwrap());
        assert!(times[0] > 0 && times.is_sorted());
        assert!(told["pages_moved"].is_null() || told["pages_moved"].is_u64());
        assert!(number("page_seconds") > 0.0 && number("page_seconds") < 0.01 * number("trace_seconds"));
        assert!((7.0..7.1).contains(&number("trace_seconds")));
        assert!(told["driver_memory_calls_second_half"].is_u64() && told["waits_inserted"].is_u64());
        assert_eq!(told["host_stalls"], 0);
        assert_eq!(told["behind_us"], behind);
        assert!(told["mismatches"].is_null());
        let ratios: Vec<_> =
            told["frontier"].as_array().unwrap().iter().map(|point| &point["critical_path_ratio"]).collect();
        assert_eq!(ratios, [&1.0, &1.01, &1.05]);
    }
}

#[test]
fn a_replay_replays() {
    let told = || {
        let mut told = objects(&format!("replay {TRACE} --generate moe --behind 5000 --json"));
        for object in &mut told {
            for real_time in ["alloc_ns", "ns_per_op"] {
                object[real_time].take();
            }
        }
        told
    };
    let first = told();
    assert_eq!((first.len(), &first[1]["trace"]), (2, &Value::from("moe")));
    assert_eq!(first, told(), "all but real time is the same");
}

#[test]
fn a_snapshot_of_this_project_replays() {
    use highwater::device::Cost;
    use highwater::device::sim::{SimConfig, SimDevice};

    let device = SimDevice::new(SimConfig::default());
    let allocator = highwater::Allocator::with_settings(device.clone(), highwater::Settings::default()).unwrap();
    let (compute, copy) = (allocator.create_stream("compute").unwrap(), allocator.create_stream("copy").unwrap());
    for step in 1..=40 {
        let weights = compute.alloc::<u8>(step << 16).unwrap();
        let batch = copy.alloc::<u8>(step << 18).unwrap();
        compute.wait_stream(&copy).unwrap();
        compute.launch("step", Cost::exact(300_000)).read(&batch).write(&weights).submit().unwrap();
        drop(batch);
        device.host_work(100_000);
        drop(weights);
    }
    let peak_bytes = allocator.memory_stats().live.peak;
    let scratch = Scratch::new();
    allocator.snapshot().save(scratch.path().join("own.pickle")).unwrap();
    let ended = highwater(scratch.path(), "replay own.pickle --verify --json --behind 200");
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""));
    let told: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((told["peak_live_bytes"].as_u64(), &told["mismatches"]), (Some(peak_bytes), &Value::from(0)));
    let ended = highwater(scratch.path(), "bound own.pickle --json");
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""));
    let told: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert!(told["pytorch"]["bytes"].is_null() && told["expandable"]["simulated"] == true);
    let held = told["ours_recorded_bytes"].as_u64().unwrap();
    assert!(held >= told["bound_bytes"].as_u64().unwrap());
}

#[test]
fn bytes_are_what_was_written() {
    let told = &objects(&format!("replay {TRACE} --verify --behind 5000 --json"))[0];
    assert_eq!(told["mismatches"], 0);
}

#[test]
fn people_are_told_the_same() {
    let ended = highwater(Scratch::new().path(), "replay --generate prefetch --behind 5000 --verify");
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""));
    for words in ["prefetch: 4202 events", "utilization", "no allocator has more than", "0 reads", "host stalls"] {
        assert!(ended.stdout.contains(words), "{words}: {}", ended.stdout);
    }
}

#[test]
fn a_limit_is_kept_and_one_that_cannot_be_kept_names_the_event() {
    let limit = 1_900_000_000;
    let told = &objects(&format!("replay {TRACE} --limit {limit} --json"))[0];
    assert!(told["peak_reserved_bytes"].as_u64().unwrap() <= limit);

    let ended = highwater(Scratch::new().path(), &format!("replay {TRACE} --limit 1000000000"));
    assert_eq!((ended.code, &*ended.stdout), (Some(1), ""));
    assert!(
        ended.stderr.starts_with("highwater: event ") && ended.stderr.contains(": out of memory: "),
        "{}",
        ended.stderr
    );
    assert!(ended.stderr.ends_with(&format!(", replaying {TRACE}\n")), "{}", ended.stderr);
}

#[test]
fn bad_input_has_its_line() {
    let scratch = Scratch::new();
    scratch.write("text.pickle", "no snapshot");
    let needs = "give a memory snapshot of PyTorch or of this project that holds a trace";
    let gone = "No such file or directory (os error 2)";
    for (words, line) in [
        ("replay", "there is nothing to replay; give SNAPSHOT files, or --generate".to_owned()),
        ("replay gone.pickle", format!("{gone}, gone.pickle; {needs}")),
        ("bound gone.pickle", format!("{gone}, gone.pickle; {needs}")),
        ("replay --generate moe --limit 0", "0 is no number of bytes, --limit; give at least 1".to_owned()),
        (
            "replay --generate moe --behind 3600000001",
            "3600000001 is too large, --behind; give at most 3600000000".to_owned(),
        ),
    ] {
        let ended = highwater(scratch.path(), words);
        assert_eq!(ended.stderr, format!("highwater: {line}\n"), "{words}");
        assert_eq!((ended.code, &*ended.stdout), (Some(2), ""), "{words}");
    }
    for command in ["replay", "bound"] {
        let ended = highwater(scratch.path(), &format!("{command} text.pickle"));
        assert_eq!((ended.code, &*ended.stdout), (Some(2), ""));
        assert!(ended.stderr.ends_with(&format!(", text.pickle; {needs}\n")), "{}", ended.stderr);
    }
    for (words, named) in [
        ("replay --generate everything", "everything"),
        ("replay --device tpu", "tpu"),
        ("replay --policy maybe", "maybe"),
        ("replay --behind -1", "-1"),
        ("bound", "SNAPSHOT"),
    ] {
        let ended = highwater(scratch.path(), words);
        assert_eq!(ended.code, Some(2), "{words}");
        assert!(ended.stderr.starts_with("error: ") && ended.stderr.contains(named), "{words}: {}", ended.stderr);
    }
}

#[test]
fn nothing_is_played_before_all_files_were_read() {
    let ended = highwater(Path::new("."), &format!("replay {TRACE} gone.pickle --json"));
    assert_eq!((ended.code, &*ended.stdout), (Some(2), ""));
}

#[test]
fn no_allocator_holds_less_than_the_bound() {
    let told = &objects(&format!("bound {TRACE} --json"))[0];
    let bytes = |key: &str| told[key].as_u64().unwrap_or_else(|| panic!("{key} in {told}"));
    let peers = ["pytorch", "expandable"].map(|peer| told[peer]["bytes"].as_u64().unwrap());
    assert!(bytes("peak_live_bytes") <= bytes("bound_bytes"));
    assert!(bytes("bound_bytes") <= bytes("best_bytes") && bytes("bound_bytes") <= bytes("ours_bytes"));
    assert!(bytes("best_bytes") <= peers[0] && bytes("best_bytes") <= peers[1]);
    // Reserved at the peak, as PyTorch counted it itself.
    assert!(told["ours_recorded_bytes"].is_null());
    assert_eq!((peers[0], &told["pytorch"]["simulated"]), (5_322_571_776, &Value::from(false)));
    // Measured in another run of the program: 2.02 GB.
    assert!((1_980_000_000..2_060_000_000).contains(&peers[1]) && told["expandable"]["simulated"] == true);

    // The certificate, added up by hand.
    let blocks = told["certificate"]["blocks"].as_array().unwrap();
    let taken: u64 = blocks.iter().map(|block| block[1].as_u64().unwrap().div_ceil(512) * 512).sum();
    assert_eq!(taken.div_ceil(2 << 20) * (2 << 20), bytes("bound_bytes"));
    let event = told["certificate"]["event"].as_u64().unwrap();
    assert!(blocks.iter().all(|block| block[0].as_u64().unwrap() <= event));
}

#[test]
fn a_bound_for_people_tells_its_proof() {
    let ended = highwater(Scratch::new().path(), &format!("bound {TRACE}"));
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""));
    for words in
        ["no placement holds less than", "best found without moves", "PyTorch, expandable", "proof: after event"]
    {
        assert!(ended.stdout.contains(words), "{words}: {}", ended.stdout);
    }
}

#[test]
fn the_frontier_holds_what_was_reached_under_limits() {
    let told = &objects(&format!("replay {TRACE} --frontier --json"))[0];
    let points = told["frontier"].as_array().unwrap();
    let values = |key: &str| points.iter().map(|point| point[key].as_f64().unwrap_or(0.0)).collect::<Vec<_>>();
    let (reached, most) = (values("utilization_reached"), values("utilization_at_most"));
    assert!(reached.is_sorted() && most.is_sorted());
    assert!(reached.iter().zip(&most).all(|(reached, most)| reached <= most), "{reached:?} {most:?}");
    assert!(reached[1] >= told["utilization"].as_f64().unwrap());
    assert!(reached[1] > reached[0], "with more time for pages more is reached: {reached:?}");
}
