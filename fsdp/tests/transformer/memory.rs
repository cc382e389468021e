//! Memory: what a step takes it gives back, and the next one takes no new; what is refused changes nothing.

use highwater::device::sim::SimConfig;
use highwater::device::{CallCounters, Device, DeviceCall};
use highwater_fsdp::run::{Model, ModelError};
use highwater_fsdp::transformer::{Config, MicroBatch, Transformer};

use crate::direct::{Direct, Random, SMALL, TIMEOUT, Texts, micro_batches, texts};

const ROUNDS: Config = Config { rounds: 3, ..SMALL };

fn live(direct: &Direct) -> u64 {
    direct.allocator.memory_stats().live.now
}

/// One step, round after round.
fn step(direct: &mut Direct, texts: &Texts) {
    direct.load(texts);
    for round in 0..direct.config.rounds {
        direct.forward(round);
        direct.backward(round);
    }
    direct.read_losses().wait(TIMEOUT).unwrap();
}

#[test]
fn only_the_batch_stays_after_the_last_backward() {
    let mut direct = Direct::new(ROUNDS, SimConfig::default());
    let parameters: usize = 2 * 4 * direct.parameters.iter().map(Vec::len).sum::<usize>();
    let tokens = (ROUNDS.micro_batch * ROUNDS.sequence * 3) as u64;
    let resident = parameters as u64 + 4 * (2 * tokens + 3);
    assert_eq!(live(&direct), resident, "bytes, targets and losses of three rounds");
    let texts = texts(&ROUNDS, &mut Random(1));
    direct.load(&texts);
    for round in 0..3 {
        direct.forward(round);
        assert!(live(&direct) > resident);
        direct.backward(round);
        assert_eq!(live(&direct), resident, "round {round}");
    }
    direct.allocator.check().unwrap();
}

#[test]
fn backward_gives_back_unit_by_unit() {
    let mut direct = Direct::new(SMALL, SimConfig::default());
    let texts = texts(&SMALL, &mut Random(1));
    direct.load(&texts);
    direct.forward(0);
    let mut before = live(&direct);
    for unit in (0..direct.units()).rev() {
        let (parameters, gradients) = (direct.device_parameters[unit].view(), direct.gradients[unit].view());
        direct.model.backward(unit, 0, &direct.stream, parameters, gradients).unwrap();
        assert!(live(&direct) < before, "unit {unit}");
        before = live(&direct);
    }
}

#[test]
fn later_steps_call_the_driver_for_no_memory() {
    let mut direct = Direct::new(ROUNDS, SimConfig::default());
    let mut random = Random(2);
    step(&mut direct, &texts(&ROUNDS, &mut random));
    let (peak, before) = (direct.allocator.memory_stats().live.peak, direct.device.counters());
    for _ in 0..3 {
        step(&mut direct, &texts(&ROUNDS, &mut random));
    }
    let after = direct.device.counters();
    assert_eq!(after.driver_memory_calls(), before.driver_memory_calls());
    assert!(after.of(DeviceCall::Launch) > before.of(DeviceCall::Launch));
    assert_eq!(direct.allocator.memory_stats().live.peak, peak, "one round's memory serves all");
    direct.allocator.check().unwrap();
}

/// What `load` says to texts that do not fit.
fn refused(direct: &mut Direct, micro_batches: &[MicroBatch<'_>]) -> String {
    let before: CallCounters = direct.device.counters();
    let refused = direct.model.load(&direct.stream, micro_batches).unwrap_err();
    assert_eq!(direct.device.counters(), before, "nothing was copied");
    refused.to_string()
}

#[test]
fn texts_of_other_lengths_are_refused() {
    let config = Config { rounds: 2, ..SMALL };
    let mut direct = Direct::new(config, SimConfig::default());
    let right = texts(&config, &mut Random(3));
    let with = |change: &dyn Fn(&mut Texts)| {
        let mut texts = right.clone();
        change(&mut texts);
        texts
    };
    let wrong: Vec<(&str, Texts)> = vec![
        ("no micro-batch", vec![]),
        ("one micro-batch too few", with(&|texts| drop(texts.pop()))),
        ("one too many", with(&|texts| texts.push(right[0].clone()))),
        ("a sequence too few", with(&|texts| drop(texts[0].pop()))),
        ("a sequence too many", with(&|texts| texts[0].push(right[0][0].clone()))),
        ("an empty sequence more", with(&|texts| texts[1].push(vec![]))),
        ("an empty sequence", with(&|texts| texts[1][0].clear())),
        ("a byte too few", with(&|texts| texts[0][1].truncate(SMALL.sequence))),
        ("a byte too many", with(&|texts| texts[1][1].push(7))),
        (
            "a byte in the wrong sequence",
            with(&|texts| {
                let byte = texts[0][0].pop().unwrap();
                texts[0][1].push(byte);
            }),
        ),
        (
            "a sequence in the wrong micro-batch",
            with(&|texts| {
                let sequence = texts[0].pop().unwrap();
                texts[1].push(sequence);
            }),
        ),
    ];
    for (what, texts) in &wrong {
        let error = refused(&mut direct, &micro_batches(texts));
        assert!(error.contains("micro-batch") || error.contains("sequence"), "{what}: {error}");
    }
    // All is as before: the right texts give the right losses.
    let expected = Direct::new(config, SimConfig::default()).total_loss(&right);
    assert_eq!(direct.total_loss(&right).to_bits(), expected.to_bits());
}

#[test]
fn a_refused_load_leaves_the_step_in_flight_alone() {
    let right = texts(&SMALL, &mut Random(4));
    let expected = Direct::new(SMALL, SimConfig::default()).total_loss(&right);
    let mut direct = Direct::new(SMALL, SimConfig::default());
    direct.load(&right);
    direct.forward(0);
    let reading = direct.read_losses();
    for wrong in [vec![], vec![vec![]], vec![vec![vec![0; 3]; 2]]] {
        refused(&mut direct, &micro_batches(&wrong));
    }
    let again = direct.read_losses();
    for reading in [reading, again] {
        assert_eq!(f64::from(reading.wait(TIMEOUT).unwrap()[0]).to_bits(), expected.to_bits());
    }
}

#[test]
fn units_out_of_order_are_errors() {
    let mut direct = Direct::new(SMALL, SimConfig::default());
    let last = direct.units() - 1;
    for unit in 1..=last {
        let forward = direct.model.forward(unit, 0, &direct.stream, direct.device_parameters[unit].view());
        assert!(forward.is_err(), "forward of unit {unit} first");
    }
    for unit in 0..=last {
        let (parameters, gradients) = (direct.device_parameters[unit].view(), direct.gradients[unit].view());
        assert!(direct.model.backward(unit, 0, &direct.stream, parameters, gradients).is_err(), "backward of {unit}");
    }
    direct.allocator.check().unwrap();
}

#[test]
fn a_failed_launch_is_an_error_and_the_step_can_be_issued_again() {
    let texts = texts(&SMALL, &mut Random(5));
    let attempt = |direct: &mut Direct| -> Result<(), ModelError> {
        for unit in 0..direct.units() {
            direct.model.forward(unit, 0, &direct.stream, direct.device_parameters[unit].view())?;
        }
        for unit in (0..direct.units()).rev() {
            let (parameters, gradients) = (direct.device_parameters[unit].view(), direct.gradients[unit].view());
            direct.model.backward(unit, 0, &direct.stream, parameters, gradients)?;
        }
        Ok(())
    };
    let mut undisturbed = Direct::new(SMALL, SimConfig::default());
    undisturbed.load(&texts);
    let before = undisturbed.device.counters().of(DeviceCall::Launch);
    attempt(&mut undisturbed).unwrap();
    let launches = undisturbed.device.counters().of(DeviceCall::Launch) - before;
    let expected = undisturbed.read_gradients();
    let resident = live(&undisturbed);
    assert!(launches > 40);
    for nth in 1..=launches {
        let mut direct = Direct::new(SMALL, SimConfig::default());
        direct.load(&texts);
        direct.device.fail_nth(DeviceCall::Launch, nth);
        let error = attempt(&mut direct).unwrap_err();
        assert!(error.to_string().contains("injected failure"), "{error}");
        attempt(&mut direct).unwrap();
        assert!(direct.read_gradients() == expected, "launch {nth}");
        assert_eq!(live(&direct), resident, "launch {nth}");
        direct.allocator.check().unwrap();
    }
}

#[test]
#[should_panic(expected = "is no transformer")]
fn a_width_that_heads_do_not_divide_is_refused() {
    let direct = Direct::new(SMALL, SimConfig::default());
    let _never = Transformer::new(&direct.allocator, Config { heads: 4, ..SMALL });
}
