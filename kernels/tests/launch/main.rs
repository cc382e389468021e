//! Every launcher on a simulated device against the same operation on the host: bytes, arguments, costs, faults,
//! order; and both elements.

mod arguments;
mod bits;
mod cases;
mod costs;
mod elements;
mod faults;
mod lengths;
mod operands;
#[path = "../operations/mod.rs"]
mod operations;
mod order;
mod overflow;
