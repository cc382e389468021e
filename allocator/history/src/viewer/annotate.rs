//! What the viewer takes out of a snapshot before it draws: events and segments with numbered streams.
//!
//! Two habits of the viewer matter for what follows. A free that is requested and completed in neighbouring events
//! becomes one event. And if every event is on stream 0, events lose their stream, while segments keep theirs: then
//! memory that comes back from an unmap is not joined with the segments of the snapshot, as if it had another stream.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::{
    ViewerError, Violations,
    value::{DictId, Heap, ListId, TextId, Value},
};

/// The stream of events when all are on stream 0. No stream has this number.
const NO_STREAM: u64 = u64::MAX;

pub(super) struct Loaded {
    pub(super) devices: Vec<Device>,
    pub(super) ignored_segments: usize,
    /// Whether nothing that is wrong was left out.
    pub(super) is_whole: bool,
}

#[derive(Default)]
pub(super) struct Device {
    pub(super) events: Vec<Event>,
    pub(super) segments: Vec<Segment>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Alloc,
    FreeRequested,
    FreeCompleted,
    /// A free that was requested and completed at once.
    Free,
    SegmentAlloc,
    SegmentFree,
    SegmentMap,
    SegmentUnmap,
    /// Out of memory, a snapshot, or anything that is only listed.
    Other,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub(super) kind: Kind,
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) stream: u64,
}

pub(super) struct Segment {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) stream: u64,
    /// Blocks in use and pending.
    pub(super) blocks: Vec<Block>,
}

pub(super) struct Block {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) requested_bytes: u64,
    pub(super) pending: bool,
}

type Result<T> = std::result::Result<T, ViewerError>;

/// Takes the snapshot `top` apart, which may stand for `budget` events and blocks at most. Events and segments that are
/// wrong are left out, and told in `violations`.
pub(super) fn annotate(heap: &Heap, top: Value, budget: usize, violations: &mut Violations) -> Result<Loaded> {
    let known = violations.count();
    let mut reader = Reader::new(heap, budget, violations);
    let top = reader.dict(top, &Place::File)?;
    let mut loaded = Loaded { devices: Vec::new(), ignored_segments: 0, is_whole: true };
    let traces = reader.items(top, "device_traces", &Place::File);
    for (device, &trace) in reader.good(traces)?.unwrap_or_default().iter().enumerate() {
        let trace = match trace {
            Value::List(trace) => Ok(trace),
            _ => Err(Place::Trace(device).needs("device_traces", "a list of lists")),
        };
        let events = match reader.good(trace)? {
            Some(trace) => reader.trace(trace, device)?,
            None => Vec::new(),
        };
        loaded.devices.push(Device { events, segments: Vec::new() });
    }
    if reader.streams.len() == 1 {
        loaded.devices.iter_mut().flat_map(|device| &mut device.events).for_each(|event| event.stream = NO_STREAM);
    }
    let segments = reader.items(top, "segments", &Place::File);
    for (index, &segment) in reader.good(segments)?.unwrap_or_default().iter().enumerate() {
        let segment = reader.segment(segment, index);
        let Some((device, segment)) = reader.good(segment)? else { continue };
        match device.and_then(|device| loaded.devices.get_mut(device)) {
            Some(device) => device.segments.push(segment),
            None => loaded.ignored_segments += 1,
        }
    }
    let wrong_categories = reader.some_category && !reader.unknown_category;
    loaded.is_whole = violations.count() == known;
    if wrong_categories {
        violations.add(ViewerError::Categories);
    }
    Ok(loaded)
}

/// Where in a snapshot something is, for errors.
#[derive(Clone, Copy)]
enum Place {
    File,
    Trace(usize),
    Event(usize, usize),
    Segment(usize),
    Block(usize, usize),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File => write!(f, "the file"),
            Self::Trace(device) => write!(f, "the trace of device {device}"),
            Self::Event(event, device) => write!(f, "event {event} of device {device}"),
            Self::Segment(segment) => write!(f, "segment {segment}"),
            Self::Block(block, segment) => write!(f, "block {block} of segment {segment}"),
        }
    }
}

impl Place {
    fn needs(&self, key: &'static str, kind: &'static str) -> ViewerError {
        ViewerError::Needs { place: self.to_string(), key, kind }
    }
}

struct Reader<'a> {
    heap: &'a Heap,
    keys: BTreeMap<&'static str, TextId>,
    /// Numbers of streams by what the file calls them; `None` where it says nothing. Stream 0 is always there.
    streams: BTreeMap<Option<i64>, u64>,
    /// Stacks that have been looked at. Most are shared.
    good_stacks: BTreeSet<ListId>,
    some_category: bool,
    unknown_category: bool,
    /// Events and blocks that may still come.
    budget: usize,
    violations: &'a mut Violations,
}

/// Every key that the viewer reads.
const KEYS: [&str; 18] = [
    "device_traces",
    "segments",
    "action",
    "addr",
    "size",
    "stream",
    "frames",
    "category",
    "device",
    "address",
    "total_size",
    "blocks",
    "state",
    "requested_size",
    "history",
    "real_size",
    "name",
    "filename",
];

impl<'a> Reader<'a> {
    fn new(heap: &'a Heap, budget: usize, violations: &'a mut Violations) -> Self {
        Self {
            heap,
            keys: KEYS.iter().filter_map(|&key| Some((key, heap.key(key)?))).collect(),
            streams: BTreeMap::from([(Some(0), 0)]),
            good_stacks: BTreeSet::new(),
            some_category: false,
            unknown_category: false,
            budget,
            violations,
        }
    }

    /// What is right. What is wrong is told, and is an error only if nothing more can be said of the file.
    fn good<T>(&mut self, result: Result<T>) -> Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(ViewerError::Inflated) => Err(ViewerError::Inflated),
            Err(violation) => {
                self.violations.add(violation);
                Ok(None)
            }
        }
    }

    fn get(&self, dict: DictId, key: &'static str) -> Option<Value> {
        debug_assert!(KEYS.contains(&key), "{key} is not in the list of keys");
        self.heap.get(dict, *self.keys.get(key)?)
    }

    fn dict(&self, value: Value, place: &Place) -> Result<DictId> {
        match value {
            Value::Dict(dict) => Ok(dict),
            _ => Err(place.needs("", "a dictionary")),
        }
    }

    fn items(&self, dict: DictId, key: &'static str, place: &Place) -> Result<&'a [Value]> {
        match self.get(dict, key) {
            Some(Value::List(list)) => Ok(self.heap.list(list)),
            _ => Err(place.needs(key, "a list")),
        }
    }

    fn spend(&mut self, items: usize) -> Result<()> {
        self.budget = self.budget.checked_sub(items).ok_or(ViewerError::Inflated)?;
        Ok(())
    }

    fn number(&self, dict: DictId, key: &'static str, place: &Place) -> Result<u64> {
        match self.get(dict, key) {
            Some(Value::Int(number)) => u64::try_from(number).map_err(|_| place.needs(key, "a number of 0 or more")),
            _ => Err(place.needs(key, "an integer")),
        }
    }

    fn text(&self, dict: DictId, key: &'static str, place: &Place) -> Result<&'a str> {
        match self.get(dict, key) {
            Some(Value::Text(text)) => Ok(self.heap.text(text)),
            _ => Err(place.needs(key, "a text")),
        }
    }

    /// Streams are numbered by their first appearance.
    fn stream(&mut self, dict: DictId, place: &Place) -> Result<u64> {
        let name = match self.get(dict, "stream") {
            Some(Value::Int(stream)) => Some(stream),
            None => None,
            Some(_) => return Err(place.needs("stream", "an integer")),
        };
        let next = self.streams.len() as u64;
        Ok(*self.streams.entry(name).or_insert(next))
    }

    /// Frames may be absent, but if they are there each must have a text for name and file, or the page stops when the
    /// mouse is over them.
    fn frames(&mut self, dict: DictId, place: &Place) -> Result<()> {
        let frames = match self.get(dict, "frames") {
            None => return Ok(()),
            Some(Value::List(frames)) => frames,
            Some(_) => return Err(place.needs("frames", "a list")),
        };
        if self.good_stacks.insert(frames) {
            for &frame in self.heap.list(frames) {
                let frame = self.dict(frame, place)?;
                self.text(frame, "name", place)?;
                self.text(frame, "filename", place)?;
            }
        }
        Ok(())
    }

    fn trace(&mut self, trace: ListId, device: usize) -> Result<Vec<Event>> {
        let mut events: Vec<Event> = Vec::new();
        self.spend(self.heap.list(trace).len())?;
        for (index, &event) in self.heap.list(trace).iter().enumerate() {
            let place = Place::Event(index, device);
            let event = self.dict(event, &place).and_then(|dict| Ok((dict, self.event(dict, &place)?)));
            let Some((dict, event)) = self.good(event)? else { continue };
            if event.kind == Kind::FreeCompleted
                && let Some(last) = events.last_mut()
                && last.kind == Kind::FreeRequested
                && last.address == event.address
            {
                last.kind = Kind::Free;
                continue;
            }
            if let Some(category) = self.get(dict, "category") {
                self.some_category = true;
                self.unknown_category |= matches!(category, Value::Text(text) if self.heap.text(text) == "unknown");
            }
            events.push(event);
        }
        Ok(events)
    }

    fn event(&mut self, dict: DictId, place: &Place) -> Result<Event> {
        let action = self.text(dict, "action", place)?;
        let kind = match action {
            "alloc" => Kind::Alloc,
            "free_requested" => Kind::FreeRequested,
            "free_completed" => Kind::FreeCompleted,
            "free" => Kind::Free,
            "segment_alloc" => Kind::SegmentAlloc,
            "segment_free" => Kind::SegmentFree,
            "segment_map" => Kind::SegmentMap,
            "segment_unmap" => Kind::SegmentUnmap,
            _ => Kind::Other,
        };
        let stream = self.stream(dict, place)?;
        self.frames(dict, place)?;
        let (address, bytes) = match action {
            "snapshot" => (0, 0),
            "oom" => (0, self.number(dict, "size", place)?),
            _ => (self.number(dict, "addr", place)?, self.number(dict, "size", place)?),
        };
        Ok(Event { kind, address, bytes, stream })
    }

    /// A segment, and its device if it has one.
    fn segment(&mut self, value: Value, index: usize) -> Result<(Option<usize>, Segment)> {
        let place = Place::Segment(index);
        let dict = self.dict(value, &place)?;
        let stream = self.stream(dict, &place)?;
        self.frames(dict, &place)?;
        let (address, bytes) = (self.number(dict, "address", &place)?, self.number(dict, "total_size", &place)?);
        let (mut at, mut blocks) = (address, Vec::new());
        let all = self.items(dict, "blocks", &place)?;
        self.spend(all.len())?;
        for (number, &block) in all.iter().enumerate() {
            let (block, active) = self.block(block, at, &Place::Block(number, index))?;
            at = at.saturating_add(block.bytes);
            if active {
                blocks.push(block);
            }
        }
        let device = match self.get(dict, "device") {
            Some(Value::Int(device)) => usize::try_from(device).ok(),
            _ => None,
        };
        Ok((device, Segment { address, bytes, stream, blocks }))
    }

    /// A block, and whether it is drawn. Its address is where the one before it ends, whatever the file says.
    fn block(&mut self, value: Value, address: u64, place: &Place) -> Result<(Block, bool)> {
        let dict = self.dict(value, place)?;
        let bytes = self.number(dict, "size", place)?;
        let state = match self.get(dict, "state") {
            Some(Value::Text(state)) => self.heap.text(state),
            _ => "",
        };
        let pending = state == "active_pending_free";
        let active = pending || state == "active_allocated";
        self.frames(dict, place)?;
        let requested_bytes = if active { self.requested(dict, bytes, place)? } else { 0 };
        Ok((Block { address, bytes, requested_bytes, pending }, active))
    }

    /// Bytes requested of a block. Old files, whose blocks have no frames, may say it elsewhere or not at all.
    fn requested(&self, dict: DictId, bytes: u64, place: &Place) -> Result<u64> {
        let is_old = self.get(dict, "frames").is_none();
        let stated = self.get(dict, "requested_size").is_some_and(|value| value != Value::Int(0));
        if !is_old || stated {
            return self.number(dict, "requested_size", place);
        }
        if self.get(dict, "history").is_none() {
            return Ok(bytes);
        }
        let history = self.items(dict, "history", place)?;
        let &newest = history.first().ok_or_else(|| place.needs("history", "a list that is not empty"))?;
        self.number(self.dict(newest, place)?, "real_size", place)
    }
}
