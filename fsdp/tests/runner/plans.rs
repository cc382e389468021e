//! Plans for something else are refused.

use std::sync::Arc;

use highwater::device::Device;
use highwater::device::sim::{SimCluster, SimConfig};
use highwater::{Allocator, Settings};
use highwater_fsdp::group::LocalGroup;
use highwater_fsdp::plan::Plan;
use highwater_fsdp::run::{RunError, Runner, UnitLayout, plan_spec};
use highwater_kernels::host::AdamW;

use crate::scripted::{Scripted, layouts};

const ELEMENTS: [usize; 3] = [200, 300, 100];

fn plan(units: &[UnitLayout], ranks: u32) -> Arc<Plan> {
    Plan::new(&plan_spec(units, ranks)).unwrap().into()
}

#[test]
fn a_plan_for_other_units_or_ranks_is_refused() {
    let cluster = SimCluster::new(2, SimConfig::default());
    let device = cluster.device(1);
    let allocator = Allocator::with_settings(device.clone(), Settings::default()).unwrap();
    let make = |plan: Arc<Plan>| {
        let group = LocalGroup::new(&cluster, &device, "sharding", 2);
        Runner::new(&allocator, group, Scripted::new(&ELEMENTS, 1, 2), plan, AdamW::default())
    };
    let mut renamed = layouts(&ELEMENTS);
    renamed[1].name = "another".to_owned();
    let wrong = [
        ("one rank", plan(&layouts(&ELEMENTS), 1), "3 units on 1 ranks"),
        ("more ranks", plan(&layouts(&ELEMENTS), 4), "3 units on 4 ranks"),
        ("a unit too few", plan(&layouts(&ELEMENTS[..2]), 2), "2 units on 2 ranks"),
        ("a unit too many", plan(&layouts(&[200, 300, 100, 100]), 2), "4 units on 2 ranks"),
        ("another size", plan(&layouts(&[200, 600, 100]), 2), "3 units on 2 ranks"),
        ("another order", plan(&layouts(&[300, 200, 600]), 2), "3 units on 2 ranks"),
        ("another name", plan(&renamed, 2), "3 units on 2 ranks"),
    ];
    for (what, plan, words) in wrong {
        let before = device.counters();
        let Err(error) = make(plan) else { panic!("{what} was accepted") };
        assert!(matches!(&error, RunError::OtherPlan { rank: 1, what } if what.contains(words)), "{what}: {error}");
        assert!(error.to_string().starts_with("rank 1: the plan does not fit: "), "{error}");
        assert_eq!(device.counters(), before, "{what}: nothing was done");
    }
    assert_eq!(allocator.memory_stats().live.now, 0);
    let runner = make(plan(&layouts(&ELEMENTS), 2)).unwrap();
    assert!(runner.communication().is_open(), "before anything is submitted to it");
    assert!(!runner.compute().is_open());
}

#[test]
fn any_plan_for_the_units_is_taken() {
    let cluster = SimCluster::new(1, SimConfig::default());
    let device = cluster.device(0);
    let allocator = Allocator::with_settings(device.clone(), Settings::default()).unwrap();
    for (slots, rounds) in [(3, 1), (4, 2), (5, 3)] {
        let mut spec = plan_spec(&layouts(&ELEMENTS), 1);
        (spec.slots, spec.rounds) = (slots, rounds);
        let group = LocalGroup::new(&cluster, &device, "sharding", 1);
        let (model, plan) = (Scripted::new(&ELEMENTS, 0, 1), Plan::new(&spec).unwrap());
        let mut runner = Runner::new(&allocator, group, model, plan.clone().into(), AdamW::default()).unwrap();
        assert_eq!(runner.plan(), &plan);
        runner.step().unwrap();
        assert_eq!((runner.peak_unsharded_bytes(), runner.unsharded_bytes()), (plan.peak_bytes(), 0));
    }
}
