//! The whole system, through public items only. The names of the tests on sharding begin with the number of the
//! requirement that they show.

mod adversary;
mod asynchrony;
mod deadlock;
mod fork;
mod house;
mod memory;
mod oracle;
mod order;
mod ranks;
mod swarm;
mod timelines;
