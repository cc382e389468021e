//! Measures the reader on a file: `read_bench FILE [--python]`. With `--python` also `pickle.load` in the same run.
//!
//! Memory is the peak of the process above the bytes of the file, which a program would map. The first
//! reading is the one that counts for memory; the fastest counts for time.

use std::{env, fs, process::Command, process::ExitCode, time::Instant};

use highwater_history::read::{Options, read};

const ROUNDS: usize = 5;

const PYTHON: &str = "
import gc, pickle, resource, sys, time
for collect in (False, True):
    gc.enable() if collect else gc.disable()
    start, cpu = time.perf_counter(), time.process_time()
    snapshot = pickle.load(open(sys.argv[1], 'rb'))
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    del snapshot
    print(f'python pickle.load, gc {\"on\" if collect else \"off\"}: {seconds:.3f} s, of which {cpu:.3f} s on a core')
print(f'python peak: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB')
";

fn main() -> ExitCode {
    let arguments: Vec<_> = env::args().skip(1).collect();
    let [file, rest @ ..] = arguments.as_slice() else {
        eprintln!("usage: read_bench FILE [--python]");
        return ExitCode::from(2);
    };
    if let Err(error) = measure(file) {
        eprintln!("{file}: {error}");
        return ExitCode::FAILURE;
    }
    if rest.iter().any(|argument| argument == "--python")
        && Command::new("python3").args(["-c", PYTHON, file]).status().is_err()
    {
        eprintln!("there is no python3 on this machine");
    }
    ExitCode::SUCCESS
}

fn measure(file: &str) -> Result<(), Box<dyn std::error::Error>> {
    let bytes = fs::read(file)?;
    let before = peak_bytes().unwrap_or(0);
    let (mut fastest, mut least_cpu) = (f64::INFINITY, f64::INFINITY);
    for round in 0..ROUNDS {
        let start = Instant::now();
        let cpu_before = cpu_seconds();
        let loaded = read(&bytes, &Options::default())?;
        let seconds = start.elapsed().as_secs_f64();
        let rate = bytes.len() as f64 / seconds / 1e6;
        let cpu = cpu_seconds().zip(cpu_before).map_or(f64::NAN, |(after, before)| after - before);
        (fastest, least_cpu) = (fastest.min(seconds), least_cpu.min(cpu));
        println!("read: {seconds:.3} s, of which {cpu:.3} s on a core, {rate:.0} MB/s");
        if round == 0 {
            let events = loaded.events();
            let symbols = &loaded.symbols;
            println!("{events} events, {} frames, {} stacks", symbols.frames(), symbols.stacks());
            if let Some(peak) = peak_bytes() {
                let more = peak.saturating_sub(before);
                println!("memory: {} MiB at the peak, {} bytes an event", more >> 20, more / (events as u64).max(1));
            }
        }
    }
    println!("fastest: {fastest:.3} s, least on a core: {least_cpu:.3} s");
    Ok(())
}

/// How long this thread has been on a core, which a busy machine changes less than the time that passes.
fn cpu_seconds() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/schedstat").ok()?;
    Some(status.split(' ').next()?.parse::<f64>().ok()? / 1e9)
}

/// The largest that this process has been.
fn peak_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
}
