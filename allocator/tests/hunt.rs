//! Hunting for memory that is reused too early: random programs, run by an adversary, whose operations check every byte.
//!
//! The program orders its own data with fences, and nothing else: that a block is not somebody else's yet is left to the
//! allocator. A byte that is wrong, two operations that race on a byte, or an operation on memory that is not mapped ends
//! the hunt, and the seed replays it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use highwater::device::Address;
use highwater::device::sim::SimConfig;
use highwater::{AllocError, Buffer, Fence, Policy, Settings, Stream};

use crate::world::{Rng, World, adversarial, still};

/// Memory of the hunted device: small, so that every rung is climbed.
const GRANULE: u64 = 4096;
const MEMORY: u64 = 24 * GRANULE;

/// A block and what the program knows about it.
struct Piece {
    buffer: Buffer<u8>,
    /// The value of every byte, once something has been written.
    value: u8,
    /// The last write, and everything that read since: by stream, a fence behind it.
    written: (usize, Fence),
    read: Vec<(usize, Fence)>,
}

/// A program in the making.
struct Hunter<'a> {
    world: &'a World,
    rng: Rng,
    streams: Vec<Stream>,
    pieces: Vec<Piece>,
    next_value: u8,
}

impl<'a> Hunter<'a> {
    fn new(world: &'a World, seed: u64) -> Self {
        let streams = world.streams::<3>().to_vec();
        Hunter { world, rng: Rng::new(seed), streams, pieces: Vec::new(), next_value: 0 }
    }

    fn any_stream(&mut self) -> usize {
        self.rng.below(self.streams.len())
    }

    fn value(&mut self) -> u8 {
        // 0xFF is what unwritten memory holds.
        self.next_value = (self.next_value + 1) % 0xFF;
        self.next_value
    }

    fn step(&mut self) {
        match self.rng.below(21) {
            0..5 => self.make(),
            5..9 => self.read(),
            9..11 => self.rewrite(),
            11..15 => self.forget(),
            15 => self.renew(),
            16 => self.raw_use(),
            17 => self.exact_use(),
            18 => self.guarded_use(),
            19 => self.replace_stream(),
            _ => self.let_go(),
        }
    }

    /// Allocates, and writes at once: on the owner, or on another stream.
    fn make(&mut self) {
        let owner = self.any_stream();
        let bytes = 1 + self.rng.below(3 * GRANULE as usize);
        match self.streams[owner].alloc::<u8>(bytes) {
            Ok(buffer) => self.write_first(owner, buffer),
            Err(AllocError::OutOfMemory(_)) => self.forget(),
            Err(other) => panic!("{other}"),
        }
    }

    fn write_first(&mut self, owner: usize, buffer: Buffer<u8>) {
        let writer = if self.rng.below(3) == 0 { self.any_stream() } else { owner };
        let value = self.value();
        self.world.fill(&self.streams[writer], &buffer, value, 3);
        let written = (writer, self.streams[writer].record().unwrap());
        self.pieces.push(Piece { buffer, value, written, read: Vec::new() });
    }

    fn any_piece(&mut self) -> Option<usize> {
        (!self.pieces.is_empty()).then(|| self.rng.below(self.pieces.len()))
    }

    /// Puts stream `user` behind the write.
    fn after_write(&self, user: usize, piece: usize) {
        let (writer, written) = &self.pieces[piece].written;
        if *writer != user {
            self.streams[user].wait(written).unwrap();
        }
    }

    fn read(&mut self) {
        let Some(piece) = self.any_piece() else { return };
        let user = self.any_stream();
        self.after_write(user, piece);
        let Piece { buffer, value, read, .. } = &mut self.pieces[piece];
        self.world.expect(&self.streams[user], &*buffer, *value, 3);
        // A fence for the next writer; sometimes nobody needs one, because the piece is forgotten next.
        if self.rng.below(4) == 0 {
            self.pieces.swap_remove(piece);
        } else {
            read.push((user, self.streams[user].record().unwrap()));
        }
    }

    fn rewrite(&mut self) {
        let Some(piece) = self.any_piece() else { return };
        let (user, value) = (self.any_stream(), self.value());
        self.after_write(user, piece);
        for (reader, fence) in std::mem::take(&mut self.pieces[piece].read) {
            if reader != user {
                self.streams[user].wait(&fence).unwrap();
            }
        }
        self.world.fill(&self.streams[user], &self.pieces[piece].buffer, value, 3);
        self.pieces[piece].value = value;
        self.pieces[piece].written = (user, self.streams[user].record().unwrap());
    }

    fn forget(&mut self) {
        if let Some(piece) = self.any_piece() {
            self.pieces.swap_remove(piece);
        }
    }

    /// Frees, and asks for the same at once.
    fn renew(&mut self) {
        let Some(piece) = self.any_piece() else { return };
        let Piece { buffer, .. } = self.pieces.swap_remove(piece);
        let (stream, bytes) = (buffer.stream().clone(), buffer.len());
        drop(buffer);
        let Some(owner) = self.streams.iter().position(|known| *known == stream) else { return };
        if let Ok(buffer) = stream.alloc::<u8>(bytes) {
            self.write_first(owner, buffer);
        }
    }

    /// A read past the allocator, on a stream that is ordered by hand, recorded for the whole stream.
    fn raw_use(&mut self) {
        let Some(piece) = self.any_piece() else { return };
        let user = self.any_stream();
        self.after_write(user, piece);
        let (stream, piece) = (self.streams[user].clone(), &mut self.pieces[piece]);
        self.world.raw_read(&stream, piece.buffer.device_address(), piece.buffer.bytes(), piece.value, 3);
        piece.buffer.record_stream(&stream);
        piece.read.push((user, stream.record().unwrap()));
    }

    /// The same, recorded exactly; work that has nothing to do with it follows.
    fn exact_use(&mut self) {
        let Some(piece) = self.any_piece() else { return };
        let user = self.any_stream();
        self.after_write(user, piece);
        let (stream, piece) = (self.streams[user].clone(), &mut self.pieces[piece]);
        self.world.raw_read(
            &stream,
            Address(crate::world::address(&piece.buffer)),
            piece.buffer.bytes(),
            piece.value,
            3,
        );
        let fence = stream.record().unwrap();
        piece.buffer.record_use(&stream, &fence).unwrap();
        piece.read.push((user, fence));
        self.world.idle(&stream, 20);
    }

    /// The same under a guard, which brings the order with the former uses of the memory, and not that with the write.
    fn guarded_use(&mut self) {
        let Some(piece) = self.any_piece() else { return };
        let user = self.any_stream();
        self.after_write(user, piece);
        let (stream, piece) = (self.streams[user].clone(), &mut self.pieces[piece]);
        let on = piece.buffer.read_on(&stream).unwrap();
        self.world.raw_read(&stream, on.address(), piece.buffer.bytes(), piece.value, 3);
        drop(on);
        piece.read.push((user, stream.record().unwrap()));
        self.world.idle(&stream, 20);
    }

    fn replace_stream(&mut self) {
        let (index, number) = (self.any_stream(), self.rng.next());
        // The numbers of `written` and `read` mean the old stream: forget what they say of it.
        self.pieces.retain(|piece| piece.written.0 != index && piece.read.iter().all(|(user, _)| *user != index));
        let new = self.world.allocator.create_stream(&format!("stream {number}")).unwrap();
        // Where an open one would be waited for, the host waits.
        if number % 3 == 0 {
            new.mark_open();
        }
        self.streams[index] = new;
    }

    /// No wait is put behind any stream.
    fn open_all(&self) {
        self.streams.iter().for_each(Stream::mark_open);
    }

    fn let_go(&mut self) {
        match self.rng.below(4) {
            0 => drop(self.world.allocator.trim(self.rng.next() % MEMORY)),
            1 => {
                self.world.allocator.trim(0);
            }
            _ => (0..self.rng.below(6)).for_each(|_| self.world.pass(0)),
        }
    }
}

/// What a seed's program met on its way.
#[derive(Default)]
struct Met {
    rungs: std::collections::BTreeMap<&'static str, u64>,
    waits_inserted: u64,
    pages_moved: u64,
    pages_back: u64,
}

fn hunt(seed: u64, met: &mut Met) {
    let config = SimConfig { memory_bytes: MEMORY, granularity_bytes: GRANULE, ..adversarial(seed) };
    let moving = || Settings::builder().page_time(1.0);
    let settings = [moving().policy(Policy::Wait), moving().page_time(0.0), still()][seed as usize % 3].clone();
    let world = World::new(config, settings.history_kib(64));
    let mut hunter = Hunter::new(&world, seed);
    if seed % 3 == 2 {
        hunter.open_all();
    }
    for step in 0..400 {
        hunter.step();
        if step % 8 == 0 {
            world.check();
            world.expect_clean();
        }
    }
    drop(hunter);
    let stats = world.stats();
    for (rung, requests) in stats.requests_by_rung {
        *met.rungs.entry(rung).or_default() += requests;
    }
    met.waits_inserted += stats.waits_inserted;
    met.pages_moved += stats.pages_moved;
    met.pages_back += stats.pages_moved - stats.pages_remapped;
    world.end();
}

#[test]
fn no_schedule_finds_a_wrong_byte() {
    let mut met = Met::default();
    for seed in 0..200 {
        catch_unwind(AssertUnwindSafe(|| hunt(seed, &mut met))).unwrap_or_else(|_| panic!("seed {seed}"));
    }
    // The hunt goes through everything that may hand out memory; only callbacks have tests of their own.
    for (rung, requests) in met.rungs {
        assert!(requests > 10 || rung == "callbacks", "{rung} met {requests} requests");
    }
    assert!(met.waits_inserted > 200, "{} waits", met.waits_inserted);
    assert!(met.pages_moved > 200 && met.pages_back > 20, "{} moved, {} came back", met.pages_moved, met.pages_back);
}
