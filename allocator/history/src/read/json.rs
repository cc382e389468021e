//! Snapshots as JSON: what `json.dump` makes of the dictionary that a pickle holds.
//!
//! One pass, like the one over pickles: each object and each list is recognised when it ends, so an event becomes a row
//! and a stack a number at once. Nothing recurses; every value takes at least one byte of the file.
//!
//! Invariant: the stack of values above the start of the innermost open container is what the container holds so far,
//! of a dictionary keys and values in turn.

use super::{
    ReadError,
    heap::{Object, Value},
    shape::Found,
};

/// How deep values may nest, as in pickles.
const MAX_DEPTH: usize = 256;

type Read<T> = Result<T, ReadError>;

/// Whether a file is JSON that could be a snapshot: a dictionary with a key, or a list of dictionaries. Texts of errors
/// may begin with a bracket too (`[rank0]: …`).
#[must_use]
pub fn is_json(file: &[u8]) -> bool {
    let mut bytes = file.iter().filter(|byte| !byte.is_ascii_whitespace());
    matches!((bytes.next(), bytes.next()), (Some(b'{'), Some(b'"' | b'}')) | (Some(b'['), Some(b'{' | b']')))
}

/// A list or a dictionary that has begun.
#[derive(Clone, Copy)]
struct Open {
    /// Height of the stack at its begin.
    start: usize,
    is_dict: bool,
}

pub(super) struct Json<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Value>,
    open: Vec<Open>,
    found: Found,
    /// A text with escapes.
    scratch: Vec<u8>,
}

impl<'a> Json<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, stack: Vec::new(), open: Vec::new(), found: Found::new(), scratch: Vec::new() }
    }

    pub(super) fn into_found(self) -> Found {
        self.found
    }

    /// The byte at which reading stands.
    pub(super) fn offset(&self) -> u64 {
        self.at as u64
    }

    /// Reads to the end. The value of the file.
    pub(super) fn run(&mut self) -> Read<Value> {
        loop {
            self.value()?;
            // What ends behind a value: as many containers as do.
            loop {
                let Some(&open) = self.open.last() else { return self.whole() };
                match (self.next()?, open.is_dict) {
                    (b',', true) => {
                        self.key()?;
                        break;
                    }
                    (b',', false) => break,
                    (b'}', true) | (b']', false) => self.end()?,
                    (_, true) => return Err(self.expected_before("a comma or the end of a dictionary")),
                    (_, false) => return Err(self.expected_before("a comma or the end of a list")),
                }
            }
        }
    }

    /// The value of the file, if nothing follows it.
    fn whole(&mut self) -> Read<Value> {
        self.skip_space();
        match self.at == self.bytes.len() {
            true => Ok(self.stack[0]),
            false => Err(self.expected("nothing behind the snapshot")),
        }
    }

    /// Ends what is unfinished, so that what was complete before is found: dictionaries that are not are dropped, but
    /// for the outermost.
    pub(super) fn close(&mut self) -> Option<Value> {
        while let Some(&open) = self.open.last() {
            if open.is_dict {
                // A key whose value is missing.
                let odd = (self.stack.len() - open.start) % 2;
                self.stack.truncate(self.stack.len() - odd);
            }
            let is_lost = open.is_dict && self.open.len() > 1;
            if is_lost || self.end().is_err() {
                self.stack.truncate(open.start);
                self.open.pop();
            }
        }
        self.stack.first().copied()
    }

    /// Reads a value, or begins one that has values inside.
    fn value(&mut self) -> Read<()> {
        loop {
            match self.next()? {
                b'{' => {
                    self.begin(true)?;
                    if self.peek()? == b'}' {
                        self.at += 1;
                        return self.end();
                    }
                    self.key()?;
                }
                b'[' => {
                    self.begin(false)?;
                    if self.peek()? == b']' {
                        self.at += 1;
                        return self.end();
                    }
                }
                b'"' => {
                    let text = self.text()?;
                    self.stack.push(Value::Text(text));
                    return Ok(());
                }
                first => return self.plain(first),
            }
        }
    }

    fn begin(&mut self, is_dict: bool) -> Read<()> {
        if self.open.len() == MAX_DEPTH {
            let (offset, what, limit) = (self.offset(), "values inside each other", MAX_DEPTH);
            return Err(ReadError::TooMany { offset, what, limit });
        }
        self.open.push(Open { start: self.stack.len(), is_dict });
        Ok(())
    }

    /// Reads a key and the colon behind it.
    fn key(&mut self) -> Read<()> {
        if self.next()? != b'"' {
            return Err(self.expected_before("a key in quotes"));
        }
        let key = self.text()?;
        self.stack.push(Value::Text(key));
        match self.next()? {
            b':' => Ok(()),
            _ => Err(self.expected_before("a colon behind the key")),
        }
    }

    /// Ends the innermost container: it becomes a value.
    fn end(&mut self) -> Read<()> {
        let Open { start, is_dict } = *self.open.last().expect("the caller has seen it");
        let stack = std::mem::take(&mut self.stack);
        let made = if is_dict { self.dict(&stack[start..]) } else { self.list(&stack[start..]) };
        self.stack = stack;
        let value = made?;
        self.stack.truncate(start);
        self.stack.push(value);
        self.open.pop();
        Ok(())
    }

    fn dict(&mut self, entries: &[Value]) -> Read<Value> {
        let offset = self.offset();
        let object = match self.found.recognise(entries, offset)? {
            Some(Object::Event(row)) => return Ok(Value::Event(row)),
            Some(Object::Frame(frame)) => return Ok(Value::Frame(frame)),
            Some(recognised) => recognised,
            None if entries.is_empty() => Object::EmptyDict,
            None => self.found.heap.new_dict(entries.to_vec()),
        };
        Ok(self.found.heap.add(object))
    }

    fn list(&mut self, items: &[Value]) -> Read<Value> {
        if let &[Value::Int(first), Value::Int(second)] = items
            && let (Ok(first), Ok(second)) = (u32::try_from(first), u32::try_from(second))
        {
            return Ok(Value::Pair(first, second));
        }
        if matches!(items.first(), Some(Value::Frame(_)))
            && let Some(Object::Stack(stack)) = self.found.stack_of(items)
        {
            return Ok(Value::Stack(stack));
        }
        let list = self.found.heap.add(Object::EmptyList);
        if let Value::Object(number) = list {
            self.found.extend(number, items, self.offset())?;
        }
        Ok(list)
    }

    /// A number or a word, whose first byte was read.
    fn plain(&mut self, first: u8) -> Read<()> {
        let start = self.at - 1;
        let more = self.bytes[self.at..].iter();
        self.at += more.take_while(|byte| byte.is_ascii_alphanumeric() || b"+-._".contains(byte)).count();
        let word = str::from_utf8(&self.bytes[start..self.at]).unwrap_or_default();
        let value = match word {
            "null" => Value::None,
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            // Python writes them so.
            "NaN" => Value::Float(f64::NAN),
            "Infinity" => Value::Float(f64::INFINITY),
            "-Infinity" => Value::Float(f64::NEG_INFINITY),
            _ if first.is_ascii_digit() || first == b'-' => number(word).ok_or_else(|| {
                self.at = start;
                self.expected("a number")
            })?,
            _ => {
                self.at = start;
                let is_cut = first.is_ascii_lowercase() && word.len() == self.bytes.len() - start;
                return Err(if is_cut { self.cut() } else { self.expected("a value") });
            }
        };
        self.stack.push(value);
        Ok(())
    }

    /// The number of a text, behind its opening quote.
    fn text(&mut self) -> Read<u32> {
        let start = self.at;
        loop {
            match self.bytes.get(self.at) {
                None => {
                    self.at = start - 1;
                    return Err(self.cut());
                }
                Some(b'"') => {
                    let text = self.found.symbols.intern_text(&self.bytes[start..self.at]);
                    self.at += 1;
                    return Ok(text);
                }
                Some(b'\\') => return self.escaped(start),
                Some(_) => self.at += 1,
            }
        }
    }

    /// The number of a text that has escapes.
    #[cold]
    fn escaped(&mut self, start: usize) -> Read<u32> {
        self.scratch.clear();
        self.scratch.extend_from_slice(&self.bytes[start..self.at]);
        loop {
            let Some(&byte) = self.bytes.get(self.at) else {
                self.at = start - 1;
                return Err(self.cut());
            };
            self.at += 1;
            match byte {
                b'"' => return Ok(self.found.symbols.intern_text(&self.scratch)),
                b'\\' => {
                    let character = self.escape()?;
                    self.scratch.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                }
                byte => self.scratch.push(byte),
            }
        }
    }

    /// The character of an escape, behind its backslash. Half of a pair alone is the replacement character.
    fn escape(&mut self) -> Read<char> {
        let Some(&kind) = self.bytes.get(self.at) else { return Err(self.cut()) };
        self.at += 1;
        Ok(match kind {
            b'"' | b'\\' | b'/' => char::from(kind),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.four_digits()?;
                let is_high = (0xd800..0xdc00).contains(&first);
                if is_high && self.bytes[self.at..].starts_with(b"\\u") {
                    let before = self.at;
                    self.at += 2;
                    let second = self.four_digits()?;
                    if (0xdc00..0xe000).contains(&second) {
                        let both = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                        return Ok(char::from_u32(both).unwrap_or(char::REPLACEMENT_CHARACTER));
                    }
                    self.at = before;
                }
                char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            _ => return Err(self.expected_before("an escape of JSON")),
        })
    }

    fn four_digits(&mut self) -> Read<u32> {
        let Some(digits) = self.bytes.get(self.at..self.at + 4) else { return Err(self.cut()) };
        let digit = |value: Option<u32>, &byte: &u8| Some(value? << 4 | char::from(byte).to_digit(16)?);
        let value = digits.iter().fold(Some(0), digit).ok_or_else(|| self.expected("four hexadecimal digits"))?;
        self.at += 4;
        Ok(value)
    }

    fn skip_space(&mut self) {
        self.at += self.bytes[self.at..].iter().take_while(|byte| b" \n\r\t".contains(byte)).count();
    }

    /// The next byte that is no space.
    fn peek(&mut self) -> Read<u8> {
        self.skip_space();
        self.bytes.get(self.at).copied().ok_or_else(|| self.cut())
    }

    /// Takes the next byte that is no space.
    fn next(&mut self) -> Read<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Ok(byte)
    }

    #[cold]
    fn cut(&self) -> ReadError {
        ReadError::Truncated { offset: self.offset() }
    }

    #[cold]
    fn expected(&self, expected: &'static str) -> ReadError {
        ReadError::Malformed { offset: self.offset(), expected }
    }

    /// An error at the byte that was just taken.
    #[cold]
    fn expected_before(&self, expected: &'static str) -> ReadError {
        ReadError::Malformed { offset: self.offset() - 1, expected }
    }
}

fn number(word: &str) -> Option<Value> {
    if let Ok(value) = word.parse::<i64>() {
        return Some(Value::Int(value));
    }
    if let Ok(value) = word.parse::<u64>() {
        return Some(Value::Large(value));
    }
    match word.parse::<f64>() {
        // As a pickle with a longer integer: nothing in a snapshot is one.
        Ok(_) if !word.contains(['.', 'e', 'E']) => Some(Value::Other),
        Ok(value) => Some(Value::Float(value)),
        Err(_) => None,
    }
}
