//! Running the command.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// How a run of the command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("the command writes UTF-8");
        Ended { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

/// The command with these words, split at spaces, in a folder.
pub(crate) fn command(folder: &Path, words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_highwater"));
    command.args(words.split_whitespace()).current_dir(folder).stdin(Stdio::null());
    command
}

/// Runs it to its end.
pub(crate) fn highwater(folder: &Path, words: &str) -> Ended {
    command(folder, words).output().expect("the command starts").into()
}

/// Runs it with a stdout that nobody reads.
pub(crate) fn without_reader(folder: &Path, words: &str) -> Ended {
    let (reader, writer) = std::io::pipe().expect("a pipe can be made");
    drop(reader);
    let mut command = command(folder, words);
    let child = command.stdout(writer).stderr(Stdio::piped()).spawn().expect("the command starts");
    child.wait_with_output().expect("it ends").into()
}
