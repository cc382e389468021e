//! Causal attention.
//!
//! Errors of bf16: probabilities, and their gradients, are rounded to bf16 on their way into a product, each by up to
//! [`Number::UNIT`]. Row t of a sequence has t + 1 probabilities of about 1 / (t + 1), so the root of the sum of their
//! squares is about 1 / √(t + 1), and so are the errors of the sums. What a row's tolerance is in units of that is said
//! below.

use highwater::Stream;
use highwater_kernels::host::{self, AttentionShape, Real};
use highwater_kernels::{self as kernels, AttentionBackward, KernelError};

use super::{F32_UNIT, Layout, Number, Operand, Operation, Random, Run, Slot, Tensor, Tolerance, units};

/// One row, blocks that are not full, full ones, and one row more, for blocks of 32, 64 and 128 rows.
const SEQUENCES: [usize; 7] = [1, 31, 64, 65, 128, 200, 513];

/// All sequences with all widths, the layouts and the numbers of heads in turn; shapes without rows; and those of
/// `large`.
pub(crate) fn all<E: Number>(run: &mut Run<'_>, widths: &[usize], large: &[AttentionShape]) {
    let shapes = || {
        let sized = SEQUENCES.into_iter().flat_map(|sequence| widths.iter().map(move |&width| (sequence, width)));
        sized.enumerate().map(|(index, (sequence, head_width))| {
            let (batch, heads) = [(1, 1), (2, 3), (1, 2)][index % 3];
            (AttentionShape { batch, sequence, heads, head_width }, Layout::ALL[index / 3 % 3])
        })
    };
    let empty = || {
        let sizes = [(0, 5, 2), (2, 0, 2), (2, 5, 0)].into_iter();
        sizes.map(|(batch, sequence, heads)| {
            (AttentionShape { batch, sequence, heads, head_width: widths[0] }, Layout::Aligned)
        })
    };
    let large = || large.iter().map(|&shape| (shape, Layout::Aligned));
    for (shape, layout) in empty().chain(shapes()).chain(large()) {
        run.check::<E, _>(&Forward(shape), layout);
    }
    run.report::<E, Forward>();
    for (shape, layout) in empty().chain(shapes()).chain(large()) {
        run.check::<E, _>(&Backward(shape), layout);
    }
    run.report::<E, Backward>();
}

/// A GPU takes bf16 views at multiples of 16 bytes.
fn alignment<E: Number>() -> usize {
    if size_of::<E>() == size_of::<f32>() { 1 } else { 8 }
}

/// Relative error of a probability in f32, units: scores are sums of `head_width` products, scaled, and so off by about
/// 2·√`head_width`; the exponential, the largest score and the sum are off by a few units, once more for each tile.
fn probability_units(shape: AttentionShape) -> f64 {
    16.0 + 2.0 * (shape.head_width as f64).sqrt() + (shape.sequence as f64).sqrt()
}

/// What rounding probabilities to the element (which changes an f32 no further) makes of a sum over row `row`, or over
/// the rows from it on.
fn rounded<E: Number>(times: f64, row: usize) -> f64 {
    times * (E::UNIT - F32_UNIT) / ((row + 1) as f64).sqrt()
}

struct Forward(AttentionShape);

impl Operation for Forward {
    const NAME: &'static str = "attention_forward";
    const EXACT: bool = false;

    fn operands<E: Number>(&self, random: &mut Random) -> Vec<Operand> {
        vec![
            Operand::read(random.elements::<E>(self.0.qkv_elements())),
            Operand::written(self.0.out_elements()),
            Operand::written(self.0.lse_elements()).single(),
        ]
    }

    fn launch<E: Number>(&self, stream: &Stream, tensors: &[Tensor<E>]) -> Result<(), KernelError> {
        let [qkv, out, lse] = tensors else { unreachable!() };
        kernels::attention_forward(stream, self.0, qkv.elements(), out.elements(), lse.singles())
    }

    fn host<T: Real>(&self, slots: &mut [Slot<T>]) {
        let [qkv, out, lse] = slots else { unreachable!() };
        host::attention_forward(self.0, qkv.values(), out.out(), lse.out());
    }

    /// Values are at most one: a row is off by as much as its probabilities, relative, and by the roundings of them.
    /// One deviation of these is UNIT / √3 · √(Σ p² v²), about a third of UNIT / √(t + 1): the tolerance is six of them.
    fn tolerances<E: Number>(&self, _: &[Slot<f64>], _: &[Slot<f64>]) -> Vec<Tolerance> {
        let AttentionShape { sequence, heads, head_width, .. } = self.0;
        let f32_error = units(probability_units(self.0));
        let row = move |at: usize| at / (heads * head_width) % sequence;
        vec![
            Tolerance::each(0.0, move |at| f32_error + rounded::<E>(2.0, row(at))),
            Tolerance::flat(units(2.0), f32_error),
        ]
    }

    fn alignment<E: Number>(&self) -> usize {
        alignment::<E>()
    }

    fn what(&self) -> String {
        format!("{:?}", self.0)
    }
}

struct Backward(AttentionShape);

impl Operation for Backward {
    const NAME: &'static str = "attention_backward";
    const EXACT: bool = false;

    /// The output and the log-sum-exps are those of the forward pass, rounded.
    fn operands<E: Number>(&self, random: &mut Random) -> Vec<Operand> {
        let shape = self.0;
        let qkv = random.elements::<E>(shape.qkv_elements());
        let exact: Vec<f64> = qkv.iter().copied().map(f64::from).collect();
        let (mut out, mut lse) = (vec![0.0; shape.out_elements()], vec![0.0; shape.lse_elements()]);
        host::attention_forward(shape, &exact, &mut out, &mut lse);
        vec![
            Operand::read(qkv),
            Operand::read(out.into_iter().map(|value| E::round(value as f32).to_f32()).collect()),
            Operand::read(lse.into_iter().map(|value| value as f32).collect()).single(),
            Operand::read(random.elements::<E>(shape.out_elements())),
            Operand::written(shape.qkv_elements()),
        ]
    }

    fn launch<E: Number>(&self, stream: &Stream, tensors: &[Tensor<E>]) -> Result<(), KernelError> {
        let [qkv, out, lse, dout, dqkv] = tensors else { unreachable!() };
        let (qkv, out, lse, dout) = (qkv.elements(), out.elements(), lse.singles(), dout.elements());
        let views = AttentionBackward { qkv, out, lse, dout, dqkv: dqkv.elements() };
        kernels::attention_backward(stream, self.0, views)
    }

    fn host<T: Real>(&self, slots: &mut [Slot<T>]) {
        let [qkv, _out, lse, dout, dqkv] = slots else { unreachable!() };
        host::attention_backward(self.0, qkv.values(), lse.values(), dout.values(), dqkv.out());
    }

    /// The gradient of a value sums the probabilities of a column, which are Σ 1 / (t + 1) < 8 in all for the first one.
    /// Their errors go to both sides, so four times that of one is enough. Gradients of queries and keys sum
    /// p · (dp − average) · k / √width, where dp is a sum of `head_width` products and so about √width: their errors are
    /// as large. In bf16 the average is off as well, as it comes from the rounded output.
    fn tolerances<E: Number>(&self, _: &[Slot<f64>], _: &[Slot<f64>]) -> Vec<Tolerance> {
        let AttentionShape { sequence, heads, head_width, .. } = self.0;
        let f32_error = units(4.0 * probability_units(self.0));
        let row = move |at: usize| at / (3 * heads * head_width) % sequence;
        vec![Tolerance::each(0.0, move |at| f32_error + rounded::<E>(4.0, row(at)))]
    }

    fn alignment<E: Number>(&self) -> usize {
        alignment::<E>()
    }

    fn what(&self) -> String {
        format!("{:?}", self.0)
    }
}
