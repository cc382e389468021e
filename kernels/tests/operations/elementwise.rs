//! One element at a time.

use highwater::Stream;
use highwater_kernels::host::{self, Real};
use highwater_kernels::{self as kernels, KernelError};

use super::{Number, Operand, Operation, Random, Run, Slot, Tensor, Tolerance, units};

/// Empty, one, odd, a pack and its neighbours, several blocks of every kernel.
const LENGTHS: [usize; 8] = [0, 1, 7, 8, 9, 257, 4096, 10_007];

pub(crate) fn all<E: Number>(run: &mut Run<'_>) {
    run.check_all::<E, _>(LENGTHS.map(Add));
    run.check_all::<E, _>(LENGTHS.map(Accumulate));
    run.check_all::<E, _>(LENGTHS.map(Scale));
    run.check_all::<E, _>(LENGTHS.map(Fill));
    run.check_all::<E, _>(LENGTHS.map(Copy));
    run.check_all::<E, _>(LENGTHS.map(CastFromF32));
    run.check_all::<E, _>(LENGTHS.map(CastToF32));
    run.check_all::<E, _>(LENGTHS.map(GeluForward));
    run.check_all::<E, _>(LENGTHS.map(GeluBackward));
}

/// Sums of two are rounded once in f32, and values here are below two.
fn one_sum() -> Vec<Tolerance> {
    vec![Tolerance::flat(0.0, units(2.0))]
}

struct Add(usize);

impl Operation for Add {
    const NAME: &'static str = "add";
    const EXACT: bool = true;

    fn operands<E: Number>(&self, random: &mut Random) -> Vec<Operand> {
        let mut read = || Operand::read(random.elements::<E>(self.0));
        vec![read(), read(), Operand::written(self.0)]
    }

    fn launch<E: Number>(&self, stream: &Stream, tensors: &[Tensor<E>]) -> Result<(), KernelError> {
        let [left, right, out] = tensors else { unreachable!() };
        kernels::add(stream, left.elements(), right.elements(), out.elements())
    }

    fn host<T: Real>(&self, slots: &mut [Slot<T>]) {
        let [left, right, out] = slots else { unreachable!() };
        host::add(left.values(), right.values(), out.out());
    }

    fn tolerances<E: Number>(&self, _: &[Slot<f64>], _: &[Slot<f64>]) -> Vec<Tolerance> {
        one_sum()
    }

    fn what(&self) -> String {
        format!("{} elements", self.0)
    }
}

struct Accumulate(usize);

impl Operation for Accumulate {
    const NAME: &'static str = "accumulate";
    const EXACT: bool = true;

    fn operands<E: Number>(&self, random: &mut Random) -> Vec<Operand> {
        vec![Operand::read(random.elements::<E>(self.0)), Operand::changed(random.elements::<E>(self.0))]
    }

    fn launch<E: Number>(&self, stream: &Stream, tensors: &[Tensor<E>]) -> Result<(), KernelError> {
        let [source, target] = tensors else { unreachable!() };
        kernels::accumulate(stream, source.elements(), target.elements())
    }

    fn host<T: Real>(&self, slots: &mut [Slot<T>]) {
        let [source, target] = slots else { unreachable!() };
        host::accumulate(source.values(), target.out());
    }

    fn tolerances<E: Number>(&self, _: &[Slot<f64>], _: &[Slot<f64>]) -> Vec<Tolerance> {
        one_sum()
    }

    fn what(&self) -> String {
        format!("{} elements", self.0)
    }
}

struct Scale(usize);

/// No f32: it is rounded on the way.
const FACTOR: f64 = -0.3;

impl Operation for Scale {
    const NAME: &'static str = "scale";
    const EXACT: bool = true;

    fn operands<E: Number>(&self, random: &mut Random) -> Vec<Operand> {
        vec![Operand::changed(random.elements::<E>(self.0))]
    }

    fn launch<E: Number>(&self, stream: &Stream, tensors: &[Tensor<E>]) -> Result<(), KernelError> {
        kernels::scale(stream, FACTOR, tensors[0].elements())
    }

    fn host<T: Real>(&self, slots: &mut [Slot<T>]) {
        host::scale(FACTOR, slots[0].out());
    }

    /// The factor is rounded, and the product.
    fn tolerances<E: Number>(&self, _: &[Slot<f64>], _: &[Slot<f64>]) -> Vec<Tolerance> {
        vec![Tolerance::flat(units(2.0), 0.0)]
    }

    fn what(&self) -> String {
        format!("{} elements", self.0)
    }
}

struct Fill(usize);

const VALUE: f32 = 1.3;

impl Operation for Fill {
    const NAME: &'static str = "fill";
    const EXACT: bool = true;

    fn operands<E: Number>(&self, _: &mut Random) -> Vec<Operand> {
        vec![Operand::written(self.0)]
    }

    fn launch<E: Number>(&self, stream: &Stream, tensors: &[Tensor<E>]) -> Result<(), KernelError> {
        kernels::fill(stream, VALUE, tensors[0].elements())
    }

    fn host<T: Real>(&self, slots: &mut [Slot<T>]) {
        host::fill(T::from_f64(f64::from(VALUE)), slots[0].out());
    }

    fn tolerances<E: Number>(&self, _: &[Slot<f64>], _: &[Slot<f64>]) -> Vec<Tolerance> {
        vec![Tolerance::flat(0.0, 0.0)]
    }

    fn what(&self) -> String {
        format!("{} elements", self.0)
    }
}

struct Copy(usize);

impl Operation for Copy {
    const NAME: &'static str = "copy";
    const EXACT: bool = true;

    fn operands<E: Number>(&self, random: &mut Random) -> Vec<Operand> {
        vec![Operand::read(random.elements::<E>(self.0)), Operand::written(self.0)]
    }

    fn launch<E: Number>(&self, stream: &Stream, tensors: &[Tensor<E>]) -> Result<(), KernelError> {
        let [source, target] = tensors else { unreachable!() };
        kernels::copy(stream, source.elements(), target.elements())
    }

    fn host<T: Real>(&self, slots: &mut [Slot<T>]) {
        copy(slots);
    }

    fn tolerances<E: Number>(&self, _: &[Slot<f64>], _: &[Slot<f64>]) -> Vec<Tolerance> {
        vec![Tolerance::flat(0.0, 0.0)]
    }

    fn what(&self) -> String {
        format!("{} elements", self.0)
    }
}

fn copy<T: Real>(slots: &mut [Slot<T>]) {
    let [source, target] = slots else { unreachable!() };
    host::copy(source.values(), target.out());
}

/// Values that rounding has to get right: ties to both sides, what rounds up to infinity, subnormal ones, zeros.
fn edges() -> Vec<f32> {
    let tie = 1.0 + 2f32.powi(-8);
    let other_tie = 1.0 + 3.0 * 2f32.powi(-8);
    let largest_finite = f32::from_bits(0x7f7f_0000);
    let subnormal = f32::from_bits(0x0000_8001);
    vec![
        tie,
        tie.next_up(),
        tie.next_down(),
        other_tie,
        -other_tie,
        largest_finite,
        f32::MAX,
        f32::MIN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        subnormal,
        -subnormal,
        f32::MIN_POSITIVE,
        0.0,
        -0.0,
    ]
}

struct CastFromF32(usize);

impl Operation for CastFromF32 {
    const NAME: &'static str = "cast from f32 to";
    const EXACT: bool = true;

    fn operands<E: Number>(&self, random: &mut Random) -> Vec<Operand> {
        let mut values = random.singles(self.0);
        for (value, edge) in values.iter_mut().zip(edges()) {
            *value = edge;
        }
        vec![Operand::read(values).single(), Operand::written(self.0)]
    }

    fn launch<E: Number>(&self, stream: &Stream, tensors: &[Tensor<E>]) -> Result<(), KernelError> {
        let [source, target] = tensors else { unreachable!() };
        kernels::cast(stream, source.singles(), target.elements())
    }

    fn host<T: Real>(&self, slots: &mut [Slot<T>]) {
        copy(slots);
    }

    /// Subnormal values have no relative precision, and the largest round to infinity: there the bits are compared.
    fn tolerances<E: Number>(&self, before: &[Slot<f64>], _: &[Slot<f64>]) -> Vec<Tolerance> {
        let source = before[0].values().to_vec();
        vec![Tolerance::each(0.0, move |at| if source[at].abs() > 1e38 { f64::INFINITY } else { 0.0 })]
    }

    fn what(&self) -> String {
        format!("{} elements", self.0)
    }
}

struct CastToF32(usize);

impl Operation for CastToF32 {
    const NAME: &'static str = "cast to f32 from";
    const EXACT: bool = true;

    fn operands<E: Number>(&self, random: &mut Random) -> Vec<Operand> {
        vec![Operand::read(random.elements::<E>(self.0)), Operand::written(self.0).single()]
    }

    fn launch<E: Number>(&self, stream: &Stream, tensors: &[Tensor<E>]) -> Result<(), KernelError> {
        let [source, target] = tensors else { unreachable!() };
        kernels::cast(stream, source.elements(), target.singles())
    }

    fn host<T: Real>(&self, slots: &mut [Slot<T>]) {
        copy(slots);
    }

    fn tolerances<E: Number>(&self, _: &[Slot<f64>], _: &[Slot<f64>]) -> Vec<Tolerance> {
        vec![Tolerance::flat(0.0, 0.0)]
    }

    fn what(&self) -> String {
        format!("{} elements", self.0)
    }
}

/// The largest input of a GELU: beyond it the gate is 0 or 1 to f32.
const WIDEST: f32 = 4.0;

struct GeluForward(usize);

impl Operation for GeluForward {
    const NAME: &'static str = "gelu_forward";
    const EXACT: bool = false;

    fn operands<E: Number>(&self, random: &mut Random) -> Vec<Operand> {
        let mut x = random.scaled::<E>(WIDEST, self.0);
        for (value, edge) in x.iter_mut().zip([0.0, -0.0, 1e-30, 9.0, -9.0, 100.0, -100.0]) {
            *value = E::round(edge).to_f32();
        }
        vec![Operand::read(x), Operand::written(self.0)]
    }

    fn launch<E: Number>(&self, stream: &Stream, tensors: &[Tensor<E>]) -> Result<(), KernelError> {
        let [x, out] = tensors else { unreachable!() };
        kernels::gelu_forward(stream, x.elements(), out.elements())
    }

    fn host<T: Real>(&self, slots: &mut [Slot<T>]) {
        let [x, out] = slots else { unreachable!() };
        host::gelu_forward(x.values(), out.out());
    }

    /// The exponent is up to 11 with four roundings (and one more on its way to base 2), so the exponential is off by 55
    /// units and its own few; the gate no more than that. Below −4 the result is under 3·10⁻⁴: an absolute unit covers
    /// the larger exponents.
    fn tolerances<E: Number>(&self, _: &[Slot<f64>], _: &[Slot<f64>]) -> Vec<Tolerance> {
        vec![Tolerance::flat(units(64.0), units(1.0))]
    }

    fn what(&self) -> String {
        format!("{} elements", self.0)
    }
}

struct GeluBackward(usize);

impl Operation for GeluBackward {
    const NAME: &'static str = "gelu_backward";
    const EXACT: bool = false;

    fn operands<E: Number>(&self, random: &mut Random) -> Vec<Operand> {
        let x = random.scaled::<E>(WIDEST, self.0);
        vec![Operand::read(x), Operand::read(random.elements::<E>(self.0)), Operand::written(self.0)]
    }

    fn launch<E: Number>(&self, stream: &Stream, tensors: &[Tensor<E>]) -> Result<(), KernelError> {
        let [x, dout, dx] = tensors else { unreachable!() };
        kernels::gelu_backward(stream, x.elements(), dout.elements(), dx.elements())
    }

    fn host<T: Real>(&self, slots: &mut [Slot<T>]) {
        let [x, dout, dx] = slots else { unreachable!() };
        host::gelu_backward(x.values(), dout.values(), dx.out());
    }

    /// Two terms that may cancel. The gate is off by 64 units at most where it is near 0 or ½, and 1 − gate by a unit,
    /// which its factors x · slope · (1 + 3 · cubic · x²) make up to 20. The gradient of the output is at most one.
    fn tolerances<E: Number>(&self, _: &[Slot<f64>], _: &[Slot<f64>]) -> Vec<Tolerance> {
        vec![Tolerance::flat(units(64.0), units(24.0))]
    }

    fn what(&self) -> String {
        format!("{} elements", self.0)
    }
}
