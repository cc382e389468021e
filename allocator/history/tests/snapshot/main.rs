//! Snapshots from records to files: what is written opens, what is wrong is found, what is hostile does no harm.

mod check;
mod hostile;
mod node;
mod python;
mod round_trip;
mod save;
mod viewer;
mod world;
