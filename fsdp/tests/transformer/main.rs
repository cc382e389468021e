//! The transformer on a simulated device, driven unit by unit without a runner.

mod causality;
mod direct;
mod gradients;
mod losses;
mod memory;
