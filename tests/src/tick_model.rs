//! A model in ticks.

use highwater::device::Cost;
use highwater::{Allocator, Buffer, Stream, View};
use highwater_fsdp::run::{Model, ModelError, UnitLayout};

/// One tick, ns. It divides by 2, so that half ticks are exact.
pub const TICK_NS: u64 = 1000;

/// How long operations of every unit last, ns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticks {
    /// Forward.
    pub forward_ns: u64,
    /// Backward.
    pub backward_ns: u64,
    /// All-gather, and reduce-scatter.
    pub communication_ns: u64,
}

/// Units of given sizes. Every byte of a unit's parameters goes into its output and its gradients, and every output into
/// everything after: whoever reads a slot too early or too late leaves other parameters behind.
#[derive(Debug)]
pub struct TickModel {
    elements: Vec<usize>,
    ticks: Ticks,
    /// Input of the first unit by round, then the output of each unit.
    states: Vec<Buffer<f32>>,
    units: usize,
}

/// Elements of a state.
const STATE: usize = 8;

impl TickModel {
    /// A model for one micro-batch of this rank for each of `inputs`.
    ///
    /// # Errors
    /// When memory for the states fails.
    pub fn new(allocator: &Allocator, elements: &[usize], ticks: Ticks, inputs: &[f32]) -> Result<Self, ModelError> {
        let stream = allocator.default_stream();
        let mut states = Vec::new();
        for &input in inputs {
            for place in 0..=elements.len() {
                let state = stream.alloc::<f32>(STATE)?;
                if place == 0 {
                    let cost = Cost::exact(0);
                    let body = move |bytes: &mut [highwater::device::OperandBytes]| {
                        bytes[0].as_mut_slice::<f32>().fill(input);
                    };
                    stream.launch("input", cost).write(&state).body(body).submit()?;
                }
                states.push(state);
            }
        }
        Ok(TickModel { elements: elements.to_vec(), ticks, states, units: elements.len() })
    }

    /// The layouts of units of these sizes.
    #[must_use]
    pub fn layouts(elements: &[usize]) -> Vec<UnitLayout> {
        let unit = |(index, &elements)| UnitLayout { name: format!("unit_{index}"), elements };
        elements.iter().enumerate().map(unit).collect()
    }

    /// The input of a unit.
    fn input(&self, unit: usize, round: u32) -> &Buffer<f32> {
        &self.states[round as usize * (self.units + 1) + unit]
    }
}

impl Model for TickModel {
    fn units(&self) -> Vec<UnitLayout> {
        Self::layouts(&self.elements)
    }

    fn initialize(&self, unit: usize, parameters: &mut [f32]) {
        for (index, parameter) in parameters.iter_mut().enumerate() {
            *parameter = ((unit * 31 + index * 7) % 101) as f32 / 101.0;
        }
    }

    fn forward(
        &mut self,
        unit: usize,
        round: u32,
        stream: &Stream,
        parameters: View<'_, f32>,
    ) -> Result<(), ModelError> {
        let launch = stream.launch("forward", Cost::exact(self.ticks.forward_ns));
        let launch = launch.read(parameters).read(self.input(unit, round)).write(self.input(unit + 1, round));
        let launch = launch.body(|bytes| {
            let [parameters, input, output] = bytes else { unreachable!("three operands") };
            let (parameters, input) = (parameters.as_slice::<f32>(), input.as_slice::<f32>());
            for (place, out) in output.as_mut_slice::<f32>().iter_mut().enumerate() {
                let sum: f32 = parameters.iter().skip(place).step_by(STATE).sum();
                *out = input[place] * 0.5 + sum / parameters.len() as f32;
            }
        });
        Ok(launch.submit()?)
    }

    fn backward(
        &mut self,
        unit: usize,
        round: u32,
        stream: &Stream,
        parameters: View<'_, f32>,
        gradients: View<'_, f32>,
    ) -> Result<(), ModelError> {
        let launch = stream.launch("backward", Cost::exact(self.ticks.backward_ns));
        let launch = launch.read(parameters).read(self.input(unit, round)).write(gradients);
        let launch = launch.body(|bytes| {
            let [parameters, input, gradients] = bytes else { unreachable!("three operands") };
            let (parameters, input) = (parameters.as_slice::<f32>(), input.as_slice::<f32>());
            for (index, gradient) in gradients.as_mut_slice::<f32>().iter_mut().enumerate() {
                *gradient = input[index % STATE] * 0.25 + parameters[index] * 0.125 - 0.1;
            }
        });
        Ok(launch.submit()?)
    }
}
