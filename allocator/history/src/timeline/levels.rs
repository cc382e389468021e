//! Levels of detail: what a page draws of a million events, without looking at each.
//!
//! A point stands for a bucket of moments, and names the one of them at which the most was used. Its values are those of
//! that moment, for each series, so a value that is drawn was there. The levels above choose among the points of the
//! first one. Between points a page has only to follow the events from one of them on.
//!
//! Invariants: moments of points ascend; a level's points are among those of the level below; the values of a point add up
//! to what is mapped at its moment.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::sums::What;
use super::{Holder, Sums, Timeline};

/// Most points of the first level.
const MOST_POINTS: u32 = 16_384;
/// Least moments that a point of the first level stands for.
const LEAST_BUCKET: u32 = 64;
/// Points of a level above which another one is made.
const ENOUGH_POINTS: usize = 512;
/// Most lanes that have series of their own; all others share the last place.
const MOST_PLACES: usize = 64;
/// Most holders that have series of their own.
const MOST_HOLDERS: usize = 48;
/// Most series of holders: one for each place at which one allocates.
const MOST_HOLDER_SERIES: usize = 160;

/// What a series shows, of one place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Shown {
    /// What one holds, as it asked for it.
    Holder(Holder),
    /// What all hold that have no series of their own.
    Others,
    /// What blocks that are held take beyond what was asked for.
    Rounding,
    /// Blocks that were given back and wait.
    Pending,
    /// Mapped memory that no block takes. Below 0 only where a trace contradicts itself.
    Cached,
}

/// A series of values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Series {
    /// The place: see [`Levels::places`].
    pub place: usize,
    /// What of it.
    pub shown: Shown,
}

/// A moment that stands for the moments of its bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Point {
    /// The first one at which the most is used, bytes that are not free.
    pub moment: u32,
    /// The least that is used in the bucket, bytes.
    pub low_bytes: u64,
}

/// The levels of a timeline.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Levels {
    places: Vec<usize>,
    series: Vec<Series>,
    bucket_moments: u32,
    points: Vec<Point>,
    values: Vec<i64>,
    coarser: Vec<Vec<(u32, u64)>>,
    peak: u32,
}

impl Levels {
    /// The levels of a timeline.
    #[must_use]
    pub fn of(timeline: &Timeline) -> Self {
        let sums = timeline.sums(|_| true);
        let moments = sums.len() as u32;
        let bucket_moments = moments.div_ceil(MOST_POINTS).next_power_of_two().max(LEAST_BUCKET);
        let points: Vec<Point> =
            (0..).step_by(bucket_moments as usize).zip(sums.chunks(bucket_moments as usize)).map(highest).collect();
        let mut levels = Self {
            places: places(timeline),
            series: Vec::new(),
            bucket_moments,
            coarser: coarser(&points, &sums),
            points,
            values: Vec::new(),
            peak: highest((0, &sums)).moment,
        };
        levels.choose_series(timeline);
        levels.fill(timeline);
        levels
    }

    /// The place of each lane. Lanes have places of their own but for the smallest of very many, which share the last.
    #[must_use]
    pub fn places(&self) -> &[usize] {
        &self.places
    }

    /// The series: for each place its holders, the largest first, then the rest in the order of [`Shown`].
    #[must_use]
    pub fn series(&self) -> &[Series] {
        &self.series
    }

    /// Moments that a point of the first level stands for.
    #[must_use]
    pub fn bucket_moments(&self) -> u32 {
        self.bucket_moments
    }

    /// The points of the first level.
    #[must_use]
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// The values of a point of the first level, bytes, by series. It panics if there is no such point.
    #[must_use]
    pub fn values(&self, point: usize) -> &[i64] {
        &self.values[point * self.series.len()..][..self.series.len()]
    }

    /// The levels above: for each bucket twice as long as those below the index of its point, and the least that is used
    /// in it, bytes.
    #[must_use]
    pub fn coarser(&self) -> &[Vec<(u32, u64)>] {
        &self.coarser
    }

    /// The first moment at which the most is used.
    #[must_use]
    pub fn peak(&self) -> u32 {
        self.peak
    }

    /// Gives series to those that ever hold the most.
    fn choose_series(&mut self, timeline: &Timeline) {
        let places = self.places.iter().max().map_or(0, |last| last + 1);
        let most = timeline.most_held();
        let mut places_of: BTreeMap<Holder, Vec<usize>> = BTreeMap::new();
        for source in &timeline.sources {
            places_of.entry(source.holder).or_default().push(self.places[source.lane]);
        }
        let mut by_place = vec![Vec::new(); places];
        let mut left = MOST_HOLDER_SERIES;
        for (holder, _) in most.into_iter().take(MOST_HOLDERS) {
            let mut of = places_of.remove(&holder).unwrap_or_default();
            of.sort_unstable();
            of.dedup();
            match left.checked_sub(of.len()) {
                Some(rest) => left = rest,
                None => break,
            }
            of.into_iter().for_each(|place| by_place[place].push(Shown::Holder(holder)));
        }
        for (place, mut shown) in by_place.into_iter().enumerate() {
            shown.extend([Shown::Others, Shown::Rounding, Shown::Pending, Shown::Cached]);
            self.series.extend(shown.into_iter().map(|shown| Series { place, shown }));
        }
    }

    /// Follows all changes, and takes the values down at each point.
    fn fill(&mut self, timeline: &Timeline) {
        let index = (0..).zip(&self.series).map(|(index, series)| ((series.place, series.shown), index));
        let index: BTreeMap<(usize, Shown), usize> = index.collect();
        let of_source = timeline.sources.iter().map(|source| {
            let place = self.places[source.lane];
            let own = index.get(&(place, Shown::Holder(source.holder)));
            *own.unwrap_or_else(|| &index[&(place, Shown::Others)])
        });
        let of_source: Vec<usize> = of_source.collect();
        let at = |lane: usize, shown: Shown| index[&(self.places[lane], shown)];
        let mut now = vec![0_i128; self.series.len()];
        let mut values = Vec::with_capacity(self.points.len() * now.len());
        let changes = timeline.changes();
        let mut changes = changes.iter().peekable();
        for point in &self.points {
            while let Some(change) = changes.next_if(|change| change.moment <= point.moment) {
                match change.what {
                    What::Mapped(index) | What::Unmapped(index) => {
                        let range = &timeline.mapped[index as usize];
                        let sign = if change.what == What::Mapped(index) { 1 } else { -1 };
                        now[at(range.lane, Shown::Cached)] += sign * i128::from(range.bytes);
                    }
                    What::Born(index) | What::Freed(index) | What::Gone(index) => {
                        let block = &timeline.blocks[index as usize];
                        let lane = timeline.lane_of(block);
                        let (asked, bytes) = (i128::from(block.requested_bytes), i128::from(block.bytes));
                        let (held, pending) = match change.what {
                            What::Born(_) => (1, 0),
                            What::Freed(_) => (-1, 1),
                            _ => (0, -1),
                        };
                        now[of_source[block.source]] += held * asked;
                        now[at(lane, Shown::Rounding)] += held * (bytes - asked);
                        now[at(lane, Shown::Pending)] += pending * bytes;
                        now[at(lane, Shown::Cached)] -= (held + pending) * bytes;
                    }
                }
            }
            values.extend(now.iter().map(|&value| value.clamp(i64::MIN.into(), i64::MAX.into()) as i64));
        }
        self.values = values;
    }
}

/// The point of a bucket: its first moment, and the sums at each of them.
fn highest((start, sums): (u32, &[Sums])) -> Point {
    let used = || sums.iter().map(Sums::used_bytes);
    let most = used().max().unwrap_or(0);
    let offset = used().position(|used| used == most).unwrap_or(0);
    Point { moment: start + offset as u32, low_bytes: used().min().unwrap_or(0) }
}

/// Levels above the first, until one has few enough points.
fn coarser(points: &[Point], sums: &[Sums]) -> Vec<Vec<(u32, u64)>> {
    let mut below: Vec<(u32, u64)> = (0..).zip(points).map(|(index, point)| (index, point.low_bytes)).collect();
    let mut levels = Vec::new();
    while below.len() > ENOUGH_POINTS {
        let used = |point: u32| sums[points[point as usize].moment as usize].used_bytes();
        let join = |pair: &[(u32, u64)]| {
            let &(point, _) =
                pair.iter().max_by_key(|(point, _)| (used(*point), Reverse(*point))).expect("chunks hold one");
            (point, pair.iter().map(|pair| pair.1).min().unwrap_or(0))
        };
        let level: Vec<_> = below.chunks(2).map(join).collect();
        levels.push(level.clone());
        below = level;
    }
    levels
}

/// A place for each lane; those that ever map the least share one if there are too many.
fn places(timeline: &Timeline) -> Vec<usize> {
    let lanes = timeline.lanes.len();
    if lanes <= MOST_PLACES {
        return (0..lanes).collect();
    }
    let mut mapped = vec![0_u64; lanes];
    timeline.mapped.iter().for_each(|range| mapped[range.lane] = mapped[range.lane].saturating_add(range.bytes));
    let mut order: Vec<usize> = (0..lanes).collect();
    order.sort_by_key(|&lane| (Reverse(mapped[lane]), lane));
    let mut own = order[..MOST_PLACES - 1].to_vec();
    own.sort_unstable();
    let place = |lane| own.binary_search(&lane).unwrap_or(MOST_PLACES - 1);
    (0..lanes).map(place).collect()
}
