//! Stacks as people name them: by the innermost line that is the program's own.

use std::collections::BTreeMap;

use crate::{
    StackId,
    read::{FrameId, Loaded},
};

use super::memory::{Held, Memory};
use super::{SiteBytes, size};

/// Most frames of a stack that are told.
const TOLD_FRAMES: usize = 12;

/// Most stacks that are looked at to find the sites.
const MOST_STACKS: usize = 1000;

/// What stacks are grouped by: without one the size stands in for it.
pub(crate) type Key = (StackId, u64);

pub(crate) fn key(held: &Held) -> Key {
    (held.stack, if held.stack == StackId::EMPTY { held.requested } else { 0 })
}

/// A stack with its bytes.
pub(crate) fn site(loaded: &Loaded, (stack, requested): Key, bytes: u64, blocks: u64) -> SiteBytes {
    let frames: Vec<_> = loaded.symbols.stack(stack).collect();
    let site = match told(loaded, stack) {
        Some((_, site)) => site,
        None => format!("blocks of {}, no stack recorded", size(requested)),
    };
    let stack = frames.iter().take(TOLD_FRAMES).map(|&frame| line(loaded, frame)).collect();
    SiteBytes { site, stack, phase: phase(loaded, &frames), bytes, blocks }
}

/// The frame that a stack is told by, and its text; `None` for the empty stack.
pub(crate) fn told(loaded: &Loaded, stack: StackId) -> Option<(usize, String)> {
    let own = loaded.symbols.stack(stack).enumerate().find(|&(_, frame)| is_own(loaded, frame));
    let chosen = own.or_else(|| loaded.symbols.stack(stack).next().map(|frame| (0, frame)));
    chosen.map(|(place, frame)| (place, line(loaded, frame)))
}

pub(crate) fn line(loaded: &Loaded, frame: FrameId) -> String {
    let parts = loaded.symbols.frame(frame);
    let (name, file) = (loaded.symbols.text(parts.name), loaded.symbols.text(parts.filename));
    match (file, name) {
        ("" | "??", name) => name.to_owned(),
        // Without a span this project's recorder knows no name.
        (file, "" | "rust") => format!("{file}:{}", parts.line),
        (file, name) => format!("{file}:{} in {name}", parts.line),
    }
}

/// Whether a frame is of the program, not of a library or of machine code.
fn is_own(loaded: &Loaded, frame: FrameId) -> bool {
    const LIBRARIES: &[&str] =
        &["site-packages/", "dist-packages/", "/torch/", "<frozen", "<string>", "/lib/python", "/rustc/", ".cargo/"];
    const MACHINE: &[&str] = &[".cpp", ".cc", ".c", ".h", ".hpp", ".cu", ".cuh", ".so"];
    let file = loaded.symbols.text(loaded.symbols.frame(frame).filename);
    let known = !file.is_empty() && file != "??" && !MACHINE.iter().any(|end| file.ends_with(end));
    known && !LIBRARIES.iter().any(|part| file.contains(part))
}

fn phase(loaded: &Loaded, frames: &[FrameId]) -> Option<&'static str> {
    let says = |words: &[&str]| {
        frames.iter().any(|&frame| {
            let parts = loaded.symbols.frame(frame);
            let (name, file) = (loaded.symbols.text(parts.name), loaded.symbols.text(parts.filename));
            words.iter().any(|word| name.contains(word) || file.contains(word))
        })
    };
    if says(STATE) {
        Some("optimizer step")
    } else if says(&["reduce_scatter", "all_reduce", "all_gather", "allreduce", "allgather", "foreach_reduce"]) {
        Some("communication")
    } else if says(&["autograd/graph.py", "torch::autograd::", "backward", "_engine_run"]) {
        Some("backward")
    } else if says(&["dataloader", "pin_memory"]) {
        Some("input")
    } else if says(&["Torch-Compiled Region", "torchinductor", "_inductor"]) {
        Some("compiled")
    } else {
        None
    }
}

/// Words of stacks that make state at its first use.
const STATE: &[&str] = &["/optim/", "_init_group", "_init_optim_state", "exp_avg", "Optimizer.step", "optimizer.step"];

/// Whether a phase is that of an optimizer or another maker of state.
pub(crate) fn makes_state(site: &SiteBytes) -> bool {
    site.phase == Some("optimizer step")
        || site.stack.iter().any(|line| line.contains("cublas") || line.contains("cudnn") || line.contains("Workspace"))
}

/// The blocks that are wanted, by stack; the most bytes first.
pub(crate) fn by_stack(memory: &Memory, wanted: impl Fn(&Held) -> bool) -> Vec<(Key, u64, u64)> {
    let mut sums: BTreeMap<Key, (u64, u64)> = BTreeMap::new();
    for held in memory.blocks.values().filter(|held| wanted(held)) {
        let sum = sums.entry(key(held)).or_default();
        sum.0 += held.requested;
        sum.1 += 1;
    }
    let mut sorted: Vec<_> = sums.into_iter().map(|(key, (bytes, blocks))| (key, bytes, blocks)).collect();
    sorted.sort_by_key(|&(_, bytes, _)| std::cmp::Reverse(bytes));
    sorted
}

/// The sites with the most bytes. Stacks that share their line are one site, with the stack of the largest.
pub(crate) fn top(loaded: &Loaded, memory: &Memory, count: usize, wanted: impl Fn(&Held) -> bool) -> Vec<SiteBytes> {
    let mut sites: Vec<SiteBytes> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for (key, bytes, blocks) in by_stack(memory, wanted).into_iter().take(MOST_STACKS) {
        let site = site(loaded, key, bytes, blocks);
        match places.get(&site.site) {
            Some(&place) => {
                sites[place].bytes += bytes;
                sites[place].blocks += blocks;
            }
            None => {
                places.insert(site.site.clone(), sites.len());
                sites.push(site);
            }
        }
    }
    sites.sort_by_key(|site| std::cmp::Reverse(site.bytes));
    sites.truncate(count);
    sites
}
