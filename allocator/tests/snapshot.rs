//! Snapshots: they hold together, the viewer of PyTorch opens them, and they say who asked for what.

use highwater::device::sim::SimConfig;
use highwater::history::{BlockState, Snapshot, SpanPathLayer, TraceAction, viewer};
use highwater::{Buffer, Settings};
use tracing_subscriber::layer::SubscriberExt as _;

use crate::world::{MEMORY, World, address, granules, ticks};

/// Checks a snapshot by every means there is.
#[track_caller]
fn check(snapshot: &Snapshot) -> viewer::ViewerSummary {
    snapshot.check().unwrap();
    let mut bytes = Vec::new();
    snapshot.write_to(&mut bytes).unwrap();
    viewer::check(&bytes).unwrap()
}

#[test]
fn a_snapshot_of_nothing_is_one_too() {
    let world = World::timed();
    assert_eq!(check(&world.allocator.snapshot()).live_bytes, 0);
    world.end();
}

#[test]
fn live_pending_and_free_blocks_are_what_they_are() {
    let world = World::timed();
    let [s, t] = world.streams();
    let mut live: Vec<Buffer<u8>> = (1..5).map(|size| world.bytes(&s, 3000 * size)).collect();
    world.busy(&t, &live[1], 100);
    drop(live.remove(1));
    drop(live.remove(2));
    let other = world.bytes(&t, granules(2) - 5);
    let snapshot = world.allocator.snapshot();
    let summary = check(&snapshot);
    let stats = world.stats();
    // The viewer draws what was asked for, of live and pending blocks.
    assert_eq!(summary.live_bytes, stats.live.now + 6000);
    assert_eq!((summary.devices, summary.segments), (1, 2));

    let device = &snapshot.devices[0];
    let sum = |state| -> u64 {
        let blocks = device.segments.iter().flat_map(|segment| &segment.blocks);
        blocks.filter(|block| block.state == state).map(|block| block.bytes).sum()
    };
    assert_eq!(sum(BlockState::Allocated), stats.live.now + stats.rounding_bytes);
    assert_eq!(sum(BlockState::PendingFree), stats.pending_bytes);
    assert_eq!(sum(BlockState::Inactive), stats.cached_bytes);
    let names: Vec<&str> = device.notes.streams.iter().map(|stream| stream.name.as_str()).collect();
    assert_eq!(names, ["default", "s", "t"]);
    assert_eq!((device.notes.pending_waits.len(), device.notes.pending_waits[0].stream), (1, 2));
    assert_eq!((device.notes.stream_uses.len(), device.notes.pending_frees.len()), (1, 1));
    assert_eq!(device.notes.capacity_bytes, Some(MEMORY));
    drop((live, other, s, t));
    world.end();
}

#[test]
fn after_growth_returns_and_failures_it_still_holds_together() {
    let world = World::timed();
    let [s, t] = world.streams();
    for round in 0..6 {
        let x = world.bytes(&s, granules(2) + round * 700);
        let y = world.bytes(&t, granules(3));
        world.fill(&t, &x, 1, 30);
        world.busy(&s, &y, 20);
        drop(x);
        check(&world.allocator.snapshot());
        world.no_room(&s, granules(15));
        drop(y);
        world.pass(if round % 2 == 0 { 100 } else { 5 });
        world.allocator.trim(granules(2) as u64);
        check(&world.allocator.snapshot());
    }
    let snapshot = world.allocator.snapshot();
    let device = &snapshot.devices[0];
    let has = |wanted: fn(&TraceAction) -> bool| device.trace.iter().any(|event| wanted(&event.action));
    assert!(has(|action| matches!(action, TraceAction::SegmentUnmap)));
    assert!(has(|action| matches!(action, TraceAction::OutOfMemory { .. })));
    assert!(has(|action| matches!(action, TraceAction::FreeCompleted)));
    assert!(!device.notes.stalls.is_empty() && !device.notes.rungs.is_empty());
    drop((snapshot, s, t));
    world.end();
}

/// The steps of the viewer in its own language, on what this allocator writes; see the script.
#[test]
fn node_opens_what_is_written() {
    if std::process::Command::new("node").arg("--version").output().is_err() {
        println!("skipped: there is no node on this machine");
        return;
    }
    let world = World::timed();
    let [s, t] = world.streams();
    for round in 0..20 {
        let x = world.bytes(&s, granules(2) + round * 700);
        let y = world.bytes(&t, granules(3));
        world.busy(&t, &x, 30);
        drop(x);
        world.no_room(&s, granules(15));
        drop(y);
        world.pass(if round % 2 == 0 { 100 } else { 5 });
        world.allocator.trim(granules(2) as u64);
    }
    let live = world.bytes(&t, 5000);
    let snapshot = world.allocator.snapshot();
    let summary = check(&snapshot);
    let file = std::env::temp_dir().join(format!("highwater-node-{}.pickle", std::process::id()));
    snapshot.save(&file).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/history/tests/snapshot/viewer.js");
    let output = std::process::Command::new("node").arg(script).arg(&file).output().unwrap();
    std::fs::remove_file(file).unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    let sums = format!("\"events\":{},\"live_bytes\":{}", summary.events, summary.live_bytes);
    assert!(told.contains(&sums), "{sums} {told} {}", String::from_utf8_lossy(&output.stderr));
    drop((live, s, t));
    world.end();
}

#[test]
fn memory_that_a_graph_keeps_is_in_use() {
    let world = World::timed();
    let [s] = world.streams();
    let capture = s.begin_capture().unwrap();
    drop(world.bytes(&s, 1000));
    let graph = capture.end().unwrap();
    assert_eq!(check(&world.allocator.snapshot()).live_bytes, 1000);
    assert_eq!(world.stats().live.now, 1000);
    drop(graph);
    assert_eq!(check(&world.allocator.snapshot()).live_bytes, 0);
    drop(s);
    world.end();
}

#[test]
fn a_history_that_overflowed_or_is_off_still_holds_together() {
    for kib in [0, 1] {
        let world = World::new(ticks(), Settings::builder().history_kib(kib));
        let [s, t] = world.streams();
        let kept = world.bytes(&s, 5000);
        for _ in 0..100 {
            let x = world.bytes(&s, 1000);
            world.busy(&t, &x, 10);
            drop(x);
            world.pass(7);
        }
        let snapshot = world.allocator.snapshot();
        check(&snapshot);
        assert!(snapshot.devices[0].notes.history_dropped > 0);
        drop((kept, s, t));
        world.end();
    }
}

#[test]
fn a_pending_block_still_names_the_line_that_asked_for_it() {
    let world = World::timed();
    let [s, t] = world.streams();
    let line = line!() + 1;
    let waiting = s.alloc::<u8>(3000).unwrap();
    world.busy(&t, &waiting, 100);
    drop(waiting);
    let line_of = |snapshot: &Snapshot| {
        let mut blocks = snapshot.devices[0].segments.iter().flat_map(|segment| &segment.blocks);
        let pending = blocks.find(|block| block.state == BlockState::PendingFree)?;
        Some(snapshot.stacks.frames(pending.stack).unwrap()[0].line)
    };
    assert_eq!(line_of(&world.allocator.snapshot()), Some(line));
    drop((s, t));
    world.end();
}

#[test]
fn a_block_names_the_line_and_the_spans_that_asked_for_it() {
    let subscriber = tracing_subscriber::registry().with(SpanPathLayer::new());
    tracing::subscriber::with_default(subscriber, || {
        let world = World::new(SimConfig { memory_bytes: 4 * MEMORY, ..ticks() }, Settings::builder());
        let [s] = world.streams();
        let _step = tracing::info_span!("step", i = 3).entered();
        let line = line!() + 3;
        let buffer = {
            let _layer = tracing::info_span!("attention").entered();
            s.alloc::<u8>(1000).unwrap()
        };
        let raw_line = line!() + 1;
        let raw = world.allocator.alloc_raw(&s, 2000).unwrap();
        let snapshot = world.allocator.snapshot();
        check(&snapshot);
        let frames = |bytes: u64| {
            let blocks = snapshot.devices[0].segments.iter().flat_map(|segment| &segment.blocks);
            let block = blocks.clone().find(|block| block.requested_bytes == bytes).unwrap();
            snapshot.stacks.frames(block.stack).unwrap()
        };
        let of_buffer = frames(1000);
        let names: Vec<&str> = of_buffer.iter().map(|frame| &*frame.name).collect();
        assert!(names.len() == 3 && names[0] == "attention" && names[1] == "step i=3", "{names:?}");
        assert_eq!((of_buffer[0].line, &*of_buffer[0].filename), (line, file!()));
        assert_eq!(frames(2000)[0].line, raw_line);
        let event = snapshot.devices[0].trace.iter().find(|event| event.bytes == 1000).unwrap();
        assert_eq!(snapshot.span_paths[event.span as usize], "step i=3/attention");
        drop((buffer, s));
        world.allocator.free_raw(raw).unwrap();
        world.end();
    });
}

/// The number of files is one of the process, so this is one test.
#[test]
fn what_runs_out_of_memory_leaves_snapshots_but_not_without_end() {
    let folder = std::env::temp_dir().join(format!("highwater-black-box-{}", std::process::id()));
    let refused = |folder: &std::path::Path| {
        let world = World::with(crate::world::still().black_box(folder));
        let [s] = world.streams();
        let live = world.bytes(&s, 5000);
        let report = world.no_room(&s, MEMORY as usize);
        drop((live, s));
        world.end();
        report
    };
    let no_folder = refused(std::path::Path::new("/dev/null/here"));
    let Some(Err(why)) = &no_folder.snapshot else { panic!("{no_folder:?}") };
    assert!(no_folder.to_string().contains(&format!("no snapshot of it could be written: {why}")));
    assert!(why.starts_with("/dev/null/here: "), "{why}");
    for number in [2, 3] {
        let report = refused(&folder);
        let Some(Ok(file)) = &report.snapshot else { panic!("{report:?}") };
        assert_eq!(*file, folder.join(format!("out-of-memory-{}-{number}.pickle", std::process::id())));
        assert!(report.to_string().ends_with(&format!("highwater why {} tells more", file.display())));
        assert_eq!(viewer::check(&std::fs::read(file).unwrap()).unwrap().live_bytes, 5000);
    }
    assert_eq!(refused(&folder).snapshot, None, "three are enough");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn records_share_a_reading_of_the_clock_until_work_is_submitted_or_there_are_many() {
    let world = World::timed();
    let [s] = world.streams();
    // From here on the heap has what it needs.
    drop(world.bytes(&s, granules(8)));
    let used = world.bytes(&s, granules(1));
    world.pass(10_000);
    let shared = world.bytes(&s, granules(1));
    world.fill(&s, &used, 1, 1);
    let fresh = world.bytes(&s, granules(1));
    world.pass(10_000);
    let many: Vec<_> = (0..70).map(|_| world.bytes(&s, 1)).collect();
    let snapshot = world.allocator.snapshot();
    let time_of = |buffer: &Buffer<u8>| {
        let mut events = snapshot.devices[0].trace.iter();
        events.rfind(|event| event.address == address(buffer)).unwrap().time_us
    };
    assert_eq!([&used, &shared, &fresh].map(time_of), [0, 0, 10]);
    assert_eq!([&many[0], &many[69]].map(time_of), [10, 20]);
    drop((used, shared, fresh, many, s));
    world.end();
}
