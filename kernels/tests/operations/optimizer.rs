//! The optimizer.

use highwater::Stream;
use highwater_kernels::host::{self, AdamW, Real};
use highwater_kernels::{self as kernels, AdamWViews, KernelError};

use super::{Number, Operand, Operation, Random, Run, Slot, Tensor, Tolerance, largest, units};

/// It is `f32` alone.
pub(crate) fn all(run: &mut Run<'_>) {
    let steps = [(0, 1), (1, 1), (37, 2), (512, 1000), (5003, 3)];
    run.check_all::<f32, _>(steps.map(|(len, step)| Step { len, step }));
}

struct Step {
    len: usize,
    step: u64,
}

const SETTINGS: AdamW = AdamW { lr: 0.02, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.1 };

impl Operation for Step {
    const NAME: &'static str = "adamw";
    const EXACT: bool = true;

    fn operands<E: Number>(&self, random: &mut Random) -> Vec<Operand> {
        let squares = random.singles(self.len).into_iter().map(|value| value * value).collect();
        let mut changed = || Operand::changed(random.singles(self.len)).single();
        let (parameter, first) = (changed(), changed());
        let gradient = Operand::read(random.singles(self.len)).single();
        vec![gradient, parameter, first, Operand::changed(squares).single()]
    }

    fn launch<E: Number>(&self, stream: &Stream, tensors: &[Tensor<E>]) -> Result<(), KernelError> {
        let [gradient, parameter, first_moment, second_moment] = tensors else { unreachable!() };
        let views = AdamWViews {
            gradient: gradient.singles(),
            parameter: parameter.singles(),
            first_moment: first_moment.singles(),
            second_moment: second_moment.singles(),
        };
        kernels::adamw(stream, SETTINGS, self.step, views)
    }

    fn host<T: Real>(&self, slots: &mut [Slot<T>]) {
        let [gradient, parameter, first, second] = slots else { unreachable!() };
        host::adamw(SETTINGS, self.step, gradient.values(), parameter.out(), first.out(), second.out());
    }

    /// Moments are sums of two products of rounded factors. The change of a parameter is a product of such things, eight
    /// roundings, and is no larger than the largest parameter after it and one.
    fn tolerances<E: Number>(&self, _: &[Slot<f64>], after: &[Slot<f64>]) -> Vec<Tolerance> {
        let parameter = Tolerance::flat(0.0, units(8.0) * (1.0 + largest(after[1].values())));
        vec![parameter, Tolerance::flat(0.0, units(4.0)), Tolerance::flat(0.0, units(4.0))]
    }

    fn what(&self) -> String {
        format!("{} elements, step {}", self.len, self.step)
    }
}
