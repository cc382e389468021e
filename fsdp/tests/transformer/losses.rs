//! Losses: their size at the start, what they are divided by, and when they arrive.

use highwater::StreamError;
use highwater::device::sim::{Mode, SimConfig};
use highwater::device::{CostModel, Device};
use highwater_fsdp::run::ModelError;
use highwater_fsdp::transformer::{Config, LossReading};

use crate::direct::{Direct, Random, SMALL, TIMEOUT, Texts, micro_batches, texts};

#[test]
fn at_the_start_the_loss_is_that_of_a_guess() {
    for (width, heads, attention) in [(6, 3, true), (16, 2, false), (32, 4, true)] {
        let config =
            Config { width, heads, attention, sequence: 20, micro_batch: 10, global_tokens: 200, rounds: 2, ..SMALL };
        let mut direct = Direct::new(config, SimConfig::default());
        let texts = texts(&config, &mut Random(3));
        // A logit is a row of length √width times weights of deviation 0.05, so it has variance width / 400. The mean
        // of exp(logit) then adds half of that to ln 256, and 200 logits of targets leave their own mean.
        let variance = width as f64 / 400.0;
        let expected = 256f64.ln() + variance / 2.0;
        let scatter = 4.0 * (variance / 200.0).sqrt() + 0.01;
        let mean = direct.total_loss(&texts) / f64::from(config.rounds);
        assert!((mean - expected).abs() < scatter, "{mean} where {expected} ± {scatter} was expected");
    }
}

#[test]
fn each_loss_is_divided_by_the_tokens_of_the_whole_step() {
    let texts = texts(&SMALL, &mut Random(1));
    let mut whole = Direct::new(Config { global_tokens: 1, ..SMALL }, SimConfig::default());
    let mut share = Direct::new(Config { global_tokens: 64, ..SMALL }, SimConfig::default());
    let (whole, share) = (whole.total_loss(&texts), share.total_loss(&texts));
    assert!((whole / 64.0 - share).abs() < 1e-6 * share, "{whole} {share}");
}

#[test]
fn sequences_and_rounds_do_not_see_each_other() {
    let together = Config { micro_batch: 2, rounds: 2, global_tokens: 1, ..SMALL };
    let alone = Config { micro_batch: 1, rounds: 1, ..together };
    let texts = texts(&together, &mut Random(2));
    let mut together = Direct::disturbed(together, SimConfig::default(), 0.3);
    let mut alone = Direct::disturbed(alone, SimConfig::default(), 0.3);
    let total = together.total_loss(&texts);
    let single: f64 = texts.iter().flatten().map(|text| alone.total_loss(&vec![vec![text.clone()]])).sum();
    assert!((total - single).abs() < 1e-5 * single, "{total} {single}");
}

#[test]
fn the_same_bits_in_every_order_of_execution() {
    let config = Config { rounds: 2, ..SMALL };
    let texts = texts(&config, &mut Random(4));
    let outcome = |simulated: SimConfig| {
        let mut direct = Direct::disturbed(config, simulated, 0.3);
        direct.load(&texts);
        let mut bits = Vec::new();
        for round in 0..config.rounds {
            direct.forward(round);
            direct.backward(round);
            bits.extend(direct.read_gradients().into_iter().flatten().map(f32::to_bits));
        }
        bits.extend(direct.read_losses().wait(TIMEOUT).unwrap().into_iter().map(f32::to_bits));
        assert!(direct.device.cluster().hazards().is_empty());
        bits
    };
    let expected = outcome(SimConfig { workers: 0, ..SimConfig::default() });
    assert_eq!(outcome(SimConfig { workers: 2, ..SimConfig::default() }), expected);
    for seed in 0..3 {
        let mode = Mode::Adversarial { seed };
        assert!(outcome(SimConfig { mode, ..SimConfig::default() }) == expected, "seed {seed}");
    }
}

/// A host that is infinitely far ahead of its device.
fn far_ahead() -> SimConfig {
    SimConfig {
        cost: CostModel { kernel_latency_ns: 1000, copy_latency_ns: 1000, ..CostModel::free() },
        ..SimConfig::default()
    }
}

/// Everything of a step but waiting for it.
fn issue(direct: &mut Direct, texts: &Texts) -> Result<LossReading, ModelError> {
    direct.model.load(&direct.stream, &micro_batches(texts))?;
    for round in 0..direct.config.rounds {
        direct.forward(round);
        direct.backward(round);
    }
    direct.model.read_losses(&direct.stream)
}

/// The losses of steps that are waited for at once.
fn in_lockstep(config: Config, steps: &[Texts]) -> Vec<Vec<f32>> {
    let mut direct = Direct::disturbed(config, far_ahead(), 0.3);
    steps.iter().map(|texts| issue(&mut direct, texts).unwrap().wait(TIMEOUT).unwrap()).collect()
}

fn steps(config: &Config, steps: usize) -> Vec<Texts> {
    let mut random = Random(5);
    (0..steps).map(|_| texts(config, &mut random)).collect()
}

#[test]
fn a_reading_gives_its_own_step_when_the_next_one_is_issued() {
    let config = Config { rounds: 2, ..SMALL };
    let steps = steps(&config, 6);
    let expected = in_lockstep(config, &steps);
    assert_ne!(expected[0], expected[1]);

    let mut direct = Direct::disturbed(config, far_ahead(), 0.3);
    let mut before: Option<LossReading> = None;
    for (step, texts) in steps.iter().enumerate() {
        let stalls = direct.device.counters().host_synchronizations;
        let reading = issue(&mut direct, texts).unwrap();
        assert_eq!(direct.device.counters().host_synchronizations, stalls, "issuing blocks nobody");
        if let Some(before) = before.replace(reading) {
            assert_eq!(before.wait(TIMEOUT).unwrap(), expected[step - 1]);
        }
    }
    // Twice is the same.
    let last = before.unwrap();
    assert_eq!(last.wait(TIMEOUT).unwrap(), expected[5]);
    assert_eq!(last.clone().wait(TIMEOUT).unwrap(), expected[5]);
}

#[test]
fn two_steps_ahead_is_refused_and_loading_again_after_the_wait_goes_on() {
    let steps = steps(&SMALL, 3);
    let expected = in_lockstep(SMALL, &steps);
    let mut direct = Direct::disturbed(SMALL, far_ahead(), 0.3);
    let first = issue(&mut direct, &steps[0]).unwrap();
    let second = issue(&mut direct, &steps[1]).unwrap();
    for _ in 0..3 {
        let refused = direct.model.load(&direct.stream, &micro_batches(&steps[2])).unwrap_err();
        let busy = refused.downcast_ref::<StreamError>();
        assert_eq!(busy, Some(&StreamError::HostBufferBusy), "{refused}");
    }
    assert_eq!(first.wait(TIMEOUT).unwrap(), expected[0]);
    let third = issue(&mut direct, &steps[2]).expect("the step before last is over");
    assert_eq!(second.wait(TIMEOUT).unwrap(), expected[1]);
    assert_eq!(third.wait(TIMEOUT).unwrap(), expected[2]);
}
