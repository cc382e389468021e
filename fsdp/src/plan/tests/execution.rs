//! Runs plans on a device that picks any order which lanes and waits allow, with everything submitted at once.
//!
//! It knows operations by their accesses alone. An operation starts and ends at separate moments; whatever runs at the
//! same time must not conflict, and each read must find the write that issue order gives it. This is a second opinion
//! on `verify`, by running instead of proving.

use std::collections::BTreeMap;

use super::*;

const STEPS: usize = 3;

/// A small generator of fixed sequences (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % limit
    }
}

/// The place that wrote what each read of each place finds, in issue order.
fn reads_in_issue_order(plan: &Plan) -> Vec<Vec<Option<usize>>> {
    let mut writer = BTreeMap::new();
    let places = 0..STEPS * plan.ops().len();
    places.map(|place| access(plan, place, &mut writer)).collect()
}

/// The writers of what `place` reads; then it is the writer of what it writes.
fn access(plan: &Plan, place: usize, writer: &mut BTreeMap<Resource, usize>) -> Vec<Option<usize>> {
    let op = &plan.ops()[place % plan.ops().len()];
    let of_mode = |mode| op.accesses().filter(move |access| access.mode == mode);
    let found = of_mode(AccessMode::Read).map(|access| writer.get(&access.resource).copied()).collect();
    writer.extend(of_mode(AccessMode::Write).map(|access| (access.resource, place)));
    found
}

struct Device<'a> {
    plan: &'a Plan,
    /// The places of each lane that have not started, the next one last.
    queues: [Vec<usize>; 2],
    running: [Option<usize>; 2],
    over: Vec<bool>,
}

impl Device<'_> {
    fn new(plan: &Plan) -> Device<'_> {
        let places = STEPS * plan.ops().len();
        let lane = |lane| {
            let of_lane = |place: &usize| plan.ops()[place % plan.ops().len()].lane() == lane;
            (0..places).rev().filter(of_lane).collect()
        };
        Device {
            plan,
            queues: [lane(Lane::Compute), lane(Lane::Communication)],
            running: [None; 2],
            over: vec![false; places],
        }
    }

    fn op(&self, place: usize) -> &Op {
        &self.plan.ops()[place % self.plan.ops().len()]
    }

    fn ready(&self, place: usize) -> bool {
        let step = place - place % self.plan.ops().len();
        self.op(place).waits.iter().all(|wait| {
            let from = step + wait.on.index();
            let from = if wait.previous_step { from.checked_sub(self.plan.ops().len()) } else { Some(from) };
            from.is_none_or(|from| self.over[from])
        })
    }

    fn conflict(&self, a: usize, b: usize) -> bool {
        self.op(a).accesses().any(|one| self.op(b).accesses().any(|other| one.conflicts(other)))
    }

    /// Runs everything. `patience` is how many times in 16 a lane waits although it could go on, one for each lane.
    /// False if two running operations conflicted or a read found a wrong write.
    fn run(mut self, seed: u64, patience: [u64; 2]) -> bool {
        let mut random = Random(seed * 2 + 1);
        let expected = reads_in_issue_order(self.plan);
        let mut writer = BTreeMap::new();
        while self.over.contains(&false) {
            let lane = random.below(2) as usize;
            let held_back = random.below(16) < patience[lane];
            if let Some(place) = self.running[lane] {
                if !held_back {
                    self.over[place] = true;
                    self.running[lane] = None;
                }
            } else if let Some(place) = self.queues[lane].last().copied().filter(|place| self.ready(*place)) {
                if held_back {
                    continue;
                }
                self.queues[lane].pop();
                self.running[lane] = Some(place);
                if self.running[1 - lane].is_some_and(|other| self.conflict(place, other)) {
                    return false;
                }
                if access(self.plan, place, &mut writer) != expected[place] {
                    return false;
                }
            }
        }
        true
    }
}

const PATIENCE: [[u64; 2]; 3] = [[0, 0], [15, 0], [0, 15]];

fn plans() -> Vec<Plan> {
    let training = spec(4, Passes::Training);
    let specs = [
        training.clone(),
        PlanSpec { rounds: 2, ..training.clone() },
        PlanSpec { slots: 5, forward_prefetch: 2, keep_distance: 7, ..training.clone() },
        without_prefetch(training),
        spec(4, Passes::Forward),
        spec(4, Passes::Backward),
    ];
    specs.iter().map(plan).collect()
}

#[test]
fn m11_any_delays_give_the_same_result() {
    for plan in plans() {
        for seed in 0..400 {
            for patience in PATIENCE {
                assert!(Device::new(&plan).run(seed, patience), "seed {seed}, patience {patience:?}\n{plan:#}");
            }
        }
    }
}

#[test]
fn o10_without_a_wait_some_delays_go_wrong() {
    for plan in plans() {
        for edge in plan.edges() {
            let broken = plan.without_wait(edge);
            let goes_wrong = (0..400).any(|seed| PATIENCE.iter().any(|p| !Device::new(&broken).run(seed, *p)));
            assert!(goes_wrong, "no run needed {edge:?}\n{plan:#}");
        }
    }
}
