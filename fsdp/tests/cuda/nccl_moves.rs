//! Collectives of NCCL into memory that moves while they are queued: two processes that share the GPU, one rank each.
//!
//! The test runs itself again, once for each rank. NCCL takes the two for different machines.

use std::env;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use highwater::device::cuda::{CudaConfig, CudaDevice};
use highwater::{Allocator, Buffer, Policy, Settings, Stream};
use highwater_fsdp::group::{NcclGroup, Place, ProcessGroup, nccl_version};
use highwater_kernels as kernels;

use crate::gate::Gate;
use crate::support::{Rank, TIMEOUT};

const RANKS: usize = 2;
/// Elements of a block, 8 MiB; four of them make room for what is gathered.
const BLOCK: usize = 2 << 20;
const OWN: usize = 4 * BLOCK / RANKS;
/// The longest that the processes may take.
const LONGEST: Duration = Duration::from_secs(240);

/// Set in the processes that are ranks.
const MARK: &str = "HIGHWATER_NCCL_MOVES_RANK";
const TEST: &str = "nccl_moves::memory_that_a_collective_writes_moves";

/// Elements that show from which rank they are and where they belong.
fn own(rank: usize, round: usize) -> Vec<f32> {
    (0..OWN).map(|place| (rank * OWN + place) as f32 + 0.5 * round as f32).collect()
}

/// A rank whose allocator moves free memory whenever it can.
fn host(device: &Arc<CudaDevice>) -> Rank {
    let settings = Settings::builder().policy(Policy::Wait).page_time(1.0).build().unwrap();
    let allocator = Allocator::with_settings(device.clone(), settings).unwrap();
    let stream = allocator.create_stream("s").unwrap();
    Rank { device: device.clone(), allocator, stream }
}

fn gather(group: &NcclGroup, stream: &Stream, shard: &Buffer<f32>, all: &Buffer<f32>) {
    group.all_gather(stream, shard.view(), all.view()).unwrap();
}

/// Eight blocks are written on a stream that is held back; every other one is freed, and their memory becomes the output
/// of a collective on the same stream, or on another one.
fn moves(group: &NcclGroup, device: &Arc<CudaDevice>, same: bool) {
    let host = host(device);
    let (s, t) = (&host.stream, host.allocator.create_stream("t").unwrap());
    let user = if same { s } else { &t };
    let shard = host.upload(&own(group.rank() as usize, 1 + usize::from(same)));
    host.download(&shard);
    let mut blocks: Vec<Buffer<f32>> = (0..8).map(|_| s.alloc(BLOCK).unwrap()).collect();

    let gate = Gate::close(s);
    blocks.iter().for_each(|block| kernels::fill(s, -1.0, block.view()).unwrap());
    let queued = s.record().unwrap();
    [6, 4, 2, 0].into_iter().for_each(|index| drop(blocks.remove(index)));
    let before = host.allocator.memory_stats();
    let all = user.alloc::<f32>(RANKS * OWN).unwrap();
    let after = host.allocator.memory_stats();
    assert!(after.pages_moved >= before.pages_moved + 3, "{} moved", after.pages_moved - before.pages_moved);
    assert_eq!((after.reserved.now, after.waits_inserted), (before.reserved.now, u64::from(!same)));
    gather(group, user, &shard, &all);
    assert!(!queued.is_complete().unwrap(), "nothing of the former use has run");
    gate.open();

    s.wait_stream(&t).unwrap();
    let found = host.download(&all);
    let expected = (0..RANKS).flat_map(|rank| own(rank, 1 + usize::from(same)));
    let wrong = found.iter().zip(expected).filter(|(found, expected)| found.to_bits() != expected.to_bits()).count();
    assert_eq!((found.len(), wrong), (RANKS * OWN, 0));
    for block in &blocks {
        assert!(host.download(block).iter().all(|&found| found == -1.0), "a block that stayed was written");
    }
    host.allocator.check().unwrap();
}

/// What each of the processes does.
fn one_rank(place: &Place) {
    let device = CudaDevice::new(CudaConfig::default()).unwrap();
    let group = NcclGroup::join(&device, place, TIMEOUT).unwrap();
    // What is loaded or connected at the first call may wait for work that runs: nothing is held back yet.
    let first = host(&device);
    let shard = first.upload(&own(place.rank as usize, 0));
    let all = first.stream.alloc::<f32>(RANKS * OWN).unwrap();
    kernels::fill(&first.stream, 0.0, all.view()).unwrap();
    gather(&group, &first.stream, &shard, &all);
    assert_eq!(first.download(&all)[OWN], OWN as f32);
    drop((shard, all, first));
    [true, false].into_iter().for_each(|same| moves(&group, &device, same));
}

/// Starts this test again as one rank.
fn start(rank: usize, port: u16) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", TEST, "--ignored", "--nocapture", "--test-threads=1"]);
    let place = [("RANK", rank.to_string()), ("WORLD_SIZE", RANKS.to_string()), ("LOCAL_RANK", "0".into())];
    let master = [("MASTER_ADDR", "127.0.0.1".to_owned()), ("MASTER_PORT", port.to_string())];
    let nccl = [
        ("NCCL_HOSTID", format!("rank{rank}")),
        ("NCCL_SOCKET_IFNAME", "lo".to_owned()),
        ("NCCL_IB_DISABLE", "1".to_owned()),
    ];
    command.envs(place.into_iter().chain(master).chain(nccl)).env(MARK, "1").stdin(Stdio::null()).spawn().unwrap()
}

#[test]
#[ignore = "needs a GPU"]
fn memory_that_a_collective_writes_moves() {
    if env::var_os(MARK).is_some() {
        return one_rank(&Place::from_environment().unwrap());
    }
    assert!(nccl_version().unwrap() >= (2, 18, 0));
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut ranks: Vec<Child> = (0..RANKS).map(|rank| start(rank, port)).collect();
    let start = Instant::now();
    let mut ended = vec![None; RANKS];
    while ended.iter().any(Option::is_none) && start.elapsed() < LONGEST {
        for (end, rank) in ended.iter_mut().zip(&mut ranks) {
            *end = end.or(rank.try_wait().unwrap());
        }
        thread::sleep(Duration::from_millis(20));
    }
    for rank in &mut ranks {
        // One that has ended is none any more: that is no error.
        let _ = rank.kill();
        let _ = rank.wait();
    }
    assert!(ended.iter().all(|end| end.is_some_and(|end| end.success())), "{ended:?}");
}
