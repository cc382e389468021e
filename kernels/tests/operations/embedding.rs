//! Token and position tables.

use highwater::Stream;
use highwater_kernels::host::{self, EmbeddingShape, Real, Update};
use highwater_kernels::{self as kernels, KernelError};

use super::{Number, Operand, Operation, Random, Run, Slot, Tensor, Tolerance, UPDATES, sum_error, units};

pub(crate) fn all<E: Number>(run: &mut Run<'_>) {
    // The last ones have more equal tokens than a block lists at once, and rows that take several blocks.
    let shapes = [
        (1, 1, 1, 1),
        (3, 2, 5, 0),
        (11, 4, 6, 12),
        (256, 7, 40, 21),
        (50, 300, 129, 900),
        (2, 700, 16, 5000),
        (5, 3, 4104, 7),
    ];
    let shapes =
        shapes.map(|(vocabulary, positions, width, tokens)| (EmbeddingShape { vocabulary, positions, width }, tokens));
    run.check_all::<E, _>(shapes.map(|(shape, tokens)| Forward { shape, tokens }));
    let backward = |(shape, tokens)| UPDATES.map(|update| Backward { shape, tokens, update });
    run.check_all::<E, _>(shapes.into_iter().flat_map(backward));
}

struct Forward {
    shape: EmbeddingShape,
    tokens: usize,
}

impl Operation for Forward {
    const NAME: &'static str = "embedding_forward";
    const EXACT: bool = true;

    fn operands<E: Number>(&self, random: &mut Random) -> Vec<Operand> {
        let EmbeddingShape { vocabulary, positions, width } = self.shape;
        vec![
            Operand::tokens(random.tokens(self.tokens, vocabulary)),
            Operand::read(random.elements::<E>(vocabulary * width)),
            Operand::read(random.elements::<E>(positions * width)),
            Operand::written(self.tokens * width),
        ]
    }

    fn launch<E: Number>(&self, stream: &Stream, tensors: &[Tensor<E>]) -> Result<(), KernelError> {
        let [ids, words, positions, out] = tensors else { unreachable!() };
        let (words, positions) = (words.elements(), positions.elements());
        kernels::embedding_forward(stream, self.shape, ids.tokens(), words, positions, out.elements())
    }

    fn host<T: Real>(&self, slots: &mut [Slot<T>]) {
        let [ids, words, positions, out] = slots else { unreachable!() };
        host::embedding_forward(self.shape, ids.tokens(), words.values(), positions.values(), out.out());
    }

    /// One sum below two.
    fn tolerances<E: Number>(&self, _: &[Slot<f64>], _: &[Slot<f64>]) -> Vec<Tolerance> {
        vec![Tolerance::flat(0.0, units(2.0))]
    }

    fn what(&self) -> String {
        format!("{:?}, {} tokens", self.shape, self.tokens)
    }
}

struct Backward {
    shape: EmbeddingShape,
    tokens: usize,
    update: Update,
}

impl Operation for Backward {
    const NAME: &'static str = "embedding_backward";
    const EXACT: bool = true;

    fn operands<E: Number>(&self, random: &mut Random) -> Vec<Operand> {
        let EmbeddingShape { vocabulary, positions, width } = self.shape;
        vec![
            Operand::tokens(random.tokens(self.tokens, vocabulary)),
            Operand::read(random.elements::<E>(self.tokens * width)),
            Operand::updated::<E>(random, self.update, vocabulary * width),
            Operand::updated::<E>(random, self.update, positions * width),
        ]
    }

    fn launch<E: Number>(&self, stream: &Stream, tensors: &[Tensor<E>]) -> Result<(), KernelError> {
        let [ids, dout, words, positions] = tensors else { unreachable!() };
        let (words, positions) = (words.elements(), positions.elements());
        kernels::embedding_backward(stream, self.shape, ids.tokens(), dout.elements(), self.update, words, positions)
    }

    fn host<T: Real>(&self, slots: &mut [Slot<T>]) {
        let [ids, dout, words, positions] = slots else { unreachable!() };
        let (words, positions) = (words.out(), positions.out());
        host::embedding_backward(self.shape, ids.tokens(), dout.values(), self.update, words, positions);
    }

    /// A row has as many terms as there are tokens at most.
    fn tolerances<E: Number>(&self, _: &[Slot<f64>], _: &[Slot<f64>]) -> Vec<Tolerance> {
        let tolerance = || Tolerance::flat(0.0, sum_error(self.tokens));
        vec![tolerance(), tolerance()]
    }

    fn what(&self) -> String {
        format!("{:?}, {} tokens, {:?}", self.shape, self.tokens, self.update)
    }
}
