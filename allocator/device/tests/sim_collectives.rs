//! Collectives: right bytes, right times, and what happens when ranks do not agree.

mod support;

use std::sync::Arc;

use highwater_device::sim::{Collective, Communicator, ExecutedKind, Mode, SimCluster, SimConfig, SimDevice};
use highwater_device::{Address, ByteRange, Cost, CostModel, Device, DeviceCall, DeviceError, StreamId};
use support::{adversarial, fill, idle, memory, order, spans, streams, ticks, write};

/// Every rank sends `shard` and receives all shards behind each other.
fn gather(communicator: &Communicator, cost: Cost, shard: ByteRange, receive: Address) -> Collective {
    let ranks = communicator.ranks().len();
    Collective {
        communicator: communicator.clone(),
        name: "all_gather".into(),
        tag: 0,
        cost,
        sends: vec![shard; ranks],
        receive: write(receive, shard.bytes * ranks as u64),
        body: Box::new(|sent, received| {
            let all: Vec<u8> = sent.iter().flat_map(|shard| shard.as_bytes()).copied().collect();
            received.as_bytes_mut().copy_from_slice(&all);
        }),
    }
}

/// Rank r receives the sum of everyone's piece r.
fn reduce_scatter(communicator: &Communicator, cost: Cost, pieces: &[ByteRange], receive: Address) -> Collective {
    Collective {
        communicator: communicator.clone(),
        name: "reduce_scatter".into(),
        tag: 0,
        cost,
        sends: pieces.to_vec(),
        receive: write(receive, pieces[0].bytes),
        body: Box::new(|sent, received| {
            for (index, sum) in received.as_mut_slice::<u32>().iter_mut().enumerate() {
                *sum = sent.iter().map(|piece| piece.as_slice::<u32>()[index]).sum();
            }
        }),
    }
}

fn fill_u32(device: &SimDevice, stream: StreamId, address: Address, count: u64, value: impl Fn(u32) -> u32) {
    let bytes: Vec<u8> = (0..count as u32).flat_map(|index| value(index).to_ne_bytes()).collect();
    device.copy_to_device(stream, address, &support::pinned(&bytes), 0, bytes.len() as u64).unwrap();
}

fn u32s(device: &SimDevice, address: Address, count: u64) -> Vec<u32> {
    device.read_memory(address, 4 * count).chunks(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect()
}

/// Gathers, then scatters the sums; everything checked on every rank.
fn exchange(config: SimConfig) {
    let ranks = 4u64;
    let cluster = SimCluster::new(4, config);
    let all = cluster.run(|device| {
        let rank = device.properties().ordinal;
        let communicator = device.cluster().communicator("world", &[0, 1, 2, 3]);
        let [comm] = streams(&device);
        let base = memory(&device, 1);
        let (shard, full, sums) = (base, base.offset(4096), base.offset(8192));
        fill_u32(&device, comm, shard, 3, |index| 100 * rank + index);
        device.collective(comm, gather(&communicator, Cost::transfer(100), ByteRange::new(shard, 12), full)).unwrap();
        let pieces: Vec<ByteRange> = (0..ranks).map(|piece| ByteRange::new(full.offset(12 * piece), 12)).collect();
        device.collective(comm, reduce_scatter(&communicator, Cost::transfer(100), &pieces, sums)).unwrap();
        support::finish(&device, comm);
        (u32s(&device, full, 12), u32s(&device, sums, 3))
    });
    for (rank, (full, sums)) in all.into_iter().enumerate() {
        let expected: Vec<u32> = (0..4).flat_map(|rank| (0..3).map(move |index| 100 * rank + index)).collect();
        assert_eq!(full, expected);
        let rank = u32::try_from(rank).unwrap();
        assert_eq!(sums, (0..3).map(|index| 4 * (100 * rank + index)).collect::<Vec<u32>>());
    }
    assert_eq!(cluster.hazards(), []);
}

#[test]
fn bytes_reach_the_right_ranks() {
    for workers in [0, 3] {
        exchange(SimConfig { workers, ..ticks() });
        exchange(SimConfig { workers, ..SimConfig::default() });
    }
    for seed in 0..20 {
        exchange(adversarial(seed));
    }
}

#[test]
fn a_gather_may_be_in_place() {
    let cluster = SimCluster::new(2, ticks());
    let communicator = cluster.communicator("pair", &[1, 0]);
    let full = [0, 1].map(|rank| {
        let device = cluster.device(rank);
        let full = memory(&device, 1);
        let member = u64::from(1 - rank);
        let shard = full.offset(4 * member);
        device.launch(device.default_stream(), fill("own", 1, shard, 4, 10 + rank as u8)).unwrap();
        let part = gather(&communicator, Cost::exact(2), ByteRange::new(shard, 4), full);
        device.collective(device.default_stream(), part).unwrap();
        full
    });
    cluster.settle().unwrap();
    for rank in [0, 1] {
        let bytes = cluster.device(rank).read_memory(full[rank as usize], 8);
        assert_eq!(bytes, [[11; 4], [10; 4]].concat(), "in the communicator's order");
    }
    assert_eq!(cluster.hazards(), []);
}

fn empty(communicator: &Communicator, name: &'static str, cost: Cost) -> Collective {
    let nothing = ByteRange::new(Address(0), 0);
    Collective { name: name.into(), ..gather(communicator, cost, nothing, Address(0)) }
}

#[test]
fn a_collective_starts_and_ends_on_all_ranks_together() {
    let cost = CostModel { collective_latency_ns: 5, link_bytes_per_us: 1_000, ..CostModel::free() };
    let cluster = SimCluster::new(2, SimConfig { cost, ..ticks() });
    let communicator = cluster.communicator("world", &[0, 1]);
    for rank in 0..2 {
        let device = cluster.device(rank);
        let late = idle("late", 10 + 20 * u64::from(rank), vec![]);
        device.launch(device.default_stream(), late).unwrap();
        device.collective(device.default_stream(), empty(&communicator, "gather", Cost::transfer(7))).unwrap();
    }
    cluster.settle().unwrap();
    let timeline = cluster.take_timeline();
    let parts: Vec<_> = timeline.iter().filter(|done| done.name == "gather").collect();
    assert_eq!(parts.len(), 2);
    for (rank, part) in parts.iter().enumerate() {
        assert_eq!((part.device as usize, part.start_ns, part.end_ns), (rank, 30, 42));
        assert_eq!(part.kind, ExecutedKind::Collective { communicator: "world".into(), sequence: 0 });
    }
}

/// Two collectives on two streams of each rank, on one communicator or on two.
fn side_by_side(two: bool) -> Vec<(String, u64, u64)> {
    let cluster = SimCluster::new(2, ticks());
    let first = cluster.communicator("first", &[0, 1]);
    let second = if two { cluster.communicator("second", &[0, 1]) } else { first.clone() };
    for rank in 0..2 {
        let device = cluster.device(rank);
        let [a, b] = streams(&device);
        device.launch(a, idle("work", 3, vec![])).unwrap();
        device.collective(a, empty(&first, "one", Cost::exact(10))).unwrap();
        device.collective(b, empty(&second, "two", Cost::exact(4))).unwrap();
    }
    cluster.settle().unwrap();
    let mut spans = spans(&cluster);
    spans.retain(|span| span.0 != "work");
    spans.dedup();
    spans
}

#[test]
fn one_communicator_runs_one_collective_at_a_time_in_order_of_issue() {
    assert_eq!(side_by_side(false), [("one".to_owned(), 3, 13), ("two".to_owned(), 13, 17)]);
    assert_eq!(side_by_side(true), [("two".to_owned(), 0, 4), ("one".to_owned(), 3, 13)]);
}

#[test]
fn a_collective_races_like_any_operation() {
    let cluster = SimCluster::new(2, ticks());
    let communicator = cluster.communicator("world", &[0, 1]);
    for rank in 0..2 {
        let device = cluster.device(rank);
        let [comm, compute] = streams(&device);
        let base = memory(&device, 1);
        let part = gather(&communicator, Cost::exact(10), ByteRange::new(base, 8), base.offset(64));
        device.collective(comm, part).unwrap();
        if rank == 0 {
            order(&device, comm, compute);
        }
        device.launch(compute, idle("use", 1, vec![support::read(base.offset(70), 1)])).unwrap();
    }
    cluster.settle().unwrap();
    let hazards = cluster.hazards();
    assert_eq!(hazards.len(), 1);
    assert_eq!((hazards[0].device, &*hazards[0].first.name, &*hazards[0].second.name), (1, "all_gather", "use"));
}

#[test]
fn parts_that_differ_break_every_rank_of_the_communicator() {
    let shard = |bytes| vec![ByteRange::new(Address(64), bytes); 2];
    type Change = fn(&mut Collective);
    let cases: [(Change, &str, &str); 3] = [
        (
            |part| part.name = "reduce_scatter".into(),
            "rank 0 has operation \"all_gather\"",
            "rank 2 has operation \"reduce_scatter\"",
        ),
        (|part| part.cost = Cost::exact(4), "rank 0 has Cost", "rank 2 has Cost"),
        (|part| part.sends[1].bytes = 12, "rank 0 has 8 bytes for member 1", "rank 2 has 12 bytes for member 1"),
    ];
    for (change, there, here) in cases {
        let cluster = SimCluster::new(3, ticks());
        let communicator = cluster.communicator("outer", &[0, 2]);
        let devices = [0, 1, 2].map(|rank| cluster.device(rank));
        let part = |sends| Collective {
            sends,
            ..gather(&communicator, Cost::exact(3), ByteRange::new(Address(64), 8), Address(0))
        };
        devices[0].collective(devices[0].default_stream(), part(shard(8))).unwrap();
        let mut other = part(shard(8));
        change(&mut other);
        let fault = devices[2].collective(devices[2].default_stream(), other).unwrap_err();
        let text = fault.to_string();
        assert!(matches!(fault, DeviceError::CollectiveMismatch { sequence: 0, .. }));
        for word in ["\"outer\"", there, here] {
            assert!(text.contains(word), "{text:?} lacks {word:?}");
        }
        for rank in [0, 2] {
            assert_eq!(devices[rank].memory_info(), Err(DeviceError::Poisoned { fault: Box::new(fault.clone()) }));
        }
        assert!(devices[1].memory_info().is_ok(), "others go on");
    }
}

#[test]
fn a_rank_may_send_nothing() {
    let cluster = SimCluster::new(2, ticks());
    let communicator = cluster.communicator("world", &[0, 1]);
    let targets = [0, 1].map(|rank| {
        let device = cluster.device(rank);
        let base = memory(&device, 1);
        device.launch(device.default_stream(), fill("root", 1, base, 4, 40 + rank as u8)).unwrap();
        let bytes = if rank == 1 { 4 } else { 0 };
        let broadcast = Collective {
            name: "broadcast".into(),
            sends: vec![ByteRange::new(base, bytes); 2],
            receive: write(base.offset(8), 4),
            body: Box::new(|sent, received| {
                assert!(sent[0].as_bytes().is_empty());
                received.as_bytes_mut().copy_from_slice(sent[1].as_bytes());
            }),
            ..empty(&communicator, "", Cost::exact(1))
        };
        device.collective(device.default_stream(), broadcast).unwrap();
        base.offset(8)
    });
    cluster.settle().unwrap();
    for rank in [0, 1] {
        assert_eq!(cluster.device(rank).read_memory(targets[rank as usize], 4), [41; 4]);
    }
}

#[test]
fn bad_arguments_are_refused() {
    let cluster = SimCluster::new(2, ticks());
    let (first, second) = (cluster.device(0), cluster.device(1));
    let alone = cluster.communicator("alone", &[0]);
    let stranger = SimCluster::new(1, ticks()).communicator("stranger", &[0]);
    let refused = |device: &Arc<SimDevice>, stream, part: Collective| {
        let result = device.collective(stream, part);
        assert!(matches!(result, Err(DeviceError::InvalidValue { call: DeviceCall::Collective, .. })), "{result:?}");
    };
    let part = || empty(&alone, "x", Cost::exact(1));
    refused(&second, second.default_stream(), part());
    refused(&first, second.default_stream(), part());
    refused(&first, first.default_stream(), empty(&stranger, "x", Cost::exact(1)));
    refused(&first, first.default_stream(), Collective { sends: vec![], ..part() });
    let endless = Collective { sends: vec![ByteRange::new(Address(8), u64::MAX)], ..part() };
    refused(&first, first.default_stream(), endless);
    first.collective(first.default_stream(), part()).unwrap();
    cluster.settle().unwrap();
    assert_eq!(cluster.communicator("alone", &[0]), alone, "every rank gets the same one");
    let executed = cluster.take_timeline();
    assert_eq!(executed[0].kind, ExecutedKind::Collective { communicator: "alone".into(), sequence: 0 });
}

#[test]
fn a_captured_collective_takes_no_number() {
    let device = SimDevice::new(ticks());
    let alone = device.cluster().communicator("alone", &[0]);
    let [captured] = streams(&device);
    device.begin_capture(captured).unwrap();
    device.collective(captured, empty(&alone, "captured", Cost::exact(1))).unwrap();
    device.end_capture(captured).unwrap();
    device.collective(captured, empty(&alone, "real", Cost::exact(1))).unwrap();
    device.cluster().settle().unwrap();
    assert_eq!(spans(&device.cluster()), [("real".to_owned(), 0, 1)]);
}

/// One rank breaks; the other one, which needs it, is told.
fn broken_peer(mode: Mode, break_it: impl Fn(&SimDevice) + Sync) -> Vec<DeviceError> {
    let cluster = SimCluster::new(2, SimConfig { mode, ..ticks() });
    cluster.run(|device| {
        let communicator = device.cluster().communicator("world", &[0, 1]);
        let stream = device.default_stream();
        if device.properties().ordinal == 1 {
            break_it(&device);
        }
        let issued = device.collective(stream, empty(&communicator, "gather", Cost::exact(10)));
        let finished = issued.and_then(|()| device.record(stream)).and_then(|fence| device.synchronize(fence, None));
        finished.unwrap_err()
    })
}

#[test]
fn a_rank_that_breaks_does_not_leave_the_others_hanging() {
    for mode in [Mode::Timed, Mode::Adversarial { seed: 5 }] {
        let errors = broken_peer(mode, |device| {
            device.launch(device.default_stream(), idle("bad", 1, vec![support::read(Address(8), 1)])).unwrap();
        });
        let text = errors[0].to_string();
        assert!(matches!(errors[0], DeviceError::Deadlock { .. }), "{text}");
        for word in ["rank 0: the host waits", "\"gather\"", "rank 1, which has a fault", "\"bad\""] {
            assert!(text.contains(word), "{text:?} lacks {word:?}");
        }
    }
}

#[test]
fn a_rank_that_breaks_within_a_collective_is_named() {
    let cluster = SimCluster::new(2, ticks());
    let communicator = cluster.communicator("world", &[0, 1]);
    for rank in 0..2 {
        let device = cluster.device(rank);
        device.collective(device.default_stream(), empty(&communicator, "gather", Cost::exact(10))).unwrap();
    }
    let second = cluster.device(1);
    second.launch(second.create_stream("other").unwrap(), idle("bad", 1, vec![support::read(Address(8), 1)])).unwrap();
    let first = cluster.device(0);
    let fence = first.record(first.default_stream()).unwrap();
    let text = first.synchronize(fence, None).unwrap_err().to_string();
    assert!(text.contains("runs \"gather\", a collective that a faulty rank has left"), "{text}");
    assert!(!text.contains("rank 1: stream"), "a broken rank has no work left: {text}");
}

#[test]
fn a_rank_that_breaks_after_it_has_issued_its_part_takes_no_part() {
    let cluster = SimCluster::new(2, ticks());
    let communicator = cluster.communicator("world", &[0, 1]);
    let [first, second] = [0, 1].map(|rank| cluster.device(rank));
    second.collective(second.default_stream(), empty(&communicator, "gather", Cost::exact(10))).unwrap();
    second.launch(second.create_stream("other").unwrap(), idle("bad", 1, vec![support::read(Address(8), 1)])).unwrap();
    assert!(matches!(cluster.settle(), Err(DeviceError::IllegalAddress { .. })));
    first.collective(first.default_stream(), empty(&communicator, "gather", Cost::exact(10))).unwrap();
    let fence = first.record(first.default_stream()).unwrap();
    let text = first.synchronize(fence, None).unwrap_err().to_string();
    assert!(text.contains("lacks rank 1, which has a fault"), "{text}");
}

#[test]
fn what_is_received_read_only_stays() {
    let device = SimDevice::new(ticks());
    let alone = device.cluster().communicator("alone", &[0]);
    let cell = memory(&device, 1);
    let stream = device.default_stream();
    device.launch(stream, fill("fill", 1, cell, 8, 3)).unwrap();
    let part = gather(&alone, Cost::exact(1), ByteRange::new(cell.offset(8), 8), cell);
    device.collective(stream, Collective { receive: support::read(cell, 8), ..part }).unwrap();
    device.cluster().settle().unwrap();
    assert_eq!(device.read_memory(cell, 8), [3; 8]);
}

#[test]
fn a_collective_body_that_panics_breaks_its_rank_only() {
    let cluster = SimCluster::new(2, ticks());
    let communicator = cluster.communicator("world", &[0, 1]);
    for rank in 0..2 {
        let device = cluster.device(rank);
        let part = empty(&communicator, "gather", Cost::exact(10));
        let body: highwater_device::sim::CollectiveBody =
            if rank == 1 { Box::new(|_, _| panic!("overflow")) } else { Box::new(|_, _| ()) };
        device.collective(device.default_stream(), Collective { body, ..part }).unwrap();
    }
    match cluster.settle() {
        Err(DeviceError::BodyPanicked { operation, message, .. }) => {
            assert_eq!((&*operation, &*message), ("gather", "overflow"));
        }
        other => panic!("{other:?}"),
    }
    assert!(cluster.device(0).memory_info().is_ok());
    assert!(cluster.device(1).memory_info().is_err());
}
