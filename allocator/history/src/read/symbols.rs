//! Texts, frames and stacks, each kept once.
//!
//! A stack is a sequence of numbers of frames, and a frame a sequence of four numbers: name, file, line and what else
//! is known. Most frames have small numbers, so stacks are stored in halves of words: below 2^15 one, else two, of
//! which the first has its top bit set.
//!
//! Invariants: the first texts are the known words; text and extra sequences are numbered from 0, and extra 0 and stack
//! 0 are empty; texts are UTF-8.

use super::{pool::Pool, words};
use crate::StackId;

/// A text of [`Symbols`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TextId(pub(super) u32);

/// A frame of [`Symbols`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FrameId(pub(super) u32);

impl TextId {
    /// The empty text, which every table has.
    pub const EMPTY: TextId = TextId(words::EMPTY);

    /// Position in the order of first use; below [`Symbols::texts`].
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }

    #[cfg(feature = "inspect")]
    pub(crate) fn number(self) -> u32 {
        self.0
    }
}

impl FrameId {
    /// Position in the order of first use; below [`Symbols::frames`].
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One line of a stack. Frames are equal if their numbers are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FrameParts {
    /// Name of the function.
    pub name: TextId,
    /// Source file; often `??` for machine code.
    pub filename: TextId,
    /// Line in it, 0 if not known.
    pub line: u32,
}

/// What events and segments refer to by number.
#[derive(Clone, Debug)]
pub struct Symbols {
    texts: Pool<u8>,
    frames: Pool<u32>,
    extras: Pool<u32>,
    stacks: Pool<u16>,
    /// The stack that is being numbered.
    scratch: Vec<u16>,
}

/// The top bit of a half that another one follows.
const MORE: u16 = 0x8000;

impl Symbols {
    pub(super) fn new() -> Self {
        let mut new = Self {
            texts: Pool::new(),
            frames: Pool::new(),
            extras: Pool::new(),
            stacks: Pool::new(),
            scratch: Vec::new(),
        };
        for word in words::ALL {
            new.texts.intern(word.as_bytes());
        }
        new.extras.intern(&[]);
        new.stacks.intern(&[]);
        new
    }

    /// A text. Panics if the number is of another table.
    #[must_use]
    pub fn text(&self, text: TextId) -> &str {
        str::from_utf8(self.texts.get(text.0)).expect("texts are checked when they are interned")
    }

    /// Number of texts.
    #[must_use]
    pub fn texts(&self) -> usize {
        self.texts.len()
    }

    /// A frame. Panics if the number is of another table.
    #[must_use]
    pub fn frame(&self, frame: FrameId) -> FrameParts {
        let parts = self.frames.get(frame.0);
        FrameParts { name: TextId(parts[0]), filename: TextId(parts[1]), line: parts[2] }
    }

    /// Other keys of a frame and their texts: where a compiler's graph has it from (`fx_…`). Panics if the number is of
    /// another table.
    pub fn frame_extras(&self, frame: FrameId) -> impl Iterator<Item = (TextId, TextId)> {
        let extras = self.extras.get(self.frames.get(frame.0)[3]);
        extras.chunks_exact(2).map(|pair| (TextId(pair[0]), TextId(pair[1])))
    }

    /// Number of frames.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.frames.len()
    }

    /// The frames of a stack, innermost first. Panics if the number is of another table.
    pub fn stack(&self, stack: StackId) -> impl Iterator<Item = FrameId> {
        let mut halves = self.stacks.get(stack.0).iter();
        std::iter::from_fn(move || {
            let &first = halves.next()?;
            let frame = if first & MORE == 0 {
                first.into()
            } else {
                let &second = halves.next().expect("a half with its top bit set is followed by another");
                u32::from(first & !MORE) << 16 | u32::from(second)
            };
            Some(FrameId(frame))
        })
    }

    /// Number of stacks, the empty one included.
    #[must_use]
    pub fn stacks(&self) -> usize {
        self.stacks.len()
    }

    /// The number of a text that need not be UTF-8: what is not becomes the replacement character.
    pub(super) fn intern_text(&mut self, text: &[u8]) -> u32 {
        if let Some(known) = self.texts.find(text) {
            return known;
        }
        self.texts.intern(String::from_utf8_lossy(text).as_bytes())
    }

    /// The number of a frame. `extras` are keys and texts in turn.
    pub(super) fn intern_frame(&mut self, parts: FrameParts, extras: &[u32]) -> u32 {
        let extras = if extras.is_empty() { 0 } else { self.extras.intern(extras) };
        self.frames.intern(&[parts.name.0, parts.filename.0, parts.line, extras])
    }

    /// Begins a stack, which takes the place of one that was not ended.
    #[inline]
    pub(super) fn begin_stack(&mut self) {
        self.scratch.clear();
    }

    /// Adds a frame to the stack that was begun. Panics if it has the number 2^31 or above.
    #[inline(always)]
    pub(super) fn push_frame(&mut self, frame: u32) {
        if frame >= u32::from(MORE) {
            let high = u16::try_from(frame >> 16).ok().filter(|high| high & MORE == 0);
            self.scratch.push(MORE | high.expect("a frame takes several bytes of the file"));
        }
        self.scratch.push(frame as u16);
    }

    /// The number of the stack that was begun.
    #[inline]
    pub(super) fn end_stack(&mut self) -> u32 {
        self.stacks.intern(&self.scratch)
    }

    /// The number of a stack.
    pub(super) fn intern_stack(&mut self, frames: impl IntoIterator<Item = u32>) -> u32 {
        self.begin_stack();
        frames.into_iter().for_each(|frame| self.push_frame(frame));
        self.end_stack()
    }
}

#[cfg(feature = "inspect")]
impl crate::write::Table for Symbols {
    fn counts(&self) -> [usize; 3] {
        [self.texts(), self.frames(), self.stacks()]
    }

    fn frames_of(&self, stack: StackId) -> Option<impl Iterator<Item = u32>> {
        ((stack.0 as usize) < self.stacks()).then(|| self.stack(stack).map(|frame| frame.0))
    }

    fn frame_texts(&self, frame: u32) -> crate::write::FrameTexts {
        let parts = self.frame(FrameId(frame));
        crate::write::FrameTexts { name: parts.name.0, filename: parts.filename.0, line: parts.line }
    }

    fn more_of(&self, frame: u32) -> impl Iterator<Item = (u32, u32)> {
        self.frame_extras(FrameId(frame)).map(|(key, text)| (key.0, text.0))
    }

    fn text_of(&self, text: u32) -> &str {
        self.text(TextId(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_the_numbers_of_their_constants() {
        let symbols = Symbols::new();
        assert_eq!(symbols.texts(), words::ALL.len(), "no word is there twice");
        assert_eq!(symbols.text(TextId(words::FOR_STREAM)), "for_stream");
        assert_eq!(symbols.text(TextId::EMPTY), "");
    }

    #[test]
    fn stacks_of_any_frames_come_back() {
        let mut symbols = Symbols::new();
        let stacks: [&[u32]; 6] =
            [&[], &[0], &[0x7fff], &[0x8000], &[0x7fff, 0x8000, 0x1_0000, 0x7fff_ffff, 3], &[0, 0]];
        let ids = stacks.map(|stack| symbols.intern_stack(stack.iter().copied()));
        assert_eq!(ids, [0, 1, 2, 3, 4, 5]);
        for (stack, id) in stacks.iter().zip(ids) {
            let frames: Vec<_> = symbols.stack(StackId(id)).map(|frame| frame.0).collect();
            assert_eq!(frames, *stack);
        }
    }

    #[test]
    fn a_frame_with_extras_is_another_frame() {
        let mut symbols = Symbols::new();
        let text = TextId(symbols.intern_text(b"f"));
        let parts = FrameParts { name: text, filename: TextId::EMPTY, line: 7 };
        let plain = symbols.intern_frame(parts, &[]);
        let more = symbols.intern_frame(parts, &[words::NAME, text.0]);
        assert_ne!(plain, more);
        assert_eq!(symbols.intern_frame(parts, &[]), plain);
        assert_eq!(symbols.frame(FrameId(more)), parts);
        assert_eq!(symbols.frame_extras(FrameId(plain)).count(), 0);
        assert_eq!(symbols.frame_extras(FrameId(more)).collect::<Vec<_>>(), [(TextId(words::NAME), text)]);
    }

    #[test]
    fn halves_of_surrogate_pairs_are_replaced() {
        let mut symbols = Symbols::new();
        let id = TextId(symbols.intern_text(b"a\xed\xa0\x80"));
        assert!(symbols.text(id).starts_with("a\u{fffd}"));
    }
}
