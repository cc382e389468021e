//! Kernels execute later than they are submitted: in order on one stream, by fences on two.

use highwater::device::Device;
use highwater::device::sim::{Mode, SimConfig};
use highwater_kernels as kernels;
use highwater_kernels::host::{self, MatmulShape, Transposed, Update};

use crate::operands::{Bench, Data, Random, Tensor};

const N: usize = 12;
const SHAPE: MatmulShape = MatmulShape { rows: N, inner: N, columns: N };

struct Chain {
    a: Tensor,
    b: Tensor,
    product: Tensor,
    out: Tensor,
}

impl Chain {
    /// Inputs, and what (a·b + a) · ½ is.
    fn new(bench: &Bench, seed: u64) -> (Chain, Vec<u32>) {
        let mut random = Random(seed);
        let (a, b) = (random.floats(N * N), random.floats(N * N));
        let mut out = vec![0.0; N * N];
        host::matmul(SHAPE, Transposed::Neither, Update::Store, &a, &b, &mut out);
        host::accumulate(&a, &mut out);
        host::scale(0.5, &mut out);
        let empty = || bench.upload(&Data::Floats(vec![f32::NAN; N * N]));
        let chain = Chain {
            product: empty(),
            out: empty(),
            a: bench.upload(&Data::Floats(a)),
            b: bench.upload(&Data::Floats(b)),
        };
        (chain, out.into_iter().map(f32::to_bits).collect())
    }

    fn first(&self, stream: &highwater::Stream) {
        let (a, b, product) = (self.a.floats(), self.b.floats(), self.product.floats());
        kernels::matmul(stream, SHAPE, Transposed::Neither, Update::Store, a, b, product).unwrap();
    }

    fn second(&self, stream: &highwater::Stream) {
        kernels::add(stream, self.product.floats(), self.a.floats(), self.out.floats()).unwrap();
        kernels::scale(stream, 0.5, self.out.floats()).unwrap();
    }
}

fn configs() -> impl Iterator<Item = SimConfig> {
    let modes = (0..24).map(|seed| Mode::Adversarial { seed }).chain([Mode::Timed]);
    modes.map(|mode| SimConfig { mode, timeline: true, ..SimConfig::default() })
}

#[test]
fn one_stream_keeps_the_order_and_the_host_never_waits() {
    for config in configs() {
        let bench = Bench::new(config);
        let (chain, expected) = Chain::new(&bench, 1);
        let before = bench.device.counters().host_synchronizations;
        chain.first(&bench.stream);
        chain.second(&bench.stream);
        assert_eq!(bench.device.counters().host_synchronizations, before);
        assert_eq!(bench.download(&chain.out).bits(), expected);
    }
}

/// The result, and the number of races.
fn across_streams(config: SimConfig, fences: bool) -> (bool, usize) {
    let bench = Bench::new(config);
    let (chain, expected) = Chain::new(&bench, 2);
    let side = bench.allocator.create_stream("side").unwrap();
    let before = bench.device.counters().host_synchronizations;
    chain.first(&bench.stream);
    if fences {
        side.wait(&bench.stream.record().unwrap()).unwrap();
    }
    chain.second(&side);
    if fences {
        bench.stream.wait(&side.record().unwrap()).unwrap();
    }
    assert_eq!(bench.device.counters().host_synchronizations, before);
    bench.device.cluster().settle().unwrap();
    (bench.download(&chain.out).bits() == expected, bench.device.cluster().hazards().len())
}

#[test]
fn fences_order_two_streams() {
    for config in configs() {
        assert_eq!(across_streams(config, true), (true, 0));
    }
}

#[test]
fn without_fences_two_streams_go_wrong() {
    let broken = configs().filter(|config| across_streams(config.clone(), false) != (true, 0)).count();
    assert!(broken > 0, "the chain notices a missing fence");
}
