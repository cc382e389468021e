//! One number for a whole plan (FNV-1a, 64 bits), the same on every platform and in every run.

use super::op::{Op, OpKind, SlotIndex};
use super::spec::PlanSpec;

/// Covers units, ranks, rounds, and every field of every operation.
pub(super) fn fingerprint(spec: &PlanSpec, ops: &[Op]) -> u64 {
    let mut hash = Fnv::new();
    for count in [spec.ranks, spec.rounds, spec.slots] {
        hash.number(count.into());
    }
    hash.number(spec.units.len() as u64);
    for unit in &spec.units {
        hash.text(&unit.name);
        hash.number(unit.padded_bytes);
    }
    for op in ops {
        operation(&mut hash, op);
    }
    hash.0
}

fn operation(hash: &mut Fnv, op: &Op) {
    let slots = match op.kind {
        OpKind::Gather { into: slot } | OpKind::Forward { parameters: slot } | OpKind::Reduce { gradients: slot } => {
            [Some(slot), None]
        }
        OpKind::Backward { parameters, gradients } => [Some(parameters), Some(gradients)],
        OpKind::Optimize => [None, None],
    };
    hash.text(op.kind.name());
    hash.number(op.unit.0.into());
    hash.number(op.round.into());
    for slot in slots.into_iter().chain([op.releases]) {
        hash.slot(slot);
    }
    hash.number(op.waits.len() as u64);
    for wait in &op.waits {
        hash.number(wait.on.0.into());
        hash.number(wait.previous_step.into());
    }
    hash.number(op.signals.into());
}

struct Fnv(u64);

impl Fnv {
    fn new() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn number(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    fn slot(&mut self, slot: Option<SlotIndex>) {
        self.number(slot.map_or(u64::MAX, |slot| slot.0.into()));
    }

    /// The length goes first, so that two neighbouring texts cannot trade letters.
    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.bytes(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_vectors() {
        let of = |text: &str| {
            let mut hash = Fnv::new();
            hash.bytes(text.as_bytes());
            hash.0
        };
        assert_eq!(of(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(of("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(of("foobar"), 0x8594_4171_f739_67e8);
    }
}
