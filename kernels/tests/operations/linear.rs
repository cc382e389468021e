//! Matrix products and biases.

use highwater::Stream;
use highwater_kernels::host::{self, MatmulShape, Real, Rows, Transposed, Update};
use highwater_kernels::{self as kernels, KernelError};

use super::{Number, Operand, Operation, Random, Run, Slot, Tensor, Tolerance, UPDATES, sum_error, units};

pub(crate) fn matmuls<E: Number>(run: &mut Run<'_>) {
    let sizes = [
        (1, 1, 1),
        (0, 3, 4),
        (3, 0, 4),
        (3, 4, 0),
        (1, 37, 5),
        (5, 1, 9),
        (3, 1000, 2),
        (17, 33, 65),
        (64, 64, 64),
        (128, 256, 96),
        (200, 129, 77),
    ];
    let mut all = Vec::new();
    for (rows, inner, columns) in sizes {
        let shape = MatmulShape { rows, inner, columns };
        for transposed in [Transposed::Neither, Transposed::Left, Transposed::Right] {
            all.extend(UPDATES.map(|update| Matmul { shape, transposed, update }));
        }
    }
    run.check_all::<E, _>(all);
}

pub(crate) fn biases<E: Number>(run: &mut Run<'_>) {
    let shapes = [(1, 1), (0, 5), (5, 7), (33, 16), (3, 768), (129, 24), (700, 33), (17_000, 8)];
    let shapes = shapes.map(|(rows, width)| Rows { rows, width });
    run.check_all::<E, _>(shapes.map(BiasForward));
    let backward = shapes.into_iter().flat_map(|shape| UPDATES.map(|update| BiasBackward { shape, update }));
    run.check_all::<E, _>(backward);
}

struct Matmul {
    shape: MatmulShape,
    transposed: Transposed,
    update: Update,
}

impl Operation for Matmul {
    const NAME: &'static str = "matmul";
    const EXACT: bool = false;

    fn operands<E: Number>(&self, random: &mut Random) -> Vec<Operand> {
        let MatmulShape { rows, inner, columns } = self.shape;
        vec![
            Operand::read(random.elements::<E>(rows * inner)),
            Operand::read(random.elements::<E>(inner * columns)),
            Operand::updated::<E>(random, self.update, rows * columns),
        ]
    }

    fn launch<E: Number>(&self, stream: &Stream, tensors: &[Tensor<E>]) -> Result<(), KernelError> {
        let [a, b, c] = tensors else { unreachable!() };
        kernels::matmul(stream, self.shape, self.transposed, self.update, a.elements(), b.elements(), c.elements())
    }

    fn host<T: Real>(&self, slots: &mut [Slot<T>]) {
        let [a, b, c] = slots else { unreachable!() };
        host::matmul(self.shape, self.transposed, self.update, a.values(), b.values(), c.out());
    }

    /// Each of `inner` products is at most one. Where the product is added to what is there, which is at most one, the
    /// library may round it to the element first.
    fn tolerances<E: Number>(&self, _: &[Slot<f64>], _: &[Slot<f64>]) -> Vec<Tolerance> {
        let first = if self.update == Update::Accumulate { E::UNIT } else { 0.0 };
        vec![Tolerance::flat(first, sum_error(self.shape.inner) + first)]
    }

    fn what(&self) -> String {
        format!("{:?} {:?} {:?}", self.shape, self.transposed, self.update)
    }
}

struct BiasForward(Rows);

impl Operation for BiasForward {
    const NAME: &'static str = "bias_forward";
    const EXACT: bool = true;

    fn operands<E: Number>(&self, random: &mut Random) -> Vec<Operand> {
        let bias = random.elements::<E>(self.0.width);
        vec![Operand::read(bias), Operand::changed(random.elements::<E>(self.0.elements()))]
    }

    fn launch<E: Number>(&self, stream: &Stream, tensors: &[Tensor<E>]) -> Result<(), KernelError> {
        let [bias, x] = tensors else { unreachable!() };
        kernels::bias_forward(stream, self.0, bias.elements(), x.elements())
    }

    fn host<T: Real>(&self, slots: &mut [Slot<T>]) {
        let [bias, x] = slots else { unreachable!() };
        host::bias_forward(self.0, bias.values(), x.out());
    }

    /// One sum below two.
    fn tolerances<E: Number>(&self, _: &[Slot<f64>], _: &[Slot<f64>]) -> Vec<Tolerance> {
        vec![Tolerance::flat(0.0, units(2.0))]
    }

    fn what(&self) -> String {
        format!("{:?}", self.0)
    }
}

struct BiasBackward {
    shape: Rows,
    update: Update,
}

impl Operation for BiasBackward {
    const NAME: &'static str = "bias_backward";
    const EXACT: bool = false;

    fn operands<E: Number>(&self, random: &mut Random) -> Vec<Operand> {
        let dout = random.elements::<E>(self.shape.elements());
        vec![Operand::read(dout), Operand::updated::<E>(random, self.update, self.shape.width)]
    }

    fn launch<E: Number>(&self, stream: &Stream, tensors: &[Tensor<E>]) -> Result<(), KernelError> {
        let [dout, dbias] = tensors else { unreachable!() };
        kernels::bias_backward(stream, self.shape, dout.elements(), self.update, dbias.elements())
    }

    fn host<T: Real>(&self, slots: &mut [Slot<T>]) {
        let [dout, dbias] = slots else { unreachable!() };
        host::bias_backward(self.shape, dout.values(), self.update, dbias.out());
    }

    fn tolerances<E: Number>(&self, _: &[Slot<f64>], _: &[Slot<f64>]) -> Vec<Tolerance> {
        vec![Tolerance::flat(0.0, sum_error(self.shape.rows))]
    }

    fn what(&self) -> String {
        format!("{:?} {:?}", self.shape, self.update)
    }
}
