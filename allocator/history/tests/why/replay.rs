//! Undoing a trace finds the memory that was there, and the ledger accounts for all of it.

use proptest::prelude::*;

use highwater_history::why::{Options, Verdict, explain};

use crate::world::{MIB, World};

/// Something that a program does.
#[derive(Clone, Copy, Debug)]
enum Act {
    Alloc(u64, u64),
    Free(usize),
    Request(usize),
    Complete(usize),
    Release,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (1..30_u64, 0..2_u64).prop_map(|(size, stream)| Act::Alloc(size * MIB / 4 + 100, stream)),
        2 => any::<usize>().prop_map(Act::Free),
        1 => any::<usize>().prop_map(Act::Request),
        1 => any::<usize>().prop_map(Act::Complete),
        1 => Just(Act::Release),
    ]
}

#[derive(Clone)]
struct Program {
    world: World,
    live: Vec<u64>,
    pending: Vec<u64>,
}

impl Program {
    fn run(&mut self, acts: &[Act]) {
        for &act in acts {
            match act {
                Act::Alloc(bytes, stream) => {
                    self.world.stream = stream;
                    self.live.push(self.world.alloc(bytes, "a.py:1 in f"));
                    self.world.stream = 0;
                }
                Act::Free(which) if !self.live.is_empty() => {
                    let address = self.live.swap_remove(which % self.live.len());
                    self.world.free(address);
                }
                Act::Request(which) if !self.live.is_empty() => {
                    let address = self.live.swap_remove(which % self.live.len());
                    self.world.request_free(address);
                    self.pending.push(address);
                }
                Act::Complete(which) if !self.pending.is_empty() => {
                    let address = self.pending.swap_remove(which % self.pending.len());
                    self.world.complete(address);
                }
                Act::Release => self.world.release(),
                _ => {}
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// What is found for the moment of the failure is what a snapshot taken there shows, whatever came after and however
    /// many of the oldest events are lost.
    #[test]
    fn the_moment_of_the_failure_is_found_again(
        before in prop::collection::vec(act(), 1..60),
        after in prop::collection::vec(act(), 0..60),
        lost in 0..30_usize,
    ) {
        let mut program = Program { world: World::new(), live: Vec::new(), pending: Vec::new() };
        program.run(&before);
        program.world.refuse(1 << 40, 0, "a.py:2 in g");
        let there = program.world.clone();
        program.run(&after);
        let mut options = Options::default();
        options.capacity_bytes = Some(100 << 30);
        let then = explain(&there.loaded(), &options).remove(0);
        let lost = lost.min(there.rows() - 1);
        program.world.events.drain(..lost);
        let now = explain(&program.world.loaded(), &options).remove(0);
        prop_assert!(then.warnings.is_empty() && now.warnings.is_empty(), "{:?} {:?}", then.warnings, now.warnings);
        prop_assert_eq!(now.ledger, then.ledger);
        prop_assert_eq!(now.ledger.reserved_bytes(), there.reserved());
        prop_assert_eq!(now.ledger.total_bytes(), 100 << 30);
        // How memory grew is in the events, and some of them are lost.
        let lasting = |verdict: &Verdict| {
            let all = verdict.counterfactuals.iter().filter(|one| !one.what.contains("before it grew"));
            all.copied().collect::<Vec<_>>()
        };
        prop_assert_eq!(lasting(&now), lasting(&then));
    }
}
