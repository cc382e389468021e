//! The reader: files of PyTorch, and files in the style of each writer.

mod hostile;
mod packed;
#[path = "../../examples/pickler/mod.rs"]
mod pickler;
mod pytorch;
mod styles;
