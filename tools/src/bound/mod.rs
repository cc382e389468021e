//! `highwater bound`: how little memory a recorded program could do with, and how near allocators come.
//!
//! `lower` proves a bound and gives its certificate, `check` follows the certificate by other code, `placement` looks for
//! the best placement without moves, `expandable` simulates PyTorch's other mode, and `recorded` reads what was held.

mod check;
mod expandable;
pub(crate) mod lower;
mod placement;
mod recorded;
mod report;

use std::path::Path;

use crate::cli::BoundArgs;
use crate::failure::Failure;
use crate::output;
use crate::replay;
use crate::replay::load::Recorded;
use check::check;
use lower::{Frontier, any_placement};
use recorded::Held;
use report::Report;

/// Proves the bound, and tells it beside what allocators hold.
///
/// # Errors
/// When the file cannot be used, a certificate does not hold, or the replay fails.
pub(crate) fn run(arguments: &BoundArgs) -> Result<(), Failure> {
    let recorded = Recorded::open(&arguments.snapshot)?;
    let report = measure(&arguments.snapshot, &recorded)?;
    output::print(&if arguments.json { report.json() } else { report.text() }).map_err(Failure::Print)
}

fn measure(path: &Path, recorded: &Recorded) -> Result<Report, Failure> {
    let (script, trace) = (&recorded.script, path.display().to_string());
    let (bound, frontier) = (any_placement(script), Frontier::of(script, 0));
    for bound in frontier.points().map(|(_, bound)| bound).chain([&bound]) {
        check(script, bound)
            .map_err(|forged| Failure::Certificate { trace: trace.clone(), reason: forged.to_string() })?;
    }
    let ours = replay::reserved_bytes(script);
    let ours = ours.map_err(|error| Failure::Replay { trace: trace.clone(), reason: error.to_string() })?;
    let found = report::Found {
        best_bytes: placement::best_bytes(script),
        ours_bytes: ours,
        held: Held::of(recorded.device()),
        expandable_bytes: expandable::reserved_bytes(script),
    };
    Ok(Report::new(trace, recorded, &bound, &frontier, found))
}

#[cfg(test)]
pub(crate) mod tests {
    use highwater::history::StackId;

    use crate::replay::script::{Block, Script, Step, What};

    /// A script of one stream, and a second that asks for nothing, from the bytes of blocks and when they are asked for and
    /// given back. At one time frees come first.
    pub(crate) fn script_of(blocks: &[(u64, u64, u64)]) -> Script {
        let mut steps: Vec<(u64, bool, usize)> = Vec::new();
        for (number, &(_, born_ns, freed_ns)) in blocks.iter().enumerate() {
            steps.extend([(born_ns, true, number), (freed_ns, false, number)]);
        }
        steps.sort_unstable();
        let steps: Vec<_> = steps
            .into_iter()
            .enumerate()
            .map(|(row, (at_ns, asks, number))| Step {
                at_ns,
                row,
                what: if asks { What::Alloc(number) } else { What::Free(number) },
            })
            .collect();
        let block = |&(bytes, born_ns, freed_ns): &(u64, u64, u64)| Block {
            bytes,
            owner: 0,
            born_ns,
            freed_ns: Some(freed_ns),
            used: None,
            stack: StackId::EMPTY,
        };
        Script {
            streams: vec!["one".into(), "other".into()],
            blocks: blocks.iter().map(block).collect(),
            span_ns: steps.last().map_or(0, |step| step.at_ns),
            events: steps.len(),
            steps,
        }
    }
}
