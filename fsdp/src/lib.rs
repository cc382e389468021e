//! Sharded parameters for training: every rank keeps one equal part of each unit's parameters, the whole unit exists
//! only around its use.
//!
//! [`plan`] holds the schedule of one training step as plain data: what is issued, in which order, on which stream,
//! in which slot, after which fences, with how many bytes. It touches no device. [`run`] issues it on two streams, and
//! [`group`] holds the two collectives that it needs. [`transformer`] is a model to train.

pub mod group;
pub mod plan;
pub mod run;
pub mod transformer;
