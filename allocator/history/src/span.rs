//! Span paths: which `tracing` spans a thread is in, as one small number.
//!
//! A path such as `train/step/forward layer=3` is kept once for the whole process, in a table that only grows, up to a
//! bound. A [`SpanPath`] is an index into it. Reading the current one is one thread-local read; the layer
//! ([`SpanPathLayer`](crate::SpanPathLayer)) does the rest when spans are made, entered and left.
//!
//! When the table is three quarters full, new paths lose the fields of their spans (a step number makes each step
//! another path); when it is full, every new path is the shared path `…`.
//!
//! The table's lock is a leaf: nothing else is locked, and no code of the program runs, while it is held.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    fmt,
    sync::Arc,
};

use parking_lot::RwLock;

/// Most paths that are kept.
const MAX_PATHS: usize = 65_536;
/// Paths deeper than this are the path of their ancestor at this depth.
const MAX_DEPTH: u32 = 64;

static TABLE: RwLock<Table> = RwLock::new(Table::new(MAX_PATHS));

thread_local! {
    static CURRENT: Cell<SpanPath> = const { Cell::new(SpanPath::ROOT) };
    /// Spans that this thread has entered and not left, oldest first.
    static ENTERED: RefCell<Vec<(u64, SpanPath)>> = const { RefCell::new(Vec::new()) };
}

/// The path of the spans that a thread was in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SpanPath(u32);

/// One span of a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SpanName {
    /// Name of the span, with the fields that it was made with: `layer i=3`.
    pub name: Arc<str>,
    /// Source file in which the span is made, empty if not known.
    pub file: &'static str,
    /// Line in that file, 0 if not known.
    pub line: u32,
}

impl SpanPath {
    /// No span. Its text is empty.
    pub const ROOT: SpanPath = SpanPath(0);
    /// Stands for every path that was made when the table was full. Its text is `…`.
    pub const OVERFLOW: SpanPath = SpanPath(1);

    /// The path of the calling thread: the root if it is in no span, or if no layer is installed.
    #[must_use]
    #[inline]
    pub fn current() -> Self {
        CURRENT.get()
    }

    /// Its number: 0 for the root. Equal paths of one process have equal numbers.
    #[must_use]
    pub fn id(self) -> u32 {
        self.0
    }

    /// Its spans, outermost first.
    #[must_use]
    pub fn spans(self) -> Vec<SpanName> {
        TABLE.read().spans(self)
    }

    /// Its text: names joined by `/`, outermost first.
    #[must_use]
    pub fn text(self) -> String {
        let mut text = String::new();
        for (index, span) in self.spans().iter().enumerate() {
            if index > 0 {
                text.push('/');
            }
            text.push_str(&span.name);
        }
        text
    }

    /// The path of a span inside this one. `with_fields` is its name with its fields, `name` without.
    pub(crate) fn child(self, name: &str, with_fields: &str, file: &'static str, line: u32) -> Self {
        let chosen = if TABLE.read().keeps_fields() { with_fields } else { name };
        let known = TABLE.read().find(self, chosen, file, line);
        known.unwrap_or_else(|| TABLE.write().intern(self, chosen, file, line))
    }

    /// Makes this the path of the thread until [`leave`](Self::leave) is called with the same span.
    pub(crate) fn enter(self, span: u64) {
        // A thread that is going away may have dropped its list already; then nobody reads the path either.
        let entered = ENTERED.try_with(|entered| entered.borrow_mut().push((span, self)));
        if entered.is_ok() {
            CURRENT.set(self);
        }
    }

    /// Undoes the last [`enter`](Self::enter) of `span`. Spans may be left in any order.
    pub(crate) fn leave(span: u64) {
        let top = ENTERED.try_with(|entered| {
            let mut entered = entered.borrow_mut();
            if let Some(index) = entered.iter().rposition(|&(id, _)| id == span) {
                entered.remove(index);
            }
            entered.last().map_or(SpanPath::ROOT, |&(_, path)| path)
        });
        CURRENT.set(top.unwrap_or(SpanPath::ROOT));
    }
}

impl Default for SpanPath {
    fn default() -> Self {
        Self::ROOT
    }
}

impl fmt::Display for SpanPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())
    }
}

struct Node {
    parent: SpanPath,
    depth: u32,
    span: SpanName,
    /// Paths one span longer, by name. Spans of one name made on different lines are different paths.
    children: BTreeMap<Arc<str>, Vec<SpanPath>>,
}

/// Every path there is. The root and the overflow path have no node: they are nodes −2 and −1, so to say.
struct Table {
    nodes: Vec<Node>,
    roots: BTreeMap<Arc<str>, Vec<SpanPath>>,
    limit: usize,
}

/// Paths with a number below this have no node.
const FIXED_PATHS: u32 = 2;

impl Table {
    const fn new(limit: usize) -> Self {
        Self { nodes: Vec::new(), roots: BTreeMap::new(), limit }
    }

    fn len(&self) -> usize {
        self.nodes.len() + FIXED_PATHS as usize
    }

    fn keeps_fields(&self) -> bool {
        self.len() < self.limit / 4 * 3
    }

    fn node(&self, path: SpanPath) -> Option<&Node> {
        self.nodes.get(path.0.checked_sub(FIXED_PATHS)? as usize)
    }

    fn find(&self, parent: SpanPath, name: &str, file: &'static str, line: u32) -> Option<SpanPath> {
        if parent == SpanPath::OVERFLOW {
            return Some(SpanPath::OVERFLOW);
        }
        let (children, depth) = self.node(parent).map_or((&self.roots, 0), |node| (&node.children, node.depth));
        if depth == MAX_DEPTH {
            return Some(parent);
        }
        let is_it = |path: &SpanPath| {
            let span = &self.node(*path).expect("children are in the table").span;
            span.line == line && span.file == file
        };
        children.get(name)?.iter().copied().find(is_it)
    }

    fn intern(&mut self, parent: SpanPath, name: &str, file: &'static str, line: u32) -> SpanPath {
        if let Some(path) = self.find(parent, name, file, line) {
            return path;
        }
        if self.len() >= self.limit {
            return SpanPath::OVERFLOW;
        }
        let path = SpanPath(u32::try_from(self.len()).expect("the bound fits 32 bits"));
        let name: Arc<str> = name.into();
        let depth = self.node(parent).map_or(0, |node| node.depth) + 1;
        let children = match parent.0.checked_sub(FIXED_PATHS) {
            Some(index) => &mut self.nodes[index as usize].children,
            None => &mut self.roots,
        };
        children.entry(Arc::clone(&name)).or_default().push(path);
        self.nodes.push(Node { parent, depth, span: SpanName { name, file, line }, children: BTreeMap::new() });
        path
    }

    fn spans(&self, path: SpanPath) -> Vec<SpanName> {
        if path == SpanPath::OVERFLOW {
            return vec![SpanName { name: "…".into(), file: "", line: 0 }];
        }
        let mut spans = Vec::new();
        let mut at = path;
        while let Some(node) = self.node(at) {
            spans.push(node.span.clone());
            at = node.parent;
        }
        spans.reverse();
        spans
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(table: &Table, path: SpanPath) -> String {
        table.spans(path).iter().map(|span| span.name.to_string()).collect::<Vec<_>>().join("/")
    }

    #[test]
    fn equal_paths_have_one_number() {
        let mut table = Table::new(100);
        let train = table.intern(SpanPath::ROOT, "train", "a.rs", 1);
        let step = table.intern(train, "step", "a.rs", 2);
        assert_eq!(table.intern(train, "step", "a.rs", 2), step);
        assert_ne!(table.intern(SpanPath::ROOT, "step", "a.rs", 2), step);
        assert_ne!(table.intern(train, "step", "a.rs", 3), step, "another line is another span");
        assert_eq!(text(&table, step), "train/step");
        assert_eq!(text(&table, SpanPath::ROOT), "");
    }

    #[test]
    fn a_full_table_gives_the_shared_path() {
        let mut table = Table::new(5);
        let paths: Vec<_> = ["a", "b", "c", "d", "e"].map(|name| table.intern(SpanPath::ROOT, name, "", 0)).into();
        assert_eq!(&paths[3..], [SpanPath::OVERFLOW, SpanPath::OVERFLOW]);
        assert_eq!(table.intern(SpanPath::OVERFLOW, "a", "", 0), SpanPath::OVERFLOW);
        assert_eq!(table.intern(SpanPath::ROOT, "b", "", 0), paths[1], "what is known stays known");
        assert_eq!(text(&table, SpanPath::OVERFLOW), "…");
        assert_eq!(table.len(), 5);
    }

    #[test]
    fn a_table_stops_keeping_fields_before_it_is_full() {
        let mut table = Table::new(16);
        let mut count = 0;
        while table.keeps_fields() {
            table.intern(SpanPath::ROOT, &format!("step i={count}"), "", 0);
            count += 1;
        }
        assert_eq!(count, 10);
        assert_ne!(table.intern(SpanPath::ROOT, "step", "", 0), SpanPath::OVERFLOW);
    }

    #[test]
    fn depth_is_bounded() {
        let mut table = Table::new(1000);
        let mut path = SpanPath::ROOT;
        for _ in 0..200 {
            path = table.intern(path, "again", "", 0);
        }
        assert_eq!(table.spans(path).len(), 64);
    }

    #[test]
    fn spans_may_be_left_in_any_order() {
        let outer = SpanPath::ROOT.child("outer", "outer", "x.rs", 1);
        let inner = outer.child("inner", "inner", "x.rs", 2);
        outer.enter(1);
        inner.enter(2);
        SpanPath::leave(1);
        assert_eq!(SpanPath::current(), inner);
        SpanPath::leave(7);
        assert_eq!(SpanPath::current(), inner, "leaving what was not entered changes nothing");
        SpanPath::leave(2);
        assert_eq!(SpanPath::current(), SpanPath::ROOT);
        outer.enter(1);
        inner.enter(2);
        outer.enter(1);
        SpanPath::leave(1);
        assert_eq!(SpanPath::current(), inner, "the newest of two entries of one span is undone");
        SpanPath::leave(2);
        SpanPath::leave(1);
    }
}
