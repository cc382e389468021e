//! A heap beside a model that knows only intervals, driven by operations.
//!
//! The model predicts, for each operation: whether a request fits, which pending frees end, and what the books say. The
//! property tests and the fuzz target share it.

use std::collections::BTreeMap;

use highwater_core::{
    BlockId, Books, Freed, GhostState, Heap, Mapping, PageId, Placement, Position, SMALL_BYTES, Satisfied, StreamIndex,
    Supply, Wait, rounded,
};

pub(crate) const GRANULE: u64 = 64 << 10;
pub(crate) const RANGE: u64 = 512 * GRANULE;
pub(crate) const STREAMS: u32 = 3;

/// What went otherwise than the model says, in words.
pub(crate) type Outcome = Result<(), String>;

fn ensure(holds: bool, broken: impl Into<String>) -> Outcome {
    if holds { Ok(()) } else { Err(broken.into()) }
}

/// One operation on a heap.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// Request bytes; map memory when nothing fits.
    Allocate(u64),
    /// Request bytes out of what is mapped.
    AllocateCached(u64),
    /// Free the nth live block (modulo), waiting for `(stream, ahead)`.
    Free(usize, Vec<(u32, u64)>),
    /// A stream passes so many more positions.
    Progress(u32, u64),
    /// End what is over.
    Retire,
    /// Unmap up to so many wholly free handles.
    Unmap(usize),
}

/// A heap and its model.
pub(crate) struct World {
    heap: Heap,
    model: Model,
}

impl World {
    pub(crate) fn new() -> Self {
        World { heap: new_heap(), model: Model::default() }
    }

    /// Does one operation on both, compares what came of it, and sweeps the heap.
    pub(crate) fn step(&mut self, op: Op) -> Outcome {
        apply(&mut self.heap, &mut self.model, op)?;
        self.heap.check().map_err(|error| error.to_string())?;
        ensure(self.heap.books() == self.model.books(), "the books are not the model's")
    }

    /// The addresses that are given out.
    pub(crate) fn live_addresses(&self) -> Vec<u64> {
        self.model.live.keys().copied().collect()
    }
}

/// Bytes as intervals: start → length.
#[derive(Default)]
struct Model {
    mapped: BTreeMap<u64, u64>,
    live: BTreeMap<u64, (u64, u64, BlockId)>,
    pending: BTreeMap<u64, (u64, Vec<Wait>)>,
    passed: [u64; STREAMS as usize],
}

impl Model {
    /// Lengths of the free stretches in which a request like `requested` may be placed. Small and large requests have
    /// ranges of their own.
    fn longest_free(&self, small: bool) -> u64 {
        let taken = |address: u64| {
            let live =
                self.live.range(..=address).next_back().filter(|&(&start, &(bytes, ..))| start + bytes > address);
            let waits = self.pending.range(..=address).next_back().filter(|&(&start, (b, _))| start + b > address);
            live.is_some() || waits.is_some()
        };
        let (mut longest, mut length, mut expected) = (0, 0, 0);
        for (&start, &bytes) in self.mapped.iter().filter(|&(&start, _)| (start < large_start()) == small) {
            if start != expected {
                length = 0;
            }
            for address in (start..start + bytes).step_by(512) {
                length = if taken(address) { 0 } else { length + 512 };
                longest = longest.max(length);
            }
            expected = start + bytes;
        }
        longest
    }

    fn books(&self) -> Books {
        let physical: u64 = self.mapped.values().sum();
        let live: u64 = self.live.values().map(|&(_, requested, _)| requested).sum();
        let given: u64 = self.live.values().map(|&(bytes, ..)| bytes).sum();
        let pending: u64 = self.pending.values().map(|(bytes, _)| bytes).sum();
        Books { live, rounding: given - live, pending, cached: physical - given - pending, physical }
    }

    fn is_over(&self, wait: Wait) -> bool {
        self.passed[wait.stream.0 as usize] >= wait.position.0
    }
}

fn large_start() -> u64 {
    GRANULE + RANGE
}

fn new_heap() -> Heap {
    let mut heap = Heap::new(GRANULE);
    heap.add_range(1, GRANULE, RANGE);
    heap.add_range(SMALL_BYTES + 1, large_start(), RANGE);
    heap
}

fn apply(heap: &mut Heap, model: &mut Model, op: Op) -> Outcome {
    match op {
        Op::Allocate(requested) => {
            if let Some(placed) = place(heap, model, requested)? {
                return note(model, requested, placed);
            }
            let supply = Supply { spares: &[], create: Some(4 * GRANULE), blind: false };
            let Some(window) = heap.window(requested, supply, |_| GhostState::Gone) else { return Ok(()) };
            heap.hold(&window);
            for piece in &window.pieces {
                let (address, bytes) = piece.place();
                ensure(model.mapped.insert(address, bytes).is_none(), "memory is mapped twice")?;
                heap.arrive(&window, Mapping { address, bytes, page: PageId(address) }, Position(0));
            }
            let placed = heap.settle(&window, requested);
            note(model, requested, placed)
        }
        Op::AllocateCached(requested) => match place(heap, model, requested)? {
            Some(placed) => note(model, requested, placed),
            None => Ok(()),
        },
        Op::Free(nth, waits) => {
            let Some((&address, &(bytes, _, block))) = model.live.iter().nth(nth % model.live.len().max(1)) else {
                return Ok(());
            };
            let waits: Vec<Wait> = waits
                .into_iter()
                .map(|(stream, ahead)| Wait {
                    stream: StreamIndex(stream),
                    position: Position(model.passed[stream as usize] + ahead),
                })
                .collect();
            model.live.remove(&address);
            if !waits.is_empty() {
                model.pending.insert(address, (bytes, waits.clone()));
            }
            heap.free(Freed { block, since: Position(1), waits });
            Ok(())
        }
        Op::Progress(stream, more) => {
            model.passed[stream as usize] += more;
            Ok(())
        }
        Op::Retire => {
            let mut ended: Vec<u64> = heap
                .retire(Position(2), |wait| if model.is_over(wait) { Satisfied::Complete } else { Satisfied::No })
                .iter()
                .map(|retired| retired.address)
                .collect();
            ended.sort_unstable();
            let over: Vec<u64> = model
                .pending
                .iter()
                .filter(|(_, (_, waits))| waits.iter().all(|&wait| model.is_over(wait)))
                .map(|(&address, _)| address)
                .collect();
            ensure(ended == over, "other frees ended than the model says")?;
            over.iter().for_each(|address| drop(model.pending.remove(address)));
            Ok(())
        }
        Op::Unmap(most) => {
            for (mapping, _) in heap.wholly_free().into_iter().take(most) {
                heap.unmap(mapping);
                let known = model.mapped.remove(&mapping.address) == Some(mapping.bytes);
                ensure(known, "a handle that was never mapped")?;
            }
            Ok(())
        }
    }
}

/// Places a request, as the model predicts.
fn place(heap: &mut Heap, model: &Model, requested: u64) -> Result<Option<Placement>, String> {
    let bytes = rounded(requested).expect("the strategy asks for small numbers");
    let fits = model.longest_free(bytes <= SMALL_BYTES) >= bytes;
    let placed = heap.place(requested);
    ensure(placed.is_some() == fits, format!("a request of {requested} bytes: the model says that it fits: {fits}"))?;
    Ok(placed)
}

fn note(model: &mut Model, requested: u64, placed: Placement) -> Outcome {
    let end = placed.address + placed.bytes;
    ensure(placed.address.is_multiple_of(512) && placed.bytes >= requested, "alignment or size")?;
    let clear = model.live.iter().all(|(&start, &(bytes, ..))| end <= start || start + bytes <= placed.address)
        && model.pending.iter().all(|(&start, &(bytes, _))| end <= start || start + bytes <= placed.address);
    ensure(clear, "a block overlaps another")?;
    model.live.insert(placed.address, (placed.bytes, requested, placed.block));
    Ok(())
}
