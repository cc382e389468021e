//! What a pickle is made of, as the viewer sees it.
//!
//! Lists, dictionaries and texts live in a heap and are referred to by number, as objects are: two references to one
//! list see each other's changes, and a cycle is harmless. Texts are kept once each.

use std::{collections::BTreeMap, sync::Arc};

/// A value, or a reference to one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Value {
    None,
    Bool(bool),
    /// An integer that a double holds.
    Int(i64),
    /// An integer of more than eight bytes. The viewer can keep it, but not compute with it.
    BigInt,
    Float(f64),
    Text(TextId),
    List(ListId),
    Dict(DictId),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct TextId(u32);
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct ListId(u32);
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct DictId(u32);

#[derive(Default)]
pub(super) struct Heap {
    lists: Vec<Vec<Value>>,
    dicts: Vec<BTreeMap<TextId, Value>>,
    texts: Vec<Arc<str>>,
    text_ids: BTreeMap<Arc<str>, TextId>,
}

impl Heap {
    pub(super) fn new_list(&mut self, items: Vec<Value>) -> Value {
        self.lists.push(items);
        Value::List(ListId(id(self.lists.len())))
    }

    pub(super) fn new_dict(&mut self) -> DictId {
        self.dicts.push(BTreeMap::new());
        DictId(id(self.dicts.len()))
    }

    pub(super) fn text_id(&mut self, text: &str) -> TextId {
        if let Some(&known) = self.text_ids.get(text) {
            return known;
        }
        let kept: Arc<str> = text.into();
        self.texts.push(Arc::clone(&kept));
        let new = TextId(id(self.texts.len()));
        self.text_ids.insert(kept, new);
        new
    }

    pub(super) fn push(&mut self, list: ListId, items: impl IntoIterator<Item = Value>) {
        self.lists[list.0 as usize].extend(items);
    }

    /// Sets an entry. A key that is no text becomes one, as in the viewer; `false` if it cannot.
    pub(super) fn set(&mut self, dict: DictId, key: Value, value: Value) -> bool {
        let key = match key {
            Value::Text(text) => text,
            Value::Int(number) => self.text_id(&number.to_string()),
            Value::Bool(bool) => self.text_id(if bool { "true" } else { "false" }),
            Value::None => self.text_id("null"),
            Value::BigInt | Value::Float(_) | Value::List(_) | Value::Dict(_) => return false,
        };
        self.dicts[dict.0 as usize].insert(key, value);
        true
    }

    pub(super) fn list(&self, list: ListId) -> &[Value] {
        &self.lists[list.0 as usize]
    }

    pub(super) fn text(&self, text: TextId) -> &str {
        &self.texts[text.0 as usize]
    }

    pub(super) fn get(&self, dict: DictId, key: TextId) -> Option<Value> {
        self.dicts[dict.0 as usize].get(&key).copied()
    }

    /// The number of a key, if any dictionary or text of the file has it.
    pub(super) fn key(&self, key: &str) -> Option<TextId> {
        self.text_ids.get(key).copied()
    }
}

/// Number of the last of `count` entries.
fn id(count: usize) -> u32 {
    u32::try_from(count - 1).expect("a file has fewer than four billion objects: `unpickle` refuses larger files")
}
