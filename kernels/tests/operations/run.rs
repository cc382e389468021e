//! Runs operations on a device and compares.

use std::fmt::Display;
use std::ops::Range;
use std::time::Duration;

use highwater::{Allocator, Buffer, HostBuffer, Pod, Stream, View};
use highwater_kernels::host::Real;

use super::{Content, F32_UNIT, Number, Operand, Operation, Random, Slot};

const TIMEOUT: Duration = Duration::from_secs(120);

/// Elements before and behind each view: whole packs of 16 bytes of either element.
const GUARDS: usize = 32;

/// Bits of a token that stands around views, and is in no table.
const GUARD_TOKEN: u32 = u32::MAX;

/// How views lie in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Layout {
    /// All at multiples of 16 bytes.
    Aligned,
    /// All at the same odd offset: they come to a multiple of 16 bytes together.
    Together,
    /// At different offsets.
    Apart,
}

impl Layout {
    pub(crate) const ALL: [Layout; 3] = [Layout::Aligned, Layout::Together, Layout::Apart];

    fn offset(self, operand: usize) -> usize {
        match self {
            Layout::Aligned => 0,
            Layout::Together => 1,
            Layout::Apart => (3 * operand + 1) % 8,
        }
    }
}

/// An allocator, and its default stream.
pub(crate) struct Bench {
    pub(crate) allocator: Allocator,
    pub(crate) stream: Stream,
}

impl Bench {
    pub(crate) fn new(allocator: Allocator) -> Self {
        Bench { stream: allocator.default_stream(), allocator }
    }

    pub(crate) fn buffer<T: Pod>(&self, values: &[T]) -> Buffer<T> {
        let staging: HostBuffer<T> = self.allocator.pinned(values.len());
        staging.write(|elements| elements.copy_from_slice(values)).unwrap();
        let buffer = self.stream.alloc(values.len()).unwrap();
        self.stream.copy_to_device(&staging, &buffer).unwrap();
        staging.wait(TIMEOUT).unwrap();
        buffer
    }

    pub(crate) fn elements<T: Pod>(&self, buffer: &Buffer<T>) -> Vec<T> {
        let staging = self.allocator.pinned(buffer.len());
        self.stream.copy_to_host(buffer, &staging).unwrap();
        staging.wait(TIMEOUT).unwrap();
        staging.read(<[T]>::to_vec).unwrap()
    }

    fn upload<E: Number>(&self, content: &Content, offset: usize) -> Tensor<E> {
        fn guarded<T: Copy>(guard: T, offset: usize, values: impl Iterator<Item = T>) -> Vec<T> {
            let guards = |count| std::iter::repeat_n(guard, count);
            guards(GUARDS + offset).chain(values).chain(guards(GUARDS)).collect()
        }
        let range = |len: usize| GUARDS + offset..GUARDS + offset + len;
        match content {
            Content::Elements(values) => {
                let all = guarded(E::GUARD, offset, values.iter().map(|&value| E::round(value)));
                Tensor::Elements(self.buffer(&all), range(values.len()))
            }
            Content::Singles(values) => {
                let all = guarded(f32::GUARD, offset, values.iter().copied());
                Tensor::Singles(self.buffer(&all), range(values.len()))
            }
            Content::Tokens(values) => {
                let all = guarded(GUARD_TOKEN, offset, values.iter().copied());
                Tensor::Tokens(self.buffer(&all), range(values.len()))
            }
        }
    }

    /// All of the memory of an operand.
    fn download<E: Number>(&self, tensor: &Tensor<E>) -> Downloaded {
        fn of<N: Number>(all: Vec<N>, range: &Range<usize>) -> Downloaded {
            let bits = all.iter().map(|value| value.bits()).collect();
            let values = all[range.clone()].iter().map(|value| value.to_f32()).collect();
            Downloaded { bits, range: range.clone(), values, guard: N::GUARD.bits(), unit: N::UNIT }
        }
        match tensor {
            Tensor::Elements(buffer, range) => of(self.elements(buffer), range),
            Tensor::Singles(buffer, range) => of(self.elements(buffer), range),
            Tensor::Tokens(buffer, range) => {
                let bits = self.elements(buffer);
                Downloaded { bits, range: range.clone(), values: Vec::new(), guard: GUARD_TOKEN, unit: 0.0 }
            }
        }
    }
}

/// An operand on the device, in the middle of guards.
pub(crate) enum Tensor<E> {
    Elements(Buffer<E>, Range<usize>),
    Singles(Buffer<f32>, Range<usize>),
    Tokens(Buffer<u32>, Range<usize>),
}

impl<E: Number> Tensor<E> {
    pub(crate) fn elements(&self) -> View<'_, E> {
        let Tensor::Elements(buffer, range) = self else { panic!("not an operand of elements") };
        buffer.slice(range.clone())
    }

    pub(crate) fn singles(&self) -> View<'_, f32> {
        let Tensor::Singles(buffer, range) = self else { panic!("not an operand of f32") };
        buffer.slice(range.clone())
    }

    pub(crate) fn tokens(&self) -> View<'_, u32> {
        let Tensor::Tokens(buffer, range) = self else { panic!("not an operand of tokens") };
        buffer.slice(range.clone())
    }
}

/// What was in an operand's memory.
#[derive(Clone, PartialEq, Debug)]
struct Downloaded {
    /// With guards.
    bits: Vec<u32>,
    range: Range<usize>,
    /// Without guards; none of tokens.
    values: Vec<f32>,
    guard: u32,
    /// Relative error of rounding to the element.
    unit: f64,
}

impl Downloaded {
    fn assert_guards(&self, what: &dyn Display) {
        for (index, &bits) in self.bits.iter().enumerate() {
            assert!(
                self.range.contains(&index) || bits == self.guard,
                "{what}: wrote at {index}, beside {:?}",
                self.range
            );
        }
    }
}

/// The largest errors of some cases.
#[derive(Default)]
struct Errors {
    cases: usize,
    absolute: f64,
    /// Of elements that are not much smaller than the operand's largest.
    relative: f64,
    /// Relative to what is allowed.
    share: f64,
}

/// Runs operations of one name and element.
pub(crate) struct Run<'a> {
    bench: &'a Bench,
    random: Random,
    errors: Errors,
}

impl<'a> Run<'a> {
    pub(crate) fn new(bench: &'a Bench) -> Self {
        Run { bench, random: Random(7), errors: Errors::default() }
    }

    /// Checks some shapes of one operation in all layouts, and reports on them.
    pub(crate) fn check_all<E: Number, O: Operation>(&mut self, operations: impl IntoIterator<Item = O>) {
        for operation in operations {
            for layout in Layout::ALL {
                self.check::<E, O>(&operation, layout);
            }
        }
        self.report::<E, O>();
    }

    /// Prints the largest errors since the last report.
    pub(crate) fn report<E: Number, O: Operation>(&mut self) {
        let Errors { cases, absolute, relative, share } = std::mem::take(&mut self.errors);
        assert!(cases > 0, "{}: nothing was checked", O::NAME);
        println!(
            "{} {}: {cases} cases, max_abs {absolute:.2e}, max_rel {relative:.2e}, {share:.2} of what is allowed",
            O::NAME,
            E::TITLE
        );
    }

    /// Checks one shape in one layout.
    pub(crate) fn check<E: Number, O: Operation>(&mut self, operation: &O, layout: Layout) {
        let what = format!("{} {} {} {layout:?}", O::NAME, E::TITLE, operation.what());
        let operands = operation.operands::<E>(&mut self.random);
        let found = self.execute::<E, O>(operation, &operands, layout);
        for (index, found) in found.iter().enumerate() {
            found.assert_guards(&format!("{what}: operand {index}"));
        }
        let again = self.execute::<E, O>(operation, &operands, layout);
        let bits = |all: &[Downloaded]| all.iter().map(|one| one.bits.clone()).collect::<Vec<_>>();
        assert_eq!(bits(&found), bits(&again), "{what}: another run, other bits");
        self.compare_bits::<E, O>(operation, &operands, &found, &what);
        self.compare_values::<E, O>(operation, &operands, &found, &what);
        self.errors.cases += 1;
    }

    /// The operands' memory after the operation.
    fn execute<E: Number, O: Operation>(&self, operation: &O, operands: &[Operand], layout: Layout) -> Vec<Downloaded> {
        let offset = |index| layout.offset(index) * operation.alignment::<E>();
        let upload = |(index, operand): (usize, &Operand)| self.bench.upload::<E>(&operand.content, offset(index));
        let tensors: Vec<Tensor<E>> = operands.iter().enumerate().map(upload).collect();
        operation.launch::<E>(&self.bench.stream, &tensors).unwrap_or_else(|error| panic!("{error}"));
        tensors.iter().map(|tensor| self.bench.download(tensor)).collect()
    }

    /// Inputs are as they were. Outputs have the bits of the host function in f32, rounded once: all of them on the
    /// simulated device, and on a GPU where they are promised.
    fn compare_bits<E: Number, O: Operation>(
        &self,
        operation: &O,
        operands: &[Operand],
        found: &[Downloaded],
        what: &str,
    ) {
        let promised = O::EXACT || self.bench.stream.cuda_device().is_none();
        let mut slots = slots::<f32>(operands);
        operation.host(&mut slots);
        for (index, ((operand, slot), found)) in operands.iter().zip(&slots).zip(found).enumerate() {
            if operand.access.writes() && !promised {
                continue;
            }
            let expected: Vec<u32> = match (&operand.content, slot) {
                (Content::Elements(_), Slot::Values(values)) => values.iter().map(|&v| E::round(v).bits()).collect(),
                (_, Slot::Values(values)) => values.iter().map(|value| value.to_bits()).collect(),
                (_, Slot::Tokens(tokens)) => tokens.clone(),
            };
            let found = &found.bits[found.range.clone()];
            let differs = found.iter().zip(&expected).position(|(found, expected)| found != expected);
            if let Some(at) = differs {
                panic!("{what}: operand {index} at {at}: bits {:#x}, not {:#x}", found[at], expected[at]);
            }
        }
    }

    fn compare_values<E: Number, O: Operation>(
        &mut self,
        operation: &O,
        operands: &[Operand],
        found: &[Downloaded],
        what: &str,
    ) {
        let before = slots::<f64>(operands);
        let mut after = before.clone();
        operation.host(&mut after);
        let mut tolerances = operation.tolerances::<E>(&before, &after).into_iter();
        for (index, ((operand, slot), found)) in operands.iter().zip(&after).zip(found).enumerate() {
            if !operand.access.writes() {
                continue;
            }
            let tolerance = tolerances.next().expect("a tolerance for each output");
            let least = 1e-3 * super::largest(slot.values());
            for (at, (&found_value, &expected)) in found.values.iter().zip(slot.values()).enumerate() {
                let allowed = tolerance.of(at, expected, found.unit);
                let error = (f64::from(found_value) - expected).abs();
                // Not `error > allowed`: a NaN is wrong.
                let right = error <= allowed || f64::from(found_value) == expected;
                assert!(
                    right,
                    "{what}: operand {index} at {at}: {found_value}, not {expected}; ±{allowed:e} is allowed"
                );
                if error.is_finite() {
                    self.errors.absolute = self.errors.absolute.max(error);
                    self.errors.share = self.errors.share.max(error / allowed);
                    if expected.abs() > least {
                        self.errors.relative = self.errors.relative.max(error / expected.abs());
                    }
                }
            }
        }
        assert!(tolerances.next().is_none(), "{what}: a tolerance too many");
    }
}

fn slots<T: Real>(operands: &[Operand]) -> Vec<Slot<T>> {
    let real = |values: &[f32]| values.iter().map(|&value| T::from_f64(f64::from(value))).collect();
    let slot = |operand: &Operand| match &operand.content {
        Content::Elements(values) | Content::Singles(values) => Slot::Values(real(values)),
        Content::Tokens(tokens) => Slot::Tokens(tokens.clone()),
    };
    operands.iter().map(slot).collect()
}

/// What is a unit of `f32` arithmetic, `count` times.
pub(crate) fn units(count: f64) -> f64 {
    count * F32_UNIT
}
