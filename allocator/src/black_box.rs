//! What is kept of a request that ran out of memory: its cause, and a snapshot, in a folder that the settings name.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use highwater_device::{MemoryInfo, ProcessMemory};
use highwater_history::Snapshot;

use crate::error::Cause;
use crate::shared::Shared;

/// Snapshots that one process writes so: a program may run out of memory in a loop, and live on.
const MOST: u32 = 3;

/// How many this process has begun. Files of several allocators lie in one folder.
static BEGUN: AtomicU32 = AtomicU32::new(0);

impl Shared {
    /// Writes a snapshot of a failure, if the settings say where to and there are not enough of them, and looks for the
    /// cause: the file, or why there is none; and the cause. `info` is what the device has said. No heap is held on entry.
    pub(crate) fn tell_failure(&self, info: Option<MemoryInfo>) -> (Option<Result<PathBuf, String>>, Option<Cause>) {
        let place = self.black_box_file();
        if place.is_none() && !self.looks_for_cause() {
            return (None, None);
        }
        let mut snapshot = Snapshot::new();
        self.add_to_snapshot(&mut snapshot, 0, info);
        let cause = if self.looks_for_cause() { cause_of(&snapshot) } else { None };
        (place.map(|(folder, file)| write(&snapshot, folder, file)), cause)
    }

    /// Who has memory of the device, if anybody is going to be told of the failure that was just counted: it takes a while
    /// to ask.
    pub(crate) fn processes_at_failure(&self) -> Vec<ProcessMemory> {
        let tells = self.settings.black_box().is_some() || self.looks_for_cause();
        if tells { self.device.processes() } else { Vec::new() }
    }

    /// Folder and file of the next snapshot.
    fn black_box_file(&self) -> Option<(&Path, PathBuf)> {
        let folder = self.settings.black_box()?;
        let number =
            BEGUN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |begun| (begun < MOST).then_some(begun + 1));
        Some((folder, folder.join(format!("out-of-memory-{}-{}.pickle", std::process::id(), number.ok()? + 1))))
    }

    /// Whether the failure that was just counted is to be explained.
    fn looks_for_cause(&self) -> bool {
        #[cfg(feature = "why")]
        return self.counts.out_of_memory.load(Ordering::Relaxed) <= crate::cause::MOST_FAILURES;
        #[cfg(not(feature = "why"))]
        false
    }
}

fn write(snapshot: &Snapshot, folder: &Path, file: PathBuf) -> Result<PathBuf, String> {
    let written = fs::create_dir_all(folder).map_err(|error| error.to_string());
    let written = written.and_then(|()| snapshot.save(&file).map_err(|error| error.to_string()));
    written.map(|()| file).map_err(|why| format!("{}: {why}", folder.display()))
}

#[cfg(feature = "why")]
fn cause_of(snapshot: &Snapshot) -> Option<Cause> {
    crate::cause::of(snapshot)
}

#[cfg(not(feature = "why"))]
fn cause_of(_: &Snapshot) -> Option<Cause> {
    None
}
