//! Cross-entropy: both passes, and each on its own.

use highwater_kernels::host::{self, Rows, work};
use highwater_kernels::{self as kernels, CrossEntropy};

use super::{read, tokens, written};
use crate::operands::{Case, Random};

pub(super) fn losses(random: &mut Random, cases: &mut Vec<Case>) {
    for (rows, width, scale) in [(1, 1, 1.0), (3, 5, 0.25), (18, 256, 1.0 / 18.0)] {
        let shape = Rows { rows, width };
        cases.push(fused(random, shape, scale));
        cases.push(forward(random, shape, scale));
        cases.push(backward(random, shape, scale));
    }
}

fn fused(random: &mut Random, shape: Rows, scale: f64) -> Case {
    let Rows { rows, width } = shape;
    Case {
        kernel: "cross-entropy",
        what: format!("{shape:?}"),
        operands: vec![
            read("logits", random.floats(rows * width)),
            tokens("targets", random.tokens(rows, width)),
            written("token_losses", rows),
            written("loss", 1),
            written("dlogits", rows * width),
        ],
        work: work::cross_entropy(shape, 4, 4),
        launch: Box::new(move |stream, tensors| {
            let [logits, targets, token_losses, loss, dlogits] = tensors else { unreachable!() };
            let views = CrossEntropy {
                logits: logits.floats(),
                targets: targets.tokens(),
                token_losses: token_losses.floats(),
                loss: loss.floats(),
                dlogits: dlogits.floats(),
            };
            kernels::cross_entropy(stream, shape, scale, views)
        }),
        host: Box::new(move |data| {
            let [logits, targets, token_losses, loss, dlogits] = data else { unreachable!() };
            let (logits, targets, loss) = (logits.floats(), targets.tokens(), &mut loss.floats()[0]);
            host::cross_entropy(shape, scale, logits, targets, token_losses.floats(), loss, dlogits.floats());
        }),
    }
}

fn forward(random: &mut Random, shape: Rows, scale: f64) -> Case {
    let Rows { rows, width } = shape;
    Case {
        kernel: "cross-entropy forward",
        what: format!("{shape:?}"),
        operands: vec![
            read("logits", random.floats(rows * width)),
            tokens("targets", random.tokens(rows, width)),
            written("token_losses", rows),
            written("loss", 1),
        ],
        work: work::cross_entropy_forward(shape, 4, 4),
        launch: Box::new(move |stream, tensors| {
            let [logits, targets, token_losses, loss] = tensors else { unreachable!() };
            let (logits, targets) = (logits.floats(), targets.tokens());
            kernels::cross_entropy_forward(stream, shape, scale, logits, targets, token_losses.floats(), loss.floats())
        }),
        host: Box::new(move |data| {
            let [logits, targets, token_losses, loss] = data else { unreachable!() };
            let (logits, targets, loss) = (logits.floats(), targets.tokens(), &mut loss.floats()[0]);
            host::cross_entropy_forward(shape, scale, logits, targets, token_losses.floats(), loss);
        }),
    }
}

fn backward(random: &mut Random, shape: Rows, scale: f64) -> Case {
    let Rows { rows, width } = shape;
    Case {
        kernel: "cross-entropy backward",
        what: format!("{shape:?}"),
        operands: vec![
            read("logits", random.floats(rows * width)),
            tokens("targets", random.tokens(rows, width)),
            written("dlogits", rows * width),
        ],
        work: work::cross_entropy_backward(shape, 4, 4),
        launch: Box::new(move |stream, tensors| {
            let [logits, targets, dlogits] = tensors else { unreachable!() };
            kernels::cross_entropy_backward(stream, shape, scale, logits.floats(), targets.tokens(), dlogits.floats())
        }),
        host: Box::new(move |data| {
            let [logits, targets, dlogits] = data else { unreachable!() };
            host::cross_entropy_backward(shape, scale, logits.floats(), targets.tokens(), dlogits.floats());
        }),
    }
}
