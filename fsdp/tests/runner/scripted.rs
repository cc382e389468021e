//! A model whose gradients are given, not computed.

use highwater::device::{Cost, OperandBytes};
use highwater::{Stream, View};
use highwater_fsdp::run::{Model, ModelError, UnitLayout};

/// The numbers whose sum depends on the order: each is lost beside some of the others.
const NUMBERS: [f32; 8] = [1e8, 1.0, -1e8, 3.0, 0.125, -7e7, 0.3, 7e7];

/// One rank's part. Micro-batch `m` of a step is that of round `m / ranks` on rank `m % ranks`.
#[derive(Clone, Debug)]
pub(crate) struct Scripted {
    pub(crate) elements: Vec<usize>,
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    /// Forward of this unit fails in this round.
    pub(crate) broken_forward: Option<(usize, u32)>,
    /// Backward of this unit fails in this round.
    pub(crate) broken_backward: Option<(usize, u32)>,
}

/// The gradient of one element from one micro-batch. It depends on the parameter, so no two steps are alike.
pub(crate) fn gradient(unit: usize, micro_batch: u32, place: usize, parameter: f32) -> f32 {
    NUMBERS[(3 * micro_batch as usize + place + unit) % NUMBERS.len()] + parameter
}

pub(crate) fn initial(unit: usize, place: usize) -> f32 {
    ((unit * 31 + place * 7) % 101) as f32 / 101.0
}

pub(crate) fn layouts(elements: &[usize]) -> Vec<UnitLayout> {
    let unit = |(index, &elements)| UnitLayout { name: format!("unit_{index}"), elements };
    elements.iter().enumerate().map(unit).collect()
}

impl Scripted {
    pub(crate) fn new(elements: &[usize], rank: u32, ranks: u32) -> Self {
        Scripted { elements: elements.to_vec(), rank, ranks, broken_forward: None, broken_backward: None }
    }
}

impl Model for Scripted {
    fn units(&self) -> Vec<UnitLayout> {
        layouts(&self.elements)
    }

    fn initialize(&self, unit: usize, parameters: &mut [f32]) {
        parameters.iter_mut().enumerate().for_each(|(place, parameter)| *parameter = initial(unit, place));
    }

    fn forward(
        &mut self,
        unit: usize,
        round: u32,
        stream: &Stream,
        parameters: View<'_, f32>,
    ) -> Result<(), ModelError> {
        if self.broken_forward == Some((unit, round)) {
            return Err("a broken forward".into());
        }
        Ok(stream.launch("forward", Cost::kernel(0, 1000)).read(parameters).submit()?)
    }

    fn backward(
        &mut self,
        unit: usize,
        round: u32,
        stream: &Stream,
        parameters: View<'_, f32>,
        gradients: View<'_, f32>,
    ) -> Result<(), ModelError> {
        if self.broken_backward == Some((unit, round)) {
            return Err("a broken backward".into());
        }
        let micro_batch = round * self.ranks + self.rank;
        let body = move |bytes: &mut [OperandBytes]| {
            let [parameters, gradients] = bytes else { unreachable!("two operands") };
            let parameters = parameters.as_slice::<f32>();
            for (place, out) in gradients.as_mut_slice().iter_mut().enumerate() {
                *out = gradient(unit, micro_batch, place, parameters[place]);
            }
        };
        let launch = stream.launch("backward", Cost::kernel(0, 1000));
        Ok(launch.read(parameters).write(gradients).body(body).submit()?)
    }
}
