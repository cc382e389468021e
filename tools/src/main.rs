//! The `highwater` command: reads the command line, runs one subcommand, and says how it went by the exit code.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | it ran |
//! | 1 | it ran and the answer is no, or it could not run to its end |
//! | 2 | the input is bad; nothing was started |
//!
//! Results go to stdout, all else to stderr. A reader that closes either of them early is no error.

mod bench;
mod bound;
mod cli;
mod doctor;
mod failure;
mod input;
mod kernels;
mod output;
mod replay;
#[cfg(test)]
mod scratch;
mod settings;
mod snapshot;
mod train;
mod tui;
mod view;
mod warnings;
mod why;

use std::process::ExitCode;

use clap::Parser;
use highwater::history::SpanPathLayer;
use tracing_subscriber::layer::SubscriberExt;

use cli::{Cli, Command};
use failure::Failure;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Whoever would read the message is gone if it cannot be printed.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { failure::BAD_INPUT } else { 0 });
        }
    };
    let spans = tracing_subscriber::registry().with(SpanPathLayer::new()).with(warnings::Warnings);
    tracing::subscriber::set_global_default(spans).expect("nothing else has set one");
    let done = match &cli.command {
        Command::Train(arguments) => train::run(arguments),
        Command::Doctor(arguments) => doctor::run(arguments),
        Command::Kernels(arguments) => kernels::run(arguments),
        Command::Why(arguments) => why::run(arguments),
        Command::Snapshot(arguments) => snapshot::run(arguments),
        Command::View(arguments) => view::run(arguments),
        Command::Tui(arguments) => tui::run(arguments),
        Command::Bench(arguments) => bench::run(arguments),
        Command::Replay(arguments) => replay::run(arguments),
        Command::Bound(arguments) => bound::run(arguments),
    };
    done.map_or_else(|failure| failure.tell(), |()| ExitCode::SUCCESS)
}

impl Failure {
    /// Prints the line and gives the exit code.
    fn tell(&self) -> ExitCode {
        use std::io::Write;
        // Whoever would read it is gone if it cannot be printed.
        let _ = writeln!(std::io::stderr(), "highwater: {}", self.line());
        ExitCode::from(self.exit_code())
    }
}
