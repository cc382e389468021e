//! Specs that are refused, and what the refusal says.

use super::*;

fn refusal(spec: &PlanSpec) -> PlanError {
    let error = Plan::new(spec).expect_err("the spec is bad");
    assert_eq!(predicted_peak_bytes(spec).as_ref(), Err(&error), "the prediction refuses alike");
    error
}

#[test]
fn counts_of_zero() {
    let good = spec(2, Passes::Training);
    assert_eq!(refusal(&PlanSpec { units: Vec::new(), ..good.clone() }), PlanError::NoUnits);
    assert_eq!(refusal(&PlanSpec { ranks: 0, ..good.clone() }), PlanError::NoRanks);
    assert_eq!(refusal(&PlanSpec { rounds: 0, ..good.clone() }), PlanError::NoRounds);
    let units = sized(&[8, 0]);
    assert_eq!(refusal(&PlanSpec { units, ..good }), PlanError::EmptyUnit { unit: "u1".to_owned() });
}

#[test]
fn bytes_that_do_not_divide() {
    let spec = PlanSpec::new(sized(&[12, 16]), 3);
    assert_eq!(refusal(&spec), PlanError::UnevenUnit { unit: "u1".to_owned(), padded_bytes: 16, ranks: 3 });
}

#[test]
fn sizes_that_overflow() {
    assert_eq!(refusal(&PlanSpec::new(sized(&[u64::MAX / 4 + 1, 1]), 1)), PlanError::TooManyBytes);
    assert!(Plan::new(&PlanSpec::new(sized(&[u64::MAX / 4, 1]), 1)).is_ok());
    let long = PlanSpec { rounds: u32::MAX, ..spec(2, Passes::Training) };
    let operations = 2 * (5 * u64::from(u32::MAX) + 1);
    assert_eq!(refusal(&long), PlanError::TooManyOperations { operations, limit: MAX_OPERATIONS });
}

#[test]
fn too_few_slots_for_the_gradients() {
    let spec = PlanSpec { slots: 2, ..PlanSpec::new(sized(&[100, 300, 200]), 2) };
    let unit = "u2".to_owned();
    let error = refusal(&spec);
    assert_eq!(error, PlanError::TooFewSlots { unit, slots: 2, slots_needed: 3, missing_bytes: 300 });
    assert_eq!(
        error.to_string(),
        "no slot for unit u2: the step needs 3 slots and has 2; 300 B more are needed, or less prefetch"
    );
    let lone = PlanSpec { slots: 1, ..without_prefetch(spec.clone()) };
    let unit = "u2".to_owned();
    assert_eq!(refusal(&lone), PlanError::TooFewSlots { unit, slots: 1, slots_needed: 2, missing_bytes: 300 });
    let ahead = PlanSpec { slots: 1, passes: Passes::Backward, ..spec };
    let unit = "u1".to_owned();
    assert_eq!(refusal(&ahead), PlanError::TooFewSlots { unit, slots: 1, slots_needed: 3, missing_bytes: 600 });
}

#[test]
fn too_few_slots_for_the_forward_depth() {
    let spec = PlanSpec { forward_prefetch: 3, ..spec(6, Passes::Training) };
    let unit = "u3".to_owned();
    assert_eq!(refusal(&spec), PlanError::TooFewSlots { unit, slots: 3, slots_needed: 4, missing_bytes: 1024 });
    let none = PlanSpec { slots: 0, ..without_prefetch(spec) };
    let unit = "u0".to_owned();
    assert_eq!(refusal(&none), PlanError::TooFewSlots { unit, slots: 0, slots_needed: 2, missing_bytes: 2048 });
}

#[test]
fn depth_past_the_last_unit_needs_no_slots() {
    let spec = PlanSpec { forward_prefetch: u32::MAX, ..spec(3, Passes::Training) };
    assert_eq!(plan(&spec).peak_bytes(), 3 * 1024);
    let one = PlanSpec { slots: 2, ..self::spec(1, Passes::Training) };
    assert_eq!(letters(&plan(&one)), "G0 F0 B0 R0 O0", "one unit has nothing to prefetch");
}
