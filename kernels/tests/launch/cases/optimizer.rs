//! The optimizer.

use highwater_kernels::host::{self, AdamW, work};
use highwater_kernels::{self as kernels, AdamWViews};

use super::{changed, read};
use crate::operands::{Case, Random};

pub(super) fn optimizers(random: &mut Random, cases: &mut Vec<Case>) {
    for (len, step) in [(1, 1), (37, 2), (512, 1000)] {
        let adamw = AdamW { lr: 0.02, weight_decay: 0.1, ..AdamW::default() };
        let squares = random.floats(len).into_iter().map(f32::abs).collect();
        cases.push(Case {
            kernel: "adamw",
            what: format!("{len} elements, step {step}"),
            operands: vec![
                read("gradient", random.floats(len)),
                changed("parameter", random.floats(len)).shown_by("gradient"),
                changed("first_moment", random.floats(len)),
                changed("second_moment", squares),
            ],
            work: work::adamw(len, 4),
            launch: Box::new(move |stream, tensors| {
                let [gradient, parameter, first_moment, second_moment] = tensors else { unreachable!() };
                let views = AdamWViews {
                    gradient: gradient.floats(),
                    parameter: parameter.floats(),
                    first_moment: first_moment.floats(),
                    second_moment: second_moment.floats(),
                };
                kernels::adamw(stream, adamw, step, views)
            }),
            host: Box::new(move |data| {
                let [gradient, parameter, first, second] = data else { unreachable!() };
                host::adamw(adamw, step, gradient.floats(), parameter.floats(), first.floats(), second.floats());
            }),
        });
    }
}
