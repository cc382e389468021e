//! A script against an allocator on the simulated device.
//!
//! The host does each step at its time, and what the allocator's calls cost comes on top. Between two steps every stream
//! is busy: one operation as long as the pause, which writes the blocks that are new on the stream and reads its newest
//! old ones. A block is read once more directly before it is given back. A block that another stream still uses then gets
//! an operation there that ends when its use does. Each operation starts at the earliest as long after its submission as
//! the device is said to be behind; where the stream would be earlier, it is given something to do before.
//!
//! So there is no idle time in which a wait or a pause of the host could hide, and the device never catches up.

use std::collections::VecDeque;
use std::error::Error;
use std::time::Instant;

use highwater::device::sim::Hazard;
use highwater::device::{Cost, CostModel};
use highwater::{AllocError, Allocator, Buffer, Settings, SettingsError, Stream};

use super::counters::Counters;
use super::ideal::Ideal;
use super::machine::{Machine, Seen};
use super::meter::Reading;
use super::script::{Block, BlockNo, Script, Step, StreamNo, What};
use super::verify::{self, Findings, Mismatch};

/// Steps from one look at what was executed to the next.
const LOOK_STEPS: usize = 4096;
/// Old blocks that the work between two steps reads.
const READ_BLOCKS: usize = 2;

/// How a script is driven.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// How far the device is behind the host, ns.
    pub(crate) behind_ns: u64,
    /// Whether the blocks' bytes are written and compared.
    pub(crate) verify: bool,
    /// The allocator's settings.
    pub(crate) settings: Settings,
    /// What the device's calls cost.
    pub(crate) cost: CostModel,
    /// Whether blocks take memory. Without, the same work is done on none.
    pub(crate) memory: bool,
    /// Whether it runs on a GPU.
    pub(crate) gpu: bool,
}

impl Options {
    /// The costs of one H200, but for launches: the pauses of a trace hold those of the program that was recorded.
    pub(crate) fn new(behind_ns: u64, verify: bool, settings: Settings) -> Self {
        let cost = CostModel { launch_ns: 0, ..CostModel::default() };
        Options { behind_ns, verify, settings, cost, memory: true, gpu: false }
    }
}

/// What came of it.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// The allocator's counters at the end.
    pub(crate) counters: Counters,
    /// From the first step to the end of the last operation, ns.
    pub(crate) makespan_ns: u64,
    /// The same with unlimited memory, ns.
    pub(crate) ideal_ns: u64,
    /// Time that streams stood still for waits that are not the program's, ns, over all streams.
    pub(crate) added_wait_ns: u64,
    /// What the device's calls cost until the end, and until half of the steps were done.
    pub(crate) calls: Reading,
    /// Driver memory calls when half of the steps were done.
    pub(crate) page_calls_first_half: u64,
    /// Host time of each request, ns, in order.
    pub(crate) alloc_ns: Vec<u64>,
    /// Host time of all frees, ns, and how many there were.
    pub(crate) free_ns: u64,
    /// Frees.
    pub(crate) frees: u64,
    /// Operations that ran at the same time on the same bytes, one of them writing.
    pub(crate) hazards: Vec<Hazard>,
    /// Bytes that were not what had been written.
    pub(crate) mismatches: Vec<Mismatch>,
}

/// Why work could not be submitted.
pub(crate) type WorkError = Box<dyn Error + Send + Sync>;

/// Why a script could not be driven to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DriveError {
    /// A request failed.
    #[error("event {row}: {source}")]
    Alloc {
        /// Row of the event.
        row: usize,
        /// Why.
        source: AllocError,
    },
    /// Work could not be submitted.
    #[error("event {row}: {source}")]
    Work {
        /// Row of the event.
        row: usize,
        /// Why.
        source: WorkError,
    },
    /// The allocator could not be made.
    #[error("{0}")]
    Settings(#[from] SettingsError),
    /// The device failed.
    #[error("{0}")]
    Device(WorkError),
}

/// Drives a script on a new device. `seen` is told how many steps are done.
///
/// # Errors
/// When a request fails, or the device does.
pub(crate) fn drive(script: &Script, options: &Options, seen: &mut dyn FnMut(usize)) -> Result<Outcome, DriveError> {
    if !options.gpu {
        return Stage::new(script, options)?.play(seen);
    }
    // What unlimited memory takes is measured there: the same work, on no memory.
    let without = Options { memory: false, verify: false, ..options.clone() };
    let ideal_ns = Stage::new(script, &without)?.play(&mut |_| ())?.makespan_ns;
    Ok(Outcome { ideal_ns, ..Stage::new(script, options)?.play(seen)? })
}

/// A stream with what it was given.
struct Lane {
    stream: Stream,
    /// Whether it has had anything to do.
    active: bool,
    /// Blocks that no operation has written yet.
    new: Vec<BlockNo>,
    /// The newest blocks that have been written, the newest last.
    old: VecDeque<BlockNo>,
    /// Time of the script up to which it is busy, ns.
    busy_until_ns: u64,
    /// When its work ends, ns of the device's clock, if it waits for nobody.
    ends_ns: u64,
}

/// The device, the allocator, and the program's state.
struct Stage<'a> {
    script: &'a Script,
    options: &'a Options,
    machine: Machine,
    allocator: Allocator,
    lanes: Vec<Lane>,
    buffers: Vec<Option<Buffer<u8>>>,
    ideal: Ideal,
    findings: Findings,
    /// Time of the script, ns.
    now_ns: u64,
    /// What the program's own calls have taken of the host, ns: the script's pauses hold that already.
    owed_ns: u64,
    alloc_ns: Vec<u64>,
    free_ns: u64,
    frees: u64,
}

impl<'a> Stage<'a> {
    fn new(script: &'a Script, options: &'a Options) -> Result<Self, DriveError> {
        let opened = if options.gpu { Machine::gpu(options) } else { Ok(Machine::simulated(options)) };
        let mut machine = opened.map_err(DriveError::Device)?;
        let allocator = Allocator::with_settings(machine.device(), options.settings.clone())?;
        let mut lanes = Vec::new();
        for name in &script.streams {
            let stream = allocator.create_stream(name).map_err(|error| DriveError::Device(error.into()))?;
            let (new, old) = (Vec::new(), VecDeque::new());
            lanes.push(Lane { stream, active: false, new, old, busy_until_ns: 0, ends_ns: 0 });
        }
        machine.begin(&allocator).map_err(DriveError::Device)?;
        Ok(Stage {
            script,
            options,
            machine,
            allocator,
            buffers: std::iter::repeat_with(|| None).take(script.blocks.len()).collect(),
            ideal: Ideal::new(lanes.len(), options.behind_ns),
            findings: Findings::default(),
            lanes,
            now_ns: 0,
            owed_ns: 0,
            alloc_ns: Vec::with_capacity(script.blocks.len()),
            free_ns: 0,
            frees: 0,
        })
    }

    /// All steps.
    fn play(mut self, seen: &mut dyn FnMut(usize)) -> Result<Outcome, DriveError> {
        let (steps, mut page_calls_first_half) = (&self.script.steps, 0);
        for (index, step) in steps.iter().enumerate() {
            self.step(step)?;
            if index + 1 == steps.len() / 2 {
                page_calls_first_half = self.machine.read().page_calls;
            }
            if (index + 1) % LOOK_STEPS == 0 {
                self.machine.look();
                seen(index + 1);
            }
        }
        let last = steps.last().map_or(0, |step| step.row);
        self.pass_time(self.script.span_ns).map_err(|source| DriveError::Work { row: last, source })?;
        self.finish(page_calls_first_half)
    }

    fn step(&mut self, step: &Step) -> Result<(), DriveError> {
        let Step { at_ns, row, what } = *step;
        let work = |source| DriveError::Work { row, source };
        self.pass_time(at_ns).map_err(work)?;
        match what {
            What::Alloc(block) => self.alloc(block).map_err(|source| DriveError::Alloc { row, source }),
            What::Free(block) => self.free(block).map_err(work),
        }
    }

    /// Goes on to a time of the script: every stream is busy until then.
    fn pass_time(&mut self, until_ns: u64) -> Result<(), WorkError> {
        if until_ns == self.now_ns {
            return Ok(());
        }
        let pause_ns = until_ns - self.now_ns;
        let pause = self.machine.pause(pause_ns.saturating_sub(self.owed_ns));
        self.owed_ns = self.owed_ns.saturating_sub(pause_ns);
        for lane in 0..self.lanes.len() {
            let Lane { active, busy_until_ns, ref mut new, ref old, .. } = self.lanes[lane];
            let duration_ns = until_ns.saturating_sub(busy_until_ns.max(self.now_ns));
            if active && (duration_ns > 0 || !new.is_empty()) {
                let new = std::mem::take(new);
                let read: Vec<_> = old.iter().rev().take(READ_BLOCKS).copied().collect();
                self.work(lane, "work", duration_ns, &new, &read)?;
                self.written(lane, &new);
            }
        }
        self.machine.rest(&pause);
        self.now_ns = until_ns;
        Ok(())
    }

    /// Blocks have been written.
    fn written(&mut self, lane: StreamNo, blocks: &[BlockNo]) {
        let old = &mut self.lanes[lane].old;
        old.extend(blocks);
        let excess = old.len().saturating_sub(READ_BLOCKS);
        old.drain(..excess);
    }

    fn alloc(&mut self, block: BlockNo) -> Result<(), AllocError> {
        let Block { bytes, owner, .. } = self.script.blocks[block];
        let len =
            usize::try_from(bytes).map_err(|_| AllocError::TooLarge { elements: usize::MAX, element_bytes: 1 })?;
        let stream = self.lanes[owner].stream.clone();
        if self.options.memory {
            let (buffer, took_ns) = self.timed(|_| stream.alloc::<u8>(len));
            self.buffers[block] = Some(buffer?);
            self.alloc_ns.push(took_ns);
        }
        let lane = &mut self.lanes[owner];
        lane.active = true;
        lane.new.push(block);
        Ok(())
    }

    fn free(&mut self, block: BlockNo) -> Result<(), WorkError> {
        let Block { owner, used, .. } = self.script.blocks[block];
        if let Some(place) = self.lanes[owner].new.iter().position(|&new| new == block) {
            self.lanes[owner].new.remove(place);
            self.work(owner, "first use", 0, &[block], &[])?;
        }
        if let Some((user, until_ns)) = used {
            self.use_elsewhere(owner, user, until_ns, block)?;
        }
        self.work(owner, "last use", 0, &[], &[block])?;
        self.lanes[owner].old.retain(|&old| old != block);
        let Some(buffer) = self.buffers[block].take() else { return Ok(()) };
        let ((), took_ns) = self.timed(|_| drop(buffer));
        self.free_ns += took_ns;
        self.frees += 1;
        Ok(())
    }

    /// Another stream uses a block until a time of the script. The program orders it after the owner itself.
    fn use_elsewhere(
        &mut self,
        owner: StreamNo,
        user: StreamNo,
        until_ns: u64,
        block: BlockNo,
    ) -> Result<(), WorkError> {
        self.lanes[user].active = true;
        // First up to where the device is: what comes behind the wait is not held back once more.
        self.hold_back(user, 0)?;
        self.ideal.wait(user, owner, self.now_ns);
        let before_ns = self.machine.now_ns();
        self.lanes[user].stream.wait_stream(&self.lanes[owner].stream)?;
        self.owed_ns += self.machine.now_ns() - before_ns;
        self.lanes[user].ends_ns = self.lanes[user].ends_ns.max(self.lanes[owner].ends_ns);
        let free_from_ns = self.lanes[user].busy_until_ns.max(self.now_ns);
        self.work(user, "use", until_ns.saturating_sub(free_from_ns), &[], &[block])?;
        self.lanes[user].busy_until_ns = free_from_ns.max(until_ns);
        Ok(())
    }

    /// Submits an operation that writes some blocks and reads others.
    fn work(
        &mut self,
        lane: StreamNo,
        name: &'static str,
        duration_ns: u64,
        write: &[BlockNo],
        read: &[BlockNo],
    ) -> Result<(), WorkError> {
        self.ideal.work(lane, self.now_ns, duration_ns);
        self.hold_back(lane, duration_ns)?;
        let stream = &self.lanes[lane].stream;
        let mut launch = stream.launch(name, Cost::exact(duration_ns));
        let mut operands = Vec::new();
        for (blocks, writes) in [(write, true), (read, false)] {
            for &block in blocks {
                let Some(buffer) = &self.buffers[block] else { continue };
                let pieces = match self.options.verify {
                    true => verify::pieces(buffer.bytes()),
                    false => std::iter::once(0..buffer.bytes()).collect(),
                };
                for piece in pieces {
                    let view = buffer.slice(piece.start as usize..piece.end as usize);
                    launch = if writes { launch.write(view) } else { launch.read(view) };
                    operands.push((block, piece, writes));
                }
            }
        }
        if self.options.verify {
            let findings = self.findings.clone();
            launch = launch.body(move |bytes| {
                for ((block, piece, writes), bytes) in operands.iter().zip(bytes) {
                    match writes {
                        true => verify::fill(*block, piece, bytes),
                        false => verify::check(*block, piece, bytes, &findings),
                    }
                }
            });
        }
        launch.submit()?;
        self.machine.last(stream, duration_ns)
    }

    /// Gives the stream something to do until the device is as far behind as it should be, and counts what comes next.
    fn hold_back(&mut self, lane: StreamNo, next_ns: u64) -> Result<(), WorkError> {
        let submitted_ns = self.machine.now_ns();
        let lane = &mut self.lanes[lane];
        let ready_ns = lane.ends_ns.max(submitted_ns);
        let start_ns = ready_ns.max(submitted_ns + self.options.behind_ns);
        // How long work takes a GPU is not known so exactly: there the device is held up once, at the beginning.
        let begun = self.options.gpu && lane.ends_ns > 0;
        lane.ends_ns = start_ns + next_ns;
        if start_ns > ready_ns && !begun {
            self.machine.hold_up(&lane.stream, start_ns - ready_ns)?;
        }
        Ok(())
    }

    /// Does something, and says what it took of the host: in real time, but for the device's calls, which take what the
    /// device's clock says.
    fn timed<R>(&mut self, act: impl FnOnce(&mut Self) -> R) -> (R, u64) {
        let (before, start) = (self.machine.read(), Instant::now());
        let done = act(self);
        let real_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let after = self.machine.read();
        let own_ns = real_ns.saturating_sub(after.real_ns - before.real_ns);
        (done, own_ns + (after.host_ns - before.host_ns))
    }

    fn finish(mut self, page_calls_first_half: u64) -> Result<Outcome, DriveError> {
        let (mut counters, calls) = (Counters::of(&self.allocator), self.machine.read());
        counters.peak_live_bytes -= self.machine.own_bytes();
        counters.peak_reserved_bytes -= self.machine.own_bytes();
        let lanes = self.lanes.iter().filter(|lane| lane.active).map(|lane| &lane.stream);
        let Seen { makespan_ns, waited_ns, hazards } = self.machine.finish(lanes).map_err(DriveError::Device)?;
        Ok(Outcome {
            counters,
            makespan_ns,
            ideal_ns: self.ideal.makespan_ns(),
            added_wait_ns: waited_ns.saturating_sub(self.ideal.waited_ns()),
            calls,
            page_calls_first_half,
            alloc_ns: std::mem::take(&mut self.alloc_ns),
            free_ns: self.free_ns,
            frees: self.frees,
            hazards,
            mismatches: self.findings.take(),
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use highwater::device::Executed;

    use super::*;
    use crate::cli::Generated;
    use crate::replay::generate;

    fn options(behind_us: u64) -> Options {
        Options::new(behind_us * 1000, false, Settings::default())
    }

    /// What comes of a script as it is, without options.
    pub(crate) fn played(script: &Script) -> Outcome {
        play(script, &options(0))
    }

    fn play(script: &Script, options: &Options) -> Outcome {
        drive(script, options, &mut |_| ()).unwrap()
    }

    #[test]
    fn an_allocator_that_costs_nothing_takes_as_long_as_unlimited_memory() {
        let script = generate::script(Generated::Varlen);
        for behind_us in [0, 5000, 100_000] {
            let outcome = play(&script, &Options { cost: CostModel::free(), ..options(behind_us) });
            assert_eq!(outcome.makespan_ns, outcome.ideal_ns);
            assert_eq!(outcome.makespan_ns, script.span_ns + behind_us * 1000);
            assert_eq!((outcome.added_wait_ns, outcome.calls.page_ns), (0, 0));
        }
    }

    #[test]
    fn the_programs_own_waits_are_not_the_allocators() {
        // Two blocks, each used by the other stream for longer than it lives, and nothing that could take their place.
        let mut script = crate::bound::tests::script_of(&[(100, 0, 10_000), (200, 2000, 12_000)]);
        script.blocks[0].used = Some((1, 14_000));
        script.blocks[1].owner = 1;
        script.blocks[1].used = Some((0, 19_000));
        for behind_us in [0, 5000] {
            let outcome = play(&script, &Options { cost: CostModel::free(), ..options(behind_us) });
            assert_eq!((outcome.makespan_ns, outcome.added_wait_ns), (outcome.ideal_ns, 0));
            assert_eq!(outcome.makespan_ns, 19_000 + 2000 + behind_us * 1000, "2000 for the other stream's backlog");
        }
        // The use is the first thing that the other stream is given.
        let mut script = crate::bound::tests::script_of(&[(100, 0, 10_000)]);
        script.blocks[0].used = Some((1, 14_000));
        let outcome = play(&script, &Options { cost: CostModel::free(), ..options(5000) });
        assert_eq!((outcome.makespan_ns, outcome.added_wait_ns), (outcome.ideal_ns, 0));
        assert_eq!(outcome.makespan_ns, 14_000 + 5_000_000);
    }

    #[test]
    fn the_same_work_on_no_memory_takes_as_long_as_it_says() {
        for kind in [Generated::Varlen, Generated::Prefetch, Generated::Moe] {
            let script = generate::script(kind);
            let outcome = play(&script, &Options { cost: CostModel::free(), memory: false, ..options(5000) });
            assert_eq!((outcome.makespan_ns, outcome.added_wait_ns), (outcome.ideal_ns, 0), "{kind:?}");
            let priced = play(&script, &Options { memory: false, ..options(0) });
            let most_ns = outcome.ideal_ns - 5_000_000 + 50_000;
            assert!(priced.makespan_ns <= most_ns, "{kind:?}: the program's own waits are in its pauses");
            assert_eq!((outcome.counters.peak_reserved_bytes, outcome.alloc_ns.len()), (0, 0));
        }
    }

    #[test]
    fn what_driver_calls_take_comes_on_top_of_the_programs_time() {
        let script = generate::script(Generated::Varlen);
        let outcome = play(&script, &options(0));
        assert!(outcome.calls.page_ns > 0);
        assert_eq!(outcome.makespan_ns, script.span_ns + outcome.calls.host_ns - BEFORE_NS);
        // The stream's creation, and the question for the device's memory.
        const BEFORE_NS: u64 = 20_000 + 6_600;
    }

    #[test]
    fn counters_and_script_agree() {
        for kind in [Generated::Varlen, Generated::Prefetch, Generated::Moe, Generated::Inference] {
            let script = generate::script(kind);
            let outcome = play(&script, &options(5000));
            assert_eq!(outcome.counters.peak_live_bytes, script.peak_live_bytes());
            assert_eq!(outcome.alloc_ns.len(), script.blocks.len());
            let freed = script.blocks.iter().filter(|block| block.freed_ns.is_some()).count();
            assert_eq!(outcome.frees, freed as u64);
            assert_eq!(outcome.hazards.len(), 0, "{kind:?}");
        }
    }

    #[test]
    fn blocks_hold_what_was_written() {
        for kind in [Generated::Prefetch, Generated::Moe] {
            let outcome = play(&generate::script(kind), &Options { verify: true, ..options(5000) });
            assert_eq!((outcome.mismatches.len(), outcome.hazards.len()), (0, 0), "{kind:?}");
        }
    }

    #[test]
    fn a_byte_that_somebody_else_writes_is_found() {
        let script = generate::script(Generated::Varlen);
        let options = Options { verify: true, ..options(0) };
        for corrupt in [false, true] {
            let mut stage = Stage::new(&script, &options).unwrap();
            stage.alloc(1).unwrap();
            stage.pass_time(1000).unwrap();
            if corrupt {
                let view = stage.buffers[1].as_ref().unwrap().slice((5 << 20)..(5 << 20) + 1);
                let launch = stage.lanes[0].stream.launch("corrupt", Cost::exact(0)).read_write(view);
                launch.body(|bytes| bytes[0].as_bytes_mut()[0] ^= 1).submit().unwrap();
            }
            stage.free(1).unwrap();
            let outcome = stage.finish(0).unwrap();
            let found: Vec<_> = outcome.mismatches.iter().map(|wrong| (wrong.block, wrong.offset)).collect();
            assert_eq!(found, if corrupt { vec![(1, 5 << 20)] } else { Vec::new() });
        }
    }

    #[test]
    fn work_of_two_streams_on_one_block_at_once_is_found() {
        let script = generate::script(Generated::Prefetch);
        let options = options(0);
        let mut stage = Stage::new(&script, &options).unwrap();
        stage.alloc(0).unwrap();
        stage.pass_time(1000).unwrap();
        // Past the allocator, which would order it.
        let address = stage.buffers[0].as_ref().unwrap().device_address();
        let operand = highwater::device::Operand {
            range: highwater::device::ByteRange::new(address, 1),
            access: highwater::device::Access::Write,
        };
        let operation = highwater::device::Operation {
            name: "intrude".into(),
            tag: 0,
            cost: Cost::exact(500),
            operands: vec![operand],
            body: highwater::device::Body::Nothing,
        };
        let other = stage.lanes[0].stream.id();
        stage.pass_time(2000).unwrap();
        stage.machine.device().launch(other, operation).unwrap();
        stage.pass_time(3000).unwrap();
        assert_eq!(stage.finish(0).unwrap().hazards.len(), 1);
    }

    #[test]
    fn the_device_stays_behind_by_as_much_as_was_said() {
        let script = generate::script(Generated::Varlen);
        for behind_us in [0, 5000] {
            let options = options(behind_us);
            let mut stage = Stage::new(&script, &options).unwrap();
            for step in &script.steps[..400] {
                stage.pass_time(step.at_ns).unwrap();
                match step.what {
                    What::Alloc(block) => stage.alloc(block).unwrap(),
                    What::Free(block) => stage.free(block).unwrap(),
                }
            }
            stage.machine.cluster().settle().unwrap();
            let timeline = stage.machine.cluster().take_timeline();
            let late = |executed: &Executed| executed.start_ns - executed.submitted_ns;
            let work: Vec<_> = timeline.iter().filter(|executed| executed.name != "behind").collect();
            assert!(work.len() > 150, "{}", work.len());
            assert!(work.iter().all(|executed| late(executed) >= behind_us * 1000));
            assert!(work.iter().all(|executed| late(executed) < behind_us * 1000 + 1_000_000), "and not by much more");
        }
    }

    #[test]
    fn a_limit_is_kept_or_the_event_is_named() {
        let script = generate::script(Generated::Varlen);
        let peak_bytes = script.peak_live_bytes();
        let with = |limit_bytes: u64| {
            let settings = Settings::builder().memory_limit_bytes(limit_bytes).build().unwrap();
            drive(&script, &Options::new(0, false, settings), &mut |_| ())
        };
        let limit_bytes = peak_bytes + (64 << 20);
        assert!(with(limit_bytes).unwrap().counters.peak_reserved_bytes <= limit_bytes);
        let Err(DriveError::Alloc { row, .. }) = with(peak_bytes / 2) else { panic!("it cannot be met") };
        assert!(row > 0 && matches!(script.steps[row].what, What::Alloc(_)));
    }
}
