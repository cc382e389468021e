//! Tests of whole plans. Sizes in bytes, times in ticks.

mod execution;
mod memory;
mod order;
mod random;
mod refusal;
mod text;
mod timelines;
mod unsound;

use super::*;

/// `count` units of `bytes` bytes each, named u0, u1, ….
fn uniform(count: usize, bytes: u64) -> Vec<UnitSpec> {
    sized(&vec![bytes; count])
}

/// Units of these sizes in bytes, named u0, u1, ….
fn sized(bytes: &[u64]) -> Vec<UnitSpec> {
    bytes.iter().enumerate().map(|(index, bytes)| UnitSpec::new(format!("u{index}"), *bytes)).collect()
}

/// A spec of `count` units of 1,024 bytes on 2 ranks with these passes.
fn spec(count: usize, passes: Passes) -> PlanSpec {
    PlanSpec { passes, ..PlanSpec::new(uniform(count, 1024), 2) }
}

/// The spec, without prefetch and with just the slots that this takes.
fn without_prefetch(spec: PlanSpec) -> PlanSpec {
    let slots = if spec.passes == Passes::Forward { 1 } else { 2 };
    PlanSpec { slots, forward_prefetch: 0, backward_prefetch: BackwardPrefetch::None, ..spec }
}

fn plan(spec: &PlanSpec) -> Plan {
    let plan = Plan::new(spec).expect("the spec is good");
    plan.verify().expect("a built plan is sound");
    plan
}

/// A letter and a unit for each operation, such as `G3`.
fn letters(plan: &Plan) -> String {
    let word = |op: &Op| format!("{}{}", op.kind.name()[..1].to_uppercase(), op.unit);
    plan.ops().iter().map(word).collect::<Vec<_>>().join(" ")
}
