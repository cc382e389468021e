//! One case for every launcher, mode, layout and a few shapes.
//!
//! What is only written starts as NaN, so a kernel that reads it shows.

mod attention;
mod elementwise;
mod embedding;
mod linear;
mod loss;
mod norm;
mod optimizer;

use highwater::device::Access;
use highwater_kernels::host::Update;

use crate::operands::{Case, Data, Operand, Random};

const UPDATES: [Update; 2] = [Update::Store, Update::Accumulate];

/// All cases; the seed changes the data, not the shapes.
pub(crate) fn all_cases(seed: u64) -> Vec<Case> {
    let random = &mut Random(seed);
    let mut cases = Vec::new();
    linear::matmuls(random, &mut cases);
    linear::biases(random, &mut cases);
    norm::layer_norms(random, &mut cases);
    attention::attentions(random, &mut cases);
    embedding::embeddings(random, &mut cases);
    loss::losses(random, &mut cases);
    elementwise::elementwise(random, &mut cases);
    elementwise::gelus(random, &mut cases);
    optimizer::optimizers(random, &mut cases);
    cases
}

/// The names of all kernels, sorted.
pub(crate) fn kernels() -> Vec<&'static str> {
    let mut names: Vec<_> = all_cases(0).iter().map(|case| case.kernel).collect();
    names.sort_unstable();
    names.dedup();
    names
}

fn operand(name: &'static str, access: Access, data: Data) -> Operand {
    Operand { name, access, data, named_when_long: Some(name) }
}

fn read(name: &'static str, values: Vec<f32>) -> Operand {
    operand(name, Access::Read, Data::Floats(values))
}

fn tokens(name: &'static str, values: Vec<u32>) -> Operand {
    operand(name, Access::Read, Data::Tokens(values))
}

fn changed(name: &'static str, values: Vec<f32>) -> Operand {
    operand(name, Access::ReadWrite, Data::Floats(values))
}

fn written(name: &'static str, len: usize) -> Operand {
    operand(name, Access::Write, Data::Floats(vec![f32::NAN; len]))
}

fn updated(random: &mut Random, update: Update, name: &'static str, len: usize) -> Operand {
    match update {
        Update::Store => written(name, len),
        Update::Accumulate => changed(name, random.floats(len)),
    }
}

impl Operand {
    /// The shape follows from this operand: when it is too long, `other` is what does not fit.
    fn shown_by(self, other: &'static str) -> Self {
        Operand { named_when_long: Some(other), ..self }
    }

    /// The only operand: any length is right.
    fn alone(self) -> Self {
        Operand { named_when_long: None, ..self }
    }
}
