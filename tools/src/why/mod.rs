//! `highwater why`: the verdict on a snapshot, on the ranks of a folder, or on the text of an error.

mod input;
pub(crate) mod json;
pub(crate) mod text;

use std::io::IsTerminal;
use std::path::Path;

use highwater::history::why::{Cause, Look, Moment, Options, Verdict, odd_one_out};

use crate::cli::WhyArgs;
use crate::failure::{Failure, InputError};
use crate::output;

/// What is said about one file.
struct Answer {
    /// Name of the file.
    place: String,
    /// A verdict for each device, the one to look at first in front; never empty.
    verdicts: Vec<Verdict>,
}

/// What is said about the files of a folder.
#[derive(Default)]
struct Ranks {
    /// By rank.
    answers: Vec<Answer>,
    /// Files that cannot be read, and why.
    left_out: Vec<(String, String)>,
}

/// Explains what is given.
///
/// # Errors
/// When the input is neither a snapshot nor a message, or when it does not decide.
pub(crate) fn run(arguments: &WhyArgs) -> Result<(), Failure> {
    let mut options = Options::default();
    options.capacity_bytes = arguments.capacity;
    options.top = arguments.top;
    if arguments.growth {
        options.look = Look::Growth;
    }
    if let Some(path) = &arguments.message {
        options.message = Some(input::message(path)?);
    }
    let style = text::Style { color: is_colourful(), growth: arguments.growth };
    if arguments.input.is_dir() {
        return folder(arguments, &options, style);
    }
    let answer = input::answer(&arguments.input, &options, arguments.device)?;
    let text = match arguments.json {
        true => json::answer(&answer) + "\n",
        false => text::answer(&answer, style),
    };
    output::print(&text).map_err(Failure::Print)?;
    decided(&answer.place, arguments, std::slice::from_ref(&answer))
}

fn folder(arguments: &WhyArgs, options: &Options, style: text::Style) -> Result<(), Failure> {
    let ranks = input::ranks(&arguments.input, options, arguments.device)?;
    let first: Vec<&Verdict> = ranks.answers.iter().map(|answer| &answer.verdicts[0]).collect();
    let odd = odd_one_out(&first);
    let text = match arguments.json {
        true => json::ranks(&ranks, odd.as_ref()) + "\n",
        false => text::ranks(&ranks, odd.as_ref(), style),
    };
    output::print(&text).map_err(Failure::Print)?;
    decided(&arguments.input.display().to_string(), arguments, &ranks.answers)
}

/// Whether a failure was explained, if there was one.
fn decided(place: &str, arguments: &WhyArgs, answers: &[Answer]) -> Result<(), Failure> {
    let open = |answer: &Answer| {
        let verdict = &answer.verdicts[0];
        verdict.moment == Moment::OutOfMemory && verdict.cause() == Cause::X
    };
    match !arguments.growth && answers.iter().any(open) {
        true => Err(Failure::Undecided { place: place.to_owned() }),
        false => Ok(()),
    }
}

/// Whether the reader is a person at a terminal that shows colours.
pub(crate) fn is_colourful() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    std::io::stdout().is_terminal() && !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

fn unreadable(path: &Path, reason: &std::io::Error) -> Failure {
    InputError::Unreadable { path: path.to_owned(), reason: reason.to_string() }.into()
}
