//! Who has memory of the device: this process, and another one that is started for it.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use highwater::device::Device;
use highwater::device::cuda::{CudaConfig, CudaDevice};

/// What each of the two takes.
const BYTES: u64 = 4 << 30;
/// Set in the process that is started.
const STARTED: &str = "HIGHWATER_TEST_HOLDS_MEMORY";
const READY: &str = "it holds memory";

#[test]
#[ignore = "needs a GPU"]
fn another_process_and_this_one_are_told_apart() {
    let device = CudaDevice::new(CudaConfig::default()).unwrap();
    let page = device.create(BYTES).unwrap();
    if std::env::var_os(STARTED).is_some() {
        println!("{READY}");
        // Until the other one lets go.
        let _ = std::io::stdin().read(&mut [0]);
        return device.release(page).unwrap();
    }
    let mut other = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "processes::another_process_and_this_one_are_told_apart"])
        .env(STARTED, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(other.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains(READY)), "it ended before it held memory");
    let processes = device.processes();
    drop(other.stdin.take());
    other.wait().unwrap();
    device.release(page).unwrap();
    if processes.is_empty() {
        return eprintln!("skipped: NVML tells of no process here");
    }
    let of = |pid: u32| processes.iter().find(|process| process.pid == pid).unwrap_or_else(|| panic!("{processes:?}"));
    let (own, started) = (of(std::process::id()), of(other.id()));
    assert!(own.is_own && !started.is_own, "{processes:?}");
    // A context comes to it.
    for bytes in [own.bytes, started.bytes] {
        assert!((BYTES..BYTES + (2 << 30)).contains(&bytes), "{processes:?}");
    }
    println!("{processes:?}");
}
