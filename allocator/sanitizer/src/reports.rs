//! Races that were found: each pair of lines once, and no more than a bound.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::race::{Race, RaceKind, Side};

type Line = Option<(&'static str, u32, u32)>;
type SideKey = (Cow<'static, str>, Option<Arc<str>>, Line);

/// What makes two reports the same for a reader.
type Key = (RaceKind, SideKey, SideKey);

/// Races that nobody has taken yet.
pub(crate) struct Reports {
    most: usize,
    races: Vec<Race>,
    known: BTreeSet<Key>,
}

impl Reports {
    pub(crate) fn new(most: usize) -> Self {
        Reports { most, races: Vec::new(), known: BTreeSet::new() }
    }

    /// Keeps a race, unless it is there already or there are too many. Whether it was kept.
    pub(crate) fn add(&mut self, race: &Race) -> bool {
        let new = self.races.len() < self.most && self.known.insert(key(race));
        if new {
            self.races.push(race.clone());
        }
        new
    }

    /// All of them; equal ones are reported again from now on.
    pub(crate) fn take(&mut self) -> Vec<Race> {
        self.known.clear();
        std::mem::take(&mut self.races)
    }
}

fn key(race: &Race) -> Key {
    let side = |side: &Side| {
        let line = side.context.map(|context| {
            let location = context.location;
            (location.file(), location.line(), location.column())
        });
        (side.operation.clone(), side.stream.clone(), line)
    };
    (race.kind, side(&race.first), side(&race.second))
}
