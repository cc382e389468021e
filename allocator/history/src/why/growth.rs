//! How live memory goes up: by a little with each iteration, in teeth, or once.
//!
//! The least that each iteration held is what counts, so that it does not matter where in an iteration it is cut, nor
//! how large its batch was.

use std::collections::{BTreeMap, BTreeSet};

use crate::read::{EventAction, Loaded, Trace};

use super::iterations::Iterations;
use super::verdict::{Growth, SiteBytes};
use crate::state::curves::Curves;
use crate::state::memory::{Held, Memory};
use crate::state::sites::{self, Key};

/// The least live bytes of each iteration, and what they say.
#[derive(Clone, Debug)]
pub(super) struct Trend {
    pub(super) iterations: Iterations,
    /// One for each start; the last iteration is not over.
    pub(super) floors: Vec<u64>,
    /// First iteration of the part that the line goes through.
    pub(super) from: usize,
    pub(super) slope: f64,
    pub(super) fit: f64,
    pub(super) shape: Shape,
}

/// The form of the growth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shape {
    /// None that is more than noise.
    Flat,
    /// Along a line.
    Line,
    /// Up along lines, and down at once: the iteration of the last drop, and how many there were.
    Teeth {
        /// Index of the iteration after the last drop.
        last: usize,
        /// Number of drops.
        drops: usize,
    },
    /// Up once: the first iteration on the new level.
    Step(usize),
}

/// From which fit on a line is a line.
const GOOD_FIT: f64 = 0.9;
/// Iterations that nobody marked have to be so many.
const MANY: usize = 8;
/// Most lines that are told.
const MOST_SITES: usize = 5;

impl Trend {
    /// The trend before a row.
    pub(super) fn of(iterations: Iterations, trace: &Trace, curves: &Curves, row: usize) -> Self {
        let ends = iterations.starts.iter().skip(1).copied().chain([row + 1]);
        let floor = |(&start, end): (&usize, usize)| curves.live[start..end].iter().copied().min().unwrap_or(0);
        let mut floors: Vec<u64> = iterations.starts.iter().zip(ends).map(floor).collect();
        // The last one is not over, so its least may be still to come.
        if floors.len() > 4 && floors[floors.len() - 1] > 2 * floors[floors.len() - 2] {
            floors.pop();
        }
        let (whole, late) = (line(&floors), line(&floors[floors.len() / 2..]));
        let use_late = whole.1 < GOOD_FIT && late.1 >= GOOD_FIT && floors.len() >= 8;
        let (from, (slope, fit)) = if use_late { (floors.len() / 2, late) } else { (0, whole) };
        let trusted = iterations.marked || floors.len() >= MANY && gives_back(trace, iterations.starts[0], row);
        let shape = if trusted { shape(&floors, from, slope, fit) } else { Shape::Flat };
        Self { iterations, floors, from, slope, fit, shape }
    }

    /// Bytes that came since the beginning of the growth.
    pub(super) fn gained(&self) -> u64 {
        let last = self.floors.last().copied().unwrap_or(0);
        let from = match self.shape {
            Shape::Flat => return 0,
            // By the line, as the first iterations make what is theirs once.
            Shape::Line => {
                let steps = (self.floors.len() - 1 - self.from) as f64;
                return ((self.slope * steps).round() as u64).min(last);
            }
            Shape::Teeth { last, .. } => self.floors[last],
            Shape::Step(at) => self.floors[at - 1],
        };
        last.saturating_sub(from)
    }

    /// The first row of the growth.
    pub(super) fn since_row(&self) -> usize {
        self.iterations.starts[match self.shape {
            Shape::Flat | Shape::Line => self.from,
            Shape::Teeth { last, .. } => last,
            // The least of an iteration shows what the one before has kept.
            Shape::Step(at) => at - 1,
        }]
    }

    /// What is told of it. `headroom` is what memory is left, if that is known.
    pub(super) fn told(
        &self,
        loaded: &Loaded,
        index: usize,
        memory: &Memory,
        row: usize,
        headroom: Option<u64>,
    ) -> Growth {
        let (sites, freed_again) = self.keepers(loaded, index, memory, row);
        let iterations_left = headroom.filter(|_| self.slope >= 1.0 && self.shape != Shape::Flat);
        let iterations_left = iterations_left.map(|bytes| (bytes as f64 / self.slope) as u64);
        let (times, starts) = (loaded.devices[index].trace.times_us(), &self.iterations.starts);
        let elapsed = times.get(starts[starts.len() - 1]).zip(times.get(starts[0]));
        let elapsed = elapsed.map_or(0, |(end, start)| end.saturating_sub(*start));
        let each_us = elapsed / (starts.len() as u64 - 1).max(1);
        Growth {
            iteration: self.iterations.by.clone(),
            iterations: self.floors.len() as u64,
            bytes_per_iteration: self.slope as i64,
            fit: self.fit,
            gained_bytes: self.gained(),
            sites,
            freed_again,
            iterations_left,
            time_left_us: iterations_left.filter(|_| each_us > 0).map(|left| left.saturating_mul(each_us)),
        }
    }

    /// Which stacks have blocks left from most of the iterations. The second value is how often the first stack's
    /// blocks of those iterations were freed again.
    fn keepers(&self, loaded: &Loaded, index: usize, memory: &Memory, row: usize) -> (Vec<SiteBytes>, u64) {
        let (since, starts) = (self.since_row(), &self.iterations.starts);
        let lately = |held: &Held| held.born.is_some_and(|born| born as usize >= since) && !held.pending;
        let of = starts.iter().filter(|&&start| start >= since).count();
        let mut spread: BTreeMap<Key, BTreeSet<usize>> = Default::default();
        for held in memory.blocks.values().filter(|held| lately(held)) {
            let born = held.born.expect("only such blocks are looked at") as usize;
            spread.entry(sites::key(held)).or_default().insert(starts.partition_point(|&start| start <= born));
        }
        let often = |key: &Key| matches!(self.shape, Shape::Step(_)) || 2 * spread[key].len() >= of.max(2);
        let keepers: Vec<_> = sites::by_stack(memory, lately).into_iter().filter(|(key, ..)| often(key)).collect();
        let mut told: Vec<_> =
            keepers.iter().take(MOST_SITES).map(|&of| sites::site(loaded, of.0, of.1, of.2)).collect();
        let Some((&(key, bytes, _), site)) = keepers.first().zip(told.first_mut()) else { return (told, 0) };
        let mut size = key.1;
        // One stack often makes temporary blocks too. If most of what it keeps has one size, that is what is counted.
        if let Some((usual, blocks)) = usual_size(memory, key, lately)
            && 2 * usual * blocks > bytes
        {
            (size, site.bytes, site.blocks) = (usual, usual * blocks, blocks);
        }
        let trace = &loaded.devices[index].trace;
        let is_it = |row: &usize| {
            trace.action(*row) == EventAction::Alloc
                && trace.stacks()[*row] == key.0
                && (size == 0 || trace.bytes()[*row] == size)
        };
        let made = (since..row.min(trace.len())).filter(is_it).count() as u64;
        let freed = made.saturating_sub(site.blocks);
        (told, freed)
    }
}

/// The size that makes up the most bytes of a stack, and its blocks.
fn usual_size(memory: &Memory, key: Key, wanted: impl Fn(&Held) -> bool) -> Option<(u64, u64)> {
    let mut sizes: BTreeMap<u64, u64> = BTreeMap::new();
    for held in memory.blocks.values().filter(|held| wanted(held) && sites::key(held) == key) {
        *sizes.entry(held.requested).or_default() += 1;
    }
    sizes.into_iter().max_by_key(|(size, blocks)| size * blocks)
}

/// Whether at least a fourth of what is allocated between rows is freed there too. In an iteration much is; when layers
/// are made, or keep what their backward pass will need, next to nothing is.
fn gives_back(trace: &Trace, start: usize, end: usize) -> bool {
    let (mut taken, mut given) = (0_u64, 0_u64);
    for row in start..end.min(trace.len()) {
        let sum = match trace.action(row) {
            EventAction::Alloc => &mut taken,
            EventAction::FreeCompleted | EventAction::Free => &mut given,
            _ => continue,
        };
        *sum = sum.saturating_add(trace.bytes()[row]);
    }
    given >= taken / 4
}

/// Slope and fit of the line through values at equal distances.
fn line(values: &[u64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().map(|&value| value as f64).sum::<f64>() / count.max(1.0);
    let middle = (count - 1.0) / 2.0;
    let (mut xy, mut xx, mut yy) = (0.0, 0.0, 0.0);
    for (index, &value) in values.iter().enumerate() {
        let (x, y) = (index as f64 - middle, value as f64 - mean);
        (xy, xx, yy) = (xy + x * y, xx + x * x, yy + y * y);
    }
    if xx == 0.0 || yy == 0.0 { (0.0, 0.0) } else { (xy / xx, xy * xy / (xx * yy)) }
}

fn shape(floors: &[u64], from: usize, slope: f64, fit: f64) -> Shape {
    let (least, most) = (floors.iter().min().copied().unwrap_or(0), floors.iter().max().copied().unwrap_or(0));
    let range = most - least;
    // What is not one part in fifty of the memory is noise.
    if range == 0 || range < most / 50 {
        return Shape::Flat;
    }
    let steps = floors.windows(2).map(|pair| pair[1] as i64 - pair[0] as i64);
    let rises = steps.clone().filter(|&step| step > 0).count();
    let drops: Vec<usize> = steps
        .clone()
        .enumerate()
        .filter(|&(_, step)| -step >= (range / 4) as i64)
        .map(|(index, _)| index + 1)
        .collect();
    let mostly_up = rises >= 3 * drops.len() && 10 * rises >= 6 * (floors.len() - 1 - drops.len());
    if let Some(&last) = drops.last().filter(|_| mostly_up) {
        return Shape::Teeth { last, drops: drops.len() };
    }
    let part = &floors[from..];
    let rising = part.windows(2).filter(|pair| pair[1] > pair[0]).count();
    if slope > 0.0 && fit >= GOOD_FIT && part.len() >= 3 && 10 * rising >= 7 * (part.len() - 1) {
        return Shape::Line;
    }
    let (at, rise) = floors
        .windows(2)
        .enumerate()
        .map(|(index, pair)| (index + 1, pair[1].saturating_sub(pair[0])))
        .max_by_key(|&(index, rise)| (rise, std::cmp::Reverse(index)))
        .unwrap_or((0, 0));
    let rest = range - rise.min(range);
    // A first iteration makes what it keeps; only what comes after two alike is a change.
    if at >= 3 && rest <= rise / 4 { Shape::Step(at) } else { Shape::Flat }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape_of(floors: &[u64]) -> Shape {
        let (slope, fit) = line(floors);
        shape(floors, 0, slope, fit)
    }

    #[test]
    fn lines_teeth_and_steps_are_told_apart() {
        assert_eq!(shape_of(&[10, 20, 30, 40]), Shape::Line);
        assert_eq!(shape_of(&[10, 20, 20, 20, 20, 20]), Shape::Flat, "what the first iteration made");
        assert_eq!(shape_of(&[100, 101, 100, 101, 100]), Shape::Flat);
        assert_eq!(shape_of(&[20, 20, 20, 20, 60, 60, 60]), Shape::Step(4));
        assert_eq!(shape_of(&[10, 20, 30, 40, 12, 22, 32, 42]), Shape::Teeth { last: 4, drops: 1 });
        assert_eq!(shape_of(&[10, 50, 10, 50, 10, 50, 10]), Shape::Flat, "noise is no growth");
        assert_eq!(shape_of(&[5]), Shape::Flat);
    }

    #[test]
    fn a_line_is_fitted() {
        let (slope, fit) = line(&[3, 5, 7, 9]);
        assert!((slope - 2.0).abs() < 1e-9 && (fit - 1.0).abs() < 1e-9);
        assert_eq!(line(&[7, 7, 7]), (0.0, 0.0));
    }
}
