//! What this project writes is read as it was.

use highwater_history::{
    AllocatorSettings, Annotation, BlockState, DeviceHistory, DeviceMemory, FenceState, Frame, Noted, PendingWait,
    ProcessMemory, Snapshot, StackId, Stage, StreamName, TraceAction, TraceEvent,
    read::{EventAction, Loaded, LoadedDevice, Options, Setting, TextId, read},
};
use proptest::prelude::*;

use crate::world::{PAGE, Step, World, small, steps, written};

/// The snapshot that was read, in the words of the writer and with the numbers of its stacks.
fn unload(loaded: &Loaded, original: &Snapshot) -> Snapshot {
    let mut stacks = original.stacks.clone();
    let text = |text: TextId| loaded.symbols.text(text);
    let mut stack = |stack: StackId| {
        let frames = loaded.symbols.stack(stack).map(|frame| {
            let parts = loaded.symbols.frame(frame);
            Frame { filename: text(parts.filename).into(), line: parts.line, name: text(parts.name).into() }
        });
        stacks.intern(&frames.collect::<Vec<_>>())
    };
    let recorder = loaded.recorder.as_ref().expect("this project writes it");
    let devices = loaded.devices.iter().map(|device| unload_device(device, &mut stack)).collect();
    let Some(&Setting::Text(settings)) = loaded.setting("PYTORCH_CUDA_ALLOC_CONF") else { panic!("a text") };
    let Some(&Setting::Int(max_split_size)) = loaded.setting("max_split_size") else { panic!("a number") };
    let Some(&Setting::Float(threshold)) = loaded.setting("garbage_collection_threshold") else { panic!("a number") };
    let Some(&Setting::Bool(expandable_segments)) = loaded.setting("expandable_segments") else { panic!("a bool") };
    let annotations = loaded.annotations.iter().map(|annotation| Annotation {
        name: text(annotation.name).to_owned(),
        stage: annotation.stage,
        device: annotation.device as u32,
        time_us: annotation.time_us,
    });
    Snapshot {
        devices,
        allocator_settings: AllocatorSettings {
            text: text(settings).to_owned(),
            max_split_size,
            garbage_collection_threshold: threshold,
            expandable_segments,
        },
        annotations: annotations.collect(),
        settings: recorder.settings.iter().map(|&(name, value)| (text(name).into(), text(value).into())).collect(),
        stacks: original.stacks.clone(),
        span_paths: recorder.span_paths.iter().map(|&path| text(path).to_owned()).collect(),
    }
}

fn unload_device(device: &LoadedDevice, stack: &mut impl FnMut(StackId) -> StackId) -> DeviceHistory {
    let mut segments = device.segments.clone();
    for segment in &mut segments {
        segment.stack = stack(segment.stack);
        segment.blocks.iter_mut().for_each(|block| block.stack = stack(block.stack));
    }
    let trace = &device.trace;
    assert!(trace.is_timed());
    let events = trace.events().enumerate().map(|(row, event)| TraceEvent {
        action: match event.action {
            EventAction::Alloc => TraceAction::Alloc { rounded_bytes: trace.rounded_bytes(row) },
            EventAction::FreeRequested => TraceAction::FreeRequested,
            EventAction::FreeCompleted => TraceAction::FreeCompleted,
            EventAction::SegmentAlloc => TraceAction::SegmentAlloc,
            EventAction::SegmentFree => TraceAction::SegmentFree,
            EventAction::SegmentMap => TraceAction::SegmentMap,
            EventAction::SegmentUnmap => TraceAction::SegmentUnmap,
            EventAction::Snapshot => TraceAction::Snapshot,
            EventAction::OutOfMemory => TraceAction::OutOfMemory {
                device_free_bytes: trace.device_free_bytes(row).expect("it is always written"),
            },
            other => panic!("{other:?} is not written"),
        },
        address: event.address,
        bytes: event.bytes,
        stream: event.stream,
        time_us: event.time_us,
        stack: stack(event.stack),
        span: trace.span(row),
    });
    let trace = events.collect();
    let mut notes = device.notes.clone().expect("this project writes them");
    let mut place = |at: &mut StackId| *at = stack(*at);
    notes.stream_uses.iter_mut().for_each(|note| place(&mut note.stack));
    notes.pending_frees.iter_mut().for_each(|note| place(&mut note.stack));
    notes.rungs.iter_mut().for_each(|note| place(&mut note.stack));
    notes.stalls.iter_mut().for_each(|note| place(&mut note.stack));
    notes.waits_inserted.iter_mut().for_each(|note| place(&mut note.stack));
    notes.awaited.iter_mut().for_each(|note| place(&mut note.stack));
    notes.device_memory.iter_mut().for_each(|note| place(&mut note.stack));
    notes.processes.iter_mut().for_each(|note| place(&mut note.stack));
    DeviceHistory { segments, trace, notes }
}

#[track_caller]
fn comes_back(snapshot: &Snapshot) -> Loaded {
    let loaded = read(&written(snapshot), &Options::default()).expect("this project wrote it");
    let again = unload(&loaded, snapshot);
    assert_eq!(again.devices.len(), snapshot.devices.len());
    for (again, device) in again.devices.iter().zip(&snapshot.devices) {
        assert_eq!(again.segments, device.segments);
        assert_eq!(again.trace, device.trace);
        assert_eq!(again.notes, device.notes);
    }
    assert_eq!(again.allocator_settings, snapshot.allocator_settings);
    assert_eq!((again.annotations, again.settings), (snapshot.annotations.clone(), snapshot.settings.clone()));
    assert_eq!(again.span_paths, snapshot.span_paths);
    assert!(loaded.unknown_keys.is_empty(), "{:?}", loaded.unknown_keys);
    loaded
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn any_history_comes_back(steps in steps(300)) {
        let world = World::run(&steps, 1 << 20);
        let loaded = comes_back(&world.snapshot());
        let device = &loaded.devices[0];
        let in_use = || device.segments.iter().flat_map(|s| &s.blocks).filter(|b| b.state != BlockState::Inactive);
        prop_assert_eq!(in_use().count(), world.live_blocks());
        prop_assert_eq!(in_use().map(|block| block.requested_bytes).sum::<u64>(), world.live_bytes);
        prop_assert!(world.peak_bytes >= world.live_bytes && world.dropped() == 0);
    }
}

#[test]
fn everything_that_can_be_written_comes_back() {
    let mut world = small();
    world.step(Step::Map { stream: 2, page: 5 });
    let mut snapshot = world.snapshot();
    snapshot.device_mut(2).trace.push(TraceEvent {
        action: TraceAction::SegmentAlloc,
        address: 1 << 40,
        bytes: PAGE,
        stream: 1 << 45,
        time_us: 1_796_097_335_044_011,
        stack: StackId::EMPTY,
        span: 1,
    });
    snapshot.span_paths = vec![String::new(), "train/step i=1".into()];
    snapshot.settings = vec![("launch_blocking".into(), "true".into())];
    snapshot.annotations = vec![
        Annotation { name: "Optimizer.step".into(), stage: Stage::Start, device: 2, time_us: 5 },
        Annotation { name: "Optimizer.step".into(), stage: Stage::End, device: 2, time_us: 6 },
    ];
    let notes = &mut snapshot.device_mut(2).notes;
    notes.name = "gpu — ünïcode".into();
    (notes.capacity_bytes, notes.other_bytes) = (Some(80 << 30), Some(1 << 30));
    notes.streams = vec![StreamName { stream: 7, name: "comm".into(), open: true }];
    (notes.limit_bytes, notes.granularity_bytes) = (Some(40 << 30), Some(1 << 21));
    let wait = PendingWait { address: 1 << 40, stream: 7, position: 99, fence: None, held_by: None };
    notes.pending_waits = vec![wait];
    let states = [FenceState::Unrecorded, FenceState::Recorded, FenceState::Complete];
    let awaited = states.map(|state| PendingWait { fence: Some(state), held_by: Some(u64::from(state as u8)), ..wait });
    notes.awaited = awaited.map(|fact| Noted { time_us: 5, stack: StackId::EMPTY, span: 1, fact }).into();
    let fact = DeviceMemory { total_bytes: 80 << 30, free_bytes: 1 << 30, held_bytes: 50 << 30 };
    notes.device_memory = vec![Noted { time_us: 6, stack: StackId::EMPTY, span: 0, fact }];
    let processes = [true, false].map(|is_own| ProcessMemory { pid: u32::MAX, bytes: 9 << 30, is_own });
    notes.processes = processes.map(|fact| Noted { time_us: 6, stack: StackId::EMPTY, span: 0, fact }).into();
    let loaded = comes_back(&snapshot);
    let Noted { fact, .. } = loaded.devices[0].notes.as_ref().expect("written").stalls[0];
    assert_eq!(fact.stall_ns, 1_000_000);
    let recorder = loaded.recorder.expect("written");
    assert!(recorder.version > 0 && !loaded.symbols.text(recorder.writer).is_empty());
}
