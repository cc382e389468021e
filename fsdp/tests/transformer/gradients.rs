//! Gradients against finite differences of the loss.

use std::ops::Range;

use highwater::device::sim::SimConfig;
use highwater_fsdp::transformer::Config;

use crate::direct::{Direct, Random, SMALL, texts};

/// Parameters of one kind inside a unit.
struct Field {
    name: &'static str,
    range: Range<usize>,
    /// Whether it has no influence when attention does nothing.
    attention_only: bool,
}

/// The fields of a unit, from the shape alone.
fn fields(config: &Config, unit: usize) -> Vec<Field> {
    let Config { width, sequence, layers, .. } = *config;
    let sizes = if unit == 0 {
        vec![("tokens", 256 * width, false), ("positions", sequence * width, false)]
    } else if unit <= layers {
        vec![
            ("attention gamma", width, true),
            ("attention beta", width, true),
            ("qkv weight", width * 3 * width, true),
            ("qkv bias", 3 * width, true),
            ("projection weight", width * width, true),
            ("projection bias", width, false),
            ("mlp gamma", width, false),
            ("mlp beta", width, false),
            ("expand weight", width * 4 * width, false),
            ("expand bias", 4 * width, false),
            ("contract weight", 4 * width * width, false),
            ("contract bias", width, false),
        ]
    } else {
        vec![("head gamma", width, false), ("head beta", width, false), ("head weight", width * 256, false)]
    };
    let mut start = 0;
    let field = |(name, elements, attention_only)| {
        start += elements;
        Field { name, range: start - elements..start, attention_only }
    };
    sizes.into_iter().map(field).collect()
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

/// Length 1, random signs on some of the elements, 0 elsewhere.
fn random_direction(random: &mut Random, elements: usize, range: &Range<usize>) -> Vec<f64> {
    let mut direction = vec![0.0; elements];
    let size = 1.0 / (range.len() as f64).sqrt();
    for place in range.clone() {
        direction[place] = if random.next() >> 63 == 0 { size } else { -size };
    }
    direction
}

/// Length 1, along the gradient in some of the elements; `None` when that is 0.
fn along(gradient: &[f64], range: &Range<usize>) -> Option<Vec<f64>> {
    let mut direction = vec![0.0; gradient.len()];
    direction[range.clone()].copy_from_slice(&gradient[range.clone()]);
    let length = norm(&direction);
    direction.iter_mut().for_each(|value| *value /= length);
    (length > 0.0).then_some(direction)
}

/// The loss of a round with a unit's parameters moved by `distance` along a direction.
fn moved_loss(direct: &mut Direct, round: u32, unit: usize, direction: &[f64], distance: f64) -> f64 {
    let move_one = |(&value, &along): (&f32, &f64)| (f64::from(value) + distance * along) as f32;
    let moved: Vec<f32> = direct.parameters[unit].iter().zip(direction).map(move_one).collect();
    direct.upload(unit, &moved);
    direct.loss(round)
}

/// The derivative of a round's loss along a direction.
///
/// Central differences with the steps h and 2h err by c·h² and 4·c·h² and a little more, so (4·D(h) − D(2h)) / 3 errs by
/// the little more alone (Richardson).
fn difference(direct: &mut Direct, round: u32, unit: usize, direction: &[f64], step: f64) -> f64 {
    let mut central = |step: f64| {
        let above = moved_loss(direct, round, unit, direction, step);
        (above - moved_loss(direct, round, unit, direction, -step)) / (2.0 * step)
    };
    let (near, far) = (central(step), central(2.0 * step));
    (4.0 * near - far) / 3.0
}

/// Length of a move. The rounding of a loss L, some 10⁻⁷ L, becomes about 10⁻⁷ L / STEP in a difference, and the largest
/// curvature (a layer norm over small embeddings) becomes a relative error of some 10⁻³.
const STEP: f64 = 0.015;

/// What rounding may do to a derivative, as a part of the loss: about twice the 10⁻⁷ / STEP above.
const NOISE: f64 = 1.5e-5;

/// What curvature may do, as a part of the derivative or of the gradient's usual element.
const RELATIVE: f64 = 6e-3;

/// Compares a unit's gradient in one field, for a few directions. Returns how many.
fn check_field(
    direct: &mut Direct,
    random: &mut Random,
    round: u32,
    unit: usize,
    gradient: &[f64],
    field: &Field,
) -> u32 {
    let place = format!("round {round}, unit {unit}, {}", field.name);
    let mut directions: Vec<Vec<f64>> =
        (0..2).map(|_| random_direction(random, gradient.len(), &field.range)).collect();
    if field.attention_only && !direct.config.attention {
        assert!(gradient[field.range.clone()].iter().all(|&value| value == 0.0), "{place}");
        let moved = [-1.0, 1.0].map(|distance| moved_loss(direct, round, unit, &directions[0], distance));
        assert_eq!(moved[0].to_bits(), moved[1].to_bits(), "{place}: the loss does not depend on it");
        return 1;
    }
    directions.extend(along(gradient, &field.range));
    for direction in &directions {
        let expected = difference(direct, round, unit, direction, STEP);
        let found: f64 = gradient.iter().zip(direction).map(|(a, b)| a * b).sum();
        let usual = norm(&gradient[field.range.clone()]) / (field.range.len() as f64).sqrt();
        let allowed = NOISE * direct.loss(round) + RELATIVE * usual.max(found.abs());
        let error = (found - expected).abs();
        assert!(error <= allowed, "{place}: {found} where {expected} was measured, {allowed} is allowed");
    }
    directions.len() as u32
}

/// Compares every unit and every field of every round.
fn check(config: Config) {
    let mut direct = Direct::disturbed(config, SimConfig::default(), 0.3);
    let random = &mut Random(config.seed);
    let texts = texts(&config, random);
    direct.load(&texts);
    let mut compared = 0;
    for round in 0..config.rounds {
        direct.forward(round);
        direct.backward(round);
        for (unit, gradient) in direct.read_gradients().iter().enumerate() {
            let gradient: Vec<f64> = gradient.iter().map(|&value| f64::from(value)).collect();
            let fields = fields(&config, unit);
            assert_eq!(fields.last().unwrap().range.end, gradient.len(), "the fields cover unit {unit}");
            let whole = Field { name: "all", range: 0..gradient.len(), attention_only: false };
            for field in fields.iter().chain([&whole]) {
                compared += check_field(&mut direct, random, round, unit, &gradient, field);
            }
            direct.upload(unit, &direct.parameters[unit]);
        }
    }
    assert!(compared > 40 * config.rounds, "{compared} directions");
}

#[test]
fn with_attention() {
    check(Config { rounds: 2, micro_batch: 3, global_tokens: 15, ..SMALL });
}

#[test]
fn without_attention() {
    check(Config { rounds: 2, micro_batch: 3, global_tokens: 15, attention: false, ..SMALL });
}

#[test]
fn one_token_at_a_time() {
    check(Config { layers: 1, width: 5, heads: 1, sequence: 1, micro_batch: 1, rounds: 3, global_tokens: 1, ..SMALL });
}

#[test]
fn more_layers_than_tokens_and_a_share_of_a_larger_step() {
    check(Config { layers: 3, width: 10, heads: 5, sequence: 2, micro_batch: 1, global_tokens: 7, seed: 8, ..SMALL });
}

#[test]
fn long_sequences_of_one_wide_head() {
    check(Config { layers: 1, width: 12, heads: 1, sequence: 37, micro_batch: 2, global_tokens: 74, seed: 9, ..SMALL });
}
