//! The `highwater` command as a user meets it: words in; exit code, streams and files out.

mod bad_input;
mod browser;
mod help;
mod replay;
#[path = "../../src/scratch.rs"]
mod scratch;
mod snapshot;
mod support;
mod training;
mod view;
mod why;
