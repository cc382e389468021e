//! Matrix products and biases.

use highwater_kernels as kernels;
use highwater_kernels::host::{self, MatmulShape, Rows, Transposed, Update, work};

use super::{UPDATES, changed, read, updated};
use crate::operands::{Case, Random};

pub(super) fn matmuls(random: &mut Random, cases: &mut Vec<Case>) {
    let shapes = [(1, 1, 1), (3, 5, 2), (17, 33, 9), (64, 64, 64), (2, 0, 3), (0, 2, 3)];
    for (rows, inner, columns) in shapes {
        let shape = MatmulShape { rows, inner, columns };
        for transposed in [Transposed::Neither, Transposed::Left, Transposed::Right] {
            for update in UPDATES {
                if update == Update::Accumulate && inner == 0 {
                    continue; // adds nothing
                }
                cases.push(Case {
                    kernel: "matmul",
                    what: format!("{shape:?} {transposed:?} {update:?}"),
                    operands: vec![
                        read("a", random.floats(rows * inner)),
                        read("b", random.floats(inner * columns)),
                        updated(random, update, "c", rows * columns),
                    ],
                    work: work::matmul(shape, update, 4),
                    launch: Box::new(move |stream, tensors| {
                        let [a, b, c] = tensors else { unreachable!() };
                        kernels::matmul(stream, shape, transposed, update, a.floats(), b.floats(), c.floats())
                    }),
                    host: Box::new(move |data| {
                        let [a, b, c] = data else { unreachable!() };
                        host::matmul(shape, transposed, update, a.floats(), b.floats(), c.floats());
                    }),
                });
            }
        }
    }
}

pub(super) fn biases(random: &mut Random, cases: &mut Vec<Case>) {
    for (rows, width) in [(1, 1), (5, 7), (33, 16)] {
        let shape = Rows { rows, width };
        cases.push(Case {
            kernel: "bias",
            what: format!("{shape:?}"),
            operands: vec![read("bias", random.floats(width)), changed("x", random.floats(rows * width))],
            work: work::bias_forward(shape, 4),
            launch: Box::new(move |stream, tensors| {
                let [bias, x] = tensors else { unreachable!() };
                kernels::bias_forward(stream, shape, bias.floats(), x.floats())
            }),
            host: Box::new(move |data| {
                let [bias, x] = data else { unreachable!() };
                host::bias_forward(shape, bias.floats(), x.floats());
            }),
        });
        for update in UPDATES {
            cases.push(Case {
                kernel: "bias backward",
                what: format!("{shape:?} {update:?}"),
                operands: vec![read("dout", random.floats(rows * width)), updated(random, update, "dbias", width)],
                work: work::bias_backward(shape, update, 4),
                launch: Box::new(move |stream, tensors| {
                    let [dout, dbias] = tensors else { unreachable!() };
                    kernels::bias_backward(stream, shape, dout.floats(), update, dbias.floats())
                }),
                host: Box::new(move |data| {
                    let [dout, dbias] = data else { unreachable!() };
                    host::bias_backward(shape, dout.floats(), update, dbias.floats());
                }),
            });
        }
    }
}
