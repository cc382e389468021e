//! Iterations of a program, found in its trace.
//!
//! From marks on the time line if there are any, else from the spans of this project's recorder, else from the
//! allocation that comes back most regularly, at the longest distance that several stacks agree on.

use std::collections::BTreeMap;

use crate::{
    StackId, Stage,
    read::{EventAction, Loaded, LoadedDevice},
};

/// Where iterations begin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Iterations {
    /// How they were found.
    pub(super) by: String,
    /// The first row of each, ascending.
    pub(super) starts: Vec<usize>,
    /// Whether the program marked them. What merely comes back may be the layers of one pass.
    pub(super) marked: bool,
}

/// Fewer are no iterations.
const FEWEST: usize = 3;
/// Largest relative deviation of the distances at which something comes back.
const REGULAR: f64 = 0.5;

impl Iterations {
    /// Those before a row.
    pub(super) fn before(loaded: &Loaded, index: usize, row: usize) -> Option<Self> {
        let device = &loaded.devices[index];
        marked(loaded, device, row)
            .or_else(|| spanned(loaded, device, row))
            .or_else(|| regular(loaded, device, row))
            .filter(|found| found.starts.len() >= FEWEST)
    }
}

fn marked(loaded: &Loaded, device: &LoadedDevice, row: usize) -> Option<Iterations> {
    if !device.trace.is_timed() {
        return None;
    }
    ["ProfilerStep#", "Optimizer.step#"].into_iter().find_map(|prefix| {
        let of = loaded
            .annotations
            .iter()
            .filter(|mark| mark.stage == Stage::Start && loaded.symbols.text(mark.name).starts_with(prefix));
        let times = device.trace.times_us();
        let mut starts: Vec<_> = of.map(|mark| times.partition_point(|&time| time < mark.time_us)).collect();
        starts.sort_unstable();
        starts.dedup();
        starts.retain(|&start| start < row);
        let name = prefix.trim_end_matches('#');
        (starts.len() >= FEWEST).then(|| Iterations { by: format!("from {name} to {name}"), starts, marked: true })
    })
}

/// Spans whose name counts, such as `step i=3`.
fn spanned(loaded: &Loaded, device: &LoadedDevice, row: usize) -> Option<Iterations> {
    let paths = &loaded.recorder.as_ref()?.span_paths;
    let counted = |text: &str| {
        let is_step = |part: &str| {
            let word = part.split([' ', '=', '#']).next().unwrap_or_default();
            matches!(word, "step" | "iteration" | "iter" | "train_step") && part.chars().any(|c| c.is_ascii_digit())
        };
        text.split('/').find(|part| is_step(part)).map(str::to_owned)
    };
    let mut numbers = BTreeMap::new();
    let number_of: Vec<Option<usize>> = paths
        .iter()
        .map(|&path| {
            let part = counted(loaded.symbols.text(path))?;
            let next = numbers.len();
            Some(*numbers.entry(part).or_insert(next))
        })
        .collect();
    let (mut starts, mut current) = (Vec::new(), None);
    for at in 0..row.min(device.trace.len()) {
        let number = number_of.get(device.trace.span(at) as usize).copied().flatten();
        if number.is_some() && number != current {
            (current, _) = (number, starts.push(at));
        }
    }
    (starts.len() >= FEWEST).then(|| Iterations { by: "from span to span of a step".into(), starts, marked: true })
}

#[derive(Clone, Copy, Default)]
struct Returns {
    count: u32,
    first: u32,
    last: u32,
    squares: f64,
}

impl Returns {
    fn add(&mut self, row: u32) {
        if self.count == 0 {
            self.first = row;
        } else {
            self.squares += f64::from(row - self.last).powi(2);
        }
        (self.count, self.last) = (self.count + 1, row);
    }

    /// Deviation of the distances, relative to their mean.
    fn irregularity(&self) -> f64 {
        let gaps = f64::from(self.count.saturating_sub(1)).max(1.0);
        let mean = f64::from(self.last - self.first) / gaps;
        ((self.squares / gaps / mean.powi(2).max(1e-9)) - 1.0).max(0.0).sqrt()
    }
}

/// What comes back: stacks, or sizes where no stacks were recorded.
fn regular(loaded: &Loaded, device: &LoadedDevice, row: usize) -> Option<Iterations> {
    let trace = &device.trace;
    let has_stacks = trace.stacks().iter().any(|&stack| stack != StackId::EMPTY);
    let mut sizes: BTreeMap<u64, u32> = BTreeMap::new();
    let mut thing = |at: usize| -> usize {
        if has_stacks {
            return trace.stacks()[at].0 as usize;
        }
        let next = sizes.len() as u32;
        *sizes.entry(trace.bytes()[at]).or_insert(next) as usize
    };
    let mut returns = vec![Returns::default(); if has_stacks { loaded.symbols.stacks() } else { 0 }];
    let rows = row.min(trace.len());
    let mut things = Vec::new();
    for at in (0..rows).filter(|&at| trace.action(at) == EventAction::Alloc) {
        let number = thing(at);
        if number >= returns.len() {
            returns.resize(number + 1, Returns::default());
        }
        returns[number].add(at as u32);
        things.push((at, number as u32));
    }
    let spans = |found: &Returns| 2 * (found.last - found.first) as usize >= rows;
    let regular = |found: &Returns| found.count as usize > FEWEST && spans(found) && found.irregularity() < REGULAR;
    let mut votes: BTreeMap<u32, u32> = BTreeMap::new();
    for found in returns.iter().filter(|found| regular(found)) {
        *votes.entry(found.count).or_default() += 1;
    }
    let most = votes.values().copied().max()?;
    // The longest distance that is not one stack's alone, unless nobody agrees.
    let (&count, _) = votes.iter().find(|&(_, &votes)| 4 * votes >= most)?;
    let chosen = returns.iter().enumerate().filter(|(_, found)| regular(found) && found.count == count);
    let (number, _) = chosen.min_by_key(|(_, found)| found.first)?;
    let starts = things.iter().filter(|&&(_, of)| of as usize == number).map(|&(at, _)| at).collect();
    Some(Iterations { by: "from one allocation of a line to its next".into(), starts, marked: false })
}
