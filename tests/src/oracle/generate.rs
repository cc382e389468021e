//! Programs from a seed.
//!
//! Each program has a taste of its own: which steps are frequent in it, how large its requests are, how long its
//! operations run, and how tight memory is. A mixture of everything in every program would reach few corners.

use highwater::device::DeviceCall;

use super::heap::SMALL;
use super::op::{Op, Relief, Setup};

/// SplitMix64.
struct Chance(u64);

impl Chance {
    /// A number below `end`, which is above 0.
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    /// An index into whatever there is.
    fn index(&mut self) -> usize {
        self.below(64) as usize
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }
}

/// The calls that are made to fail.
const FAILING: [DeviceCall; 16] = [
    DeviceCall::Create,
    DeviceCall::Map,
    DeviceCall::SetAccess,
    DeviceCall::Unmap,
    DeviceCall::Release,
    DeviceCall::Reserve,
    DeviceCall::MemoryInfo,
    DeviceCall::Record,
    DeviceCall::Query,
    DeviceCall::Wait,
    DeviceCall::Synchronize,
    DeviceCall::Launch,
    DeviceCall::CreateStream,
    DeviceCall::DestroyStream,
    DeviceCall::BeginCapture,
    DeviceCall::EndCapture,
];

/// The kinds of steps, with how often each comes where the taste does not change it.
const WEIGHTS: [u64; 27] = [
    36, // Alloc
    4,  // AllocRaw
    44, // Free
    2,  // FreeInside
    30, // Launch
    10, // RecordStream
    4,  // RecordUse
    3,  // Guards
    1,  // Escape
    6,  // Record
    6,  // Wait
    3,  // Ask
    3,  // HostWait
    3,  // DropFence
    10, // HostWork
    3,  // Trim
    5,  // CreateStream
    4,  // DropStream
    1,  // BeginCapture
    3,  // EndCapture
    1,  // DropCapture
    3,  // DropGraph
    8,  // Stash, Unstash
    3,  // OnPressure
    2,  // EndPressure
    2,  // Fail
    2,  // Hog, Unhog, ResetPeaks
];

/// A world and a program of `steps` steps. The same seed gives the same.
#[must_use]
pub fn program(seed: u64, steps: usize) -> (Setup, Vec<Op>) {
    let mut chance = Chance(seed);
    let setup = setup(&mut chance);
    let mut weights = WEIGHTS;
    for weight in &mut weights {
        *weight *= chance.pick(&[0, 1, 1, 2, 4]);
    }
    // Without these nothing happens.
    for (kind, least) in [(0, 20), (2, 25), (4, 10), (14, 3)] {
        weights[kind] = weights[kind].max(least);
    }
    let scale = chance.pick(&[1, 100, 10_000]);
    let steps = (0..steps).map(|_| operation(&mut chance, &setup, &weights, scale)).collect();
    (setup, steps)
}

fn setup(chance: &mut Chance) -> Setup {
    let granularity_bytes = chance.pick(&[256 << 10, 512 << 10, 2 << 20]);
    let granules = 8 + chance.below(40);
    let total = granules * granularity_bytes;
    let limit_bytes = match chance.below(3) {
        0 => total,
        1 => total - chance.below(total / 2),
        _ => total / 2 / granularity_bytes * granularity_bytes,
    };
    let long_ns = 1_000_000_000_000;
    let timeout_ns = chance.pick(&[long_ns, long_ns, long_ns, long_ns, 100_000, 1000, 50, 0]);
    Setup { granules, granularity_bytes, limit_bytes, timeout_ns }
}

/// One step, of a kind that the weights choose; operations run up to some times `scale`, ns.
fn operation(chance: &mut Chance, setup: &Setup, weights: &[u64], scale: u64) -> Op {
    let mut left = chance.below(weights.iter().sum());
    let kind = weights.iter().position(|&weight| {
        let found = left < weight;
        left = left.saturating_sub(weight);
        found
    });
    match kind.expect("the number is below the sum") {
        0 => Op::Alloc { stream: chance.index(), bytes: size(chance, setup) },
        1 => Op::AllocRaw { stream: chance.index(), bytes: size(chance, setup) },
        2 => Op::Free { buffer: chance.index(), elsewhere: chance.below(8) == 0 },
        3 => {
            use DeviceCall::{Create, Map, Release, SetAccess, Unmap};
            Op::FreeInside { buffer: chance.index(), call: chance.pick(&[Create, Map, SetAccess, Unmap, Release]) }
        }
        4 => {
            let stream = chance.index();
            let operands = (0..chance.below(4)).map(|_| chance.index()).collect();
            Op::Launch { stream, operands, ns: duration(chance, scale) }
        }
        5 => Op::RecordStream { buffer: chance.index(), stream: chance.index() },
        6 => {
            let stream = (chance.below(4) == 0).then(|| chance.index());
            Op::RecordUse { buffer: chance.index(), stream, fence: chance.index() }
        }
        7 => {
            let streams = (0..=chance.below(3)).map(|_| chance.index()).collect();
            Op::Guards { buffer: chance.index(), streams, ns: duration(chance, scale) }
        }
        8 => Op::Escape { buffer: chance.index() },
        9 => Op::Record { stream: chance.index() },
        10 => Op::Wait { stream: chance.index(), fence: chance.index() },
        11 => Op::Ask { fence: chance.index() },
        12 => {
            let some_ns = duration(chance, scale);
            Op::HostWait { fence: chance.index(), timeout_ns: chance.pick(&[0, some_ns, 1_000_000_000_000]) }
        }
        13 => Op::DropFence { fence: chance.index() },
        14 => Op::HostWork { ns: duration(chance, scale) },
        15 => {
            let some = chance.below(setup.limit_bytes);
            Op::Trim { target: chance.pick(&[0, some]) }
        }
        16 => Op::CreateStream,
        17 => Op::DropStream { stream: chance.index() },
        18 => Op::BeginCapture { stream: chance.index() },
        19 => Op::EndCapture { capture: chance.index() },
        20 => Op::DropCapture { capture: chance.index() },
        21 => Op::DropGraph { graph: chance.index() },
        22 if chance.below(8) == 0 => Op::Unstash,
        22 => Op::Stash { buffer: chance.index() },
        23 => Op::OnPressure(match chance.below(8) {
            0..3 => Relief::FreeFirst,
            3..5 => Relief::FreeAll,
            5..7 => Relief::Allocate { stream: chance.index(), bytes: size(chance, setup) },
            _ => Relief::Capture { stream: chance.index() },
        }),
        24 => Op::EndPressure { callback: chance.index() },
        25 => Op::Fail { call: chance.pick(&FAILING), nth: 1 + chance.below(4) },
        _ => match chance.below(8) {
            0..2 => Op::Hog { granules: 1 + chance.below(setup.granules / 3) },
            2..7 => Op::Unhog,
            _ => Op::ResetPeaks,
        },
    }
}

fn duration(chance: &mut Chance, scale: u64) -> u64 {
    match chance.below(4) {
        0 => chance.below(3),
        1 => chance.below(10) * scale,
        _ => chance.below(40 * scale),
    }
}

/// Bytes: tiny ones, multiples of the rounding, around the bound of small requests, around the granularity, nothing,
/// everything, and more than there can be.
fn size(chance: &mut Chance, setup: &Setup) -> u64 {
    let granularity = setup.granularity_bytes;
    match chance.below(40) {
        0 => 0,
        1..3 => 1 + chance.below(2048),
        3..6 => 512 * (1 + chance.below(256)),
        6..9 => SMALL / 4 + chance.below(SMALL),
        9 => SMALL - 513 + chance.below(1026),
        10..12 => granularity * (1 + chance.below(4)) + chance.below(1025) - 512,
        12..20 => granularity * (1 + chance.below(setup.granules / 3)) + 512 * chance.below(3),
        20..38 => granularity * (1 + chance.below(setup.granules / 8)),
        38 => chance.below(setup.limit_bytes) + 1,
        _ => chance.pick(&[
            setup.limit_bytes - 1,
            setup.limit_bytes,
            setup.limit_bytes + 1,
            setup.granules * granularity,
            u64::MAX / 4,
        ]),
    }
}
