//! Why memory ran out, and its timeline: small snapshots with a cause each, the public cases, messages, and what is hostile or odd.

mod demand;
mod fragmentation;
mod growth;
mod messages;
mod odd;
mod outside;
mod pools;
mod public;
mod ranks;
mod replay;
mod streams;
mod timeline;
mod traces;
mod waste;
mod world;
