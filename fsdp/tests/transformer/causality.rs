//! Who sees whom: no byte sees a later one; without attention none sees an earlier one.
//!
//! Only the loss of a whole micro-batch can be seen, the sum over its positions. A model for one byte less has the same
//! parameters, so the difference of the two losses is that of the last position, if the others do not see the last byte.

use highwater::device::sim::SimConfig;
use highwater_fsdp::transformer::Config;

use crate::direct::{Direct, Random, SMALL};

const LENGTH: usize = 6;

/// A model for one sequence of `sequence` tokens in each of `rounds` micro-batches. Losses are sums.
fn model(sequence: usize, rounds: u32, attention: bool) -> Direct {
    let config = Config { sequence, rounds, micro_batch: 1, global_tokens: 1, attention, width: 8, heads: 2, ..SMALL };
    Direct::disturbed(config, SimConfig::default(), 0.4)
}

/// The losses of texts of one length.
fn losses(attention: bool, texts: &[Vec<u8>]) -> Vec<f64> {
    let mut model = model(texts[0].len() - 1, texts.len() as u32, attention);
    model.load(&texts.iter().map(|text| vec![text.clone()]).collect());
    (0..texts.len() as u32).map(|round| model.loss(round)).collect()
}

/// The loss of the last position of each text, given that the others do not see the last byte.
fn last_losses(attention: bool, texts: &[Vec<u8>]) -> Vec<f64> {
    let shorter: Vec<Vec<u8>> = texts.iter().map(|text| text[..text.len() - 1].to_vec()).collect();
    let (whole, shorter) = (losses(attention, texts), losses(attention, &shorter));
    whole.into_iter().zip(shorter).map(|(whole, shorter)| whole - shorter).collect()
}

/// The text with one byte changed.
fn changed(text: &[u8], place: usize) -> Vec<u8> {
    let mut text = text.to_vec();
    text[place] = text[place].wrapping_add(101);
    text
}

#[test]
fn models_of_all_lengths_have_the_same_parameters() {
    let (long, short) = (model(LENGTH, 1, true), model(LENGTH - 1, 1, true));
    let shared = short.parameters[0].len();
    assert!(long.parameters[0][..shared] == short.parameters[0][..], "but for the last position's row");
    assert!(long.parameters[1..] == short.parameters[1..]);
}

#[test]
fn no_position_sees_a_later_byte() {
    let random = &mut Random(1);
    for attention in [true, false] {
        for length in [2, 3, LENGTH] {
            // Whatever the last position's input: the losses of all 256 last targets are a distribution, if and only if
            // the sum of the earlier losses is what it is without that input.
            let start = random.bytes(length);
            for input in [start[length - 1], start[length - 1].wrapping_add(100)] {
                let with_target = |target: u8| {
                    let mut text = start.clone();
                    text[length - 1] = input;
                    text.push(target);
                    text
                };
                let texts: Vec<Vec<u8>> = (0..=255).map(with_target).collect();
                let total: f64 = last_losses(attention, &texts).into_iter().map(|loss| (-loss).exp()).sum();
                // The rounding of sums of a few losses of some 6 each: under 10⁻⁵.
                assert!((total - 1.0).abs() < 3e-5, "length {length}, attention {attention}: {total}");
            }
        }
    }
}

#[test]
fn earlier_bytes_matter_with_attention_alone() {
    // The last position's input is byte LENGTH − 1.
    let mut random = Random(2);
    let texts: Vec<Vec<u8>> = (0..4).map(|_| random.bytes(LENGTH + 1)).collect();
    // The largest change of the last position's loss, over the texts, when one byte changes.
    let change = |attention, place| {
        let of_text = |text: &Vec<u8>| {
            let losses = last_losses(attention, &[text.clone(), changed(text, place)]);
            (losses[0] - losses[1]).abs()
        };
        texts.iter().map(of_text).fold(0.0, f64::max)
    };
    for place in 0..LENGTH - 1 {
        let (without, with) = (change(false, place), change(true, place));
        assert!(without < 1e-5, "byte {place} without attention: {without}");
        assert!(with > 1e-3, "byte {place} with attention: {with}");
    }
    assert!(change(false, LENGTH - 1) > 1e-2 && change(true, LENGTH - 1) > 1e-2, "a position sees its own byte");
}

#[test]
fn the_same_byte_at_another_position_is_another_input() {
    // Two positions with the same bytes: with one position table row for both they had the same loss.
    let same = vec![65u8; 3];
    let (first, both) = (losses(false, &[same[..2].to_vec()])[0], losses(false, &[same])[0]);
    assert!((both - 2.0 * first).abs() > 1e-2, "{first} {both}");
}
