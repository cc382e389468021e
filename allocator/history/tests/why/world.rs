//! Snapshots as PyTorch writes them, made from a story: a small caching allocator that records what it does.

use std::collections::BTreeMap;

use highwater_history::{
    read::{self, Loaded},
    why::{Options, Verdict, explain},
};

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

/// A value of a pickle.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Int(u64),
    Minus(u8),
    Bool(bool),
    Text(String),
    List(Vec<Value>),
    Dict(Vec<(String, Value)>),
    Pair(u64, u64),
}

pub(crate) fn dict<const N: usize>(entries: [(&str, Value); N]) -> Value {
    Value::Dict(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

pub(crate) fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

pub(crate) fn pickle(value: &Value) -> Vec<u8> {
    let mut out = vec![0x80, 2];
    put(&mut out, value);
    out.push(b'.');
    out
}

fn put(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Int(value) => {
            // A ninth byte keeps what is above 2^63 from being negative.
            let bytes = if *value < 1 << 63 { 8 } else { 9 };
            out.extend([0x8a, bytes as u8]);
            out.extend(&u128::from(*value).to_le_bytes()[..bytes]);
        }
        Value::Minus(value) => {
            out.push(b'J');
            out.extend((-i32::from(*value)).to_le_bytes());
        }
        Value::Bool(value) => out.push(if *value { 0x88 } else { 0x89 }),
        Value::Text(text) => {
            out.push(b'X');
            out.extend((text.len() as u32).to_le_bytes());
            out.extend(text.as_bytes());
        }
        Value::List(items) => {
            out.extend(*b"](");
            items.iter().for_each(|item| put(out, item));
            out.push(b'e');
        }
        Value::Dict(entries) => {
            out.extend(*b"}(");
            for (key, value) in entries {
                put(out, &text(key));
                put(out, value);
            }
            out.push(b'u');
        }
        Value::Pair(a, b) => {
            put(out, &Value::Int(*a));
            put(out, &Value::Int(*b));
            out.push(0x86);
        }
    }
}

#[derive(Clone)]
struct Segment {
    bytes: u64,
    stream: u64,
    pool: (u64, u64),
    expandable: bool,
}

#[derive(Clone)]
struct Block {
    requested: u64,
    bytes: u64,
    pending: bool,
    site: String,
}

/// One device and its story.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) events: Vec<Value>,
    segments: BTreeMap<u64, Segment>,
    blocks: BTreeMap<u64, Block>,
    annotations: Vec<Value>,
    pub(crate) settings: Vec<(String, Value)>,
    pub(crate) recorder: Option<Value>,
    pub(crate) time_us: u64,
    next_address: u64,
    /// The stream and pool that requests are of.
    pub(crate) stream: u64,
    pub(crate) pool: (u64, u64),
    pub(crate) expandable: bool,
    pub(crate) timed: bool,
}

impl World {
    pub(crate) fn new() -> Self {
        Self {
            events: Vec::new(),
            segments: BTreeMap::new(),
            blocks: BTreeMap::new(),
            annotations: Vec::new(),
            settings: vec![("max_split_size".to_owned(), Value::Minus(1))],
            recorder: None,
            time_us: 1_000_000,
            next_address: 0x7f00_0000_0000,
            stream: 0,
            pool: (0, 0),
            expandable: false,
            timed: true,
        }
    }

    pub(crate) fn rows(&self) -> usize {
        self.events.len()
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.segments.values().map(|segment| segment.bytes).sum()
    }

    fn event(&mut self, action: &str, address: u64, bytes: u64, stream: u64, site: &str) {
        self.time_us += 10;
        let key = if action == "oom" { "device_free" } else { "addr" };
        let mut entries = vec![
            ("action".to_owned(), text(action)),
            (key.to_owned(), Value::Int(address)),
            ("size".to_owned(), Value::Int(bytes)),
            ("stream".to_owned(), Value::Int(stream)),
            ("frames".to_owned(), frames(site)),
        ];
        if self.timed {
            entries.push(("time_us".to_owned(), Value::Int(self.time_us)));
        }
        if self.pool != (0, 0) {
            entries.push(("pool_id".to_owned(), Value::Pair(self.pool.0, self.pool.1)));
        }
        self.events.push(Value::Dict(entries));
    }

    /// A new segment, or a run of mapped pages.
    pub(crate) fn segment(&mut self, bytes: u64) -> u64 {
        let address = self.next_address;
        self.next_address += bytes + 64 * MIB;
        let action = if self.expandable { "segment_map" } else { "segment_alloc" };
        let (stream, pool, expandable) = (self.stream, self.pool, self.expandable);
        self.event(action, address, bytes, stream, "");
        self.segments.insert(address, Segment { bytes, stream, pool, expandable });
        address
    }

    pub(crate) fn return_segment(&mut self, address: u64) {
        let segment = self.segments.remove(&address).expect("it is there");
        assert!(self.blocks.range(address..address + segment.bytes).next().is_none(), "it is in use");
        let action = if segment.expandable { "segment_unmap" } else { "segment_free" };
        self.event(action, address, segment.bytes, segment.stream, "");
    }

    /// Returns all that can be, as a request does that finds nothing.
    pub(crate) fn release(&mut self) {
        let used = |&(&address, segment): &(&u64, &Segment)| {
            segment.pool == (0, 0) && self.blocks.range(address..address + segment.bytes).next().is_none()
        };
        let free: Vec<u64> = self.segments.iter().filter(used).map(|(&address, _)| address).collect();
        free.into_iter().for_each(|address| self.return_segment(address));
    }

    /// Puts a block where it is said to be.
    pub(crate) fn put(&mut self, address: u64, requested: u64, site: &str) -> u64 {
        let bytes = requested.next_multiple_of(512);
        self.event("alloc", address, requested, self.stream, site);
        self.blocks.insert(address, Block { requested, bytes, pending: false, site: site.to_owned() });
        address
    }

    /// Allocates: first fit in the segments of the stream, else a new segment.
    pub(crate) fn alloc(&mut self, requested: u64, site: &str) -> u64 {
        let bytes = requested.next_multiple_of(512);
        let address = self.fit(bytes).unwrap_or_else(|| {
            let segment = match bytes {
                0..=MIB => 2 * MIB,
                _ if bytes < 10 * MIB && !self.expandable => 20 * MIB,
                _ => bytes.next_multiple_of(2 * MIB),
            };
            self.segment(segment)
        });
        self.put(address, requested, site)
    }

    fn fit(&self, bytes: u64) -> Option<u64> {
        let small = bytes <= MIB;
        let own = |segment: &Segment| {
            segment.stream == self.stream && segment.pool == self.pool && (segment.bytes == 2 * MIB) == small
        };
        for (&address, segment) in self.segments.iter().filter(|(_, segment)| own(segment)) {
            let (mut at, end) = (address, address + segment.bytes);
            for (&block, held) in self.blocks.range(address..end) {
                if block - at >= bytes {
                    return Some(at);
                }
                at = block + held.bytes;
            }
            if end - at >= bytes {
                return Some(at);
            }
        }
        None
    }

    pub(crate) fn request_free(&mut self, address: u64) {
        let block = self.blocks.get_mut(&address).expect("it is live");
        block.pending = true;
        let (requested, site) = (block.requested, block.site.clone());
        self.event("free_requested", address, requested, self.stream, &site);
    }

    pub(crate) fn complete(&mut self, address: u64) {
        let block = self.blocks.remove(&address).expect("it is pending");
        self.event("free_completed", address, block.requested, self.stream, &block.site);
    }

    pub(crate) fn free(&mut self, address: u64) {
        self.request_free(address);
        self.complete(address);
    }

    /// A request that fails after what is cached was returned, with so much free on the device.
    pub(crate) fn out_of_memory(&mut self, bytes: u64, free: u64, site: &str) {
        self.release();
        self.refuse(bytes, free, site);
    }

    /// A request that fails at once.
    pub(crate) fn refuse(&mut self, bytes: u64, free: u64, site: &str) {
        let stream = self.stream;
        self.event("oom", free, bytes, stream, site);
    }

    pub(crate) fn mark(&mut self, name: &str) {
        self.time_us += 10;
        let (name, time) = (text(name), Value::Int(self.time_us));
        let stage = text("START");
        self.annotations.push(dict([("name", name), ("stage", stage), ("device", Value::Int(0)), ("time_us", time)]));
    }

    pub(crate) fn setting(&mut self, name: &str, value: Value) {
        self.settings.retain(|(known, _)| known != name);
        self.settings.push((name.to_owned(), value));
    }

    pub(crate) fn segments(&self) -> Value {
        let of = |(&address, segment): (&u64, &Segment)| {
            let (mut at, end, mut blocks) = (address, address + segment.bytes, Vec::new());
            let block = |address: u64, bytes: u64, requested: u64, state: &str, site: &str| {
                dict([
                    ("address", Value::Int(address)),
                    ("size", Value::Int(bytes)),
                    ("requested_size", Value::Int(requested)),
                    ("state", text(state)),
                    ("frames", frames(site)),
                ])
            };
            let (mut allocated, mut active, mut requested) = (0, 0, 0);
            for (&start, held) in self.blocks.range(address..end) {
                if at < start {
                    blocks.push(block(at, start - at, 0, "inactive", ""));
                }
                let state = if held.pending { "active_pending_free" } else { "active_allocated" };
                blocks.push(block(start, held.bytes, held.requested, state, &held.site));
                allocated += if held.pending { 0 } else { held.bytes };
                (active, requested) = (active + held.bytes, requested + held.requested);
                at = start + held.bytes;
            }
            if at < end {
                blocks.push(block(at, end - at, 0, "inactive", ""));
            }
            dict([
                ("device", Value::Int(0)),
                ("address", Value::Int(address)),
                ("total_size", Value::Int(segment.bytes)),
                ("allocated_size", Value::Int(allocated)),
                ("active_size", Value::Int(active)),
                ("requested_size", Value::Int(requested)),
                ("stream", Value::Int(segment.stream)),
                ("segment_type", text(if segment.bytes == 2 * MIB { "small" } else { "large" })),
                ("segment_pool_id", Value::Pair(segment.pool.0, segment.pool.1)),
                ("is_expandable", Value::Bool(segment.expandable)),
                ("frames", Value::List(Vec::new())),
                ("blocks", Value::List(blocks)),
            ])
        };
        Value::List(self.segments.iter().map(of).collect())
    }

    pub(crate) fn file(&self) -> Vec<u8> {
        let mut entries = vec![
            ("segments".to_owned(), self.segments()),
            ("device_traces".to_owned(), Value::List(vec![Value::List(self.events.clone())])),
            ("allocator_settings".to_owned(), Value::Dict(self.settings.clone())),
            ("external_annotations".to_owned(), Value::List(self.annotations.clone())),
        ];
        entries.extend(self.recorder.clone().map(|recorder| ("recorder".to_owned(), recorder)));
        pickle(&Value::Dict(entries))
    }

    pub(crate) fn loaded(&self) -> Loaded {
        read::read(&self.file(), &read::Options::default()).expect("it is a snapshot")
    }

    pub(crate) fn why(&self) -> Verdict {
        self.why_with(&Options::default())
    }

    pub(crate) fn why_with(&self, options: &Options) -> Verdict {
        let verdict = explain(&self.loaded(), options).remove(0);
        assert!(verdict.warnings.is_empty(), "{:?}", verdict.warnings);
        let ledger = verdict.ledger;
        if let Some(capacity) = ledger.capacity_bytes.filter(|_| ledger.free_bytes.is_some()) {
            assert_eq!(ledger.total_bytes(), capacity, "the ledger sums to the capacity");
        }
        verdict
    }
}

/// `train.py:10 in step` as a stack, with a library's frame inside; `lib/name` alone is the innermost frame.
fn frames(site: &str) -> Value {
    let frame = |site: &str| {
        let (place, name) = site.split_once(" in ").unwrap_or((site, ""));
        let (file, line) = place.rsplit_once(':').unwrap_or((place, "1"));
        dict([
            ("name", text(name)),
            ("filename", text(file)),
            ("line", Value::Int(line.parse().expect("a line number"))),
        ])
    };
    let lines = site.split(" < ").filter(|line| !line.is_empty());
    Value::List(lines.map(frame).collect())
}

/// Options with the memory of the device.
pub(crate) fn capacity(bytes: u64) -> Options {
    let mut options = Options::default();
    options.capacity_bytes = Some(bytes);
    options
}

/// The causes of a verdict, in its order.
pub(crate) fn causes(verdict: &Verdict) -> Vec<String> {
    verdict.findings.iter().map(|finding| finding.cause.id()).collect()
}
