//! One element at a time.

use highwater_kernels as kernels;
use highwater_kernels::host::{self, work};

use super::{changed, read, written};
use crate::operands::{Case, Random};

pub(super) fn elementwise(random: &mut Random, cases: &mut Vec<Case>) {
    for len in [1, 7, 1000] {
        let what = format!("{len} elements");
        cases.push(Case {
            kernel: "add",
            what: what.clone(),
            operands: vec![
                read("left", random.floats(len)),
                read("right", random.floats(len)),
                written("out", len).shown_by("left"),
            ],
            work: work::add(len, 4),
            launch: Box::new(|stream, tensors| {
                let [left, right, out] = tensors else { unreachable!() };
                kernels::add(stream, left.floats(), right.floats(), out.floats())
            }),
            host: Box::new(|data| {
                let [left, right, out] = data else { unreachable!() };
                host::add(left.floats(), right.floats(), out.floats());
            }),
        });
        cases.push(Case {
            kernel: "accumulate",
            what: what.clone(),
            operands: vec![
                read("source", random.floats(len)),
                changed("target", random.floats(len)).shown_by("source"),
            ],
            work: work::add(len, 4),
            launch: Box::new(|stream, tensors| {
                let [source, target] = tensors else { unreachable!() };
                kernels::accumulate(stream, source.floats(), target.floats())
            }),
            host: Box::new(|data| {
                let [source, target] = data else { unreachable!() };
                host::accumulate(source.floats(), target.floats());
            }),
        });
        cases.push(Case {
            kernel: "scale",
            what: what.clone(),
            operands: vec![changed("target", random.floats(len)).alone()],
            work: work::scale(len, 4),
            launch: Box::new(|stream, tensors| kernels::scale(stream, -0.3, tensors[0].floats())),
            host: Box::new(|data| host::scale(-0.3, data[0].floats())),
        });
        cases.push(Case {
            kernel: "fill",
            what: what.clone(),
            operands: vec![written("target", len).alone()],
            work: work::fill(len, 4),
            launch: Box::new(|stream, tensors| kernels::fill(stream, 1.5, tensors[0].floats())),
            host: Box::new(|data| host::fill(1.5, data[0].floats())),
        });
        cases.push(Case {
            kernel: "copy",
            what,
            operands: vec![read("source", random.floats(len)), written("target", len).shown_by("source")],
            work: work::copy(len, 4),
            launch: Box::new(|stream, tensors| {
                let [source, target] = tensors else { unreachable!() };
                kernels::copy(stream, source.floats(), target.floats())
            }),
            host: Box::new(|data| {
                let [source, target] = data else { unreachable!() };
                host::copy(source.floats(), target.floats());
            }),
        });
    }
}

pub(super) fn gelus(random: &mut Random, cases: &mut Vec<Case>) {
    for len in [1, 13, 600] {
        let what = format!("{len} elements");
        cases.push(Case {
            kernel: "gelu",
            what: what.clone(),
            operands: vec![read("x", random.floats(len)), written("out", len).shown_by("x")],
            work: work::gelu_forward(len, 4),
            launch: Box::new(|stream, tensors| {
                let [x, out] = tensors else { unreachable!() };
                kernels::gelu_forward(stream, x.floats(), out.floats())
            }),
            host: Box::new(|data| {
                let [x, out] = data else { unreachable!() };
                host::gelu_forward(x.floats(), out.floats());
            }),
        });
        cases.push(Case {
            kernel: "gelu backward",
            what,
            operands: vec![
                read("x", random.floats(len)),
                read("dout", random.floats(len)),
                written("dx", len).shown_by("x"),
            ],
            work: work::gelu_backward(len, 4),
            launch: Box::new(|stream, tensors| {
                let [x, dout, dx] = tensors else { unreachable!() };
                kernels::gelu_backward(stream, x.floats(), dout.floats(), dx.floats())
            }),
            host: Box::new(|data| {
                let [x, dout, dx] = data else { unreachable!() };
                host::gelu_backward(x.floats(), dout.floats(), dx.floats());
            }),
        });
    }
}
