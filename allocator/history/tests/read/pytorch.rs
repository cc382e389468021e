//! Snapshots that PyTorch wrote: their numbers are those that Python finds in them.

use highwater_history::{
    BlockState, SegmentKind, StackId, Stage,
    read::{Compression, Event, EventAction, Loaded, Options, Setting, read},
};

const CROSS_STREAM: &[u8] = include_bytes!("../data/oom_cross_stream.pickle.xz");
const LEAK: &[u8] = include_bytes!("../data/oom_leak.pickle.xz");
const RECORD_STREAM: &[u8] = include_bytes!("../data/prefetch_record_stream.pickle.xz");

fn load(file: &[u8]) -> Loaded {
    let loaded = read(file, &Options::default()).expect("PyTorch wrote it");
    assert_eq!((loaded.protocol, loaded.compression), (4, Some(Compression::Xz)));
    assert_eq!((loaded.devices.len(), loaded.host.len()), (1, 0));
    assert!(loaded.unknown_keys.is_empty(), "{:?}", loaded.unknown_keys);
    assert!(loaded.recorder.is_none() && loaded.damage.is_none());
    loaded
}

fn count(loaded: &Loaded, action: EventAction) -> usize {
    loaded.devices[0].trace.events().filter(|event| event.action == action).count()
}

/// A hash of a column that Python can compute too.
fn fold(column: &[u64]) -> u64 {
    column.iter().fold(0, |hash: u64, &value| hash.wrapping_mul(31).wrapping_add(value))
}

fn columns(loaded: &Loaded) -> [u64; 4] {
    let trace = &loaded.devices[0].trace;
    [trace.addresses(), trace.bytes(), trace.streams(), trace.times_us()].map(fold)
}

fn frame_uses(loaded: &Loaded) -> usize {
    loaded.devices[0].trace.stacks().iter().map(|&stack| loaded.symbols.stack(stack).count()).sum()
}

/// Bytes of segments: all, allocated, pending, requested.
fn sums(loaded: &Loaded) -> [u64; 4] {
    let segments = &loaded.devices[0].segments;
    let blocks = || segments.iter().flat_map(|segment| &segment.blocks);
    let pending = blocks().filter(|block| block.state == BlockState::PendingFree).map(|block| block.bytes).sum();
    [
        segments.iter().map(|segment| segment.total_bytes).sum(),
        segments.iter().map(|segment| segment.allocated_bytes).sum(),
        pending,
        blocks().map(|block| block.requested_bytes).sum(),
    ]
}

#[test]
fn memory_that_another_stream_holds() {
    let loaded = load(CROSS_STREAM);
    use EventAction::*;
    let counts = [SegmentAlloc, Alloc, FreeRequested, FreeCompleted, SegmentFree, Snapshot].map(|a| count(&loaded, a));
    assert_eq!((loaded.events(), counts), (193, [39, 40, 40, 37, 36, 1]));
    assert_eq!(columns(&loaded), [7206834452360593408, 16620955813447467008, 0, 881735144225094730]);
    assert_eq!((loaded.symbols.stacks(), loaded.symbols.frames(), frame_uses(&loaded)), (3, 3, 536));
    assert_eq!(sums(&loaded), [805306368, 0, 805306368, 805306368]);
    let trace = &loaded.devices[0].trace;
    let first = trace.event(0);
    let (address, bytes, time_us) = (139675792572416, 268435456, 1796097335044011);
    assert_eq!(first, Event { action: SegmentAlloc, address, bytes, stream: 0, time_us, stack: first.stack });
    let names: Vec<_> = loaded
        .symbols
        .stack(first.stack)
        .map(|frame| {
            let frame = loaded.symbols.frame(frame);
            (loaded.symbols.text(frame.name), loaded.symbols.text(frame.filename), frame.line)
        })
        .collect();
    let file = "/home/user/projects/a/train_m.py";
    assert_eq!(names, [("gather", file, 118), ("oom_cross_stream", file, 121), ("<module>", file, 140)]);
    assert!(trace.is_timed() && trace.compile_context(0).is_none() && trace.user_metadata(0).is_none());
}

#[test]
fn a_leak_that_ends_in_out_of_memory() {
    let loaded = load(LEAK);
    use EventAction::*;
    let counts = [SegmentAlloc, Alloc, FreeRequested, FreeCompleted, OutOfMemory, Snapshot].map(|a| count(&loaded, a));
    assert_eq!((loaded.events(), counts), (5297, [100, 1733, 1731, 1731, 1, 1]));
    assert_eq!(columns(&loaded), [2736732761835060736, 956013807016782984, 0, 12930726950028586171]);
    assert_eq!((loaded.symbols.stacks(), loaded.symbols.frames(), frame_uses(&loaded)), (5, 10, 10701));
    assert_eq!(sums(&loaded), [2136997888, 34603008, 0, 34603008]);
    let segments = &loaded.devices[0].segments;
    assert_eq!(segments.iter().filter(|segment| segment.kind == SegmentKind::Small).count(), 1);
    let trace = &loaded.devices[0].trace;
    let row = (0..trace.len()).find(|&row| trace.action(row) == OutOfMemory).expect("counted above");
    assert_eq!((trace.event(row).bytes, trace.device_free_bytes(row)), (8388608, Some(147254804480)));
    assert_eq!(trace.device_free_bytes(row - 1), None);
    let inner = loaded.symbols.stack(trace.event(row).stack).next().expect("it has frames");
    assert_eq!(loaded.symbols.text(loaded.symbols.frame(inner).name), "forward");
}

#[test]
fn events_without_stacks_and_with_annotations() {
    let loaded = load(RECORD_STREAM);
    use EventAction::*;
    let counts = [SegmentAlloc, Alloc, FreeRequested, FreeCompleted, Snapshot].map(|action| count(&loaded, action));
    assert_eq!((loaded.events(), counts), (6562, [28, 2180, 2177, 2176, 1]));
    let expected = [12838679172837507584, 6491641690562689706, 15578412107927186288, 16082966365964720957];
    assert_eq!(columns(&loaded), expected);
    assert_eq!(sums(&loaded), [5322571776, 68157440, 63221760, 131379200]);
    assert!(loaded.devices[0].trace.stacks().iter().all(|&stack| stack == StackId::EMPTY));
    assert_eq!(loaded.annotations.len(), 240);
    let last = loaded.annotations[239];
    assert_eq!(loaded.symbols.text(last.name), "Optimizer.zero_grad#SGD.zero_grad");
    assert_eq!((last.stage, last.device, last.time_us), (Stage::End, 0, 1796097223577876));
}

#[test]
fn settings_of_every_type() {
    let loaded = load(LEAK);
    assert_eq!(loaded.settings.len(), 9);
    assert_eq!(loaded.setting("max_split_size"), Some(&Setting::Int(-1)));
    assert_eq!(loaded.setting("garbage_collection_threshold"), Some(&Setting::Float(0.0)));
    assert_eq!(loaded.setting("expandable_segments"), Some(&Setting::Bool(false)));
    assert!(
        matches!(loaded.setting("PYTORCH_CUDA_ALLOC_CONF"), Some(&Setting::Text(text)) if loaded.symbols.text(text).is_empty())
    );
    let Some(Setting::Map(divisions)) = loaded.setting("roundup_power2_divisions") else { panic!("a map") };
    assert_eq!(divisions.len(), 16);
    assert_eq!((loaded.symbols.text(divisions[15].0), divisions[15].1), ("32768", 0));
    assert_eq!(loaded.setting("no_such_thing"), None);
}
