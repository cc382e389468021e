//! What the sanitizer costs: launches and allocations a second, without and with it, on the simulated device.
//!
//! `cargo run --release -p highwater --example sanitizer_factor --features sanitizer`

use std::error::Error;
use std::time::Instant;

use highwater::device::sim::{SimConfig, SimDevice};
use highwater::device::{Cost, CostModel};
use highwater::sanitizer::OnRace;
use highwater::{Allocator, Settings, Stream};

const ROUNDS: u32 = 20_000;

fn main() -> Result<(), Box<dyn Error>> {
    let settings = [Settings::default(), Settings::builder().sanitizer(OnRace::Collect).build()?];
    let mut figures = Vec::new();
    for settings in settings {
        let config = SimConfig { cost: CostModel::free(), workers: 0, bodies: false, ..SimConfig::default() };
        let allocator = Allocator::with_settings(SimDevice::new(config), settings)?;
        let streams = [allocator.create_stream("a")?, allocator.create_stream("b")?];
        let pairs = best(|| pair(&streams[0]))?;
        let handovers = best(|| hand_over(&streams))?;
        assert!(allocator.sanitizer().is_none_or(|sanitizer| sanitizer.take_races().is_empty()));
        figures.push([pairs, handovers]);
    }
    let names = ["allocate and free", "launch, record, wait, launch, record, wait"];
    for (index, name) in names.into_iter().enumerate() {
        let (off, on) = (figures[0][index], figures[1][index]);
        println!("{name}: {off:.0} ns without, {on:.0} ns with the sanitizer, {:.2} times", on / off);
    }
    Ok(())
}

/// The best of five: ns of one round.
fn best(mut round: impl FnMut() -> Result<(), Box<dyn Error>>) -> Result<f64, Box<dyn Error>> {
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        (0..ROUNDS).try_for_each(|_| round())?;
        best = best.min(start.elapsed().as_nanos() as f64 / f64::from(ROUNDS));
    }
    Ok(best)
}

fn pair(stream: &Stream) -> Result<(), Box<dyn Error>> {
    drop(stream.alloc::<u8>(4096)?);
    Ok(())
}

fn hand_over([a, b]: &[Stream; 2]) -> Result<(), Box<dyn Error>> {
    let buffer = a.alloc::<u8>(4096)?;
    a.launch("write", Cost::exact(1)).write(&buffer).submit()?;
    b.wait(&a.record()?)?;
    b.launch("read", Cost::exact(1)).read(&buffer).submit()?;
    a.wait(&b.record()?)?;
    Ok(())
}
