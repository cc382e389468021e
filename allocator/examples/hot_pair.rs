//! The hot path of the allocator, to be counted: `tests/callgrind/run` counts the instructions inside [`counted`].
//!
//! `hot_pair PATH ROUNDS [SETTINGS]`: goes `ROUNDS` times along a path on the simulated device, after a warm-up that is
//! not counted. Without arguments it names the paths. Everything happens on one thread and without a clock, so the same
//! program executes the same instructions each time.

use std::error::Error;

use highwater::device::sim::{SimConfig, SimDevice};
use highwater::device::{Cost, CostModel};
use highwater::{Allocator, Settings, Stream};

type Done = Result<(), Box<dyn Error>>;

/// Once along a path.
type Path = fn(&[Stream; 2]) -> Done;

/// The paths by name. All of them reach a steady state: no round maps memory.
const PATHS: [(&str, Path); 6] = [
    ("pair-512B", pair::<512>),
    ("pair-1MiB", pair::<{ 1 << 20 }>),
    ("pair-64MiB", pair::<{ 64 << 20 }>),
    ("handover", hand_over),
    ("guard", guard),
    ("record-stream", record_stream),
];

/// Rounds before it is counted: more than it takes to reach the steady state.
const WARM_UP: u32 = 200;

fn main() -> Done {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, rounds, settings @ ..] = &arguments[..] else {
        PATHS.iter().for_each(|(name, _)| println!("{name}"));
        return Ok(());
    };
    let path = PATHS.iter().find(|(known, _)| known == name).ok_or_else(|| format!("there is no path {name}"))?.1;
    let settings = Settings::parse(settings.first().map_or("", String::as_str))?;
    let config = SimConfig { cost: CostModel::free(), workers: 0, bodies: false, ..SimConfig::default() };
    let allocator = Allocator::with_settings(SimDevice::new(config), settings)?;
    let streams = [allocator.create_stream("a")?, allocator.create_stream("b")?];
    (0..WARM_UP).try_for_each(|_| path(&streams))?;
    counted(path, &streams, rounds.parse()?)
}

/// What is counted. Its name is what callgrind looks for.
#[inline(never)]
fn counted(path: Path, streams: &[Stream; 2], rounds: u32) -> Done {
    (0..rounds).try_for_each(|_| path(streams))
}

/// An allocation of so many bytes, and its free.
fn pair<const BYTES: usize>([a, _]: &[Stream; 2]) -> Done {
    drop(a.alloc::<u8>(BYTES)?);
    Ok(())
}

/// An allocation, a launch of its stream, one of another stream behind a fence, the way back, and the free.
fn hand_over([a, b]: &[Stream; 2]) -> Done {
    let buffer = a.alloc::<u8>(4096)?;
    a.launch("write", Cost::exact(1)).write(&buffer).submit()?;
    b.wait(&a.record()?)?;
    b.launch("read", Cost::exact(1)).read(&buffer).submit()?;
    a.wait(&b.record()?)?;
    Ok(())
}

/// An allocation, a use by another stream until the free, and the free.
fn record_stream([a, b]: &[Stream; 2]) -> Done {
    a.alloc::<u8>(1 << 20)?.record_stream(b);
    Ok(())
}

/// An allocation, a guard of its own stream, and the free.
fn guard([a, _]: &[Stream; 2]) -> Done {
    let buffer = a.alloc::<u8>(4096)?;
    drop(buffer.on(a)?);
    Ok(())
}
