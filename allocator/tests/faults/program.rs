//! The program that meets the faults: calls of every kind, for every step of the ladder.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use highwater::device::{Cost, OperandBytes};
use highwater::{AllocError, Buffer, Error, Fence, Launch, Stream, View};

use crate::world::{GRANULE, GRANULES, World, granules};

/// What the program does in one go: allocations, frees with foreign uses, launches, copies, streams that come and go, a
/// capture, memory that moves and memory that waits, callbacks, open streams, and the ladder up to its top.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    Sharing,
    Copies,
    StreamsComeAndGo,
    Captures,
    Moves,
    Growth,
    Callbacks,
    OpenStreams,
    Ladder,
}

impl Act {
    pub(super) const ALL: [Act; 9] = [
        Act::Sharing,
        Act::Copies,
        Act::StreamsComeAndGo,
        Act::Captures,
        Act::Moves,
        Act::Growth,
        Act::Callbacks,
        Act::OpenStreams,
        Act::Ladder,
    ];
}

/// The errors of acts, one after the other.
pub(super) fn errors_of(world: &World, acts: &[Act]) -> u64 {
    Program { world, errors: 0, at_once: false }.run(acts)
}

/// The errors of one act, in which one call fails at most: what is asked for again is met.
pub(super) fn errors_of_act(world: &World, act: Act) -> u64 {
    Program { world, errors: 0, at_once: true }.run(&[act])
}

/// It goes on after an error, and tells how many there were that need not be.
pub(super) struct Program<'a> {
    world: &'a World,
    errors: u64,
    /// Whether a request that failed is met when it is asked again.
    at_once: bool,
}

impl Program<'_> {
    fn run(mut self, acts: &[Act]) -> u64 {
        let world = self.world;
        let streams: Vec<Stream> =
            ["s", "t", "u"].iter().filter_map(|name| self.got(world.allocator.create_stream(name))).collect();
        let [Some(s), Some(t), u] = [0, 1, 2].map(|index| streams.get(index)) else { return self.errors };
        for act in acts {
            self.act(*act, [s, t, u.unwrap_or(t)]);
        }
        world.allocator.snapshot().check().unwrap();
        world.allocator.trim(3 * GRANULE);
        world.allocator.trim(0);
        self.errors
    }

    fn act(&mut self, act: Act, streams: [&Stream; 3]) {
        match act {
            Act::Sharing => self.sharing(streams),
            Act::Copies => self.copies(streams),
            Act::StreamsComeAndGo => self.streams_come_and_go(streams),
            Act::Captures => self.captures(streams),
            Act::Moves => self.moves(streams),
            Act::Growth => self.growth(streams),
            Act::Callbacks => self.callbacks(streams),
            Act::OpenStreams => self.open_streams(streams),
            Act::Ladder => self.ladder(streams),
        }
    }

    /// What succeeded.
    fn got<T, E: Into<Error>>(&mut self, result: Result<T, E>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                assert!(!error.into().to_string().is_empty());
                self.errors += 1;
                self.world.check();
                None
            }
        }
    }

    fn alloc(&mut self, stream: &Stream, granules_wanted: u64) -> Option<Buffer<u8>> {
        let live = self.world.stats().live.now;
        let buffer = stream.alloc(granules(granules_wanted));
        if let Err(error) = &buffer {
            assert_eq!(self.world.stats().live.now, live, "something was handed out");
            self.world.check();
            let again = stream.alloc::<u8>(granules(granules_wanted));
            assert!(again.is_ok() || !self.at_once, "{error}, and then {again:?}");
        }
        self.got(buffer)
    }

    fn launch(&mut self, stream: &Stream, buffer: Option<&Buffer<u8>>, ns: u64) {
        let Some(buffer) = buffer else { return };
        let launched = stream.launch("work", Cost::exact(ns)).read_write(buffer).submit();
        self.got(launched);
    }

    fn fence(&mut self, stream: &Stream) -> Option<Fence> {
        let fence = stream.record();
        self.got(fence)
    }

    fn sharing(&mut self, [s, t, _]: [&Stream; 3]) {
        let recycled = self.alloc(s, 1);
        self.launch(s, recycled.as_ref(), 30);
        drop(recycled);
        let (x, y) = (self.alloc(s, 1), self.alloc(s, 2));
        self.launch(t, x.as_ref(), 20);
        let done = self.fence(t);
        if let (Some(y), Some(done)) = (&y, &done) {
            let used = y.record_use(t, done);
            self.got(used);
            y.record_stream(t);
            self.got(s.wait(done));
        }
        self.launch(s, y.as_ref(), 5);
        drop((x, y));
        self.world.pass(60);
        if let Some(done) = done {
            self.got(done.is_complete());
            if let Some(later) = self.fence(t) {
                let _ = self.got(later.wait(Duration::from_secs(1)));
                self.got(later.elapsed_ns_since(&done));
            }
        }
        let again = self.alloc(s, 3);
        self.launch(s, again.as_ref(), 5);
    }

    fn copies(&mut self, [s, ..]: [&Stream; 3]) {
        let Some(x) = self.alloc(s, 1) else { return };
        for pinned in [true, false, true] {
            let (allocator, bytes) = (&self.world.allocator, granules(1));
            let host = if pinned { allocator.pinned::<u8>(bytes) } else { allocator.pageable(bytes) };
            self.got(s.copy_to_device(&host, &x));
            self.got(s.copy_to_host(&x, &host));
            self.got(host.is_ready());
            self.got(host.wait(Duration::from_secs(1)));
        }
    }

    fn streams_come_and_go(&mut self, [s, ..]: [&Stream; 3]) {
        for _ in 0..3 {
            let created = self.world.allocator.create_stream("short-lived");
            let Some(short) = self.got(created) else { continue };
            let (own, of_s) = (self.alloc(&short, 1), self.alloc(s, 1));
            self.launch(&short, own.as_ref(), 10);
            self.launch(&short, of_s.as_ref(), 10);
            drop(short);
            drop((own, of_s));
            self.world.pass(15);
        }
    }

    /// There is room: while a stream captures, nothing that is cached elsewhere is returned.
    fn captures(&mut self, [s, t, _]: [&Stream; 3]) {
        self.world.pass(100);
        self.world.allocator.trim(8 * GRANULE);
        let capture = s.begin_capture();
        let Some(capture) = self.got(capture) else { return };
        let (inside, outside) = (self.alloc(s, 1), self.alloc(t, 1));
        self.launch(s, inside.as_ref(), 1);
        self.launch(t, outside.as_ref(), 1);
        drop((inside, outside));
        let graph = self.got(capture.end());
        drop(graph);
    }

    /// Writes a value to the head of each granule of a block, or tells that nothing was written.
    fn fill(&mut self, stream: &Stream, block: Option<Buffer<u8>>, value: u8) -> Option<(Buffer<u8>, u8)> {
        let block = block?;
        let launch = heads(&block).fold(stream.launch("fill", Cost::exact(1)), Launch::write);
        let body = move |operands: &mut [OperandBytes]| {
            operands.iter_mut().for_each(|operand| operand.as_bytes_mut().fill(value));
        };
        let launched = launch.body(body).submit();
        self.got(launched).map(|()| (block, value))
    }

    fn expect(&mut self, stream: &Stream, (block, value): &(Buffer<u8>, u8)) {
        let launch = heads(block).fold(stream.launch("expect", Cost::exact(1)), Launch::read);
        let launched = launch.body(self.world.verify(stream, *value)).submit();
        self.got(launched);
    }

    /// Free handles that lie apart are brought together: by another stream, by their own, and by one that had them
    /// before; some are still used, by their stream and by another one. The blocks between them keep their bytes.
    fn moves(&mut self, [s, t, u]: [&Stream; 3]) {
        for rest_ns in [0, 100] {
            let kept = self.kept_apart(s, t);
            self.world.pass(rest_ns);
            for _ in 0..2 {
                let (lent, own) = (self.alloc(u, 3), self.alloc(s, 3));
                // Who uses it first is neither who has it nor who had it.
                let lent = self.fill(t, lent, 101);
                let own = self.fill(u, own, 102);
                lent.iter().for_each(|lent| self.expect(t, lent));
                own.iter().for_each(|own| self.expect(u, own));
                drop((lent, own));
                self.world.pass(rest_ns);
            }
            kept.iter().for_each(|kept| self.expect(s, kept));
        }
    }

    /// Blocks that fill the device but for every second of them, which was used last.
    fn kept_apart(&mut self, s: &Stream, t: &Stream) -> Vec<(Buffer<u8>, u8)> {
        let mut kept = Vec::new();
        for value in 0..GRANULES {
            let block = self.alloc(s, 1);
            kept.extend(self.fill(s, block, value as u8));
        }
        let filled = self.fence(s);
        let t_may = filled.and_then(|filled| self.got(t.wait(&filled))).is_some();
        let apart: Vec<usize> = (0..kept.len()).rev().step_by(2).collect();
        for (count, index) in apart.into_iter().enumerate() {
            let (block, _) = kept.remove(index);
            let user = if count % 4 == 0 && t_may { t } else { s };
            self.launch(user, Some(&block), 20);
        }
        kept
    }

    /// What was asked for last is used by another stream while as much is asked for again, and there is room for more.
    fn growth(&mut self, [s, t, _]: [&Stream; 3]) {
        for rest_ns in [0, 100] {
            self.world.allocator.trim(4 * GRANULE);
            for bytes in [4, 6] {
                let used = self.alloc(s, bytes);
                self.launch(t, used.as_ref(), 50);
                drop(used);
                self.world.pass(rest_ns);
            }
        }
    }

    /// All memory is held by what a callback lets go.
    fn callbacks(&mut self, [s, ..]: [&Stream; 3]) {
        let held: Vec<Buffer<u8>> = (0..4).filter_map(|_| self.alloc(s, GRANULES / 4)).collect();
        let held = Arc::new(Mutex::new(held));
        let given = held.clone();
        let guard = self.world.allocator.on_pressure(move |_| given.lock().unwrap().clear());
        let needed = self.alloc(s, 3);
        self.launch(s, needed.as_ref(), 5);
        drop((guard, held));
    }

    /// No wait is put behind an open stream: the host waits for what it has used, of the own heap and of others. What it
    /// has freed does not move, but goes back to the device where it is needed.
    fn open_streams(&mut self, [s, t, _]: [&Stream; 3]) {
        let created = self.world.allocator.create_stream("open");
        let Some(open) = self.got(created) else { return };
        open.mark_open();
        for stream in [s, t] {
            let used = self.alloc(s, GRANULES);
            self.launch(&open, used.as_ref(), 50);
            drop(used);
            let again = self.alloc(stream, GRANULES);
            self.launch(stream, again.as_ref(), 5);
        }
        for rest_ns in [0, 100] {
            let own = self.alloc(&open, GRANULES / 2);
            self.launch(&open, own.as_ref(), 50);
            drop(own);
            self.world.pass(rest_ns);
            let other = self.alloc(t, GRANULES);
            self.launch(t, other.as_ref(), 5);
        }
    }

    /// Each request needs all memory, which another stream has freed and still uses. The last one is to fail.
    fn ladder(&mut self, [s, t, u]: [&Stream; 3]) {
        let all = self.alloc(s, GRANULES);
        self.launch(t, all.as_ref(), 40);
        drop(all);
        let own = self.alloc(s, GRANULES);
        self.launch(s, own.as_ref(), 40);
        drop(own);
        let other = self.alloc(u, GRANULES / 2);
        self.launch(u, other.as_ref(), 10);
        let too_much = s.alloc::<u8>(granules(GRANULES));
        assert!(too_much.is_err() || other.is_none());
        self.world.check();
        if !matches!(too_much, Err(AllocError::OutOfMemory(_))) {
            self.got(too_much);
        }
        drop(self.alloc(u, 2));
    }
}

/// The first bytes of each granule of a block: one handle is not larger.
fn heads(block: &Buffer<u8>) -> impl Iterator<Item = View<'_, u8>> {
    (0..block.len()).step_by(granules(1)).map(|at| block.slice(at..at + 64))
}
