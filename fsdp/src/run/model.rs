//! What a model has to do to be trained in shards.

use highwater::{Stream, View};

/// Why a unit could not be computed.
pub type ModelError = Box<dyn std::error::Error + Send + Sync>;

/// The parameters of one unit: a flat range.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnitLayout {
    /// The name, for people.
    pub name: String,
    /// Elements, without padding.
    pub elements: usize,
}

/// A model cut into units that are computed one after the other. Forward goes through the units in order, backward in
/// reverse; each call submits work to `stream` and returns.
pub trait Model {
    /// The units, in the order of their forward use.
    fn units(&self) -> Vec<UnitLayout>;

    /// Writes the initial parameters of a unit: the same on every rank.
    fn initialize(&self, unit: usize, parameters: &mut [f32]);

    /// Forward of a unit for one micro-batch of this rank.
    ///
    /// # Errors
    /// Whatever stops it: the step ends with it.
    fn forward(
        &mut self,
        unit: usize,
        round: u32,
        stream: &Stream,
        parameters: View<'_, f32>,
    ) -> Result<(), ModelError>;

    /// Backward of a unit for the same micro-batch: writes **every** element of `gradients`.
    ///
    /// # Errors
    /// Whatever stops it: the step ends with it.
    fn backward(
        &mut self,
        unit: usize,
        round: u32,
        stream: &Stream,
        parameters: View<'_, f32>,
        gradients: View<'_, f32>,
    ) -> Result<(), ModelError>;
}
