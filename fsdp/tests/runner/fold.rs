//! What a runner does with gradients: sums in order, zeros in the padding, the optimizer's bits.

use highwater::device::Device;
use highwater::device::sim::{Mode, SimCluster, SimConfig};
use highwater::{Allocator, Settings};
use highwater_fsdp::group::LocalGroup;
use highwater_fsdp::plan::Plan;
use highwater_fsdp::run::{Runner, padded_elements, plan_spec};
use highwater_kernels::host::{self, AdamW};

use crate::scripted::{Scripted, gradient, initial, layouts};

/// Sizes around the alignment of a shard, 128 elements a rank.
const ELEMENTS: [usize; 5] = [5, 300, 128, 1, 513];
const MICRO_BATCHES: u32 = 4;
const STEPS: u64 = 3;

/// A step goes as far as the gradient is, up to 1: whatever bit of the sum is wrong shows in the parameter.
const ADAMW: AdamW = AdamW { lr: 1.0, beta1: 0.5, beta2: 0.5, eps: 1.0, weight_decay: 0.1 };

/// One device, no plan, no streams: the same training on the host.
fn on_host() -> Vec<Vec<f32>> {
    let unit = |(unit, &elements): (usize, &usize)| {
        let mut parameters: Vec<f32> = (0..elements).map(|place| initial(unit, place)).collect();
        let (mut first, mut second) = (vec![0.0; elements], vec![0.0; elements]);
        for step in 1..=STEPS {
            let sum = |(place, &parameter): (usize, &f32)| {
                let parts = (0..MICRO_BATCHES).map(|micro_batch| gradient(unit, micro_batch, place, parameter));
                parts.reduce(|sum, part| sum + part).unwrap()
            };
            let gradients: Vec<f32> = parameters.iter().enumerate().map(sum).collect();
            host::adamw(ADAMW, step, &gradients, &mut parameters, &mut first, &mut second);
        }
        parameters
    };
    ELEMENTS.iter().enumerate().map(unit).collect()
}

/// All units with their padding, after the last step.
fn on_ranks(ranks: u32, mode: Mode) -> Vec<Vec<f32>> {
    let cluster = SimCluster::new(ranks, SimConfig { mode, workers: 0, ..SimConfig::default() });
    let read = cluster.run(|device| {
        let allocator = Allocator::with_settings(device.clone(), Settings::default()).unwrap();
        let mut spec = plan_spec(&layouts(&ELEMENTS), ranks);
        spec.rounds = MICRO_BATCHES / ranks;
        let group = LocalGroup::new(&cluster, &device, "sharding", ranks);
        let model = Scripted::new(&ELEMENTS, device.properties().ordinal, ranks);
        let plan = Plan::new(&spec).unwrap();
        let mut runner = Runner::new(&allocator, group, model, plan.into(), ADAMW).unwrap();
        for _ in 0..STEPS {
            runner.step().unwrap();
            assert_eq!(runner.unsharded_bytes(), 0);
        }
        assert_eq!(runner.peak_unsharded_bytes(), runner.plan().peak_bytes());
        (runner.read_units().unwrap(), runner.read_shards().unwrap())
    });
    assert!(cluster.hazards().is_empty(), "{mode:?}");
    let whole = |unit: usize| read.iter().flat_map(|(_, shards)| shards[unit].clone()).collect();
    let units: Vec<Vec<f32>> = (0..ELEMENTS.len()).map(whole).collect();
    assert!(read.iter().all(|(gathered, _)| *gathered == units), "{ranks} ranks, {mode:?}: what is gathered");
    units
}

fn modes() -> impl Iterator<Item = Mode> {
    (0..4).map(|seed| Mode::Adversarial { seed }).chain([Mode::Timed])
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn any_number_of_ranks_trains_as_one_host() {
    let expected = on_host();
    for ranks in [1, 2, 4] {
        for mode in modes() {
            for (unit, (found, expected)) in on_ranks(ranks, mode).iter().zip(&expected).enumerate() {
                let found = &found[..expected.len()];
                assert!(bits(found) == bits(expected), "{ranks} ranks, {mode:?}, unit {unit}");
            }
        }
    }
}

#[test]
fn padding_stays_zero() {
    for ranks in [1, 2, 4] {
        for mode in modes() {
            for (unit, found) in on_ranks(ranks, mode).iter().enumerate() {
                assert_eq!(found.len(), padded_elements(ELEMENTS[unit], ranks));
                let padding = &found[ELEMENTS[unit]..];
                assert!(padding.iter().all(|value| value.to_bits() == 0), "{ranks} ranks, {mode:?}, unit {unit}");
            }
        }
    }
}

#[test]
fn units_are_padded_to_whole_shards() {
    for ranks in 1..=8 {
        for elements in [1, 127, 128, 129, 1000, 1024, 1025] {
            let padded = padded_elements(elements, ranks);
            let shard = padded / ranks as usize;
            assert!(padded >= elements && padded - elements < 128 * ranks as usize);
            assert_eq!((shard * ranks as usize, shard % 128), (padded, 0), "512 bytes");
        }
    }
}
