//! Snapshots of any size in the style of each writer: this project's, Python's pickler, and PyTorch's C++ pickler.
//!
//! The same snapshot in each style has the same events, frames and segments, and every value depends on its place alone,
//! so two runs give the same bytes. Nothing here is shared with the writer or the reader of the crate.

use std::collections::BTreeMap;

/// Whose habits to follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Style {
    /// Protocol 4. What is used again is remembered after it is complete; equal stacks are one list.
    Own,
    /// Python's pickler, protocol 2 to 5. Everything is remembered, containers before they are filled.
    Python(u8),
    /// PyTorch's C++ pickler, protocol 2. Texts are remembered by value, and a list is added at once.
    Cpp,
}

/// Size of a snapshot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) events: u64,
    /// Frames of each stack.
    pub(crate) frames: u64,
    /// Distinct stacks.
    pub(crate) stacks: u64,
    /// Blocks that are live at once.
    pub(crate) slots: u64,
    /// Whether a hint for buffering follows the start of each dictionary. It means nothing, but no writer puts it there,
    /// so a reader cannot take the way that it has for usual files.
    pub(crate) hints: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self { events: 1_000_000, frames: 30, stacks: 20_000, slots: 4096, hints: false }
    }
}

/// Distinct frames of a snapshot.
const FRAMES: u64 = 4000;
const SLOT_BYTES: u64 = 2 << 20;
const BASE: u64 = 0x7f12_3400_0000;

pub(crate) struct Pickler {
    pub(crate) out: Vec<u8>,
    style: Style,
    memos: u32,
    hints: bool,
    /// Texts by value, and other things by a name that the caller chooses.
    known: BTreeMap<String, u32>,
}

impl Pickler {
    pub(crate) fn new(style: Style) -> Self {
        let out = match style {
            Style::Own => b"\x80\x04".to_vec(),
            Style::Cpp => b"\x80\x02".to_vec(),
            Style::Python(protocol @ 4..) => [&[0x80, protocol, 0x95][..], &[0; 8]].concat(),
            Style::Python(protocol) => vec![0x80, protocol],
        };
        Self { out, style, memos: 0, hints: false, known: BTreeMap::new() }
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.out.push(b'.');
        if let Style::Python(4..) = self.style {
            let framed = self.out.len() as u64 - 11;
            self.out[3..11].copy_from_slice(&framed.to_le_bytes());
        }
        self.out
    }

    fn has_short_forms(&self) -> bool {
        matches!(self.style, Style::Own | Style::Python(4..))
    }

    fn memoize(&mut self) -> u32 {
        let id = self.memos;
        self.memos += 1;
        match (self.has_short_forms(), u8::try_from(id)) {
            (true, _) => self.out.push(0x94),
            (false, Ok(id)) => self.out.extend([b'q', id]),
            (false, Err(_)) => {
                self.out.push(b'r');
                self.out.extend(id.to_le_bytes());
            }
        }
        id
    }

    fn get(&mut self, id: u32) {
        match u8::try_from(id) {
            Ok(id) => self.out.extend([b'h', id]),
            Err(_) => {
                self.out.push(b'j');
                self.out.extend(id.to_le_bytes());
            }
        }
    }

    /// Writes something once, and then refers to it.
    pub(crate) fn shared(&mut self, name: &str, body: impl FnOnce(&mut Self)) {
        if let Some(&id) = self.known.get(name) {
            return self.get(id);
        }
        let before = self.memos;
        body(self);
        // Python has remembered a container as it began it.
        let id = if matches!(self.style, Style::Python(_)) { before } else { self.memoize() };
        self.known.insert(name.to_owned(), id);
    }

    fn raw_text(&mut self, text: &str) {
        match u8::try_from(text.len()) {
            Ok(length) if self.has_short_forms() => self.out.extend([0x8c, length]),
            _ => {
                self.out.push(b'X');
                self.out.extend((text.len() as u32).to_le_bytes());
            }
        }
        self.out.extend(text.as_bytes());
    }

    /// A text that is one object wherever it comes, as keys are.
    pub(crate) fn word(&mut self, text: &str) {
        self.shared(&format!("'{text}"), |pickler| {
            pickler.raw_text(text);
            if matches!(pickler.style, Style::Python(_)) {
                pickler.memoize();
            }
        });
    }

    /// A text that is a new object for each use.
    pub(crate) fn text(&mut self, text: &str) {
        match self.style {
            Style::Python(_) => {
                self.raw_text(text);
                self.memoize();
            }
            _ => self.word(text),
        }
    }

    pub(crate) fn int(&mut self, value: u64) {
        let bytes = value.to_le_bytes();
        match value {
            0..=0xff => self.out.extend([b'K', bytes[0]]),
            0x100..=0xffff => self.out.extend([b'M', bytes[0], bytes[1]]),
            0x1_0000..=0x7fff_ffff => {
                self.out.push(b'J');
                self.out.extend(&bytes[..4]);
            }
            _ => {
                let shortest = (64 - value.leading_zeros() as usize) / 8 + 1;
                let length = if self.style == Style::Cpp { 8 } else { shortest };
                self.out.extend([0x8a, length as u8]);
                self.out.extend(bytes.iter().chain(&[0]).take(length));
            }
        }
    }

    pub(crate) fn bool(&mut self, value: bool) {
        self.out.push(if value { 0x88 } else { 0x89 });
    }

    pub(crate) fn pair(&mut self, first: u64, second: u64) {
        self.int(first);
        self.int(second);
        self.out.push(0x86);
        self.container();
    }

    /// What Python does as soon as there is a container.
    fn container(&mut self) {
        if matches!(self.style, Style::Python(_)) {
            self.memoize();
        }
    }

    /// A dictionary of at least two entries.
    pub(crate) fn dict(&mut self, body: impl FnOnce(&mut Self)) {
        self.out.push(b'}');
        self.container();
        if self.hints {
            self.out.extend(b"\x95\0\0\0\0\0\0\0\0");
        }
        self.out.push(b'(');
        body(self);
        self.out.push(b'u');
    }

    pub(crate) fn list(&mut self, length: u64, mut item: impl FnMut(&mut Self, u64)) {
        self.out.push(b']');
        self.container();
        let batch = if self.style == Style::Cpp { u64::MAX } else { 1000 };
        let mut done = 0;
        while done < length {
            let end = length.min(done.saturating_add(batch));
            let alone = end == done + 1 && self.style != Style::Cpp;
            if !alone {
                self.out.push(b'(');
            }
            (done..end).for_each(|index| item(self, index));
            self.out.push(if alone { b'a' } else { b'e' });
            done = end;
        }
    }
}

/// A number that looks random.
fn scramble(value: u64) -> u64 {
    let value = (value + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (value ^ value >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20
}

/// A snapshot of one busy device and an idle one.
pub(crate) fn snapshot(style: Style, shape: Shape) -> Vec<u8> {
    let mut pickler = Pickler::new(style);
    pickler.hints = shape.hints;
    pickler.dict(|p| {
        p.word("segments");
        p.list(1, |p, _| segment(p, shape));
        p.word("device_traces");
        p.list(2, |p, device| p.list(if device == 0 { shape.events } else { 0 }, |p, index| event(p, shape, index)));
        p.word("allocator_settings");
        p.dict(|p| {
            p.word("PYTORCH_CUDA_ALLOC_CONF");
            p.text("expandable_segments:False");
            p.word("max_split_size");
            p.out.extend(b"J\xff\xff\xff\xff");
            p.word("expandable_segments");
            p.bool(false);
            p.word("roundup_power2_divisions");
            p.dict(|p| {
                for size in ["1", "32768"] {
                    p.text(size);
                    p.int(0);
                }
            });
        });
        p.word("external_annotations");
        p.list(shape.events.min(2), |p, index| {
            p.dict(|p| {
                p.word("stage");
                p.text(if index == 0 { "START" } else { "END" });
                p.word("name");
                p.text("ProfilerStep#1");
                p.word("device");
                p.int(0);
                p.word("time_us");
                p.int(time_us(index));
            });
        });
    });
    pickler.finish()
}

fn time_us(index: u64) -> u64 {
    1_796_097_335_000_000 + index * 7
}

/// Allocations go round the slots. From the second round on each is preceded by the free of what was there.
fn event(p: &mut Pickler, shape: Shape, index: u64) {
    let (action, round) = match index.checked_sub(shape.slots) {
        None => ("alloc", index),
        Some(later) => (["free_requested", "free_completed", "alloc"][(later % 3) as usize], shape.slots + later / 3),
    };
    let allocated = if action == "alloc" { round } else { round - shape.slots };
    p.dict(|p| {
        p.word("action");
        p.text(action);
        p.word("addr");
        p.int(BASE + round % shape.slots * SLOT_BYTES);
        p.word("size");
        p.int(bytes(allocated));
        p.word("stream");
        p.int(0);
        p.word("time_us");
        p.int(time_us(index));
        p.word("compile_context");
        p.text("N/A");
        p.word("user_metadata");
        p.text("");
        p.word("pool_id");
        p.pair(0, 0);
        p.word("frames");
        // Both events of a free have one list.
        let stack = scramble(round * 2 + u64::from(action == "alloc")) % shape.stacks;
        match action {
            "free_requested" | "free_completed" if p.style != Style::Own => {
                let name = "free".to_owned();
                if action == "free_requested" {
                    p.known.remove(&name);
                }
                p.shared(&name, |p| frames(p, shape, stack));
            }
            "alloc" if p.style != Style::Own => frames(p, shape, stack),
            _ => p.shared(&format!("stack {stack}"), |p| frames(p, shape, stack)),
        }
    });
}

fn bytes(round: u64) -> u64 {
    1 + scramble(round) % SLOT_BYTES
}

/// Outer frames are those of most other stacks, inner ones differ.
fn frames(p: &mut Pickler, shape: Shape, stack: u64) {
    p.list(shape.frames, |p, depth| {
        let outer = shape.frames - depth;
        let frame = scramble(outer << 32 | stack >> (outer.min(20) / 2)) % FRAMES;
        p.shared(&format!("frame {frame}"), |p| {
            p.dict(|p| {
                p.word("name");
                p.text(&format!("function_{frame}"));
                p.word("filename");
                p.text(&format!("/usr/lib/python3/site-packages/torch/nn/modules/module_{}.py", frame % 170));
                p.word("line");
                p.int(frame * 3);
            });
        });
    });
}

/// The segment of all slots, as the last events left it.
fn segment(p: &mut Pickler, shape: Shape) {
    // The free of the last slot may be half done, or done and the slot not taken again.
    let later = shape.events.saturating_sub(shape.slots);
    let rounds = shape.events.min(shape.slots) + later / 3;
    let in_use = |slot: u64| slot < rounds && !(later % 3 == 2 && slot == rounds % shape.slots);
    let pending = |slot: u64| later % 3 == 1 && slot == rounds % shape.slots;
    let newest = |slot: u64| slot + (rounds - 1 - slot) / shape.slots * shape.slots;
    let count = |counts: &dyn Fn(u64) -> bool| (0..shape.slots).filter(|&slot| counts(slot)).count() as u64;
    p.dict(|p| {
        p.word("device");
        p.int(0);
        p.word("address");
        p.int(BASE);
        p.word("total_size");
        p.int(shape.slots * SLOT_BYTES);
        p.word("allocated_size");
        p.int(count(&|slot| in_use(slot) && !pending(slot)) * SLOT_BYTES);
        p.word("active_size");
        p.int(count(&in_use) * SLOT_BYTES);
        p.word("requested_size");
        p.int((0..shape.slots).filter(|&slot| in_use(slot)).map(|slot| bytes(newest(slot))).sum());
        p.word("stream");
        p.int(0);
        p.word("segment_type");
        p.text("large");
        p.word("segment_pool_id");
        p.pair(0, 0);
        p.word("is_expandable");
        p.bool(false);
        p.word("frames");
        p.list(0, |_, _| {});
        p.word("blocks");
        p.list(shape.slots, |p, slot| {
            p.dict(|p| {
                p.word("address");
                p.int(BASE + slot * SLOT_BYTES);
                p.word("size");
                p.int(SLOT_BYTES);
                p.word("requested_size");
                p.int(if in_use(slot) { bytes(newest(slot)) } else { 0 });
                p.word("state");
                p.text(match (in_use(slot), pending(slot)) {
                    (true, false) => "active_allocated",
                    (true, true) => "active_pending_free",
                    (false, _) => "inactive",
                });
                p.word("frames");
                p.list(0, |_, _| {});
            });
        });
    });
}
