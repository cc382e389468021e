//! What a collective of the ranks of one process submits, as data.
//!
//! Streams of several ranks take part, so order is by events alone. Two rules carry it: nothing is read before its owner
//! had everything submitted that its stream got before (*ready*), and no rank's stream goes on before all others have
//! read from it (*done*). Wherever the ranks add, they do so in rank order.

use highwater::device::{Address, DriverStream};
use highwater_kernels::host::Update;

/// Which collective.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Gather,
    Reduce(Update),
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Gather => "all-gather",
            Kind::Reduce(_) => "reduce-scatter",
        }
    }
}

/// What a rank posts.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Posted {
    pub(super) kind: Kind,
    /// Elements of a shard, f32.
    pub(super) elements: usize,
    /// The context, as a number: addresses are valid in one alone.
    pub(super) context: u64,
    pub(super) stream: DriverStream,
    pub(super) shard: Address,
    pub(super) unsharded: Address,
}

impl Posted {
    fn bytes(&self) -> u64 {
        (self.elements * size_of::<f32>()) as u64
    }

    /// The part of `unsharded` that belongs to a rank.
    fn part(&self, rank: usize) -> Address {
        self.unsharded.offset(rank as u64 * self.bytes())
    }
}

/// One call. Ranks are places in what was posted; events are numbered from 0, twice as many as ranks.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Step {
    Record { rank: usize, event: usize },
    Wait { rank: usize, event: usize },
    Copy { rank: usize, source: Address, target: Address, bytes: u64 },
    Sum { rank: usize, out: Address, sources: Vec<Address>, elements: usize, update: Update },
}

/// What differs between the ranks, if anything does.
pub(super) fn difference(all: &[Posted]) -> Option<String> {
    let first = &all[0];
    all.iter().enumerate().find_map(|(rank, posted)| {
        if posted.context != first.context {
            return Some(format!("rank {rank} is on another GPU, or in another context of it, than rank 0"));
        }
        let same = (posted.kind, posted.elements) == (first.kind, first.elements);
        (!same).then(|| format!("rank {rank} issues {}, rank 0 {}", describe(posted), describe(first)))
    })
}

fn describe(posted: &Posted) -> String {
    let update = match posted.kind {
        Kind::Gather => "",
        Kind::Reduce(Update::Store) => " (stored)",
        Kind::Reduce(Update::Accumulate) => " (added)",
    };
    format!("{}{update} of {} elements a rank", posted.kind.name(), posted.elements)
}

/// The calls of a collective in the order in which they are made.
pub(super) fn steps(all: &[Posted]) -> Vec<Step> {
    let ranks = all.len();
    let (ready, done) = (|rank| rank, |rank| ranks + rank);
    let others = |rank| (0..ranks).filter(move |&other| other != rank);
    let mut steps = Vec::new();
    // Alone there is nobody to wait for.
    if ranks > 1 {
        steps.extend((0..ranks).map(|rank| Step::Record { rank, event: ready(rank) }));
    }
    for rank in 0..ranks {
        steps.extend(others(rank).map(|other| Step::Wait { rank, event: ready(other) }));
        steps.extend(work(all, rank));
        if ranks > 1 {
            steps.push(Step::Record { rank, event: done(rank) });
        }
    }
    for rank in 0..ranks {
        steps.extend(others(rank).map(|other| Step::Wait { rank, event: done(other) }));
    }
    steps
}

/// What one rank copies or sums.
fn work(all: &[Posted], rank: usize) -> Vec<Step> {
    let own = &all[rank];
    if own.elements == 0 {
        return Vec::new();
    }
    match own.kind {
        Kind::Gather => {
            let copy = |(place, from): (usize, &Posted)| Step::Copy {
                rank,
                source: from.shard,
                target: own.part(place),
                bytes: own.bytes(),
            };
            all.iter().enumerate().map(copy).collect()
        }
        Kind::Reduce(update) => {
            let sources = all.iter().map(|from| from.part(rank)).collect();
            vec![Step::Sum { rank, out: own.shard, sources, elements: own.elements, update }]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn posted(ranks: usize, kind: Kind, elements: usize) -> Vec<Posted> {
        let address = |rank: usize, place: u64| Address(0x10_0000 * (rank as u64 + 1) + place);
        let post = |rank| Posted {
            kind,
            elements,
            context: 1,
            stream: DriverStream(rank as u64),
            shard: address(rank, 0),
            unsharded: address(rank, 0x8000),
        };
        (0..ranks).map(post).collect()
    }

    /// Something that a stream does with memory, and how much of each stream came before it for certain.
    struct Deed {
        rank: usize,
        range: (u64, u64),
        writes: bool,
        before: Vec<u64>,
    }

    /// Streams as clocks: what each of them has seen of the others.
    struct Model {
        clocks: Vec<Vec<u64>>,
        events: Vec<Vec<u64>>,
        deeds: Vec<Deed>,
    }

    impl Model {
        fn new(ranks: usize) -> Self {
            Model { clocks: vec![vec![0; ranks]; ranks], events: vec![vec![0; ranks]; 2 * ranks], deeds: Vec::new() }
        }

        fn touch(&mut self, rank: usize, address: Address, bytes: u64, writes: bool) {
            self.clocks[rank][rank] += 1;
            let range = (address.0, address.0 + bytes);
            self.deeds.push(Deed { rank, range, writes, before: self.clocks[rank].clone() });
        }

        fn step(&mut self, step: &Step) {
            match step {
                &Step::Record { rank, event } => self.events[event].clone_from(&self.clocks[rank]),
                &Step::Wait { rank, event } => {
                    let seen = self.clocks[rank].iter_mut().zip(&self.events[event]);
                    seen.for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
                }
                &Step::Copy { rank, source, target, bytes } => {
                    self.touch(rank, source, bytes, false);
                    self.touch(rank, target, bytes, true);
                }
                Step::Sum { rank, out, sources, elements, .. } => {
                    let bytes = 4 * *elements as u64;
                    sources.iter().for_each(|source| self.touch(*rank, *source, bytes, false));
                    self.touch(*rank, *out, bytes, true);
                }
            }
        }

        /// Pairs that touch the same memory, one of them writing, in no certain order.
        fn races(&self) -> usize {
            let races = |(index, late): (usize, &Deed)| {
                let early = self.deeds[..index].iter().filter(|early| {
                    let meet = early.range.0 < late.range.1 && late.range.0 < early.range.1;
                    let known = late.before[early.rank] >= early.before[early.rank];
                    meet && (early.writes || late.writes) && !known
                });
                early.count()
            };
            self.deeds.iter().enumerate().map(races).sum()
        }
    }

    /// Every rank writes its source, the collective runs, and every rank writes its source again.
    fn races(all: &[Posted], steps: &[Step]) -> usize {
        let mut model = Model::new(all.len());
        let overwrite = |model: &mut Model| {
            for (rank, own) in all.iter().enumerate() {
                match own.kind {
                    Kind::Gather => model.touch(rank, own.shard, own.bytes(), true),
                    Kind::Reduce(_) => model.touch(rank, own.unsharded, own.bytes() * all.len() as u64, true),
                }
            }
        };
        overwrite(&mut model);
        steps.iter().for_each(|step| model.step(step));
        overwrite(&mut model);
        model.races()
    }

    const KINDS: [Kind; 3] = [Kind::Gather, Kind::Reduce(Update::Store), Kind::Reduce(Update::Accumulate)];

    #[test]
    fn sources_are_written_before_and_after_without_a_race() {
        for (ranks, kind) in [1, 2, 3, 8].into_iter().flat_map(|ranks| KINDS.map(|kind| (ranks, kind))) {
            let all = posted(ranks, kind, 3);
            assert_eq!(races(&all, &steps(&all)), 0, "{ranks} ranks, {kind:?}");
        }
    }

    #[test]
    fn not_one_wait_and_not_one_record_can_go() {
        for (ranks, kind) in [2, 3, 4].into_iter().flat_map(|ranks| KINDS.map(|kind| (ranks, kind))) {
            let all = posted(ranks, kind, 3);
            let whole = steps(&all);
            for index in 0..whole.len() {
                if matches!(whole[index], Step::Wait { .. } | Step::Record { .. }) {
                    let mut less = whole.clone();
                    let gone = less.remove(index);
                    assert!(races(&all, &less) > 0, "{ranks} ranks, {kind:?}: {gone:?} is not needed");
                }
            }
        }
    }

    #[test]
    fn a_gather_copies_shards_in_rank_order() {
        let all = posted(2, Kind::Gather, 3);
        let copies: Vec<_> = steps(&all).into_iter().filter(|step| matches!(step, Step::Copy { .. })).collect();
        let copy = |rank: usize, from: usize| Step::Copy {
            rank,
            source: all[from].shard,
            target: all[rank].unsharded.offset(12 * from as u64),
            bytes: 12,
        };
        assert_eq!(copies, [copy(0, 0), copy(0, 1), copy(1, 0), copy(1, 1)]);
    }

    #[test]
    fn a_reduce_sums_in_rank_order() {
        let update = Update::Accumulate;
        let all = posted(3, Kind::Reduce(update), 3);
        let sums: Vec<_> = steps(&all).into_iter().filter(|step| matches!(step, Step::Sum { .. })).collect();
        let sum = |rank: usize| Step::Sum {
            rank,
            out: all[rank].shard,
            sources: all.iter().map(|from| from.unsharded.offset(12 * rank as u64)).collect(),
            elements: 3,
            update,
        };
        assert_eq!(sums, [sum(0), sum(1), sum(2)]);
    }

    #[test]
    fn empty_shards_move_nothing() {
        for kind in KINDS {
            let moves = |step: &Step| matches!(step, Step::Copy { .. } | Step::Sum { .. });
            assert!(!steps(&posted(2, kind, 0)).iter().any(moves));
        }
    }

    #[test]
    fn what_differs_is_named() {
        let mut all = posted(3, Kind::Gather, 3);
        assert_eq!(difference(&all), None);
        all[2].elements = 4;
        let expected = "rank 2 issues all-gather of 4 elements a rank, rank 0 all-gather of 3 elements a rank";
        assert_eq!(difference(&all).as_deref(), Some(expected));
        all[1].kind = Kind::Reduce(Update::Store);
        let expected =
            "rank 1 issues reduce-scatter (stored) of 3 elements a rank, rank 0 all-gather of 3 elements a rank";
        assert_eq!(difference(&all).as_deref(), Some(expected));
        all[0].kind = Kind::Reduce(Update::Accumulate);
        assert!(difference(&all).unwrap().ends_with("rank 0 reduce-scatter (added) of 3 elements a rank"));
        all[1].context = 2;
        assert!(difference(&all).unwrap().starts_with("rank 1 is on another GPU"));
    }
}
