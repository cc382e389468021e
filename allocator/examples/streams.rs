//! Several streams that share one buffer: on a GPU if there is one, else on the simulated device.
//!
//! The buffer is dropped while both readers still work. Nobody waits for them: its bytes are pending, `writer` gets other
//! memory meanwhile, and the same bytes again when the readers are done.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use highwater::device::cuda::{CudaConfig, CudaDevice};
use highwater::device::sim::{SimConfig, SimDevice};
use highwater::device::{Cost, Device};
use highwater::{Allocator, Buffer, MemoryStats, Settings, Stream};

/// Elements of the buffer: 64 MiB.
const LEN: usize = 16 << 20;
/// Copies of each reader.
const COPIES: usize = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let device: Arc<dyn Device> = match CudaDevice::new(CudaConfig::default()) {
        Ok(gpu) => gpu,
        Err(missing) => {
            println!("{missing}");
            SimDevice::new(SimConfig { bodies: false, ..SimConfig::default() })
        }
    };
    println!("on {}", device.properties().name);
    let allocator = Allocator::with_settings(device, Settings::default())?;
    let writer = allocator.create_stream("writer")?;
    let readers = [allocator.create_stream("reader 1")?, allocator.create_stream("reader 2")?];
    let targets = [readers[0].alloc::<f32>(LEN)?, readers[1].alloc::<f32>(LEN)?];

    let shared = writer.alloc::<f32>(LEN)?;
    let place = format!("{shared:?}");
    zero(&writer, &shared)?;
    let written = writer.record()?;
    for (reader, target) in readers.iter().zip(&targets) {
        reader.wait(&written)?;
        (0..COPIES).try_for_each(|_| copy(reader, &shared, target))?;
    }
    drop(shared);
    tell("dropped while two streams read it", &allocator.memory_stats());

    let meanwhile = writer.alloc::<f32>(LEN)?;
    tell("the writer goes on in other memory", &allocator.memory_stats());
    for reader in &readers {
        reader.record()?.wait(Duration::from_secs(60))?;
    }
    let again = writer.alloc::<f32>(LEN)?;
    tell("the readers are done, and the writer asks once more", &allocator.memory_stats());
    println!("the same bytes again: {}", format!("{again:?}") == place);
    drop((meanwhile, again));
    Ok(())
}

fn tell(what: &str, stats: &MemoryStats) {
    let mib = |bytes: u64| bytes >> 20;
    println!(
        "{what}: {} MiB live, {} pending {:?}, {} held; requests blocked the host {} times",
        mib(stats.live.now),
        mib(stats.pending_bytes),
        stats.pending_bytes_by_stream.keys().collect::<Vec<_>>(),
        mib(stats.reserved.now),
        stats.host_stalls,
    );
}

/// Writes zeros: by cudarc on a GPU, else as a launch.
fn zero(stream: &Stream, target: &Buffer<f32>) -> Result<(), Box<dyn Error>> {
    match stream.cuda_stream() {
        Some(cuda) => cuda.memset_zeros(&mut target.on(stream)?)?,
        None => stream.launch("zero", Cost::kernel(0, target.bytes())).write(target).submit()?,
    }
    Ok(())
}

/// Copies: by cudarc on a GPU, else as a launch.
fn copy(stream: &Stream, source: &Buffer<f32>, target: &Buffer<f32>) -> Result<(), Box<dyn Error>> {
    match stream.cuda_stream() {
        // The guards end the uses as soon as the copy is submitted.
        Some(cuda) => cuda.memcpy_dtod(&source.on(stream)?, &mut target.on(stream)?)?,
        None => stream.launch("copy", Cost::kernel(0, 2 * source.bytes())).read(source).write(target).submit()?,
    }
    Ok(())
}
