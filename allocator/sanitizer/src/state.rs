//! The sanitizer's state: what each event does to the order and to the memory, and the races that it shows.
//!
//! Nothing here locks, logs or calls a device.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use highwater_device::{Access, Address, ByteRange, Operand, StreamId};
use highwater_history::{Context, SpanPath};

use crate::memory::{Memory, Piece, Place};
use crate::order::{Op, Order};
use crate::race::{BufferInfo, Missing, Race, RaceKind, Side};
use crate::shadow::Use;

/// Memory that an operation touches.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    Device(ByteRange),
    /// Offsets in the host memory with this id.
    Host {
        memory: u64,
        offset: u64,
        bytes: u64,
    },
}

/// Memory that an operation touches, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch {
    pub(crate) target: Target,
    pub(crate) access: Access,
}

impl From<Operand> for Touch {
    fn from(Operand { range, access }: Operand) -> Self {
        Touch { target: Target::Device(range), access }
    }
}

/// Two uses of some bytes.
#[derive(Debug)]
struct Conflict {
    range: ByteRange,
    on_host: bool,
    earlier: Use,
    access: Access,
    buffer: Option<Arc<BufferInfo>>,
}

/// A use whose work is still to be submitted: it is compared with what came before when it is closed.
#[derive(Debug)]
#[must_use = "it is compared with what came before when it is closed"]
pub struct OpenUse {
    op: Arc<Op>,
    conflicts: Vec<Conflict>,
    races: Vec<Race>,
}

/// Everything that is known.
pub(crate) struct State {
    pub(crate) order: Order,
    pub(crate) memory: Memory,
    /// Most cells of one shadow.
    most_cells: usize,
    pub(crate) operations: u64,
    pub(crate) dropped: u64,
}

impl State {
    pub(crate) fn new(most_cells: usize) -> Self {
        State { order: Order::default(), memory: Memory::default(), most_cells, operations: 0, dropped: 0 }
    }

    /// An operation takes its place in its stream. What it touches is noted when it has been submitted.
    pub(crate) fn begin(&mut self, stream: StreamId, name: Cow<'static, str>, context: Option<Context>) -> Arc<Op> {
        self.operations += 1;
        Arc::new(self.order.submitted(stream, name, context))
    }

    /// Notes what an operation touches. Returns the races.
    pub(crate) fn submitted(&mut self, op: &Arc<Op>, touches: &[Touch]) -> Vec<Race> {
        let open = self.open(op, touches);
        self.close(open)
    }

    /// Notes what an operation touches, whose work may still be ordered before it is submitted.
    pub(crate) fn open(&mut self, op: &Arc<Op>, touches: &[Touch]) -> OpenUse {
        let mut open = OpenUse { op: op.clone(), conflicts: Vec::new(), races: Vec::new() };
        if !op.captured {
            // All are looked at first: the operands of one operation are not compared with each other.
            for &touch in touches {
                self.look(op, touch, &mut open);
            }
            for &touch in touches {
                self.note(op, touch);
            }
        }
        open
    }

    /// The work of an open use has been submitted: what nothing orders by now is a race.
    pub(crate) fn close(&mut self, open: OpenUse) -> Vec<Race> {
        let OpenUse { op, conflicts, mut races } = open;
        let lane = op.epoch.lane;
        let unordered = conflicts.into_iter().filter(|conflict| !self.order.is_before(&conflict.earlier.op, lane));
        let unordered: Vec<_> = unordered.collect();
        races.extend(joined(unordered).into_iter().map(|conflict| self.race(conflict, &op)));
        races
    }

    fn look(&self, op: &Op, touch: Touch, open: &mut OpenUse) {
        let Touch { target, access } = touch;
        if let Target::Device(range) = target {
            open.races.extend(self.after_free(op, range, access));
        }
        let buffer = self.buffer_of(target);
        for piece in self.pieces(target) {
            let Some(shadow) = self.memory.shadow(piece.place) else { continue };
            let found = shadow.conflicts(&piece.range, access, |earlier| self.order.is_before(earlier, op.epoch.lane));
            open.conflicts.extend(found.into_iter().map(|(range, earlier)| {
                let (range, on_host) = shown(&piece, &range);
                Conflict { range, on_host, earlier, access, buffer: buffer.clone() }
            }));
        }
    }

    fn note(&mut self, op: &Arc<Op>, touch: Touch) {
        let buffer = self.buffer_of(touch.target);
        for piece in self.pieces(touch.target) {
            let used = Use { op: op.clone(), access: touch.access, buffer: buffer.clone(), via: piece.via };
            let (order, shadow) = (&self.order, self.memory.shadow_mut(piece.place));
            shadow.note(piece.range, &used, |earlier| order.is_before(earlier, op.epoch.lane));
            self.dropped += shadow.sweep(self.most_cells, |earlier| order.host_has_seen(earlier));
            self.memory.sweep(|earlier| self.order.host_has_seen(earlier));
        }
    }

    fn pieces(&self, target: Target) -> Vec<Piece> {
        match target {
            Target::Device(range) => self.memory.resolve(range),
            Target::Host { memory, offset, bytes } => {
                vec![Piece { place: Place::Host(memory), range: offset..offset + bytes, address: offset, via: 0 }]
            }
        }
    }

    fn buffer_of(&self, target: Target) -> Option<Arc<BufferInfo>> {
        match target {
            Target::Device(range) => self.memory.live_buffer(range).cloned(),
            Target::Host { .. } => None,
        }
    }

    /// Work on a buffer that was given back before it was submitted.
    fn after_free(&self, op: &Op, range: ByteRange, access: Access) -> Option<Race> {
        let buffer = self.memory.freed_buffer(range).filter(|_| range.bytes > 0)?.clone();
        let start = range.address.max(buffer.range.address);
        let bytes = range.end().min(buffer.range.end()).0 - start.0;
        let span = buffer.freed_in().unwrap_or(SpanPath::ROOT);
        // A drop has no line of its own: the line that allocated, in the spans that freed.
        let freed = Context { span, ..buffer.allocated };
        let first = Side {
            operation: "free of the buffer".into(),
            stream: None,
            access: Access::Write,
            context: Some(freed),
            buffer: Some(buffer.clone()),
        };
        let second = Side { buffer: Some(buffer), ..side(op, access, None) };
        let (kind, missing) = (RaceKind::AfterFree, Missing::LaterFree);
        Some(Race { kind, range: ByteRange::new(start, bytes), on_host: false, first, second, missing })
    }

    fn race(&self, conflict: Conflict, second: &Op) -> Race {
        let Conflict { range, on_host, earlier, access, buffer } = conflict;
        let (kind, missing) = match &earlier.buffer {
            // The allocator orders what it knows of: nobody has told it of this use.
            Some(before) if before.freed_in().is_some() && before.stream != earlier.op.stream => {
                (RaceKind::Reuse, Missing::RecordStream { stream: earlier.op.stream.clone() })
            }
            _ => (RaceKind::Unordered, self.order.missing_wait(&earlier.op, second.epoch.lane)),
        };
        let first = side(&earlier.op, earlier.access, earlier.buffer.clone());
        Race { kind, range, on_host, first, second: side(second, access, buffer), missing }
    }

    /// A buffer is given out: a write, as far as others may still use its bytes. What races is forgotten, so that it is
    /// told once.
    pub(crate) fn allocated(&mut self, stream: StreamId, range: ByteRange, context: Context) -> Vec<Race> {
        let op = self.begin(stream, "allocation".into(), Some(context));
        let (name, freed) = (op.stream.clone(), OnceLock::new());
        let buffer = Arc::new(BufferInfo { range, allocated: context, stream: name, freed });
        self.memory.allocated(&buffer);
        let touch = Touch { target: Target::Device(range), access: Access::Write };
        let mut open = OpenUse { op: op.clone(), conflicts: Vec::new(), races: Vec::new() };
        self.look(&op, touch, &mut open);
        for piece in self.pieces(touch.target) {
            let order = &self.order;
            let unordered = |earlier: &Op| !order.is_before(earlier, op.epoch.lane);
            if self.memory.shadow(piece.place).is_some() && !open.conflicts.is_empty() {
                self.memory.shadow_mut(piece.place).forget(&piece.range, unordered);
            }
        }
        self.close(open)
    }

    /// A buffer is given back, in these spans.
    pub(crate) fn freed(&mut self, address: Address, span: SpanPath) {
        if let Some(buffer) = self.memory.freed(address) {
            buffer.freed.set(span).expect("it was live");
        }
    }

    /// The host touches host memory.
    pub(crate) fn host_access(
        &mut self,
        memory: u64,
        range: Range<u64>,
        access: Access,
        context: Option<Context>,
    ) -> Vec<Race> {
        let Some(shadow) = self.memory.shadow(Place::Host(memory)) else { return Vec::new() };
        let found = shadow.conflicts(&range, access, |op| self.order.host_has_seen(op));
        let found = found.into_iter().map(|(range, earlier)| {
            let range = Race::host_range(range.start, range.end - range.start);
            Conflict { range, on_host: true, earlier, access, buffer: None }
        });
        let by_host = |conflict: Conflict| {
            let name = if access.writes() { "host write" } else { "host read" };
            self.host_race(RaceKind::Host, name, context, conflict)
        };
        joined(found.collect()).into_iter().map(by_host).collect()
    }

    /// Mappings are removed: at once, so the host must have seen their uses complete.
    pub(crate) fn unmapped(&mut self, range: ByteRange, context: Option<Context>) -> Vec<Race> {
        let mut conflicts = Vec::new();
        for (address, page) in self.memory.mappings_in(range) {
            let Some(shadow) = self.memory.shadow(Place::Page(page)) else { continue };
            let in_use = shadow.uses(|used| used.via == address && !self.order.host_has_seen(&used.op));
            conflicts.extend(in_use.into_iter().map(|(range, earlier)| {
                let range = ByteRange::new(Address(address + range.start), range.end - range.start);
                let buffer = earlier.buffer.clone();
                Conflict { range, on_host: false, earlier, access: Access::Write, buffer }
            }));
        }
        self.memory.unmapped(range);
        let by_host = |conflict| self.host_race(RaceKind::Unmapped, "unmap", context, conflict);
        joined(conflicts).into_iter().map(by_host).collect()
    }

    fn host_race(&self, kind: RaceKind, name: &'static str, context: Option<Context>, conflict: Conflict) -> Race {
        let Conflict { range, on_host, earlier, access, buffer } = conflict;
        let missing = self.order.missing_host_wait(&earlier.op);
        let second = Side { operation: name.into(), stream: None, access, context, buffer };
        Race { kind, range, on_host, first: side(&earlier.op, earlier.access, earlier.buffer), second, missing }
    }
}

fn side(op: &Op, access: Access, buffer: Option<Arc<BufferInfo>>) -> Side {
    let Op { name, stream, context, .. } = op;
    Side { operation: name.clone(), stream: Some(stream.clone()), access, context: *context, buffer }
}

/// Offsets of a piece's place, as the program knows them; and whether they are the host's.
fn shown(piece: &Piece, range: &Range<u64>) -> (ByteRange, bool) {
    let address = piece.address + (range.start - piece.range.start);
    (ByteRange::new(Address(address), range.end - range.start), matches!(piece.place, Place::Host(_)))
}

/// One conflict for each operation, over all of its bytes.
fn joined(conflicts: Vec<Conflict>) -> Vec<Conflict> {
    let mut joined: Vec<Conflict> = Vec::new();
    for conflict in conflicts {
        let same = |known: &&mut Conflict| {
            Arc::ptr_eq(&known.earlier.op, &conflict.earlier.op) && known.on_host == conflict.on_host
        };
        match joined.iter_mut().find(same) {
            Some(known) => {
                let start = known.range.address.min(conflict.range.address);
                let end = known.range.end().max(conflict.range.end());
                known.range = ByteRange::new(start, end.0 - start.0);
            }
            None => joined.push(conflict),
        }
    }
    joined
}
