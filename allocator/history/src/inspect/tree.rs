//! Live memory as a tree of stacks: who called whom, with the bytes below.
//!
//! The nodes lie in one list, parents before their children, so that a stack of any depth needs no recursion.
//!
//! Invariant: the bytes of a node are its own and those of its children.

use std::collections::BTreeMap;

use crate::{
    StackId,
    read::FrameId,
    state::sites::{self, Key},
};

use super::{At, size};

/// What a node stands for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Label {
    Root,
    Frame(FrameId),
    /// Blocks of a size whose stack was not recorded.
    Size(u64),
}

/// A frame with what was allocated in it and in what it called.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Node {
    label: Label,
    /// Index of the node that it was called from; the root is its own.
    pub parent: usize,
    /// Number of nodes above it.
    pub depth: usize,
    /// Bytes of live blocks, as asked for.
    pub bytes: u64,
    /// Number of live blocks.
    pub blocks: u64,
    /// The part of the bytes that was allocated in this frame itself.
    pub own_bytes: u64,
    /// Indices of the nodes that it called, the most bytes first.
    pub children: Vec<usize>,
}

/// Stacks that share their outer frames share their nodes.
#[derive(Clone, Debug)]
pub struct Tree<'a> {
    loaded: &'a crate::read::Loaded,
    nodes: Vec<Node>,
}

impl At<'_> {
    /// The live blocks as a tree, from the outermost frame to the innermost. Blocks without a stack are below the root,
    /// by size.
    #[must_use]
    pub fn tree(&self) -> Tree<'_> {
        let mut tree = Tree { loaded: self.loaded, nodes: vec![Node::new(Label::Root, 0, 0)] };
        let mut places = BTreeMap::new();
        for (key, bytes, blocks) in sites::by_stack(&self.memory, |held| !held.pending) {
            tree.add(&mut places, key, bytes, blocks);
        }
        tree.sort();
        tree
    }
}

impl Node {
    fn new(label: Label, parent: usize, depth: usize) -> Self {
        Self { label, parent, depth, bytes: 0, blocks: 0, own_bytes: 0, children: Vec::new() }
    }
}

impl Tree<'_> {
    fn add(&mut self, places: &mut BTreeMap<(usize, Label), usize>, (stack, size): Key, bytes: u64, blocks: u64) {
        let mut labels: Vec<Label> = self.loaded.symbols.stack(stack).map(Label::Frame).collect();
        if stack == StackId::EMPTY {
            labels.push(Label::Size(size));
        }
        let mut at = 0;
        self.grow(at, bytes, blocks);
        for &label in labels.iter().rev() {
            at = *places.entry((at, label)).or_insert_with(|| {
                let new = self.nodes.len();
                self.nodes.push(Node::new(label, at, self.nodes[at].depth + 1));
                self.nodes[at].children.push(new);
                new
            });
            self.grow(at, bytes, blocks);
        }
        self.nodes[at].own_bytes += bytes;
    }

    fn grow(&mut self, node: usize, bytes: u64, blocks: u64) {
        self.nodes[node].bytes += bytes;
        self.nodes[node].blocks += blocks;
    }

    fn sort(&mut self) {
        for node in 0..self.nodes.len() {
            let mut children = std::mem::take(&mut self.nodes[node].children);
            children.sort_by_key(|&child| std::cmp::Reverse(self.nodes[child].bytes));
            self.nodes[node].children = children;
        }
    }

    /// The nodes. The first is the root, and each comes after its parent.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// What a node is: its line of the program. The root is `all`. Panics if there is no such node.
    #[must_use]
    pub fn text(&self, node: usize) -> String {
        match self.nodes[node].label {
            Label::Root => "all".to_owned(),
            Label::Frame(frame) => sites::line(self.loaded, frame),
            Label::Size(bytes) => format!("blocks of {}, no stack recorded", size(bytes)),
        }
    }

    /// The stacks as flame graphs read them: frames from the outermost to the innermost, and bytes.
    pub fn folded(&self) -> impl Iterator<Item = (Vec<String>, u64)> {
        (0..self.nodes.len()).filter(|&node| self.nodes[node].own_bytes > 0).map(|node| {
            let mut path = Vec::new();
            let mut at = node;
            while at != 0 {
                path.push(self.text(at));
                at = self.nodes[at].parent;
            }
            path.reverse();
            (path, self.nodes[node].own_bytes)
        })
    }
}
