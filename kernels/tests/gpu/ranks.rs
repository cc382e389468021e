//! Sums over ranks: the bits of additions on the host, one source after the other.

use highwater::device::{Address, Cost};
use highwater_kernels::host::{self, Update};
use highwater_kernels::{MOST_SOURCES, sum_ranks_on_gpu};

use crate::bench;
use crate::operations::{Bench, Random, UPDATES};

/// A guard of elements on both sides; a value that no sum here is.
const GUARD: (usize, f32) = (16, 1e9);

fn guarded(values: &[f32], offset: usize) -> Vec<f32> {
    let guards = |count| vec![GUARD.1; count];
    [&guards(GUARD.0 + offset)[..], values, &guards(GUARD.0)].concat()
}

/// Sums `sources` into `out`, which is in the memory of the first source when `shared`.
fn summed(bench: &Bench, sources: &[Vec<f32>], before: &[f32], update: Update, offset: usize) -> Vec<f32> {
    let len = before.len();
    let range = |offset: usize| GUARD.0 + offset..GUARD.0 + offset + len;
    let place = |index: usize| (offset * (index + 1)) % 4;
    let buffers: Vec<_> =
        sources.iter().enumerate().map(|(index, source)| bench.buffer(&guarded(source, place(index)))).collect();
    let out = bench.buffer(&guarded(before, offset));
    let device = bench.allocator.device().clone();
    assert!(bench.stream.cuda_device().is_some(), "{}", device.properties().name);
    let mut launch = bench.stream.launch("sum ranks", Cost::default()).read_write(out.slice(range(offset)));
    for (index, buffer) in buffers.iter().enumerate() {
        launch = launch.read(buffer.slice(range(place(index))));
    }
    let addresses: Vec<Address> = launch.operands().iter().map(|operand| operand.range.address).collect();
    let stream = bench.stream.clone();
    launch
        .driver_body(move |driver| {
            let device = stream.cuda_device().expect("it is a GPU");
            sum_ranks_on_gpu(device, driver, addresses[0], &addresses[1..], len, update)
        })
        .submit()
        .unwrap();
    let all = bench.elements(&out);
    let around = all.iter().enumerate().filter(|(index, _)| !range(offset).contains(index));
    assert!(around.into_iter().all(|(_, &value)| value == GUARD.1), "written beside the output");
    all[range(offset)].to_vec()
}

fn on_host(sources: &[Vec<f32>], before: &[f32], update: Update) -> Vec<f32> {
    let mut sum = before.to_vec();
    let rest = match (update, sources.split_first()) {
        (Update::Accumulate, _) => sources,
        (Update::Store, None) => {
            sum.fill(0.0);
            sources
        }
        (Update::Store, Some((first, rest))) => {
            sum.copy_from_slice(first);
            rest
        }
    };
    for source in rest {
        host::accumulate(source, &mut sum);
    }
    sum
}

#[test]
#[ignore = "needs a GPU"]
fn sums_have_the_bits_of_additions_in_order() {
    let bench = bench();
    let mut random = Random(3);
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    for ranks in [0, 1, 2, 3, MOST_SOURCES, MOST_SOURCES + 1, 2 * MOST_SOURCES + 3] {
        for len in [0, 1, 7, 1025, 4099] {
            for update in UPDATES {
                for offset in [0, 1] {
                    let sources: Vec<Vec<f32>> = (0..ranks).map(|_| random.singles(len)).collect();
                    let before = match update {
                        Update::Store => vec![f32::NAN; len],
                        Update::Accumulate => random.singles(len),
                    };
                    let found = summed(&bench, &sources, &before, update, offset);
                    let expected = on_host(&sources, &before, update);
                    assert_eq!(bits(found), bits(expected), "{ranks} ranks, {len} elements, {update:?}, {offset}");
                }
            }
        }
    }
}

/// The output may be the memory of a source of the first launch.
#[test]
#[ignore = "needs a GPU"]
fn a_source_may_be_the_output() {
    let bench = bench();
    let mut random = Random(4);
    for own in 0..3 {
        let sources: Vec<Vec<f32>> = (0..3).map(|_| random.singles(1025)).collect();
        let buffers: Vec<_> = sources.iter().map(|source| bench.buffer(source)).collect();
        let mut launch = bench.stream.launch("sum ranks", Cost::default());
        for (rank, buffer) in buffers.iter().enumerate() {
            launch = if rank == own { launch.read_write(buffer) } else { launch.read(buffer) };
        }
        let addresses: Vec<Address> = launch.operands().iter().map(|operand| operand.range.address).collect();
        let stream = bench.stream.clone();
        launch
            .driver_body(move |driver| {
                let device = stream.cuda_device().expect("it is a GPU");
                sum_ranks_on_gpu(device, driver, addresses[own], &addresses, 1025, Update::Store)
            })
            .submit()
            .unwrap();
        assert_eq!(bench.elements(&buffers[own]), on_host(&sources, &[0.0; 1025], Update::Store));
    }
}
