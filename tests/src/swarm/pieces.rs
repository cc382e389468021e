//! Pieces of memory: a block, what the program knows of its bytes, and the steps that allocate, use and free them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use highwater::device::Access as Way;
use highwater::device::{Address, Body, ByteRange, Cost, Device, Operand, OperandBytes, Operation};
use highwater::{AllocError, Allocator, Buffer, OutOfMemory, View};

use super::bytes::{Expected, Wrong, check, fill};
use super::host::{Host, Lane, Trouble, lock};
use super::oracle::{Access, Life, OpId, stamp};
use super::program::RawHow;
use super::verdict::{Failure, Rule};

/// Parts of a piece that operations touch, in quarters.
const PARTS: [(usize, usize); 6] = [(0, 4), (0, 4), (0, 2), (2, 4), (1, 3), (3, 4)];

/// The blocks that the program holds, by address: length and allocator.
pub(super) type HeldTable = Arc<Mutex<BTreeMap<u64, (u64, usize)>>>;

/// A block, and what the program did with it.
pub(super) struct Piece {
    memory: Memory,
    pub(super) lane: Lane,
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) life: Life,
    cells: [Cell; 4],
    /// Dropped last.
    _held: Held,
}

/// A quarter.
#[derive(Clone, Default)]
struct Cell {
    written: Option<OpId>,
    read: Vec<OpId>,
}

enum Memory {
    Buffer(Buffer<u8>),
    Raw(RawBlock),
}

struct RawBlock {
    allocator: Allocator,
    address: Address,
}

impl Drop for RawBlock {
    fn drop(&mut self) {
        self.allocator.free_raw(self.address).expect("a raw block is freed once");
    }
}

struct Held {
    table: HeldTable,
    address: u64,
}

impl Drop for Held {
    fn drop(&mut self) {
        lock(&self.table).remove(&self.address);
    }
}

/// A part of a piece.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) piece: usize,
    quarters: (usize, usize),
}

impl Piece {
    fn cut(&self, quarter: usize) -> usize {
        (self.bytes as usize) * quarter / 4
    }

    fn buffer(&self) -> Option<&Buffer<u8>> {
        match &self.memory {
            Memory::Buffer(buffer) => Some(buffer),
            Memory::Raw(_) => None,
        }
    }
}

/// How an operation is submitted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    Launch,
    Raw(RawHow),
}

impl Host<'_> {
    /// A part of the piece of a number.
    pub(super) fn part(&self, piece: u8, part: u8) -> Option<Part> {
        let piece = self.piece(piece)?;
        Some(Part { piece, quarters: PARTS[usize::from(part) % PARTS.len()] })
    }

    /// The index of the piece of a number.
    pub(super) fn piece(&self, piece: u8) -> Option<usize> {
        (!self.pieces.is_empty()).then(|| usize::from(piece) % self.pieces.len())
    }

    /// The bytes of a part in its piece.
    fn range(&self, part: Part) -> std::ops::Range<usize> {
        let piece = &self.pieces[part.piece];
        piece.cut(part.quarters.0)..piece.cut(part.quarters.1)
    }

    /// What the oracle has to know of an access.
    fn access(&self, part: Part) -> Access {
        let (piece, range) = (&self.pieces[part.piece], self.range(part));
        Access { life: piece.life, address: piece.address + range.start as u64, bytes: range.len() as u64 }
    }

    /// A view of a part; none of a raw block.
    pub(super) fn view(&self, part: Part) -> Option<View<'_, u8>> {
        let range = self.range(part);
        Some(self.pieces[part.piece].buffer()?.slice(range))
    }

    /// Allocates; `None` when there is no memory, and that is right.
    pub(super) fn alloc(&mut self, lane: &Lane, bytes: u32, raw: bool) -> Result<Option<Piece>, Trouble> {
        let allocator = &self.allocators[lane.allocator];
        let will_free = self.device.has_hook();
        let memory = if raw {
            let allocated = allocator.alloc_raw(&lane.stream, u64::from(bytes));
            allocated.map(|address| Memory::Raw(RawBlock { allocator: allocator.clone(), address }))
        } else {
            lane.stream.alloc::<u8>(bytes as usize).map(Memory::Buffer)
        };
        let memory = match memory {
            Ok(memory) => memory,
            Err(AllocError::OutOfMemory(report)) => {
                self.say("out of memory");
                // What was freed while the request was under way may have come too late for it.
                if will_free == self.device.has_hook() {
                    self.check_refusal(lane, &report)?;
                }
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let address = match &memory {
            Memory::Buffer(buffer) => address_of(buffer),
            Memory::Raw(raw) => raw.address.0,
        };
        self.say(format!("{bytes} bytes at {address:#x}"));
        self.check_given(address, u64::from(bytes))?;
        let life = self.oracle.born();
        if bytes > 0 {
            lock(&self.held).insert(address, (u64::from(bytes), lane.allocator));
        }
        let held = Held { table: self.held.clone(), address };
        let cells = std::array::from_fn(|_| Cell::default());
        let bytes = u64::from(bytes);
        Ok(Some(Piece { memory, lane: lane.clone(), address, bytes, life, cells, _held: held }))
    }

    /// A block that was given out lies alone, aligned, and in memory that is mapped.
    fn check_given(&self, address: u64, bytes: u64) -> Result<(), Failure> {
        if bytes == 0 {
            return Ok(());
        }
        let reuse = |what: String| Err(Failure::new(Rule::Reuse, what));
        if !address.is_multiple_of(512) {
            return reuse(format!("the block at {address:#x} is not aligned"));
        }
        let held = lock(&self.held);
        if let Some((other, (length, _))) = held.range(..address + bytes).next_back()
            && other + length > address
        {
            return reuse(format!("{bytes} bytes at {address:#x} are part of the block at {other:#x}"));
        }
        let mapped = self.device.mapped();
        let mut next = address;
        while next < address + bytes {
            let covers = |at: u64| {
                mapped.iter().find(|handle| {
                    handle.until_ns.is_none() && (handle.address..handle.address + handle.bytes).contains(&at)
                })
            };
            match covers(next) {
                Some(handle) => next = handle.address + handle.bytes,
                None => return reuse(format!("{bytes} bytes at {address:#x} were given out and are not mapped")),
            }
        }
        Ok(())
    }

    /// Memory is refused only when handles with blocks leave too little, as far as nothing else is in the way.
    fn check_refusal(&self, lane: &Lane, report: &OutOfMemory) -> Result<(), Failure> {
        let parts = report.live + report.rounding + report.pending + report.cached + report.stray;
        if parts != report.physical {
            return Err(Failure::new(Rule::Books, format!("the report does not add up: {report:?}")));
        }
        let config = &self.program.config;
        let disturbed = self.ever_captured
            || self.poisoned
            || config.ranks > 1
            || config.host_wait_ns.is_some()
            || !self.device.fired().is_empty();
        if disturbed {
            return Ok(());
        }
        let reserved = |allocator: &Allocator| allocator.memory_stats().reserved.now;
        let others = self.allocators.iter().enumerate().filter(|&(index, _)| index != lane.allocator);
        let elsewhere: u64 = others.map(|(_, allocator)| reserved(allocator)).sum();
        let outside: u64 = self.aliases.iter().map(|alias| alias.held_bytes()).sum();
        let most = report.capacity.min(config.memory_bytes() - elsewhere - outside);
        let held = lock(&self.held);
        let mine = |(address, (bytes, allocator)): (&u64, &(u64, usize))| {
            (*allocator == lane.allocator).then_some((*address, *bytes))
        };
        let blocks: Vec<(u64, u64)> = held.iter().filter_map(mine).collect();
        let mapped = self.device.mapped();
        let occupied = mapped.iter().filter(|handle| {
            let (start, end) = (handle.address, handle.address + handle.bytes);
            handle.until_ns.is_none() && blocks.iter().any(|&(at, bytes)| at < end && at + bytes > start)
        });
        let occupied: u64 = occupied.map(|handle| handle.bytes).sum();
        let needed = report.requested.next_multiple_of(config.granule_bytes);
        let free = most.saturating_sub(occupied) / config.granule_bytes * config.granule_bytes;
        if free >= needed {
            let what = format!("{free} bytes could be had, {needed} are needed: {report}");
            return Err(Failure::new(Rule::Refused, what));
        }
        Ok(())
    }

    /// An operation that reads `reads` and writes `writes`; what is in both it updates.
    pub(super) fn operate(
        &mut self,
        what: &'static str,
        lane: &Lane,
        uses: &[(Part, Way)],
        how: How,
    ) -> Result<(), Trouble> {
        // A block without a buffer can only be used past the allocator.
        let raw = uses.iter().any(|&(part, _)| self.pieces[part.piece].buffer().is_none());
        let how = if raw { How::Raw(RawHow::Stream) } else { how };
        let mut after = Vec::new();
        for &(part, way) in uses {
            after.extend(self.order(lane, part, way)?);
            self.order_raw(lane, part, how)?;
        }
        let op = self.oracle.next();
        let captured = self.captures(lane);
        let body = self.body(op, uses, captured);
        self.submit(op, lane, uses, how, body)?;
        if !captured {
            self.submitted(op, what, lane, uses, after);
        }
        self.behind_raw(lane, uses, how)?;
        if self.program.config.eager_fences && !captured {
            let mark = self.record(lane)?;
            self.op_marks.insert(op, mark);
        }
        Ok(())
    }

    /// Puts a stream behind what the program did with the same bytes before. What that is.
    pub(super) fn order(&mut self, lane: &Lane, part: Part, way: Way) -> Result<Vec<OpId>, Trouble> {
        let cells = &self.pieces[part.piece].cells[part.quarters.0..part.quarters.1];
        let mut before: Vec<OpId> = cells.iter().filter_map(|cell| cell.written).collect();
        if way.writes() {
            before.extend(cells.iter().flat_map(|cell| cell.read.iter().copied()));
        }
        before.sort();
        before.dedup();
        for &op in &before {
            self.put_after(lane, op)?;
        }
        Ok(before)
    }

    /// Work past the allocator has to be put behind the allocation by hand, unless a guard does it, or the stream comes
    /// after a write.
    fn order_raw(&mut self, lane: &Lane, part: Part, how: How) -> Result<(), Trouble> {
        let piece = &self.pieces[part.piece];
        let guarded = matches!(how, How::Launch | How::Raw(RawHow::Guard));
        let mut cells = piece.cells[part.quarters.0..part.quarters.1].iter();
        if guarded || piece.lane.number == lane.number || cells.all(|cell| cell.written.is_some()) {
            return Ok(());
        }
        let owner = piece.lane.clone();
        let mark = self.record(&owner)?;
        self.wait(lane, &mark)
    }

    fn expected(&self, part: Part) -> Vec<Expected> {
        let piece = &self.pieces[part.piece];
        let start = piece.cut(part.quarters.0);
        let quarters = part.quarters.0..part.quarters.1;
        quarters
            .filter_map(|quarter| {
                let range = piece.cut(quarter) - start..piece.cut(quarter + 1) - start;
                Some(Expected { range, offset: start, by: piece.cells[quarter].written? })
            })
            .collect()
    }

    fn body(&self, op: OpId, uses: &[(Part, Way)], captured: bool) -> impl FnOnce(&mut [OperandBytes]) + Send + use<> {
        let wrong = self.wrong.clone();
        let per_operand: Vec<(Way, usize, Vec<Expected>)> =
            uses.iter().map(|&(part, way)| (way, self.range(part).start, self.expected(part))).collect();
        move |operands: &mut [OperandBytes]| {
            if captured {
                return lock(&wrong).push(Wrong::captured(op));
            }
            for (operand, (way, offset, expected)) in operands.iter_mut().zip(per_operand) {
                if way.reads() {
                    check(op, operand.as_bytes(), &expected, &wrong);
                }
                if way.writes() {
                    fill(operand.as_bytes_mut(), offset, stamp(op));
                }
            }
        }
    }

    fn submit(
        &self,
        op: OpId,
        lane: &Lane,
        uses: &[(Part, Way)],
        how: How,
        body: impl FnOnce(&mut [OperandBytes]) + Send + 'static,
    ) -> Result<(), Trouble> {
        let name = format!("operation {}", op.0);
        let cost = Cost::exact(1 + op.0 as u64 * 37 % 50);
        let views: Option<Vec<View<'_, u8>>> = uses.iter().map(|&(part, _)| self.view(part)).collect();
        match (how, views) {
            (How::Launch, Some(views)) => {
                let mut launch = lane.stream.launch(name, cost);
                for (view, (_, way)) in views.into_iter().zip(uses) {
                    launch = match way {
                        Way::Read => launch.read(view),
                        Way::Write => launch.write(view),
                        Way::ReadWrite => launch.read_write(view),
                    };
                }
                Ok(launch.body(body).submit()?)
            }
            (How::Raw(RawHow::Guard), Some(views)) => {
                let mut guards = Vec::new();
                for view in views {
                    guards.push(view.on(&lane.stream)?);
                }
                self.launch_raw(name, cost, lane, uses, body)
            }
            _ => self.launch_raw(name, cost, lane, uses, body),
        }
    }

    fn launch_raw(
        &self,
        name: String,
        cost: Cost,
        lane: &Lane,
        uses: &[(Part, Way)],
        body: impl FnOnce(&mut [OperandBytes]) + Send + 'static,
    ) -> Result<(), Trouble> {
        let operand = |&(part, access): &(Part, Way)| {
            let Access { address, bytes, .. } = self.access(part);
            Operand { range: ByteRange::new(Address(address), bytes), access }
        };
        let operands = uses.iter().map(operand).collect();
        let operation = Operation { name: name.into(), tag: 0, cost, operands, body: Body::Host(Box::new(body)) };
        Ok(self.device.launch(lane.stream.id(), operation)?)
    }

    /// Tells the allocator of a raw use that was submitted.
    fn behind_raw(&mut self, lane: &Lane, uses: &[(Part, Way)], how: How) -> Result<(), Trouble> {
        let mut result = Ok(());
        for &(part, _) in uses {
            let piece = &self.pieces[part.piece];
            match (how, &piece.memory) {
                (_, Memory::Raw(raw)) => {
                    let told = raw.allocator.record_stream_raw(raw.address, &lane.stream);
                    told.map_err(|error| Failure::new(Rule::Error, error.to_string()))?;
                }
                (How::Launch | How::Raw(RawHow::Guard), Memory::Buffer(_)) => {}
                (How::Raw(RawHow::Stream), Memory::Buffer(buffer)) => {
                    let _ = buffer.device_address();
                    buffer.record_stream(&lane.stream);
                }
                (How::Raw(RawHow::Exact), Memory::Buffer(buffer)) => match lane.stream.record() {
                    Ok(fence) => buffer.record_use(&lane.stream, &fence)?,
                    Err(error) => {
                        // Without a fence the end is not known: the use lasts until the free.
                        buffer.record_stream(&lane.stream);
                        result = Err(error.into());
                    }
                },
            }
        }
        result
    }

    /// The oracle gets to know an operation that was submitted.
    pub(super) fn submitted(
        &mut self,
        op: OpId,
        what: &'static str,
        lane: &Lane,
        uses: &[(Part, Way)],
        after: Vec<OpId>,
    ) {
        let accesses = uses.iter().map(|&(part, _)| self.access(part)).collect();
        let id = self.oracle.submit(lane.number, self.step, what, accesses, after);
        assert!(id == op, "an operation has the number that was foretold");
        for &(part, way) in uses {
            for cell in &mut self.pieces[part.piece].cells[part.quarters.0..part.quarters.1] {
                if way.writes() {
                    *cell = Cell { written: Some(op), read: Vec::new() };
                } else {
                    cell.read.push(op);
                }
            }
        }
        self.say(format!("operation {} on stream {}", op.0, lane.number));
    }

    /// Allocates and lets a stream write all of it.
    pub(super) fn make(&mut self, owner: &Lane, bytes: u32, writer: Option<u8>, raw: bool) -> Result<(), Trouble> {
        let Some(piece) = self.alloc(owner, bytes, raw)? else { return Ok(()) };
        self.pieces.push(piece);
        let whole = Part { piece: self.pieces.len() - 1, quarters: (0, 4) };
        let Some(writer) = writer else { return Ok(()) };
        let writer = self.lane(owner.allocator, writer);
        let how = if raw { How::Raw(RawHow::Stream) } else { How::Launch };
        self.operate("write", &writer, &[(whole, Way::Write)], how)
    }

    /// The whole of the piece that was made last.
    pub(super) fn last_made(&self) -> Option<Part> {
        let piece = self.pieces.len().checked_sub(1)?;
        Some(Part { piece, quarters: (0, 4) })
    }

    /// What a copy of a part to the host has to bring.
    pub(super) fn expected_of(&self, part: Part) -> (usize, Vec<Expected>) {
        (self.range(part).len(), self.expected(part))
    }

    /// Offset of a part in its piece.
    pub(super) fn offset_of(&self, part: Part) -> usize {
        self.range(part).start
    }
}

/// The address of a buffer, read from its text so that it does not count as given away.
fn address_of(buffer: &Buffer<u8>) -> u64 {
    let text = format!("{buffer:?}");
    let digits = text.split("at 0x").nth(1).and_then(|rest| rest.split(' ').next());
    u64::from_str_radix(digits.expect("the text names the address"), 16).expect("an address is a number")
}
