//! Two ranks that would wait for each other through a wait of the allocator, and do not; and the account of those that do.
//!
//! The program: two communicators, x on stream "first" and y on stream "second". On rank 1, x gathers what was computed
//! from the result of y, so there the program itself puts x after y. On rank 0 the two have nothing to do with each other,
//! but for memory: y gathers into bytes that were used before x was over. An allocator that makes y wait for x there
//! stops both ranks for good.

use std::sync::Arc;
use std::time::Duration;

use highwater::device::sim::{Mode, SimCluster, SimConfig, SimDevice};
use highwater::device::{Cost, Device, DeviceError, Waited};
use highwater::{Allocator, Buffer, HostBuffer, Settings, Stream, StreamError};
use highwater_fsdp::group::{GroupError, LocalGroup, ProcessGroup};

/// Whose memory y gathers into on rank 0.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Owner {
    /// That of "first", which x runs on.
    First,
    /// That of "compute", which comes after x by a fence of the program.
    Compute,
}

/// How "second" is ordered after the former use of that memory.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Order {
    /// By the allocator.
    Allocator,
    /// By a wait on the device, as an allocator would put it that does not look at what is open.
    Unchecked,
}

const TIMEOUT: Duration = Duration::from_micros(500);

/// One rank of the program.
struct Rank {
    device: Arc<SimDevice>,
    allocator: Allocator,
    compute: Stream,
    first: Stream,
    second: Stream,
    x: LocalGroup,
    y: LocalGroup,
}

impl Rank {
    fn new(cluster: &SimCluster, device: Arc<SimDevice>) -> Self {
        let settings = Settings::builder().host_wait_timeout(TIMEOUT).build().unwrap();
        let allocator = Allocator::with_settings(device.clone(), settings).unwrap();
        let [x, y] = ["x", "y"].map(|name| LocalGroup::new(cluster, &device, name, 2));
        let [compute, first, second] =
            ["compute", "first", "second"].map(|name| allocator.create_stream(name).unwrap());
        Rank { device, allocator, compute, first, second, x, y }
    }

    fn filled(&self, stream: &Stream, value: f32) -> Buffer<f32> {
        let buffer = stream.alloc(1).unwrap();
        let body = move |bytes: &mut [highwater::device::OperandBytes]| bytes[0].as_mut_slice::<f32>().fill(value);
        stream.launch("fill", Cost::exact(10)).write(&buffer).body(body).submit().unwrap();
        buffer
    }

    /// Gathers on a stream of its own memory, on the way to the host.
    fn gathered(&self, group: &LocalGroup, stream: &Stream, shard: &Buffer<f32>) -> (Buffer<f32>, HostBuffer<f32>) {
        let all = stream.alloc(2).unwrap();
        group.all_gather(stream, shard.view(), all.view()).unwrap();
        let host = self.allocator.pinned(2);
        stream.copy_to_host(&all, &host).unwrap();
        (all, host)
    }

    /// Waits without a deadline for everything on both streams, then reads what x and y gathered.
    fn finish(&self, x: &HostBuffer<f32>, y: &HostBuffer<f32>) -> Result<[Vec<f32>; 2], DeviceError> {
        for stream in [&self.first, &self.second] {
            let waited = self.device.synchronize(self.device.record(stream.id())?, None)?;
            assert_eq!(waited, Waited::Complete);
        }
        Ok([x, y].map(|host| host.read(<[f32]>::to_vec).unwrap()))
    }

    fn run_rank_0(&self, owner: Owner, order: Order) -> Result<[Vec<f32>; 2], DeviceError> {
        let (x_shard, y_shard) = (self.filled(&self.first, 1.0), self.filled(&self.second, 2.0));
        let (x_all, x_host) = self.gathered(&self.x, &self.first, &x_shard);
        let owner = match owner {
            Owner::First => {
                drop(x_all);
                &self.first
            }
            Owner::Compute => {
                self.compute.wait(&self.first.record().unwrap()).unwrap();
                drop(self.filled(&self.compute, 0.0));
                &self.compute
            }
        };
        // Used before, by work that comes after x.
        let recycled: Buffer<f32> = owner.alloc(2).unwrap();
        let y_host = match order {
            Order::Unchecked => {
                self.device.wait(self.second.id(), self.device.record(owner.id())?)?;
                self.gathered(&self.y, &self.second, &y_shard).1
            }
            Order::Allocator => {
                let refused = self.y.all_gather(&self.second, y_shard.view(), recycled.view());
                let Err(GroupError::Stream(StreamError::HeldUp { open, waited, .. })) = refused else {
                    panic!("x is not complete, and cannot be: {refused:?}");
                };
                assert_eq!((&*open, waited), ("first", TIMEOUT));
                // As the error says: on the stream that uses it first.
                self.gathered(&self.y, &self.second, &y_shard).1
            }
        };
        self.finish(&x_host, &y_host)
    }

    fn run_rank_1(&self) -> Result<[Vec<f32>; 2], DeviceError> {
        let y_shard = self.filled(&self.second, 3.0);
        let (y_all, y_host) = self.gathered(&self.y, &self.second, &y_shard);
        self.first.wait(&self.second.record().unwrap()).unwrap();
        let x_shard: Buffer<f32> = self.first.alloc(1).unwrap();
        let sum = self.first.launch("sum", Cost::exact(10)).read(&y_all).write(&x_shard);
        let sum = sum.body(|bytes| {
            let total = bytes[0].as_slice::<f32>().iter().sum();
            bytes[1].as_mut_slice::<f32>().fill(total);
        });
        sum.submit().unwrap();
        let (_x_all, x_host) = self.gathered(&self.x, &self.first, &x_shard);
        self.finish(&x_host, &y_host)
    }
}

/// What x and y gathered on each rank.
fn run(mode: Mode, owner: Owner, order: Order) -> Vec<Result<[Vec<f32>; 2], DeviceError>> {
    let cluster = SimCluster::new(2, SimConfig { mode, workers: 0, ..SimConfig::default() });
    let ends = cluster.run(|device| {
        let ordinal = device.properties().ordinal;
        let rank = Rank::new(&cluster, device);
        if ordinal == 0 { rank.run_rank_0(owner, order) } else { rank.run_rank_1() }
    });
    assert!(cluster.hazards().is_empty());
    ends
}

fn modes() -> impl Iterator<Item = Mode> {
    (0..20).map(|seed| Mode::Adversarial { seed }).chain([Mode::Timed])
}

#[test]
fn two_ranks_do_not_wait_for_each_other_through_the_allocator() {
    for mode in modes() {
        for owner in [Owner::First, Owner::Compute] {
            let expected = [vec![1.0, 5.0], vec![2.0, 3.0]];
            let ends = run(mode, owner, Order::Allocator);
            assert_eq!(ends, [Ok(expected.clone()), Ok(expected)], "{mode:?}, {owner:?}");
        }
    }
}

/// The account of a run in which both ranks are stuck: the circle, and who hangs behind it.
fn account(ends: Vec<Result<[Vec<f32>; 2], DeviceError>>) -> (String, String) {
    let [Err(DeviceError::Deadlock { cycle }), Err(other)] = &ends[..] else { panic!("{ends:?}") };
    assert_eq!(other.to_string(), format!("deadlock: {cycle}"));
    let (circle, behind) = cycle.split_once("; behind: ").unwrap_or_else(|| panic!("{cycle}"));
    (circle.to_owned(), behind.to_owned())
}

#[test]
fn with_the_wait_they_hang_and_the_account_names_the_circle() {
    for mode in modes() {
        let (circle, behind) = account(run(mode, Owner::First, Order::Unchecked));
        let steps = [
            "rank 0: stream \"first\" is in \"all-gather\", collective 0 of communicator \"x\", which lacks rank 1, \
             where it is queued on stream \"first\"",
            "rank 1: stream \"first\" waits for a fence on stream \"second\"",
            "rank 1: stream \"second\" is in \"all-gather\", collective 0 of communicator \"y\", which lacks rank 0, \
             where it is queued on stream \"second\"",
            "rank 0: stream \"second\" waits for a fence on stream \"first\"",
        ];
        same_circle(&circle, &steps);
        assert_eq!(
            behind,
            "rank 0: the host waits for a fence on stream \"first\"; rank 1: the host waits for a fence on stream \"first\""
        );
    }
}

#[test]
fn a_circle_through_a_stream_that_comes_after_an_open_one_names_it_too() {
    let (circle, _) = account(run(Mode::Timed, Owner::Compute, Order::Unchecked));
    let steps = [
        "rank 0: stream \"compute\" waits for a fence on stream \"first\"",
        "rank 0: stream \"first\" is in \"all-gather\", collective 0 of communicator \"x\", which lacks rank 1, where it \
         is queued on stream \"first\"",
        "rank 1: stream \"first\" waits for a fence on stream \"second\"",
        "rank 1: stream \"second\" is in \"all-gather\", collective 0 of communicator \"y\", which lacks rank 0, where it \
         is queued on stream \"second\"",
        "rank 0: stream \"second\" waits for a fence on stream \"compute\"",
    ];
    same_circle(&circle, &steps);
}

/// Compares a circle with its steps, wherever it begins.
#[track_caller]
fn same_circle(circle: &str, steps: &[&str]) {
    let mut told: Vec<&str> = circle.split(" → ").collect();
    let end = told.pop().unwrap();
    assert!(told[0].starts_with(end), "it ends where it begins: {circle}");
    let first = told.iter().position(|step| *step == steps[0]).unwrap_or_else(|| panic!("{circle}"));
    told.rotate_left(first);
    assert_eq!(told, steps);
}

#[test]
fn two_communicators_in_different_orders_are_named() {
    for mode in modes() {
        let cluster = SimCluster::new(2, SimConfig { mode, workers: 0, ..SimConfig::default() });
        let ends = cluster.run(|device| {
            let rank = Rank::new(&cluster, device.clone());
            let shard = rank.filled(&rank.first, 1.0);
            let order = if device.properties().ordinal == 0 { [&rank.x, &rank.y] } else { [&rank.y, &rank.x] };
            let [(_, x), (_, y)] = order.map(|group| rank.gathered(group, &rank.first, &shard));
            rank.finish(&x, &y)
        });
        let steps = [
            "rank 0: stream \"first\" is in \"all-gather\", collective 0 of communicator \"x\", which lacks rank 1, \
             where it is queued on stream \"first\"",
            "rank 1: stream \"first\" is in \"all-gather\", collective 0 of communicator \"y\", which lacks rank 0, \
             where it is queued on stream \"first\"",
        ];
        same_circle(&account(ends).0, &steps);
    }
}
