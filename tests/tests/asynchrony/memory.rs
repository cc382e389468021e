//! Out of memory: the request that fails is seldom the one that took the memory, and the error says who did.

use std::time::Duration;

use highwater::device::Cost;
use highwater::{AllocError, Buffer, OutOfMemory, Settings, SettingsBuilder};

use super::{GRANULE, World, config};

/// A request blocks the host for 100 ticks at most.
fn impatient() -> SettingsBuilder {
    Settings::builder().host_wait_timeout(Duration::from_nanos(100))
}

fn report(refused: Result<Buffer<u8>, AllocError>) -> OutOfMemory {
    match refused {
        Err(AllocError::OutOfMemory(report)) => *report,
        other => panic!("expected to be out of memory, got {other:?}"),
    }
}

/// A side stream keeps what it was given in every step; the training asks for the same each time.
#[test]
fn s7_3_a_leak_elsewhere_makes_an_innocent_request_fail_and_is_named() {
    let world = World::new(config());
    let (main, side) = (world.stream("main"), world.stream("side"));
    let (mut leaked, mut leak) = (Vec::new(), 0);
    let report = loop {
        let step = main.alloc::<u8>(4 * GRANULE);
        if step.is_err() {
            break report(step);
        }
        drop(step);
        leaked.push(side.alloc::<u8>(3 * GRANULE).unwrap());
        leak = line!() - 1;
    };
    assert_eq!((report.stream.as_str(), leaked.len()), ("main", 5));
    let live: Vec<_> = report.live_by_stream.iter().map(|held| (&*held.stream, held.bytes)).collect();
    assert_eq!(live, [("side", 15 * GRANULE as u64)]);
    let site = &report.live_sites[0];
    assert_eq!((&*site.stream, site.file, site.line), ("side", file!(), leak));
    assert_eq!((site.blocks, site.bytes), (5, 15 * GRANULE as u64));
    let text = report.to_string();
    assert!(text.starts_with("out of memory: 256.00 KiB requested on stream \"main\""), "{text}");
    let culprit = format!("most of what is live was asked for at {}:{leak} (960.00 KiB in 5 blocks on side)", file!());
    assert!(text.contains(&culprit), "{text}");
    let cause = report.cause.as_ref().expect("what is live explains it");
    assert!(cause.id == "A1" && cause.evidence.starts_with("960.00 KiB live"), "{cause}");
}

/// `main` hands a batch to `lagging`, which is far behind, frees it, and asks for the next: 20 uses of 50 ticks each. No wait
/// of the device's helps, for the lagging stream may wait for other ranks.
fn hand_over(world: &World) -> Result<Buffer<u8>, AllocError> {
    let (main, lagging) = (world.stream("main"), world.stream("lagging"));
    // Behind a collective nothing of ours may wait: what is left is the host.
    lagging.mark_open();
    let batch = main.alloc::<u8>(16 * GRANULE).unwrap();
    for _ in 0..20 {
        lagging.launch("use", Cost::exact(50)).read(&batch).submit().unwrap();
    }
    drop(batch);
    main.alloc::<u8>(16 * GRANULE)
}

#[test]
fn s7_3_memory_that_a_lagging_stream_holds_is_named_with_the_stream() {
    let world = World::with(config(), impatient().build().unwrap());
    let report = report(hand_over(&world));
    assert_eq!((world.now(), report.live), (100, 0), "nothing is live, and the host did wait");
    let pending: Vec<_> = report.pending_by_stream.iter().map(|held| (&*held.stream, held.bytes)).collect();
    assert_eq!(pending, [("lagging", 16 * GRANULE as u64)]);
    let text = report.to_string();
    assert!(text.contains("requested on stream \"main\""), "{text}");
    assert!(text.contains("1.00 MiB pending (lagging 1.00 MiB)"), "{text}");
}

#[test]
fn s7_3_once_the_lagging_stream_is_done_the_same_request_succeeds() {
    let world = World::with(config(), impatient().build().unwrap());
    report(hand_over(&world));
    world.host(900);
    world.stream("main again").alloc::<u8>(16 * GRANULE).unwrap();
    assert_eq!(world.now(), 1000);
}

#[test]
fn s7_3_in_launch_blocking_mode_no_stream_lags() {
    let world = World::with(config(), impatient().launch_blocking(true).build().unwrap());
    hand_over(&world).unwrap();
    assert_eq!(world.blocked(), (20, 1000));
    let stats = world.allocator.memory_stats();
    assert_eq!((stats.host_stalls, stats.host_stall_ns, stats.pending_bytes), (20, 1000, 0));
}

/// What is too much in itself fails in either mode, at its own call.
#[test]
fn s7_3_a_request_that_can_never_fit_is_its_own_culprit() {
    for blocking in [false, true] {
        let world = World::with(config(), Settings::builder().launch_blocking(blocking).build().unwrap());
        let report = report(world.stream("main").alloc::<u8>(17 * GRANULE));
        assert!(report.live_sites.is_empty() && report.pending_by_stream.is_empty());
        assert!(report.to_string().contains("; no more than 1048576 bytes can ever be mapped; cause A2, "), "{report}");
    }
}
