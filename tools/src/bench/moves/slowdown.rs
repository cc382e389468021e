//! A kernel that memory alone bounds, by itself and while pages move.
//!
//! The pages are of another allocator on the same device, so that nothing orders the two; the streams that they move
//! between have no work of their own. One handle goes around them, so that each allocation maps it anew: of its old
//! mappings only the last three are kept.

use std::collections::VecDeque;
use std::time::Duration;

use highwater::{Allocator, Buffer, Fence, Settings, Stream};
use highwater_kernels as kernels;

use super::{AnyDevice, AnyError, with};

/// Streams that the handle goes around: more than it keeps old mappings.
const STREAMS: usize = 6;
/// Kernels that are queued at any time: enough that the stream never waits for the host.
const QUEUED: usize = 4;
/// The longest that the end of the kernels is waited for.
const LONGEST: Duration = Duration::from_secs(60);

/// How much is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Slowdown {
    /// Bytes of each of the two buffers that the kernel reads; it writes one of them.
    pub(super) buffer_bytes: u64,
    /// Kernels of a round without moves.
    pub(super) kernels: usize,
    /// Rounds of each kind, one after the other in turn.
    pub(super) rounds: usize,
    /// Moves of a round.
    pub(super) moves: usize,
}

/// What came of it.
pub(super) struct Slowed {
    /// Time of one kernel, ns: the median of the rounds.
    pub(super) alone_ns: f64,
    pub(super) moving_ns: f64,
    /// Handles that were mapped at another place.
    pub(super) moves: u64,
    /// Host time of each allocation for which one was brought, ns.
    pub(super) move_ns: Vec<u64>,
}

/// The most steps for a handle that is mapped anew.
const STEPS_A_MOVE: usize = 20;

impl Slowdown {
    /// Those of the command: 1,000 moves.
    pub(super) const FULL: Slowdown = Slowdown { buffer_bytes: 1 << 30, kernels: 60, rounds: 5, moves: 200 };

    /// Measures rounds with and without moves, in turn.
    ///
    /// # Errors
    /// When there is no memory, or the device fails.
    pub(super) fn measure(&self, device: &AnyDevice) -> Result<Slowed, AnyError> {
        let kernel = Kernel::new(device, self.buffer_bytes)?;
        let mut mover = Mover::new(device)?;
        // Whatever is slow the first time.
        kernel.while_(|done| Ok(done < QUEUED))?;
        (0..STREAMS).try_for_each(|_| mover.step())?;
        mover.begin();
        let (mut alone, mut moving) = (Vec::new(), Vec::new());
        for round in 1..=self.rounds {
            alone.push(kernel.while_(|done| Ok(done < self.kernels))?);
            moving.push(kernel.while_(|_| {
                mover.step()?;
                // A handle that goes back to where it was is not mapped anew.
                let (moved, steps) = (mover.moved(), mover.move_ns.len());
                Ok(moved < (round * self.moves) as u64 && steps < round * self.moves * STEPS_A_MOVE)
            })?);
        }
        let moves = mover.moved();
        Ok(Slowed { alone_ns: median(alone), moving_ns: median(moving), moves, move_ns: mover.move_ns })
    }
}

/// target += source, over and over.
struct Kernel {
    stream: Stream,
    source: Buffer<f32>,
    target: Buffer<f32>,
}

impl Kernel {
    fn new(device: &AnyDevice, bytes: u64) -> Result<Self, AnyError> {
        let allocator = Allocator::with_settings(device.clone(), Settings::default())?;
        let stream = allocator.create_stream("kernel")?;
        let buffer = || -> Result<Buffer<f32>, AnyError> {
            let buffer = stream.alloc(bytes as usize / size_of::<f32>())?;
            kernels::fill(&stream, 0.0, buffer.view())?;
            Ok(buffer)
        };
        Ok(Kernel { source: buffer()?, target: buffer()?, stream })
    }

    fn launch(&self) -> Result<Fence, AnyError> {
        kernels::accumulate(&self.stream, self.source.view(), self.target.view())?;
        Ok(self.stream.record()?)
    }

    /// Keeps kernels queued as long as `go_on`, which is told how many are over, says so. Time of one of those that began
    /// and ended meanwhile, ns: from the end of the first one to that of the last.
    fn while_(&self, mut go_on: impl FnMut(usize) -> Result<bool, AnyError>) -> Result<f64, AnyError> {
        let mut queued = VecDeque::from([self.launch()?]);
        let mut over = Vec::new();
        while go_on(over.len())? || over.len() < 2 {
            while queued.len() < QUEUED {
                queued.push_back(self.launch()?);
            }
            while let Some(complete) = take_complete(&mut queued)? {
                over.push(complete);
            }
        }
        if let Some(end) = queued.back() {
            end.wait(LONGEST)?;
        }
        let (first, last) = (&over[0], &over[over.len() - 1]);
        Ok(last.elapsed_ns_since(first)? as f64 / (over.len() - 1) as f64)
    }
}

/// The first of the fences, if it is complete.
fn take_complete(queued: &mut VecDeque<Fence>) -> Result<Option<Fence>, AnyError> {
    let complete = queued.front().map_or(Ok(false), Fence::is_complete)?;
    Ok(if complete { queued.pop_front() } else { None })
}

/// A handle that goes from stream to stream.
struct Mover {
    device: AnyDevice,
    allocator: Allocator,
    streams: Vec<Stream>,
    next: usize,
    moved_before: u64,
    move_ns: Vec<u64>,
}

impl Mover {
    fn new(device: &AnyDevice) -> Result<Self, AnyError> {
        let limit = device.properties().granularity_bytes;
        let pairs = ["lending:True".into(), "page_time:1".into(), format!("memory_limit_bytes:{limit}")];
        let allocator = Allocator::with_settings(device.clone(), with(&pairs)?)?;
        let streams = (0..STREAMS).map(|index| allocator.create_stream(&format!("mover {index}")));
        let streams = streams.collect::<Result<Vec<_>, _>>()?;
        Ok(Mover { device: device.clone(), allocator, streams, next: 0, moved_before: 0, move_ns: Vec::new() })
    }

    /// One more stream asks for the handle, and gives it back.
    fn step(&mut self) -> Result<(), AnyError> {
        let bytes = self.device.properties().granularity_bytes as usize;
        let stream = &self.streams[self.next];
        self.next = (self.next + 1) % STREAMS;
        let start_ns = self.device.now_ns();
        let block = stream.alloc::<u8>(bytes)?;
        self.move_ns.push(self.device.now_ns() - start_ns);
        drop(block);
        Ok(())
    }

    fn begin(&mut self) {
        self.moved_before = self.allocator.memory_stats().pages_remapped;
        self.move_ns.clear();
    }

    /// Handles that were mapped anew since the beginning.
    fn moved(&self) -> u64 {
        self.allocator.memory_stats().pages_remapped - self.moved_before
    }
}

/// The one in the middle.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
