//! A file is replaced whole or not at all.

use std::{
    fs,
    path::{Path, PathBuf},
};

use highwater_history::{Snapshot, viewer};

use crate::world::small;

/// An empty folder of this test's own.
fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder can be made");
    folder
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the folder is there");
    entries.map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_saved_file_replaces_the_old_one() {
    let folder = folder("replaces");
    let path = folder.join("memory.pickle");
    fs::write(&path, "old").expect("writable");
    small().snapshot().save(&path).expect("saved");
    viewer::check(&fs::read(&path).expect("readable")).expect("opens");
    assert_eq!(names(&folder), ["memory.pickle"]);
    fs::remove_dir_all(&folder).expect("removable");
}

/// A device or a pipe is written to: if a file took its place, it would be gone for every program.
#[cfg(target_os = "linux")]
#[test]
fn what_is_no_file_is_written_to_and_stays() {
    use std::{io::Read, os::unix::fs::FileTypeExt, process::Command};
    let folder = folder("pipe");
    let path = folder.join("pipe");
    assert!(Command::new("mkfifo").arg(&path).status().expect("it starts").success());
    let mut pipe = fs::File::options().read(true).write(true).open(&path).expect("a pipe opens");
    Snapshot::new().save(&path).expect("saved");
    assert!(fs::metadata(&path).expect("it is there").file_type().is_fifo());
    let mut file = Vec::new();
    Snapshot::new().write_to(&mut file).expect("writable");
    let mut read = vec![0; file.len()];
    pipe.read_exact(&mut read).expect("readable");
    assert_eq!((read, names(&folder)), (file, vec!["pipe".to_owned()]));
    fs::remove_dir_all(&folder).expect("removable");
}

#[cfg(unix)]
#[test]
fn behind_a_link_the_file_that_it_points_to_is_replaced() {
    let folder = folder("link");
    let (file, link) = (folder.join("memory.pickle"), folder.join("latest.pickle"));
    fs::write(&file, "old").expect("writable");
    std::os::unix::fs::symlink("memory.pickle", &link).expect("a link can be made");
    small().snapshot().save(&link).expect("saved");
    assert!(fs::symlink_metadata(&link).expect("it is there").is_symlink());
    viewer::check(&fs::read(&file).expect("readable")).expect("opens");
    fs::remove_dir_all(&folder).expect("removable");
}

#[test]
fn a_failed_save_leaves_the_old_file_and_nothing_else() {
    let folder = folder("fails");
    let path = folder.join("memory.pickle");
    fs::write(&path, "old").expect("writable");
    let mut snapshot = small().snapshot();
    snapshot.devices[0].notes.stalls[0].fact.stall_ns = u64::MAX;
    let error = snapshot.save(&path).expect_err("the number is too large");
    assert_eq!(fs::read_to_string(&path).expect("readable"), "old");
    assert_eq!(names(&folder), ["memory.pickle"]);
    let text = error.to_string();
    assert!(text.contains("memory.pickle") && text.contains(&u64::MAX.to_string()), "{text}");
    fs::remove_dir_all(&folder).expect("removable");
}

#[test]
fn a_path_that_cannot_be_saved_to_is_named() {
    let folder = folder("refuses");
    let missing = folder.join("missing").join("memory.pickle");
    let text = Snapshot::new().save(&missing).expect_err("the folder is missing").to_string();
    assert!(text.contains(&missing.display().to_string()), "{text}");
    let text = Snapshot::new().save(folder.join("..")).expect_err("no file name").to_string();
    assert!(text.contains("names no file"), "{text}");
    let taken = folder.join("taken");
    fs::create_dir(&taken).expect("a folder can be made");
    Snapshot::new().save(&taken).expect_err("a folder has the name");
    assert_eq!(names(&folder), ["taken"]);
    fs::remove_dir_all(&folder).expect("removable");
}
