//! `highwater snapshot at`: live memory at a moment, as a tree of stacks.

use std::fmt::Write;

use highwater::history::inspect::{At, Tree, size};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::why::text::Style;

use super::arguments::AtArgs;
use super::input::{Opened, open};
use super::{Told, style, text};

/// Part of what is live below which a frame is left out, unless it is said.
const SMALL_PART: u64 = 200;

/// Which part of a tree is told.
#[derive(Clone, Copy)]
struct Cut {
    levels: usize,
    min_bytes: u64,
}

/// Tells each file.
pub(super) fn run(arguments: &AtArgs) -> Result<(), Failure> {
    for path in &arguments.files {
        let opened = open(path)?;
        let at = opened.at(arguments.device, &arguments.when)?;
        let tree = at.tree();
        let small = (tree.nodes()[0].bytes / SMALL_PART).max(1);
        let cut = Cut { levels: arguments.depth.into(), min_bytes: arguments.min_bytes.unwrap_or(small) };
        let mut json = text::moment_json(&opened, &at);
        json["tree"] = branch_json(&tree, 0, cut);
        Told { text: words(&opened, &at, &tree, cut), json }.print(arguments.json)?;
    }
    Ok(())
}

fn words(opened: &Opened, at: &At<'_>, tree: &Tree<'_>, cut: Cut) -> String {
    let style = style();
    let mut out = format!("{}\n{}\n\n", style.strong(&text::moment(opened, at)), text::sums(&at.sums()));
    branch(&mut out, tree, 0, 0, cut, style);
    text::tell_notes(&mut out, &text::notes(opened, at.faults()), style);
    out
}

/// A frame and what it alone calls, down to the first that calls several, or allocates itself.
fn chain(tree: &Tree<'_>, from: usize) -> Vec<usize> {
    let nodes = tree.nodes();
    let mut chain = vec![from];
    let mut at = from;
    // The root stays on its own.
    while let [only] = nodes[at].children[..]
        && nodes[at].own_bytes == 0
        && nodes[only].blocks == nodes[at].blocks
        && from != 0
    {
        chain.push(only);
        at = only;
    }
    chain
}

/// The children that are told, and the number and the bytes of the others.
fn told(tree: &Tree<'_>, node: usize, cut: Cut) -> (Vec<usize>, usize, u64) {
    let nodes = tree.nodes();
    let is_told = |&&child: &&usize| cut.levels > 0 && nodes[child].bytes >= cut.min_bytes;
    let (children, rest): (Vec<&usize>, Vec<&usize>) = nodes[node].children.iter().partition(is_told);
    let bytes = rest.iter().map(|&&child| nodes[child].bytes).sum();
    (children.into_iter().copied().collect(), rest.len(), bytes)
}

/// Recurses as deep as levels are told, which are few.
fn branch(out: &mut String, tree: &Tree<'_>, from: usize, level: usize, cut: Cut, style: Style) {
    let chain = chain(tree, from);
    let last = chain[chain.len() - 1];
    let node = &tree.nodes()[from];
    let name = match chain[..] {
        [one] => tree.text(one),
        [first, second] => format!("{} > {}", tree.text(first), tree.text(second)),
        _ => format!("{} > {} more > {}", tree.text(from), chain.len() - 2, tree.text(last)),
    };
    let indent = "  ".repeat(level);
    let _ = writeln!(out, "{:>12} {:>7}  {indent}{name}", size(node.bytes), node.blocks);
    let (children, rest, bytes) = told(tree, last, cut);
    for child in children {
        branch(out, tree, child, level + 1, Cut { levels: cut.levels - 1, ..cut }, style);
    }
    if rest > 0 {
        let others = style.faint(&format!("{rest} more"));
        let _ = writeln!(out, "{:>12} {:>7}  {indent}  {others}", size(bytes), "");
    }
}

/// The same as an object. Recurses as deep as levels are told.
fn branch_json(tree: &Tree<'_>, from: usize, cut: Cut) -> Value {
    let chain = chain(tree, from);
    let last = chain[chain.len() - 1];
    let node = &tree.nodes()[from];
    let (children, rest, rest_bytes) = told(tree, last, cut);
    let below = Cut { levels: cut.levels.saturating_sub(1), ..cut };
    let frames: Vec<_> = chain.iter().map(|&one| tree.text(one)).collect();
    let children: Vec<_> = children.into_iter().map(|child| branch_json(tree, child, below)).collect();
    json!({
        "frames": frames,
        "bytes": node.bytes,
        "blocks": node.blocks,
        "own_bytes": tree.nodes()[last].own_bytes,
        "children": children,
        "left_out": rest,
        "left_out_bytes": rest_bytes,
    })
}
