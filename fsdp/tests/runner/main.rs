//! The runner and process groups on a simulated cluster: failures, retries, the order of sums, padding.

mod collectives;
mod failures;
mod fold;
mod plans;
mod retry;
mod scripted;
mod training;
