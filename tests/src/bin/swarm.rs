//! Swarms of random programs against the allocator.
//!
//! - `swarm --seeds 2000 [--from 0]` runs the programs of many seeds on all cores, and tells what they met. It fails when
//!   a program breaks a rule, or when something is met by none of them. On a failure the last line is the command that
//!   replays it.
//! - `swarm --seed 1234` runs one, tells what its steps did, and shrinks it when it fails.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use highwater_tests::swarm::{Coverage, Failure, Outcome, Program, Rule, everything, run, run_twice, shrink};

/// How to call it.
const USAGE: &str = "usage: swarm --seeds COUNT [--from SEED] | --seed SEED";
/// How often a shrinking program runs at most.
const SHRINK_RUNS: usize = 20_000;
/// A program that takes longer hangs: each takes milliseconds.
const HANGS_AFTER: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match parse(&arguments) {
        Some(Job::One(seed)) => replay(seed),
        Some(Job::Many { from, count }) => swarm(from, count),
        None => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

enum Job {
    One(u64),
    Many { from: u64, count: u64 },
}

fn parse(arguments: &[String]) -> Option<Job> {
    let mut values = BTreeMap::new();
    for pair in arguments.chunks(2) {
        let [key, value] = pair else { return None };
        values.insert(key.as_str(), value.parse::<u64>().ok()?);
    }
    let job = match (values.remove("--seed"), values.remove("--seeds")) {
        (Some(seed), None) => Job::One(seed),
        (None, Some(count)) => Job::Many { from: values.remove("--from").unwrap_or(0), count },
        _ => return None,
    };
    values.is_empty().then_some(job)
}

// ---- many

/// What a worker tells.
enum News {
    Began { worker: usize, seed: u64 },
    Ended { worker: usize, seed: u64, steps: usize, outcome: Box<Outcome> },
}

fn swarm(from: u64, count: u64) -> ExitCode {
    let start = Instant::now();
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, stop) = (AtomicU64::new(from), AtomicBool::new(false));
    let (sender, receiver) = channel();
    let (mut runs, mut totals, mut steps, mut ended) = (Coverage::default(), Coverage::default(), 0, 0);
    let mut failures: BTreeMap<u64, Failure> = BTreeMap::new();
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let (sender, next, stop) = (sender.clone(), &next, &stop);
            scope.spawn(move || work(worker, next, from + count, stop, &sender));
        }
        drop(sender);
        let mut busy: BTreeMap<usize, (u64, Instant)> = BTreeMap::new();
        loop {
            match receiver.recv_timeout(Duration::from_secs(5)) {
                Ok(News::Began { worker, seed }) => {
                    busy.insert(worker, (seed, Instant::now()));
                }
                Ok(News::Ended { worker, seed, steps: of_seed, outcome }) => {
                    busy.remove(&worker);
                    (ended, steps) = (ended + 1, steps + of_seed);
                    runs.add_run(&outcome.met);
                    totals.merge(&outcome.met);
                    if let Some(failure) = outcome.failure {
                        failures.insert(seed, failure);
                        stop.store(true, Ordering::Relaxed);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Some((seed, _)) = busy.values().find(|(_, since)| since.elapsed() > HANGS_AFTER) {
                println!("seed {seed} hangs\n{}", command(*seed));
                std::process::exit(1);
            }
        }
    });
    let seconds = start.elapsed().as_secs_f64();
    print!("{}", table(&runs, &totals, ended));
    let per_second = ended as f64 / seconds;
    println!("{ended} programs of {steps} steps, each twice, in {seconds:.1} s: {per_second:.0} a second");
    verdict(&runs, &failures)
}

fn work(worker: usize, next: &AtomicU64, end: u64, stop: &AtomicBool, news: &Sender<News>) {
    while !stop.load(Ordering::Relaxed) {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= end || news.send(News::Began { worker, seed }).is_err() {
            return;
        }
        let program = Program::draw(seed);
        let outcome = Box::new(run_twice(&program));
        if news.send(News::Ended { worker, seed, steps: program.len(), outcome }).is_err() {
            return;
        }
    }
}

fn verdict(runs: &Coverage, failures: &BTreeMap<u64, Failure>) -> ExitCode {
    if let Some((seed, failure)) = failures.first_key_value() {
        println!("seed {seed}: {failure}\n{}", command(*seed));
        return ExitCode::FAILURE;
    }
    let never: Vec<String> = everything().into_iter().filter(|name| runs.of(name) == 0).collect();
    if !never.is_empty() {
        println!("never met: {}", never.join(", "));
        return ExitCode::FAILURE;
    }
    println!("no rule is broken");
    ExitCode::SUCCESS
}

/// What was met: how often, and in what share of the programs.
fn table(runs: &Coverage, totals: &Coverage, ended: u64) -> String {
    let mut text = String::new();
    for pair in everything().chunks(2) {
        for name in pair {
            let share = 100.0 * runs.of(name) as f64 / ended.max(1) as f64;
            let _ = write!(text, "{name:32} {:>9} {share:5.1} %    ", totals.of(name));
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

fn command(seed: u64) -> String {
    format!("cargo run --release -p highwater-tests --bin swarm -- --seed {seed}")
}

// ---- one

fn replay(seed: u64) -> ExitCode {
    let program = Program::draw(seed);
    let Some(failure) = run_twice(&program).failure else {
        print!("{}", told(&program));
        println!("seed {seed}: no rule is broken in {} steps", program.len());
        return ExitCode::SUCCESS;
    };
    println!("seed {seed}: {failure}");
    println!("shrinking {} steps", program.len());
    let twice = failure.rule == Rule::Replay;
    let fails =
        |program: &Program| if twice { run_twice(program).failure } else { run(program, 0, None, false).failure };
    let small = shrink(&program, failure.rule, SHRINK_RUNS, fails);
    print!("{small}");
    println!("what its steps did:");
    print!("{}", told(&small));
    println!("{}", fails(&small).unwrap_or(failure));
    ExitCode::FAILURE
}

/// What the steps of a program did.
fn told(program: &Program) -> String {
    run(program, 0, None, true).story.iter().map(|line| format!("{line}\n")).collect()
}
