//! What is written about a run: at the exit, and whenever the signal `SIGUSR1` comes.
//!
//! In the folder that `HIGHWATER_SHIM_OUT` names: a line of JSON is added to `stats.jsonl`, and `snapshot.pickle` is
//! replaced. Without the variable nothing is written and the signal is left alone.

use std::fs::{self, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Once;

use highwater::history::Snapshot;
use serde_json::{Map, Value, json};

use crate::ffi::{Signal, at_exit, in_forked_children};
use crate::inside;
use crate::shim::shim;

/// The variable that names the folder.
const FOLDER: &str = "HIGHWATER_SHIM_OUT";

/// Prepares for the end, and for the signal. Does it once, when the first GPU is in use.
pub(crate) fn begin() {
    static BEGUN: Once = Once::new();
    BEGUN.call_once(|| {
        in_forked_children(over);
        at_exit(ends);
        if folder().is_none() {
            return;
        }
        let Some(signal) = Signal::take_over() else { return };
        let answer = move || {
            let _inside = inside::enter();
            while signal.wait() {
                write("signal");
            }
        };
        // Without the thread there are no files before the exit, and nothing else is lost.
        let _ = std::thread::Builder::new().name("highwater-signal".into()).spawn(answer);
    });
}

extern "C" fn over() {
    shim().end();
}

extern "C" fn ends() {
    let _inside = inside::enter();
    if !shim().is_over() {
        let _ = std::panic::catch_unwind(|| write("exit"));
    }
    shim().end();
}

fn folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

fn write(reason: &str) {
    let Some(folder) = folder() else { return };
    if let Err(error) = write_to(&folder, reason) {
        eprintln!("highwater: writing to {} failed: {error}", folder.display());
    }
}

fn write_to(folder: &Path, reason: &str) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut line = statistics(reason).to_string();
    line.push('\n');
    // In one piece: several processes may write there.
    OpenOptions::new().create(true).append(true).open(folder.join("stats.jsonl"))?.write_all(line.as_bytes())?;

    let unfinished = folder.join(format!("snapshot.pickle.{}", std::process::id()));
    let mut snapshot = Snapshot::new();
    for (index, gpu) in shim().gpus().iter().enumerate() {
        gpu.allocator.add_to_snapshot(&mut snapshot, index);
    }
    snapshot.write_to(BufWriter::new(fs::File::create(&unfinished)?)).map_err(io::Error::other)?;
    fs::rename(&unfinished, folder.join("snapshot.pickle"))
}

/// The line: what the program called, then the state of each GPU.
fn statistics(reason: &str) -> Value {
    let mut line = Map::new();
    line.insert("reason".into(), reason.into());
    line.insert("process".into(), std::process::id().into());
    line.extend(shim().counts.pairs().map(|(name, count)| (name.to_owned(), count.into())));
    let stats: Vec<_> = shim().gpus().iter().map(|gpu| (gpu.ordinal, gpu.allocator.memory_stats())).collect();
    let sum = |of: fn(&highwater::MemoryStats) -> u64| stats.iter().map(|(_, stats)| of(stats)).sum::<u64>();
    line.insert("peak_live_bytes".into(), sum(|stats| stats.live.peak).into());
    line.insert("peak_reserved_bytes".into(), sum(|stats| stats.reserved.peak).into());
    line.insert("host_stalls".into(), sum(|stats| stats.host_stalls).into());
    let devices = stats.iter().map(|(ordinal, stats)| json!({ "ordinal": ordinal, "stats": stats.to_map() }));
    line.insert("devices".into(), devices.collect());
    Value::Object(line)
}
