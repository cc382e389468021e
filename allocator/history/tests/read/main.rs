//! The reader: files of PyTorch, and files in the style of each writer.

mod hostile;
mod json;
mod packed;
#[path = "../../examples/pickler/mod.rs"]
mod pickler;
mod pytorch;
mod round_trip;
mod styles;
mod versions;
#[path = "../snapshot/world.rs"]
mod world;
