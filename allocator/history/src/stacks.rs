//! Strings, frames and stacks of a snapshot, each kept once.
//!
//! A million events have a few thousand distinct stacks. They refer to them by number, and the writer writes each once.
//!
//! Invariant: stack 0 is the empty one. Every number that the table has given out stays valid.

use std::{collections::BTreeMap, sync::Arc};

/// One line of a stack.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Frame {
    /// Source file.
    pub filename: Arc<str>,
    /// Line in it, 0 if not known.
    pub line: u32,
    /// Name of the function, or here of the span.
    pub name: Arc<str>,
}

/// A stack of a [`Stacks`] table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct StackId(pub(crate) u32);

impl StackId {
    /// The stack without frames: nothing is known.
    pub const EMPTY: StackId = StackId(0);

    /// Position in its table; the empty one has 0.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A frame as the table keeps it: file name and name are numbers of strings.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct FrameParts {
    pub(crate) filename: u32,
    pub(crate) line: u32,
    pub(crate) name: u32,
}

/// The stacks of a snapshot.
#[derive(Clone, Debug)]
pub struct Stacks {
    strings: Interned<str>,
    frames: Vec<FrameParts>,
    frame_ids: BTreeMap<FrameParts, u32>,
    stacks: Interned<[u32]>,
}

impl Stacks {
    /// A table that holds the empty stack alone.
    #[must_use]
    pub fn new() -> Self {
        let mut stacks = Interned::<[u32]>::new();
        stacks.intern(&[]);
        Self { strings: Interned::new(), frames: Vec::new(), frame_ids: BTreeMap::new(), stacks }
    }

    /// The number of a stack, innermost frame first. Equal stacks have equal numbers.
    pub fn intern(&mut self, frames: &[Frame]) -> StackId {
        let ids: Vec<u32> = frames.iter().map(|frame| self.intern_frame(frame)).collect();
        StackId(self.stacks.intern(&ids))
    }

    fn intern_frame(&mut self, frame: &Frame) -> u32 {
        let parts = FrameParts {
            filename: self.strings.intern(&frame.filename),
            line: frame.line,
            name: self.strings.intern(&frame.name),
        };
        let frames = &mut self.frames;
        *self.frame_ids.entry(parts).or_insert_with(|| {
            frames.push(parts);
            number(frames.len() - 1)
        })
    }

    /// The frames of a stack, innermost first; `None` if the number is of another table.
    #[must_use]
    pub fn frames(&self, stack: StackId) -> Option<Vec<Frame>> {
        let frame = |&id: &u32| {
            let parts = self.frame(id);
            let text = |id: u32| Arc::clone(&self.strings.values[id as usize]);
            Frame { filename: text(parts.filename), line: parts.line, name: text(parts.name) }
        };
        Some(self.frame_ids(stack)?.iter().map(frame).collect())
    }

    /// Number of distinct stacks, the empty one included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.stacks.values.len()
    }

    /// Whether there is no stack but the empty one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 1
    }

    pub(crate) fn frame_ids(&self, stack: StackId) -> Option<&[u32]> {
        self.stacks.values.get(stack.0 as usize).map(AsRef::as_ref)
    }

    pub(crate) fn frame(&self, id: u32) -> FrameParts {
        self.frames[id as usize]
    }

    pub(crate) fn string(&self, id: u32) -> &str {
        &self.strings.values[id as usize]
    }

    pub(crate) fn frame_count(&self) -> usize {
        self.frames.len()
    }

    pub(crate) fn string_count(&self) -> usize {
        self.strings.values.len()
    }
}

impl Default for Stacks {
    fn default() -> Self {
        Self::new()
    }
}

/// Values kept once, with numbers in the order of their first use.
#[derive(Debug)]
struct Interned<T: ?Sized> {
    values: Vec<Arc<T>>,
    ids: BTreeMap<Arc<T>, u32>,
}

impl<T: ?Sized> Clone for Interned<T> {
    fn clone(&self) -> Self {
        Self { values: self.values.clone(), ids: self.ids.clone() }
    }
}

impl<T: ?Sized + Ord> Interned<T> {
    fn new() -> Self {
        Self { values: Vec::new(), ids: BTreeMap::new() }
    }

    fn intern<'a>(&mut self, value: &'a T) -> u32
    where
        Arc<T>: From<&'a T>,
    {
        if let Some(&id) = self.ids.get(value) {
            return id;
        }
        let id = number(self.values.len());
        let kept: Arc<T> = value.into();
        self.values.push(Arc::clone(&kept));
        self.ids.insert(kept, id);
        id
    }
}

fn number(index: usize) -> u32 {
    u32::try_from(index).expect("four billion entries do not fit in memory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_stacks_have_one_number_and_come_back() {
        let frame = |name: &str, line| Frame { filename: "a.rs".into(), line, name: name.into() };
        let mut stacks = Stacks::new();
        assert!(stacks.is_empty());
        let first = stacks.intern(&[frame("f", 1), frame("g", 2)]);
        let second = stacks.intern(&[frame("f", 1)]);
        assert_eq!(stacks.intern(&[frame("f", 1), frame("g", 2)]), first);
        assert_eq!(stacks.intern(&[]), StackId::EMPTY);
        assert_ne!(first, second);
        assert_eq!(stacks.frames(first), Some(vec![frame("f", 1), frame("g", 2)]));
        assert_eq!(stacks.frames(StackId(99)), None);
        assert_eq!((stacks.len(), stacks.frame_count(), stacks.string_count()), (3, 2, 3));
    }
}
