//! Where each parameter stands in its unit's flat range, and what it starts as.

use std::ops::Range;

use super::{Config, VOCABULARY};

/// Hands out ranges one after the other.
struct Cursor(usize);

impl Cursor {
    fn take(&mut self, elements: usize) -> Range<usize> {
        self.0 += elements;
        self.0 - elements..self.0
    }

    fn linear(&mut self, inputs: usize, outputs: usize) -> Linear {
        Linear { weight: self.take(inputs * outputs), bias: self.take(outputs), inputs, outputs }
    }

    fn norm(&mut self, width: usize) -> Norm {
        Norm { gamma: self.take(width), beta: self.take(width) }
    }
}

/// A matrix product with a bias: weight `[inputs, outputs]`.
#[derive(Clone, Debug)]
pub(super) struct Linear {
    pub(super) weight: Range<usize>,
    pub(super) bias: Range<usize>,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
}

/// A layer norm.
#[derive(Clone, Debug)]
pub(super) struct Norm {
    pub(super) gamma: Range<usize>,
    pub(super) beta: Range<usize>,
}

/// Parameters of `embed`: a table `[vocabulary, width]` and one `[sequence, width]`.
#[derive(Clone, Debug)]
pub(super) struct Embed {
    pub(super) tokens: Range<usize>,
    pub(super) positions: Range<usize>,
    pub(super) elements: usize,
}

/// Parameters of a layer.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    pub(super) attention_norm: Norm,
    pub(super) qkv: Linear,
    pub(super) projection: Linear,
    pub(super) mlp_norm: Norm,
    pub(super) expand: Linear,
    pub(super) contract: Linear,
    pub(super) elements: usize,
}

/// Parameters of `head`: a norm, and a weight `[width, vocabulary]`.
#[derive(Clone, Debug)]
pub(super) struct Head {
    pub(super) norm: Norm,
    pub(super) weight: Range<usize>,
    pub(super) elements: usize,
}

/// The layouts of all units; all layers are alike.
#[derive(Clone, Debug)]
pub(super) struct Layouts {
    pub(super) embed: Embed,
    pub(super) layer: Layer,
    pub(super) head: Head,
}

impl Layouts {
    pub(super) fn new(config: &Config) -> Self {
        let Config { width, sequence, .. } = *config;
        let mut at = Cursor(0);
        let (tokens, positions) = (at.take(VOCABULARY * width), at.take(sequence * width));
        let embed = Embed { tokens, positions, elements: at.0 };
        let mut at = Cursor(0);
        let layer = Layer {
            attention_norm: at.norm(width),
            qkv: at.linear(width, 3 * width),
            projection: at.linear(width, width),
            mlp_norm: at.norm(width),
            expand: at.linear(width, 4 * width),
            contract: at.linear(4 * width, width),
            elements: at.0,
        };
        let mut at = Cursor(0);
        let (norm, weight) = (at.norm(width), at.take(width * VOCABULARY));
        let head = Head { norm, weight, elements: at.0 };
        Layouts { embed, layer, head }
    }
}

/// What a parameter starts as.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Initial {
    /// A number.
    Constant(f32),
    /// Normal with mean 0 and this standard deviation.
    Normal(f32),
}

/// Standard deviation of tables.
const TABLE_DEVIATION: f32 = 0.05;

/// Parameters with their initial values, in order.
pub(super) type Field = (Range<usize>, Initial);

impl Norm {
    fn initial(&self) -> [Field; 2] {
        [(self.gamma.clone(), Initial::Constant(1.0)), (self.beta.clone(), Initial::Constant(0.0))]
    }
}

impl Linear {
    /// Deviation 1/√inputs keeps the size of what goes through; `damping` makes it smaller.
    fn initial(&self, damping: f32) -> [Field; 2] {
        let deviation = damping / (self.inputs as f32).sqrt();
        [(self.weight.clone(), Initial::Normal(deviation)), (self.bias.clone(), Initial::Constant(0.0))]
    }
}

impl Embed {
    pub(super) fn initial(&self) -> Vec<Field> {
        let tables = [self.tokens.clone(), self.positions.clone()];
        tables.into_iter().map(|table| (table, Initial::Normal(TABLE_DEVIATION))).collect()
    }
}

impl Layer {
    /// What is added to the residual stream is damped by 1/√(2 · layers), so that its size does not grow with depth.
    pub(super) fn initial(&self, layers: usize) -> Vec<Field> {
        let damping = 1.0 / (2.0 * layers as f32).sqrt();
        let mut fields = Vec::new();
        fields.extend(self.attention_norm.initial());
        fields.extend(self.qkv.initial(1.0));
        fields.extend(self.projection.initial(damping));
        fields.extend(self.mlp_norm.initial());
        fields.extend(self.expand.initial(1.0));
        fields.extend(self.contract.initial(damping));
        fields
    }
}

impl Head {
    pub(super) fn initial(&self) -> Vec<Field> {
        let mut fields = self.norm.initial().to_vec();
        fields.push((self.weight.clone(), Initial::Normal(TABLE_DEVIATION)));
        fields
    }
}

/// Writes the initial parameters of a unit: a function of the seed, the unit and the place alone.
pub(super) fn initialize(seed: u64, unit: usize, fields: &[Field], parameters: &mut [f32]) {
    for (range, initial) in fields {
        for place in range.clone() {
            parameters[place] = match *initial {
                Initial::Constant(value) => value,
                Initial::Normal(deviation) => deviation * normal(seed, unit as u64, place as u64),
            };
        }
    }
}

/// A standard normal number (Box–Muller).
fn normal(seed: u64, unit: u64, place: u64) -> f32 {
    let bits = mix(mix(mix(seed).wrapping_add(unit)).wrapping_add(place));
    let unit_interval = |bits: u64| ((bits >> 40) as f64 + 0.5) / f64::from(1 << 24);
    let (radius, angle) = (unit_interval(bits), unit_interval(mix(bits)));
    ((-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()) as f32
}

/// The finaliser of splitmix64.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config {
            layers: 2,
            width: 8,
            heads: 2,
            sequence: 4,
            micro_batch: 1,
            rounds: 1,
            global_tokens: 4,
            seed: 3,
            attention: true,
        }
    }

    #[test]
    fn fields_cover_each_unit_without_gap() {
        let layouts = Layouts::new(&config());
        let units = [
            (layouts.embed.initial(), layouts.embed.elements),
            (layouts.layer.initial(2), layouts.layer.elements),
            (layouts.head.initial(), layouts.head.elements),
        ];
        for (fields, elements) in units {
            let mut ends = fields.iter().map(|(range, _)| range.end);
            let starts = fields.iter().map(|(range, _)| range.start);
            assert!(starts.eq(std::iter::once(0).chain(ends.clone()).take(fields.len())));
            assert_eq!(ends.next_back(), Some(elements));
        }
    }

    #[test]
    fn normal_numbers_have_mean_0_and_deviation_1() {
        let numbers: Vec<f64> = (0..10_000).map(|place| f64::from(normal(1, 2, place))).collect();
        let mean = numbers.iter().sum::<f64>() / 1e4;
        let variance = numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / 1e4;
        assert!(mean.abs() < 0.05 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
        assert_ne!(normal(1, 2, 3), normal(2, 2, 3));
        assert_ne!(normal(1, 2, 3), normal(1, 3, 3));
    }
}
