//! The two collectives of a local group, alone.

use std::sync::Arc;
use std::time::Duration;

use highwater::device::sim::{Mode, SimCluster, SimConfig, SimDevice};
use highwater::device::{Device, DeviceCall};
use highwater::{Allocator, Buffer, Settings, Stream, StreamError};
use highwater_fsdp::group::{GroupError, LocalGroup, ProcessGroup};
use highwater_kernels::host::Update;

const TIMEOUT: Duration = Duration::from_secs(3600);

fn upload(allocator: &Allocator, stream: &Stream, values: &[f32]) -> Buffer<f32> {
    let staging = allocator.pinned(values.len());
    staging.write(|elements: &mut [f32]| elements.copy_from_slice(values)).unwrap();
    let buffer = stream.alloc(values.len()).unwrap();
    stream.copy_to_device(&staging, &buffer).unwrap();
    staging.wait(TIMEOUT).unwrap();
    buffer
}

fn download(allocator: &Allocator, stream: &Stream, buffer: &Buffer<f32>) -> Vec<f32> {
    let staging = allocator.pinned(buffer.len());
    stream.copy_to_host(buffer, &staging).unwrap();
    staging.wait(TIMEOUT).unwrap();
    staging.read(<[f32]>::to_vec).unwrap()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Runs `host` on every rank of a group, on a stream of its own.
fn on_ranks<R: Send>(
    ranks: u32,
    mode: Mode,
    host: impl Fn(&Arc<SimDevice>, &LocalGroup, &Allocator, &Stream) -> R + Sync,
) -> Vec<R> {
    let cluster = SimCluster::new(ranks, SimConfig { mode, workers: 0, ..SimConfig::default() });
    let results = cluster.run(|device| {
        let allocator = Allocator::with_settings(device.clone(), Settings::default()).unwrap();
        let group = LocalGroup::new(&cluster, &device, "all", ranks);
        let stream = allocator.create_stream("communication").unwrap();
        host(&device, &group, &allocator, &stream)
    });
    assert!(cluster.hazards().is_empty());
    results
}

fn modes() -> impl Iterator<Item = Mode> {
    (0..3).map(|seed| Mode::Adversarial { seed }).chain([Mode::Timed])
}

/// Contributions of eight micro-batches whose sum depends on its order.
const ELEMENTS: usize = 40;
const MICRO_BATCHES: usize = 8;

fn contribution(micro_batch: usize) -> Vec<f32> {
    const NUMBERS: [f32; 8] = [1e8, 1.0, -1e8, 3.0, 0.125, -7e7, 0.3, 7e7];
    (0..ELEMENTS).map(|place| NUMBERS[(micro_batch + place * (1 + place / 8)) % 8] * (1.0 + place as f32)).collect()
}

/// From the first micro-batch on, one after the other.
fn left_fold(micro_batches: impl IntoIterator<Item = usize>) -> Vec<f32> {
    let add = |mut sum: Vec<f32>, next: Vec<f32>| {
        sum.iter_mut().zip(next).for_each(|(sum, next)| *sum += next);
        sum
    };
    micro_batches.into_iter().map(contribution).reduce(add).unwrap()
}

#[test]
fn the_order_of_the_contributions_matters() {
    let forward = bits(&left_fold(0..MICRO_BATCHES));
    assert_ne!(forward, bits(&left_fold((0..MICRO_BATCHES).rev())));
    // Rounds summed on their own, then added: what a reduce that does not start from the shard would do.
    let (first, second) = (left_fold(0..4), left_fold(4..8));
    let apart: Vec<f32> = first.iter().zip(&second).map(|(first, second)| first + second).collect();
    assert_ne!(forward, bits(&apart));
}

#[test]
fn reduce_scatter_in_rounds_is_a_left_fold_over_round_and_rank() {
    let expected = bits(&left_fold(0..MICRO_BATCHES));
    for ranks in [1, 2, 4, 8] {
        for mode in modes() {
            let shards = on_ranks(ranks, mode, |_, group, allocator, stream| {
                let own = ELEMENTS / ranks as usize;
                let shard = upload(allocator, stream, &vec![f32::NAN; own]);
                for round in 0..MICRO_BATCHES / ranks as usize {
                    let micro_batch = round * ranks as usize + group.rank() as usize;
                    let unsharded = upload(allocator, stream, &contribution(micro_batch));
                    let update = if round == 0 { Update::Store } else { Update::Accumulate };
                    group.reduce_scatter(stream, unsharded.view(), shard.view(), update).unwrap();
                }
                download(allocator, stream, &shard)
            });
            assert_eq!(bits(&shards.concat()), expected, "{ranks} ranks, {mode:?}");
        }
    }
}

#[test]
fn all_gather_gives_every_rank_all_shards_in_rank_order() {
    for ranks in [1, 2, 4] {
        for mode in modes() {
            let whole = contribution(0);
            let gathered = on_ranks(ranks, mode, |_, group, allocator, stream| {
                let own = ELEMENTS / ranks as usize;
                let shard = upload(allocator, stream, &whole[group.rank() as usize * own..][..own]);
                let unsharded = upload(allocator, stream, &[f32::NAN; ELEMENTS]);
                group.all_gather(stream, shard.view(), unsharded.view()).unwrap();
                download(allocator, stream, &unsharded)
            });
            for found in gathered {
                assert_eq!(bits(&found), bits(&whole), "{ranks} ranks, {mode:?}");
            }
        }
    }
}

#[test]
fn lengths_that_do_not_fit_are_refused_before_anything_is_submitted() {
    on_ranks(2, Mode::Timed, |device, group, allocator, stream| {
        assert_eq!((group.rank(), group.ranks()), (device.properties().ordinal, 2));
        let shard = upload(allocator, stream, &[0.0; 4]);
        for elements in [4, 7, 9, 12] {
            let unsharded = upload(allocator, stream, &vec![0.0; elements]);
            let before = device.counters();
            let gathered = group.all_gather(stream, shard.view(), unsharded.view());
            let reduced = group.reduce_scatter(stream, unsharded.view(), shard.view(), Update::Store);
            for refused in [gathered, reduced] {
                let Err(GroupError::Stream(StreamError::LengthMismatch { left, right: 8, .. })) = refused else {
                    panic!("{elements}: {refused:?}");
                };
                assert_eq!(left, elements);
            }
            assert_eq!(device.counters(), before);
        }
        assert_eq!(device.counters().of(DeviceCall::Collective), 0);
    });
}

#[test]
#[should_panic(expected = "device 2 is none of the first 2")]
fn a_device_outside_the_group_is_refused() {
    let cluster = SimCluster::new(3, SimConfig::default());
    let _never = LocalGroup::new(&cluster, &cluster.device(2), "some", 2);
}
