//! `highwater replay`: a recorded trace as timed work against the allocator.
//!
//! `script` turns a trace into steps of a host, `load` a file into a script, and `generate` makes scripts that nobody
//! recorded. `drive` plays one on a `machine`: the simulated device, through `meter`, which prices its calls, or a GPU.
//! `verify` fills and compares blocks, `ideal` says what unlimited memory would take, `counters` reads the allocator, and
//! `report` tells. `docs/replay.md` says what a replay is, and what it is not.

pub(crate) mod counters;
pub(crate) mod drive;
mod generate;
mod ideal;
pub(crate) mod load;
mod machine;
pub(crate) mod meter;
pub(crate) mod report;
pub(crate) mod script;
mod verify;

use highwater::Settings;

use crate::bound;
use crate::cli::{ReplayArgs, ReplayDevice};
use crate::doctor;
use crate::failure::{Failure, InputError};
use crate::output;
use crate::settings;
use drive::{DriveError, Options, Outcome, drive};
use load::Recorded;
use report::Report;
use script::Script;

/// Replays each file and tells what came of it.
///
/// # Errors
/// When the input is bad, memory runs out, or the allocator broke its contract.
pub(crate) fn run(arguments: &ReplayArgs) -> Result<(), Failure> {
    if arguments.device == ReplayDevice::Cuda {
        doctor::require(doctor::Need::Training)?;
    }
    let options = options(arguments, "")?;
    for (trace, script) in scripts(arguments)? {
        let outcome = play(&trace, &script, &options, arguments.json)?;
        let broken = Broken::of(&outcome, &script);
        let mut report = Report::new(trace.clone(), &script, arguments.behind, arguments.verify, outcome);
        if arguments.frontier {
            report.add_reached(&shown(arguments, &script, &report)?);
        }
        output::print(&if arguments.json { report.json() } else { report.text() }).map_err(Failure::Print)?;
        if let Some(broken) = broken {
            return Err(Failure::Replay { trace, reason: broken.0 });
        }
    }
    Ok(())
}

/// What the allocator does with more and less time for pages, and under limits between what it holds and the least that
/// the program needs: its utilization, and the ratio of the critical path. Limits that it cannot keep show nothing.
fn shown(arguments: &ReplayArgs, script: &Script, report: &Report) -> Result<Vec<(f64, f64)>, InputError> {
    let most_bytes = report.peak_reserved_bytes;
    let least_bytes = bound::lower::any_placement(script).bytes.min(most_bytes);
    let limits = (0..LIMITS).map(|part| least_bytes + (most_bytes - least_bytes) / LIMITS * part);
    let tried: Vec<_> = PAGE_TIMES
        .iter()
        .map(|page_time| format!("page_time:{page_time}"))
        .chain(limits.map(|limit| format!("memory_limit_bytes:{limit}")))
        .collect();
    let mut shown = vec![(report.utilization, report.critical_path_ratio)];
    let bar = bar(tried.len(), arguments.json);
    for pair in tried {
        let options = Options { verify: false, ..options(arguments, &pair)? };
        if let Ok(outcome) = drive(script, &options, &mut |_| ()) {
            let counters = outcome.counters;
            let utilization = report::ratio_of(counters.peak_live_bytes, counters.peak_reserved_bytes);
            shown.push((utilization, report::ratio_of(outcome.makespan_ns, outcome.ideal_ns)));
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(shown)
}

/// Limits that are tried for the frontier, and parts of the time that pages may take.
const LIMITS: u64 = 8;
const PAGE_TIMES: [f64; 6] = [0.0, 0.002, 0.004, 0.016, 0.03, 0.06];

/// The scripts that are asked for, each with its name. All are read before the first is played.
fn scripts(arguments: &ReplayArgs) -> Result<Vec<(String, Script)>, InputError> {
    let generated = arguments.generate.iter().map(|kind| Ok((kind.name().to_owned(), generate::script(*kind))));
    let recorded =
        arguments.snapshots.iter().map(|path| Ok((path.display().to_string(), Recorded::open(path)?.script)));
    let scripts: Vec<_> = recorded.chain(generated).collect::<Result<_, InputError>>()?;
    if scripts.is_empty() { Err(InputError::NothingToReplay) } else { Ok(scripts) }
}

/// How the scripts are to be played, with one more `key:value` pair of the allocator's settings.
fn options(arguments: &ReplayArgs, pair: &str) -> Result<Options, InputError> {
    let settings = settings(arguments, pair)?;
    let behind_ns = arguments.behind.checked_mul(1000).filter(|&ns| ns <= LONGEST_BEHIND_NS);
    let too_large =
        InputError::TooLarge { value: arguments.behind, option: "--behind", limit: LONGEST_BEHIND_NS / 1000 };
    let gpu = arguments.device == ReplayDevice::Cuda;
    Ok(Options { gpu, ..Options::new(behind_ns.ok_or(too_large)?, arguments.verify, settings) })
}

/// An hour.
const LONGEST_BEHIND_NS: u64 = 3_600_000_000_000;

/// The environment's settings, with those of the command line on top, and one more pair.
fn settings(arguments: &ReplayArgs, pair: &str) -> Result<Settings, InputError> {
    if arguments.limit == Some(0) {
        return Err(InputError::Zero { what: "number of bytes", option: "--limit" });
    }
    let limit = arguments.limit.map(|limit| format!("memory_limit_bytes:{limit}"));
    let policy = arguments.policy.map(|policy| format!("policy:{}", policy.name()));
    settings::above_environment(limit.into_iter().chain(policy).chain([pair.to_owned()]))
}

/// Plays one script, with progress on stderr.
fn play(trace: &str, script: &Script, options: &Options, quiet: bool) -> Result<Outcome, Failure> {
    let bar = bar(script.steps.len(), quiet);
    let outcome = drive(script, options, &mut |steps| bar.set_position(steps as u64));
    bar.finish_and_clear();
    outcome.map_err(|error| Failure::Replay { trace: trace.to_owned(), reason: error.to_string() })
}

/// A bar on a terminal, and nothing elsewhere.
fn bar(steps: usize, quiet: bool) -> indicatif::ProgressBar {
    use std::io::IsTerminal;
    if quiet || !std::io::stderr().is_terminal() {
        return indicatif::ProgressBar::hidden();
    }
    let style =
        indicatif::ProgressStyle::with_template("{bar:30} {pos}/{len} steps").expect("the template is well-formed");
    indicatif::ProgressBar::new(steps as u64).with_style(style)
}

/// How the allocator broke its contract, in words.
struct Broken(String);

impl Broken {
    fn of(outcome: &Outcome, script: &Script) -> Option<Broken> {
        if let Some(wrong) = outcome.mismatches.first() {
            let verify::Mismatch { block, offset, found, expected } = *wrong;
            let bytes = script.blocks[block].bytes;
            return Some(Broken(format!(
                "{} reads found bytes that were not what had been written, the first in block {block} of {bytes} bytes: \
                 {found:#04x} instead of {expected:#04x} at offset {offset}",
                outcome.mismatches.len()
            )));
        }
        let hazard = outcome.hazards.first()?;
        Some(Broken(format!("{} races on memory, the first: {hazard:?}", outcome.hazards.len())))
    }
}

/// Plays a script as it is without options: the physical memory that the allocator holds at most, bytes.
///
/// # Errors
/// When memory runs out.
pub(crate) fn reserved_bytes(script: &Script) -> Result<u64, DriveError> {
    let outcome = drive(script, &Options::new(0, false, Settings::default()), &mut |_| ())?;
    Ok(outcome.counters.peak_reserved_bytes)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn a_broken_contract_is_told() {
        let script = generate::script(crate::cli::Generated::Prefetch);
        let mut outcome = drive::tests::played(&script);
        assert!(Broken::of(&outcome, &script).is_none());
        outcome.mismatches = vec![verify::Mismatch { block: 0, offset: 77, found: 0xff, expected: 1 }];
        let told = Broken::of(&outcome, &script).map(|broken| broken.0).unwrap();
        assert!(told.contains("block 0 of 50331648 bytes: 0xff instead of 0x01 at offset 77"), "{told}");
    }

    #[test]
    fn options_stand_above_the_environment_and_what_is_tried_above_both() {
        let arguments =
            |line: &str| match Cli::parse_from(["highwater", "replay"].into_iter().chain(line.split(' '))).command {
                Command::Replay(arguments) => arguments,
                _ => unreachable!("it is the command of the line"),
            };
        let given = arguments("x --limit 1048576 --policy wait");
        for (pair, limit) in [("", "1048576"), ("memory_limit_bytes:77", "77")] {
            let pairs = settings(&given, pair).unwrap().pairs();
            assert!(pairs.contains(&("memory_limit_bytes".into(), limit.into())), "{pairs:?}");
            assert!(pairs.contains(&("policy".into(), "wait".into())), "{pairs:?}");
        }
        let zero = InputError::Zero { what: "number of bytes", option: "--limit" };
        assert_eq!(settings(&arguments("x --limit 0"), ""), Err(zero));
    }
}
