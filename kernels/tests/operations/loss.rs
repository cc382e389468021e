//! Cross-entropy: both passes, and each on its own.

use highwater::Stream;
use highwater_kernels::host::{self, Real, Rows};
use highwater_kernels::{self as kernels, CrossEntropy, KernelError};

use super::{Number, Operand, Operation, Random, Run, Slot, Tensor, Tolerance, units};

pub(crate) fn all<E: Number>(run: &mut Run<'_>) {
    // Rows that are held in registers and those that are not; more rows than the last block has threads.
    let shapes = [(1, 1), (0, 5), (3, 5), (18, 256), (7, 1000), (2, 4096), (2, 4104), (2, 50_257), (1500, 24)];
    let scaled = shapes.map(|(rows, width)| Shape { rows: Rows { rows, width }, scale: 1.0 / (rows.max(1) as f64) });
    run.check_all::<E, _>(scaled.map(Both));
    run.check_all::<E, _>(scaled.map(Forward));
    run.check_all::<E, _>(scaled.map(Backward));
}

#[derive(Clone, Copy, Debug)]
struct Shape {
    rows: Rows,
    scale: f64,
}

/// Logits lie within this.
const WIDEST: f32 = 4.0;

impl Shape {
    fn inputs<E: Number>(self, random: &mut Random) -> Vec<Operand> {
        vec![
            Operand::read(random.scaled::<E>(WIDEST, self.rows.elements())),
            Operand::tokens(random.tokens(self.rows.rows, self.rows.width)),
        ]
    }

    /// Of a row: the sum of exponentials is off by a few units each and the roundings on its way, under 64 in all, and
    /// its logarithm by as much absolutely; then there are differences of logits, of at most 8, and a product. The sum of
    /// all rows adds roundings of partial sums, of at most 16 threads' values and ten steps of a tree.
    fn losses(self) -> [Tolerance; 2] {
        let scale = self.scale;
        let row = units(64.0 + 16.0) * scale;
        [Tolerance::flat(units(1.0), row), Tolerance::flat(units(32.0), row * self.rows.rows as f64)]
    }

    /// Probabilities are off by a relative 80 units: twice the sum of exponentials' 32, exponentials' own, and a product.
    /// At the target it is the difference to one.
    fn gradient(self, before: &[Slot<f64>]) -> Tolerance {
        let (targets, width, scale) = (before[1].tokens().to_vec(), self.rows.width, self.scale);
        let is_target = move |at: usize| targets[at / width] as usize == at % width;
        Tolerance::each(units(80.0), move |at| if is_target(at) { units(80.0) * scale } else { 0.0 })
    }
}

struct Both(Shape);

impl Operation for Both {
    const NAME: &'static str = "cross_entropy";
    const EXACT: bool = false;

    fn operands<E: Number>(&self, random: &mut Random) -> Vec<Operand> {
        let rows = self.0.rows;
        let mut operands = self.0.inputs::<E>(random);
        operands.extend([Operand::written(rows.rows).single(), Operand::written(1).single()]);
        operands.push(Operand::written(rows.elements()));
        operands
    }

    fn launch<E: Number>(&self, stream: &Stream, tensors: &[Tensor<E>]) -> Result<(), KernelError> {
        let [logits, targets, token_losses, loss, dlogits] = tensors else { unreachable!() };
        let (logits, targets, dlogits) = (logits.elements(), targets.tokens(), dlogits.elements());
        let (token_losses, loss) = (token_losses.singles(), loss.singles());
        let views = CrossEntropy { logits, targets, token_losses, loss, dlogits };
        kernels::cross_entropy(stream, self.0.rows, self.0.scale, views)
    }

    fn host<T: Real>(&self, slots: &mut [Slot<T>]) {
        let [logits, targets, token_losses, loss, dlogits] = slots else { unreachable!() };
        let (logits, targets) = (logits.values(), targets.tokens());
        let (token_losses, loss, dlogits) = (token_losses.out(), &mut loss.out()[0], dlogits.out());
        host::cross_entropy(self.0.rows, self.0.scale, logits, targets, token_losses, loss, dlogits);
    }

    fn tolerances<E: Number>(&self, before: &[Slot<f64>], _: &[Slot<f64>]) -> Vec<Tolerance> {
        self.0.losses().into_iter().chain([self.0.gradient(before)]).collect()
    }

    fn what(&self) -> String {
        format!("{:?}", self.0)
    }
}

struct Forward(Shape);

impl Operation for Forward {
    const NAME: &'static str = "cross_entropy_forward";
    const EXACT: bool = false;

    fn operands<E: Number>(&self, random: &mut Random) -> Vec<Operand> {
        let mut operands = self.0.inputs::<E>(random);
        operands.extend([Operand::written(self.0.rows.rows).single(), Operand::written(1).single()]);
        operands
    }

    fn launch<E: Number>(&self, stream: &Stream, tensors: &[Tensor<E>]) -> Result<(), KernelError> {
        let [logits, targets, token_losses, loss] = tensors else { unreachable!() };
        let (logits, targets, losses) = (logits.elements(), targets.tokens(), token_losses.singles());
        kernels::cross_entropy_forward(stream, self.0.rows, self.0.scale, logits, targets, losses, loss.singles())
    }

    fn host<T: Real>(&self, slots: &mut [Slot<T>]) {
        let [logits, targets, token_losses, loss] = slots else { unreachable!() };
        let (logits, targets, loss) = (logits.values(), targets.tokens(), &mut loss.out()[0]);
        host::cross_entropy_forward(self.0.rows, self.0.scale, logits, targets, token_losses.out(), loss);
    }

    fn tolerances<E: Number>(&self, _: &[Slot<f64>], _: &[Slot<f64>]) -> Vec<Tolerance> {
        self.0.losses().into()
    }

    fn what(&self) -> String {
        format!("{:?}", self.0)
    }
}

struct Backward(Shape);

impl Operation for Backward {
    const NAME: &'static str = "cross_entropy_backward";
    const EXACT: bool = false;

    fn operands<E: Number>(&self, random: &mut Random) -> Vec<Operand> {
        let mut operands = self.0.inputs::<E>(random);
        operands.push(Operand::written(self.0.rows.elements()));
        operands
    }

    fn launch<E: Number>(&self, stream: &Stream, tensors: &[Tensor<E>]) -> Result<(), KernelError> {
        let [logits, targets, dlogits] = tensors else { unreachable!() };
        let (logits, targets) = (logits.elements(), targets.tokens());
        kernels::cross_entropy_backward(stream, self.0.rows, self.0.scale, logits, targets, dlogits.elements())
    }

    fn host<T: Real>(&self, slots: &mut [Slot<T>]) {
        let [logits, targets, dlogits] = slots else { unreachable!() };
        host::cross_entropy_backward(self.0.rows, self.0.scale, logits.values(), targets.tokens(), dlogits.out());
    }

    fn tolerances<E: Number>(&self, before: &[Slot<f64>], _: &[Slot<f64>]) -> Vec<Tolerance> {
        vec![self.0.gradient(before)]
    }

    fn what(&self) -> String {
        format!("{:?}", self.0)
    }
}
