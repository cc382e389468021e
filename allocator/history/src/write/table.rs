//! The tables of texts, frames and stacks that a file refers to, and what of them is worth a memo entry.

use crate::{StackId, Stacks, WriteError, pickle::Memo};

/// A frame, by the numbers of its texts.
pub(crate) struct FrameTexts {
    pub(crate) name: u32,
    pub(crate) filename: u32,
    pub(crate) line: u32,
}

/// Where texts, frames and stacks are looked up by number.
pub(crate) trait Table {
    /// Number of texts, of frames and of stacks.
    fn counts(&self) -> [usize; 3];
    /// The frames of a stack, innermost first; `None` if the table has no such stack.
    fn frames_of(&self, stack: StackId) -> Option<impl Iterator<Item = u32>>;
    /// A frame of the table.
    fn frame_texts(&self, frame: u32) -> FrameTexts;
    /// Other keys of a frame and their texts.
    fn more_of(&self, frame: u32) -> impl Iterator<Item = (u32, u32)>;
    /// A text of the table.
    fn text_of(&self, text: u32) -> &str;
}

impl Table for Stacks {
    fn counts(&self) -> [usize; 3] {
        [self.string_count(), self.frame_count(), self.len()]
    }

    fn frames_of(&self, stack: StackId) -> Option<impl Iterator<Item = u32>> {
        Some(self.frame_ids(stack)?.iter().copied())
    }

    fn frame_texts(&self, frame: u32) -> FrameTexts {
        let parts = self.frame(frame);
        FrameTexts { name: parts.name, filename: parts.filename, line: parts.line }
    }

    fn more_of(&self, _: u32) -> impl Iterator<Item = (u32, u32)> {
        std::iter::empty()
    }

    fn text_of(&self, text: u32) -> &str {
        self.string(text)
    }
}

/// Whether a thing of a table is worth a memo entry, and its entry.
#[derive(Clone, Copy)]
pub(super) enum Shared {
    /// It is used this many times, and not written yet.
    Unwritten(u32),
    Written(Memo),
}

/// What is known of each entry of the tables of texts, frames and stacks.
pub(super) struct Uses {
    pub(super) texts: Vec<Shared>,
    pub(super) frames: Vec<Shared>,
    pub(super) stacks: Vec<Shared>,
}

impl Uses {
    pub(super) fn new(table: &impl Table) -> Self {
        let [texts, frames, stacks] = table.counts().map(|count| vec![Shared::Unwritten(0); count]);
        Self { texts, frames, stacks }
    }

    /// Counts a use. What a stack consists of is used once, however often the stack is.
    pub(super) fn add_stack(&mut self, table: &impl Table, stack: StackId) -> Result<(), WriteError> {
        let frames = table.frames_of(stack).ok_or(WriteError::UnknownStack(stack.0))?;
        if !add_use(&mut self.stacks[stack.0 as usize]) {
            return Ok(());
        }
        for id in frames {
            if add_use(&mut self.frames[id as usize]) {
                let parts = table.frame_texts(id);
                self.add_text(parts.filename);
                self.add_text(parts.name);
                table.more_of(id).for_each(|(key, text)| [key, text].into_iter().for_each(|id| self.add_text(id)));
            }
        }
        Ok(())
    }

    /// Counts a use of a text.
    pub(super) fn add_text(&mut self, text: u32) {
        add_use(&mut self.texts[text as usize]);
    }
}

/// Whether it is the first use.
fn add_use(shared: &mut Shared) -> bool {
    match shared {
        Shared::Unwritten(uses) => {
            *uses = uses.saturating_add(1);
            *uses == 1
        }
        Shared::Written(_) => false,
    }
}
