//! Every launcher on any device and for both elements, against the host function of the same name in f64.
//!
//! An [`Operation`] is one launcher with a shape. [`Run`] gives it random operands, launches it, and looks at all that it
//! left in memory. The inputs are rounded to the element first: rounded inputs are the truth, and the reference computes
//! from them.

pub(crate) mod attention;
pub(crate) mod elementwise;
pub(crate) mod embedding;
pub(crate) mod linear;
pub(crate) mod loss;
pub(crate) mod norm;
mod number;
pub(crate) mod optimizer;
mod run;

use highwater::Stream;
use highwater::device::Access;
use highwater_kernels::KernelError;
use highwater_kernels::host::{Real, Update};

pub(crate) use number::{F32_UNIT, Number, Random};
pub(crate) use run::{Bench, Layout, Run, Tensor, units};

pub(crate) const UPDATES: [Update; 2] = [Update::Store, Update::Accumulate];

/// One launcher with a shape.
pub(crate) trait Operation {
    /// Its name in the report.
    const NAME: &'static str;
    /// Whether a GPU promises the bits of the host function in f32, rounded once.
    const EXACT: bool;
    /// Operands in the order of [`launch`](Operation::launch).
    fn operands<E: Number>(&self, random: &mut Random) -> Vec<Operand>;

    fn launch<E: Number>(&self, stream: &Stream, tensors: &[Tensor<E>]) -> Result<(), KernelError>;

    fn host<T: Real>(&self, slots: &mut [Slot<T>]);

    /// How far each written operand may be from the f64 reference, in their order. `before` and `after` are the operands
    /// of the reference. The rounding of the result itself comes on top.
    fn tolerances<E: Number>(&self, before: &[Slot<f64>], after: &[Slot<f64>]) -> Vec<Tolerance>;

    /// View offsets are multiples of this many elements.
    fn alignment<E: Number>(&self) -> usize {
        1
    }

    /// What tells cases apart in messages.
    fn what(&self) -> String;
}

/// The content of an operand before the operation.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Of the operation's element, rounded to it.
    Elements(Vec<f32>),
    /// `f32`, whatever the element.
    Singles(Vec<f32>),
    Tokens(Vec<u32>),
}

#[derive(Clone, Debug)]
pub(crate) struct Operand {
    pub(crate) access: Access,
    pub(crate) content: Content,
}

impl Operand {
    pub(crate) fn read(values: Vec<f32>) -> Self {
        Operand { access: Access::Read, content: Content::Elements(values) }
    }

    pub(crate) fn changed(values: Vec<f32>) -> Self {
        Operand { access: Access::ReadWrite, content: Content::Elements(values) }
    }

    /// NaN at first: reading it shows.
    pub(crate) fn written(len: usize) -> Self {
        Operand { access: Access::Write, content: Content::Elements(vec![f32::NAN; len]) }
    }

    pub(crate) fn updated<E: Number>(random: &mut Random, update: Update, len: usize) -> Self {
        match update {
            Update::Store => Self::written(len),
            Update::Accumulate => Self::changed(random.elements::<E>(len)),
        }
    }

    pub(crate) fn tokens(values: Vec<u32>) -> Self {
        Operand { access: Access::Read, content: Content::Tokens(values) }
    }

    /// The same in `f32`, whatever the element.
    pub(crate) fn single(self) -> Self {
        let Content::Elements(values) = self.content else { panic!("an operand of elements") };
        Operand { content: Content::Singles(values), ..self }
    }
}

/// An operand of a host function.
#[derive(Clone, Debug)]
pub(crate) enum Slot<T> {
    Values(Vec<T>),
    Tokens(Vec<u32>),
}

impl<T> Slot<T> {
    pub(crate) fn values(&self) -> &[T] {
        match self {
            Slot::Values(values) => values,
            Slot::Tokens(_) => panic!("an operand of tokens"),
        }
    }

    pub(crate) fn out(&mut self) -> &mut [T] {
        match self {
            Slot::Values(values) => values,
            Slot::Tokens(_) => panic!("an operand of tokens"),
        }
    }

    pub(crate) fn tokens(&self) -> &[u32] {
        match self {
            Slot::Tokens(tokens) => tokens,
            Slot::Values(_) => panic!("an operand of values"),
        }
    }
}

/// The largest magnitude.
pub(crate) fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |most, value| most.max(value.abs()))
}

/// The error of a sum of `terms` random values of at most one: a rounding at each term, of a partial sum that is about
/// √terms / 2 and in the worst of many elements four times that. The roundings go to both sides, so their sum is off by
/// hardly more than 3 · terms units. Tensor cores cut off rather than round, which is within that too.
pub(crate) fn sum_error(terms: usize) -> f64 {
    units(3.0 * (terms as f64 + 4.0))
}

/// What an element may be off: an absolute part, which may depend on its place, and a part relative to the reference.
pub(crate) struct Tolerance {
    relative: f64,
    absolute: Box<dyn Fn(usize) -> f64>,
}

impl Tolerance {
    pub(crate) fn flat(relative: f64, absolute: f64) -> Self {
        Self::each(relative, move |_| absolute)
    }

    pub(crate) fn each(relative: f64, absolute: impl Fn(usize) -> f64 + 'static) -> Self {
        Tolerance { relative, absolute: Box::new(absolute) }
    }

    /// For the element at `index`, whose reference is `expected` and which is stored with the relative error `unit`.
    pub(crate) fn of(&self, index: usize, expected: f64, unit: f64) -> f64 {
        /// Below the smallest normal number there is no relative precision.
        const TINY: f64 = 1e-37;
        let computed = (self.absolute)(index) + self.relative * expected.abs();
        computed + unit * (expected.abs() + computed) + TINY
    }
}
