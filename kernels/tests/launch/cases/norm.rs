//! Layer norms.

use highwater_kernels::host::{self, LayerNormShape, Rows, Update, work};
use highwater_kernels::{self as kernels, LayerNormBackward, LayerNormForward};

use super::{UPDATES, read, updated, written};
use crate::operands::{Case, Random};

pub(super) fn layer_norms(random: &mut Random, cases: &mut Vec<Case>) {
    for (rows, width) in [(1, 3), (4, 8), (9, 31)] {
        let shape = LayerNormShape { rows: Rows { rows, width }, eps: 1e-5 };
        cases.push(layer_norm_forward(random, shape));
        for dx_update in UPDATES {
            for parameter_update in UPDATES {
                cases.push(layer_norm_backward(random, shape, dx_update, parameter_update));
            }
        }
    }
}

fn layer_norm_forward(random: &mut Random, shape: LayerNormShape) -> Case {
    let Rows { rows, width } = shape.rows;
    Case {
        kernel: "layer norm",
        what: format!("{shape:?}"),
        operands: vec![
            read("x", random.floats(rows * width)),
            read("gamma", random.floats(width)),
            read("beta", random.floats(width)),
            written("out", rows * width),
            written("mean", rows),
            written("rstd", rows),
        ],
        work: work::layer_norm_forward(shape, 4),
        launch: Box::new(move |stream, tensors| {
            let [x, gamma, beta, out, mean, rstd] = tensors else { unreachable!() };
            let (x, gamma, beta) = (x.floats(), gamma.floats(), beta.floats());
            let (out, mean, rstd) = (out.floats(), mean.floats(), rstd.floats());
            kernels::layer_norm_forward(stream, shape, LayerNormForward { x, gamma, beta, out, mean, rstd })
        }),
        host: Box::new(move |data| {
            let [x, gamma, beta, out, mean, rstd] = data else { unreachable!() };
            let (x, gamma, beta) = (x.floats(), gamma.floats(), beta.floats());
            let (out, mean, rstd) = (out.floats(), mean.floats(), rstd.floats());
            host::layer_norm_forward(shape, host::LayerNormForward { x, gamma, beta, out, mean, rstd });
        }),
    }
}

fn layer_norm_backward(random: &mut Random, shape: LayerNormShape, dx: Update, parameters: Update) -> Case {
    let Rows { rows, width } = shape.rows;
    Case {
        kernel: "layer norm backward",
        what: format!("{shape:?} {dx:?} {parameters:?}"),
        operands: vec![
            read("x", random.floats(rows * width)),
            read("gamma", random.floats(width)),
            read("mean", random.floats(rows)),
            read("rstd", random.floats(rows)),
            read("dout", random.floats(rows * width)),
            updated(random, dx, "dx", rows * width),
            updated(random, parameters, "dgamma", width),
            updated(random, parameters, "dbeta", width),
        ],
        work: work::layer_norm_backward(shape, dx, parameters, 4),
        launch: Box::new(move |stream, tensors| {
            let [x, gamma, mean, rstd, dout, dx_out, dgamma, dbeta] = tensors else { unreachable!() };
            let views = LayerNormBackward {
                x: x.floats(),
                gamma: gamma.floats(),
                mean: mean.floats(),
                rstd: rstd.floats(),
                dout: dout.floats(),
                dx: dx_out.floats(),
                dgamma: dgamma.floats(),
                dbeta: dbeta.floats(),
            };
            kernels::layer_norm_backward(stream, shape, dx, parameters, views)
        }),
        host: Box::new(move |data| {
            let [x, gamma, mean, rstd, dout, dx_out, dgamma, dbeta] = data else { unreachable!() };
            let operands = host::LayerNormBackward {
                x: x.floats(),
                gamma: gamma.floats(),
                mean: mean.floats(),
                rstd: rstd.floats(),
                dout: dout.floats(),
                dx: dx_out.floats(),
                dgamma: dgamma.floats(),
                dbeta: dbeta.floats(),
            };
            host::layer_norm_backward(shape, dx, parameters, operands);
        }),
    }
}
