//! `highwater view` and `highwater tui` as commands: pages that are written, and what is refused. What pages show is in
//! [`browser`](crate::browser).

use std::fs;
use std::path::{Path, PathBuf};

use crate::scratch::Scratch;
use crate::support::highwater;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../allocator/history/tests/data").join(name)
}

#[test]
fn a_page_is_one_file_that_may_fetch_nothing() {
    let scratch = Scratch::new();
    fs::copy(data("oom_leak.pickle.xz"), scratch.path().join("rank0.pickle.xz")).unwrap();
    let ended = highwater(scratch.path(), "view rank0.pickle.xz");
    assert_eq!((ended.code, &*ended.stderr), (Some(0), ""));
    assert!(ended.stdout.starts_with("rank0.html (0.1 MB): open it"), "{}", ended.stdout);
    let page = fs::read_to_string(scratch.path().join("rank0.html")).unwrap();
    assert!(page.contains("http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';"));
    // No address but those of the standards that the script names to nobody.
    for word in ["http://", "https://", "//cdn", "src=", "@import", "url("] {
        assert!(!page.contains(word), "{word}");
    }
    let other = highwater(scratch.path(), "view rank0.pickle.xz -o - --capacity 80GiB");
    assert_eq!(other.code, Some(0));
    assert!(other.stdout.starts_with("<!doctype html>") && other.stdout.contains("\"capacity\":85899345920"));
    assert_eq!(
        page,
        highwater(scratch.path(), "view rank0.pickle.xz -o -").stdout,
        "the same file gives the same page"
    );
}

#[test]
fn the_page_grows_by_a_few_bytes_an_event() {
    let scratch = Scratch::new();
    let page =
        highwater(scratch.path(), &format!("view {} -o -", data("prefetch_record_stream.pickle.xz").display())).stdout;
    let own = highwater(scratch.path(), &format!("view {} -o -", data("oom_cross_stream.pickle.xz").display())).stdout;
    let events = 6562 - 193;
    assert!(page.len() - own.len() < 20 * events, "{} bytes for {events} events", page.len() - own.len());
}

#[test]
fn bad_input_is_refused_in_one_line() {
    let scratch = Scratch::new();
    scratch.write("notes.txt", "all is well");
    fs::copy(data("oom_leak.pickle.xz"), scratch.path().join("leak.pickle.xz")).unwrap();
    let before = fs::read(scratch.path().join("leak.pickle.xz")).unwrap();
    for (words, code, line) in [
        ("view nothing", 2, "No such file or directory (os error 2), reading nothing; give files that can be read"),
        (
            "view leak.pickle.xz -o ./leak.pickle.xz",
            2,
            "this would take the place of the snapshot, --out ./leak.pickle.xz; give another file",
        ),
        (
            "view leak.pickle.xz -o no/page.html",
            1,
            "No such file or directory (os error 2), no/page.html; make its folder or choose another with --out",
        ),
        ("tui leak.pickle.xz", 2, "stdout is no terminal, tui; run it in one, or use highwater view or highwater why"),
    ] {
        let ended = highwater(scratch.path(), words);
        assert_eq!((ended.code, &*ended.stdout), (Some(code), ""), "{words}");
        assert_eq!(ended.stderr, format!("highwater: {line}\n"), "{words}");
    }
    assert_eq!(fs::read(scratch.path().join("leak.pickle.xz")).unwrap(), before);
    let ended = highwater(scratch.path(), "view notes.txt");
    assert_eq!((ended.code, ended.stderr.lines().count()), (Some(2), 1), "{}", ended.stderr);
    assert!(ended.stderr.contains("give a memory snapshot of PyTorch or of this project"), "{}", ended.stderr);
}

#[test]
fn damaged_files_are_shown_as_far_as_they_go() {
    let scratch = Scratch::new();
    let packed = fs::read(data("oom_leak.pickle.xz")).unwrap();
    let whole = highwater::history::read::unpack(&packed, 1 << 30).unwrap();
    fs::write(scratch.path().join("cut.pickle"), &whole[..whole.len() / 2]).unwrap();
    let ended = highwater(scratch.path(), "view cut.pickle -o -");
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stdout.contains("the file is damaged, and was read as far as it goes"));
}
