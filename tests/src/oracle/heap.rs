//! The memory of one stream, as sorted lists of tiles that are searched from end to end.
//!
//! Rules: blocks of up to 1 MiB lie apart from larger ones; a request takes the smallest free tile that holds it, the
//! lowest address first; memory is mapped where the fewest bytes are missing, then where that is the cheapest, then at the
//! lowest address; a handle may go when it lies wholly in free memory.

/// Blocks start and end on multiples of this, bytes.
pub(super) const ROUNDING: u64 = 512;
/// The largest of the requests that live apart, bytes.
pub(super) const SMALL: u64 = 1 << 20;
/// No handle is larger, bytes, unless the granularity is.
const LARGEST_HANDLE: u64 = 128 << 20;
/// What it costs to map a handle, and to remove an old mapping, in the same unit.
const MAPPING: u64 = 33;
const REMOVING: u64 = 21;

/// What a tile is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Unmapped,
    /// Nobody but the owner may touch it before the owner's position `since`.
    Free {
        since: u64,
    },
    /// The same of the block that was freed last.
    Warm {
        since: u64,
    },
    /// The number of the free.
    Pending(u64),
    /// The number of the block.
    Live(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Tile {
    pub(super) start: u64,
    pub(super) bytes: u64,
    pub(super) kind: Kind,
}

impl Tile {
    pub(super) fn end(&self) -> u64 {
        self.start + self.bytes
    }
}

/// A stretch of addresses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Span {
    pub(super) start: u64,
    pub(super) bytes: u64,
}

impl Span {
    pub(super) fn end(&self) -> u64 {
        self.start + self.bytes
    }
}

/// A free that waits: for each place the position that has to be passed, in the order of places.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    pub(super) number: u64,
    pub(super) span: Span,
    pub(super) since: u64,
    pub(super) waits: Vec<(usize, u64)>,
}

/// A handle that nothing live lies in, and what has to be over before it may go.
#[derive(Debug)]
pub(super) struct Vacant {
    pub(super) handle: Span,
    pub(super) since: u64,
    pub(super) waits: Vec<(usize, u64)>,
}

/// The bytes of a heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Sums {
    pub(super) live: u64,
    pub(super) pending: u64,
    pub(super) cached: u64,
    pub(super) physical: u64,
}

/// Bytes rounded as blocks are.
pub(super) fn rounded(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(ROUNDING)
}

/// The largest handle that is made for a request, when there is time enough: a 64th of it, or a 16384th of all that is held.
pub(super) fn largest_handle(requested: u64, held: u64, granularity: u64) -> u64 {
    (requested / 64).max(held / 16_384).clamp(1, LARGEST_HANDLE).next_multiple_of(granularity)
}

/// How a request is met by mapping.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Growth {
    /// Where the block will be.
    pub(super) block: Span,
    /// Old mappings that are in the way.
    pub(super) removed: Vec<Span>,
    /// What is mapped.
    pub(super) handles: Vec<Span>,
}

impl Growth {
    pub(super) fn bytes(&self) -> u64 {
        self.handles.iter().map(|handle| handle.bytes).sum()
    }
}

/// A part of a run that is of one kind: free, nothing mapped, or an old mapping.
#[derive(Clone, Copy, Debug)]
struct Part {
    span: Span,
    mapped: bool,
    old: bool,
}

#[derive(Clone, Debug, Default)]
struct Area {
    ranges: Vec<Span>,
    tiles: Vec<Tile>,
    handles: Vec<Span>,
    /// What became free, in order, and since when.
    freed: Vec<(Span, u64)>,
    /// By the start of a handle, how much of that was before it was mapped.
    freed_before: std::collections::BTreeMap<u64, usize>,
}

impl Area {
    /// A stretch becomes free.
    fn set_free(&mut self, span: Span, since: u64) {
        self.freed.push((span, since));
        self.paint(span, Kind::Free { since });
    }

    /// The last of all uses of a handle that ended.
    fn last_use(&self, handle: Span) -> u64 {
        let since_mapped = &self.freed[self.freed_before[&handle.start]..];
        let inside = since_mapped.iter().filter(|(span, _)| span.start < handle.end() && handle.start < span.end());
        inside.map(|&(_, since)| since).max().unwrap_or(0)
    }

    /// Makes `span` one tile of a kind: whatever it was is cut out, then neighbours of one kind are joined.
    fn paint(&mut self, span: Span, kind: Kind) {
        let mut tiles = vec![Tile { start: span.start, bytes: span.bytes, kind }];
        for tile in &self.tiles {
            if tile.end() <= span.start || tile.start >= span.end() {
                tiles.push(*tile);
                continue;
            }
            if tile.start < span.start {
                tiles.push(Tile { bytes: span.start - tile.start, ..*tile });
            }
            if tile.end() > span.end() {
                tiles.push(Tile { start: span.end(), bytes: tile.end() - span.end(), ..*tile });
            }
        }
        tiles.sort_by_key(|tile| tile.start);
        self.tiles.clear();
        for tile in tiles {
            let begins_range = self.ranges.iter().any(|range| range.start == tile.start);
            match self.tiles.last_mut() {
                Some(last) if last.end() == tile.start && !begins_range => match (last.kind, tile.kind) {
                    (Kind::Unmapped, Kind::Unmapped) => last.bytes += tile.bytes,
                    (Kind::Free { since: a }, Kind::Free { since: b }) => {
                        last.bytes += tile.bytes;
                        last.kind = Kind::Free { since: a.max(b) };
                    }
                    _ => self.tiles.push(tile),
                },
                _ => self.tiles.push(tile),
            }
        }
    }

    /// What was freed last is free like the rest.
    fn cool(&mut self) {
        let warm: Vec<Tile> =
            self.tiles.iter().copied().filter(|tile| matches!(tile.kind, Kind::Warm { .. })).collect();
        for Tile { start, bytes, kind } in warm {
            let Kind::Warm { since } = kind else { continue };
            self.set_free(Span { start, bytes }, since);
        }
    }

    /// Neighbouring tiles of some kinds, as far as they go.
    fn runs(&self, wanted: impl Fn(Kind) -> bool) -> Vec<Vec<Tile>> {
        let mut runs: Vec<Vec<Tile>> = Vec::new();
        for &tile in self.tiles.iter().filter(|tile| wanted(tile.kind)) {
            let begins_range = self.ranges.iter().any(|range| range.start == tile.start);
            match runs.last_mut() {
                Some(run) if run[run.len() - 1].end() == tile.start && !begins_range => run.push(tile),
                _ => runs.push(vec![tile]),
            }
        }
        runs
    }

    /// Tiles that share bytes with a span.
    fn touching(&self, span: Span) -> impl Iterator<Item = &Tile> {
        self.tiles.iter().filter(move |tile| tile.start < span.end() && span.start < tile.end())
    }

    /// The parts of a run.
    fn parts(run: &[Tile], old: &[Span]) -> Vec<Part> {
        let mut parts = Vec::new();
        for tile in run {
            let mut at = tile.start;
            let mut push = |until: u64, mapped: bool, old: bool| {
                if at < until {
                    parts.push(Part { span: Span { start: at, bytes: until - at }, mapped, old });
                    at = until;
                }
            };
            if tile.kind == Kind::Unmapped {
                for old in old.iter().filter(|old| old.start >= tile.start && old.start < tile.end()) {
                    push(old.start, false, false);
                    push(old.end(), false, true);
                }
            }
            push(tile.end(), tile.kind != Kind::Unmapped, false);
        }
        parts
    }

    /// How to map so that `bytes` fit, in handles that are not above `largest`.
    fn growth(&self, bytes: u64, granularity: u64, largest: u64, old: &[Span]) -> Option<Growth> {
        let mut best: Option<((u64, u64, u64), Vec<Part>)> = None;
        for run in self.runs(|kind| matches!(kind, Kind::Free { .. } | Kind::Unmapped)) {
            let parts = Area::parts(&run, old);
            let (start, end) = (run[0].start, run[run.len() - 1].end());
            let edges = parts.iter().map(|part| part.span.start).chain([end]);
            let windows = edges.flat_map(|edge| [Some(edge), edge.checked_sub(bytes)]).flatten();
            for window in windows.filter(|&window| window >= start && window + bytes <= end) {
                // Whole granules are mapped.
                let (first, last) =
                    (window / granularity * granularity, (window + bytes).next_multiple_of(granularity));
                let inside: Vec<Part> = parts
                    .iter()
                    .copied()
                    .filter(|part| !part.mapped && part.span.start < window + bytes && window < part.span.end())
                    .collect();
                let missing: u64 =
                    inside.iter().map(|part| part.span.end().min(last) - part.span.start.max(first)).sum();
                let old = inside.iter().filter(|part| part.old).count() as u64;
                let mapped = missing.div_ceil(largest).max(inside.len() as u64 - old);
                let cost = mapped * MAPPING + old * REMOVING;
                let key = (missing, cost, window);
                if best.as_ref().is_none_or(|(least, _)| key < *least) {
                    let cut = |part: Part| {
                        let start = part.span.start.max(first);
                        Part { span: Span { start, bytes: part.span.end().min(last) - start }, ..part }
                    };
                    best = Some((key, inside.into_iter().map(cut).collect()));
                }
            }
        }
        let ((.., start), inside) = best?;
        let removed = inside.iter().filter(|part| part.old).map(|part| part.span.start).collect::<Vec<_>>();
        let removed = old.iter().copied().filter(|old| removed.iter().any(|&at| old.start <= at && at < old.end()));
        let mut handles: Vec<Span> = Vec::new();
        let mut at = 0;
        for part in &inside {
            at = at.max(part.span.start);
            // Parts that touch are one stretch; their handles know no border between them.
            let reach = inside.iter().skip_while(|next| next.span.start != part.span.start);
            let end =
                reach.fold(part.span.start, |end, next| if next.span.start == end { next.span.end() } else { end });
            while at < end {
                let bytes = largest.min(end - at);
                handles.push(Span { start: at, bytes });
                at += bytes;
            }
        }
        Some(Growth { block: Span { start, bytes }, removed: removed.collect(), handles })
    }
}

/// The memory of one stream.
#[derive(Debug)]
pub(super) struct Heap {
    granularity: u64,
    small: Area,
    large: Area,
    pub(super) pending: Vec<Pending>,
    next_number: u64,
}

impl Heap {
    pub(super) fn new(granularity: u64) -> Self {
        Heap { granularity, small: Area::default(), large: Area::default(), pending: Vec::new(), next_number: 0 }
    }

    fn area(&self, bytes: u64) -> &Area {
        if bytes <= SMALL { &self.small } else { &self.large }
    }

    fn area_mut(&mut self, bytes: u64) -> &mut Area {
        if bytes <= SMALL { &mut self.small } else { &mut self.large }
    }

    fn areas(&self) -> [&Area; 2] {
        [&self.small, &self.large]
    }

    /// Places a request; where, and the `since` of the bytes.
    pub(super) fn place(&mut self, requested: u64, block: usize) -> Option<(Span, u64)> {
        let bytes = rounded(requested);
        let area = self.area_mut(bytes);
        let warm =
            area.tiles.iter().find(|tile| matches!(tile.kind, Kind::Warm { .. } if tile.bytes == bytes)).copied();
        if let Some(Tile { start, kind: Kind::Warm { since }, .. }) = warm {
            let span = Span { start, bytes };
            area.paint(span, Kind::Live(block));
            return Some((span, since));
        }
        area.cool();
        let free = area.tiles.iter().filter(|tile| tile.bytes >= bytes);
        let (tile, since) = free
            .filter_map(|tile| if let Kind::Free { since } = tile.kind { Some((*tile, since)) } else { None })
            .min_by_key(|(tile, _)| (tile.bytes, tile.start))?;
        let span = Span { start: tile.start, bytes };
        area.paint(span, Kind::Live(block));
        Some((span, since))
    }

    /// Takes a block back.
    pub(super) fn free(&mut self, span: Span, since: u64, waits: Vec<(usize, u64)>) {
        if waits.is_empty() {
            let area = self.area_mut(span.bytes);
            area.cool();
            return area.paint(span, Kind::Warm { since });
        }
        let number = self.next_number;
        self.next_number += 1;
        self.area_mut(span.bytes).paint(span, Kind::Pending(number));
        self.pending.push(Pending { number, span, since, waits });
    }

    /// Ends a pending free.
    pub(super) fn end(&mut self, number: u64, since: u64) {
        let at = self.pending.iter().position(|pending| pending.number == number).expect("it is pending");
        let span = self.pending.remove(at).span;
        self.area_mut(span.bytes).set_free(span, since);
    }

    /// What the pending frees wait for: for each place the last position.
    pub(super) fn awaited(&self) -> Vec<(usize, u64)> {
        latest(self.pending.iter().flat_map(|pending| pending.waits.iter().copied()))
    }

    /// The waits that suffice without mapping: those of the window whose last free is the oldest, then of the one with
    /// the fewest frees, then of the lowest.
    pub(super) fn sufficient(&mut self, requested: u64) -> Option<Vec<(usize, u64)>> {
        let bytes = rounded(requested);
        self.area_mut(bytes).cool();
        let mut best: Option<(u64, usize, Vec<u64>)> = None;
        for run in self.area(bytes).runs(|kind| matches!(kind, Kind::Free { .. } | Kind::Pending(_))) {
            for first in &run {
                // Beyond what is needed of it, a window says nothing.
                let inside = run.iter().filter(|tile| tile.start >= first.start && tile.start < first.start + bytes);
                if run[run.len() - 1].end() < first.start + bytes {
                    continue;
                }
                let numbers: Vec<u64> = inside
                    .filter_map(|tile| if let Kind::Pending(number) = tile.kind { Some(number) } else { None })
                    .collect();
                let last = numbers.iter().copied().max().unwrap_or(0);
                if best.as_ref().is_none_or(|(oldest, fewest, _)| (last, numbers.len()) < (*oldest, *fewest)) {
                    best = Some((last, numbers.len(), numbers));
                }
            }
        }
        let (.., numbers) = best?;
        let chosen = self.pending.iter().filter(|pending| numbers.contains(&pending.number));
        Some(latest(chosen.flat_map(|pending| pending.waits.iter().copied())))
    }

    /// How to map so that a request fits, in handles that are not above `largest`; `old` is where old mappings are.
    pub(super) fn growth(&self, requested: u64, largest: u64, old: &[Span]) -> Option<Growth> {
        self.area(rounded(requested)).growth(rounded(requested), self.granularity, largest, old)
    }

    /// Puts a block where it was planned, with the `since` of the bytes.
    pub(super) fn place_at(&mut self, span: Span, block: usize) -> u64 {
        let area = self.area_mut(span.bytes);
        let free = area.tiles.iter().find(|tile| tile.start <= span.start && span.end() <= tile.end());
        let Some(Kind::Free { since }) = free.map(|tile| tile.kind) else { unreachable!("it was mapped") };
        area.paint(span, Kind::Live(block));
        since
    }

    pub(super) fn add_range(&mut self, requested: u64, range: Span) {
        let area = self.area_mut(rounded(requested));
        area.ranges.push(range);
        area.paint(range, Kind::Unmapped);
    }

    /// A handle was mapped for a request.
    pub(super) fn map(&mut self, requested: u64, handle: Span) {
        let area = self.area_mut(rounded(requested));
        area.handles.push(handle);
        area.handles.sort();
        area.freed_before.insert(handle.start, area.freed.len());
        area.paint(handle, Kind::Free { since: 0 });
    }

    pub(super) fn unmap(&mut self, handle: Span) {
        for area in [&mut self.small, &mut self.large] {
            if let Some(at) = area.handles.iter().position(|known| *known == handle) {
                area.handles.remove(at);
                area.paint(handle, Kind::Unmapped);
            }
        }
    }

    /// Handles that nothing live lies in, those of small requests first, in the order of addresses.
    pub(super) fn vacant(&mut self) -> Vec<Vacant> {
        self.small.cool();
        self.large.cool();
        let mut vacant = Vec::new();
        for area in self.areas() {
            for &handle in &area.handles {
                if area.touching(handle).any(|tile| matches!(tile.kind, Kind::Live(_))) {
                    continue;
                }
                let (mut since, mut waits) = (0, Vec::new());
                for tile in area.touching(handle) {
                    match tile.kind {
                        Kind::Free { since: at } => since = since.max(at.min(area.last_use(handle))),
                        Kind::Pending(number) => {
                            let pending = self.pending.iter().find(|pending| pending.number == number);
                            let pending = pending.expect("its tile is there");
                            since = since.max(pending.since);
                            waits.extend(pending.waits.iter().copied());
                        }
                        Kind::Live(_) | Kind::Warm { .. } | Kind::Unmapped => unreachable!("it is vacant and mapped"),
                    }
                }
                vacant.push(Vacant { handle, since, waits: latest(waits) });
            }
        }
        vacant
    }

    /// Bytes of handles that something live lies in.
    pub(super) fn occupied(&self) -> u64 {
        let live = |area: &&Area| -> u64 {
            let occupied = area
                .handles
                .iter()
                .filter(|&&handle| area.touching(handle).any(|tile| matches!(tile.kind, Kind::Live(_))));
            occupied.map(|handle| handle.bytes).sum()
        };
        self.areas().iter().map(live).sum()
    }

    /// The bytes that would have to be mapped for a request if everything pending were over and every vacant handle gone;
    /// `None` when no range has the room.
    pub(super) fn least_growth(&mut self, requested: u64) -> Option<u64> {
        let mut bare = Heap::new(self.granularity);
        for (area, source) in [(&mut bare.small, &self.small), (&mut bare.large, &self.large)] {
            area.ranges.clone_from(&source.ranges);
            area.tiles.clone_from(&source.tiles);
            let pending = source.tiles.iter().filter(|tile| matches!(tile.kind, Kind::Pending(_)));
            for tile in pending {
                area.paint(Span { start: tile.start, bytes: tile.bytes }, Kind::Free { since: 0 });
            }
        }
        let vacant: Vec<Span> = self.vacant().iter().map(|vacant| vacant.handle).collect();
        for (area, source) in [(&mut bare.small, &self.small), (&mut bare.large, &self.large)] {
            for &handle in source.handles.iter().filter(|handle| vacant.contains(handle)) {
                area.paint(handle, Kind::Unmapped);
            }
        }
        Some(bare.growth(requested, self.granularity, &[])?.bytes())
    }

    pub(super) fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        for area in self.areas() {
            for tile in &area.tiles {
                match tile.kind {
                    Kind::Unmapped => {}
                    Kind::Free { .. } | Kind::Warm { .. } => sums.cached += tile.bytes,
                    Kind::Pending(_) => sums.pending += tile.bytes,
                    Kind::Live(_) => sums.live += tile.bytes,
                }
            }
            sums.physical += area.handles.iter().map(|handle| handle.bytes).sum::<u64>();
        }
        sums
    }

    /// The blocks that are given out.
    pub(super) fn live_blocks(&self) -> Vec<usize> {
        let tiles = self.areas().into_iter().flat_map(|area| &area.tiles);
        tiles.filter_map(|tile| if let Kind::Live(block) = tile.kind { Some(block) } else { None }).collect()
    }

    pub(super) fn largest_free(&mut self) -> u64 {
        self.small.cool();
        self.large.cool();
        let free = self.areas().into_iter().flat_map(|area| &area.tiles);
        free.filter(|tile| matches!(tile.kind, Kind::Free { .. })).map(|tile| tile.bytes).max().unwrap_or(0)
    }
}

/// For each place the last position, in the order of places.
pub(super) fn latest(waits: impl IntoIterator<Item = (usize, u64)>) -> Vec<(usize, u64)> {
    let mut last = std::collections::BTreeMap::new();
    for (place, position) in waits {
        let known = last.entry(place).or_insert(position);
        *known = position.max(*known);
    }
    last.into_iter().collect()
}
