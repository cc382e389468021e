//! What a program holds besides pieces: captures, host memory of copies, and memory that it takes past the allocator.

use std::sync::Arc;

use highwater::device::{
    Access as Way, Address, Body, ByteRange, Cost, Device, DeviceResult, Operand, Operation, PageHandle, StreamId,
};
use highwater::{Capture, HostBuffer};

use super::bytes::{Expected, check, fill, first_other};
use super::host::{Host, LONG, Lane, Mark, Trouble};
use super::oracle::{Access, OpId, stamp};
use super::pieces::Part;
use super::verdict::{Failure, Rule};
use super::watched::Watched;

/// How many host buffers a program keeps.
const COPIES: usize = 8;

/// A capture that is under way.
pub(super) struct Capturing {
    pub(super) lane: usize,
    stream: StreamId,
    capture: Capture,
}

/// Host memory of a copy.
pub(super) struct HostSlot {
    buffer: HostBuffer<u8>,
    /// What is in it once the copy is complete.
    expected: Vec<Expected>,
    op: OpId,
    mark: super::oracle::Clock,
}

/// A handle of the program's own, mapped at two addresses.
pub(super) struct AliasPage {
    granule: u64,
    address: Address,
    reserved: bool,
    page: Option<PageHandle>,
    mapped: [bool; 2],
    used_by: Vec<OpId>,
}

impl AliasPage {
    /// Bytes that the device gave away for it.
    pub(super) fn held_bytes(&self) -> u64 {
        let exists = self.page.is_some() || self.mapped != [false; 2];
        if exists { self.granule } else { 0 }
    }

    fn at(&self, which: u64) -> Address {
        self.address.offset(which * self.granule)
    }

    fn build(&mut self, device: &Watched) -> DeviceResult<()> {
        self.address = device.reserve(2 * self.granule)?;
        self.reserved = true;
        let page = device.create(self.granule)?;
        self.page = Some(page);
        for which in 0..2 {
            device.map(page, self.at(which))?;
            self.mapped[which as usize] = true;
        }
        device.set_access(self.address, 2 * self.granule)
    }

    /// Gives back what is still held; goes on where it failed the last time.
    pub(super) fn tear_down(&mut self, device: &Watched) -> DeviceResult<()> {
        for which in 0..2 {
            if self.mapped[which as usize] {
                device.unmap(self.at(which), self.granule)?;
                self.mapped[which as usize] = false;
            }
        }
        if let Some(page) = self.page {
            device.release(page)?;
            self.page = None;
        }
        if self.reserved {
            device.unreserve(self.address, 2 * self.granule)?;
            self.reserved = false;
        }
        Ok(())
    }
}

impl Host<'_> {
    // ---- captures

    pub(super) fn begin_capture(&mut self, lane: &Lane) -> Result<(), Trouble> {
        if self.capture.is_some() {
            return Ok(());
        }
        let capture = lane.stream.begin_capture()?;
        self.ever_captured = true;
        self.capture = Some(Capturing { lane: lane.number, stream: lane.stream.id(), capture });
        Ok(())
    }

    pub(super) fn end_capture(&mut self, keep: bool) -> Result<(), Trouble> {
        let Some(Capturing { capture, stream, .. }) = self.capture.take() else { return Ok(()) };
        // A capture that could not be ended is thrown away, and that is tried once more.
        let ended = capture.end();
        if ended.is_err() && self.device.is_capturing() {
            // Both failed on request: the program does it by hand.
            self.device.sim().end_capture(stream)?;
        }
        let graph = ended?;
        if keep {
            self.graphs.push(graph);
        }
        Ok(())
    }

    // ---- copies

    pub(super) fn copy_in(&mut self, lane: &Lane, part: Part, pinned: bool) -> Result<(), Trouble> {
        if self.view(part).is_none() {
            return Ok(());
        }
        let after = self.order(lane, part, Way::Write)?;
        let (op, offset) = (self.oracle.next(), self.offset_of(part));
        let buffer = self.host_buffer(lane, part, pinned);
        buffer.write(|bytes| fill(bytes, offset, stamp(op)))?;
        let view = self.view(part).expect("it was there");
        lane.stream.copy_to_device(&buffer, view)?;
        let len = buffer.len();
        let expected = vec![Expected { range: 0..len, offset, by: op }];
        self.copied(lane, (part, Way::Write), op, after, HostSlot { buffer, expected, op, mark: Default::default() })
    }

    pub(super) fn copy_out(&mut self, lane: &Lane, part: Part, pinned: bool) -> Result<(), Trouble> {
        if self.view(part).is_none() {
            return Ok(());
        }
        let after = self.order(lane, part, Way::Read)?;
        let op = self.oracle.next();
        let (_, expected) = self.expected_of(part);
        let buffer = self.host_buffer(lane, part, pinned);
        let view = self.view(part).expect("it was there");
        lane.stream.copy_to_host(view, &buffer)?;
        self.copied(lane, (part, Way::Read), op, after, HostSlot { buffer, expected, op, mark: Default::default() })
    }

    fn host_buffer(&self, lane: &Lane, part: Part, pinned: bool) -> HostBuffer<u8> {
        let (len, _) = self.expected_of(part);
        let allocator = &self.allocators[lane.allocator];
        if pinned { allocator.pinned(len) } else { allocator.pageable(len) }
    }

    /// A copy was submitted: what was captured leaves nothing behind, and what blocked the host is complete.
    fn copied(
        &mut self,
        lane: &Lane,
        what: (Part, Way),
        op: OpId,
        after: Vec<OpId>,
        mut slot: HostSlot,
    ) -> Result<(), Trouble> {
        if self.captures(lane) {
            return Ok(());
        }
        self.submitted(op, "copy", lane, &[what], after);
        slot.mark = self.oracle.fence(lane.number);
        self.copies.push(slot);
        if self.copies.len() > COPIES {
            self.copies.remove(0);
        }
        Ok(())
    }

    pub(super) fn look_at_host(&mut self, which: u8, wait: bool) -> Result<(), Trouble> {
        if self.copies.is_empty() {
            return Ok(());
        }
        let index = usize::from(which) % self.copies.len();
        if wait {
            self.copies[index].buffer.wait(LONG)?;
        } else if !self.copies[index].buffer.is_ready()? {
            self.say("a copy is under way");
        }
        let slot = &self.copies[index];
        let wrong = self.wrong.clone();
        slot.buffer.read(|bytes| check(slot.op, bytes, &slot.expected, &wrong))?;
        let (now_ns, mark) = (self.device.now_ns(), slot.mark.clone());
        self.oracle.told(self.step, now_ns, &mark);
        Ok(())
    }

    // ---- memory past the allocator

    pub(super) fn alias(&mut self, first: &Lane, second: &Lane) -> Result<(), Trouble> {
        if self.capture.is_some() || self.aliases.len() > 1 {
            return Ok(());
        }
        let granule = self.program.config.granule_bytes;
        let device = self.device.clone();
        let (address, page, mapped) = (Address(0), None, [false; 2]);
        self.aliases.push(AliasPage { granule, address, reserved: false, page, mapped, used_by: Vec::new() });
        let alias = self.aliases.last_mut().expect("it was just pushed");
        match alias.build(&device) {
            // The allocators have it all.
            Err(highwater::device::DeviceError::OutOfMemory { .. }) => return Ok(()),
            other => other?,
        }
        let (by, also_by) = (alias.at(0), alias.at(1));
        let life = self.oracle.born();
        let written = self.touch_alias(first, Access { life, address: by.0, bytes: granule }, None)?;
        self.put_after(second, written)?;
        self.touch_alias(second, Access { life, address: also_by.0, bytes: granule }, Some(written))?;
        Ok(())
    }

    /// An operation writes the page, or reads what another one has to have left.
    fn touch_alias(&mut self, lane: &Lane, access: Access, reads: Option<OpId>) -> Result<OpId, Trouble> {
        let (op, wrong) = (self.oracle.next(), Arc::clone(&self.wrong));
        let way = if reads.is_some() { Way::Read } else { Way::Write };
        let body = move |operands: &mut [highwater::device::OperandBytes]| match reads {
            None => fill(operands[0].as_bytes_mut(), 0, stamp(op)),
            Some(by) => {
                let range = 0..operands[0].as_bytes().len();
                check(op, operands[0].as_bytes(), &[Expected { range, offset: 0, by }], &wrong);
            }
        };
        let operands = vec![Operand { range: ByteRange::new(Address(access.address), access.bytes), access: way }];
        let (name, cost) = (format!("operation {}", op.0).into(), Cost::exact(5));
        let operation = Operation { name, tag: 0, cost, operands, body: Body::Host(Box::new(body)) };
        self.device.launch(lane.stream.id(), operation)?;
        self.oracle.submit(lane.number, self.step, "alias", vec![access], reads.into_iter().collect());
        self.aliases.last_mut().expect("the page is there").used_by.push(op);
        Ok(op)
    }

    pub(super) fn unalias(&mut self, which: u8) -> Result<(), Trouble> {
        if self.aliases.is_empty() {
            return Ok(());
        }
        let index = usize::from(which) % self.aliases.len();
        while let Some(&op) = self.aliases[index].used_by.last() {
            let mark: Mark = self.mark_behind(op)?;
            self.host_wait(&mark, LONG)?;
            self.aliases[index].used_by.pop();
        }
        let device = self.device.clone();
        self.aliases[index].tear_down(&device)?;
        self.aliases.remove(index);
        Ok(())
    }

    /// What one rank sends in the collective of a step has to be this.
    pub(super) fn sent(step: usize, rank: usize) -> u64 {
        super::rng::mix((step as u64) << 8 | rank as u64 | 1 << 60)
    }

    /// The bytes received from a rank are those that it sent.
    pub(super) fn is_sent(bytes: &[u8], step: usize, rank: usize) -> bool {
        first_other(bytes, 0, Self::sent(step, rank)).is_none()
    }

    /// A rule of the end that is broken.
    pub(super) fn leak(what: impl Into<String>) -> Failure {
        Failure::new(Rule::Leak, what)
    }
}
