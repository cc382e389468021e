//! Programs as data: a configuration and a list of steps, both drawn from a seed.
//!
//! A step names streams, pieces and fences by numbers that are taken modulo what is there. So every part of a program is
//! a program too, which is what lets a failing one shrink. Each configuration leaves some kinds of steps out and weighs
//! the others wildly differently: programs that do everything at the same rate all look alike.

use std::fmt;

use highwater::device::DeviceCall;

use super::rng::Rng;

macro_rules! kinds {
    ($($kind:ident => $name:literal),* $(,)?) => {
        /// What kinds of steps there are.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub(super) enum Kind {
            $($kind,)*
        }

        impl Kind {
            /// Every kind.
            pub(super) const ALL: &'static [Kind] = &[$(Kind::$kind,)*];

            /// The name in the table of what was met.
            pub(super) fn name(self) -> &'static str {
                match self { $(Kind::$kind => $name,)* }
            }
        }
    };
}

kinds! {
    Alloc => "alloc",
    Read => "read",
    Write => "write",
    Combine => "combine",
    Free => "free",
    Renew => "renew",
    FreeElsewhere => "free on another thread",
    FreeBetween => "free during a device call",
    RawStream => "raw use, record_stream",
    RawExact => "raw use, record_use",
    RawGuard => "raw use, guard",
    Idle => "work without memory",
    ReplaceStream => "replace a stream",
    Record => "record",
    Wait => "wait",
    HostWait => "host wait",
    Poll => "poll",
    CatchUp => "host catches up",
    Pass => "host gives way",
    Trim => "trim",
    CopyIn => "copy to the device",
    CopyOut => "copy to the host",
    LookAtHost => "look at host memory",
    BeginCapture => "begin a capture",
    EndCapture => "end a capture",
    DropGraph => "drop a graph",
    Sacrifice => "leave a piece to the callbacks",
    Callback => "register a callback",
    DropCallback => "drop a callback",
    Alias => "alias",
    Unalias => "unalias",
    FailCall => "arm a failing call",
    FailFence => "arm a failing fence",
    Collective => "collective",
}

/// What one step does. Numbers of streams, pieces, fences and so on are taken modulo how many there are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Action {
    /// Allocates on a stream; then another one, or none, writes.
    Alloc { owner: u8, bytes: u32, writer: Option<u8>, raw: bool },
    /// Reads a part of a piece, and checks it.
    Read { piece: u8, stream: u8, part: u8 },
    /// Writes a part of a piece; `update` reads and checks it too.
    Write { piece: u8, stream: u8, part: u8, update: bool },
    /// One operation reads one piece and writes another.
    Combine { from: u8, to: u8, stream: u8 },
    /// Frees.
    Free { piece: u8 },
    /// Frees, and asks for the same at once.
    Renew { piece: u8, writer: u8 },
    /// Frees on another thread.
    FreeElsewhere { piece: u8 },
    /// Frees while the next device call of a kind is under way, on another thread.
    FreeBetween { piece: u8, call: DeviceCall },
    /// An operation past the allocator.
    Raw { piece: u8, stream: u8, part: u8, write: bool, how: RawHow },
    /// An operation that uses no memory.
    Idle { stream: u8 },
    /// Lets a stream go and makes another.
    ReplaceStream { stream: u8 },
    /// Records a fence.
    Record { stream: u8 },
    /// A stream waits for a fence.
    Wait { stream: u8, fence: u8 },
    /// The host waits for a fence, for a number of steps, or as long as it takes.
    HostWait { fence: u8, steps: Option<u8> },
    /// Asks a fence.
    Poll { fence: u8 },
    /// The host waits for everything that was submitted.
    CatchUp,
    /// The host only gives way.
    Pass { times: u8 },
    /// Trims to a number of granules.
    Trim { allocator: u8, granules: u8 },
    /// A copy from the host.
    CopyIn { piece: u8, stream: u8, part: u8, pinned: bool },
    /// A copy to the host.
    CopyOut { piece: u8, stream: u8, part: u8, pinned: bool },
    /// Looks at host memory that was copied to or from; perhaps waits for it.
    LookAtHost { which: u8, wait: bool },
    /// Begins a capture.
    BeginCapture { stream: u8 },
    /// Ends the capture, or throws it away.
    EndCapture { keep: bool },
    /// Drops a graph.
    DropGraph { which: u8 },
    /// Leaves a piece to the pressure callbacks.
    Sacrifice { piece: u8 },
    /// Registers a pressure callback.
    Callback { allocator: u8, frees: u8, allocates: bool },
    /// Drops a callback.
    DropCallback { which: u8 },
    /// Takes memory past the allocator, maps it twice, writes by one address and reads by the other.
    Alias { first: u8, second: u8 },
    /// Gives it back.
    Unalias { which: u8 },
    /// Makes the nth call of a kind from now on fail.
    FailCall { call: DeviceCall, nth: u8 },
    /// Makes the fence of the nth record from now on fail.
    FailFence { nth: u8 },
    /// All ranks gather what each of them wrote.
    Collective { stream: u8, bytes: u32 },
}

/// How a use past the allocator is told to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RawHow {
    /// `record_stream`.
    Stream,
    /// `record_use`, with a fence.
    Exact,
    /// Under a guard.
    Guard,
}

impl Action {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Action::Alloc { .. } => Kind::Alloc,
            Action::Read { .. } => Kind::Read,
            Action::Write { .. } => Kind::Write,
            Action::Combine { .. } => Kind::Combine,
            Action::Free { .. } => Kind::Free,
            Action::Renew { .. } => Kind::Renew,
            Action::FreeElsewhere { .. } => Kind::FreeElsewhere,
            Action::FreeBetween { .. } => Kind::FreeBetween,
            Action::Raw { how: RawHow::Stream, .. } => Kind::RawStream,
            Action::Raw { how: RawHow::Exact, .. } => Kind::RawExact,
            Action::Raw { how: RawHow::Guard, .. } => Kind::RawGuard,
            Action::Idle { .. } => Kind::Idle,
            Action::ReplaceStream { .. } => Kind::ReplaceStream,
            Action::Record { .. } => Kind::Record,
            Action::Wait { .. } => Kind::Wait,
            Action::HostWait { .. } => Kind::HostWait,
            Action::Poll { .. } => Kind::Poll,
            Action::CatchUp => Kind::CatchUp,
            Action::Pass { .. } => Kind::Pass,
            Action::Trim { .. } => Kind::Trim,
            Action::CopyIn { .. } => Kind::CopyIn,
            Action::CopyOut { .. } => Kind::CopyOut,
            Action::LookAtHost { .. } => Kind::LookAtHost,
            Action::BeginCapture { .. } => Kind::BeginCapture,
            Action::EndCapture { .. } => Kind::EndCapture,
            Action::DropGraph { .. } => Kind::DropGraph,
            Action::Sacrifice { .. } => Kind::Sacrifice,
            Action::Callback { .. } => Kind::Callback,
            Action::DropCallback { .. } => Kind::DropCallback,
            Action::Alias { .. } => Kind::Alias,
            Action::Unalias { .. } => Kind::Unalias,
            Action::FailCall { .. } => Kind::FailCall,
            Action::FailFence { .. } => Kind::FailFence,
            Action::Collective { .. } => Kind::Collective,
        }
    }
}

/// One step of one rank. A collective is a step of all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    pub(super) rank: u8,
    pub(super) action: Action,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.action {
            Action::Collective { .. } => write!(f, "{:?}", self.action),
            _ => write!(f, "rank {}: {:?}", self.rank, self.action),
        }
    }
}

/// The world of a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Seeds the adversary.
    pub(super) seed: u64,
    pub(super) ranks: u8,
    pub(super) allocators: u8,
    pub(super) streams: u8,
    /// Whether the first stream is the device's default stream.
    pub(super) default_stream: bool,
    /// Timed mode, with costs, instead of the adversary.
    pub(super) timed: bool,
    pub(super) granule_bytes: u64,
    pub(super) granules: u64,
    /// The limit of each allocator, in percent of the memory.
    pub(super) limit_percent: Option<u8>,
    /// How long a request may block the host: ns, which are steps of the adversary. `None`: as long as it takes.
    pub(super) host_wait_ns: Option<u64>,
    pub(super) history_kib: usize,
    /// Whether memory moves, whether streams wait before memory grows, and the part of the time for pages.
    pub(super) lending: bool,
    pub(super) waits_first: bool,
    pub(super) page_percent: u8,
    /// Whether the program records a fence behind each operation, or only when somebody needs one.
    pub(super) eager_fences: bool,
    /// Whether everything is dropped with work still queued at the end.
    pub(super) abrupt_end: bool,
    /// A call that fails while the allocators end.
    pub(super) fail_at_end: Option<DeviceCall>,
}

/// A program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    pub(super) config: Config,
    pub(super) steps: Vec<Step>,
}

impl Program {
    /// The program of a seed.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let config = Config::draw(seed, &mut rng);
        let weights = draw_weights(&mut rng, &config);
        let shape = Shape::draw(&mut rng, &config);
        let count = 40 + rng.below(360);
        let steps = (0..count).map(|_| draw_step(&mut rng, &config, &weights, &shape)).collect();
        Program { config, steps }
    }

    /// How many steps it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}", self.config)?;
        for (index, step) in self.steps.iter().enumerate() {
            writeln!(f, "{index:4}  {step}")?;
        }
        Ok(())
    }
}

impl Config {
    fn draw(seed: u64, rng: &mut Rng) -> Self {
        let ranks = if rng.one_in(6) { 2 + rng.below(2) as u8 } else { 1 };
        // Larger memory takes longer to check, so it is rare; only there are requests above 1 MiB possible.
        let large = ranks == 1 && rng.one_in(24);
        let granule_bytes = if large { 512 << 10 } else { rng.pick(&[4096, 4096, 16384]) };
        // Drawn apart, so that what else belongs to a seed stays as it was.
        let mut pages = Rng::new(!seed);
        Config {
            seed,
            ranks,
            allocators: if rng.one_in(5) { 2 } else { 1 },
            streams: 1 + rng.below(6) as u8,
            default_stream: rng.one_in(3),
            timed: rng.one_in(10),
            granule_bytes,
            granules: if large { 10 } else { 6 + rng.below(30) },
            limit_percent: rng.one_in(4).then(|| 50 + rng.below(51) as u8),
            host_wait_ns: if rng.one_in(3) { Some(rng.pick(&[0, 3, 40])) } else { None },
            history_kib: rng.pick(&[0, 4, 64]),
            lending: !pages.one_in(6),
            waits_first: pages.one_in(2),
            page_percent: pages.pick(&[0, 1, 100, 100]),
            eager_fences: rng.one_in(2),
            abrupt_end: rng.one_in(3),
            fail_at_end: rng.one_in(8).then(|| rng.pick(DeviceCall::ALL)),
        }
    }

    /// Physical memory of each device, bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.granule_bytes * self.granules
    }
}

/// Kinds of steps with their weights.
type Weights = Vec<(Kind, u64)>;

fn draw_weights(rng: &mut Rng, config: &Config) -> Weights {
    let faults = rng.below(3);
    let mut weights = Vec::new();
    for &kind in Kind::ALL {
        let weight = rng.pick(&[1, 2, 4, 8, 16]);
        let on = match kind {
            Kind::Alloc => true,
            Kind::Free | Kind::Read | Kind::Write => !rng.one_in(6),
            Kind::FailCall => faults == 1,
            Kind::FailFence => faults == 1 && rng.one_in(4),
            Kind::Collective => config.ranks > 1,
            Kind::CatchUp | Kind::Alias | Kind::BeginCapture => rng.one_in(3),
            // What ends something is there whenever it may have begun.
            Kind::EndCapture | Kind::DropGraph | Kind::Unalias => true,
            _ => !rng.one_in(3),
        };
        let weight = match kind {
            Kind::Alloc => weight.max(4) * 2,
            Kind::Free | Kind::Read | Kind::Write => weight * 2,
            Kind::FailFence | Kind::CatchUp | Kind::Alias => 1,
            Kind::FailCall | Kind::BeginCapture => weight.min(4),
            Kind::EndCapture => 4,
            _ => weight,
        };
        if on {
            weights.push((kind, weight));
        }
    }
    weights
}

/// How large requests are.
struct Shape {
    /// The largest, bytes.
    largest: u64,
    /// Half of all requests have one of these lengths, so that freed memory fits again.
    usual: [u64; 2],
}

impl Shape {
    fn draw(rng: &mut Rng, config: &Config) -> Self {
        let largest = config.granule_bytes * rng.pick(&[1, 2, 4]);
        Shape { largest, usual: [1 + rng.below(largest), config.granule_bytes] }
    }

    fn bytes(&self, rng: &mut Rng) -> u32 {
        let bytes = match rng.below(16) {
            0..8 => rng.pick(&self.usual),
            8..11 => 1 + rng.below(512),
            15 if rng.one_in(8) => 0,
            _ => 1 + rng.below(self.largest),
        };
        u32::try_from(bytes).expect("simulated memory is small")
    }
}

/// Calls in which another thread may free: no lock of streams is held there that the free could need.
const BETWEEN: [DeviceCall; 9] = [
    DeviceCall::Reserve,
    DeviceCall::Create,
    DeviceCall::Map,
    DeviceCall::SetAccess,
    DeviceCall::Unmap,
    DeviceCall::Release,
    DeviceCall::Query,
    DeviceCall::Launch,
    DeviceCall::Wait,
];

fn draw_step(rng: &mut Rng, config: &Config, weights: &Weights, shape: &Shape) -> Step {
    let total: u64 = weights.iter().map(|&(_, weight)| weight).sum();
    let mut at = rng.below(total);
    let kind = weights.iter().find(|&&(_, weight)| {
        let here = at < weight;
        at = at.saturating_sub(weight);
        here
    });
    let (kind, _) = *kind.expect("the number is below the sum of the weights");
    let rank = rng.below(u64::from(config.ranks)) as u8;
    Step { rank, action: draw_action(rng, kind, shape) }
}

fn draw_action(rng: &mut Rng, kind: Kind, shape: &Shape) -> Action {
    let (piece, stream, part) = (rng.byte(), rng.byte(), rng.byte());
    let raw = |how, write| Action::Raw { piece, stream, part, write, how };
    match kind {
        Kind::Alloc => {
            let writer = match rng.below(8) {
                0 => None,
                1..3 => Some(rng.byte()),
                _ => Some(stream),
            };
            Action::Alloc { owner: stream, bytes: shape.bytes(rng), writer, raw: rng.one_in(12) }
        }
        Kind::Read => Action::Read { piece, stream, part },
        Kind::Write => Action::Write { piece, stream, part, update: rng.one_in(2) },
        Kind::Combine => Action::Combine { from: piece, to: part, stream },
        Kind::Free => Action::Free { piece },
        Kind::Renew => Action::Renew { piece, writer: stream },
        Kind::FreeElsewhere => Action::FreeElsewhere { piece },
        Kind::FreeBetween => Action::FreeBetween { piece, call: rng.pick(&BETWEEN) },
        Kind::RawStream => raw(RawHow::Stream, rng.one_in(3)),
        Kind::RawExact => raw(RawHow::Exact, rng.one_in(3)),
        Kind::RawGuard => raw(RawHow::Guard, rng.one_in(3)),
        Kind::Idle => Action::Idle { stream },
        Kind::ReplaceStream => Action::ReplaceStream { stream },
        Kind::Record => Action::Record { stream },
        Kind::Wait => Action::Wait { stream, fence: part },
        Kind::HostWait => Action::HostWait { fence: part, steps: rng.one_in(2).then(|| rng.byte() % 32) },
        Kind::Poll => Action::Poll { fence: part },
        Kind::CatchUp => Action::CatchUp,
        Kind::Pass => Action::Pass { times: 1 + rng.byte() % 8 },
        Kind::Trim => Action::Trim { allocator: stream, granules: rng.byte() % 16 },
        Kind::CopyIn => Action::CopyIn { piece, stream, part, pinned: !rng.one_in(4) },
        Kind::CopyOut => Action::CopyOut { piece, stream, part, pinned: !rng.one_in(4) },
        Kind::LookAtHost => Action::LookAtHost { which: piece, wait: rng.one_in(4) },
        Kind::BeginCapture => Action::BeginCapture { stream },
        Kind::EndCapture => Action::EndCapture { keep: !rng.one_in(4) },
        Kind::DropGraph => Action::DropGraph { which: piece },
        Kind::Sacrifice => Action::Sacrifice { piece },
        Kind::Callback => Action::Callback { allocator: stream, frees: 1 + part % 3, allocates: rng.one_in(3) },
        Kind::DropCallback => Action::DropCallback { which: piece },
        Kind::Alias => Action::Alias { first: stream, second: part },
        Kind::Unalias => Action::Unalias { which: piece },
        Kind::FailCall => Action::FailCall { call: rng.pick(DeviceCall::ALL), nth: 1 + rng.byte() % 6 },
        Kind::FailFence => Action::FailFence { nth: 1 + rng.byte() % 20 },
        Kind::Collective => Action::Collective { stream, bytes: 1 + rng.below(shape.largest.min(4096)) as u32 },
    }
}
