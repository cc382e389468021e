//! Random specs: refused with a typed error, or sound in every way.

use proptest::prelude::*;

use super::*;

prop_compose! {
    fn specs()(
        shards in prop::collection::vec(1_u64..1000, 1..=8),
        ranks in 1_u32..=4,
        rounds in 1_u32..=3,
        slots in 1_u32..=5,
        forward_prefetch in 0_u32..=3,
        pre in any::<bool>(),
        passes in prop::sample::select(vec![Passes::Forward, Passes::Backward, Passes::Training]),
        keep_distance in 0_u32..=9,
    ) -> PlanSpec {
        let bytes: Vec<u64> = shards.iter().map(|shard| shard * u64::from(ranks)).collect();
        PlanSpec {
            rounds,
            slots,
            forward_prefetch,
            backward_prefetch: if pre { BackwardPrefetch::Pre } else { BackwardPrefetch::None },
            passes,
            keep_distance,
            ..PlanSpec::new(sized(&bytes), ranks)
        }
    }
}

/// The slots that the documented rule asks for.
fn slots_needed(spec: &PlanSpec) -> u32 {
    let others = spec.units.len() as u32 - 1;
    let forward = if spec.passes == Passes::Backward { 0 } else { 1 + spec.forward_prefetch.min(others) };
    let ahead = if spec.backward_prefetch == BackwardPrefetch::Pre { others.min(1) } else { 0 };
    let backward = if spec.passes == Passes::Forward { 0 } else { 2 + ahead };
    forward.max(backward)
}

fn gathers_of(plan: &Plan) -> usize {
    plan.ops().iter().filter(|op| op.kind.name() == "gather").count()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn refused_or_sound(spec in specs()) {
        let needed = slots_needed(&spec);
        let plan = match Plan::new(&spec) {
            Ok(plan) => plan,
            Err(error) => {
                let slots_needed = u64::from(needed);
                let missing_bytes = u64::from(needed.saturating_sub(spec.slots)) * spec.slot_bytes();
                let PlanError::TooFewSlots { slots_needed: n, missing_bytes: m, .. } = error else {
                    return Err(TestCaseError::fail(error.to_string()));
                };
                prop_assert_eq!((n, m), (slots_needed, missing_bytes));
                return Ok(());
            }
        };
        prop_assert!(needed <= spec.slots);
        prop_assert_eq!(plan.verify(), Ok(()));
        prop_assert_eq!(predicted_peak_bytes(&spec), Ok(plan.peak_bytes()));
        prop_assert_eq!(plan.leased_bytes().last(), Some(0));
        prop_assert!(plan.peak_bytes() <= u64::from(spec.slots) * plan.slot_bytes());
        let leases = plan.ops().iter().filter(|op| op.leases().is_some()).count();
        prop_assert_eq!(leases, plan.ops().iter().filter(|op| op.releases.is_some()).count());
    }

    /// The number of units kept at each turn is the documented one.
    #[test]
    fn kept_units_follow_the_rule(spec in specs()) {
        let Ok(plan) = Plan::new(&spec) else { return Ok(()) };
        let (units, rounds) = (spec.units.len(), spec.rounds as usize);
        let expected = if spec.passes == Passes::Training {
            let kept = units.min(spec.keep_distance.div_ceil(2) as usize).min(spec.slots as usize - 1);
            2 * units * rounds - kept * (2 * rounds - 1)
        } else {
            units * rounds
        };
        prop_assert_eq!(gathers_of(&plan), expected);
    }

    #[test]
    fn every_wait_is_needed(spec in specs()) {
        let Ok(plan) = Plan::new(&spec) else { return Ok(()) };
        for edge in plan.edges() {
            let verdict = plan.without_wait(edge).verify();
            let unordered = matches!(verdict, Err(PlanError::Unsound(PlanFault::Unordered { .. })));
            prop_assert!(unordered, "{:?}: {:?}", edge, verdict);
        }
    }

    #[test]
    fn budget_is_exact(spec in specs(), below in 1_u64..5000) {
        let Ok(plan) = Plan::new(&spec) else { return Ok(()) };
        let peak_bytes = plan.peak_bytes();
        let at = leases::walk(&spec.units, plan.ops()).position(|lease| lease.during_bytes == peak_bytes);
        let below = below.min(peak_bytes);
        let with = |bytes| PlanSpec { max_unsharded_bytes: Some(bytes), ..spec.clone() };
        prop_assert_eq!(Plan::new(&with(peak_bytes)).map(|plan| plan.peak_bytes()), Ok(peak_bytes));
        // The peak is reached by a gather for the use that follows, or by the use itself.
        let at = at.expect("the peak is reached");
        let user = plan.ops()[at..].iter().find(|op| op.lane() == Lane::Compute).expect("a use follows");
        prop_assert_eq!(Plan::new(&with(peak_bytes - below)), Err(PlanError::OverBudget {
            unit: spec.units[user.unit.index()].name.clone(),
            peak_bytes,
            budget_bytes: peak_bytes - below,
            missing_bytes: below,
        }));
    }

    /// With any durations, prefetch and more slots never expose more than all of the communication.
    #[test]
    fn timelines_stay_within_bounds(spec in specs(), ticks in prop::array::uniform5(0_u64..9), steps in 0_u32..4) {
        let Ok(plan) = Plan::new(&spec) else { return Ok(()) };
        let [forward, backward, gather, reduce, optimize] = ticks;
        let ticks = UnitTicks { forward, backward, gather, reduce, optimize };
        let timeline = plan.timeline(&Durations::uniform(spec.units.len(), ticks), steps).unwrap();
        let compute = timeline.span_without_communication();
        prop_assert!(timeline.span() >= compute.max(timeline.communication()));
        prop_assert!(timeline.span() <= compute + timeline.communication());
    }
}
