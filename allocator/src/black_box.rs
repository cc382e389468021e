//! What is kept of a request that ran out of memory: a snapshot, in a folder that the settings name.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use highwater_history::Snapshot;

use crate::shared::Shared;

/// Snapshots that one process writes so: a program may run out of memory in a loop, and live on.
const MOST: u32 = 3;

/// How many this process has begun. Files of several allocators lie in one folder.
static BEGUN: AtomicU32 = AtomicU32::new(0);

impl Shared {
    /// Writes a snapshot, if the settings say where to and there are not enough of them: the file, or why there is none.
    /// No heap is held on entry.
    pub(crate) fn write_black_box(&self) -> Option<Result<PathBuf, String>> {
        let folder = self.settings.black_box()?;
        let number =
            BEGUN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |begun| (begun < MOST).then_some(begun + 1));
        let file = folder.join(format!("out-of-memory-{}-{}.pickle", std::process::id(), number.ok()? + 1));
        let mut snapshot = Snapshot::new();
        self.add_to_snapshot(&mut snapshot, 0);
        let written = fs::create_dir_all(folder).map_err(|error| error.to_string());
        let written = written.and_then(|()| snapshot.save(&file).map_err(|error| error.to_string()));
        Some(written.map(|()| file).map_err(|why| format!("{}: {why}", folder.display())))
    }
}
