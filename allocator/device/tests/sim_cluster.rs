//! Several hosts: one at a time, by virtual time; deadlocks are told, panics travel, runs replay.

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use highwater_device::sim::{Collective, Communicator, Mode, SimCluster, SimConfig, SimDevice};
use highwater_device::{Address, ByteRange, Cost, CostModel, Device, DeviceError, DeviceResult, StreamId, Waited};
use support::{adversarial, idle, order, streams, ticks, write};

fn collective(communicator: &Communicator, name: &'static str) -> Collective {
    Collective {
        communicator: communicator.clone(),
        name: name.into(),
        tag: 0,
        cost: Cost::exact(10),
        sends: vec![ByteRange::new(Address(0), 0); communicator.ranks().len()],
        receive: write(Address(0), 0),
        body: Box::new(|_, _| ()),
    }
}

fn finish(device: &SimDevice, stream: StreamId) -> DeviceResult<Waited> {
    let fence = device.record(stream)?;
    device.synchronize(fence, None)
}

#[test]
fn the_host_with_the_least_time_goes_on() {
    let cluster = SimCluster::new(3, ticks());
    let log = Mutex::new(Vec::new());
    let clocks = cluster.run(|device| {
        let rank = device.properties().ordinal;
        for step in 0..3 {
            log.lock().unwrap().push((rank, step, device.now_ns()));
            device.host_work([10, 4, 7][rank as usize]);
        }
        device.now_ns()
    });
    assert_eq!(clocks, [30, 12, 21]);
    let log = log.into_inner().unwrap();
    assert_eq!(
        log,
        [
            (0, 0, 0), // each runs until its first call
            (1, 0, 0),
            (2, 0, 0),
            (1, 1, 4),
            (2, 1, 7),
            (1, 2, 8),
            (0, 1, 10),
            (2, 2, 14),
            (0, 2, 20),
        ]
    );
}

#[test]
fn a_blocked_host_goes_on_when_its_work_ends() {
    let cluster = SimCluster::new(2, ticks());
    let log = Mutex::new(Vec::new());
    cluster.run(|device| {
        let rank = device.properties().ordinal;
        device.launch(device.default_stream(), idle("work", [50, 20][rank as usize], vec![])).unwrap();
        assert_eq!(finish(&device, device.default_stream()), Ok(Waited::Complete));
        log.lock().unwrap().push((rank, device.now_ns()));
        device.host_work(10);
        log.lock().unwrap().push((rank, device.now_ns()));
    });
    assert_eq!(log.into_inner().unwrap(), [(1, 20), (1, 30), (0, 50), (0, 60)]);
}

#[test]
fn a_deadline_wakes_a_host_of_several() {
    let cluster = SimCluster::new(2, ticks());
    let ends = cluster.run(|device| {
        let stream = device.default_stream();
        device.launch(stream, idle("work", 100, vec![])).unwrap();
        let fence = device.record(stream).unwrap();
        let timeout = [30, 300][device.properties().ordinal as usize];
        (device.synchronize(fence, Some(timeout)).unwrap(), device.now_ns())
    });
    assert_eq!(ends, [(Waited::TimedOut, 30), (Waited::Complete, 100)]);
}

/// A program of four ranks with host work, two communicators and polling.
fn program(config: SimConfig) -> SimCluster {
    let cluster = SimCluster::new(4, config);
    cluster.run(|device| {
        let rank = u64::from(device.properties().ordinal);
        let world = device.cluster().communicator("world", &[0, 1, 2, 3]);
        let half = device.cluster().communicator("half", if rank < 2 { &[0, 1] } else { &[2, 3] });
        let [comm, compute] = streams(&device);
        for step in 0..6 {
            device.host_work(rank * step * 100);
            device.collective(comm, collective(&world, "gather")).unwrap();
            order(&device, comm, compute);
            device.launch(compute, idle("compute", 20 * (rank + 1), vec![])).unwrap();
            order(&device, compute, comm);
            device.collective(comm, collective(&half, "reduce")).unwrap();
            let fence = device.record(comm).unwrap();
            while step % 2 == 0 && !device.query(fence).unwrap() {}
        }
        assert_eq!(finish(&device, comm), Ok(Waited::Complete));
    });
    cluster.settle().unwrap();
    cluster
}

#[test]
fn a_run_replays_exactly() {
    let cost = CostModel { query_ns: 5, launch_ns: 3, ..CostModel::free() };
    for mode in [Mode::Timed, Mode::Adversarial { seed: 11 }, Mode::Adversarial { seed: 12 }] {
        let config = SimConfig { mode, cost: cost.clone(), ..ticks() };
        let first = program(config.clone());
        let timeline = first.take_timeline();
        assert_eq!(timeline.len(), 4 * 6 * 3);
        for workers in [0, 2] {
            let again = program(SimConfig { workers, ..config.clone() });
            assert_eq!(again.take_timeline(), timeline);
            assert_eq!(again.device(2).counters(), first.device(2).counters());
            assert_eq!(again.now_ns(), first.now_ns());
        }
    }
    let [one, two] = [11, 12].map(|seed| program(adversarial(seed)).take_timeline());
    assert_ne!(one, two, "seeds differ");
}

#[test]
fn a_deadlock_names_who_waits_for_what() {
    for mode in [Mode::Timed, Mode::Adversarial { seed: 3 }] {
        let cluster = SimCluster::new(2, SimConfig { mode, ..ticks() });
        let errors = cluster.run(|device| {
            let (first, second) =
                (device.cluster().communicator("first", &[0, 1]), device.cluster().communicator("second", &[0, 1]));
            // Rank 0 issues first, second on one stream; rank 1 the other way round.
            let stream = device.create_stream("comm").unwrap();
            let order = if device.properties().ordinal == 0 { [&first, &second] } else { [&second, &first] };
            for communicator in order {
                device.collective(stream, collective(communicator, "gather")).unwrap();
            }
            finish(&device, stream).unwrap_err()
        });
        assert_eq!(errors[0], errors[1]);
        let text = errors[0].to_string();
        assert!(matches!(errors[0], DeviceError::Deadlock { .. }), "{text}");
        assert_eq!(
            text,
            "deadlock: rank 0: stream \"comm\" is in \"gather\", collective 0 of communicator \"first\", \
             which lacks rank 1, where it is queued on stream \"comm\" \
             → rank 1: stream \"comm\" is in \"gather\", collective 0 of communicator \"second\", \
             which lacks rank 0, where it is queued on stream \"comm\" → rank 0: stream \"comm\"; \
             behind: rank 0: the host waits for a fence on stream \"comm\"; \
             rank 1: the host waits for a fence on stream \"comm\""
        );
        assert!(matches!(cluster.device(0).memory_info(), Err(DeviceError::Poisoned { .. })), "it is sticky");
    }
}

#[test]
fn a_part_that_is_never_issued_is_a_deadlock() {
    let cluster = SimCluster::new(2, ticks());
    let results = cluster.run(|device| {
        let world = device.cluster().communicator("world", &[0, 1]);
        let [comm, compute] = streams(&device);
        if device.properties().ordinal == 1 {
            return None;
        }
        device.collective(comm, collective(&world, "gather")).unwrap();
        order(&device, comm, compute);
        device.launch(compute, idle("use", 1, vec![])).unwrap();
        Some(finish(&device, compute).unwrap_err().to_string())
    });
    assert_eq!(
        results[0].as_deref(),
        Some(
            "deadlock: rank 0: stream \"s0\" is in \"gather\", collective 0 of communicator \"world\", \
             which lacks rank 1, which has not issued it, and its host has ended; \
             behind: rank 0: stream \"s1\" waits for a fence on stream \"s0\"; \
             rank 0: the host waits for a fence on stream \"s1\""
        )
    );
    assert_eq!(results[1], None);
}

/// The account of two ranks that `issue` stops for good.
fn account(issue: impl Fn(&Arc<SimDevice>, u32, [&Communicator; 2]) -> DeviceResult<()> + Sync) -> String {
    let cluster = SimCluster::new(2, ticks());
    let communicators = ["x", "y"].map(|name| cluster.communicator(name, &[0, 1]));
    let [x, y] = &communicators;
    let mut ends = cluster.run(|device| issue(&device, device.properties().ordinal, [x, y]).unwrap_err().to_string());
    let text = ends.pop().unwrap();
    assert_eq!(ends, [text.as_str()]);
    text
}

#[test]
fn a_circle_through_a_wait_is_told_step_by_step_without_those_behind_it() {
    let text = account(|device, rank, [x, y]| {
        let [a, b, compute] = streams(device);
        let (first, second) = if rank == 0 { ((x, a), (y, b)) } else { ((y, b), (x, a)) };
        device.collective(first.1, collective(first.0, "gather"))?;
        // On both ranks the second communicator's stream waits for the first one's: for another one on each.
        order(device, first.1, second.1);
        device.collective(second.1, collective(second.0, "gather"))?;
        order(device, second.1, compute);
        finish(device, compute).map(drop)
    });
    let circle = "deadlock: rank 0: stream \"s0\" is in \"gather\", collective 0 of communicator \"x\", \
                  which lacks rank 1, where it is queued on stream \"s0\" \
                  → rank 1: stream \"s0\" waits for a fence on stream \"s1\" \
                  → rank 1: stream \"s1\" is in \"gather\", collective 0 of communicator \"y\", \
                  which lacks rank 0, where it is queued on stream \"s1\" \
                  → rank 0: stream \"s1\" waits for a fence on stream \"s0\" → rank 0: stream \"s0\"; behind: ";
    let behind = text.strip_prefix(circle).unwrap_or_else(|| panic!("{text}"));
    assert_eq!(
        behind,
        "rank 0: stream \"s2\" waits for a fence on stream \"s1\"; \
         rank 1: stream \"s2\" waits for a fence on stream \"s0\"; \
         rank 0: the host waits for a fence on stream \"s2\"; rank 1: the host waits for a fence on stream \"s2\""
    );
}

#[test]
fn whoever_will_not_come_is_told_before_those_who_cannot() {
    let cluster = SimCluster::new(3, ticks());
    let ends = cluster.run(|device| {
        let (x, y) = (device.cluster().communicator("x", &[0, 1]), device.cluster().communicator("y", &[1, 2]));
        let [comm] = streams(&device);
        // Rank 2 leaves, rank 1 waits for it, and so never comes to what rank 0 waits for.
        let issued = match device.properties().ordinal {
            0 => &x,
            1 => &y,
            _ => return None,
        };
        device.collective(comm, collective(issued, "gather")).unwrap();
        Some(finish(&device, comm).unwrap_err().to_string())
    });
    assert_eq!(
        ends[0].as_deref(),
        Some(
            "deadlock: rank 1: stream \"s0\" is in \"gather\", collective 0 of communicator \"y\", \
             which lacks rank 2, which has not issued it, and its host has ended; \
             behind: rank 0: stream \"s0\" is in \"gather\", collective 0 of communicator \"x\", \
             which lacks rank 1, which has not issued it; \
             rank 0: the host waits for a fence on stream \"s0\"; rank 1: the host waits for a fence on stream \"s0\""
        )
    );
}

#[test]
fn a_circle_may_go_through_hosts() {
    let text = account(|device, rank, communicators| {
        let [comm] = streams(device);
        // Each host waits for its own collective before it issues the other one's part.
        device.collective(comm, collective(communicators[rank as usize], "gather"))?;
        finish(device, comm).map(drop)
    });
    assert_eq!(
        text,
        "deadlock: rank 0: stream \"s0\" is in \"gather\", collective 0 of communicator \"x\", \
         which lacks rank 1, which has not issued it \
         → rank 1: the host waits for a fence on stream \"s0\" \
         → rank 1: stream \"s0\" is in \"gather\", collective 0 of communicator \"y\", \
         which lacks rank 0, which has not issued it \
         → rank 0: the host waits for a fence on stream \"s0\" → rank 0: stream \"s0\""
    );
}

#[test]
fn a_circle_may_go_through_the_order_of_a_communicator() {
    let text = account(|device, rank, [x, y]| {
        let [a, b] = streams(device);
        if rank == 0 {
            device.collective(a, collective(x, "zero"))?;
            device.collective(b, collective(x, "one"))?;
            device.collective(b, collective(y, "other"))?;
        } else {
            device.collective(a, collective(y, "other"))?;
            device.collective(a, collective(x, "zero"))?;
            device.collective(b, collective(x, "one"))?;
        }
        finish(device, b).map(drop)
    });
    let circle = "deadlock: rank 0: stream \"s0\" is in \"zero\", collective 0 of communicator \"x\", \
                  which lacks rank 1, where it is queued on stream \"s0\" \
                  → rank 1: stream \"s0\" is in \"other\", collective 0 of communicator \"y\", \
                  which lacks rank 0, where it is queued on stream \"s1\" \
                  → rank 0: stream \"s1\" is in \"one\", collective 1 of communicator \"x\", \
                  which comes after collective 0 on stream \"s0\" → rank 0: stream \"s0\"; behind: ";
    assert!(text.starts_with(circle), "{text}");
    assert!(text[circle.len()..].starts_with("rank 1: stream \"s1\" is in \"one\", collective 1"), "{text}");
}

#[test]
fn settle_tells_what_is_stuck_and_more_may_be_submitted() {
    let cluster = SimCluster::new(2, ticks());
    let world = cluster.communicator("world", &[0, 1]);
    let [first, second] = [0, 1].map(|rank| cluster.device(rank));
    first.collective(first.default_stream(), collective(&world, "gather")).unwrap();
    match cluster.settle() {
        Err(DeviceError::Deadlock { cycle }) => assert!(cycle.contains("rank 1, which has not issued it"), "{cycle}"),
        other => panic!("{other:?}"),
    }
    second.collective(second.default_stream(), collective(&world, "gather")).unwrap();
    assert_eq!(cluster.settle(), Ok(()));
    assert_eq!(cluster.take_timeline().len(), 2);
}

#[test]
fn a_panic_in_one_host_reaches_the_caller_and_frees_the_others() {
    for (mode, polls) in [(Mode::Timed, false), (Mode::Timed, true), (Mode::Adversarial { seed: 1 }, true)] {
        let cost = CostModel { query_ns: 1, ..CostModel::free() };
        let cluster = SimCluster::new(3, SimConfig { mode, cost, ..ticks() });
        let seen = Mutex::new(Vec::new());
        let run = || {
            cluster.run(|device| {
                let world = device.cluster().communicator("world", &[0, 1, 2]);
                let stream = device.default_stream();
                device.host_work(5);
                assert!(device.properties().ordinal != 1, "rank 1 gives up");
                let waited = device.collective(stream, collective(&world, "gather")).and_then(|()| {
                    let fence = device.record(stream)?;
                    while polls && !device.query(fence)? {}
                    device.synchronize(fence, None)
                });
                seen.lock().unwrap().push(waited.unwrap_err().to_string());
            })
        };
        let payload = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
        assert_eq!(payload.downcast_ref::<&str>(), Some(&"rank 1 gives up"));
        let seen = seen.into_inner().unwrap();
        assert_eq!(seen.len(), 2);
        for text in seen {
            assert!(text.contains("the host of rank 1 panicked: rank 1 gives up"), "{text}");
        }
    }
}

#[test]
fn the_first_fault_of_a_device_stays() {
    let cluster = SimCluster::new(2, ticks());
    let [first, second] = [0, 1].map(|rank| cluster.device(rank));
    first.fail_fence(1);
    first.record(first.default_stream()).unwrap();
    let run = || cluster.run(|device| assert!(device.properties().ordinal != 1, "rank 1 gives up"));
    assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
    assert!(first.memory_info().unwrap_err().to_string().contains("injected failure of record"));
    assert!(second.memory_info().unwrap_err().to_string().contains("rank 1 gives up"));
}

#[test]
fn streams_fences_and_pages_belong_to_one_device() {
    let cluster = SimCluster::new(2, ticks());
    let [first, second] = [0, 1].map(|rank| cluster.device(rank));
    let granule = first.properties().granularity_bytes;
    let (stream, fence) = (first.default_stream(), first.record(first.default_stream()).unwrap());
    let (page, here) = (first.create(granule).unwrap(), second.reserve(granule).unwrap());
    let refused = [
        second.record(stream).map(drop),
        second.query(fence).map(drop),
        second.wait(second.default_stream(), fence),
        second.synchronize(fence, None).map(drop),
        second.map(page, here),
        second.release(page),
    ];
    for result in refused {
        assert!(matches!(result, Err(DeviceError::InvalidValue { .. })), "{result:?}");
    }
    second.release_fence(fence);
    assert_eq!(first.query(fence), Ok(true), "it is not the other device's to release");
}

#[test]
fn a_cluster_runs_again_after_a_run() {
    let cluster = SimCluster::new(2, ticks());
    for round in 1..=3 {
        let clocks = cluster.run(|device| {
            device.host_work(10);
            device.now_ns()
        });
        assert_eq!(clocks, [10 * round; 2]);
    }
}

#[test]
fn only_the_threads_of_a_run_may_call() {
    let cluster = SimCluster::new(1, ticks());
    let results =
        cluster.run(|device| std::thread::scope(|scope| scope.spawn(|| device.memory_info()).join().unwrap()));
    assert!(matches!(results[0], Err(DeviceError::InvalidValue { .. })));
    assert!(cluster.device(0).memory_info().is_ok());
}

#[test]
fn a_host_may_use_another_device() {
    let cluster = SimCluster::new(2, ticks());
    let clocks = cluster.run(|device| {
        if device.properties().ordinal == 1 {
            return 0;
        }
        let other = device.cluster().device(1);
        other.launch(other.default_stream(), idle("there", 40, vec![])).unwrap();
        assert_eq!(finish(&other, other.default_stream()), Ok(Waited::Complete));
        device.now_ns()
    });
    assert_eq!(clocks, [40, 0]);
}
