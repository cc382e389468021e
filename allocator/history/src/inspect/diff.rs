//! Two snapshots beside each other, by stack.

use std::collections::BTreeMap;

use crate::state::sites::{self, Key};

use super::{At, SiteBytes, Sums};

/// What became of a stack's memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[non_exhaustive]
pub enum ChangeKind {
    /// Only the second has it.
    Added,
    /// The second has more bytes of it.
    Grown,
    /// The second has fewer bytes of it.
    Shrunk,
    /// Only the first has it.
    Gone,
}

/// A stack whose live memory differs.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Change {
    /// What became of it.
    pub kind: ChangeKind,
    /// The stack, with bytes and blocks of the second, or of the first where the second has none.
    pub site: SiteBytes,
    /// Live bytes in the first, as asked for.
    pub bytes_before: u64,
    /// Live bytes in the second.
    pub bytes_after: u64,
    /// Live blocks in the first.
    pub blocks_before: u64,
    /// Live blocks in the second.
    pub blocks_after: u64,
}

impl Change {
    /// By how many bytes they differ.
    #[must_use]
    pub fn delta_bytes(&self) -> u64 {
        self.bytes_after.abs_diff(self.bytes_before)
    }
}

/// How two snapshots differ.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Diff {
    /// Where the bytes of the first are.
    pub before: Sums,
    /// Where the bytes of the second are.
    pub after: Sums,
    /// The stacks that differ, the largest difference first.
    pub changes: Vec<Change>,
    /// Number of stacks with as many bytes and blocks in both.
    pub alike: u64,
}

/// A stack as text, so that tables of two files can be compared, with the size of blocks where there is none.
type Text = (Vec<String>, u64);

struct Stack {
    key: Key,
    bytes: u64,
    blocks: u64,
}

/// Compares live memory, stack by stack. Stacks are equal if all their lines are.
#[must_use]
pub fn diff(first: &At<'_>, second: &At<'_>) -> Diff {
    let mut before = stacks(first);
    let (mut changes, mut alike) = (Vec::new(), 0);
    for (text, after) in stacks(second) {
        match before.remove(&text) {
            Some(old) if (old.bytes, old.blocks) == (after.bytes, after.blocks) => alike += 1,
            Some(old) => changes.push(change(second, &after, (old.bytes, old.blocks), (after.bytes, after.blocks))),
            None => changes.push(change(second, &after, (0, 0), (after.bytes, after.blocks))),
        }
    }
    changes.extend(before.values().map(|old| change(first, old, (old.bytes, old.blocks), (0, 0))));
    // Stable: those that differ alike stay in the order of their kinds.
    changes.sort_by_key(|change| (std::cmp::Reverse(change.delta_bytes()), change.kind));
    Diff { before: first.sums(), after: second.sums(), changes, alike }
}

fn stacks(at: &At<'_>) -> BTreeMap<Text, Stack> {
    let mut texts: BTreeMap<Text, Stack> = BTreeMap::new();
    for (key, bytes, blocks) in sites::by_stack(&at.memory, |held| !held.pending) {
        let lines = at.loaded.symbols.stack(key.0).map(|frame| sites::line(at.loaded, frame));
        let stack = texts.entry((lines.collect(), key.1)).or_insert(Stack { key, bytes: 0, blocks: 0 });
        stack.bytes += bytes;
        stack.blocks += blocks;
    }
    texts
}

fn change(at: &At<'_>, stack: &Stack, before: (u64, u64), after: (u64, u64)) -> Change {
    let kind = match (before.1, after.1) {
        (0, _) => ChangeKind::Added,
        (_, 0) => ChangeKind::Gone,
        _ if after.0 < before.0 => ChangeKind::Shrunk,
        _ => ChangeKind::Grown,
    };
    let site = sites::site(at.loaded, stack.key, stack.bytes, stack.blocks);
    let ((bytes_before, blocks_before), (bytes_after, blocks_after)) = (before, after);
    Change { kind, site, bytes_before, bytes_after, blocks_before, blocks_after }
}
