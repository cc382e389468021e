//! Every launcher on a simulated device against the same operation on the host: bytes, arguments, costs, faults, order.

mod arguments;
mod bits;
mod cases;
mod costs;
mod faults;
mod lengths;
mod operands;
mod order;
