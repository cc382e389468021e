//! One step after the other: which method does what a step says.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use highwater::StreamError;
use highwater::device::Access as Way;
use highwater::device::sim::Collective;
use highwater::device::{Address, ByteRange, Cost, DeviceError, DeviceResult, Operand, OperandBytes, StreamId};

use super::bytes::{Wrong, fill};
use super::host::{Host, LONG, Lane, Trouble, lock};
use super::oracle::{Access, Life, OpId, stamp};
use super::pieces::{How, Part, Piece};
use super::program::Action;
use super::verdict::{Failure, Rule};

/// How many fences a program keeps.
const FENCES: usize = 12;

impl Host<'_> {
    /// Does what a step says, as far as there is something to do it with.
    pub(super) fn act(&mut self, action: &Action) -> Result<(), Trouble> {
        match *action {
            Action::Alloc { owner, bytes, writer, raw } => {
                let owner = self.any_lane(owner);
                self.make(&owner, bytes, writer, raw)
            }
            Action::Read { piece, stream, part } => self.use_part("read", piece, stream, part, Way::Read, How::Launch),
            Action::Write { piece, stream, part, update } => {
                let way = if update { Way::ReadWrite } else { Way::Write };
                self.use_part("write", piece, stream, part, way, How::Launch)
            }
            Action::Raw { piece, stream, part, write, how } => {
                let way = if write { Way::Write } else { Way::Read };
                self.use_part("raw use", piece, stream, part, way, How::Raw(how))
            }
            Action::Combine { from, to, stream } => self.combine(from, to, stream),
            Action::Free { .. } | Action::FreeElsewhere { .. } | Action::FreeBetween { .. } | Action::Renew { .. } => {
                self.free(action)
            }
            Action::Idle { stream } => {
                let lane = self.any_lane(stream);
                self.operate("idle", &lane, &[], How::Launch)
            }
            Action::CopyIn { piece, stream, part, pinned } => match self.lane_and_part(piece, stream, part) {
                Some((lane, part)) => self.copy_in(&lane, part, pinned),
                None => Ok(()),
            },
            Action::CopyOut { piece, stream, part, pinned } => match self.lane_and_part(piece, stream, part) {
                Some((lane, part)) => self.copy_out(&lane, part, pinned),
                None => Ok(()),
            },
            Action::LookAtHost { which, wait } => self.look_at_host(which, wait),
            Action::BeginCapture { stream } => {
                let lane = self.any_lane(stream);
                self.begin_capture(&lane)
            }
            Action::EndCapture { keep } => self.end_capture(keep),
            Action::DropGraph { which } => {
                drop(take(&mut self.graphs, which));
                Ok(())
            }
            Action::Alias { first, second } => {
                let (first, second) = (self.any_lane(first), self.lane(self.any_lane(first).allocator, second));
                self.alias(&first, &second)
            }
            Action::Unalias { which } => self.unalias(which),
            Action::FailCall { call, nth } => {
                self.device.fail_call(call, u64::from(nth));
                Ok(())
            }
            Action::FailFence { nth } => {
                self.fence_armed = true;
                self.device.sim().fail_fence(u64::from(nth));
                Ok(())
            }
            Action::Collective { stream, bytes } => self.gather(stream, bytes),
            _ => self.act_on_streams(action),
        }
    }

    fn act_on_streams(&mut self, action: &Action) -> Result<(), Trouble> {
        match *action {
            Action::ReplaceStream { stream } => self.replace_stream(stream),
            Action::Record { stream } => {
                let lane = self.any_lane(stream);
                let mark = self.record(&lane)?;
                self.fences.push((lane.allocator, mark));
                if self.fences.len() > FENCES {
                    self.fences.remove(0);
                }
                Ok(())
            }
            Action::Wait { stream, fence } => self.wait_for_fence(stream, fence),
            Action::HostWait { fence, steps } => self.wait_on_host(fence, steps),
            Action::Poll { fence } => self.poll(fence),
            Action::CatchUp => self.catch_up(),
            Action::Pass { times } => {
                (0..times).for_each(|_| self.device.sim().host_work(10));
                Ok(())
            }
            Action::Trim { allocator, granules } => {
                let allocator = &self.allocators[usize::from(allocator) % self.allocators.len()];
                let held = allocator.trim(u64::from(granules) * self.program.config.granule_bytes);
                self.say(format!("{held} bytes held"));
                Ok(())
            }
            Action::Sacrifice { piece } => {
                if let Some(piece) = take(&mut self.pieces, piece) {
                    lock(&self.pool).push(piece);
                }
                Ok(())
            }
            Action::Callback { allocator, frees, allocates } => {
                self.register_callback(allocator, frees, allocates);
                Ok(())
            }
            Action::DropCallback { which } => {
                drop(take(&mut self.callbacks, which));
                Ok(())
            }
            _ => unreachable!("the other steps are done by `act`"),
        }
    }

    fn lane_and_part(&self, piece: u8, stream: u8, part: u8) -> Option<(Lane, Part)> {
        let part = self.part(piece, part)?;
        Some((self.lane(self.pieces[part.piece].lane.allocator, stream), part))
    }

    fn use_part(
        &mut self,
        what: &'static str,
        piece: u8,
        stream: u8,
        part: u8,
        way: Way,
        how: How,
    ) -> Result<(), Trouble> {
        match self.lane_and_part(piece, stream, part) {
            Some((lane, part)) => self.operate(what, &lane, &[(part, way)], how),
            None => Ok(()),
        }
    }

    fn combine(&mut self, from: u8, to: u8, stream: u8) -> Result<(), Trouble> {
        let (Some((lane, from)), Some(to)) = (self.lane_and_part(from, stream, 0), self.part(to, 0)) else {
            return Ok(());
        };
        let same_allocator = self.pieces[to.piece].lane.allocator == lane.allocator;
        if from.piece == to.piece || !same_allocator {
            return Ok(());
        }
        self.operate("combine", &lane, &[(from, Way::Read), (to, Way::Write)], How::Launch)
    }

    fn free(&mut self, action: &Action) -> Result<(), Trouble> {
        let (Action::Free { piece }
        | Action::FreeElsewhere { piece }
        | Action::FreeBetween { piece, .. }
        | Action::Renew { piece, .. }) = *action
        else {
            return Ok(());
        };
        let Some(piece) = take(&mut self.pieces, piece) else { return Ok(()) };
        // Only the threads of a run may call the devices of a cluster.
        let alone = self.program.config.ranks == 1;
        match *action {
            Action::Renew { writer, .. } => {
                let (lane, bytes) = (piece.lane.clone(), piece.bytes as u32);
                drop(piece);
                self.make(&lane, bytes, Some(writer), false)?;
            }
            Action::FreeElsewhere { .. } if alone => free_elsewhere(piece),
            Action::FreeBetween { call, .. } if alone => {
                self.graveyard.push(piece.lane.stream.clone());
                self.device.during(call, move || free_elsewhere(piece));
            }
            _ => drop(piece),
        }
        Ok(())
    }

    fn replace_stream(&mut self, stream: u8) -> Result<(), Trouble> {
        let index = usize::from(stream) % self.lanes.len();
        let allocator = self.lanes[index].allocator;
        let new = self.allocators[allocator].create_stream(&format!("s{index} of step {}", self.step))?;
        let number = self.oracle.add_stream(new.id());
        let old = std::mem::replace(&mut self.lanes[index], Lane { number, allocator, stream: new });
        match self.record(&old) {
            Ok(mark) => {
                self.last_marks.insert(old.number, mark);
                Ok(())
            }
            Err(error) => {
                self.kept.push(old);
                Err(error)
            }
        }
    }

    fn wait_for_fence(&mut self, stream: u8, fence: u8) -> Result<(), Trouble> {
        if self.fences.is_empty() {
            return Ok(());
        }
        let (allocator, mark) = self.fences[usize::from(fence) % self.fences.len()].clone();
        let lane = self.any_lane(stream);
        match self.wait(&lane, &mark) {
            Err(Trouble::Stream(StreamError::OtherAllocator { .. })) if lane.allocator != allocator => Ok(()),
            Ok(()) if lane.allocator != allocator => {
                Err(Failure::new(Rule::Error, "a stream took the fence of another allocator").into())
            }
            other => other,
        }
    }

    fn wait_on_host(&mut self, fence: u8, steps: Option<u8>) -> Result<(), Trouble> {
        if self.fences.is_empty() {
            return Ok(());
        }
        let (_, mark) = self.fences[usize::from(fence) % self.fences.len()].clone();
        let timeout = steps.map_or(LONG, |steps| Duration::from_nanos(u64::from(steps)));
        match self.host_wait(&mark, timeout) {
            Err(Trouble::Stream(StreamError::TimedOut { .. })) if steps.is_some() => {
                self.met.add("host wait timed out", 1);
                self.say("timed out");
                Ok(())
            }
            other => other,
        }
    }

    fn poll(&mut self, fence: u8) -> Result<(), Trouble> {
        if self.fences.is_empty() {
            return Ok(());
        }
        let (allocator, mark) = self.fences[usize::from(fence) % self.fences.len()].clone();
        if !self.device.by_program(|| mark.fence.is_complete())? {
            self.say("not complete");
            return Ok(());
        }
        self.told(&mark);
        let before = self.fences.iter().find(|(of, _)| *of == allocator).expect("there is the one that was asked");
        match mark.fence.elapsed_ns_since(&before.1.fence) {
            // The other one need not be complete.
            Err(StreamError::Device { source: DeviceError::InvalidValue { .. }, .. }) => Ok(()),
            other => {
                self.said.push_str(&format!("{:?} ns; ", other?));
                Ok(())
            }
        }
    }

    /// The host waits for everything that it has submitted.
    pub(super) fn catch_up(&mut self) -> Result<(), Trouble> {
        for lane in self.lanes.iter().chain(&self.kept).cloned().collect::<Vec<Lane>>() {
            let mark = self.record(&lane)?;
            self.host_wait(&mark, LONG)?;
        }
        for mark in self.last_marks.values().cloned().collect::<Vec<_>>() {
            self.host_wait(&mark, LONG)?;
        }
        Ok(())
    }

    fn register_callback(&mut self, allocator: u8, frees: u8, allocates: bool) {
        let allocator = usize::from(allocator) % self.allocators.len();
        let stream = self.lane(allocator, frees).stream;
        let (pool, ran) = (Arc::clone(&self.pool), Arc::clone(&self.callbacks_ran));
        let guard = self.allocators[allocator].on_pressure(move |_| {
            ran.fetch_add(1, Ordering::Relaxed);
            for _ in 0..frees {
                let piece = lock(&pool).pop();
                drop(piece);
            }
            if allocates {
                drop(stream.alloc::<u8>(1));
            }
        });
        self.callbacks.push(guard);
    }

    // ---- collectives

    /// Every rank writes a block, and all gather all blocks. A rank that cannot takes part with nothing.
    fn gather(&mut self, stream: u8, bytes: u32) -> Result<(), Trouble> {
        // Once: on a broken device a capture cannot be ended, and no other one has begun.
        self.guarded(|host| host.end_capture(false))?;
        let lane = self.any_lane(stream);
        let mut blocks = None;
        let prepared = self.guarded(|host| {
            blocks = host.gather_blocks(&lane, bytes)?;
            Ok(())
        });
        prepared?;
        let result = match blocks {
            Some((send, receive)) => self.gather_into(&lane, send, receive),
            None => Err(Failure::new(Rule::Error, "no blocks").into()),
        };
        if let Some((send, _)) = blocks {
            // The one that it received into was made last, and takes the place.
            drop(self.pieces.swap_remove(send.piece));
        }
        match result {
            Ok(()) => Ok(()),
            Err(trouble) => {
                if blocks.is_some() {
                    self.judge(trouble)?;
                }
                self.gather_nothing(&lane)
            }
        }
    }

    fn gather_blocks(&mut self, lane: &Lane, bytes: u32) -> Result<Option<(Part, Part)>, Trouble> {
        let ranks = u32::from(self.program.config.ranks);
        let Some(send) = self.alloc(lane, bytes, false)? else { return Ok(None) };
        let Some(receive) = self.alloc(lane, bytes * ranks, false)? else { return Ok(None) };
        self.pieces.push(send);
        let send = self.last_made().expect("it was just made");
        let (op, word) = (self.oracle.next(), Self::sent(self.step, self.rank.into()));
        let view = self.view(send).expect("it is a buffer");
        let launch = lane.stream.launch(format!("operation {}", op.0), Cost::exact(3)).write(view);
        let written = launch.body(move |operands| fill(operands[0].as_bytes_mut(), 0, word)).submit();
        if let Err(error) = written {
            self.pieces.pop();
            return Err(error.into());
        }
        self.submitted(op, "send", lane, &[(send, Way::Write)], Vec::new());
        self.pieces.push(receive);
        let receive = self.last_made().expect("it was just made");
        Ok(Some((send, receive)))
    }

    fn gather_into(&mut self, lane: &Lane, send: Part, receive: Part) -> Result<(), Trouble> {
        let op = self.oracle.next();
        let (reads, writes) = ([self.view(send).expect("a buffer")], [self.view(receive).expect("a buffer")]);
        lane.stream.submit_external("gather", &reads, &writes, |id, external| {
            self.take_part(id, op, external.reads[0], external.writes[0])
        })?;
        self.submitted(op, "gather", lane, &[(send, Way::Read), (receive, Way::Write)], Vec::new());
        Ok(())
    }

    /// Takes part without memory. Whatever stands in the way, the others wait for this.
    fn gather_nothing(&mut self, lane: &Lane) -> Result<(), Trouble> {
        let (op, nothing) = (self.oracle.next(), ByteRange::new(Address(0), 0));
        loop {
            match self.take_part(lane.stream.id(), op, nothing, nothing) {
                Err(error @ DeviceError::Injected { .. }) => self.judge(error.into())?,
                other => {
                    other?;
                    break;
                }
            }
        }
        let nothing = Access { life: Life(0), address: 0, bytes: 0 };
        self.oracle.submit(lane.number, self.step, "gather nothing", vec![nothing, nothing], Vec::new());
        Ok(())
    }

    fn take_part(&self, stream: StreamId, op: OpId, send: ByteRange, receive: ByteRange) -> DeviceResult<()> {
        let (step, ranks, wrong) = (self.step, usize::from(self.program.config.ranks), Arc::clone(&self.wrong));
        let body = move |incoming: &[&OperandBytes], received: &mut OperandBytes| {
            for (rank, bytes) in incoming.iter().enumerate() {
                if !Self::is_sent(bytes.as_bytes(), step, rank) {
                    lock(&wrong).push(Wrong::received(op, rank));
                }
            }
            fill(received.as_bytes_mut(), 0, stamp(op));
        };
        let collective = Collective {
            communicator: self.communicator.clone(),
            name: "gather".into(),
            tag: 0,
            cost: Cost::exact(20),
            sends: vec![send; ranks],
            receive: Operand { range: receive, access: Way::Write },
            body: Box::new(body),
        };
        self.device.collective(stream, collective)
    }
}

/// Takes the thing of a number out.
fn take<T>(things: &mut Vec<T>, which: u8) -> Option<T> {
    (!things.is_empty()).then(|| things.swap_remove(usize::from(which) % things.len()))
}

/// Frees on another thread, and waits for it: so the order of the calls is always the same.
fn free_elsewhere(piece: Piece) {
    let freed = std::thread::spawn(move || drop(piece)).join();
    assert!(freed.is_ok(), "a free on another thread panicked");
}
