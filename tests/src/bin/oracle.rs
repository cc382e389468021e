//! Drives the allocator and its model through random programs: `oracle -- --operations 1000000 [--seed N]`.
//!
//! The same seed gives the same programs. When the two go apart, the program is shrunk and printed as Rust, with its seed:
//! it becomes a test in `tests/tests/oracle.rs`.

use std::process::ExitCode;

use highwater_tests::oracle::{Tally, program, run, shrink};

/// Steps of one program.
const STEPS: usize = 500;

struct Arguments {
    operations: u64,
    seed: u64,
}

fn arguments() -> Result<Arguments, String> {
    let mut found = Arguments { operations: 1_000_000, seed: 0 };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let place = match word.as_str() {
            "--operations" => &mut found.operations,
            "--seed" => &mut found.seed,
            _ => return Err(format!("{word:?} is not known; expected --operations N or --seed N")),
        };
        let value = words.next().ok_or_else(|| format!("{word} needs a number"))?;
        *place = value.replace('_', "").parse().map_err(|_| format!("{word} {value:?}: expected a number"))?;
    }
    Ok(found)
}

/// Runs until so many operations were done or one went wrong.
pub fn main() -> ExitCode {
    let Arguments { operations, seed } = match arguments() {
        Ok(arguments) => arguments,
        Err(what) => {
            eprintln!("{what}");
            return ExitCode::from(2);
        }
    };
    // Panics of the allocator are differences; they are told with the program.
    std::panic::set_hook(Box::new(|_| {}));
    let (mut tally, mut next) = (Tally::default(), seed);
    while tally.steps < operations {
        let (setup, steps) = program(next, STEPS.min((operations - tally.steps) as usize));
        match run(&setup, &steps) {
            Ok(one) => tally.add(&one),
            Err(failure) => {
                eprintln!("seed {next}: {failure}\nshrinking...");
                let (steps, failure) = shrink(&setup, &steps).unwrap_or((steps, failure));
                println!("seed {next}: {failure}\nlet setup = {setup:?};\nlet program = {steps:#?};");
                return ExitCode::FAILURE;
            }
        }
        next += 1;
    }
    println!("{} operations in {} programs (seeds {seed}..{next}): as predicted", tally.steps, next - seed);
    println!("rungs: {:?}\ncounts: {:?}\noutcomes: {:?}", tally.rungs, tally.counts, tally.outcomes);
    ExitCode::SUCCESS
}
