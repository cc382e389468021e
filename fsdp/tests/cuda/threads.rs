//! The ranks of one process on one GPU, against the simulated group.

use std::sync::{Mutex, mpsc};
use std::time::Duration;

use highwater::device::Device;
use highwater::device::sim::{SimCluster, SimConfig};
use highwater::{Allocator, Settings};
use highwater_fsdp::group::{GroupError, LocalGroup, ProcessGroup};
use highwater_kernels::host::Update;

use crate::support::{TIMEOUT, bits, on_ranks, values};

const ROUNDS: usize = 3;

/// What a rank holds after rounds of both collectives: the gathered elements and the sums.
type Held = (Vec<u32>, Vec<u32>);

fn update(round: usize) -> Update {
    if round == 0 { Update::Store } else { Update::Accumulate }
}

fn seed(rank: u32, round: usize) -> usize {
    rank as usize + 11 * round
}

fn simulated(ranks: u32, own: usize) -> Vec<Held> {
    let cluster = SimCluster::new(ranks, SimConfig::default());
    cluster.run(|device| {
        let rank = device.properties().ordinal;
        let allocator = Allocator::with_settings(device.clone(), Settings::default()).unwrap();
        let group = LocalGroup::new(&cluster, &device, "all", ranks);
        let stream = allocator.create_stream("communication").unwrap();
        let upload = |values: &[f32]| {
            let staging = allocator.pinned(values.len());
            staging.write(|elements: &mut [f32]| elements.copy_from_slice(values)).unwrap();
            let buffer = stream.alloc(values.len()).unwrap();
            stream.copy_to_device(&staging, &buffer).unwrap();
            buffer
        };
        let all = own * ranks as usize;
        let (shard, gathered) = (upload(&values(own, seed(rank, 0))), upload(&vec![0.0; all]));
        group.all_gather(&stream, shard.view(), gathered.view()).unwrap();
        let sum = upload(&vec![f32::NAN; own]);
        for round in 0..ROUNDS {
            let unsharded = upload(&values(all, seed(rank, round)));
            group.reduce_scatter(&stream, unsharded.view(), sum.view(), update(round)).unwrap();
        }
        let download = |buffer| {
            let staging = allocator.pinned::<f32>(highwater::Buffer::len(buffer));
            stream.copy_to_host(buffer, &staging).unwrap();
            staging.wait(TIMEOUT).unwrap();
            staging.read(bits).unwrap()
        };
        (download(&gathered), download(&sum))
    })
}

#[test]
#[ignore = "needs a GPU"]
fn the_bits_are_those_of_the_simulated_group() {
    for ranks in [1, 2, 4, 8, 9] {
        for own in [0, 1, 37, 5000] {
            let all = own * ranks as usize;
            let found = on_ranks(ranks, |group, host| {
                let rank = group.rank();
                let (shard, gathered) = (host.upload(&values(own, seed(rank, 0))), host.upload(&vec![0.0; all]));
                group.all_gather(&host.stream, shard.view(), gathered.view()).unwrap();
                let sum = host.upload(&vec![f32::NAN; own]);
                for round in 0..ROUNDS {
                    let unsharded = host.upload(&values(all, seed(rank, round)));
                    group.reduce_scatter(&host.stream, unsharded.view(), sum.view(), update(round)).unwrap();
                }
                (bits(&host.download(&gathered)), bits(&host.download(&sum)))
            });
            assert_eq!(found, simulated(ranks, own), "{ranks} ranks, {own} elements a rank");
        }
    }
}

/// Sources are overwritten right after each collective, by copies that wait for nothing but the stream.
#[test]
#[ignore = "needs a GPU"]
fn sources_may_be_overwritten_right_after() {
    const OWN: usize = 1 << 18;
    const REPEATS: usize = 40;
    for ranks in [2, 4] {
        on_ranks(ranks, |group, host| {
            let rank = group.rank() as usize;
            let number = |repeat: usize, rank: usize| (repeat * 16 + rank) as f32;
            let (shard, sum) = (host.upload(&vec![0.0; OWN]), host.upload(&vec![0.0; OWN]));
            let results: Vec<_> =
                (0..REPEATS).map(|_| host.stream.alloc::<f32>(OWN * ranks as usize).unwrap()).collect();
            let fill = |repeat| highwater_kernels::fill(&host.stream, number(repeat, rank), shard.view());
            for (repeat, all) in results.iter().enumerate() {
                fill(repeat).unwrap();
                group.all_gather(&host.stream, shard.view(), all.view()).unwrap();
            }
            fill(REPEATS).unwrap();
            for (repeat, all) in results.iter().enumerate() {
                for (from, part) in host.download(all).chunks(OWN).enumerate() {
                    assert!(part.iter().all(|&found| found == number(repeat, from)), "repeat {repeat}, from {from}");
                }
            }
            for (repeat, all) in results.iter().enumerate() {
                group.reduce_scatter(&host.stream, all.view(), sum.view(), update(repeat)).unwrap();
                highwater_kernels::fill(&host.stream, -1.0, all.view()).unwrap();
            }
            let expected: f32 = (0..REPEATS).map(|repeat| ranks as f32 * number(repeat, rank)).sum();
            assert!(host.download(&sum).iter().all(|&found| found == expected));
        });
    }
}

#[test]
#[ignore = "needs a GPU"]
fn ranks_that_differ_or_leave_are_named_on_all_sides() {
    let errors = on_ranks(2, |group, host| {
        let (shard, all) = (host.upload(&[0.0; 4]), host.upload(&[0.0; 8]));
        match group.rank() {
            0 => group.all_gather(&host.stream, shard.view(), all.view()),
            _ => group.reduce_scatter(&host.stream, all.view(), shard.view(), Update::Store),
        }
    });
    for (rank, error) in errors.into_iter().enumerate() {
        let Err(GroupError::Mismatch { rank: named, sequence: 0, what, .. }) = error else { panic!("{error:?}") };
        assert_eq!(named as usize, rank);
        assert!(what.starts_with("rank 1 issues reduce-scatter (stored) of 4 elements a rank"), "{what}");
    }
    let errors = on_ranks(2, |group, host| {
        let (shard, all) = (host.upload(&[0.0; 4]), host.upload(&[0.0; 8]));
        group.all_gather(&host.stream, shard.view(), all.view()).unwrap();
        (group.rank() == 0).then(|| group.all_gather(&host.stream, shard.view(), all.view()))
    });
    let error = errors[0].as_ref().unwrap();
    assert!(matches!(error, Err(GroupError::Left { rank: 0, left: 1, sequence: 1, .. })), "{error:?}");
    let (give_up, gave_up) = mpsc::channel();
    let gave_up = Mutex::new(gave_up);
    let errors = on_ranks(2, |group, host| {
        let (shard, all) = (host.upload(&[0.0; 4]), host.upload(&[0.0; 8]));
        let group = group.with_timeout(Duration::from_millis(50));
        if group.rank() == 1 {
            // It comes when rank 0 has given up.
            gave_up.lock().unwrap().recv().unwrap();
            return group.all_gather(&host.stream, shard.view(), all.view());
        }
        let gathered = group.all_gather(&host.stream, shard.view(), all.view());
        give_up.send(()).unwrap();
        gathered
    });
    for error in errors {
        assert!(matches!(&error, Err(GroupError::Timeout { missing, .. }) if *missing == [1]), "{error:?}");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn collectives_are_in_the_timeline_of_each_rank() {
    let names = on_ranks(2, |group, host| {
        host.device.set_timeline(true).unwrap();
        let (shard, all) = (host.upload(&[0.0; 4]), host.upload(&[0.0; 8]));
        group.all_gather(&host.stream, shard.view(), all.view()).unwrap();
        group.reduce_scatter(&host.stream, all.view(), shard.view(), Update::Store).unwrap();
        let kept = host.device.take_timeline().unwrap();
        kept.iter().map(|executed| executed.name.to_string()).filter(|name| name.contains('-')).collect::<Vec<_>>()
    });
    for names in names {
        assert_eq!(names, ["all-gather", "reduce-scatter"]);
    }
}
