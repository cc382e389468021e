//! The rules of the repository.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace").to_owned()
}

/// The crates of this workspace and those of them that each depends on, outside of tests.
fn crate_graph() -> BTreeMap<String, Vec<String>> {
    let folders = [
        "allocator",
        "allocator/core",
        "allocator/device",
        "allocator/history",
        "allocator/sanitizer",
        "kernels",
        "fsdp",
        "tools",
        "tools/shim",
        "tests",
    ];
    let manifest = |folder: &str| fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
    folders.map(|folder| parse(&manifest(folder))).into_iter().collect()
}

fn parse(manifest: &str) -> (String, Vec<String>) {
    let name = manifest.lines().find_map(|line| line.strip_prefix("name = \"")).unwrap().trim_end_matches('"');
    let (mut inside, mut dependencies) = (false, Vec::new());
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line.ends_with("dependencies]") && !line.contains("dev-");
        } else if inside && line.starts_with("highwater") {
            let end = line.find(['.', ' ', '=']).unwrap();
            dependencies.push(line[..end].to_owned());
        }
    }
    (name.to_owned(), dependencies)
}

#[test]
fn dependencies_point_one_way() {
    let graph = crate_graph();
    let of = |name: &str| graph[name].iter().map(String::as_str).collect::<Vec<_>>();
    for bottom in ["highwater-core", "highwater-device", "highwater-history"] {
        assert!(of(bottom).is_empty(), "{bottom} depends on nothing of this workspace");
    }
    // An independent witness of the core's clocks.
    assert_eq!(of("highwater-sanitizer"), ["highwater-device", "highwater-history"]);
    assert_eq!(of("highwater"), ["highwater-core", "highwater-device", "highwater-history", "highwater-sanitizer"]);
    assert_eq!(of("highwater-kernels"), ["highwater"]);
    assert_eq!(of("highwater-shim"), ["highwater"]);
    assert_eq!(of("highwater-fsdp"), ["highwater", "highwater-kernels"]);
    for above in ["highwater-tools", "highwater-tests"] {
        let below = ["highwater", "highwater-kernels", "highwater-fsdp"];
        assert!(of(above).iter().all(|name| below.contains(name)), "{above} uses the facade, not its parts");
    }
}

#[test]
fn code_lives_in_the_folders_of_the_map() {
    let known = ["allocator", "fsdp", "kernels", "tests", "fuzz", "tools"];
    for entry in fs::read_dir(root()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let hidden = name.starts_with('.') || ["target", "runs", "docs"].contains(&&*name);
        assert!(!path.is_dir() || hidden || known.contains(&&*name), "{name}/ is not on the map in ARCHITECTURE.md");
    }
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        // The programs under the shim are not this project's: they are what others write.
        if path.is_dir() && name != "target" && !path.ends_with("shim/programs") {
            sources(&path, found);
        } else if name.ends_with(".rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_file_says_what_it_is_for_and_holds_one_idea() {
    let mut files = Vec::new();
    for folder in ["allocator", "fsdp", "kernels", "tests", "fuzz", "tools"] {
        sources(&root().join(folder), &mut files);
    }
    assert!(files.len() > 50);
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("//!"), "{} begins without a word on what it is for", file.display());
        let lines = text.lines().count();
        assert!(lines <= 700, "{} has {lines} lines", file.display());
    }
}

/// What the hooks of the sanitizer call exists only with the feature, so the compiler refuses a hook without its gate. What
/// it cannot see is another kind of gate, code for builds without the feature, and a crate that turns it on for all.
#[test]
fn nothing_of_the_sanitizer_is_compiled_without_its_feature() {
    let read = |file: &str| fs::read_to_string(root().join(file)).unwrap();
    let manifest = read("allocator/Cargo.toml");
    assert!(manifest.contains("default = [\"cuda\", \"why\"]"), "the sanitizer is no default");
    assert!(manifest.contains("highwater-sanitizer = { workspace = true, optional = true }"));
    assert!(read("allocator/src/lib.rs").contains("#[cfg(feature = \"sanitizer\")]\npub mod sanitizer;"));
    for other in ["", "kernels/", "fsdp/", "tools/", "tools/shim/", "tests/"] {
        assert!(
            !read(&format!("{other}Cargo.toml")).contains("\"sanitizer\""),
            "{other}Cargo.toml turns it on for all"
        );
    }

    let mut files = Vec::new();
    for folder in ["allocator", "kernels/src", "fsdp/src", "tools"] {
        sources(&root().join(folder), &mut files);
    }
    files.retain(|file| !["tests", "examples", "allocator/sanitizer"].iter().any(|part| is_under(file, part)));
    files.sort();
    let mut without = Vec::new();
    for file in files {
        let name = file.strip_prefix(root()).unwrap().display().to_string();
        let text = fs::read_to_string(&file).unwrap();
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        for pair in lines.windows(2).filter(|pair| pair[0].contains("feature = \"sanitizer\"")) {
            assert!(name.starts_with("allocator/src/"), "{name} has a hook of the sanitizer");
            match pair[0] {
                "#[cfg(feature = \"sanitizer\")]" | "#[cfg_attr(feature = \"sanitizer\", track_caller)]" => {}
                "#[cfg(not(feature = \"sanitizer\"))]" => without.push((name.clone(), pair[1].to_owned())),
                other => panic!("{name} has a gate of another kind: {other}"),
            }
        }
    }
    // A setting says that the feature is missing; the device is returned from another field.
    let without: Vec<_> = without.iter().map(|(name, line)| (&**name, &**line)).collect();
    let settings = "allocator/src/settings.rs";
    let expected = [
        (settings, "\"sanitizer\" if value != \"off\" => {"),
        (settings, "\"sanitizer\" => {}"),
        ("allocator/src/shared.rs", "&self.device"),
    ];
    assert_eq!(without, expected);
}

/// Whether a path goes through a folder, or folders, of this name.
fn is_under(path: &Path, folders: &str) -> bool {
    let path = path.strip_prefix(root()).unwrap().display().to_string();
    format!("/{path}").contains(&format!("/{folders}/"))
}

/// Files with unsafe code: the calls of libraries, each with the invariants that make them sound.
const WITH_UNSAFE: &[&str] = &[
    "allocator/core/src/barrier.rs",
    "allocator/core/src/latch.rs",
    "allocator/core/tests/loom.rs",
    "allocator/device/src/cuda/driver.rs",
    "allocator/device/src/cuda/nvml.rs",
    "allocator/examples/cudarc_before_after.rs",
    "allocator/src/cuda/pointers.rs",
    "allocator/src/hold.rs",
    "allocator/src/process.rs",
    "allocator/tests/cuda/typecheck.rs",
    "allocator/tests/cuda/world.rs",
    "fsdp/src/group/driver.rs",
    "fsdp/src/group/nccl/library.rs",
    "kernels/src/cuda/launch.rs",
    "kernels/src/cuda/matmul.rs",
    "kernels/src/cuda/nvrtc.rs",
    "kernels/src/host/matmul.rs",
    "kernels/tests/gpu/gate.rs",
    "tools/shim/src/exports.rs",
    "tools/shim/src/ffi.rs",
    "tools/shim/tests/gpu.rs",
];

#[test]
fn unsafe_code_stands_where_the_architecture_says() {
    let mut files = Vec::new();
    for folder in ["allocator", "fsdp", "kernels", "tools"] {
        sources(&root().join(folder), &mut files);
    }
    let is_unsafe = |line: &str| {
        let code = line.split("//").next().unwrap_or_default();
        ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"].iter().any(|word| code.contains(word))
    };
    let mut with_unsafe: Vec<_> = files
        .into_iter()
        .filter(|file| fs::read_to_string(file).unwrap().lines().any(is_unsafe))
        .map(|file| file.strip_prefix(root()).unwrap().display().to_string())
        .collect();
    with_unsafe.sort();
    assert_eq!(with_unsafe, WITH_UNSAFE);
}

/// The places from which streams are made to wait and the host is blocked, in the library itself (its tests left out):
/// what is looked for, and how often it stands in which file. Whoever adds one says here what keeps two ranks from waiting
/// for each other through it.
const WAITS: &[(&str, &[(&str, usize)])] = &[
    // Waits on streams: the program's own, and those for memory, behind fences that depend on this GPU alone.
    ("device.wait(", &[("allocator/src/progress.rs", 1)]),
    (".put_wait(", &[("allocator/src/climb.rs", 1), ("allocator/src/stream.rs", 1)]),
    (".wait_recorded(", &[("allocator/src/stream.rs", 2)]),
    // For a request's memory, behind what `order_after` lets through: in the ladder, and before handles move.
    (".wait_on_device(", &[("allocator/src/climb.rs", 1), ("allocator/src/room.rs", 1)]),
    (".hold_back(", &[("allocator/src/cuda/pointers.rs", 1)]),
    (".fence_to_come_after(", &[("allocator/src/cuda/pointers.rs", 1), ("allocator/src/stream.rs", 1)]),
    // Of the program's, those of a training: its plan's, and the join of its lanes, on every rank alike.
    (".lane(op.lane()).wait(", &[("fsdp/src/run/runner.rs", 1)]),
    ("self.communication.wait(", &[("fsdp/src/run/runner.rs", 1)]),
    ("self.compute.wait(", &[]),
    // Waits of the host: each takes a deadline.
    ("device.synchronize(", &[("allocator/src/fence.rs", 1)]),
    ("device.synchronize(*handle, Some(", &[("allocator/src/fence.rs", 1)]),
    (
        ".wait_for(",
        &[
            ("allocator/src/climb.rs", 1),
            ("allocator/src/fence.rs", 1),
            ("allocator/src/launch_blocking.rs", 1),
            ("allocator/src/progress.rs", 1),
        ],
    ),
    (".wait_out(", &[("allocator/src/climb.rs", 1), ("allocator/src/host.rs", 1), ("allocator/src/teardown.rs", 1)]),
];

#[test]
fn nobody_waits_but_where_this_says() {
    let mut files = Vec::new();
    for folder in ["allocator/src", "kernels/src", "fsdp/src/run", "fsdp/src/transformer"] {
        sources(&root().join(folder), &mut files);
    }
    files.sort();
    for (call, expected) in WAITS {
        let found = files.iter().filter_map(|file| {
            let text = fs::read_to_string(file).unwrap();
            let code = text.split("\nmod tests {").next().unwrap_or_default();
            let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
            let count: usize = lines.map(|line| line.matches(call).count()).sum();
            (count > 0).then(|| (file.strip_prefix(root()).unwrap().display().to_string(), count))
        });
        let found: Vec<_> = found.collect();
        let found: Vec<_> = found.iter().map(|(file, count)| (&**file, *count)).collect();
        assert_eq!(found, *expected, "{call}");
    }
}

/// The value of a key of a mutant: a literal string of TOML, in one quote or in three.
fn literal<'a>(entry: &'a str, key: &str) -> &'a str {
    let start = entry.find(&format!("\n{key} = '")).unwrap_or_else(|| panic!("no {key} in {entry}"));
    let value = &entry[start + key.len() + 4..];
    let quote = if value.starts_with("'''") { "'''" } else { "'" };
    let value = &value[quote.len()..];
    let value = &value[..value.find(quote).expect("a literal ends")];
    value.strip_prefix('\n').unwrap_or(value)
}

#[test]
fn every_mutant_applies() {
    let lists = fs::read_dir(root().join("tests/mutants")).unwrap().map(|entry| entry.unwrap().path());
    let mut ids = BTreeMap::new();
    for list in lists.filter(|path| path.extension().is_some_and(|extension| extension == "toml")) {
        let text = fs::read_to_string(&list).unwrap();
        for entry in text.split("[[mutant]]").skip(1) {
            let [id, file, before] = ["id", "file", "before"].map(|key| literal(entry, key));
            let source = fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{id}: {file}: {error}"));
            assert_eq!(source.matches(before).count(), 1, "{id}: how often its text stands in {file}");
            assert_ne!(before, literal(entry, "after"), "{id} changes nothing");
            assert!(!literal(entry, "gone").is_empty() && !literal(entry, "tests").is_empty(), "{id} lacks words");
            let before = ids.insert(id.to_owned(), list.clone());
            assert!(before.is_none(), "{id} stands twice, in {} and {}", before.unwrap().display(), list.display());
        }
    }
    assert!(ids.len() >= 60, "there are {} mutants", ids.len());
}
