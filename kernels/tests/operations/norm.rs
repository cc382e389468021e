//! Layer norms.

use highwater::Stream;
use highwater_kernels::host::{self, LayerNormShape, Real, Rows, Update};
use highwater_kernels::{self as kernels, KernelError, LayerNormBackward, LayerNormForward};

use super::{Number, Operand, Operation, Random, Run, Slot, Tensor, Tolerance, UPDATES, largest, sum_error, units};

pub(crate) fn all<E: Number>(run: &mut Run<'_>) {
    // Widths of one and of several warps a row, of rows that are held in registers and of those that are not.
    let shapes =
        [(1, 1), (0, 8), (1, 3), (9, 31), (70, 64), (13, 768), (5, 1600), (3, 4096), (3, 4097), (2, 4104), (3000, 16)];
    let shapes = shapes.map(|(rows, width)| LayerNormShape { rows: Rows { rows, width }, eps: 1e-5 });
    run.check_all::<E, _>(shapes.map(Forward));
    let updates = UPDATES.into_iter().flat_map(|dx| UPDATES.map(|parameters| (dx, parameters)));
    let backward = |shape| updates.clone().map(move |(dx, parameters)| Backward { shape, dx, parameters });
    run.check_all::<E, _>(shapes.into_iter().flat_map(backward));
}

struct Forward(LayerNormShape);

impl Operation for Forward {
    const NAME: &'static str = "layer_norm_forward";
    const EXACT: bool = false;

    fn operands<E: Number>(&self, random: &mut Random) -> Vec<Operand> {
        let Rows { rows, width } = self.0.rows;
        vec![
            Operand::read(random.elements::<E>(rows * width)),
            Operand::read(random.elements::<E>(width)),
            Operand::read(random.elements::<E>(width)),
            Operand::written(rows * width),
            Operand::written(rows).single(),
            Operand::written(rows).single(),
        ]
    }

    fn launch<E: Number>(&self, stream: &Stream, tensors: &[Tensor<E>]) -> Result<(), KernelError> {
        let [x, gamma, beta, out, mean, rstd] = tensors else { unreachable!() };
        let (x, gamma, beta, out) = (x.elements(), gamma.elements(), beta.elements(), out.elements());
        let (mean, rstd) = (mean.singles(), rstd.singles());
        kernels::layer_norm_forward(stream, self.0, LayerNormForward { x, gamma, beta, out, mean, rstd })
    }

    fn host<T: Real>(&self, slots: &mut [Slot<T>]) {
        let [x, gamma, beta, out, mean, rstd] = slots else { unreachable!() };
        let (x, gamma, beta) = (x.values(), gamma.values(), beta.values());
        let (out, mean, rstd) = (out.out(), mean.out(), rstd.out());
        host::layer_norm_forward(self.0, host::LayerNormForward { x, gamma, beta, out, mean, rstd });
    }

    /// The mean is an average of values below one, summed in threads and then in a tree: few roundings of what is itself
    /// few units. The variance has about twenty roundings one after the other. `x − mean` is off by two units, and is
    /// multiplied by the deviation's reciprocal, as is what makes that small.
    fn tolerances<E: Number>(&self, _: &[Slot<f64>], after: &[Slot<f64>]) -> Vec<Tolerance> {
        let rstd = largest(after[5].values());
        let normalised = rstd * 2.0;
        vec![
            Tolerance::flat(0.0, units(4.0 * rstd + 16.0 * normalised + 2.0)),
            Tolerance::flat(0.0, units(4.0)),
            Tolerance::flat(units(24.0 + 4.0 * rstd), 0.0),
        ]
    }

    fn what(&self) -> String {
        format!("{:?}", self.0)
    }
}

struct Backward {
    shape: LayerNormShape,
    dx: Update,
    parameters: Update,
}

impl Operation for Backward {
    const NAME: &'static str = "layer_norm_backward";
    const EXACT: bool = false;

    /// Mean and deviation are those of the forward pass.
    fn operands<E: Number>(&self, random: &mut Random) -> Vec<Operand> {
        let Rows { rows, width } = self.shape.rows;
        let x = random.elements::<E>(rows * width);
        let (mut out, mut mean, mut rstd) = (vec![0.0; rows * width], vec![0.0; rows], vec![0.0; rows]);
        let (gamma, beta) = (random.elements::<E>(width), random.elements::<E>(width));
        let (out_at, mean_at, rstd_at) = (&mut out[..], &mut mean[..], &mut rstd[..]);
        let forward =
            host::LayerNormForward { x: &x, gamma: &gamma, beta: &beta, out: out_at, mean: mean_at, rstd: rstd_at };
        host::layer_norm_forward(self.shape, forward);
        vec![
            Operand::read(x),
            Operand::read(gamma),
            Operand::read(mean).single(),
            Operand::read(rstd).single(),
            Operand::read(random.elements::<E>(rows * width)),
            Operand::updated::<E>(random, self.dx, rows * width),
            Operand::updated::<E>(random, self.parameters, width),
            Operand::updated::<E>(random, self.parameters, width),
        ]
    }

    fn launch<E: Number>(&self, stream: &Stream, tensors: &[Tensor<E>]) -> Result<(), KernelError> {
        let [x, gamma, mean, rstd, dout, dx, dgamma, dbeta] = tensors else { unreachable!() };
        let views = LayerNormBackward {
            x: x.elements(),
            gamma: gamma.elements(),
            mean: mean.singles(),
            rstd: rstd.singles(),
            dout: dout.elements(),
            dx: dx.elements(),
            dgamma: dgamma.elements(),
            dbeta: dbeta.elements(),
        };
        kernels::layer_norm_backward(stream, self.shape, self.dx, self.parameters, views)
    }

    fn host<T: Real>(&self, slots: &mut [Slot<T>]) {
        let [x, gamma, mean, rstd, dout, dx, dgamma, dbeta] = slots else { unreachable!() };
        let operands = host::LayerNormBackward {
            x: x.values(),
            gamma: gamma.values(),
            mean: mean.values(),
            rstd: rstd.values(),
            dout: dout.values(),
            dx: dx.out(),
            dgamma: dgamma.out(),
            dbeta: dbeta.out(),
        };
        host::layer_norm_backward(self.shape, self.dx, self.parameters, operands);
    }

    /// With n the largest normalised value: normalised values are off by 2·rstd units (from `x − mean`) and one more of
    /// n; their average with `dout · gamma` no more than 8·n units; dx is rstd times three such terms. The sums over rows
    /// have terms of up to n, each off by as much as its normalised value.
    fn tolerances<E: Number>(&self, before: &[Slot<f64>], _: &[Slot<f64>]) -> Vec<Tolerance> {
        let Rows { rows, width } = self.shape.rows;
        let (x, mean, rstd) = (before[0].values(), before[2].values(), before[3].values());
        let normalised: Vec<f64> =
            x.iter().enumerate().map(|(at, x)| (x - mean[at / width]) * rstd[at / width]).collect();
        let (n, rstd) = (largest(&normalised), largest(rstd));
        let off = 2.0 * rstd + n;
        vec![
            Tolerance::flat(0.0, units(rstd * (8.0 + 8.0 * n * n + 2.0 * off * (1.0 + n)) + 1.0)),
            Tolerance::flat(0.0, n * sum_error(rows) + units(rows as f64 * off)),
            Tolerance::flat(0.0, sum_error(rows)),
        ]
    }

    fn what(&self) -> String {
        format!("{:?} {:?} {:?}", self.shape, self.dx, self.parameters)
    }
}
